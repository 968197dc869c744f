//! On-disk format of inodes and directories. See the chapter "Files" of `docs/format.md`.
//!
//! All numbers are little-endian. An inode is an object of the dataset. The object's attributes are
//! an [`InodePhys`], followed by the inode's *extras* if they fit. Extras are a list of
//! [`ExtraPhys`], each with its name and value. Extras that do not fit go to a separate directory
//! object, the *spill*, as names of entries. So they become durable as names do.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The `flavour` of a dataset that holds files.
pub const FLAVOUR: u32 = 0x7365_6c66;
/// The only version that this code writes and reads.
pub const VERSION: u8 = 1;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symlink in bytes.
pub const TARGET_MAX: usize = 4095;
/// Longest value of an extended attribute in bytes.
pub const VALUE_MAX: usize = 64 << 10;
/// Longest list of extended attribute names in bytes, NUL-terminated.
pub const NAMES_MAX: usize = 64 << 10;
/// Largest size of all extras of an inode in bytes.
pub const EXTRAS_MAX: usize = 256 << 10;
/// Largest link count.
pub const LINKS_MAX: u32 = 1 << 31;
/// Bytes of extras in each name of a spill, except the last. The name begins with the two-byte
/// big-endian number of the piece.
pub const SPILL_PIECE: usize = 253;

/// Size of [`InodePhys::reserved`].
pub const RESERVED_BYTES: usize = 16;

/// A timestamp.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TimePhys {
    /// Seconds since 1970 UTC, rounded down.
    pub seconds: I64,
    /// Nanoseconds within the second, less than 1,000,000,000.
    pub nanos: U32,
}

const _: () = assert!(size_of::<TimePhys>() == 12);

/// An inode, at the start of an object's attributes.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InodePhys {
    /// [`VERSION`].
    pub version: u8,
    /// A [`FileKind`](crate::FileKind). Directories are directory objects; all others are data
    /// objects.
    pub kind: u8,
    /// Permission bits (`0o7777`).
    pub mode: U16,
    /// User ID.
    pub uid: U32,
    /// Group ID.
    pub gid: U32,
    /// Link count. An empty directory has 2, plus one per subdirectory. 0 only in the orphan
    /// directory.
    pub nlink: U32,
    /// Device number of a device node.
    pub rdev: U32,
    /// Size of the extras in bytes.
    pub extras_bytes: U32,
    /// Object number of the spill; 0 if the extras follow this structure.
    pub spill: U64,
    /// Object number of a directory's parent. The root has its own number. Other kinds have the
    /// directory in which they got their newest name; the name may have been removed.
    pub parent: U64,
    /// In the root, the object number of the orphan directory; 0 elsewhere.
    pub orphans: U64,
    /// Access time.
    pub atime: TimePhys,
    /// Time of the last content change.
    pub mtime: TimePhys,
    /// Time of the last change of content or attributes.
    pub ctime: TimePhys,
    /// Creation time.
    pub btime: TimePhys,
    /// For later features. Zeros in a new inode; a change of the inode keeps them.
    pub reserved: [u8; RESERVED_BYTES],
}

const _: () = assert!(size_of::<InodePhys>() == 112);

/// Largest extras in bytes that fit behind the inode.
pub const INLINE_MAX: usize = forebay_pool::format::ATTRIBUTES_MAX - size_of::<InodePhys>();

/// The value of a directory entry.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirentPhys {
    /// Object number of the inode.
    pub number: U64,
    /// Its [`FileKind`](crate::FileKind).
    pub kind: u8,
}

const _: () = assert!(size_of::<DirentPhys>() == 9);

/// Header of an extra. Its name and value follow.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtraPhys {
    /// [`EXTRA_TARGET`] or [`EXTRA_XATTR`].
    pub kind: u8,
    /// Length of the name in bytes.
    pub name_bytes: u8,
    /// Length of the value in bytes.
    pub value_bytes: U32,
}

const _: () = assert!(size_of::<ExtraPhys>() == 6);

/// Target of a symlink. It has no name and is the first extra.
pub const EXTRA_TARGET: u8 = 1;
/// An extended attribute.
pub const EXTRA_XATTR: u8 = 2;
