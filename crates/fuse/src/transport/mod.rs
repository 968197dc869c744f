//! The seam: what the kernel asks and what it is answered, in types of this crate.
//!
//! A *server* ([`Server`]) gets each request as a call, with an object that takes the answer. The object may be moved to another
//! thread; it answers once, and when it is dropped instead, it answers with `EIO`. A *transport* calls a server: today `fuser`, over
//! `/dev/fuse` with a queue for each thread. Another (FUSE over io_uring) implements the traits of answers and a function like [`fuser::start`].
//!
//! # Invariants
//!
//! - A server's methods do not wait. They may be called from several threads at once.
//! - Requests borrow from the transport's buffer: what has to outlive the call is copied by the server.
//!
//! # What it does not do
//!
//! No semantics: numbers of inodes, names and errors pass through. Errors are the system's own numbers (`errno`) here, and nowhere below.

pub(crate) mod fuser;

use std::time::Duration;

use forebay_base::sync::Arc;

/// How long the kernel may believe names and attributes: for good, since nobody but this server changes them. (A year, in
/// case that a kernel computes with it.)
pub(crate) const VALID: Duration = Duration::from_secs(365 * 24 * 3600);
/// The same of attributes in which something is a guess until the content is written, some seconds later. In a listing the name is
/// valid as long as they are: the protocol's library has one time for both there.
const VALID_GUESS: Duration = Duration::from_secs(1);

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
    Folder,
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
    pub(crate) blocks_guessed: bool,
    pub(crate) block_bytes: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) generation: u64,
}

impl Attributes {
    /// How long the kernel may believe them.
    pub(crate) fn valid(&self) -> Duration {
        if self.blocks_guessed { VALID_GUESS } else { VALID }
    }
}

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// This inode; the kernel holds one more reference to it.
    There(Attributes),
    /// Nothing, and that stays so until the kernel itself makes something of that name.
    Absent,
}

/// A file or folder that was opened.
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

/// An entry of a folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FolderEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Where reading goes on behind it.
    pub(crate) next: u64,
}

/// Content to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// The writer, if it may not keep set-user-id and set-group-id bits.
    pub(crate) drops_privileges: Option<Caller>,
    /// The kernel held the content back: its writer is not told when this is answered.
    pub(crate) held_back: bool,
    /// What has to be durable before this is answered.
    pub(crate) durable: Durable,
}

/// What has to be durable before a change is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// Nothing.
    No,
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
    pub(crate) durable: Durable,
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
pub(crate) trait Answer<T>: Send + 'static {
    fn ok(self, value: T);
    fn error(self, errno: i32);
}

/// Takes content as an answer, without copying it.
pub(crate) trait DataAnswer: Send + 'static {
    fn data(self, data: &[u8]);
    fn error(self, errno: i32);
}

/// Takes the entries of a folder; it has room for what the kernel asked for.
pub(crate) trait FolderAnswer: Send + 'static {
    /// Adds an entry, or says that there is no room.
    fn add(&mut self, entry: &FolderEntry<'_>, attributes: Option<&Attributes>) -> bool;
    /// Whether there is something to send.
    fn is_empty(&self) -> bool;
    /// Sends what was added.
    fn done(self);
    fn error(self, errno: i32);
}

/// Takes extended attributes: content, or its size if the kernel asked for that.
pub(crate) trait SizedAnswer: Send + 'static {
    fn size(self, bytes: u32);
    fn data(self, data: &[u8]);
    fn error(self, errno: i32);
}

/// Calls of the server to the kernel.
pub(crate) trait Kernel: Send + Sync + 'static {
    /// Has the kernel forget the name, and with it what it leads to, if nobody uses it. May wait for requests: never to be called by a server's
    /// method. Says whether the kernel still listens.
    fn forget_name(&self, parent: u64, name: &[u8]) -> bool;
    /// Has the kernel ask for attributes of the inode before it shows them again. Waits for nothing.
    fn forget_attributes(&self, ino: u64);
    /// Has the kernel write what it holds of the inode's content; returns when that is done. Waits for
    /// requests: never to be called by a server's method.
    fn write_back(&self, ino: u64);
}

/// What serves a mount. All calls return without waiting for devices.
pub(crate) trait Server: Send + Sync + 'static {
    fn lookup(&self, parent: u64, name: &[u8], answer: impl Answer<Found>);
    fn forget(&self, ino: u64, count: u64);
    fn getattr(&self, ino: u64, answer: impl Answer<Attributes>);
    fn setattr(
        &self,
        caller: Caller,
        ino: u64,
        set: SetAttributes,
        answer: impl Answer<Attributes>,
    );
    fn readlink(&self, ino: u64, answer: impl DataAnswer);
    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: NewNode<'_>,
        answer: impl Answer<Found>,
    );
    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        how: OpenHow,
        answer: impl Answer<Created>,
    );
    fn link(&self, ino: u64, parent: u64, name: &[u8], answer: impl Answer<Found>);
    fn unlink(&self, parent: u64, name: &[u8], answer: impl Answer<()>);
    fn rmdir(&self, parent: u64, name: &[u8], answer: impl Answer<()>);
    /// `flags` as `renameat2` has them.
    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32, answer: impl Answer<()>);
    fn open(&self, caller: Caller, ino: u64, how: OpenHow, answer: impl Answer<Opened>);
    fn release(&self, ino: u64, handle: u64, answer: impl Answer<()>);
    fn read(&self, ino: u64, handle: u64, offset: u64, len: u32, answer: impl DataAnswer);
    fn write(&self, ino: u64, handle: u64, content: Content<'_>, answer: impl Answer<Written>);
    fn fsync(&self, ino: u64, data_only: bool, answer: impl Answer<()>);
    fn opendir(&self, ino: u64, answer: impl Answer<Opened>);
    fn readdir(&self, ino: u64, handle: u64, from: u64, answer: impl FolderAnswer);
    fn readdirplus(&self, ino: u64, handle: u64, from: u64, answer: impl FolderAnswer);
    fn releasedir(&self, ino: u64, handle: u64, answer: impl Answer<()>);
    fn fsyncdir(&self, ino: u64, answer: impl Answer<()>);
    fn statfs(&self, answer: impl Answer<Usage>);
    /// `flags` as `setxattr` has them.
    fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], flags: i32, answer: impl Answer<()>);
    /// `room` 0 asks for the size.
    fn getxattr(&self, ino: u64, name: &[u8], room: u32, answer: impl SizedAnswer);
    /// Names one after the other, a zero behind each. `room` 0 asks for the size.
    fn listxattr(&self, ino: u64, room: u32, answer: impl SizedAnswer);
    fn removexattr(&self, ino: u64, name: &[u8], answer: impl Answer<()>);
    /// `mode` as `fallocate` has it.
    fn fallocate(
        &self,
        caller: Caller,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        mode: i32,
        answer: impl Answer<()>,
    );
    /// `whence` as `lseek` has it: data or hole only.
    fn seek(&self, ino: u64, handle: u64, offset: u64, whence: i32, answer: impl Answer<Position>);
    fn copy(&self, caller: Caller, range: CopyRange, answer: impl Answer<Written>);
    /// Called once, before any request, if the transport can call the kernel.
    fn started(&self, _kernel: Arc<dyn Kernel>) {}
    /// Called once, when no request comes any more. Answers may still be on their way to nowhere.
    fn ended(&self) {}
}
