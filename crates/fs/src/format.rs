//! What inodes and directories are on disk; `docs/format.md` has the chapter "Files".
//!
//! All numbers are little-endian. An inode is an object of the dataset: its attributes are an [`InodePhys`] and, behind it, its
//! *extras*, if they fit: a list of [`ExtraPhys`], each with its name and value. Extras that do not fit are the names of
//! an object of their own, the *spill*, in pieces: so they become durable as names do.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `flavour` of a dataset that holds files.
pub const FLAVOUR: u32 = 0x7365_6c66;
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u8 = 1;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest path of a symlink in bytes.
pub const TARGET_MAX: usize = 4095;
/// Longest value of an extended attribute in bytes.
pub const VALUE_MAX: usize = 64 << 10;
/// Longest list of names of extended attributes in bytes, with a zero behind each.
pub const NAMES_MAX: usize = 64 << 10;
/// All extras of an inode together in bytes.
pub const EXTRAS_MAX: usize = 256 << 10;
/// Most names of an inode, and most directories in a directory.
pub const LINKS_MAX: u32 = 1 << 31;
/// Bytes of extras in each name of a spill but the last, behind two bytes of its number (big-endian).
pub const SPILL_PIECE: usize = 253;

/// A moment.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TimePhys {
    /// Seconds since 1970 in UTC, rounded down.
    pub seconds: I64,
    /// Nanoseconds since the second, below 1,000,000,000.
    pub nanos: U32,
}

const _: () = assert!(size_of::<TimePhys>() == 12);

/// An inode: the front of an object's attributes.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InodePhys {
    /// [`VERSION`].
    pub version: u8,
    /// A [`FileKind`](crate::FileKind). Files and what has no content are objects of bytes, directories are directories.
    pub kind: u8,
    /// Bits of `0o7777`.
    pub mode: U16,
    /// User.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Names that lead here; of a directory 2, and one more for each directory in it; 0 in the orphan directory only.
    pub nlink: U32,
    /// Device that it stands for.
    pub rdev: U32,
    /// Bytes of extras.
    pub extras_bytes: U32,
    /// The object that has the extras, a directory; 0 if they follow here.
    pub spill: U64,
    /// Of a directory, the object of the one that it is in; of the root, its own. Otherwise 0.
    pub parent: U64,
    /// Of the root, the object of the orphan directory. Otherwise 0.
    pub orphans: U64,
    /// Last read.
    pub atime: TimePhys,
    /// Content last changed.
    pub mtime: TimePhys,
    /// Last changed in any way.
    pub ctime: TimePhys,
    /// Made.
    pub btime: TimePhys,
}

const _: () = assert!(size_of::<InodePhys>() == 96);

/// Extras of at most this many bytes lie behind the inode.
pub const INLINE_MAX: usize = forebay_pool::format::ATTRIBUTES_MAX - size_of::<InodePhys>();

/// The value of a name in a directory.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirentPhys {
    /// The inode's object.
    pub number: U64,
    /// Its [`FileKind`](crate::FileKind).
    pub kind: u8,
}

const _: () = assert!(size_of::<DirentPhys>() == 9);

/// The head of an extra; its name and its value follow.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtraPhys {
    /// [`EXTRA_TARGET`] or [`EXTRA_XATTR`].
    pub kind: u8,
    /// Bytes of its name.
    pub name_bytes: u8,
    /// Bytes of its value.
    pub value_bytes: U32,
}

const _: () = assert!(size_of::<ExtraPhys>() == 6);

/// The path of a symlink; without a name, the first of its extras.
pub const EXTRA_TARGET: u8 = 1;
/// An extended attribute.
pub const EXTRA_XATTR: u8 = 2;
