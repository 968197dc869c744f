//! Parameters and results of operations.

pub use forebay_base::clock::UnixTime as Time;

/// An inode number. Valid while the inode has a lookup or a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// An open file or directory. Valid until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// The process on whose behalf an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Process ID, or 0 if unknown. The process may be in further groups.
    pub pid: u32,
}

/// Owner and mode of the root directory of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Permission bits (`0o7777`).
    pub mode: u16,
}

/// File type. The numbers are those of directory entries on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

impl FileKind {
    /// All types.
    pub const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// Decodes the number on disk.
    pub(crate) fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// File type.
    pub kind: FileKind,
    /// Permission bits, set-user-id, set-group-id and sticky bit (`0o7777`).
    pub mode: u16,
    /// Link count. An empty directory has 2, plus one per subdirectory.
    pub nlink: u32,
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Length in bytes; for a symlink the length of its target.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// `blocks` is an estimate, because some content is not written yet. It changes once that is
    /// written.
    pub blocks_estimated: bool,
    /// Preferred I/O size in bytes.
    pub block_bytes: u32,
    /// Access time. It may lag.
    pub atime: Time,
    /// Time of the last content change.
    pub mtime: Time,
    /// Time of the last change of content or attributes.
    pub ctime: Time,
    /// Creation time.
    pub btime: Time,
    /// Distinguishes inodes that have had the same number.
    pub generation: u64,
}

/// The result of a lookup, which adds one to the inode's lookup count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Attributes of the inode.
    pub attr: Attr,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to change. `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (`0o7777`).
    pub mode: Option<u16>,
    /// User ID.
    pub uid: Option<u32>,
    /// Group ID.
    pub gid: Option<u32>,
    /// Length of a regular file in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Time of the last content change.
    pub mtime: Option<SetTime>,
    /// Time of the last change of any kind; the current time if `None`.
    pub ctime: Option<Time>,
}

/// An inode to create.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// File type.
    pub kind: FileKind,
    /// Permission bits (`0o7777`). Ignored for symlinks.
    pub mode: u16,
    /// Device number of a device node.
    pub rdev: u32,
    /// Target of a symlink.
    pub target: Option<&'a [u8]>,
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Write {
    /// Write at the end of the file, and ignore the offset.
    pub append: bool,
    /// Clear set-user-id and set-group-id on behalf of this caller.
    pub clear_suid: Option<Caller>,
    /// Remove file capabilities. Not set for write-back of cached pages, because the capabilities
    /// may be newer than the data.
    pub clear_capability: bool,
}

/// What a rename does if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail.
    NoReplace,
    /// Exchange both names. Both must exist.
    Exchange,
}

/// What `fallocate` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Check that enough space is free, and extend the file. Reserves nothing: a later write can
    /// still run out of space.
    Allocate {
        /// Do not change the file size.
        keep_size: bool,
    },
    /// Replace the range by a hole and free its space. The file size does not change.
    Punch,
    /// Replace the range by zeros.
    Zero {
        /// Do not change the file size.
        keep_size: bool,
    },
}

/// What to seek for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Data.
    Data,
    /// A hole. The end of the file counts as one.
    Hole,
}

/// Whether an extended attribute must exist before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// It may or may not exist.
    Either,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Space usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsUsage {
    /// Block size in bytes: the unit of the fields below.
    pub block_bytes: u32,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks available to files: less the reserve for deletes and for changes not written
    /// yet.
    pub available: u64,
    /// Number of inodes that exist or could be created.
    pub files: u64,
    /// Number of inodes that could be created, if each used only its dnode.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}
