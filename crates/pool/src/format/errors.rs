//! The error log: the content of one of the pool's own objects.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of an error log: "fberrors".
pub const ERROR_LOG_MAGIC: u64 = u64::from_le_bytes(*b"fberrors");
/// Maximum number of entries of an error log. It then has 128 KiB.
pub const ERROR_LOG_MAX: usize = 2047;

/// Kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum DamageKind {
    /// No copy is what was written.
    NoGoodCopy = 1,
    /// The devices return errors for all copies.
    Unreadable = 2,
    /// The content contradicts itself.
    Invalid = 3,
    /// A copy is bad, and another one is good.
    BadCopy = 4,
}

impl DamageKind {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::NoGoodCopy, Self::Unreadable, Self::Invalid, Self::BadCopy];
        all.into_iter().find(|kind| *kind as u8 == raw)
    }
}

impl std::fmt::Display for DamageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoGoodCopy => "no good copy",
            Self::Unreadable => "no copy can be read",
            Self::Invalid => "invalid content",
            Self::BadCopy => "one of its copies is bad",
        })
    }
}

/// The head of an error log. Its entries follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorLogPhys {
    /// [`ERROR_LOG_MAGIC`].
    pub magic: U64,
    /// Number of entries.
    pub entries: U64,
    /// Errors that did not fit.
    pub unlisted: U64,
    /// The txg of the newest of these.
    pub unlisted_txg: U64,
    /// Zeros.
    pub reserved: [u8; 32],
}

const _: () = assert!(size_of::<ErrorLogPhys>() == 64);

/// An entry of an error log: damaged blocks of a tree.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DamagePhys {
    /// Number of the dataset; 0 for the pool's own objects, 2^64 - 1 for the root block and the
    /// space maps.
    pub dataset: U64,
    /// 0 for the tree of dnodes, else 1 + the number of an object.
    pub object: U64,
    /// The first data block.
    pub block: U64,
    /// Number of data blocks; beyond the end of the object if the damage reaches to its end.
    pub blocks: U64,
    /// The txg that was open when it was found first.
    pub first_txg: U64,
    /// The txg that was open when it was found last.
    pub last_txg: U64,
    /// The scrub that found it last, by its `until_txg`; 0 if none did.
    pub scrub_txg: U64,
    /// How often it was found.
    pub count: U32,
    /// A [`DamageKind`].
    pub kind: u8,
    /// Zeros.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<DamagePhys>() == 64);
const _: () =
    assert!(size_of::<ErrorLogPhys>() + ERROR_LOG_MAX * size_of::<DamagePhys>() == 128 << 10);
