//! Request handlers.

use std::time::Duration;

use forebay_base::sync::Arc;
use forebay_base::waits;
use forebay_fs::{Attr, Error, ErrorKind, FileKind, FileSystem, Ino, Seek};

use super::NAMES_VALID;
use super::files::OpenFile;
use super::groups::{Group, Groups};
use super::nodes::{self, Nodes, fs_of, is_alias};
use crate::adapter::serve::{encode_names, finish_listing};
use crate::adapter::{client, convert, errno, would_block};
use crate::counters::{MountCounters, MountMetrics, Op};
use crate::transport::{
    Attributes, Caller, CopyRange, Created, DataReply, Dentry, DirEntry, DirReply, NewNode,
    OpenHow, Opened, Position, Reply, Server, SetAttributes, Usage, WriteRequest, Written,
    XattrReply,
};

/// The server for a followed pool. Clones share everything.
#[derive(Clone)]
pub(super) struct Follow(Arc<Shared>);

pub(super) struct Shared {
    groups: Arc<Groups>,
    nodes: Nodes,
    metrics: Arc<MountMetrics>,
}

/// A failure, as the kernel gets it.
struct Errno(i32);

impl Follow {
    pub(super) fn new(groups: Arc<Groups>, metrics: Arc<MountMetrics>) -> Self {
        let fs = &groups.current().fs;
        metrics.log_slow(&fs.pool().operation_tunables(), fs.name());
        Self(Arc::new(Shared { groups: Arc::clone(&groups), nodes: Nodes::new(), metrics }))
    }

    /// Runs `job` here, in non-blocking mode, or on a worker thread if it would block. `job` is
    /// told whether it may, and returns `None` if it would and may not.
    fn run<T: Send + 'static>(
        &self,
        op: Op,
        job: impl Fn(&Shared, bool) -> Option<T> + Send + 'static,
        end: impl FnOnce(&Shared, T) + Send + 'static,
    ) {
        if let Some(done) = job(&self.0, false) {
            return end(&self.0, done);
        }
        self.0.metrics.counters.add(MountCounters::WOULD_BLOCK, op as usize, 1);
        let (shared, operation) = (Arc::clone(&self.0), waits::carry());
        let group = self.0.groups.current();
        group.fs.clone().spawn(Box::new(move |_| {
            // Until the job has ended, this group is not closed.
            let _group = group;
            operation.resume();
            if let Some(done) = job(&shared, true) {
                end(&shared, done);
            }
        }));
    }

    /// Runs an operation on the inode of a node, and replies.
    fn on_node<T: Send + 'static>(
        &self,
        op: Op,
        node: u64,
        reply: impl Reply<T>,
        operation: impl Fn(&FileSystem, Ino) -> Result<T, Error> + Send + 'static,
    ) {
        let job = move |shared: &Shared, blocking: bool| {
            shared.try_on(node, blocking, |group, ino| operation(fs_of(group, blocking), ino))
        };
        self.run(op, job, |_, done| finish(reply, done));
    }
}

fn finish<T>(reply: impl Reply<T>, done: Result<T, Errno>) {
    match done {
        Ok(value) => reply.ok(value),
        Err(Errno(errno)) => reply.error(errno),
    }
}

impl Shared {
    /// Runs an operation on the inode of a node. `None` if it would block and may not.
    fn try_on<T>(
        &self,
        node: u64,
        blocking: bool,
        operation: impl FnOnce(&Arc<Group>, Ino) -> Result<T, Error>,
    ) -> Option<Result<T, Errno>> {
        let found = nodes::resolve(&self.groups, &self.nodes, node, blocking);
        match found {
            Ok((group, _, ino)) => {
                let done = operation(&group, ino);
                self.end(&group, blocking, done)
            }
            Err(error) => self.end(&self.groups.current(), blocking, Err(error)),
        }
    }

    fn end<T>(
        &self,
        group: &Group,
        blocking: bool,
        done: Result<T, Error>,
    ) -> Option<Result<T, Errno>> {
        if !blocking && would_block(&done) {
            return None;
        }
        Some(done.map_err(|error| Errno(self.errno(group, &error))))
    }

    fn errno(&self, group: &Group, error: &Error) -> i32 {
        match group.is_lost(error) {
            true => libc::ESTALE,
            false => errno(&self.metrics, error),
        }
    }

    /// Looks up a name in the newest group.
    fn lookup(
        &self,
        group: &Arc<Group>,
        parent: Ino,
        name: &[u8],
        blocking: bool,
    ) -> Result<Dentry, Error> {
        let fs = fs_of(group, blocking);
        let entry = match fs.lookup(parent, name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Dentry::NegativeFor(NAMES_VALID));
            }
            entry => entry?,
        };
        let attr = entry.attr;
        let version = match attr.kind {
            FileKind::Directory => Ok(None),
            _ => fs.version(attr.ino).map(Some),
        };
        // The table of nodes counts instead.
        fs.forget(attr.ino, 1);
        let number = self.nodes.looked_up(group, &attr, version?);
        Ok(Dentry::PositiveFor(
            Attributes { ino: number, ..attributes(&attr, number) },
            NAMES_VALID,
        ))
    }

    fn open_file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.groups.files.get(handle).map_err(Errno)
    }
}

/// The attributes of a node's inode. Those of a version stay right. The kernel takes the number of
/// the node for that of the inode, so it has to ask again if they differ.
fn attributes(attr: &Attr, node: u64) -> Attributes {
    let valid = match attr.kind {
        _ if is_alias(node) => Duration::ZERO,
        FileKind::Directory => NAMES_VALID,
        _ => crate::transport::VALID,
    };
    Attributes { valid, ..convert::attributes(attr) }
}

fn list(open: &OpenFile, blocking: bool, from: u64, reply: &mut DirReply) -> Result<(), Error> {
    fs_of(&open.group, blocking).readdir(open.ino, open.handle, from, &mut |entry| {
        let kind = convert::kind(entry.kind);
        reply.add(&DirEntry { name: entry.name, ino: entry.ino.0, kind, next: entry.next }, None)
    })
}

impl Server for Follow {
    fn lookup(&self, _caller: Caller, parent: u64, name: &[u8], reply: impl Reply<Dentry>) {
        let name = name.to_vec();
        let job = move |shared: &Shared, blocking: bool| {
            shared.try_on(parent, blocking, |group, parent| {
                shared.lookup(group, parent, &name, blocking)
            })
        };
        self.run(Op::Lookup, job, |_, done| finish(reply, done));
    }

    fn forget(&self, ino: u64, count: u64) {
        self.0.nodes.forget(ino, count);
    }

    fn getattr(&self, _caller: Caller, ino: u64, reply: impl Reply<Attributes>) {
        self.on_node(Op::Getattr, ino, reply, |fs, ino| {
            let attr = fs.getattr(ino)?;
            // The number is that of the inode, whatever that of the node is.
            Ok(attributes(&attr, ino.0))
        });
    }

    fn readlink(&self, _caller: Caller, ino: u64, reply: DataReply) {
        let job = move |shared: &Shared, blocking: bool| {
            shared.try_on(ino, blocking, |group, ino| fs_of(group, blocking).readlink(ino))
        };
        self.run(Op::Readlink, job, |_, done| match done {
            Ok(path) => reply.data(&path),
            Err(Errno(errno)) => reply.error(errno),
        });
    }

    fn open(&self, _caller: Caller, ino: u64, how: OpenHow, reply: impl Reply<Opened>) {
        if how.writes || how.truncate {
            return reply.error(libc::EROFS);
        }
        let job = move |shared: &Shared, blocking: bool| {
            let found = nodes::resolve(&shared.groups, &shared.nodes, ino, blocking);
            let (group, node, ino) = match found {
                Ok(found) => found,
                Err(error) => return shared.end(&shared.groups.current(), blocking, Err(error)),
            };
            let fs = fs_of(&group, blocking);
            let opened = shared.groups.files.open((&group, fs), ino, node);
            shared.end(&group, blocking, opened)
        };
        // A version has one content, so the kernel keeps what it has.
        self.run(Op::Open, job, |_, done: Result<u64, Errno>| {
            finish(reply, done.map(|handle| Opened { handle, cached: true }));
        });
    }

    fn release(&self, _ino: u64, handle: u64, reply: impl Reply<()>) {
        self.0.groups.files.release(handle);
        reply.ok(());
    }

    fn read(
        &self,
        _caller: Caller,
        _ino: u64,
        handle: u64,
        offset: u64,
        len: u32,
        reply: DataReply,
    ) {
        let open = match self.0.open_file(handle) {
            Ok(open) => open,
            Err(Errno(errno)) => return reply.error(errno),
        };
        let (mut reply, len) = (Some(reply), len as usize);
        let fs = &open.group.non_blocking;
        let result = fs.read(open.ino, open.handle, offset, len, &mut |data| {
            if let Some(reply) = reply.take() {
                reply.data(data);
            }
        });
        // The reply is sent. A later error does not matter.
        let Some(mut reply) = reply else { return };
        match result {
            Ok(()) => reply.data(&[]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                reply.fetching();
                self.0.metrics.counters.add(MountCounters::WOULD_BLOCK, Op::Read as usize, 1);
                let (shared, file) = (Arc::clone(&self.0), Arc::clone(&open));
                let done = move |result: Result<&[u8], Error>| match result {
                    Ok(data) => reply.data(data),
                    Err(error) => reply.error(shared.errno(&file.group, &error)),
                };
                open.group.fs.read_async(open.ino, open.handle, offset, len, Box::new(done));
            }
            Err(error) => reply.error(self.0.errno(&open.group, &error)),
        }
    }

    fn opendir(&self, _caller: Caller, ino: u64, reply: impl Reply<Opened>) {
        let job = move |shared: &Shared, blocking: bool| {
            shared.try_on(ino, blocking, |group, ino| {
                shared.groups.files.open((group, fs_of(group, blocking)), ino, None)
            })
        };
        self.run(Op::Opendir, job, |_, done: Result<u64, Errno>| {
            finish(reply, done.map(|handle| Opened { handle, cached: false }));
        });
    }

    fn readdir(&self, _caller: Caller, _ino: u64, handle: u64, from: u64, mut reply: DirReply) {
        let open = match self.0.open_file(handle) {
            Ok(open) => open,
            Err(Errno(errno)) => return reply.error(errno),
        };
        let result = list(&open, false, from, &mut reply);
        if !(would_block(&result) && reply.is_empty()) {
            return finish_listing(&self.0.metrics, reply, result);
        }
        self.0.metrics.counters.add(MountCounters::WOULD_BLOCK, Op::Readdir as usize, 1);
        let (shared, operation) = (Arc::clone(&self.0), waits::carry());
        let group = Arc::clone(&open.group);
        group.fs.spawn(Box::new(move |_| {
            operation.resume();
            match list(&open, true, from, &mut reply) {
                Err(error) if reply.is_empty() => {
                    reply.error(shared.errno(&open.group, &error));
                }
                _ => reply.done(),
            }
        }));
    }

    /// The handshake refuses it.
    fn readdirplus(&self, caller: Caller, ino: u64, handle: u64, from: u64, reply: DirReply) {
        self.readdir(caller, ino, handle, from, reply);
    }

    fn releasedir(&self, ino: u64, handle: u64, reply: impl Reply<()>) {
        self.release(ino, handle, reply);
    }

    fn statfs(&self, reply: impl Reply<Usage>) {
        self.on_node(Op::Statfs, 1, reply, |fs, _| fs.statfs().map(|usage| convert::usage(&usage)));
    }

    fn getxattr(&self, _caller: Caller, ino: u64, name: &[u8], size: u32, reply: XattrReply) {
        let name = name.to_vec();
        let job = move |shared: &Shared, blocking: bool| {
            shared.try_on(ino, blocking, |group, ino| fs_of(group, blocking).getxattr(ino, &name))
        };
        self.run(Op::Xattr, job, move |_, done| reply_value(reply, size, done));
    }

    fn listxattr(&self, caller: Caller, ino: u64, size: u32, reply: XattrReply) {
        let job = move |shared: &Shared, blocking: bool| {
            shared.try_on(ino, blocking, |group, ino| {
                let names = fs_of(group, blocking).listxattr(ino, || client::is_admin(caller.pid));
                names.map(|names| encode_names(&names))
            })
        };
        self.run(Op::Xattr, job, move |_, done| reply_value(reply, size, done));
    }

    fn seek(
        &self,
        _caller: Caller,
        _ino: u64,
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
        let job = move |shared: &Shared, blocking: bool| {
            let open = match shared.open_file(handle) {
                Ok(open) => open,
                Err(errno) => return Some(Err(errno)),
            };
            let fs = fs_of(&open.group, blocking);
            let found = fs.seek(open.ino, open.handle, offset, what).map(Position);
            shared.end(&open.group, blocking, found)
        };
        self.run(Op::Seek, job, |_, done| finish(reply, done));
    }

    fn fsync(&self, _caller: Caller, _ino: u64, _data_only: bool, reply: impl Reply<()>) {
        // Nothing is ever dirty.
        reply.ok(());
    }

    fn fsyncdir(&self, _caller: Caller, _ino: u64, reply: impl Reply<()>) {
        reply.ok(());
    }

    fn setattr(&self, _: Caller, _: u64, _: SetAttributes, reply: impl Reply<Attributes>) {
        reply.error(libc::EROFS);
    }

    fn make(&self, _: Caller, _: u64, _: &[u8], _: NewNode<'_>, reply: impl Reply<Dentry>) {
        reply.error(libc::EROFS);
    }

    fn create(&self, _: Caller, _: u64, _: &[u8], _: u16, _: OpenHow, reply: impl Reply<Created>) {
        reply.error(libc::EROFS);
    }

    fn link(&self, _: Caller, _: u64, _: u64, _: &[u8], reply: impl Reply<Dentry>) {
        reply.error(libc::EROFS);
    }

    fn unlink(&self, _: Caller, _: u64, _: &[u8], reply: impl Reply<()>) {
        reply.error(libc::EROFS);
    }

    fn rmdir(&self, _: Caller, _: u64, _: &[u8], reply: impl Reply<()>) {
        reply.error(libc::EROFS);
    }

    fn rename(&self, _: Caller, _: (u64, &[u8]), _: (u64, &[u8]), _: u32, reply: impl Reply<()>) {
        reply.error(libc::EROFS);
    }

    fn write(&self, _: Caller, _: u64, _: u64, _: WriteRequest<'_>, reply: impl Reply<Written>) {
        reply.error(libc::EROFS);
    }

    fn setxattr(&self, _: Caller, _: u64, _: &[u8], _: &[u8], _: i32, reply: impl Reply<()>) {
        reply.error(libc::EROFS);
    }

    fn removexattr(&self, _: Caller, _: u64, _: &[u8], reply: impl Reply<()>) {
        reply.error(libc::EROFS);
    }

    fn fallocate(&self, _: Caller, _: u64, _: u64, _: (u64, u64), _: i32, reply: impl Reply<()>) {
        reply.error(libc::EROFS);
    }

    fn copy(&self, _: Caller, _: CopyRange, reply: impl Reply<Written>) {
        reply.error(libc::EROFS);
    }
}

/// Replies with the value of an attribute, or with its length if `size` is 0.
fn reply_value(reply: XattrReply, size: u32, done: Result<Vec<u8>, Errno>) {
    match done {
        Err(Errno(errno)) => reply.error(errno),
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(libc::ERANGE),
        Ok(value) => reply.data(&value),
    }
}
