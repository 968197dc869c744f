//! Walks all blocks of a pool as of the newest durable txg.

use crate::dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys, DNODES_PER_BLOCK, DnodePhys};
use crate::object::DataFields;
use crate::object::tree::{self, Tree};
use crate::objset::{Objset, dnode_at};
use crate::space::Space;
use crate::store::Store;
use forebay_base::sync::Arc;
use forebay_cache::Attributes;

use super::PoolInner;

/// Location of a block in the pool.
#[derive(Clone, Debug)]
pub(super) struct BlockLocation {
    /// Empty for the pool's own objects.
    pub(super) dataset: Arc<str>,
    /// `None` for dnode blocks and their indirect blocks.
    pub(super) object: Option<u64>,
    /// First data block of the object that this block leads to.
    pub(super) block: u64,
}

impl std::fmt::Display for BlockLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&*self.dataset, self.object) {
            ("", None) => write!(f, "the pool's own dnodes, block {}", self.block),
            ("", Some(object)) => write!(f, "the pool's own object {object}, block {}", self.block),
            (dataset, None) => write!(f, "dataset {dataset}, dnodes, block {}", self.block),
            (dataset, Some(object)) => {
                write!(f, "dataset {dataset}, object {object}, block {}", self.block)
            }
        }
    }
}

/// Reason why a walk ended early.
pub(super) enum WalkEnd {
    /// A visitor interrupted it.
    Interrupted,
    /// An error stopped it.
    Failed(Error),
}

impl From<Error> for WalkEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether a walk reached the end.
///
/// # Errors
/// The error that stopped the walk.
pub(super) fn is_complete(walked: Walking) -> Result<bool> {
    match walked {
        Ok(()) => Ok(true),
        Err(WalkEnd::Interrupted) => Ok(false),
        Err(WalkEnd::Failed(error)) => Err(error),
    }
}

/// Result of a walk and of its visitors.
pub(super) type Walking = Result<(), WalkEnd>;

/// Receives the blocks of a walk.
pub(super) trait Visitor {
    /// Called for each block, before the blocks that it leads to.
    fn block(&mut self, store: &Store, ptr: &BlockPtrPhys, place: &BlockLocation) -> Walking;
    /// Called for each unreadable or invalid block or object.
    fn damaged(&mut self, place: &BlockLocation, error: Error);
}

impl PoolInner {
    /// Walks every block: the root block, the pool's own objects, all datasets, and the space maps.
    pub(super) fn walk_all(&self, space: &mut Space, visitor: &mut dyn Visitor) -> Walking {
        let place = BlockLocation { dataset: Arc::from(""), object: None, block: 0 };
        let root = *self.root.lock();
        visitor.block(&self.store, &root, &place)?;
        self.walk(visitor)?;
        let mut own = Vec::new();
        space.own_blocks(|ptr| own.push(*ptr))?;
        own.iter().try_for_each(|ptr| visitor.block(&self.store, ptr, &place))
    }

    /// Walks the pool's own objects and all datasets.
    fn walk(&self, visitor: &mut dyn Visitor) -> Walking {
        walk_objset(&self.mos, &Arc::from(""), visitor)?;
        for name in self.dataset_names()? {
            let place = BlockLocation { dataset: Arc::from(name.as_str()), object: None, block: 0 };
            match self.dataset(&name) {
                Ok(dataset) => walk_dataset(&dataset, visitor)?,
                // The dataset is not damaged; the cache has no free owner id.
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error.into()),
                Err(error) => visitor.damaged(&place, error),
            }
        }
        Ok(())
    }
}

fn walk_dataset(dataset: &dataset::DatasetInner, visitor: &mut dyn Visitor) -> Walking {
    walk_objset(&dataset.objset, &Arc::from(dataset.name.as_str()), visitor)
}

fn walk_objset(objset: &Objset, name: &Arc<str>, visitor: &mut dyn Visitor) -> Walking {
    let tree = objset.tree();
    let mut dnode_blocks = Vec::new();
    walk_tree(&objset.store, &tree, (name, None), visitor, &mut |ptr, block| {
        dnode_blocks.push((*ptr, block));
    })?;
    for (ptr, block) in dnode_blocks {
        let place = BlockLocation { dataset: Arc::clone(name), object: None, block };
        let content = match objset.store.read(&ptr, Attributes::METADATA.once()) {
            Ok(content) => content,
            Err(error) => {
                visitor.damaged(&place, error);
                continue;
            }
        };
        for index in 0..DNODES_PER_BLOCK {
            let dnode = dnode_at(&content, index).unwrap_or(DnodePhys::FREE);
            if dnode.kind == 0 {
                continue;
            }
            let number = block * DNODES_PER_BLOCK as u64 + index as u64;
            match DataFields::of(&dnode) {
                Ok(data) => {
                    walk_tree(
                        &objset.store,
                        &data.tree,
                        (name, Some(number)),
                        visitor,
                        &mut |_, _| {},
                    )?;
                }
                Err(error) => {
                    let place =
                        BlockLocation { dataset: Arc::clone(name), object: Some(number), block: 0 };
                    visitor.damaged(&place, error);
                }
            }
        }
    }
    Ok(())
}

fn walk_tree(
    store: &Store,
    tree: &Tree,
    (name, object): (&Arc<str>, Option<u64>),
    visitor: &mut dyn Visitor,
    lowest: &mut dyn FnMut(&BlockPtrPhys, u64),
) -> Walking {
    let place = |block| BlockLocation { dataset: Arc::clone(name), object, block };
    // One borrow of the visitor serves both callbacks.
    let visitor = std::cell::RefCell::new(visitor);
    let mut visit = |ptr: &BlockPtrPhys, block: u64| {
        if ptr.level == 0 && ptr.block_kind() == Some(BlockKind::Dnode) {
            lowest(ptr, block);
        }
        visitor.borrow_mut().block(store, ptr, &place(block))
    };
    let mut damaged = |_: &BlockPtrPhys, block: u64, error| {
        visitor.borrow_mut().damaged(&place(block), error);
    };
    tree::walk(store, &tree.root, 0, &mut visit, &mut damaged)
}
