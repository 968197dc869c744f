//! Class, hint, label and cause: what a caller says about a block, and why a block leaves.

/// Classes of blocks, which compete for capacity as groups. The order is that of counter labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Blocks that refer to others: directories, indirect blocks, indexes.
    Metadata = 0,
    /// All other blocks.
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

/// The caller's knowledge of a block's future use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hint {
    /// None.
    #[default]
    Normal,
    /// Probably not requested again, as in a scan. Such a block is evicted before all others,
    /// unless it is requested again after all.
    Once,
    /// A new version, under a new key, of a block that was used before. It begins as a block with
    /// several uses. For callers that write blocks to new places.
    Again,
}

/// Class, hint and label of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Class of the block.
    pub class: Class,
    /// Expected use of the block.
    pub hint: Hint,
    /// What the block belongs to, such as a file: a number of the program's choice. Only
    /// [`Cache::explain`](crate::Cache::explain) uses it.
    pub label: u64,
}

impl Attributes {
    /// A normal data block.
    pub const DATA: Self = Self { class: Class::Data, hint: Hint::Normal, label: 0 };
    /// A normal metadata block.
    pub const METADATA: Self = Self { class: Class::Metadata, ..Self::DATA };

    /// The same with [`Hint::Once`].
    pub const fn once(self) -> Self {
        Self { hint: Hint::Once, ..self }
    }

    /// The same with [`Hint::Again`].
    pub const fn again(self) -> Self {
        Self { hint: Hint::Again, ..self }
    }

    /// The same with a label.
    pub const fn labelled(self, label: u64) -> Self {
        Self { label, ..self }
    }
}

/// Why a block left the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Evicted for capacity.
    Capacity = 0,
    /// Removed by [`remove`](crate::Cache::remove) or [`remove_if`](crate::Cache::remove_if).
    Removed = 1,
    /// Replaced by an insert of the same key.
    Replaced = 2,
    /// Removed by [`clear`](crate::Cache::clear) or [`retain`](crate::Cache::retain).
    Cleared = 3,
    /// Its owner was closed.
    OwnerClosed = 4,
    /// Handed to its caller uncached: no capacity, too heavy, or not cached for its owner.
    Uncached = 5,
    /// The cache was closed or dropped.
    Closed = 6,
    /// Its time was over, see [`KeyedCache`](crate::KeyedCache).
    Expired = 7,
}

impl Cause {
    /// All causes, each at the index of its number: `Cause::ALL[cause as usize] == cause`.
    pub const ALL: [Self; 8] = [
        Self::Capacity,
        Self::Removed,
        Self::Replaced,
        Self::Cleared,
        Self::OwnerClosed,
        Self::Uncached,
        Self::Closed,
        Self::Expired,
    ];

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self::ALL[(bits & 7) as usize]
    }
}
