//! The state of a scrub, in the root block.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// State of the newest scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum ScrubState {
    /// There was none.
    #[default]
    None = 0,
    /// It is running, or was interrupted by an export or a crash.
    Running = 1,
    /// It was paused, and can be resumed.
    Paused = 2,
    /// It reached the end.
    Finished = 3,
    /// It was stopped.
    Stopped = 4,
}

impl ScrubState {
    /// The state as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Running => "interrupted",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
        }
    }

    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::None, Self::Running, Self::Paused, Self::Finished, Self::Stopped];
        all.into_iter().find(|state| *state as u8 == raw)
    }
}

/// The newest scrub. All zeros if there was none.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScrubPhys {
    /// A [`ScrubState`].
    pub state: u8,
    /// Bookmark: the highest block to visit, 1 + its level; 255 for any.
    pub height: u8,
    /// Zeros.
    pub reserved: [u8; 6],
    /// Blocks of later txgs are not scrubbed.
    pub until_txg: U64,
    /// When it started, in seconds since 1970.
    pub started: U64,
    /// When it was finished or stopped, in seconds since 1970; 0 before.
    pub ended: U64,
    /// Bookmark: number of the dataset; 0 for the pool's own objects, 2^64 - 1 for the root block
    /// and the space maps.
    pub dataset: U64,
    /// Bookmark: 0 for the tree of dnodes, else 1 + the number of an object.
    pub object: U64,
    /// Bookmark: number of the first data block that the next block leads to, or an address in the
    /// space maps.
    pub block: U64,
    /// Blocks read, before the bookmark.
    pub blocks: U64,
    /// Bytes read, all copies.
    pub bytes: U64,
    /// Allocated bytes of the pool when it started.
    pub total_bytes: U64,
    /// Copies rewritten.
    pub healed: U64,
    /// Blocks without a good copy, and invalid objects.
    pub lost: U64,
    /// Maximum rate in bytes per second; 0 for the pool's default.
    pub rate_bytes: U64,
    /// Time that it has been running, in nanoseconds.
    pub active_ns: U64,
    /// Seconds from the end of a scrub to the start of the next one by itself; 0 for never.
    pub every_s: U64,
    /// Zeros.
    pub reserved_1: [u8; 8],
}

const _: () = assert!(size_of::<ScrubPhys>() == 128);
