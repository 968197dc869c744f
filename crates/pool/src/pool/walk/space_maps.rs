//! The end of a walk: the root block, and the blocks of the space maps.
//!
//! The list of these blocks is in memory once all metaslabs were loaded. A base is read without a
//! lock and handed over under `space`, so that no commit waits for the read.

use forebay_base::sync::MutexGuard;
use hashbrown::HashSet;

use crate::error::{Error, Result};
use crate::error_log::TO_THE_END;
use crate::format::{BlockPtrPhys, DvaPhys};
use crate::space::{Space, SpaceRead};
use crate::store::Store;

use super::super::PoolInner;
use super::ahead::LEVEL_BLOCKS;
use super::visit::is_damage;
use super::{SPACE_MAPS, Step, Walk, WalkedTree};

/// [`Bookmark::block`](super::Bookmark::block) before the root block.
const AT_ROOT: u64 = 0;
/// Before the bases of the metaslabs are loaded and those that are damaged are reported.
const AT_BASES: u64 = 1;
/// Before the first block of the space maps. Labels precede all blocks on a device, so the address
/// of each block is greater.
const AT_BLOCKS: u64 = 2;

/// Reads blocks of the space maps without being a reader.
struct UnprotectedReader<'a>(&'a Store);

impl SpaceRead for UnprotectedReader<'_> {
    fn read(&self, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
        self.0.with_content(pointer, |content| Ok(content.to_vec()))
    }
}

impl Walk<'_> {
    /// Visits what is left of the root block and the space maps.
    pub(super) fn space_maps(&mut self) -> Step {
        let pool = self.pool;
        let of = WalkedTree { store: &pool.store, location: self.location(SPACE_MAPS, 0, 0) };
        if self.at.block == AT_ROOT {
            let root = *pool.root.lock();
            self.begin_block()?;
            self.visit(&of, &root, 0, false)?;
            self.at.block = AT_BASES;
        }
        // Every slice that comes here loads what is left. A damaged base is left each time, and
        // reported once.
        let damaged = pool.load_space_maps()?;
        if self.at.block == AT_BASES {
            for error in damaged {
                self.damaged(&of.location, error)?;
            }
            self.at.block = AT_BLOCKS;
        }
        let mut own = Vec::new();
        pool.lock_space_maps().known_blocks(|ptr| own.push(*ptr));
        own.retain(|ptr| ptr.birth_txg.get() <= self.until);
        own.sort_unstable_by_key(address);
        own.retain(|ptr| address(ptr) >= self.at.block);
        for (index, ptr) in own.iter().enumerate() {
            if index.is_multiple_of(LEVEL_BLOCKS)
                && let Some(ahead) = &self.ahead
            {
                let next = &own[index..own.len().min(index + LEVEL_BLOCKS)];
                next.iter().for_each(|ptr| ahead.read(of.store, ptr, false));
            }
            self.at.block = address(ptr);
            self.begin_block()?;
            self.visit(&of, ptr, self.at.block, false)?;
            self.at.block = self.at.block.saturating_add(1);
        }
        Ok(())
    }
}

fn address(ptr: &BlockPtrPhys) -> u64 {
    let [first, _]: [DvaPhys; 2] = ptr.copies;
    first.raw()
}

impl PoolInner {
    /// Loads all metaslabs, or those whose blocks are not known yet. Returns the damage that it
    /// finds.
    ///
    /// # Errors
    /// Errors that are no damage, and the outage of a device.
    fn load_space_maps(&self) -> Step<Vec<Error>> {
        let mut damage = Vec::new();
        let mut from = 0;
        loop {
            let Some(base) = self.lock_space_maps().base_to_walk(from) else { return Ok(damage) };
            from = base.metaslab() + 1;
            let read = || match base.read(&UnprotectedReader(&self.store)) {
                Err(error) if !is_damage(&error) => Err(error.into()),
                read => Ok(read),
            };
            let loaded = self.read_surely(read, |read| read.as_ref().err())?;
            let loaded = loaded.and_then(|runs| {
                let mut space = self.lock_space_maps();
                space.put_base(&base, runs)?;
                space.unload_excess()
            });
            match loaded {
                Ok(()) => {}
                Err(error) if !is_damage(&error) => return Err(error.into()),
                // A base that was rewritten meanwhile is loaded.
                Err(_) if !self.lock_space_maps().is_unloaded(&base) => {}
                Err(error) => damage.push(error),
            }
        }
    }

    /// Drops the damage of the former root block, and of blocks of the space maps that the newest
    /// txg has freed, from the error log.
    pub(in super::super) fn forget_freed_own(&self, space: &Space) {
        let errors = self.store.errors();
        if !errors.has_entries_of(SPACE_MAPS) {
            return;
        }
        let mut own = HashSet::new();
        space.known_blocks(|ptr| {
            own.insert(address(ptr));
        });
        // Bases that are not loaded are not known.
        let knows_all = space.knows_all_blocks();
        errors.retain_of(SPACE_MAPS, |range| match range.block {
            AT_ROOT => range.blocks == TO_THE_END,
            block => block < AT_BLOCKS || !knows_all || own.contains(&block),
        });
    }

    /// Whether a pointer to the root block, or to a block of the space maps, is still in use.
    pub(super) fn is_current_own(&self, ptr: &BlockPtrPhys) -> bool {
        let mut found = *self.root.lock() == *ptr;
        self.lock_space_maps().known_blocks(|own| found |= own == ptr);
        found
    }

    /// Locks the space maps, to read them in memory.
    pub(in super::super) fn lock_space_maps(&self) -> LockedSpace<'_> {
        let space = self.space.lock();
        self.scrub.set_holds_space(true);
        LockedSpace { pool: self, space }
    }
}

/// The space maps, locked by a scrub or a check.
pub(in super::super) struct LockedSpace<'a> {
    pool: &'a PoolInner,
    space: MutexGuard<'a, Space>,
}

impl std::ops::Deref for LockedSpace<'_> {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.space
    }
}

impl std::ops::DerefMut for LockedSpace<'_> {
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.space
    }
}

impl Drop for LockedSpace<'_> {
    fn drop(&mut self) {
        self.pool.scrub.set_holds_space(false);
    }
}
