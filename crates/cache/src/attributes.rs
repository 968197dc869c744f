//! What a caller says of a block when it enters the cache.

/// Kinds of block that compete for room as groups. The order is that of counter labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Blocks that lead to others: directories, indirect blocks, indexes.
    Metadata = 0,
    /// Everything else.
    #[default]
    Data = 1,
}

impl Class {
    /// All classes, in the order of counter labels.
    pub const ALL: [Self; 2] = [Self::Metadata, Self::Data];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Metadata => Self::Data,
            Self::Data => Self::Metadata,
        }
    }
}

/// What the caller knows of a block's future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hint {
    /// Nothing.
    #[default]
    Normal,
    /// It will probably not be asked for again (a scan). Such a block leaves before any other,
    /// so that it never pushes one out, unless it is asked for again after all.
    Once,
    /// It is a new version, under a new key, of a block that was used before: it enters as a block that was asked for
    /// more than once. Who writes blocks to new places tells by this that what left under the old key came back.
    Again,
}

/// How a block is to be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its class.
    pub class: Class,
    /// What is known of its future.
    pub hint: Hint,
}

impl Attributes {
    /// A normal data block.
    pub const DATA: Self = Self { class: Class::Data, hint: Hint::Normal };
    /// A normal metadata block.
    pub const METADATA: Self = Self { class: Class::Metadata, hint: Hint::Normal };

    /// The same, used once.
    pub const fn once(self) -> Self {
        Self { hint: Hint::Once, ..self }
    }

    /// The same, used before.
    pub const fn again(self) -> Self {
        Self { hint: Hint::Again, ..self }
    }
}

/// Why a block left the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// To make room.
    Capacity = 0,
    /// [`remove`](crate::Cache::remove) named it.
    Removed = 1,
    /// An insert of the same key took its place.
    Replaced = 2,
    /// A flush.
    Flushed = 3,
    /// Its owner was closed.
    OwnerClosed = 4,
    /// It was handed to its caller without being cached: no room, too heavy, or its owner's wish.
    Uncached = 5,
    /// The cache was closed or dropped.
    Closed = 6,
}

impl Cause {
    pub(crate) fn from_bits(bits: u64) -> Self {
        match bits & 7 {
            0 => Self::Capacity,
            1 => Self::Removed,
            2 => Self::Replaced,
            3 => Self::Flushed,
            4 => Self::OwnerClosed,
            5 => Self::Uncached,
            _ => Self::Closed,
        }
    }
}
