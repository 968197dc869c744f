//! The L2 caches of one pool, and the rules for blocks that may be written to them.
//!
//! # Invariants
//!
//! - No block is written before the transaction group that it was born in is durable. A crash could
//!   give its txg and its address to another block.
//! - Only owners that are enrolled here belong to the pool. What their blocks may do depends on the
//!   dataset's setting.
//!
//! Locking: `pool-l2-modes`, `pool-l2-datasets` and `pool-l2-attached` are leaf locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Class, Key, OwnerId};
use hashbrown::HashMap;

use super::owners::{DatasetOpener, DatasetOwners};
use super::router::{Attached, Blocks, L2Cache, L2Router};
use crate::format::CacheMode;

/// A pool's L2 caches, and what of its blocks may go there.
pub(crate) struct PoolL2 {
    mux: Arc<L2Router>,
    /// The newest durable transaction group.
    durable: AtomicU64,
    modes: Mutex<HashMap<OwnerId, CacheMode>>,
    numbers: DatasetOwners,
    attached: Mutex<Attached>,
}

impl PoolL2 {
    pub(crate) fn new(mux: &Arc<L2Router>) -> Arc<Self> {
        Arc::new(Self {
            mux: Arc::clone(mux),
            durable: AtomicU64::new(0),
            modes: Mutex::named("pool-l2-modes", HashMap::new()),
            numbers: DatasetOwners::new(),
            attached: Mutex::named("pool-l2-attached", Arc::new([])),
        })
    }

    /// Blocks with keys of `owner` are this pool's from now on, and may go to its L2 caches as
    /// `mode` says.
    pub(crate) fn add_owner(self: &Arc<Self>, owner: OwnerId, mode: CacheMode) {
        self.set_mode(owner, mode);
        drop(self.mux.shard(owner).lock().insert(owner, Arc::clone(self)));
    }

    /// The end of that.
    pub(crate) fn remove_owner(&self, owner: OwnerId) {
        drop(self.mux.shard(owner).lock().remove(&owner));
        self.modes.lock().remove(&owner);
        self.numbers.remove(owner);
    }

    /// `owner` is that of the dataset of this number from now on; 0 is the pool's own objects.
    pub(crate) fn number(&self, owner: OwnerId, number: u64) {
        self.numbers.set(owner, number);
    }

    /// The number of an owner's dataset, if it has been told.
    pub(crate) fn dataset_of_owner(&self, owner: OwnerId) -> Option<u64> {
        self.numbers.of(owner)
    }

    /// The owner of the dataset of that number, which is opened if need be and can be. May wait for
    /// the pool's devices.
    pub(crate) fn owner_of(&self, number: u64) -> Option<OwnerId> {
        self.numbers.owner(number)
    }

    /// How datasets are opened of which an L2 has blocks.
    pub(crate) fn open_by(&self, opens: Arc<dyn DatasetOpener>) {
        self.numbers.open_by(opens);
    }

    /// What of an owner's blocks goes to L2 caches from now on.
    pub(crate) fn set_mode(&self, owner: OwnerId, mode: CacheMode) {
        self.modes.lock().insert(owner, mode);
    }

    /// What of an owner's blocks goes to L2 caches; nothing for one that is none of the pool's.
    pub(crate) fn mode(&self, owner: OwnerId) -> CacheMode {
        self.modes.lock().get(&owner).copied().unwrap_or(CacheMode::None)
    }

    /// Whether keys of `owner` are this pool's.
    pub(crate) fn has(&self, owner: OwnerId) -> bool {
        self.modes.lock().contains_key(&owner)
    }

    /// Txgs up to `txg` are durable.
    pub(crate) fn note_durable(&self, txg: u64) {
        self.durable.fetch_max(txg, Ordering::Relaxed);
    }

    /// The newest durable txg.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    pub(super) fn attached(&self) -> Attached {
        Arc::clone(&self.attached.lock())
    }

    /// Uses an L2 from now on.
    pub(crate) fn attach(&self, l2: Arc<dyn L2Cache>) {
        self.mux.everywhere.lock().push(Arc::clone(&l2));
        {
            let mut attached = self.attached.lock();
            *attached = attached.iter().cloned().chain([l2]).collect();
        }
        self.mux.attached.fetch_add(1, Ordering::Relaxed);
    }

    /// Offers it nothing more, and asks it for nothing. What it is doing it may still be doing.
    /// False if it is not here.
    pub(crate) fn detach(&self, l2: &Arc<dyn L2Cache>) -> bool {
        {
            let mut attached = self.attached.lock();
            let rest: Attached =
                attached.iter().filter(|other| !Arc::ptr_eq(other, l2)).cloned().collect();
            if rest.len() == attached.len() {
                return false;
            }
            *attached = rest;
        }
        self.mux.attached.fetch_sub(1, Ordering::Relaxed);
        self.mux.everywhere.lock().retain(|other| !Arc::ptr_eq(other, l2));
        true
    }

    /// Writes those of the blocks that are this pool's to the L2 caches that they are for, as
    /// [`L2Cache::write_all`]. False if none can write any more.
    pub(crate) fn write_all(&self, mut blocks: Blocks) -> bool {
        blocks.retain(|block| self.has(block.key().owner()));
        let mut writes = blocks.is_empty();
        self.mux.hand_out(blocks, |l2, batch| writes |= l2.write_all(batch));
        writes
    }

    /// Whether blocks of this class and owner are wanted on L2 caches.
    pub(crate) fn admission(&self, owner: OwnerId, class: Class) -> ClassAdmission {
        match (self.mode(owner), class) {
            (CacheMode::All, _) | (CacheMode::Metadata, Class::Metadata) => {
                ClassAdmission::Admitted
            }
            (CacheMode::Metadata, Class::Data) => ClassAdmission::ClassExcluded,
            (CacheMode::None, _) => ClassAdmission::OwnerExcluded,
        }
    }
}

/// Whether a class of an owner's blocks may go to L2 caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassAdmission {
    Admitted,
    ClassExcluded,
    OwnerExcluded,
}
