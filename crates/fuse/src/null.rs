//! The null file system: keeps names and sizes, and answers at once.
//!
//! It measures the cost of the kernel, the transport and a map of names, which is an upper limit
//! for the speed of any file system behind the same transport. Reads return zeros up to the file
//! size, writes extend the file, and `fsync` does nothing.
//!
//! # Locking
//!
//! `null-names` (by directory) and `null-nodes` (by inode) are sharded. No thread holds two of
//! them. So operations on two directories are not atomic: other threads can see a rename half done.
//!
//! # Limits
//!
//! It keeps no content, times, symbolic links or extended attributes. It keeps modes and link
//! counts. Everything is gone with the mount.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

use crate::error::MountError;
use crate::mount::{self, Mount};
use crate::options::{MAX_WRITE_BYTES, MountOptions};
use crate::transport::{
    Attributes, Caller, CopyRange, Created, DataReply, Dentry, DirEntry, DirReply, Kind, NewNode,
    OpenHow, Opened, Position, Reply, Server, SetAttributes, Time, Usage, WriteRequest, Written,
    XattrReply,
};

/// Mounts the null file system at `at`, over the same transport as [`mount`](crate::mount()).
///
/// # Errors
///
/// As [`available`](crate::available), or if `at` is not a usable mount point.
pub fn mount_null(at: &Path, options: &MountOptions) -> Result<Mount, MountError> {
    mount::serve(|_metrics, _device| NullFs::new(options.kernel_cache), at, options)
}

const SHARDS: usize = 64;
/// Inode number of the root directory.
const ROOT: u64 = 1;
/// Cookie of the first name, after `.` and `..`.
const FIRST_SLOT: u64 = 2;

static ZEROES: [u8; MAX_WRITE_BYTES as usize] = [0; MAX_WRITE_BYTES as usize];

type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone, Copy)]
struct Node {
    kind: Kind,
    mode: u16,
    uid: u32,
    gid: u32,
    rdev: u32,
    nlink: u32,
    size: u64,
}

/// Names of a directory. A name keeps its slot.
#[derive(Default)]
struct Directory {
    by_name: Map<Box<[u8]>, usize>,
    slots: Vec<Option<(Box<[u8]>, u64, Kind)>>,
    free: Vec<usize>,
}

impl Directory {
    fn get(&self, name: &[u8]) -> Option<(u64, Kind)> {
        let slot = *self.by_name.get(name)?;
        self.slots[slot].as_ref().map(|(_, ino, kind)| (*ino, *kind))
    }

    /// Returns false if the name exists.
    fn insert(&mut self, name: &[u8], ino: u64, kind: Kind) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        let entry = Some((name.into(), ino, kind));
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot] = entry;
            slot
        } else {
            self.slots.push(entry);
            self.slots.len() - 1
        };
        self.by_name.insert(name.into(), slot);
        true
    }

    fn remove(&mut self, name: &[u8]) -> Option<(u64, Kind)> {
        let slot = self.by_name.remove(name)?;
        self.free.push(slot);
        self.slots[slot].take().map(|(_, ino, kind)| (ino, kind))
    }
}

/// Names and sizes.
struct NullFs {
    kernel_cache: bool,
    next: AtomicU64,
    names: Vec<Mutex<Map<u64, Directory>>>,
    nodes: Vec<Mutex<Map<u64, Node>>>,
}

/// Error number of an operation.
type Errno = i32;

impl NullFs {
    fn new(kernel_cache: bool) -> Self {
        let null_fs = Self {
            kernel_cache,
            next: AtomicU64::new(ROOT + 1),
            names: (0..SHARDS).map(|_| Mutex::named("null-names", Map::default())).collect(),
            nodes: (0..SHARDS).map(|_| Mutex::named("null-nodes", Map::default())).collect(),
        };
        let (uid, gid) = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        let root =
            Node { kind: Kind::Directory, mode: 0o755, uid, gid, rdev: 0, nlink: 2, size: 0 };
        null_fs.shard_of_nodes(ROOT).lock().insert(ROOT, root);
        null_fs.shard_of_names(ROOT).lock().insert(ROOT, Directory::default());
        null_fs
    }

    fn shard_of_names(&self, ino: u64) -> &Mutex<Map<u64, Directory>> {
        &self.names[ino as usize % SHARDS]
    }

    fn shard_of_nodes(&self, ino: u64) -> &Mutex<Map<u64, Node>> {
        &self.nodes[ino as usize % SHARDS]
    }

    fn with_directory<R>(
        &self,
        ino: u64,
        f: impl FnOnce(&mut Directory) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        f(self.shard_of_names(ino).lock().get_mut(&ino).ok_or(libc::ENOENT)?)
    }

    fn with_node<R>(&self, ino: u64, f: impl FnOnce(&mut Node) -> R) -> Result<R, Errno> {
        self.shard_of_nodes(ino).lock().get_mut(&ino).map(f).ok_or(libc::ESTALE)
    }

    fn attributes(&self, ino: u64) -> Result<Attributes, Errno> {
        let node = self.with_node(ino, |node| *node)?;
        let epoch = Time { seconds: 0, nanos: 0 };
        Ok(Attributes {
            ino,
            kind: node.kind,
            mode: node.mode,
            nlink: node.nlink,
            uid: node.uid,
            gid: node.gid,
            rdev: node.rdev,
            size: node.size,
            blocks: node.size.div_ceil(512),
            valid: crate::transport::VALID,
            block_bytes: 4096,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            generation: 0,
        })
    }

    fn make_node(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Result<Attributes, Errno> {
        if name.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let nlink = if new.kind == Kind::Directory { 2 } else { 1 };
        let Caller { uid, gid, .. } = caller;
        let node =
            Node { kind: new.kind, mode: new.mode, uid, gid, rdev: new.rdev, nlink, size: 0 };
        self.shard_of_nodes(ino).lock().insert(ino, node);
        if new.kind == Kind::Directory {
            self.shard_of_names(ino).lock().insert(ino, Directory::default());
        }
        let inserted =
            self.with_directory(parent, |directory| Ok(directory.insert(name, ino, new.kind)));
        match inserted {
            Ok(true) => self.attributes(ino),
            refused => {
                self.shard_of_nodes(ino).lock().remove(&ino);
                self.shard_of_names(ino).lock().remove(&ino);
                Err(refused.err().unwrap_or(libc::EEXIST))
            }
        }
    }

    /// Removes one link of an inode.
    fn drop_link(&self, ino: u64, kind: Kind) {
        if kind == Kind::Directory {
            self.shard_of_names(ino).lock().remove(&ino);
            self.shard_of_nodes(ino).lock().remove(&ino);
        } else {
            let _ = self.with_node(ino, |node| node.nlink = node.nlink.saturating_sub(1));
        }
    }

    fn remove_name(&self, parent: u64, name: &[u8], directories: bool) -> Result<(), Errno> {
        let (ino, kind) =
            self.with_directory(parent, |directory| directory.get(name).ok_or(libc::ENOENT))?;
        if (kind == Kind::Directory) != directories {
            return Err(if directories { libc::ENOTDIR } else { libc::EISDIR });
        }
        if directories && self.with_directory(ino, |directory| Ok(!directory.by_name.is_empty()))? {
            return Err(libc::ENOTEMPTY);
        }
        self.with_directory(parent, |directory| directory.remove(name).ok_or(libc::ENOENT))?;
        self.drop_link(ino, kind);
        Ok(())
    }

    fn rename_entry(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<(), Errno> {
        let (ino, kind) =
            self.with_directory(from.0, |directory| directory.remove(from.1).ok_or(libc::ENOENT))?;
        let replaced = self.with_directory(to.0, |directory| {
            let replaced = directory.remove(to.1);
            directory.insert(to.1, ino, kind);
            Ok(replaced)
        })?;
        if let Some((ino, kind)) = replaced {
            self.drop_link(ino, kind);
        }
        Ok(())
    }

    fn opened(&self) -> Opened {
        Opened { handle: 0, cached: self.kernel_cache }
    }

    fn list(&self, ino: u64, from: u64, mut reply: DirReply, plus: bool) {
        let names = self.shard_of_names(ino).lock();
        let Some(directory) = names.get(&ino) else { return reply.error(libc::ENOENT) };
        for (at, name) in [(0, b".".as_slice()), (1, b"..")] {
            let entry = DirEntry { name, ino, kind: Kind::Directory, next: at + 1 };
            if from <= at && !reply.add(&entry, None) {
                drop(names);
                return reply.done();
            }
        }
        let mut slot = from.saturating_sub(FIRST_SLOT) as usize;
        let mut batch = Vec::new();
        while slot < directory.slots.len() && batch.len() < 512 {
            if let Some((name, ino, kind)) = &directory.slots[slot] {
                batch.push((name.clone(), *ino, *kind, slot as u64 + FIRST_SLOT + 1));
            }
            slot += 1;
        }
        drop(names);
        for (name, ino, kind, next) in batch {
            let attributes = if plus { self.attributes(ino).ok() } else { None };
            // Removed meanwhile.
            if plus && attributes.is_none() {
                continue;
            }
            if !reply.add(&DirEntry { name: &name, ino, kind, next }, attributes.as_ref()) {
                break;
            }
        }
        reply.done();
    }
}

fn send<T>(reply: impl Reply<T>, result: Result<T, Errno>) {
    match result {
        Ok(value) => reply.ok(value),
        Err(errno) => reply.error(errno),
    }
}

impl Server for NullFs {
    fn lookup(&self, _caller: Caller, parent: u64, name: &[u8], reply: impl Reply<Dentry>) {
        let found = self.with_directory(parent, |directory| Ok(directory.get(name)));
        send(
            reply,
            match found {
                Ok(Some((ino, _))) => self.attributes(ino).map(Dentry::Positive),
                Ok(None) => Ok(Dentry::Negative),
                Err(errno) => Err(errno),
            },
        );
    }

    fn forget(&self, ino: u64, _count: u64) {
        let mut nodes = self.shard_of_nodes(ino).lock();
        if nodes.get(&ino).is_some_and(|node| node.nlink == 0) {
            nodes.remove(&ino);
        }
    }

    fn getattr(&self, _caller: Caller, ino: u64, reply: impl Reply<Attributes>) {
        send(reply, self.attributes(ino));
    }

    fn setattr(
        &self,
        _caller: Caller,
        ino: u64,
        set: SetAttributes,
        reply: impl Reply<Attributes>,
    ) {
        let done = self.with_node(ino, |node| {
            node.mode = set.mode.unwrap_or(node.mode);
            node.uid = set.uid.unwrap_or(node.uid);
            node.gid = set.gid.unwrap_or(node.gid);
            node.size = set.size.unwrap_or(node.size);
        });
        send(reply, done.and_then(|()| self.attributes(ino)));
    }

    fn readlink(&self, _caller: Caller, _ino: u64, reply: DataReply) {
        reply.error(libc::EINVAL);
    }

    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: NewNode<'_>,
        reply: impl Reply<Dentry>,
    ) {
        if node.kind == Kind::Symlink {
            return reply.error(libc::EPERM);
        }
        send(reply, self.make_node(caller, parent, name, node).map(Dentry::Positive));
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        _how: OpenHow,
        reply: impl Reply<Created>,
    ) {
        let node = NewNode { kind: Kind::File, mode, rdev: 0, target: None };
        let made = self.make_node(caller, parent, name, node);
        send(reply, made.map(|attributes| Created { attributes, opened: self.opened() }));
    }

    fn link(&self, _caller: Caller, ino: u64, parent: u64, name: &[u8], reply: impl Reply<Dentry>) {
        let linked = self.with_node(ino, |node| node.kind).and_then(|kind| {
            if !self.with_directory(parent, |directory| Ok(directory.insert(name, ino, kind)))? {
                return Err(libc::EEXIST);
            }
            self.with_node(ino, |node| node.nlink += 1)?;
            self.attributes(ino)
        });
        send(reply, linked.map(Dentry::Positive));
    }

    fn unlink(&self, _caller: Caller, parent: u64, name: &[u8], reply: impl Reply<()>) {
        send(reply, self.remove_name(parent, name, false));
    }

    fn rmdir(&self, _caller: Caller, parent: u64, name: &[u8], reply: impl Reply<()>) {
        send(reply, self.remove_name(parent, name, true));
    }

    fn rename(
        &self,
        _caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        reply: impl Reply<()>,
    ) {
        if flags != 0 {
            return reply.error(libc::EINVAL);
        }
        send(reply, self.rename_entry(from, to));
    }

    fn open(&self, _caller: Caller, ino: u64, how: OpenHow, reply: impl Reply<Opened>) {
        let done = if how.truncate { self.with_node(ino, |node| node.size = 0) } else { Ok(()) };
        send(reply, done.map(|()| self.opened()));
    }

    fn release(&self, _ino: u64, _handle: u64, reply: impl Reply<()>) {
        reply.ok(());
    }

    fn read(
        &self,
        _caller: Caller,
        ino: u64,
        _handle: u64,
        offset: u64,
        len: u32,
        reply: DataReply,
    ) {
        match self.with_node(ino, |node| node.size) {
            Ok(size) => {
                let there = size.saturating_sub(offset).min(u64::from(len)) as usize;
                reply.data(&ZEROES[..there.min(ZEROES.len())]);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _caller: Caller,
        ino: u64,
        _handle: u64,
        write_request: WriteRequest<'_>,
        reply: impl Reply<Written>,
    ) {
        let end = write_request.offset.saturating_add(write_request.data.len() as u64);
        let done = self.with_node(ino, |node| node.size = node.size.max(end));
        send(reply, done.map(|()| Written(write_request.data.len() as u32)));
    }

    fn fsync(&self, _caller: Caller, _ino: u64, _data_only: bool, reply: impl Reply<()>) {
        reply.ok(());
    }

    fn opendir(&self, _caller: Caller, _ino: u64, reply: impl Reply<Opened>) {
        reply.ok(Opened { handle: 0, cached: false });
    }

    fn readdir(&self, _caller: Caller, ino: u64, _handle: u64, from: u64, reply: DirReply) {
        self.list(ino, from, reply, false);
    }

    fn readdirplus(&self, _caller: Caller, ino: u64, _handle: u64, from: u64, reply: DirReply) {
        self.list(ino, from, reply, true);
    }

    fn releasedir(&self, _ino: u64, _handle: u64, reply: impl Reply<()>) {
        reply.ok(());
    }

    fn fsyncdir(&self, _caller: Caller, _ino: u64, reply: impl Reply<()>) {
        reply.ok(());
    }

    fn statfs(&self, reply: impl Reply<Usage>) {
        let (blocks, files) = (1 << 40, 1 << 40);
        reply.ok(Usage {
            block_bytes: 4096,
            blocks,
            free: blocks,
            available: blocks,
            files,
            files_free: files,
            name_max: 255,
        });
    }

    fn setxattr(
        &self,
        _caller: Caller,
        _ino: u64,
        _name: &[u8],
        _value: &[u8],
        _flags: i32,
        reply: impl Reply<()>,
    ) {
        reply.error(libc::ENOSYS);
    }

    fn getxattr(&self, _caller: Caller, _ino: u64, _name: &[u8], _size: u32, reply: XattrReply) {
        reply.error(libc::ENOSYS);
    }

    fn listxattr(&self, _caller: Caller, _ino: u64, _size: u32, reply: XattrReply) {
        reply.error(libc::ENOSYS);
    }

    fn removexattr(&self, _caller: Caller, _ino: u64, _name: &[u8], reply: impl Reply<()>) {
        reply.error(libc::ENOSYS);
    }

    fn fallocate(
        &self,
        _caller: Caller,
        ino: u64,
        _handle: u64,
        range: (u64, u64),
        mode: i32,
        reply: impl Reply<()>,
    ) {
        let end = range.0.saturating_add(range.1);
        let grows = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
        send(
            reply,
            self.with_node(ino, |node| {
                node.size = if grows { node.size.max(end) } else { node.size }
            }),
        );
    }

    fn seek(
        &self,
        _caller: Caller,
        _ino: u64,
        _handle: u64,
        _offset: u64,
        _whence: i32,
        reply: impl Reply<Position>,
    ) {
        reply.error(libc::ENOSYS);
    }

    fn copy(&self, _caller: Caller, _range: CopyRange, reply: impl Reply<Written>) {
        reply.error(libc::ENOSYS);
    }
}
