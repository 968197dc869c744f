//! Dirty dnodes: dnodes that open and syncing txgs have changed and that replace the stored ones.
//!
//! A dirty dnode holds the attribute fields of one dnode. Its data fields are meaningless. The flag
//! `reset` says that the object was created or destroyed in the txg, so the blocks of the stored
//! dnode belong to an older object.
//!
//! Dirty dnodes lie in buffers with the layout of a dnode block. Creating neighbouring objects
//! costs one lookup for all of them, and a block whose dnodes are all dirty is written without
//! reading it first.

use crossbeam_utils::CachePadded;
use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::{Arc, Mutex, MutexGuard};
use hashbrown::{HashMap, HashSet};
use zerocopy::FromBytes;

use crate::block_cache::BlockRef;
use crate::block_label::DNODE_BLOCKS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BlockKind, BlockPtrPhys, DNODE_BLOCK_BYTES, DNODE_BYTES, DNODES_PER_BLOCK, DnodePhys,
};
use crate::object::NodeOwner;
use crate::object::tree::{self, INDIRECT_BYTES};
use crate::tx::Tx;
use crate::wait::Wait;

use super::{Objset, SHARDS};

pub(super) struct DirtyDnodes {
    shards: [CachePadded<Mutex<DnodeShard>>; SHARDS],
}

/// Dirty dnodes of the blocks of a shard, by the low bit of the txg.
#[derive(Default)]
pub(super) struct DnodeShard {
    txgs: [DirtyTxg; 2],
}

#[derive(Default)]
struct DirtyTxg {
    /// 0 if the txg has no dirty dnodes.
    txg: u64,
    blocks: HashMap<u64, DirtyDnodeBlock>,
    /// Blocks that the txg was charged for, and indexes of the charged level-1 indirect blocks.
    charged: HashSet<u64>,
    parents: HashSet<u64>,
}

/// Dirty dnodes of one block.
pub(super) struct DirtyDnodeBlock {
    /// Bit n: dnode n is dirty.
    pub(super) changed: u32,
    /// Bit n: object n was created or destroyed.
    pub(super) reset: u32,
    /// Shared once the txg syncs.
    pub(super) dnodes: Arc<Buffer>,
}

/// Dirty dnodes of one block, for the sync.
pub(super) struct DirtyDnodeSnapshot {
    pub(super) block: u64,
    pub(super) changed: u32,
    pub(super) reset: u32,
    pub(super) dnodes: Option<Arc<Buffer>>,
}

/// The newest state of a dnode. The flag is `reset` of any of its dirty versions.
pub(super) enum NewestDnode {
    Dirty(Box<DnodePhys>, bool),
    Stored,
}

impl DirtyTxg {
    fn bytes(&self) -> u64 {
        self.blocks.values().map(|dirty| dirty.dnodes.footprint() as u64).sum()
    }
}

impl DnodeShard {
    /// The newest dirty version of a dnode, and whether this or the older version has `reset` set.
    fn newest(&self, block: u64, index: usize) -> Option<(DnodePhys, bool)> {
        let newer = usize::from(self.txgs[1].txg > self.txgs[0].txg);
        let of_bit = |slot: usize| {
            let dirty = self.txgs[slot].blocks.get(&block)?;
            let bit = 1u32 << index;
            let dnode = (dirty.changed & bit != 0).then(|| dnode_at(&dirty.dnodes, index))??;
            Some((dnode, dirty.reset & bit != 0))
        };
        match (of_bit(newer), of_bit(1 - newer)) {
            (Some((dnode, reset)), older) => {
                Some((dnode, reset || older.is_some_and(|(_, reset)| reset)))
            }
            (None, older) => older,
        }
    }
}

impl DirtyDnodes {
    pub(super) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("dnodes", DnodeShard::default()));
        Self { shards: std::array::from_fn(shard) }
    }

    fn shard(&self, block: u64) -> MutexGuard<'_, DnodeShard> {
        self.shards[block as usize % SHARDS].lock()
    }

    pub(super) fn newest(&self, number: u64) -> NewestDnode {
        let (block, index) = position_of(number);
        match self.shard(block).newest(block, index) {
            Some((dnode, reset)) => NewestDnode::Dirty(Box::new(dnode), reset),
            None => NewestDnode::Stored,
        }
    }

    /// Mask of the free dnodes of a block; `stored` has those that are not dirty.
    pub(super) fn free_mask(&self, block: u64, stored: &[u8]) -> u32 {
        let shard = self.shard(block);
        (0..DNODES_PER_BLOCK).fold(0, |mask, index| {
            let newest = shard.newest(block, index).map(|(dnode, _)| dnode);
            let free =
                newest.or_else(|| dnode_at(stored, index)).is_none_or(|dnode| dnode.kind == 0);
            mask | u32::from(free) << index
        })
    }

    /// All dirty dnodes of a txg, ascending. Readers find them until [`drop_txg`](Self::drop_txg).
    pub(super) fn of_txg(&self, txg: u64) -> Vec<DirtyDnodeSnapshot> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let slot = &shard.txgs[(txg & 1) as usize];
            if slot.txg != txg {
                continue;
            }
            all.extend(slot.blocks.iter().map(|(block, dirty)| DirtyDnodeSnapshot {
                block: *block,
                changed: dirty.changed,
                reset: dirty.reset,
                dnodes: Some(Arc::clone(&dirty.dnodes)),
            }));
        }
        all.sort_unstable_by_key(|dirty| dirty.block);
        all
    }

    /// Drops the dirty dnodes of a txg after its blocks were written. Returns the bytes of memory
    /// released.
    pub(super) fn drop_txg(&self, txg: u64) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            let slot = {
                let mut shard = shard.lock();
                let slot = &mut shard.txgs[(txg & 1) as usize];
                if slot.txg != txg {
                    continue;
                }
                std::mem::take(slot)
            };
            bytes += slot.bytes();
        }
        bytes
    }

    /// Bytes of memory that all dirty dnodes hold.
    pub(super) fn bytes(&self) -> u64 {
        let of_shard = |shard: &CachePadded<Mutex<DnodeShard>>| {
            shard.lock().txgs.iter().map(DirtyTxg::bytes).sum::<u64>()
        };
        self.shards.iter().map(of_shard).sum()
    }
}

impl Objset {
    /// Changes the attribute fields of a dnode in the txg of `tx`. `f` gets the newest fields, all
    /// zeros if the object is free, and the flag `reset` to set if it creates or destroys the
    /// object. Nothing fails after the call of `f`.
    pub(super) fn change_dnode<R>(
        &self,
        tx: &Tx,
        number: u64,
        f: impl FnOnce(&mut DnodePhys, &mut bool) -> R,
    ) -> Result<R> {
        let changed = self.change_dnode_if(tx, number, |_| true, f)?;
        Ok(changed.expect("the condition is always true"))
    }

    /// Like [`change_dnode`](Self::change_dnode), but returns `None` and changes nothing in the txg
    /// if `wanted` rejects the dnode.
    pub(super) fn change_dnode_if<R>(
        &self,
        tx: &Tx,
        number: u64,
        wanted: impl FnOnce(&DnodePhys) -> bool,
        f: impl FnOnce(&mut DnodePhys, &mut bool) -> R,
    ) -> Result<Option<R>> {
        let (block, index) = position_of(number);
        let bit = 1u32 << index;
        let mut stored: Option<(BlockPtrPhys, Option<BlockRef>)> = None;
        loop {
            let mut shard = self.dnodes.shard(block);
            // While this tree is the newest, every dirty dnode of the shard that it lacks is still
            // present.
            let tree = self.tree();
            let slot = (tx.txg() & 1) as usize;
            let own = shard.txgs[slot].blocks.get(&block);
            let is_own = own.is_some_and(|dirty| dirty.changed & bit != 0);
            let current = match shard.newest(block, index) {
                Some((dnode, _)) => dnode,
                None => match &stored {
                    Some((root, content)) if *root == tree.root => content
                        .as_ref()
                        .and_then(|content| dnode_at(content, index))
                        .unwrap_or(DnodePhys::FREE),
                    _ => {
                        drop(shard);
                        let _reading = self.io.store.readers().enter();
                        let tree = self.tree();
                        stored = Some((tree.root, self.block_to_change(&tree, block, tx.wait())?));
                        continue;
                    }
                },
            };
            if !wanted(&current) {
                return Ok(None);
            }
            let dirty = self.dirty_block_mut(&mut shard.txgs[slot], tx, block)?;
            let reset = dirty.reset & bit != 0 && is_own;
            let mut changed = (current, reset);
            let result = f(&mut changed.0, &mut changed.1);
            let buffer =
                Arc::get_mut(&mut dirty.dnodes).expect("an open txg's buffer has one owner");
            put_dnode(buffer, index, &changed.0);
            dirty.changed |= bit;
            dirty.reset = dirty.reset & !bit | u32::from(changed.1) << index;
            return Ok(Some(result));
        }
    }

    /// The stored block that a change needs; `None` if it is a hole. Reads the blocks above it in
    /// any case: the sync rewrites them, and must not be the first to find that one is damaged. But
    /// a create does not wait for those that a sync has just read, and replaces.
    fn block_to_change(
        &self,
        tree: &tree::Tree,
        block: u64,
        wait: Wait,
    ) -> Result<Option<BlockRef>> {
        if block < tree.blocks {
            return self.stored_block_of(tree, block, wait);
        }
        let read_above = || {
            let store = &self.io.store;
            let is_missing = tree::missing_above(store, tree, block)?.is_some();
            if is_missing
                && !self.replaces_tree.load(Ordering::SeqCst)
                && self.tree().root == tree.root
            {
                tree::lookup(store, tree, block, wait)?;
            }
            Ok(None)
        };
        read_above().map_err(|error: Error| {
            self.io.store.note_damage(0, block, 1, &error);
            error.doing(format_args!("block {block} of dnodes"))
        })
    }

    fn dirty_block_mut<'a>(
        &self,
        slot: &'a mut DirtyTxg,
        tx: &Tx,
        block: u64,
    ) -> Result<&'a mut DirtyDnodeBlock> {
        debug_assert!(slot.txg == 0 || slot.txg == tx.txg(), "the slot has another txg");
        slot.txg = tx.txg();
        if !slot.blocks.contains_key(&block) {
            self.charge(slot, tx, block)?;
            let dnodes = self.io.store.cache().alloc(DNODE_BLOCK_BYTES)?;
            self.io.store.cache().add_dirty(dnodes.footprint() as u64);
            let dirty = DirtyDnodeBlock { changed: 0, reset: 0, dnodes: Arc::new(dnodes) };
            slot.blocks.insert(block, dirty);
        }
        Ok(slot.blocks.get_mut(&block).expect("inserted above"))
    }

    /// Charges a transaction for the block of an object's dnode, unless the txg was charged for the
    /// block before.
    pub(super) fn charge_dnode(&self, tx: &Tx, number: u64) -> Result<()> {
        let (block, _) = position_of(number);
        let mut shard = self.dnodes.shard(block);
        let slot = &mut shard.txgs[(tx.txg() & 1) as usize];
        slot.txg = tx.txg();
        self.charge(slot, tx, block)
    }

    fn charge(&self, slot: &mut DirtyTxg, tx: &Tx, block: u64) -> Result<()> {
        if slot.charged.contains(&block) {
            return Ok(());
        }
        let parent = tree::Tree::parent_of(block);
        let new_parent = !slot.parents.contains(&parent);
        let pointers = if new_parent { INDIRECT_BYTES } else { 0 };
        let (_, copies) = self.copies_at_most();
        let cost = |bytes: usize| bytes as u64 * u64::from(copies);
        tx.dirty_with_pointers(cost(DNODE_BLOCK_BYTES), cost(pointers))?;
        slot.charged.insert(block);
        slot.parents.insert(parent);
        Ok(())
    }

    /// The dnode in the newest synced txg.
    pub(super) fn stored_dnode(&self, number: u64, wait: Wait) -> Result<DnodePhys> {
        let (block, index) = position_of(number);
        let _reading = self.io.store.readers().enter();
        let content = self.stored_block_of(&self.tree(), block, wait)?;
        Ok(content.and_then(|content| dnode_at(&content, index)).unwrap_or(DnodePhys::FREE))
    }

    /// A stored block of dnodes; `None` if it is a hole. The caller has entered the store's
    /// readers, or is the sync.
    pub(super) fn stored_block_of(
        &self,
        tree: &tree::Tree,
        block: u64,
        wait: Wait,
    ) -> Result<Option<BlockRef>> {
        if block >= tree.blocks {
            return Ok(None);
        }
        let in_block = |error: Error| {
            self.io.store.note_damage(0, block, 1, &error);
            error.doing(format_args!("block {block} of dnodes"))
        };
        let ptr = tree::lookup(&self.io.store, tree, block, wait).map_err(in_block)?;
        if ptr.is_hole() {
            return Ok(None);
        }
        let read = self.io.store.read_traced(&ptr, DNODE_BLOCKS, block, wait);
        let content = read.map_err(in_block)?;
        if ptr.block_kind() != Some(BlockKind::Dnode) || content.len() != DNODE_BLOCK_BYTES {
            let text = format!("block {block} of dnodes has another kind or length: {ptr:?}");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Some(content))
    }
}

/// Block and index of a dnode.
pub(super) fn position_of(number: u64) -> (u64, usize) {
    (number / DNODES_PER_BLOCK as u64, number as usize % DNODES_PER_BLOCK)
}

/// Reads a dnode of a block of dnodes.
pub(crate) fn dnode_at(block: &[u8], index: usize) -> Option<DnodePhys> {
    let bytes = block.get(index * DNODE_BYTES..(index + 1) * DNODE_BYTES)?;
    DnodePhys::read_from_bytes(bytes).ok()
}

/// Writes a dnode into a block of dnodes.
pub(super) fn put_dnode(block: &mut [u8], index: usize, dnode: &DnodePhys) {
    use zerocopy::IntoBytes;
    block[index * DNODE_BYTES..(index + 1) * DNODE_BYTES].copy_from_slice(dnode.as_bytes());
}
