//! The seam: what the kernel asks and what it is answered, in types of this crate.
//!
//! A *server* ([`Server`]) gets each request as a call, with an object that takes the answer. The object may be moved to another
//! thread; it answers once, and when it is dropped instead, it answers with `EIO`. A *transport* calls a server: today `fuser`, over
//! `/dev/fuse` with a queue for each thread. Another (FUSE over io_uring) implements the traits of answers and a function like [`start`].
//!
//! # Invariants
//!
//! - A server's methods do not wait. They may be called from several threads at once.
//! - Requests borrow from the transport's buffer: what has to outlive the call is copied by the server.
//!
//! # What it does not do
//!
//! No semantics: numbers of inodes, names and errors pass through. Errors are the system's own numbers (`errno`) here, and nowhere below.

mod convert;
mod dispatch;
mod replies;

use std::time::Duration;

use forebay_base::sync::Arc;

pub(crate) use self::dispatch::start;

/// How long the kernel may believe names and attributes: for good, since nobody but this server changes them. (A year, in
/// case that a kernel computes with it.)
pub(crate) const VALID: Duration = Duration::from_secs(365 * 24 * 3600);
/// The same of attributes in which something is a guess until the content is written, some seconds later. In a listing the name is
/// valid as long as they are: the protocol's library has one time for both there.
const VALID_ESTIMATE: Duration = Duration::from_secs(1);

/// Number of the root of a mount.
pub(crate) const ROOT: u64 = 1;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Their process, 0 if the kernel does not say.
    pub(crate) pid: u32,
}

/// A time: seconds since 1970, perhaps negative, and nanoseconds onwards from there.
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

/// What `stat` shows, and the inode's generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Permission bits, 07777.
    pub(crate) mode: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    /// `blocks` will change by itself.
    pub(crate) blocks_estimated: bool,
    pub(crate) block_bytes: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) generation: u64,
}

impl Attributes {
    /// How long the kernel may believe them.
    pub(crate) fn valid(&self) -> Duration {
        if self.blocks_estimated { VALID_ESTIMATE } else { VALID }
    }
}

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dentry {
    /// This inode; the kernel holds one more reference to it.
    Positive(Attributes),
    /// Nothing, and that stays so until the kernel itself makes something of that name.
    Negative,
}

/// A file or directory that was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    /// The kernel keeps content; otherwise each read and write comes here.
    pub(crate) cached: bool,
}

/// A new file that was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Created {
    pub(crate) attributes: Attributes,
    pub(crate) opened: Opened,
}

/// What `statfs` shows.
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

/// A position in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position(pub(crate) u64);

/// Bytes written or copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written(pub(crate) u32);

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SetTime {
    Now,
    At(Time),
}

/// Attributes to set; what is `None` stays.
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

/// An inode to make, but for a file that is opened as it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewNode<'a> {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) rdev: u32,
    /// Where a symbolic link leads.
    pub(crate) target: Option<&'a [u8]>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Where reading goes on behind it.
    pub(crate) next: u64,
}

/// Content to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRequest<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// The writer, if it may not keep set-user-id and set-group-id bits.
    pub(crate) kill_priv: Option<Caller>,
    /// The kernel held the content back: its writer is not told when this is answered.
    pub(crate) is_writeback: bool,
    /// What has to be durable before this is answered.
    pub(crate) sync_mode: SyncMode,
}

/// What has to be durable before a change is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// Nothing.
    None,
    /// The content (`O_DSYNC`, `RWF_DSYNC`).
    Data,
    /// The content and all attributes (`O_SYNC`, `RWF_SYNC`).
    All,
}

/// What a file is opened for.
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

/// Takes one answer.
pub(crate) trait Reply<T>: Send + 'static {
    fn ok(self, value: T);
    fn error(self, errno: i32);
}

/// Takes content as an answer, without copying it.
pub(crate) trait DataReply: Send + 'static {
    fn data(self, data: &[u8]);
    fn error(self, errno: i32);
}

/// Takes the entries of a directory; it has room for what the kernel asked for.
pub(crate) trait DirReply: Send + 'static {
    /// Adds an entry, or says that there is no room.
    fn add(&mut self, entry: &DirEntry<'_>, attributes: Option<&Attributes>) -> bool;
    /// Whether there is something to send.
    fn is_empty(&self) -> bool;
    /// Sends what was added.
    fn done(self);
    fn error(self, errno: i32);
}

/// Takes extended attributes: content, or its size if the kernel asked for that.
pub(crate) trait XattrReply: Send + 'static {
    fn size(self, bytes: u32);
    fn data(self, data: &[u8]);
    fn error(self, errno: i32);
}

/// Calls of the server to the kernel.
pub(crate) trait KernelNotifier: Send + Sync + 'static {
    /// Has the kernel forget the name, and with it what it leads to, if nobody uses it. May wait for requests: never to be called by a server's
    /// method. Says whether the kernel still listens.
    fn invalidate_entry(&self, parent: u64, name: &[u8]) -> bool;
    /// Has the kernel ask for attributes of the inode before it shows them again. Waits for nothing.
    fn invalidate_attributes(&self, ino: u64);
    /// Has the kernel write what it holds of the inode's content; returns when that is done. Waits for
    /// requests: never to be called by a server's method.
    fn flush_pages(&self, ino: u64);
}

/// What serves a mount. All calls return without waiting for devices.
pub(crate) trait Server: Send + Sync + 'static {
    fn lookup(&self, parent: u64, name: &[u8], reply: impl Reply<Dentry>);
    fn forget(&self, ino: u64, count: u64);
    fn getattr(&self, ino: u64, reply: impl Reply<Attributes>);
    fn setattr(&self, caller: Caller, ino: u64, set: SetAttributes, reply: impl Reply<Attributes>);
    fn readlink(&self, ino: u64, reply: impl DataReply);
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
    fn link(&self, ino: u64, parent: u64, name: &[u8], reply: impl Reply<Dentry>);
    fn unlink(&self, parent: u64, name: &[u8], reply: impl Reply<()>);
    fn rmdir(&self, parent: u64, name: &[u8], reply: impl Reply<()>);
    /// `flags` as `renameat2` has them.
    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32, reply: impl Reply<()>);
    fn open(&self, caller: Caller, ino: u64, how: OpenHow, reply: impl Reply<Opened>);
    fn release(&self, ino: u64, handle: u64, reply: impl Reply<()>);
    fn read(&self, ino: u64, handle: u64, offset: u64, len: u32, reply: impl DataReply);
    fn write(
        &self,
        ino: u64,
        handle: u64,
        write_request: WriteRequest<'_>,
        reply: impl Reply<Written>,
    );
    fn fsync(&self, ino: u64, data_only: bool, reply: impl Reply<()>);
    fn opendir(&self, ino: u64, reply: impl Reply<Opened>);
    fn readdir(&self, ino: u64, handle: u64, from: u64, reply: impl DirReply);
    fn readdirplus(&self, ino: u64, handle: u64, from: u64, reply: impl DirReply);
    fn releasedir(&self, ino: u64, handle: u64, reply: impl Reply<()>);
    fn fsyncdir(&self, ino: u64, reply: impl Reply<()>);
    fn statfs(&self, reply: impl Reply<Usage>);
    /// `flags` as `setxattr` has them.
    fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], flags: i32, reply: impl Reply<()>);
    /// `size` 0 asks for the size.
    fn getxattr(&self, ino: u64, name: &[u8], size: u32, reply: impl XattrReply);
    /// Names one after the other, a zero behind each. `size` 0 asks for the size.
    fn listxattr(&self, ino: u64, size: u32, reply: impl XattrReply);
    fn removexattr(&self, ino: u64, name: &[u8], reply: impl Reply<()>);
    /// `mode` as `fallocate` has it.
    fn fallocate(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        mode: i32,
        reply: impl Reply<()>,
    );
    /// `whence` as `lseek` has it: data or hole only.
    fn seek(&self, ino: u64, handle: u64, offset: u64, whence: i32, reply: impl Reply<Position>);
    fn copy(&self, caller: Caller, range: CopyRange, reply: impl Reply<Written>);
    /// Called once, before any request, if the transport can call the kernel.
    fn started(&self, _kernel: Arc<dyn KernelNotifier>) {}
    /// Called once, when no request comes any more. Answers may still be on their way to nowhere.
    fn ended(&self) {}
}
