//! What operations take and return.

pub use forebay_base::clock::UnixTime as Time;

/// Names an inode while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// That somebody has an inode open. It stays good until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// On whose behalf something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Their user.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Their process, 0 if it is not known: it may be in more groups.
    pub pid: u32,
}

/// Whom the root directory of a new file system belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits, of `0o7777`.
    pub mode: u16,
}

/// What an inode is. The numbers are those in directories on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Bytes.
    File = 1,
    /// Names.
    Directory = 2,
    /// A path.
    Symlink = 3,
    /// A pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A device of characters.
    CharDevice = 6,
    /// A device of blocks.
    BlockDevice = 7,
}

impl FileKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// From its number on disk.
    pub(crate) fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// What is known of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Which one.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-user-id, set-group-id and sticky: of `0o7777`.
    pub mode: u16,
    /// Names that lead to it; of a directory 2, and one more for each directory in it.
    pub nlink: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Which device it stands for, if it does.
    pub rdev: u32,
    /// Length in bytes; of a symlink that of its path.
    pub size: u64,
    /// What it takes on devices, in units of 512 bytes.
    pub blocks: u64,
    /// Whether `blocks` is a guess, because content is not written yet: it changes by itself once that is.
    pub blocks_estimated: bool,
    /// Bytes in which it is best read and written.
    pub block_bytes: u32,
    /// When it was last read, roughly.
    pub atime: Time,
    /// When its content was last changed.
    pub mtime: Time,
    /// When anything of it was last changed.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
    /// Tells it from others that had the same number at other times.
    pub generation: u64,
}

/// A name that was looked up: one was added to the inode's count of lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it leads to.
    pub attr: Attr,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The clock's.
    Now,
    /// This one.
    At(Time),
}

/// What to change of an inode; nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// The bits of `0o7777`.
    pub mode: Option<u16>,
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length in bytes, of a file.
    pub size: Option<u64>,
    /// When it was last read.
    pub atime: Option<SetTime>,
    /// When its content was last changed.
    pub mtime: Option<SetTime>,
    /// When anything of it was last changed; now, if this is not given.
    pub ctime: Option<Time>,
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// What it is to be.
    pub kind: FileKind,
    /// The bits of `0o7777`; of a symlink they say nothing.
    pub mode: u16,
    /// Which device it stands for, if it does.
    pub rdev: u32,
    /// The path, of a symlink.
    pub target: Option<&'a [u8]>,
}

/// How to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Write {
    /// At the end, whatever the offset says.
    pub append: bool,
    /// Clear set-user-id and set-group-id, because this writer may not keep them.
    pub clear_suid: Option<Caller>,
    /// Remove file capabilities, as any write does. Not to be asked for when content is written that was
    /// changed earlier: the capabilities may be younger.
    pub clear_capability: bool,
}

/// What to do about a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Take its place.
    Replace,
    /// Refuse.
    NoReplace,
    /// Both must be there, and change places.
    Exchange,
}

/// What to do with a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// See that there is room for it. Nothing is reserved: blocks are never written in place, so room that is there today may be
    /// taken by others tomorrow.
    Allocate {
        /// Leave the length as it is.
        keep_size: bool,
    },
    /// Make it zeros, and give its room back. The length stays.
    Punch,
    /// Make it zeros.
    Zero {
        /// Leave the length as it is.
        keep_size: bool,
    },
}

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// What was written.
    Data,
    /// What was not; the end of the file counts.
    Hole,
}

/// Whether an attribute must be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either way.
    Either,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsUsage {
    /// Bytes of a block, the unit below.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Blocks of them that files can have: without what is kept for deleting, and for changes that are not written yet.
    pub available: u64,
    /// Inodes that there are or could be.
    pub files: u64,
    /// Inodes that could still be made, if each took no more than its dnode.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}
