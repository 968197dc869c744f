//! Dnodes that open and syncing groups have changed: patches over what is stored.
//!
//! A patch holds the attribute fields of one dnode; its data fields are meaningless, but that `reset` says that the
//! object is new or gone, so that whatever blocks the stored dnode has are not its own.
//!
//! Patches lie in buffers that are laid out like blocks of dnodes, so that creating objects side by side costs one
//! look-up for 32 of them, and a block all of whose dnodes are patched need not be read to be written.

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

pub(super) struct Dnodes {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
}

/// Patches of the blocks of a shard, by the group's low bit.
#[derive(Default)]
pub(super) struct Shard {
    groups: [Group; 2],
}

#[derive(Default)]
struct Group {
    /// 0 if the group has no patches.
    txg: u64,
    blocks: HashMap<u64, Patches>,
    /// Blocks that the group's writes were charged for, and indirect blocks of the lowest level.
    charged: HashSet<u64>,
    parents: HashSet<u64>,
}

/// Patches of one block.
pub(super) struct Patches {
    /// Bit n: dnode n is patched.
    pub(super) changed: u32,
    /// Bit n: dnode n is new or gone.
    pub(super) reset: u32,
    /// Shared once the group syncs.
    pub(super) dnodes: Arc<Buffer>,
}

/// Patches of one block, for the sync.
pub(super) struct Patched {
    pub(super) block: u64,
    pub(super) changed: u32,
    pub(super) reset: u32,
    pub(super) dnodes: Option<Arc<Buffer>>,
}

/// The newest state of a dnode.
pub(super) enum Newest {
    Patched(Box<DnodePhys>, bool),
    Stored,
}

impl Group {
    fn bytes(&self) -> u64 {
        self.blocks.values().map(|patches| patches.dnodes.footprint() as u64).sum()
    }
}

impl Shard {
    /// The newest patch of a dnode, and whether it or one before it says that what is stored is another object's.
    fn newest(&self, block: u64, index: usize) -> Option<(DnodePhys, bool)> {
        let newer = usize::from(self.groups[1].txg > self.groups[0].txg);
        let of_bit = |group: usize| {
            let patches = self.groups[group].blocks.get(&block)?;
            let bit = 1u32 << index;
            let dnode =
                (patches.changed & bit != 0).then(|| dnode_at(&patches.dnodes, index))??;
            Some((dnode, patches.reset & bit != 0))
        };
        match (of_bit(newer), of_bit(1 - newer)) {
            (Some((dnode, reset)), older) => {
                Some((dnode, reset || older.is_some_and(|(_, reset)| reset)))
            }
            (None, older) => older,
        }
    }
}

impl Dnodes {
    pub(super) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("dnodes", Shard::default()));
        Self { shards: std::array::from_fn(shard) }
    }

    fn shard(&self, block: u64) -> MutexGuard<'_, Shard> {
        self.shards[block as usize % SHARDS].lock()
    }

    pub(super) fn newest(&self, number: u64) -> Newest {
        let (block, index) = place_of(number);
        match self.shard(block).newest(block, index) {
            Some((dnode, reset)) => Newest::Patched(Box::new(dnode), reset),
            None => Newest::Stored,
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

    /// All patches of a group, ascending. They stay for readers until [`drop_group`](Self::drop_group).
    pub(super) fn of_group(&self, txg: u64) -> Vec<Patched> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let group = &shard.groups[(txg & 1) as usize];
            if group.txg != txg {
                continue;
            }
            all.extend(group.blocks.iter().map(|(block, patches)| Patched {
                block: *block,
                changed: patches.changed,
                reset: patches.reset,
                dnodes: Some(Arc::clone(&patches.dnodes)),
            }));
        }
        all.sort_unstable_by_key(|patched| patched.block);
        all
    }

    /// Forgets a group's patches: the stored blocks have them. Returns the bytes of memory that gives back.
    pub(super) fn drop_group(&self, txg: u64) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            let group = {
                let mut shard = shard.lock();
                let group = &mut shard.groups[(txg & 1) as usize];
                if group.txg != txg {
                    continue;
                }
                std::mem::take(group)
            };
            bytes += group.bytes();
        }
        bytes
    }

    /// Bytes of memory that all patches hold.
    pub(super) fn bytes(&self) -> u64 {
        let of_shard = |shard: &CachePadded<Mutex<Shard>>| {
            shard.lock().groups.iter().map(Group::bytes).sum::<u64>()
        };
        self.shards.iter().map(of_shard).sum()
    }
}

impl Objset {
    /// Changes the attribute fields of a dnode in the group of `tx`. `f` gets them as they are now, all zeros if the object
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

    /// As [`change_dnode`](Self::change_dnode), but leaves no trace in the group, and returns nothing, unless the dnode is
    /// as `wanted` says.
    pub(super) fn change_dnode_if<R>(
        &self,
        tx: &Tx,
        number: u64,
        wanted: impl FnOnce(&DnodePhys) -> bool,
        f: impl FnOnce(&mut DnodePhys, &mut bool) -> R,
    ) -> Result<Option<R>> {
        let (block, index) = place_of(number);
        let bit = 1u32 << index;
        let mut stored: Option<(BlockPtrPhys, Option<BlockRef>)> = None;
        loop {
            let mut shard = self.dnodes.shard(block);
            // As long as this tree is the newest, no patch of the shard was dropped that it lacks.
            let tree = self.tree();
            let group = (tx.txg() & 1) as usize;
            let own = shard.groups[group].blocks.get(&block);
            let is_own = own.is_some_and(|patches| patches.changed & bit != 0);
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
            let patches = self.patches_mut(&mut shard.groups[group], tx, block)?;
            let reset = patches.reset & bit != 0 && is_own;
            let mut changed = (current, reset);
            let result = f(&mut changed.0, &mut changed.1);
            let buffer = Arc::get_mut(&mut patches.dnodes).expect("an open group's has one owner");
            put_dnode(buffer, index, &changed.0);
            patches.changed |= bit;
            patches.reset = patches.reset & !bit | u32::from(changed.1) << index;
            return Ok(Some(result));
        }
    }

    fn patches_mut<'a>(
        &self,
        group: &'a mut Group,
        tx: &Tx,
        block: u64,
    ) -> Result<&'a mut Patches> {
        debug_assert!(group.txg == 0 || group.txg == tx.txg(), "two groups share a slot");
        group.txg = tx.txg();
        if !group.blocks.contains_key(&block) {
            self.charge(group, tx, block)?;
            let dnodes = self.store.cache().alloc(DNODE_BLOCK_BYTES)?;
            self.store.cache().add_dirty(dnodes.footprint() as u64);
            let patches = Patches { changed: 0, reset: 0, dnodes: Arc::new(dnodes) };
            group.blocks.insert(block, patches);
        }
        Ok(group.blocks.get_mut(&block).expect("it was put there if it was missing"))
    }

    /// Charges a transaction for the block of an object's dnode, unless another one of the group was.
    pub(crate) fn charge_dnode(&self, tx: &Tx, number: u64) -> Result<()> {
        let (block, _) = place_of(number);
        let mut shard = self.dnodes.shard(block);
        let group = &mut shard.groups[(tx.txg() & 1) as usize];
        group.txg = tx.txg();
        self.charge(group, tx, block)
    }

    fn charge(&self, group: &mut Group, tx: &Tx, block: u64) -> Result<()> {
        if group.charged.contains(&block) {
            return Ok(());
        }
        let parent = tree::Tree::parent_of(block);
        tx.dirty(self.cost_of_dnodes(!group.parents.contains(&parent)))?;
        group.charged.insert(block);
        group.parents.insert(parent);
        Ok(())
    }

    /// A dnode as the newest synced group has it.
    pub(super) fn stored_dnode(&self, number: u64) -> Result<DnodePhys> {
        let (block, index) = place_of(number);
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
pub(super) fn place_of(number: u64) -> (u64, usize) {
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
