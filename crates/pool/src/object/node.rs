//! An open object.
//!
//! # Invariants
//!
//! - The newest content of a block is, in this order: the change of the open txg, the change of the
//!   syncing txg, the block that the tree points to.
//! - A sync replaces the tree and drops the changes of its txg under one hold of the state lock.
//!
//! # Locking
//!
//! One lock protects the state of an object. Objects share no lock. Lock order: the directory, then
//! its object, then a shard of dnodes.

use forebay_base::arena::Buffer;
use forebay_base::sync::{Arc, Mutex, MutexGuard, Weak};
use forebay_cache::Attributes;

use crate::block_cache::BlockRef;
use crate::block_label::{self, INDIRECT_BLOCKS};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockPtrPhys, DnodePhys, ObjectKind, ZAP_LEAF_BYTES};
use crate::readahead::ObjectReadahead;
use crate::wait::Wait;
use crate::zap::{self, Zap, ZapCounts};

use super::leaves::Leaves;
use super::owner::{NodeOwner, ObjectIo};
use super::pending::{DirtySlot, Pending};
use super::pins::Pins;
use super::tree::{self, BLOCKS_MAX, Tree};

/// Largest record size, as a power of two.
const RECORD_SHIFT_MAX: u8 = 24;

/// Length and allocated space of an object at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectUsage {
    /// Length in bytes; 0 for a directory.
    pub size_bytes: u64,
    /// Bytes on devices, all copies and indirect blocks included, plus preallocated holes, plus an
    /// estimate for content that is not written yet. 0 for a directory that is stored inline in its
    /// dnode.
    pub allocated_bytes: u64,
    /// Whether changed content is not written yet. Until then `allocated_bytes` is an estimate that
    /// ignores compression.
    pub is_estimate: bool,
}

/// An open object. It stays in memory while it is referenced or a txg has changes for it.
pub(crate) struct Node {
    pub(super) owner: Arc<dyn NodeOwner>,
    pub(super) io: Arc<ObjectIo>,
    pub(crate) number: u64,
    pub(crate) kind: ObjectKind,
    pub(crate) record_shift: u8,
    pub(crate) created_txg: u64,
    /// The open directory of this object, if the object is a directory and somebody has it open.
    pub(crate) directory: Mutex<Weak<Zap<Leaves>>>,
    locked: NodeLocks,
}

/// Locks and the state that they protect. A read of a cached block writes only the cache line of
/// the locks. Fields that it only reads lie in other lines, which several processors can share.
#[repr(C, align(64))]
struct NodeLocks {
    /// Held while the object is changed and the change is noted for the intent log.
    object_lock: Mutex<()>,
    state: Mutex<NodeState>,
}

/// The first fields share the cache line of the locks. A probe (see `read.rs`) does not read them.
#[repr(C)]
pub(crate) struct NodeState {
    /// The txg that destroyed the object.
    pub(crate) destroyed: Option<u64>,
    pub(crate) tree: Tree,
    pub(crate) size: u64,
    /// Length in the newest txg that has synced the object.
    pub(crate) synced_size: u64,
    pub(crate) allocated: u64,
    /// Counts of the directory in the newest txg that synced a change of it since the directory was
    /// opened.
    pub(crate) synced_counts: Option<ZapCounts>,
    /// Indexed by the low bit of the txg.
    pub(crate) pending: [Pending; 2],
    pub(crate) pins: Pins,
    pub(super) readahead: ObjectReadahead,
}

/// The data fields of a dnode, as a sync writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataFields {
    pub(crate) tree: Tree,
    pub(crate) size: u64,
    pub(crate) allocated: u64,
    /// Counts of the directory, if the txg changed it. They are fields of the inline content.
    pub(crate) counts: Option<ZapCounts>,
}

/// Maximum length in bytes of an object with this record size. Record sizes above the largest count
/// as the largest.
pub(crate) fn size_max(record_shift: u8) -> u64 {
    let record = 1 << record_shift.min(RECORD_SHIFT_MAX);
    BLOCKS_MAX.saturating_mul(record).min(i64::MAX as u64)
}

impl DataFields {
    /// Reads the fields from a dnode that comes from a device.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the fields contradict each other.
    pub(crate) fn of(dnode: &DnodePhys) -> Result<Self> {
        let (tree, size) = (Self::tree_of(dnode)?, dnode.size_bytes.get());
        let limit = size_max(dnode.record_shift);
        if size > limit {
            let text = format!("its length is {size} bytes; the limit is {limit} bytes");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Self { tree, size, allocated: dnode.allocated_bytes.get(), counts: None })
    }

    /// Reads the tree alone and ignores the other fields.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the fields do not form a tree.
    pub(crate) fn tree_of(dnode: &DnodePhys) -> Result<Tree> {
        Tree::from_parts(dnode.root, dnode.levels, dnode.blocks.get())
    }

    /// Copies the fields from one dnode to another without validation.
    pub(crate) fn copy_unchecked(from: &DnodePhys, to: &mut DnodePhys) {
        to.root = from.root;
        to.levels = from.levels;
        to.blocks = from.blocks;
        to.size_bytes = from.size_bytes;
        to.allocated_bytes = from.allocated_bytes;
        if let Some(counts) = zap::counts_of(from.inline()) {
            zap::put_counts(to.inline_mut(), counts);
        }
    }

    /// Writes the fields into a dnode.
    pub(crate) fn put(&self, dnode: &mut DnodePhys) {
        dnode.root = self.tree.root;
        dnode.levels = self.tree.levels;
        dnode.blocks = self.tree.blocks.into();
        dnode.size_bytes = self.size.into();
        dnode.allocated_bytes = self.allocated.into();
        if let Some(counts) = self.counts {
            zap::put_counts(dnode.inline_mut(), counts);
        }
    }

    pub(crate) const EMPTY: Self = Self { tree: Tree::EMPTY, size: 0, allocated: 0, counts: None };
}

/// Where the newest content of a block is.
pub(crate) enum BlockState<'a> {
    Dirty(&'a Arc<Buffer>),
    Stored(BlockPtrPhys),
    Hole,
    /// The indirect block with the pointer is not pinned: call [`Node::pin`].
    Unknown,
}

impl NodeState {
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

    /// Whether the sync of a change of `block` in a txg would read indirect blocks that were not
    /// read before: call [`Node::pin`] before the change. The pool is suspended if a sync cannot
    /// read a block. A block behind the end of the tree may have such indirect blocks too.
    pub(super) fn must_pin(&self, txg: u64, block: u64) -> bool {
        if self.pending[(txg & 1) as usize].paths.has_charged_parent(block) {
            return false;
        }
        let has_indirect = self.tree.levels >= 2 && block < tree::capacity(self.tree.levels);
        // A txg that has changed the block has read them, or frees them as a whole.
        let is_changed = |pending: &Pending| {
            pending.txg != 0 && (pending.blocks.contains_key(&block) || pending.frees(block))
        };
        has_indirect
            && !self.pending.iter().any(is_changed)
            && self.pins.find(Tree::parent_of(block), block).is_none()
    }

    /// Whether no txg has changes for the object, and a read of `block` from memory need not be
    /// reported to read-ahead.
    #[inline]
    pub(super) fn may_skip_report(&self, block: u64) -> bool {
        let unchanged = self.pending[0].txg == 0 && self.pending[1].txg == 0;
        unchanged && self.readahead.may_skip_report(block)
    }

    /// Levels that the tree will have after all known changes are synced.
    pub(crate) fn height(&self) -> u8 {
        let pending = self.pending.iter().map(|pending| pending.paths.height);
        pending.fold(self.tree.levels, u8::max)
    }

    /// Counts of the directory, if it changed since the directory was opened.
    pub(crate) fn counts(&self) -> Option<ZapCounts> {
        let newer = usize::from(self.pending[1].txg > self.pending[0].txg);
        let pending = self.pending[newer].counts.or(self.pending[1 - newer].counts);
        pending.or(self.synced_counts)
    }

    /// The changes of a txg that has not synced yet. Creates an empty record if there is none.
    pub(crate) fn pending_mut(&mut self, txg: u64) -> &mut Pending {
        let pending = &mut self.pending[(txg & 1) as usize];
        debug_assert!(
            pending.txg == 0 || pending.txg == txg,
            "txg {txg} needs the slot of txg {}",
            pending.txg
        );
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
        owner: Arc<dyn NodeOwner>,
        number: u64,
        dnode: &DnodePhys,
        data: DataFields,
    ) -> Result<Arc<Self>> {
        let kind = dnode.object_kind().filter(|kind| *kind != ObjectKind::Free);
        let Some(kind) = kind.filter(|_| (9..=RECORD_SHIFT_MAX).contains(&dnode.record_shift))
        else {
            let text = format!(
                "object {number} has the unknown kind {} or an invalid record size of 2^{} bytes",
                dnode.kind, dnode.record_shift
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        };
        if kind == ObjectKind::Zap && 1usize << dnode.record_shift != ZAP_LEAF_BYTES {
            let text = format!(
                "directory {number} has leaves of 2^{} bytes instead of {ZAP_LEAF_BYTES}",
                dnode.record_shift
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let state = NodeState {
            destroyed: None,
            tree: data.tree,
            size: data.size,
            synced_size: data.size,
            allocated: data.allocated,
            synced_counts: None,
            pending: Default::default(),
            pins: Pins::default(),
            readahead: ObjectReadahead::new(),
        };
        Ok(Arc::new(Self {
            io: Arc::clone(owner.io()),
            owner,
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

    /// Takes the object lock, which serialises changes of the object.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode, if another thread holds the lock.
    pub(crate) fn lock_object(&self, wait: Wait) -> Result<MutexGuard<'_, ()>> {
        wait.lock(&self.locked.object_lock, "another change of the object")
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.locked.state.lock()
    }

    /// Cache attributes of the object's level-0 blocks.
    pub(crate) fn attributes(&self) -> Attributes {
        let attributes = match self.kind {
            ObjectKind::Data => Attributes::DATA,
            _ => Attributes::METADATA,
        };
        block_label::of_object(attributes, self.number)
    }

    pub(crate) fn record_bytes(&self) -> usize {
        1 << self.record_shift
    }

    /// Length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.lock().size
    }

    /// Length, allocated bytes, and an estimate of the bytes that unsynced txgs will add.
    pub(crate) fn usage(&self) -> ObjectUsage {
        let state = self.lock();
        let newer = usize::from(state.pending[1].txg > state.pending[0].txg);
        let mut bytes = state.allocated;
        for pending in [&state.pending[1 - newer], &state.pending[newer]] {
            if pending.frees_all() {
                bytes = 0;
            }
            bytes = bytes
                .saturating_add(self.cost_of_block(pending.new_bytes))
                .saturating_add(pending.preallocated_bytes)
                .saturating_sub(pending.replaced_bytes);
        }
        ObjectUsage {
            size_bytes: state.size,
            allocated_bytes: bytes,
            is_estimate: state.pending.iter().any(|pending| !pending.is_empty()),
        }
    }

    /// Fails if the object was destroyed.
    pub(crate) fn check_alive(&self, state: &NodeState) -> Result<()> {
        match state.destroyed {
            None => Ok(()),
            Some(_) => {
                let text = format!("object {} was destroyed; close it", self.number);
                Err(Error::new(ErrorKind::Closed, text))
            }
        }
    }

    /// Pins the indirect block that has the pointer of `block`. Call it without the state lock,
    /// after [`BlockState::Unknown`].
    pub(crate) fn pin(&self, block: u64, wait: Wait) -> Result<()> {
        let store = &self.io.store;
        let _reading = store.readers().enter();
        self.owner.check_open()?;
        let tree = self.lock().tree;
        if tree.levels < 2 {
            // The tree has lost its indirect blocks meanwhile.
            return Ok(());
        }
        let lost = |error| self.lost_pointers(block, error);
        let parent = tree::lowest_indirect(store, &tree, block, wait).map_err(lost)?;
        let mut content = None;
        if !parent.is_hole() {
            let address = parent.copies[0].raw();
            let read = store.read_traced(&parent, INDIRECT_BLOCKS, address, wait);
            let found = read.map_err(lost)?;
            let pointers = tree::pointers(&parent, &found)?;
            if let Some(wrong_level) = pointers.iter().find(|ptr| ptr.level != 0) {
                let text =
                    format!("an indirect block of level 1 holds {wrong_level:?}, not level 0");
                return Err(self.block_error(block, Error::new(ErrorKind::Corrupt, text)));
            }
            content = Some(found);
        }
        let mut state = self.lock();
        if state.tree.root == tree.root && self.owner.check_open().is_ok() {
            let hole = match parent.is_preallocated() {
                true => BlockPtrPhys::preallocated(0, parent.logical_bytes.get()),
                false => BlockPtrPhys::HOLE,
            };
            state.pins.set(Tree::parent_of(block), content, hole);
        }
        Ok(())
    }

    /// Reads a block into memory, for use after the state lock is taken again. Returns `None` if
    /// `ptr` is no longer the newest version of the block.
    pub(crate) fn fetch(
        &self,
        block: u64,
        ptr: &BlockPtrPhys,
        wait: Wait,
    ) -> Result<Option<Fetched>> {
        let store = &self.io.store;
        let _reading = store.readers().enter();
        match self.lock().find(block) {
            BlockState::Stored(now) if now == *ptr => {}
            _ => return Ok(None),
        }
        let read = store.read_with(ptr, self.attributes(), wait);
        if store.is_traced() {
            store.trace_miss(self.attributes(), (block, ptr), &read);
        }
        match read {
            Ok(content) => Ok(Some(Fetched { ptr: *ptr, content })),
            Err(error) => {
                store.note_damage(self.number + 1, block, 1, &error);
                Err(self.block_error(block, error))
            }
        }
    }

    /// Notes that the pointers beside that of `block` cannot be read, and adds object and block to
    /// the error.
    pub(super) fn lost_pointers(&self, block: u64, error: Error) -> Error {
        let (first, blocks) = Tree::siblings_of(block);
        self.io.store.note_damage(self.number + 1, first, blocks, &error);
        self.block_error(block, error)
    }

    /// Adds the object and the block to the error.
    pub(crate) fn block_error(&self, block: u64, error: Error) -> Error {
        if error.kind() == ErrorKind::WouldBlock {
            // Frequent and not a failure: do not spend time on its text.
            return error;
        }
        error.doing(format_args!("object {}, block {block}", self.number))
    }
}

/// A block that was read without the state lock.
pub(crate) struct Fetched {
    pub(crate) ptr: BlockPtrPhys,
    pub(crate) content: BlockRef,
}

impl Drop for Node {
    fn drop(&mut self) {
        // This node may hold the last reference to the store, and the store waits for pins.
        let dirty_bytes = {
            let mut state = self.lock();
            state.pins.clear();
            state.pending.iter().map(|pending| pending.dirty_bytes).sum()
        };
        // Dirty bytes of txgs that were never synced.
        self.io.store.cache().sub_dirty(dirty_bytes);
        self.owner.forget(self.number);
    }
}
