//! Dnodes that open and syncing txgs have changed: dirty dnodes over what is stored.
//!
//! A dirty dnode holds the attribute fields of one dnode; its data fields are meaningless, but that `reset` says that the
//! object is new or gone, so that whatever blocks the stored dnode has are not its own.
//!
//! Dirty dnodes lie in buffers that are laid out like blocks of dnodes, so that creating objects side by side costs one
//! look-up for 32 of them, and a block all of whose dnodes are dirty need not be read to be written.

use crossbeam_utils::CachePadded;
use forebay_base::arena::Buffer;
use forebay_base::sync::{Arc, Mutex, MutexGuard};
use forebay_cache::Attributes;
use hashbrown::{HashMap, HashSet};
use zerocopy::FromBytes;

use crate::block_cache::BlockRef;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BlockKind, BlockPtrPhys, DNODE_BLOCK_BYTES, DNODE_BYTES, DNODES_PER_BLOCK, DnodePhys,
};
use crate::object::tree;
use crate::tx::Tx;

use super::{Objset, SHARDS};

pub(super) struct DirtyDnodes {
    shards: [CachePadded<Mutex<DnodeShard>>; SHARDS],
}

/// Dirty dnodes of the blocks of a shard, by the txg's low bit.
#[derive(Default)]
pub(super) struct DnodeShard {
    txgs: [DirtyTxg; 2],
}

#[derive(Default)]
struct DirtyTxg {
    /// 0 if the txg has no dirty dnodes.
    txg: u64,
    blocks: HashMap<u64, DirtyDnodeBlock>,
    /// Blocks that the txg's writes were charged for, and indirect blocks of the lowest level.
    charged: HashSet<u64>,
    parents: HashSet<u64>,
}

/// Dirty dnodes of one block.
pub(super) struct DirtyDnodeBlock {
    /// Bit n: dnode n is dirty.
    pub(super) changed: u32,
    /// Bit n: dnode n is new or gone.
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

/// The newest state of a dnode.
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
    /// The newest version of a dirty dnode, and whether it or one before it says that what is stored is another object's.
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

    /// Which dnodes of a block are free, if all others are as in `stored`.
    pub(super) fn free_mask(&self, block: u64, stored: &[u8]) -> u32 {
        let shard = self.shard(block);
        (0..DNODES_PER_BLOCK).fold(0, |mask, index| {
            let newest = shard.newest(block, index).map(|(dnode, _)| dnode);
            let free =
                newest.or_else(|| dnode_at(stored, index)).is_none_or(|dnode| dnode.kind == 0);
            mask | u32::from(free) << index
        })
    }

    /// All dirty dnodes of a txg, ascending. They stay for readers until [`drop_txg`](Self::drop_txg).
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
        all.sort_unstable_by_key(|patched| patched.block);
        all
    }

    /// Forgets a txg's dirty dnodes: the stored blocks have them. Returns the bytes of memory that gives back.
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
    /// Changes the attribute fields of a dnode in the txg of `tx`. `f` gets them as they are now, all zeros if the object
    /// is free, and may set the flag that says that the object is new or gone. Nothing can fail any more when `f` is
    /// called.
    pub(super) fn change_dnode<R>(
        &self,
        tx: &Tx,
        number: u64,
        f: impl FnOnce(&mut DnodePhys, &mut bool) -> R,
    ) -> Result<R> {
        let changed = self.change_dnode_if(tx, number, |_| true, f)?;
        Ok(changed.expect("it is changed in any case"))
    }

    /// As [`change_dnode`](Self::change_dnode), but leaves no trace in the txg, and returns nothing, unless the dnode is
    /// as `wanted` says.
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
            // As long as this tree is the newest, no dirty dnode of the shard was dropped that it lacks.
            let tree = self.tree();
            let slot = (tx.txg() & 1) as usize;
            let own = shard.txgs[slot].blocks.get(&block);
            let is_own = own.is_some_and(|dirty| dirty.changed & bit != 0);
            let current = match shard.newest(block, index) {
                Some((dnode, _)) => dnode,
                None if block >= tree.blocks => DnodePhys::FREE,
                None => match &stored {
                    Some((root, content)) if *root == tree.root => content
                        .as_ref()
                        .and_then(|content| dnode_at(content, index))
                        .unwrap_or(DnodePhys::FREE),
                    _ => {
                        drop(shard);
                        let _reading = self.store.readers().enter();
                        let tree = self.tree();
                        stored = Some((tree.root, self.stored_block_of(&tree, block)?));
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
            let buffer = Arc::get_mut(&mut dirty.dnodes).expect("an open txg's has one owner");
            put_dnode(buffer, index, &changed.0);
            dirty.changed |= bit;
            dirty.reset = dirty.reset & !bit | u32::from(changed.1) << index;
            return Ok(Some(result));
        }
    }

    fn dirty_block_mut<'a>(
        &self,
        slot: &'a mut DirtyTxg,
        tx: &Tx,
        block: u64,
    ) -> Result<&'a mut DirtyDnodeBlock> {
        debug_assert!(slot.txg == 0 || slot.txg == tx.txg(), "two txgs share a slot");
        slot.txg = tx.txg();
        if !slot.blocks.contains_key(&block) {
            self.charge(slot, tx, block)?;
            let dnodes = self.store.cache().alloc(DNODE_BLOCK_BYTES)?;
            self.store.cache().add_dirty(dnodes.footprint() as u64);
            let dirty = DirtyDnodeBlock { changed: 0, reset: 0, dnodes: Arc::new(dnodes) };
            slot.blocks.insert(block, dirty);
        }
        Ok(slot.blocks.get_mut(&block).expect("it was put there if it was missing"))
    }

    /// Charges a transaction for the block of an object's dnode, unless another one of the txg was.
    pub(crate) fn charge_dnode(&self, tx: &Tx, number: u64) -> Result<()> {
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
        tx.dirty(self.cost_of_dnodes(!slot.parents.contains(&parent)))?;
        slot.charged.insert(block);
        slot.parents.insert(parent);
        Ok(())
    }

    /// A dnode as the newest synced txg has it.
    pub(super) fn stored_dnode(&self, number: u64) -> Result<DnodePhys> {
        let (block, index) = position_of(number);
        let _reading = self.store.readers().enter();
        let content = self.stored_block_of(&self.tree(), block)?;
        Ok(content.and_then(|content| dnode_at(&content, index)).unwrap_or(DnodePhys::FREE))
    }

    /// A block of dnodes; nothing if it is a hole. The caller has entered the store's readers, or is the sync.
    pub(super) fn stored_block_of(
        &self,
        tree: &tree::Tree,
        block: u64,
    ) -> Result<Option<BlockRef>> {
        if block >= tree.blocks {
            return Ok(None);
        }
        let doing = |error: Error| error.doing(format_args!("block {block} of dnodes"));
        let ptr = tree::lookup(&self.store, tree, block).map_err(doing)?;
        if ptr.is_hole() {
            return Ok(None);
        }
        let content = self.store.read(&ptr, Attributes::METADATA).map_err(doing)?;
        if ptr.block_kind() != Some(BlockKind::Dnode) || content.len() != DNODE_BLOCK_BYTES {
            let text = format!("block {block} of dnodes is none: {ptr:?}");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Some(content))
    }
}

/// Block and index of a dnode.
pub(super) fn position_of(number: u64) -> (u64, usize) {
    (number / DNODES_PER_BLOCK as u64, number as usize % DNODES_PER_BLOCK)
}

/// A dnode of a block of dnodes.
pub(crate) fn dnode_at(block: &[u8], index: usize) -> Option<DnodePhys> {
    let bytes = block.get(index * DNODE_BYTES..(index + 1) * DNODE_BYTES)?;
    DnodePhys::read_from_bytes(bytes).ok()
}

/// Puts a dnode into a block of dnodes.
pub(super) fn put_dnode(block: &mut [u8], index: usize, dnode: &DnodePhys) {
    use zerocopy::IntoBytes;
    block[index * DNODE_BYTES..(index + 1) * DNODE_BYTES].copy_from_slice(dnode.as_bytes());
}
