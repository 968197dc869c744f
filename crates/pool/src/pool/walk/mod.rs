//! Walks all blocks of a pool that are older than the walk, beside commits.
//!
//! The walk holds no lock and is no reader. It goes in slices: a slice takes the newest trees and
//! goes on at the [`Bookmark`]. So it follows no pointers that are much older than the newest txg.
//!
//! # Order
//!
//! The pool's own objects, the datasets by number, then the root block and the space maps. Within
//! an objset: each block of dnodes, then the objects in it, by number. Within a tree: parents
//! before children. A slice may end before any block.
//!
//! # Invariants
//!
//! - Blocks that were born after [`Walk::until`] are not visited, but the walk descends through
//!   them: they may lead to older blocks. A block is never moved within its tree, so each older
//!   block that lives during the whole walk is visited exactly once.
//! - A block counts as damaged only if it is still part of the newest tree after the failed read
//!   ([`find`]). If not, it was freed and its space was reused; the slice ends, and the next one
//!   takes the newest tree.
//! - At its end, the trees that it has used are durable, or the pool has failed: space maps, locked
//!   during a commit, come last. [Later](PoolInner::visit_later) visits may use newer trees.
//! - Only [`PoolInner::heal`] writes, protected by [`Heals`](crate::store::heals::Heals).
//!
//! Locking: `space` and `datasets` for a look; `space` once for each metaslab, never during I/O.
//! `pool-walk-parents` ([`Parents`]) for a look.

mod ahead;
mod copies;
mod find;
mod location;
mod parents;
mod space_maps;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod visit;

use forebay_base::sync::Arc;
use hashbrown::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::error_log::DamagedRange;
use crate::format::{
    BlockKind, BlockPtrPhys, DNODE_BYTES, DNODES_PER_BLOCK, DamageKind, DatasetPhys, DnodePhys, Dva,
};
use crate::object::DataFields;
use crate::object::tree;
use crate::objset::dnode_at;
use crate::store::Store;
use zerocopy::FromBytes;

use super::PoolInner;
use ahead::{Ahead, LEVEL_BLOCKS};
use find::Trees;
use location::TOP;
use visit::{Visited, is_damage};

pub(crate) use location::Bookmark;
pub(super) use location::{BlockLocation, SPACE_MAPS};
pub(super) use parents::Parents;

/// Slices in a row that may end for want of memory without progress.
const STARVED_MAX: u32 = 1000;

/// A visited block: all its copies were read.
pub(super) struct VisitedBlock<'a> {
    pub(super) store: &'a Store,
    pub(super) ptr: &'a BlockPtrPhys,
    pub(super) location: &'a BlockLocation,
    /// The ranges that it occupies, all copies and pieces.
    pub(super) extents: &'a [(Dva, u64)],
    /// Copies that cannot be read, with their errors.
    pub(super) bad: Vec<(usize, Error)>,
    /// Number of copies, on all devices in use.
    pub(super) copies: usize,
}

impl VisitedBlock<'_> {
    /// The blocks of the tree that cannot be reached without this one.
    pub(super) fn range(&self) -> DamagedRange {
        let blocks = tree::capacity(self.ptr.level.saturating_add(1));
        DamagedRange { blocks, ..self.location.to_the_end() }
    }

    /// The damage of a block with bad copies.
    pub(super) fn damage(&self) -> DamageKind {
        let device = |(_, error): &(usize, Error)| error.kind() == ErrorKind::Device;
        match self.bad.len() < self.copies {
            true => DamageKind::BadCopy,
            false if self.bad.iter().all(device) => DamageKind::Unreadable,
            false => DamageKind::NoGoodCopy,
        }
    }
}

/// A block that a walk has met.
#[derive(Clone, Copy)]
pub(super) struct PostponedBlock<'a> {
    pub(super) store: &'a Store,
    pub(super) ptr: &'a BlockPtrPhys,
    pub(super) location: &'a BlockLocation,
}

/// Why a slice ended early.
#[derive(Debug)]
pub(super) enum SliceEnd {
    /// It has visited as many blocks as a slice may.
    Full,
    /// The tree has changed under it.
    Overtaken,
    /// The visitor interrupted the walk.
    Interrupted,
    /// An error stopped the walk. The slice can be repeated after want of memory.
    Failed(Error),
    /// As `Failed`, but a repeated slice would leave blocks out that the visitor has taken.
    Ended(Error),
}

impl From<Error> for SliceEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Result of a step of a walk.
pub(super) type Step<T = ()> = Result<T, SliceEnd>;

/// Receives the blocks of a walk.
pub(super) trait Visitor {
    /// Called before each block. The blocks before `at` were visited. May wait.
    ///
    /// # Errors
    /// [`SliceEnd::Interrupted`] to end the walk, or an error.
    fn proceed(&mut self, at: &Bookmark) -> Step;
    /// Called for each block, before the blocks that it leads to.
    ///
    /// # Errors
    /// [`SliceEnd::Overtaken`] if the block was freed meanwhile, or an error that ends the walk.
    fn block(&mut self, block: VisitedBlock<'_>) -> Step;
    /// Subtrees whose newest block is older are left out.
    fn oldest(&self) -> u64 {
        0
    }
    /// Whether to read a copy of a block. A block of which no copy is read is not visited.
    fn wants(&self, _store: &Store, _ptr: &BlockPtrPhys, _copy: usize) -> bool {
        true
    }
    /// Whether the visitor takes a block that leads to no others, to visit it
    /// [later](PoolInner::visit_later). Then it counts as visited.
    ///
    /// # Errors
    /// [`SliceEnd::Interrupted`], or [`SliceEnd::Ended`] if blocks that it took were not visited.
    fn postpone(&mut self, _block: PostponedBlock<'_>) -> Step<bool> {
        Ok(false)
    }
    /// Called for each unreadable or invalid structure that is not a copy of a visited block.
    fn damaged(&mut self, location: &BlockLocation, error: Error);
}

/// A walk.
pub(super) struct Walk<'a> {
    pool: &'a PoolInner,
    /// Blocks of later txgs are not visited.
    until: u64,
    at: Bookmark,
    names: HashMap<u64, Arc<str>>,
    blocks_left: u32,
    ahead: Option<Ahead>,
    visitor: &'a mut dyn Visitor,
}

/// A tree in an objset.
struct WalkedTree<'a> {
    store: &'a Store,
    location: BlockLocation,
}

impl WalkedTree<'_> {
    fn location(&self, block: u64) -> BlockLocation {
        BlockLocation { block, ..self.location.clone() }
    }
}

impl<'a> Walk<'a> {
    /// A walk that goes on at `at` and visits blocks of txgs up to `until`, which is durable.
    pub(super) fn new(
        pool: &'a PoolInner,
        until: u64,
        at: Bookmark,
        visitor: &'a mut dyn Visitor,
    ) -> Self {
        // The names serve messages only; without them, those have numbers.
        let names = pool.names_by_number().unwrap_or_default();
        let names = names.into_iter().map(|(number, name)| (number, Arc::from(name))).collect();
        // Other devices answer soon, and have one head or a short queue.
        let ahead = pool.txgs.may_have_outages().then(|| {
            let cache = pool.store.cache();
            Ahead::new(cache.bound_bytes())
        });
        Self { pool, until, at, names, blocks_left: 0, ahead, visitor }
    }

    /// Walks to the end. Returns whether it was reached; if not, a visitor interrupted the walk.
    ///
    /// # Errors
    /// The error that stopped the walk.
    pub(super) fn run(&mut self) -> Result<bool> {
        let mut starved = 0;
        loop {
            self.blocks_left = self.pool.tunables.scrub().scrub_slice_blocks();
            let began = self.at;
            let ended = self.slice();
            self.ahead.iter().for_each(Ahead::forget);
            if self.at != began {
                starved = 0;
            }
            self.pool.scrub.count_slice(matches!(ended, Err(SliceEnd::Overtaken)));
            match ended {
                Ok(()) => return Ok(true),
                Err(SliceEnd::Interrupted) => return Ok(false),
                // The allocation has waited for memory.
                Err(SliceEnd::Failed(error))
                    if error.kind() == ErrorKind::NoMemory && starved < STARVED_MAX =>
                {
                    starved += 1;
                }
                Err(SliceEnd::Failed(error) | SliceEnd::Ended(error)) => return Err(error),
                Err(SliceEnd::Full | SliceEnd::Overtaken) => {}
            }
        }
    }

    fn slice(&mut self) -> Step {
        if self.at.dataset == 0 {
            let trees = self.pool.own_trees();
            self.objset(&trees, 0)?;
            self.at = Bookmark::dataset(1);
        }
        while self.at.dataset != SPACE_MAPS {
            let Some((number, phys)) = self.pool.dataset_from(self.at.dataset)? else {
                self.at = Bookmark { block: 0, ..Bookmark::dataset(SPACE_MAPS) };
                break;
            };
            if number != self.at.dataset {
                self.at = Bookmark::dataset(number);
            }
            match self.pool.trees_of(number, phys.attributes()) {
                Ok(trees) => self.objset(&trees, number)?,
                Err(error) => {
                    let location = self.location(number, 0, 0);
                    self.damaged(&location, error)?;
                }
            }
            self.at = Bookmark::dataset(number + 1);
        }
        self.space_maps()
    }

    fn location(&self, dataset: u64, object: u64, block: u64) -> BlockLocation {
        let number = || Arc::from(format!("number {dataset}"));
        let name = match dataset {
            0 | SPACE_MAPS => Arc::from(""),
            _ => self.names.get(&dataset).cloned().unwrap_or_else(number),
        };
        BlockLocation { dataset, name, object, block }
    }

    fn objset(&mut self, trees: &Trees, number: u64) -> Step {
        let of = WalkedTree { store: &trees.store, location: self.location(number, 0, 0) };
        self.subtree(&of, &trees.dnodes.root, 0)
    }

    /// Where the walk goes on in a tree: the block and the height of the [`Bookmark`].
    fn position_in(&self, object: u64) -> (u64, u8) {
        match (object, self.at.object.checked_sub(1)) {
            // Within an object: its block of dnodes was visited.
            (0, Some(number)) => (number / DNODES_PER_BLOCK as u64, 0),
            _ => (self.at.block, self.at.height),
        }
    }

    /// Walks what is left of the blocks beneath a pointer. `first` is the first of them.
    fn subtree(&mut self, of: &WalkedTree<'_>, ptr: &BlockPtrPhys, first: u64) -> Step {
        if ptr.is_hole() {
            return Ok(());
        }
        let object = of.location.object;
        let end = first.saturating_add(tree::capacity(ptr.level.saturating_add(1)));
        let (block, height) = self.position_in(object);
        if end <= block {
            return Ok(());
        }
        // A block is never older than those that it leads to.
        if ptr.birth_txg.get() < self.visitor.oldest() {
            self.at = Bookmark { object, block: end, height: TOP, ..self.at };
            return Ok(());
        }
        let is_next = first > block || (first == block && ptr.level < height);
        let is_old = ptr.birth_txg.get() <= self.until;
        let here =
            Bookmark { object, block: first, height: ptr.level.saturating_add(1), ..self.at };
        let is_leaf = ptr.level == 0;
        let leads_on = leads_on(ptr, object);
        if is_next {
            self.at = here;
        }
        let content = match (is_next && is_old, leads_on) {
            (true, _) => {
                self.begin_block()?;
                self.visit(of, ptr, first, leads_on)?
            }
            (false, true) => {
                match is_next {
                    true => self.begin_block()?,
                    false => self.visitor.proceed(&self.at)?,
                }
                self.descend(of, ptr, first)?
            }
            (false, false) => None,
        };
        if is_next {
            self.at = Bookmark { height: ptr.level, ..here };
        }
        if let Some(content) = content {
            match is_leaf {
                true if leads_on => self.objects(of, &content, first)?,
                true => {}
                false => self.children(of, ptr, &content, first)?,
            }
        }
        self.at = Bookmark { object, block: end, height: TOP, ..self.at };
        Ok(())
    }

    fn children(
        &mut self,
        of: &WalkedTree<'_>,
        ptr: &BlockPtrPhys,
        content: &[u8],
        first: u64,
    ) -> Step {
        match tree::children(ptr, content) {
            Ok(children) => {
                let starts = |index: usize| first + index as u64 * tree::capacity(ptr.level);
                let mut ahead = 0;
                for (index, child) in children.iter().enumerate() {
                    while ahead < children.len().min(index + LEVEL_BLOCKS) {
                        self.read_ahead(of, &children[ahead], starts(ahead));
                        ahead += 1;
                    }
                    self.subtree(of, child, starts(index))?;
                }
            }
            Err(error) => self.damaged(&of.location(first), error)?,
        }
        Ok(())
    }

    /// Reads a block ahead that the walk will visit soon.
    fn read_ahead(&self, of: &WalkedTree<'_>, ptr: &BlockPtrPhys, first: u64) {
        let Some(ahead) = &self.ahead else { return };
        let object = of.location.object;
        let end = first.saturating_add(tree::capacity(ptr.level.saturating_add(1)));
        let birth = ptr.birth_txg.get();
        let is_visited = birth <= self.until && birth >= self.visitor.oldest();
        let from = match object {
            0 => self.position_in(0).0,
            _ if object == self.at.object => self.at.block,
            _ => 0,
        };
        if is_visited && !ptr.is_hole() && end > from {
            ahead.read(of.store, ptr, leads_on(ptr, object));
        }
    }

    /// Walks what is left of the objects in a block of dnodes.
    fn objects(&mut self, of: &WalkedTree<'_>, content: &[u8], block: u64) -> Step {
        let dataset = of.location.dataset;
        let (at, until) = (self.at.object, self.until);
        let dnodes = (0..content.len() / DNODE_BYTES).filter_map(|index| {
            let object = block * DNODES_PER_BLOCK as u64 + index as u64 + 1;
            let dnode = dnode_at(content, index).unwrap_or(DnodePhys::FREE);
            let is_young = dnode.created_txg.get() > until;
            (dnode.kind != 0 && !is_young && at <= object).then_some((object, dnode))
        });
        if self.ahead.is_some() {
            for (object, dnode) in dnodes.clone().filter(|(object, _)| *object > at) {
                let location = BlockLocation { object, ..of.location(0) };
                if let Ok(data) = DataFields::of(&dnode) {
                    self.read_ahead(&WalkedTree { store: of.store, location }, &data.tree.root, 0);
                }
            }
        }
        for (object, dnode) in dnodes {
            if self.at.object != object {
                self.at = Bookmark { dataset, object, block: 0, height: TOP };
            }
            let location = BlockLocation { object, ..of.location(0) };
            match DataFields::of(&dnode) {
                Ok(data) => {
                    let of = WalkedTree { store: of.store, location };
                    self.subtree(&of, &data.tree.root, 0)?;
                }
                Err(error) => self.damaged(&location, error)?,
            }
        }
        Ok(())
    }

    /// Reads all copies of a block and passes it to the visitor. Returns its content if wanted,
    /// unless it has no good copy.
    fn visit(
        &mut self,
        of: &WalkedTree<'_>,
        ptr: &BlockPtrPhys,
        first: u64,
        wants_content: bool,
    ) -> Step<Option<Vec<u8>>> {
        let location = of.location(first);
        let block = PostponedBlock { store: of.store, ptr, location: &location };
        if !wants_content && self.visitor.postpone(block)? {
            return Ok(None);
        }
        let ahead = self.ahead.as_ref().and_then(|ahead| ahead.take(of.store, ptr));
        match self.pool.visit(block, wants_content, ahead, self.visitor)? {
            Visited::NotTried if wants_content => self.descend(of, ptr, first),
            Visited::NotTried => Ok(None),
            Visited::Read(None) if wants_content => self.healed_content(of, ptr, &location),
            Visited::Read(content) => Ok(content),
        }
    }

    /// The content of a visited block that had no good copy. The visitor may have healed it: a
    /// gang, of which each copy had another bad piece.
    fn healed_content(
        &self,
        of: &WalkedTree<'_>,
        ptr: &BlockPtrPhys,
        location: &BlockLocation,
    ) -> Step<Option<Vec<u8>>> {
        match of.store.with_content(ptr, |content| Ok(content.to_vec())) {
            Ok(content) => Ok(Some(content)),
            // The visitor has reported it.
            Err(error) if is_damage(&error) => {
                self.pool.check_not_freed(location, ptr).map(|()| None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reports an unreadable or invalid structure.
    fn damaged(&mut self, location: &BlockLocation, error: Error) -> Step {
        self.pool.check_answers(&error)?;
        self.visitor.damaged(location, error);
        Ok(())
    }

    /// Ends the slice if it is full, or if the visitor wants it.
    fn begin_block(&mut self) -> Step {
        if self.blocks_left == 0 {
            return Err(SliceEnd::Full);
        }
        self.blocks_left -= 1;
        self.visitor.proceed(&self.at)
    }

    /// Returns the content of a block that leads to the bookmark and was visited, or is too young.
    /// `None` if it is damaged, which is reported.
    fn descend(
        &mut self,
        of: &WalkedTree<'_>,
        ptr: &BlockPtrPhys,
        first: u64,
    ) -> Step<Option<Vec<u8>>> {
        match self.pool.read_content(of.store, ptr)? {
            Ok(content) => Ok(Some(content)),
            Err(error) => {
                let location = of.location(first);
                self.pool.check_not_freed(&location, ptr)?;
                self.damaged(&location, error)?;
                Ok(None)
            }
        }
    }
}

/// Whether a block of an object, or of the tree of dnodes, leads to others.
fn leads_on(ptr: &BlockPtrPhys, object: u64) -> bool {
    ptr.level > 0 || (object == 0 && ptr.block_kind() == Some(BlockKind::Dnode))
}

/// The damage of a structure that is not a copy of a visited block.
pub(super) fn kind_of_invalid(error: &Error) -> DamageKind {
    match error.kind() {
        ErrorKind::Device => DamageKind::Unreadable,
        _ => DamageKind::Invalid,
    }
}

/// The attributes of a dataset's object.
fn dataset_phys(attributes: &[u8]) -> Result<DatasetPhys> {
    DatasetPhys::read_from_bytes(attributes).map_err(|_| {
        Error::new(ErrorKind::Corrupt, "the attributes of its object have the wrong length")
    })
}
