//! Finds objsets, objects and pointers in the newest trees, without locks and without being a
//! reader. A block on the path may be freed meanwhile; it then fails its checksum.

use crate::error::Result;
use crate::format::{BlockPtrPhys, DNODES_PER_BLOCK, DnodePhys, ObjectKind};
use crate::object::DataFields;
use crate::object::tree::{self, Tree};
use crate::objset::{dnode_at, dnode_tree};
use crate::store::Store;

use super::super::PoolInner;
use super::visit::is_damage;
use super::{BlockLocation, Parents, SPACE_MAPS, SliceEnd, Step, dataset_phys};

/// How often a lookup starts over with the newest tree, if a block on the path cannot be read.
const LOOKUPS_MAX: usize = 3;

/// Whether a pointer of a walk is still part of the newest tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Currency {
    /// A lookup has found it.
    Current,
    /// A lookup has found something else, or nothing: the block was freed.
    Freed,
    /// A block on the path cannot be read.
    Unknown,
}

impl Currency {
    fn of(is_current: bool) -> Self {
        if is_current { Self::Current } else { Self::Freed }
    }
}

/// An objset as of its newest synced txg.
pub(super) struct Trees {
    pub(super) store: Store,
    pub(super) dnodes: Tree,
}

impl PoolInner {
    /// The pool's own objects.
    pub(super) fn own_trees(&self) -> Trees {
        Trees { store: self.mos.io.store.clone(), dnodes: self.mos.tree() }
    }

    /// The objset of a dataset. `attributes` are those of its object, in case the dataset is not
    /// open. Does not open it.
    ///
    /// # Errors
    /// If the attributes are invalid.
    pub(super) fn trees_of(&self, number: u64, attributes: &[u8]) -> Result<Trees> {
        if let Some(open) = self.open_trees(number) {
            return Ok(open);
        }
        let phys = dataset_phys(attributes)?;
        // Nothing of a closed dataset is being written, so any owner of keys will do.
        Ok(Trees { store: self.store.clone(), dnodes: dnode_tree(&phys.objset)? })
    }

    fn open_trees(&self, number: u64) -> Option<Trees> {
        let datasets = self.datasets.lock();
        let dataset = datasets.values().find(|dataset| dataset.number == number)?;
        let objset = &dataset.objset;
        Some(Trees { store: objset.io.store.clone(), dnodes: objset.tree() })
    }

    /// The first dataset whose number is at least `from`, and the dnode of its object. Skips
    /// damaged blocks of dnodes, which the walk of the pool's own objects reports.
    ///
    /// # Errors
    /// [`SliceEnd::Overtaken`], or an error that is no damage.
    pub(super) fn dataset_from(&self, from: u64) -> Step<Option<(u64, DnodePhys)>> {
        let trees = self.own_trees();
        self.dataset_beneath(&trees.store, &trees.dnodes.root, 0, from)
    }

    fn dataset_beneath(
        &self,
        store: &Store,
        ptr: &BlockPtrPhys,
        first: u64,
        from: u64,
    ) -> Step<Option<(u64, DnodePhys)>> {
        let end = first.saturating_add(tree::capacity(ptr.level.saturating_add(1)));
        if ptr.is_hole() || end <= from / DNODES_PER_BLOCK as u64 {
            return Ok(None);
        }
        let damaged = || {
            let location = BlockLocation { dataset: 0, name: "".into(), object: 0, block: first };
            self.check_not_freed(&location, ptr).map(|()| None)
        };
        let Ok(content) = self.read_content(store, ptr)? else { return damaged() };
        if ptr.level == 0 {
            return Ok(dataset_in(&content, first, from));
        }
        let Ok(children) = tree::children(ptr, &content) else { return damaged() };
        for (index, child) in children.iter().enumerate() {
            let first = first + index as u64 * tree::capacity(ptr.level);
            let found = self.dataset_beneath(store, child, first, from)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Whether a pointer of a walk is still part of the newest tree.
    ///
    /// # Errors
    /// Errors that are no damage, such as want of memory.
    pub(super) fn currency(
        &self,
        location: &BlockLocation,
        ptr: &BlockPtrPhys,
    ) -> Result<Currency> {
        if location.dataset == SPACE_MAPS {
            return Ok(Currency::of(self.is_current_own(ptr)));
        }
        for _ in 0..LOOKUPS_MAX {
            match self.lookup(location, ptr.level) {
                Ok(found) => return Ok(Currency::of(found == *ptr)),
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Currency::Unknown)
    }

    /// Tells a damaged block from one that was freed while it was read. If a block on the path is
    /// damaged too, the block counts as damaged.
    ///
    /// # Errors
    /// [`SliceEnd::Overtaken`] if the block was freed, or an error that is no damage.
    pub(super) fn check_not_freed(&self, location: &BlockLocation, ptr: &BlockPtrPhys) -> Step {
        match self.currency(location, ptr)? {
            Currency::Current | Currency::Unknown => Ok(()),
            Currency::Freed => Err(SliceEnd::Overtaken),
        }
    }

    /// The newest pointer at a location; null if there is none.
    fn lookup(&self, location: &BlockLocation, level: u8) -> Result<BlockPtrPhys> {
        let parents = &self.scrub.parents;
        let trees = match location.dataset {
            0 => self.own_trees(),
            number => match self.open_trees(number) {
                Some(open) => open,
                None => {
                    let dnode = dnode_of(&self.own_trees(), number, parents)?;
                    if dnode.object_kind() != Some(ObjectKind::Dataset) {
                        return Ok(BlockPtrPhys::HOLE);
                    }
                    self.trees_of(number, dnode.attributes())?
                }
            },
        };
        let tree = match location.object.checked_sub(1) {
            None => trees.dnodes,
            Some(number) => DataFields::of(&dnode_of(&trees, number, parents)?)?.tree,
        };
        descend(&trees.store, &tree, (location.block, level), parents)
    }
}

/// The first dataset in a block of dnodes whose number is at least `from`.
fn dataset_in(content: &[u8], block: u64, from: u64) -> Option<(u64, DnodePhys)> {
    let first = block * DNODES_PER_BLOCK as u64;
    let dnodes = (0..DNODES_PER_BLOCK)
        .filter_map(|index| Some((first + index as u64, dnode_at(content, index)?)));
    let mut datasets = dnodes.filter(|(number, dnode)| {
        *number >= from && dnode.object_kind() == Some(ObjectKind::Dataset)
    });
    datasets.next()
}

/// The stored dnode of an object; a free one if there is none.
fn dnode_of(trees: &Trees, number: u64, parents: &Parents) -> Result<DnodePhys> {
    let (block, index) = (number / DNODES_PER_BLOCK as u64, number % DNODES_PER_BLOCK as u64);
    let ptr = descend(&trees.store, &trees.dnodes, (block, 0), parents)?;
    if ptr.is_hole() {
        return Ok(DnodePhys::FREE);
    }
    let found = |content: &[u8]| Ok(dnode_at(content, index as usize));
    let dnode = parents.with_content(&trees.store, &ptr, found)?;
    Ok(dnode.unwrap_or(DnodePhys::FREE))
}

/// As [`tree::descend`], but heals nothing, and keeps the blocks of the path by itself.
fn descend(
    store: &Store,
    tree: &Tree,
    (block, down_to): (u64, u8),
    parents: &Parents,
) -> Result<BlockPtrPhys> {
    if block >= tree::capacity(tree.levels) {
        return Ok(BlockPtrPhys::HOLE);
    }
    let mut ptr = tree.root;
    while !ptr.is_hole() && ptr.level > down_to {
        let index = (block / tree::capacity(ptr.level)) as usize % tree::POINTERS;
        let child = |content: &[u8]| tree::child_at(&ptr, content, index);
        ptr = parents.with_content(store, &ptr, child)?;
    }
    // A tree that became lower has no block at this level.
    Ok(if ptr.level == down_to { ptr } else { BlockPtrPhys::HOLE })
}
