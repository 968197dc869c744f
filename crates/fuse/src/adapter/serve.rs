//! Request handlers.

use forebay_base::sync::Arc;
use forebay_base::waits;
use forebay_fs::{Error, FileSystem, Handle, Ino, NewNode, RenameMode, Seek, Write};

use super::client::{self, Client};
use super::rename_order::RenamedFiles;
use super::shrinker::ShrinkerMount;
use super::{Adapter, convert, errno, finish, handles, is_suspended, would_block};
use crate::counters::{MountMetrics, Op};
use crate::transport::{
    self, Attributes, Caller, CopyRange, Created, DataReply, Dentry, DirEntry, DirReply,
    KernelNotifier, OpenHow, Opened, Position, Reply, Server, SetAttributes, SyncMode, Usage,
    WriteRequest, Written, XattrReply,
};

/// Largest number of bytes copied by one request.
const COPY_BYTES: u64 = 64 << 20;

/// Tries an operation in non-blocking mode. If it would block, copies the listed borrowed arguments
/// and repeats it on a worker thread.
macro_rules! attempt {
    ($this:ident, $pid:expr, $op:expr, [$($kept:ident),*], |$fs:ident| $operation:expr, |$metrics:ident, $result:ident| $end:expr) => {{
        let $result = {
            let $fs = &$this.non_blocking;
            $operation
        };
        if would_block(&$result) {
            $(let $kept = $kept.to_vec();)*
            $this.defer($pid, $op, move |$fs, $metrics| {
                $(let $kept = &$kept[..];)*
                let $result = $operation;
                $end
            });
        } else {
            let $metrics = &*$this.metrics;
            $end
        }
    }};
}

/// As `attempt`, for operations on behalf of a caller whose result is the reply.
macro_rules! reply {
    ($this:ident, $caller:ident, $op:expr, $reply:ident, [$($kept:ident),*], |$fs:ident| $operation:expr) => {
        attempt!($this, $caller.pid, $op, [$($kept),*], |$fs| $operation, |metrics, result| finish(metrics, $reply, result))
    };
}

/// Makes a change of an inode durable as the sync mode demands. Returns `value`.
fn sync_change<T>(fs: &FileSystem, ino: u64, sync_mode: SyncMode, value: T) -> Result<T, Error> {
    match sync_mode {
        SyncMode::None => Ok(value),
        SyncMode::Data => fs.fsync(Ino(ino), true).map(|()| value),
        SyncMode::All => fs.fsync(Ino(ino), false).map(|()| value),
    }
}

/// Parameters of a directory listing.
#[derive(Clone, Copy)]
struct Listing {
    ino: Ino,
    handle: Handle,
    from: u64,
    plus: bool,
}

fn list(fs: &FileSystem, what: Listing, reply: &mut DirReply) -> Result<(), Error> {
    let Listing { ino, handle, from, plus } = what;
    if !plus {
        return fs.readdir(ino, handle, from, &mut |entry| {
            let kind = convert::kind(entry.kind);
            reply
                .add(&DirEntry { name: entry.name, ino: entry.ino.0, kind, next: entry.next }, None)
        });
    }
    fs.readdirplus(ino, handle, from, &mut |entry, attr| {
        let attributes = attr.map(convert::attributes);
        let kind = convert::kind(entry.kind);
        let entry = DirEntry { name: entry.name, ino: entry.ino.0, kind, next: entry.next };
        reply.add(&entry, attributes.as_ref())
    })
}

/// Sends the listed entries, even if an error followed them. The kernel continues after the last
/// one.
pub(crate) fn finish_listing(metrics: &MountMetrics, reply: DirReply, result: Result<(), Error>) {
    match result {
        Err(error) if reply.is_empty() => reply.error(errno(metrics, &error)),
        _ => reply.done(),
    }
}

/// Replies with a value, or with its length if `size` is 0.
fn reply_xattr(
    metrics: &MountMetrics,
    reply: XattrReply,
    size: u32,
    result: Result<Vec<u8>, Error>,
) {
    match result {
        Err(error) => reply.error(errno(metrics, &error)),
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(libc::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

/// Joins names, each with a NUL.
pub(crate) fn encode_names(names: &[Vec<u8>]) -> Vec<u8> {
    names.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
}

fn rename_mode(flags: u32) -> Option<RenameMode> {
    match flags {
        0 => Some(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}

impl Adapter {
    /// Runs `end` for a write that was done on this thread.
    fn end_write(
        &self,
        caller: Caller,
        sync_mode: SyncMode,
        result: Result<Written, Error>,
        end: impl FnOnce(&FileSystem, &MountMetrics, Result<Written, Error>) + Send + 'static,
    ) {
        match sync_mode {
            SyncMode::None => end(&self.fs, &self.metrics, result),
            // Blocks like an fsync, and joins the same log batches.
            _ => self.run_blocking(caller, Op::Write, move |fs, metrics| end(fs, metrics, result)),
        }
    }

    fn list(&self, caller: Caller, what: Listing, mut reply: DirReply) {
        let result = list(&self.non_blocking, what, &mut reply);
        if would_block(&result) && reply.is_empty() {
            self.defer(caller.pid, Op::Readdir, move |fs, metrics| {
                let result = list(fs, what, &mut reply);
                finish_listing(metrics, reply, result);
            });
        } else {
            finish_listing(&self.metrics, reply, result);
        }
    }

    /// Continues a read that must wait for a device, without blocking a thread.
    fn read_async(
        &self,
        caller: Caller,
        (ino, handle): (u64, u64),
        (offset, len): (u64, u32),
        mut reply: DataReply,
    ) {
        reply.fetching();
        self.metrics.counters.add(
            crate::counters::MountCounters::WOULD_BLOCK,
            Op::Read as usize,
            1,
        );
        let metrics = self.metrics.clone();
        let done = move |result: Result<&[u8], Error>| match result {
            Ok(data) => reply.data(data),
            Err(error) => reply.error(errno(&metrics, &error)),
        };
        let (fs, handle) = (self.fs.for_process(caller.pid), handles::handle(handle));
        fs.read_async(Ino(ino), handle, offset, len as usize, Box::new(done));
    }
}

impl Server for Adapter {
    fn lookup(&self, caller: Caller, parent: u64, name: &[u8], reply: impl Reply<Dentry>) {
        let end = |metrics: &MountMetrics, result: Result<forebay_fs::Entry, Error>| match result {
            Err(error) if error.kind() == forebay_fs::ErrorKind::NotFound => {
                reply.ok(Dentry::Negative)
            }
            result => finish(
                metrics,
                reply,
                result.map(|entry| Dentry::Positive(convert::attributes(&entry.attr))),
            ),
        };
        attempt!(
            self,
            caller.pid,
            Op::Lookup,
            [name],
            |fs| fs.lookup(Ino(parent), name),
            |metrics, result| end(metrics, result)
        );
    }

    fn forget(&self, ino: u64, count: u64) {
        self.fs.forget(Ino(ino), count);
    }

    fn getattr(&self, caller: Caller, ino: u64, reply: impl Reply<Attributes>) {
        reply!(self, caller, Op::Getattr, reply, [], |fs| fs
            .getattr(Ino(ino))
            .map(|attr| convert::attributes(&attr)));
    }

    fn setattr(&self, caller: Caller, ino: u64, set: SetAttributes, reply: impl Reply<Attributes>) {
        let (set, caller) = (convert::set(&set), convert::caller(caller));
        reply!(self, caller, Op::Setattr, reply, [], |fs| fs
            .setattr(Ino(ino), &set, caller)
            .map(|attr| convert::attributes(&attr)));
    }

    fn readlink(&self, caller: Caller, ino: u64, reply: DataReply) {
        attempt!(
            self,
            caller.pid,
            Op::Readlink,
            [],
            |fs| fs.readlink(Ino(ino)),
            |metrics, result| {
                match result {
                    Ok(path) => reply.data(&path),
                    Err(error) => reply.error(errno(metrics, &error)),
                }
            }
        );
    }

    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: transport::NewNode<'_>,
        reply: impl Reply<Dentry>,
    ) {
        let caller = convert::caller(caller);
        let (kind, mode, rdev) = (convert::file_kind(node.kind), node.mode, node.rdev);
        let (has_target, target) = (node.target.is_some(), node.target.unwrap_or_default());
        reply!(self, caller, Op::Make, reply, [name, target], |fs| {
            let node = NewNode { kind, mode, rdev, target: has_target.then_some(target) };
            let made = fs.make(Ino(parent), name, &node, caller);
            made.map(|entry| Dentry::Positive(convert::attributes(&entry.attr)))
        });
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        how: OpenHow,
        reply: impl Reply<Created>,
    ) {
        let (caller, cached) = (convert::caller(caller), self.kernel_cache);
        let writers = self.writers.clone();
        reply!(self, caller, Op::Create, reply, [name], |fs| fs
            .create(Ino(parent), name, mode, caller)
            .map(|(entry, handle)| {
                writers.opened(entry.attr.ino.0, how);
                let opened = Opened { handle: handles::pack(handle, how), cached };
                Created { attributes: convert::attributes(&entry.attr), opened }
            }));
    }

    fn link(&self, caller: Caller, ino: u64, parent: u64, name: &[u8], reply: impl Reply<Dentry>) {
        let link = move |fs: &FileSystem, name: &[u8]| {
            let linked = fs.link(Ino(ino), Ino(parent), name);
            linked.map(|entry| Dentry::Positive(convert::attributes(&entry.attr)))
        };
        let files = RenamedFiles::Inode(ino);
        if self.kernel_cache && self.may_be_dirty(&files) {
            let name = name.to_vec();
            return self.after_write_back(caller, Op::Link, files, move |fs, metrics, flushed| {
                finish(metrics, reply, flushed.and_then(|()| link(fs, &name)));
            });
        }
        reply!(self, caller, Op::Link, reply, [name], |fs| link(fs, name));
    }

    fn unlink(&self, caller: Caller, parent: u64, name: &[u8], reply: impl Reply<()>) {
        reply!(self, caller, Op::Unlink, reply, [name], |fs| fs.unlink(Ino(parent), name));
    }

    fn rmdir(&self, caller: Caller, parent: u64, name: &[u8], reply: impl Reply<()>) {
        reply!(self, caller, Op::Rmdir, reply, [name], |fs| fs.rmdir(Ino(parent), name));
    }

    fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        reply: impl Reply<()>,
    ) {
        let Some(mode) = rename_mode(flags) else { return reply.error(libc::EINVAL) };
        let ((parent, name), (new_parent, new_name)) = (from, to);
        let rename = move |fs: &FileSystem, name: &[u8], new_name: &[u8]| {
            fs.rename(Ino(parent), name, Ino(new_parent), new_name, mode)
        };
        if self.kernel_cache {
            let (name, new_name) = (name.to_vec(), new_name.to_vec());
            let mut names = vec![(parent, name.clone())];
            if mode == RenameMode::Exchange {
                names.push((new_parent, new_name.clone()));
            }
            let files = RenamedFiles::Names(names);
            if self.may_be_dirty(&files) {
                let job = move |fs: &_, metrics: &_, flushed: Result<(), Error>| {
                    finish(metrics, reply, flushed.and_then(|()| rename(fs, &name, &new_name)));
                };
                return self.after_write_back(caller, Op::Rename, files, job);
            }
        }
        reply!(self, caller, Op::Rename, reply, [name, new_name], |fs| rename(fs, name, new_name));
    }

    fn open(&self, caller: Caller, ino: u64, how: OpenHow, reply: impl Reply<Opened>) {
        let cached = self.kernel_cache;
        let truncate = how.truncate.then(|| convert::caller(caller));
        let writers = self.writers.clone();
        reply!(self, caller, Op::Open, reply, [], |fs| fs.open(Ino(ino), truncate).map(|handle| {
            writers.opened(ino, how);
            Opened { handle: handles::pack(handle, how), cached }
        }));
    }

    fn release(&self, ino: u64, handle: u64, reply: impl Reply<()>) {
        if handles::writes(handle) {
            self.writers.released(ino);
        }
        self.fs.release(handles::handle(handle));
        reply.ok(());
    }

    fn read(&self, caller: Caller, ino: u64, handle: u64, offset: u64, len: u32, reply: DataReply) {
        let mut reply = Some(reply);
        let opened = handles::handle(handle);
        let result = self.non_blocking.read(Ino(ino), opened, offset, len as usize, &mut |data| {
            if let Some(reply) = reply.take() {
                reply.data(data);
            }
        });
        // The reply is sent. A later error does not matter.
        let Some(reply) = reply else { return };
        match result {
            Err(error) if error.kind() == forebay_fs::ErrorKind::WouldBlock => {
                self.read_async(caller, (ino, handle), (offset, len), reply);
            }
            Err(error) => reply.error(errno(&self.metrics, &error)),
            Ok(()) => reply.data(&[]),
        }
    }

    fn write(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        write_request: WriteRequest<'_>,
        reply: impl Reply<Written>,
    ) {
        // The kernel has set the offset of appends, and serialises them.
        let how = Write {
            append: false,
            clear_suid: write_request.kill_priv.map(convert::caller),
            clear_capability: !write_request.is_writeback,
        };
        let (offset, sync_mode) = (write_request.offset, write_request.sync_mode);
        // The kernel's pages belong to no process.
        let caller =
            Caller { pid: if write_request.is_writeback { 0 } else { caller.pid }, ..caller };
        let write = move |fs: &FileSystem, data: &[u8]| {
            let written = match write_request.is_writeback {
                true => fs.write_back(Ino(ino), handles::handle(handle), offset, data, how),
                false => fs.write(Ino(ino), handles::handle(handle), offset, data, how),
            };
            written.map(|bytes| Written(bytes as u32))
        };
        let end = move |fs: &FileSystem, metrics: &MountMetrics, result: Result<Written, Error>| {
            let result = result.and_then(|written| sync_change(fs, ino, sync_mode, written));
            finish(metrics, reply, result);
        };
        let data = write_request.data;
        let result = write(&self.non_blocking, data);
        if !would_block(&result) {
            return self.end_write(caller, sync_mode, result, end);
        }
        let mut copied = self.write_buffers.try_copy(data);
        if copied.is_none() {
            // This thread waits for a group or for memory, but not for `clear`.
            let result = write(&self.fs.failing_if_suspended(), data);
            if !is_suspended(&result) {
                return self.end_write(caller, sync_mode, result, end);
            }
            copied = self.write_buffers.try_copy_suspended(data);
        }
        let Some(copied) = copied else {
            let fs = self.fs.for_process(caller.pid);
            return end(&fs, &self.metrics, write(&fs, data));
        };
        self.defer(caller.pid, Op::Write, move |fs, metrics| {
            let result = write(fs, &copied.data);
            drop(copied);
            end(fs, metrics, result);
        });
    }

    fn fsync(&self, caller: Caller, ino: u64, data_only: bool, reply: impl Reply<()>) {
        self.run_blocking(caller, Op::Fsync, move |fs, metrics| {
            finish(metrics, reply, fs.fsync(Ino(ino), data_only))
        });
    }

    fn opendir(&self, caller: Caller, ino: u64, reply: impl Reply<Opened>) {
        let cached = self.kernel_cache;
        reply!(self, caller, Op::Opendir, reply, [], |fs| fs
            .opendir(Ino(ino))
            .map(|handle| Opened { handle: handle.0, cached }));
    }

    fn readdir(&self, caller: Caller, ino: u64, handle: u64, from: u64, reply: DirReply) {
        let what = Listing { ino: Ino(ino), handle: Handle(handle), from, plus: false };
        self.list(caller, what, reply);
    }

    fn readdirplus(&self, caller: Caller, ino: u64, handle: u64, from: u64, reply: DirReply) {
        let what = Listing { ino: Ino(ino), handle: Handle(handle), from, plus: true };
        self.list(caller, what, reply);
    }

    fn releasedir(&self, _ino: u64, handle: u64, reply: impl Reply<()>) {
        self.fs.releasedir(Handle(handle));
        reply.ok(());
    }

    fn fsyncdir(&self, caller: Caller, ino: u64, reply: impl Reply<()>) {
        self.run_blocking(caller, Op::Fsync, move |fs, metrics| {
            finish(metrics, reply, fs.fsyncdir(Ino(ino)))
        });
    }

    fn statfs(&self, reply: impl Reply<Usage>) {
        // Never waits.
        finish(&self.metrics, reply, self.fs.statfs().map(|usage| convert::usage(&usage)));
    }

    fn setxattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
        reply: impl Reply<()>,
    ) {
        let Some(mode) = convert::xattr(flags) else { return reply.error(libc::EINVAL) };
        reply!(self, caller, Op::Xattr, reply, [name, value], |fs| fs.setxattr(
            Ino(ino),
            name,
            value,
            mode
        ));
    }

    fn getxattr(&self, caller: Caller, ino: u64, name: &[u8], size: u32, reply: XattrReply) {
        attempt!(
            self,
            caller.pid,
            Op::Xattr,
            [name],
            |fs| fs.getxattr(Ino(ino), name),
            |metrics, result| reply_xattr(metrics, reply, size, result)
        );
    }

    fn listxattr(&self, caller: Caller, ino: u64, size: u32, reply: XattrReply) {
        attempt!(
            self,
            caller.pid,
            Op::Xattr,
            [],
            |fs| fs.listxattr(Ino(ino), || client::is_admin(caller.pid)),
            |metrics, result| {
                reply_xattr(metrics, reply, size, result.map(|names| encode_names(&names)))
            }
        );
    }

    fn removexattr(&self, caller: Caller, ino: u64, name: &[u8], reply: impl Reply<()>) {
        reply!(self, caller, Op::Xattr, reply, [name], |fs| fs.removexattr(Ino(ino), name));
    }

    fn fallocate(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        mode: i32,
        reply: impl Reply<()>,
    ) {
        let Some(mode) = convert::fallocate(mode) else { return reply.error(libc::EOPNOTSUPP) };
        let ((offset, len), caller) = (range, convert::caller(caller));
        let sync_mode = handles::sync_mode(handle);
        let allocate = move |fs: &FileSystem| {
            fs.fallocate(Ino(ino), handles::handle(handle), offset, len, mode, caller)
        };
        if sync_mode == SyncMode::None {
            return reply!(self, caller, Op::Fallocate, reply, [], |fs| allocate(fs));
        }
        self.defer(caller.pid, Op::Fallocate, move |fs, metrics| {
            let done = allocate(fs).and_then(|()| sync_change(fs, ino, sync_mode, ()));
            finish(metrics, reply, done);
        });
    }

    fn seek(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        offset: u64,
        whence: i32,
        reply: impl Reply<Position>,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(libc::EINVAL),
        };
        let seek = move |fs: &FileSystem| {
            fs.seek(Ino(ino), handles::handle(handle), offset, what).map(Position)
        };
        if !self.writers.has(ino) {
            return reply!(self, caller, Op::Seek, reply, [], |fs| seek(fs));
        }
        let (metrics, operation) = (self.metrics.clone(), waits::carry());
        let fs = self.fs.for_process(caller.pid);
        // On a worker: devices may be gone, and others need that thread.
        let job = move || {
            fs.spawn(Box::new(move |fs| {
                operation.resume();
                finish(&metrics, reply, seek(fs));
            }));
        };
        self.write_back.run_after(ino, Box::new(job));
    }

    fn copy(&self, caller: Caller, range: CopyRange, reply: impl Reply<Written>) {
        // Limit the length, because the copy cannot be interrupted. The caller continues with the
        // rest. Run it on a worker, because it does I/O.
        let CopyRange { from, from_offset, to, to_handle, to_offset, len } = range;
        let (len, sync_mode) = (len.min(COPY_BYTES), handles::sync_mode(to_handle));
        self.defer(caller.pid, Op::Copy, move |fs, metrics| {
            let copied = fs.copy_range(
                Ino(from),
                from_offset,
                Ino(to),
                to_offset,
                len,
                convert::caller(caller),
            );
            let copied =
                copied.and_then(|bytes| sync_change(fs, to, sync_mode, Written(bytes as u32)));
            finish(metrics, reply, copied);
        });
    }

    fn started(&self, notifier: &KernelNotifier) {
        let flusher = notifier.clone();
        self.write_back.start(move |ino| flusher.flush_pages(ino));
        self.fs.set_client(Some(Arc::new(Client(notifier.clone()))));
        self.shrinker.start(ShrinkerMount {
            fs: self.non_blocking.clone(),
            device: self.device,
            metrics: self.metrics.clone(),
            notifier: notifier.clone(),
        });
    }

    fn detached(&self) {
        self.fs.end_waits();
    }

    fn ended(&self) {
        // The client holds the connection, which must close.
        self.fs.set_client(None);
        self.write_back.end();
        self.shrinker.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_are_joined_with_zeroes() {
        assert_eq!(encode_names(&[b"user.a".to_vec(), b"user.b".to_vec()]), b"user.a\0user.b\0");
        assert_eq!(encode_names(&[]), b"");
    }

    #[test]
    fn modes_of_rename_are_those_of_the_system() {
        assert_eq!(rename_mode(0), Some(RenameMode::Replace));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT), None);
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), None);
    }
}
