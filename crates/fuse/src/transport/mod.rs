//! The FUSE protocol: requests of the kernel and replies to them, in types of this crate.
//!
//! A [`Server`] handles each request as a call with a reply object. It may move the reply to
//! another thread. Only this folder names the crate `fuser`.
//!
//! # Invariants
//!
//! - Each request gets one reply. A reply that is dropped unsent answers with `EIO`.
//! - Methods of a server do not block. Several threads may call them at once.
//! - Requests borrow from the receive buffer. A server copies the data that must outlive the call.
//!
//! # Locking
//!
//! This folder has no locks of its own.
//!
//! # Limits
//!
//! It passes inode numbers and names through unchanged. Errors are `errno` numbers here and in the
//! adapter, and nowhere below.

mod convert;
mod dispatch;
mod notifier;
mod replies;
mod session;

use std::time::Duration;

pub(crate) use self::notifier::KernelNotifier;
pub(crate) use self::replies::{DataReply, DirReply, XattrReply};
pub(crate) use self::session::start;

/// How long the kernel may cache dentries and attributes. Nobody but this server changes them, so
/// they stay valid. A finite time avoids overflow in the kernel.
pub(crate) const VALID: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the kernel may cache attributes with an estimated block count. In `readdirplus` replies
/// this also limits the dentry, because `fuser` has one time for both.
pub(crate) const VALID_ESTIMATE: Duration = Duration::from_secs(1);

/// The process that sent a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Process ID, or 0 if the kernel does not tell it.
    pub(crate) pid: u32,
}

/// A timestamp: signed seconds since 1970, plus nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

/// Kinds of inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// The attributes that `stat` shows, and the inode's generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Permission bits (`0o7777`).
    pub(crate) mode: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    /// How long the kernel may cache them.
    pub(crate) valid: Duration,
    pub(crate) block_bytes: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) generation: u64,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dentry {
    /// The name exists. The kernel takes a reference to the inode.
    Positive(Attributes),
    /// The name does not exist. The kernel may cache that until it creates the name.
    Negative,
    /// As `Positive`, for this time: another host may change the name.
    PositiveFor(Attributes, Duration),
    /// As `Negative`, for this time.
    NegativeFor(Duration),
}

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    /// The kernel caches content. Otherwise it sends every read and write.
    pub(crate) cached: bool,
}

/// A new file, and its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Created {
    pub(crate) attributes: Attributes,
    pub(crate) opened: Opened,
}

/// The result of `statfs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u64,
    pub(crate) free: u64,
    pub(crate) available: u64,
    pub(crate) files: u64,
    pub(crate) files_free: u64,
    pub(crate) name_max: u32,
}

/// An offset in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position(pub(crate) u64);

/// Number of bytes written or copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written(pub(crate) u32);

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SetTime {
    Now,
    At(Time),
}

/// Attributes to set. `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetAttributes {
    pub(crate) mode: Option<u16>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    pub(crate) ctime: Option<Time>,
}

/// An inode to create with `mknod`, `mkdir` or `symlink`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewNode<'a> {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) rdev: u32,
    /// Target of a symbolic link.
    pub(crate) target: Option<&'a [u8]>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Cookie of the next entry.
    pub(crate) next: u64,
}

/// Data to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRequest<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// The writer, if the write must clear set-user-id and set-group-id bits.
    pub(crate) kill_priv: Option<Caller>,
    /// The data comes from the page cache: the `write` call has already returned.
    pub(crate) is_writeback: bool,
    /// What must be durable before the reply.
    pub(crate) sync_mode: SyncMode,
}

/// What must be durable before the reply to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// Nothing.
    None,
    /// The data (`O_DSYNC`, `RWF_DSYNC`).
    Data,
    /// The data and all attributes (`O_SYNC`, `RWF_SYNC`).
    All,
}

/// Flags of an open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    pub(crate) truncate: bool,
    pub(crate) writes: bool,
    pub(crate) sync_mode: SyncMode,
}

/// A range to copy between files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRange {
    pub(crate) from: u64,
    pub(crate) from_offset: u64,
    pub(crate) to: u64,
    pub(crate) to_handle: u64,
    pub(crate) to_offset: u64,
    pub(crate) len: u64,
}

/// A reply that takes one kind of value.
pub(crate) trait Reply<T>: Send + 'static {
    fn ok(self, value: T);
    fn error(self, errno: i32);
}

/// Handles the requests of a mount. No method blocks on devices or transaction groups.
pub(crate) trait Server: Send + Sync + 'static {
    fn lookup(&self, caller: Caller, parent: u64, name: &[u8], reply: impl Reply<Dentry>);
    fn forget(&self, ino: u64, count: u64);
    fn getattr(&self, caller: Caller, ino: u64, reply: impl Reply<Attributes>);
    fn setattr(&self, caller: Caller, ino: u64, set: SetAttributes, reply: impl Reply<Attributes>);
    fn readlink(&self, caller: Caller, ino: u64, reply: DataReply);
    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: NewNode<'_>,
        reply: impl Reply<Dentry>,
    );
    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        how: OpenHow,
        reply: impl Reply<Created>,
    );
    fn link(&self, caller: Caller, ino: u64, parent: u64, name: &[u8], reply: impl Reply<Dentry>);
    fn unlink(&self, caller: Caller, parent: u64, name: &[u8], reply: impl Reply<()>);
    fn rmdir(&self, caller: Caller, parent: u64, name: &[u8], reply: impl Reply<()>);
    /// `flags` are those of `renameat2`.
    fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        reply: impl Reply<()>,
    );
    fn open(&self, caller: Caller, ino: u64, how: OpenHow, reply: impl Reply<Opened>);
    fn release(&self, ino: u64, handle: u64, reply: impl Reply<()>);
    fn read(&self, caller: Caller, ino: u64, handle: u64, offset: u64, len: u32, reply: DataReply);
    fn write(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        write_request: WriteRequest<'_>,
        reply: impl Reply<Written>,
    );
    fn fsync(&self, caller: Caller, ino: u64, data_only: bool, reply: impl Reply<()>);
    fn opendir(&self, caller: Caller, ino: u64, reply: impl Reply<Opened>);
    fn readdir(&self, caller: Caller, ino: u64, handle: u64, from: u64, reply: DirReply);
    fn readdirplus(&self, caller: Caller, ino: u64, handle: u64, from: u64, reply: DirReply);
    fn releasedir(&self, ino: u64, handle: u64, reply: impl Reply<()>);
    fn fsyncdir(&self, caller: Caller, ino: u64, reply: impl Reply<()>);
    fn statfs(&self, reply: impl Reply<Usage>);
    /// `flags` are those of `setxattr`.
    fn setxattr(
        &self,
        caller: Caller,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
        reply: impl Reply<()>,
    );
    /// A `size` of 0 asks for the length of the value.
    fn getxattr(&self, caller: Caller, ino: u64, name: &[u8], size: u32, reply: XattrReply);
    /// Replies with NUL-terminated names. A `size` of 0 asks for their length.
    fn listxattr(&self, caller: Caller, ino: u64, size: u32, reply: XattrReply);
    fn removexattr(&self, caller: Caller, ino: u64, name: &[u8], reply: impl Reply<()>);
    /// `mode` is that of `fallocate(2)`.
    fn fallocate(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        mode: i32,
        reply: impl Reply<()>,
    );
    /// `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    fn seek(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        offset: u64,
        whence: i32,
        reply: impl Reply<Position>,
    );
    fn copy(&self, caller: Caller, range: CopyRange, reply: impl Reply<Written>);
    /// Called once, before the first request.
    fn started(&self, _notifier: &KernelNotifier) {}
    /// Called after an unmount by this process, perhaps more than once: the mount is gone for good,
    /// although requests may still come. Nothing may wait for long any more.
    fn detached(&self) {}
    /// Called once, after the last request. Replies may still be pending; they reach nobody.
    fn ended(&self) {}
}
