//! An open object.
//!
//! One lock guards an object's state; objects share none. The order is: a directory's lock, then its object's, then
//! a shard of dnodes.
//!
//! Newest first, a block is: what the open txg has written or freed, what the syncing txg has, what the tree says. The
//! sync replaces the tree and drops its txg's changes under one hold of the lock.

use forebay_base::arena::Buffer;
use forebay_base::sync::{Arc, Mutex, MutexGuard, Weak};
use forebay_cache::Attributes;

use crate::block_cache::BlockRef;
use crate::blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockPtrPhys, DnodePhys, ObjectKind, ZAP_LEAF_BYTES};
use crate::objset::Objset;
use crate::readahead::ObjectReadahead;
use crate::zap::{self, Zap};

use super::leaves::Leaves;
use super::pending::{DirtySlot, Pending};
use super::pins::Pins;
use super::tree::{self, BLOCKS_MAX, Tree};

/// The largest records, as a power of two.
const RECORD_SHIFT_MAX: u8 = 24;

/// How long an object is and what it takes on devices, as of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectUsage {
    /// Its length in bytes; 0 for a directory.
    pub size_bytes: u64,
    /// Bytes on devices: all copies, indirect blocks; and about what will come to that of what is not written yet. 0 for a
    /// directory that is small enough to lie where its attributes do.
    pub allocated_bytes: u64,
    /// Whether content was changed and is not written yet: until then `allocated_bytes` is a guess, which knows nothing of
    /// compression.
    pub is_estimate: bool,
}

/// An open object. It stays in memory while somebody holds it or a txg has changes of it.
pub(crate) struct Node {
    pub(crate) objset: Arc<Objset>,
    pub(crate) number: u64,
    pub(crate) kind: ObjectKind,
    pub(crate) record_shift: u8,
    pub(crate) created_txg: u64,
    /// The state of the directory that it is, while somebody has that open.
    pub(crate) directory: Mutex<Weak<Zap<Leaves>>>,
    locked: NodeLocks,
}

/// Locks and what they protect. The locks' line of memory is all that a read of a cached block writes of an object; what it only
/// looks at lies in others, so that several processors can have that at the same time.
#[repr(C, align(64))]
struct NodeLocks {
    /// Whoever changes the object and notes it for the log has this meanwhile.
    object_lock: Mutex<()>,
    state: Mutex<NodeState>,
}

/// The first fields share the locks' line: a probe (see `read.rs`) does not look at them.
#[repr(C)]
pub(crate) struct NodeState {
    /// The txg that destroyed it.
    pub(crate) destroyed: Option<u64>,
    pub(crate) tree: Tree,
    pub(crate) size: u64,
    /// The length as of the newest txg that has synced the object.
    pub(crate) synced_size: u64,
    pub(crate) allocated: u64,
    /// Entries of the directory that it is, as of the newest txg that has synced a change of them since it was opened.
    pub(crate) synced_entries: Option<u64>,
    /// By the low bit of the txg's number.
    pub(crate) pending: [Pending; 2],
    pub(crate) pins: Pins,
    pub(super) readahead: ObjectReadahead,
}

/// The data fields of a dnode, as a sync has made them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataFields {
    pub(crate) tree: Tree,
    pub(crate) size: u64,
    pub(crate) allocated: u64,
    /// Entries of the directory that it is, if the txg has changed them: a field of its inline content.
    pub(crate) entries: Option<u64>,
}

/// Bytes that an object with such records can have at most. Records that are larger than any are as the largest.
pub(crate) fn size_max(record_shift: u8) -> u64 {
    let record = 1 << record_shift.min(RECORD_SHIFT_MAX);
    BLOCKS_MAX.saturating_mul(record).min(i64::MAX as u64)
}

impl DataFields {
    /// Those of a dnode as it was found on a device.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they cannot be.
    pub(crate) fn of(dnode: &DnodePhys) -> Result<Self> {
        let (tree, size) = (Self::tree_of(dnode)?, dnode.size_bytes.get());
        let limit = size_max(dnode.record_shift);
        if size > limit {
            let text = format!("its length is {size} bytes, and could be {limit} at most");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Self { tree, size, allocated: dnode.allocated_bytes.get(), entries: None })
    }

    /// The tree alone, whatever else there is.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it cannot be one.
    pub(crate) fn tree_of(dnode: &DnodePhys) -> Result<Tree> {
        Tree::from_parts(dnode.root, dnode.levels, dnode.blocks.get())
    }

    /// Takes them over from one dnode to another as they are, whether they can be or not.
    pub(crate) fn carry_over(from: &DnodePhys, to: &mut DnodePhys) {
        to.root = from.root;
        to.levels = from.levels;
        to.blocks = from.blocks;
        to.size_bytes = from.size_bytes;
        to.allocated_bytes = from.allocated_bytes;
        if let Some(entries) = zap::entries_of(from.inline()) {
            zap::put_entries(to.inline_mut(), entries);
        }
    }

    /// Writes them into a dnode.
    pub(crate) fn put(&self, dnode: &mut DnodePhys) {
        dnode.root = self.tree.root;
        dnode.levels = self.tree.levels;
        dnode.blocks = self.tree.blocks.into();
        dnode.size_bytes = self.size.into();
        dnode.allocated_bytes = self.allocated.into();
        if let Some(entries) = self.entries {
            zap::put_entries(dnode.inline_mut(), entries);
        }
    }

    pub(crate) const EMPTY: Self = Self { tree: Tree::EMPTY, size: 0, allocated: 0, entries: None };
}

/// Where a block's newest content is.
pub(crate) enum BlockState<'a> {
    Dirty(&'a Arc<Buffer>),
    Stored(BlockPtrPhys),
    Hole,
    /// The indirect block that knows is not pinned: call [`Node::pin`].
    Unknown,
}

impl NodeState {
    /// Finds a block.
    #[inline]
    pub(crate) fn find(&self, block: u64) -> BlockState<'_> {
        let newer = usize::from(self.pending[1].txg > self.pending[0].txg);
        for pending in [&self.pending[newer], &self.pending[1 - newer]] {
            if pending.txg == 0 {
                continue;
            }
            match pending.blocks.get(&block) {
                Some(DirtySlot::Dirty(buffer)) => return BlockState::Dirty(buffer),
                Some(DirtySlot::Written(ptr)) => return BlockState::of(*ptr),
                None if pending.frees(block) => return BlockState::Hole,
                None => {}
            }
        }
        if block >= self.tree.blocks {
            return BlockState::Hole;
        }
        if self.tree.levels == 1 {
            return BlockState::of(self.tree.root);
        }
        match self.pins.find(Tree::parent_of(block), block) {
            Some(ptr) => BlockState::of(ptr),
            None => BlockState::Unknown,
        }
    }

    /// Whether all of it is as the tree says, and no read of one block that is in memory need be noted.
    #[inline]
    pub(super) fn is_quiet(&self, block: u64) -> bool {
        let unchanged = self.pending[0].txg == 0 && self.pending[1].txg == 0;
        unchanged && self.readahead.may_skip_report(block)
    }

    /// Levels that its tree will have once what is known now is synced.
    pub(crate) fn height(&self) -> u8 {
        let pending = self.pending.iter().map(|pending| pending.paths.height);
        pending.fold(self.tree.levels, u8::max)
    }

    /// Entries of the directory that it is, if they have changed since it was opened.
    pub(crate) fn entries(&self) -> Option<u64> {
        let newer = usize::from(self.pending[1].txg > self.pending[0].txg);
        let pending = self.pending[newer].entries.or(self.pending[1 - newer].entries);
        pending.or(self.synced_entries)
    }

    /// The changes of a txg that is not synced yet, made empty if it had none.
    pub(crate) fn pending_mut(&mut self, txg: u64) -> &mut Pending {
        let pending = &mut self.pending[(txg & 1) as usize];
        debug_assert!(pending.txg == 0 || pending.txg == txg, "two txgs share a slot");
        pending.txg = txg;
        pending
    }
}

impl BlockState<'_> {
    fn of(ptr: BlockPtrPhys) -> Self {
        if ptr.is_hole() { Self::Hole } else { Self::Stored(ptr) }
    }
}

impl Node {
    pub(crate) fn new(
        objset: &Arc<Objset>,
        number: u64,
        dnode: &DnodePhys,
        data: DataFields,
    ) -> Result<Arc<Self>> {
        let kind = dnode.object_kind().filter(|kind| *kind != ObjectKind::Free);
        let Some(kind) = kind.filter(|_| (9..=RECORD_SHIFT_MAX).contains(&dnode.record_shift))
        else {
            let text = format!(
                "object {number} has kind {} and records of 2^{} bytes",
                dnode.kind, dnode.record_shift
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        };
        if kind == ObjectKind::Zap && 1usize << dnode.record_shift != ZAP_LEAF_BYTES {
            let text = format!("directory {number} has leaves of 2^{} bytes", dnode.record_shift);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let state = NodeState {
            destroyed: None,
            tree: data.tree,
            size: data.size,
            synced_size: data.size,
            allocated: data.allocated,
            synced_entries: None,
            pending: Default::default(),
            pins: Pins::default(),
            readahead: ObjectReadahead::new(),
        };
        Ok(Arc::new(Self {
            objset: Arc::clone(objset),
            number,
            kind,
            record_shift: dnode.record_shift,
            created_txg: dnode.created_txg.get(),
            directory: Mutex::named("object-directory", Weak::new()),
            locked: NodeLocks {
                object_lock: Mutex::named("object-lock", ()),
                state: Mutex::named("object", state),
            },
        }))
    }

    /// The turn to change the object.
    ///
    /// # Errors
    /// `WouldBlock` on a thread that must not wait, if somebody else has it.
    pub(crate) fn lock_object(&self) -> Result<MutexGuard<'_, ()>> {
        blocking::lock(&self.locked.object_lock, "another change of the object")
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.locked.state.lock()
    }

    /// How its level-0 blocks are to be cached.
    pub(crate) fn attributes(&self) -> Attributes {
        match self.kind {
            ObjectKind::Data => Attributes::DATA,
            _ => Attributes::METADATA,
        }
    }

    pub(crate) fn record_bytes(&self) -> usize {
        1 << self.record_shift
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.lock().size
    }

    /// How long it is, what it takes on devices, and about what txgs that are not written yet will add to that.
    pub(crate) fn usage(&self) -> ObjectUsage {
        let state = self.lock();
        let newer = usize::from(state.pending[1].txg > state.pending[0].txg);
        let mut bytes = state.allocated;
        for pending in [&state.pending[1 - newer], &state.pending[newer]] {
            if pending.frees_all() {
                bytes = 0;
            }
            bytes = bytes.saturating_add(self.objset.cost_of_block(self.kind, pending.new_bytes));
        }
        ObjectUsage {
            size_bytes: state.size,
            allocated_bytes: bytes,
            is_estimate: state.pending.iter().any(|pending| !pending.is_empty()),
        }
    }

    /// An error unless it can still be used.
    pub(crate) fn check_alive(&self, state: &NodeState) -> Result<()> {
        match state.destroyed {
            None => Ok(()),
            Some(_) => {
                let text =
                    format!("object {} was destroyed; it cannot be used any more", self.number);
                Err(Error::new(ErrorKind::Closed, text))
            }
        }
    }

    /// Pins the indirect block that knows where `block` is. To be called without the lock, after
    /// [`BlockState::Unknown`].
    pub(crate) fn pin(&self, block: u64) -> Result<()> {
        let store = &self.objset.store;
        let _reading = store.readers().enter();
        self.objset.check_open()?;
        let tree = self.lock().tree;
        if tree.levels < 2 {
            // It has become lower since.
            return Ok(());
        }
        let naming = |error| self.naming(block, error);
        let parent = tree::lowest_indirect(store, &tree, block).map_err(naming)?;
        let mut content = None;
        if !parent.is_hole() {
            let found = store.read(&parent, Attributes::METADATA).map_err(naming)?;
            let pointers = tree::pointers(&parent, &found)?;
            if let Some(odd) = pointers.iter().find(|ptr| ptr.level != 0) {
                let text = format!("an indirect block of level 1 holds {odd:?}");
                return Err(self.naming(block, Error::new(ErrorKind::Corrupt, text)));
            }
            content = Some(found);
        }
        let mut state = self.lock();
        if state.tree.root == tree.root && self.objset.check_open().is_ok() {
            state.pins.set(Tree::parent_of(block), content);
        }
        Ok(())
    }

    /// Fetches a block into memory, for use after the lock is taken again. Nothing, if it is not where it was
    /// any more.
    pub(crate) fn fetch(&self, block: u64, ptr: &BlockPtrPhys) -> Result<Option<Fetched>> {
        let store = &self.objset.store;
        let _reading = store.readers().enter();
        match self.lock().find(block) {
            BlockState::Stored(now) if now == *ptr => {}
            _ => return Ok(None),
        }
        match store.read(ptr, self.attributes()) {
            Ok(content) => Ok(Some(Fetched { ptr: *ptr, content })),
            Err(error) => Err(self.naming(block, error)),
        }
    }

    /// The error with object and block in front.
    pub(crate) fn naming(&self, block: u64, error: Error) -> Error {
        if error.kind() == ErrorKind::WouldBlock {
            // No mishap, and frequent.
            return error;
        }
        error.doing(format_args!("object {}, block {block}", self.number))
    }
}

/// A block that was read for somebody who could not hold a lock meanwhile.
pub(crate) struct Fetched {
    pub(crate) ptr: BlockPtrPhys,
    pub(crate) content: BlockRef,
}

impl Drop for Node {
    fn drop(&mut self) {
        // The set's store may go with this node, and waits for pins.
        let dirty_bytes = {
            let mut state = self.lock();
            state.pins.clear();
            state.pending.iter().map(|pending| pending.dirty_bytes).sum()
        };
        // Of txgs that were never synced.
        self.objset.store.cache().sub_dirty(dirty_bytes);
        self.objset.forget(self.number);
    }
}
