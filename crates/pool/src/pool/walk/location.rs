//! Places in a pool: where a walk goes on, and where a block is.

use forebay_base::sync::Arc;

use crate::error_log::{DamagedRange, TO_THE_END};

/// [`Bookmark::dataset`] of the root block and the space maps.
pub(in super::super) const SPACE_MAPS: u64 = u64::MAX;
/// [`Bookmark::height`] above every block of a tree.
pub(super) const TOP: u8 = u8::MAX;

/// Where a walk goes on. All earlier blocks were visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bookmark {
    /// Number of the dataset; 0 for the pool's own objects.
    pub(crate) dataset: u64,
    /// 0 in the tree of dnodes, else 1 + the number of an object.
    pub(crate) object: u64,
    /// The first data block that the next block to visit leads to. In the space maps, the address
    /// of the next block; 0 before the root block, 1 before the bases are loaded, 2 before the
    /// first block.
    pub(crate) block: u64,
    /// The highest block to visit among those that lead to `block` first: 1 + its level. 0: the
    /// block of dnodes was visited, its objects were not.
    pub(crate) height: u8,
}

impl Bookmark {
    /// The beginning.
    pub(crate) const START: Self = Self { dataset: 0, object: 0, block: 0, height: TOP };

    pub(super) const fn dataset(dataset: u64) -> Self {
        Self { dataset, ..Self::START }
    }
}

/// Location of a block in the pool.
#[derive(Clone, Debug)]
pub(in super::super) struct BlockLocation {
    /// As in [`Bookmark`].
    pub(in super::super) dataset: u64,
    /// Name of the dataset; empty for the pool's own objects.
    pub(in super::super) name: Arc<str>,
    /// As in [`Bookmark`].
    pub(in super::super) object: u64,
    /// First data block that this block leads to.
    pub(in super::super) block: u64,
}

impl BlockLocation {
    /// The object, as text.
    pub(in super::super) fn object_name(&self) -> String {
        match (self.dataset, self.object.checked_sub(1)) {
            (SPACE_MAPS, _) => "the root block or the space maps".to_owned(),
            (0, None) => "the pool's own dnodes".to_owned(),
            (0, Some(object)) => format!("the pool's own object {object}"),
            (_, None) => format!("dataset {}, dnodes", self.name),
            (_, Some(object)) => format!("dataset {}, object {object}", self.name),
        }
    }

    /// The blocks from here on, for damage that has no known end.
    pub(in super::super) fn to_the_end(&self) -> DamagedRange {
        let Self { dataset, object, block, .. } = *self;
        DamagedRange { dataset, object, block, blocks: TO_THE_END }
    }
}

impl std::fmt::Display for BlockLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.dataset {
            SPACE_MAPS => f.write_str(&self.object_name()),
            _ => write!(f, "{}, block {}", self.object_name(), self.block),
        }
    }
}
