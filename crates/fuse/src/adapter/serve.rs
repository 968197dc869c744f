//! Requests, one after the other.

use forebay_base::sync::Arc;
use forebay_fs::{Error, FileSystem, Handle, Ino, NewNode, RenameMode, Seek, Write};
use forebay_pool::without_waiting;

use super::client::Client;
use super::ordered::Renamed;
use super::{Adapter, convert, finish, handles, number, waits};
use crate::counters::{Op, Tally};
use crate::transport::{
    self, Answer, Attributes, Caller, Content, CopyRange, Created, DataAnswer, Durable,
    FolderAnswer, FolderEntry, Found, Kernel, OpenHow, Opened, Position, Server, SetAttributes,
    SizedAnswer, Usage, Written,
};

/// Bytes that one request copies at most.
const COPY_BYTES: u64 = 64 << 20;

/// Tries an operation without waiting; where it would have to wait, copies what it borrows and hands it to a thread that may.
macro_rules! attempt {
    ($this:ident, $op:expr, [$($kept:ident),*], |$fs:ident| $operation:expr, |$tally:ident, $result:ident| $end:expr) => {{
        let $result = without_waiting(|| {
            let $fs = &*$this.fs;
            $operation
        });
        if waits(&$result) {
            $(let $kept = $kept.to_vec();)*
            $this.later($op, move |$fs, $tally| {
                $(let $kept = &$kept[..];)*
                let $result = $operation;
                $end
            });
        } else {
            let $tally = &*$this.tally;
            $end
        }
    }};
}

/// The same, for what has a plain answer.
macro_rules! answer {
    ($this:ident, $op:expr, $answer:ident, [$($kept:ident),*], |$fs:ident| $operation:expr) => {
        attempt!($this, $op, [$($kept),*], |$fs| $operation, |tally, result| finish(tally, $answer, result))
    };
}

/// Makes a change of that inode as durable as it has to be; then it is answered with `value`.
fn made_durable<T>(fs: &FileSystem, ino: u64, durable: Durable, value: T) -> Result<T, Error> {
    match durable {
        Durable::No => Ok(value),
        Durable::Data => fs.fsync(Ino(ino), true).map(|()| value),
        Durable::All => fs.fsync(Ino(ino), false).map(|()| value),
    }
}

/// Which part of a folder is wanted.
#[derive(Clone, Copy)]
struct Listing {
    ino: Ino,
    handle: Handle,
    from: u64,
    plus: bool,
}

fn list(fs: &FileSystem, what: Listing, answer: &mut impl FolderAnswer) -> Result<(), Error> {
    let Listing { ino, handle, from, plus } = what;
    if !plus {
        return fs.readdir(ino, handle, from, &mut |entry| {
            let kind = convert::kind(entry.kind);
            answer.add(
                &FolderEntry { name: entry.name, ino: entry.ino.0, kind, next: entry.next },
                None,
            )
        });
    }
    fs.readdirplus(ino, handle, from, &mut |entry, attr| {
        let attributes = attr.map(convert::attributes);
        let kind = convert::kind(entry.kind);
        let entry = FolderEntry { name: entry.name, ino: entry.ino.0, kind, next: entry.next };
        answer.add(&entry, attributes.as_ref())
    })
}

/// Sends what was listed. What was added counts, even if an error followed: the kernel asks on from there.
fn listed(tally: &Tally, answer: impl FolderAnswer, result: Result<(), Error>) {
    match result {
        Err(error) if answer.is_empty() => answer.error(number(tally, &error)),
        _ => answer.done(),
    }
}

/// Answers with content for which there is `room`; without room, with its size.
fn sized(tally: &Tally, answer: impl SizedAnswer, room: u32, result: Result<Vec<u8>, Error>) {
    match result {
        Err(error) => answer.error(number(tally, &error)),
        Ok(value) if room == 0 => answer.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > room as usize => answer.error(libc::ERANGE),
        Ok(value) => answer.data(&value),
    }
}

/// Names, a zero behind each.
fn joined(names: &[Vec<u8>]) -> Vec<u8> {
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
    fn list(&self, what: Listing, mut answer: impl FolderAnswer) {
        let result = without_waiting(|| list(&self.fs, what, &mut answer));
        if waits(&result) && answer.is_empty() {
            self.later(Op::Readdir, move |fs, tally| {
                let result = list(fs, what, &mut answer);
                listed(tally, answer, result);
            });
        } else {
            listed(&self.tally, answer, result);
        }
    }

    /// Goes on with a read that has to wait for a device: it holds no thread meanwhile.
    fn read_on(&self, ino: u64, handle: u64, offset: u64, len: u32, answer: impl DataAnswer) {
        self.tally.counters.add(crate::counters::MountCounters::WAITED, Op::Read as usize, 1);
        let tally = self.tally.clone();
        let done = move |result: Result<&[u8], Error>| match result {
            Ok(data) => answer.data(data),
            Err(error) => answer.error(number(&tally, &error)),
        };
        self.fs.read_then(Ino(ino), handles::handle(handle), offset, len as usize, Box::new(done));
    }
}

impl Server for Adapter {
    fn lookup(&self, parent: u64, name: &[u8], answer: impl Answer<Found>) {
        let end = |tally: &Tally, result: Result<forebay_fs::Entry, Error>| match result {
            Err(error) if error.kind() == forebay_fs::ErrorKind::NotFound => {
                answer.ok(Found::Absent)
            }
            result => finish(
                tally,
                answer,
                result.map(|entry| Found::There(convert::attributes(&entry.attr))),
            ),
        };
        attempt!(self, Op::Lookup, [name], |fs| fs.lookup(Ino(parent), name), |tally, result| end(
            tally, result
        ));
    }

    fn forget(&self, ino: u64, count: u64) {
        self.fs.forget(Ino(ino), count);
    }

    fn getattr(&self, ino: u64, answer: impl Answer<Attributes>) {
        answer!(self, Op::Getattr, answer, [], |fs| fs
            .getattr(Ino(ino))
            .map(|attr| convert::attributes(&attr)));
    }

    fn setattr(
        &self,
        caller: Caller,
        ino: u64,
        set: SetAttributes,
        answer: impl Answer<Attributes>,
    ) {
        let (set, caller) = (convert::set(&set), convert::caller(caller));
        answer!(self, Op::Setattr, answer, [], |fs| fs
            .setattr(Ino(ino), &set, caller)
            .map(|attr| convert::attributes(&attr)));
    }

    fn readlink(&self, ino: u64, answer: impl DataAnswer) {
        attempt!(
            self,
            Op::Readlink,
            [],
            |fs| fs.readlink(Ino(ino)),
            |tally, result| match result {
                Ok(path) => answer.data(&path),
                Err(error) => answer.error(number(tally, &error)),
            }
        );
    }

    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: transport::NewNode<'_>,
        answer: impl Answer<Found>,
    ) {
        let caller = convert::caller(caller);
        let (kind, mode, rdev) = (convert::file_kind(node.kind), node.mode, node.rdev);
        let (has_target, target) = (node.target.is_some(), node.target.unwrap_or_default());
        answer!(self, Op::Make, answer, [name, target], |fs| {
            let node = NewNode { kind, mode, rdev, target: has_target.then_some(target) };
            let made = fs.make(Ino(parent), name, &node, caller);
            made.map(|entry| Found::There(convert::attributes(&entry.attr)))
        });
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        how: OpenHow,
        answer: impl Answer<Created>,
    ) {
        let (caller, cached) = (convert::caller(caller), self.kernel_cache);
        let writers = self.writers.clone();
        answer!(self, Op::Create, answer, [name], |fs| fs
            .create(Ino(parent), name, mode, caller)
            .map(|(entry, handle)| {
                writers.opened(entry.attr.ino.0, how);
                let opened = Opened { handle: handles::pack(handle, how), cached };
                Created { attributes: convert::attributes(&entry.attr), opened }
            }));
    }

    fn link(&self, ino: u64, parent: u64, name: &[u8], answer: impl Answer<Found>) {
        let link = move |fs: &FileSystem, name: &[u8]| {
            let linked = fs.link(Ino(ino), Ino(parent), name);
            linked.map(|entry| Found::There(convert::attributes(&entry.attr)))
        };
        let files = Renamed::Inode(ino);
        if self.kernel_cache && self.is_held_back(&files) {
            let name = name.to_vec();
            return self.once_written(Op::Link, files, move |fs, tally| {
                finish(tally, answer, link(fs, &name));
            });
        }
        answer!(self, Op::Link, answer, [name], |fs| link(fs, name));
    }

    fn unlink(&self, parent: u64, name: &[u8], answer: impl Answer<()>) {
        answer!(self, Op::Unlink, answer, [name], |fs| fs.unlink(Ino(parent), name));
    }

    fn rmdir(&self, parent: u64, name: &[u8], answer: impl Answer<()>) {
        answer!(self, Op::Rmdir, answer, [name], |fs| fs.rmdir(Ino(parent), name));
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32, answer: impl Answer<()>) {
        let Some(mode) = rename_mode(flags) else { return answer.error(libc::EINVAL) };
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
            let files = Renamed::Names(names);
            if self.is_held_back(&files) {
                return self.once_written(Op::Rename, files, move |fs, tally| {
                    finish(tally, answer, rename(fs, &name, &new_name));
                });
            }
        }
        answer!(self, Op::Rename, answer, [name, new_name], |fs| rename(fs, name, new_name));
    }

    fn open(&self, caller: Caller, ino: u64, how: OpenHow, answer: impl Answer<Opened>) {
        let cached = self.kernel_cache;
        let truncate = how.truncate.then(|| convert::caller(caller));
        let writers = self.writers.clone();
        answer!(self, Op::Open, answer, [], |fs| fs.open(Ino(ino), truncate).map(|handle| {
            writers.opened(ino, how);
            Opened { handle: handles::pack(handle, how), cached }
        }));
    }

    fn release(&self, ino: u64, handle: u64, answer: impl Answer<()>) {
        if handles::writes(handle) {
            self.writers.released(ino);
        }
        self.fs.release(handles::handle(handle));
        answer.ok(());
    }

    fn read(&self, ino: u64, handle: u64, offset: u64, len: u32, answer: impl DataAnswer) {
        let mut answer = Some(answer);
        let result = without_waiting(|| {
            self.fs.read(Ino(ino), handles::handle(handle), offset, len as usize, &mut |data| {
                if let Some(answer) = answer.take() {
                    answer.data(data);
                }
            })
        });
        // What was answered already needs nothing more, whatever came after.
        let Some(answer) = answer else { return };
        match result {
            Err(error) if error.kind() == forebay_fs::ErrorKind::WouldBlock => {
                self.read_on(ino, handle, offset, len, answer);
            }
            Err(error) => answer.error(number(&self.tally, &error)),
            Ok(()) => answer.data(&[]),
        }
    }

    fn write(&self, ino: u64, handle: u64, content: Content<'_>, answer: impl Answer<Written>) {
        // The kernel has placed what is appended, and lets one appending writer in at a time.
        let how = Write {
            append: false,
            clear_suid: content.drops_privileges.map(convert::caller),
            clear_capability: !content.held_back,
        };
        let (offset, durable) = (content.offset, content.durable);
        let write = move |fs: &FileSystem, data: &[u8]| {
            let written = match content.held_back {
                true => fs.write_back(Ino(ino), handles::handle(handle), offset, data, how),
                false => fs.write(Ino(ino), handles::handle(handle), offset, data, how),
            };
            written.map(|bytes| Written(bytes as u32))
        };
        let end = move |fs: &FileSystem, tally: &Tally, result: Result<Written, Error>| {
            let result = result.and_then(|written| made_durable(fs, ino, durable, written));
            finish(tally, answer, result);
        };
        let result = without_waiting(|| write(&self.fs, content.data));
        match (result, durable) {
            (result, Durable::No) if !waits(&result) => end(&self.fs, &self.tally, result),
            // It waits as an fsync does, and shares its batches.
            (result, _) if !waits(&result) => {
                self.waiting(Op::Write, move |fs, tally| end(fs, tally, result));
            }
            _ => match self.copies.of(content.data) {
                Some(copied) => self.later(Op::Write, move |fs, tally| {
                    let result = write(fs, &copied.data);
                    drop(copied);
                    end(fs, tally, result);
                }),
                None => end(&self.fs, &self.tally, write(&self.fs, content.data)),
            },
        }
    }

    fn fsync(&self, ino: u64, data_only: bool, answer: impl Answer<()>) {
        self.waiting(Op::Fsync, move |fs, tally| {
            finish(tally, answer, fs.fsync(Ino(ino), data_only))
        });
    }

    fn opendir(&self, ino: u64, answer: impl Answer<Opened>) {
        let cached = self.kernel_cache;
        answer!(self, Op::Opendir, answer, [], |fs| fs
            .opendir(Ino(ino))
            .map(|handle| Opened { handle: handle.0, cached }));
    }

    fn readdir(&self, ino: u64, handle: u64, from: u64, answer: impl FolderAnswer) {
        self.list(Listing { ino: Ino(ino), handle: Handle(handle), from, plus: false }, answer);
    }

    fn readdirplus(&self, ino: u64, handle: u64, from: u64, answer: impl FolderAnswer) {
        self.list(Listing { ino: Ino(ino), handle: Handle(handle), from, plus: true }, answer);
    }

    fn releasedir(&self, _ino: u64, handle: u64, answer: impl Answer<()>) {
        self.fs.releasedir(Handle(handle));
        answer.ok(());
    }

    fn fsyncdir(&self, ino: u64, answer: impl Answer<()>) {
        self.waiting(Op::Fsync, move |fs, tally| finish(tally, answer, fs.fsyncdir(Ino(ino))));
    }

    fn statfs(&self, answer: impl Answer<Usage>) {
        answer!(self, Op::Statfs, answer, [], |fs| fs.statfs().map(|usage| convert::usage(&usage)));
    }

    fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], flags: i32, answer: impl Answer<()>) {
        let Some(mode) = convert::xattr(flags) else { return answer.error(libc::EINVAL) };
        answer!(self, Op::Xattr, answer, [name, value], |fs| fs.setxattr(
            Ino(ino),
            name,
            value,
            mode
        ));
    }

    fn getxattr(&self, ino: u64, name: &[u8], room: u32, answer: impl SizedAnswer) {
        attempt!(self, Op::Xattr, [name], |fs| fs.getxattr(Ino(ino), name), |tally, result| sized(
            tally, answer, room, result
        ));
    }

    fn listxattr(&self, ino: u64, room: u32, answer: impl SizedAnswer) {
        attempt!(self, Op::Xattr, [], |fs| fs.listxattr(Ino(ino)), |tally, result| sized(
            tally,
            answer,
            room,
            result.map(|names| joined(&names))
        ));
    }

    fn removexattr(&self, ino: u64, name: &[u8], answer: impl Answer<()>) {
        answer!(self, Op::Xattr, answer, [name], |fs| fs.removexattr(Ino(ino), name));
    }

    fn fallocate(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        mode: i32,
        answer: impl Answer<()>,
    ) {
        let Some(mode) = convert::fallocate(mode) else { return answer.error(libc::EOPNOTSUPP) };
        let ((offset, len), caller) = (range, convert::caller(caller));
        let durable = handles::durable(handle);
        let allocate = move |fs: &FileSystem| {
            fs.fallocate(Ino(ino), handles::handle(handle), offset, len, mode, caller)
        };
        if durable == Durable::No {
            return answer!(self, Op::Fallocate, answer, [], |fs| allocate(fs));
        }
        self.later(Op::Fallocate, move |fs, tally| {
            let done = allocate(fs).and_then(|()| made_durable(fs, ino, durable, ()));
            finish(tally, answer, done);
        });
    }

    fn seek(&self, ino: u64, handle: u64, offset: u64, whence: i32, answer: impl Answer<Position>) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return answer.error(libc::EINVAL),
        };
        let seek = move |fs: &FileSystem| {
            fs.seek(Ino(ino), handles::handle(handle), offset, what).map(Position)
        };
        if !self.writers.has(ino) {
            return answer!(self, Op::Seek, answer, [], |fs| seek(fs));
        }
        let (fs, tally) = (self.fs.clone(), self.tally.clone());
        self.write_back.then(ino, Box::new(move || finish(&tally, answer, seek(&fs))));
    }

    fn copy(&self, caller: Caller, range: CopyRange, answer: impl Answer<Written>) {
        // Nobody can interrupt it: so much at a time, and the system asks on. It reads and writes, so it is not for this thread.
        let CopyRange { from, from_offset, to, to_handle, to_offset, len } = range;
        let (len, durable) = (len.min(COPY_BYTES), handles::durable(to_handle));
        self.later(Op::Copy, move |fs, tally| {
            let copied = fs.copy_range(
                Ino(from),
                from_offset,
                Ino(to),
                to_offset,
                len,
                convert::caller(caller),
            );
            let copied =
                copied.and_then(|bytes| made_durable(fs, to, durable, Written(bytes as u32)));
            finish(tally, answer, copied);
        });
    }

    fn started(&self, kernel: Arc<dyn Kernel>) {
        self.write_back.start(kernel.clone());
        self.fs.set_client(Some(Arc::new(Client(kernel.clone()))));
        self.forgetting.start(self.fs.clone(), self.tally.clone(), kernel);
    }

    fn ended(&self) {
        // It holds the connection, which has to end.
        self.fs.set_client(None);
        self.write_back.end();
        self.forgetting.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_are_joined_with_zeroes() {
        assert_eq!(joined(&[b"user.a".to_vec(), b"user.b".to_vec()]), b"user.a\0user.b\0");
        assert_eq!(joined(&[]), b"");
    }

    #[test]
    fn modes_of_rename_are_those_of_the_system() {
        assert_eq!(rename_mode(0), Some(RenameMode::Replace));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT), None);
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), None);
    }
}
