//! The L2 devices of one pool, and the rules for blocks that may be written to them.
//!
//! # Invariants
//!
//! - No block is written before its birth txg is durable. After a crash, its txg and address could
//!   be used for another block.
//! - Only owners registered here belong to the pool. The dataset's setting decides about their
//!   blocks.
//!
//! Locking: `pool-l2-modes`, `pool-l2-datasets` and `pool-l2-attached` are leaf locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Class, Key, OwnerId};
use hashbrown::HashMap;

use super::owners::{DatasetOpener, DatasetOwners};
use super::router::{Attached, Blocks, L2Cache, L2Router};
use crate::format::CacheMode;

/// The L2 devices of a pool, and the admission of its blocks.
pub(crate) struct PoolL2 {
    router: Arc<L2Router>,
    /// The newest durable txg.
    durable: AtomicU64,
    modes: Mutex<HashMap<OwnerId, CacheMode>>,
    numbers: DatasetOwners,
    attached: Mutex<Attached>,
}

impl PoolL2 {
    pub(crate) fn new(router: &Arc<L2Router>) -> Arc<Self> {
        Arc::new(Self {
            router: Arc::clone(router),
            durable: AtomicU64::new(0),
            modes: Mutex::named("pool-l2-modes", HashMap::new()),
            numbers: DatasetOwners::new(),
            attached: Mutex::named("pool-l2-attached", Arc::new([])),
        })
    }

    /// Registers `owner` for this pool. `mode` selects the blocks that may go to L2 devices.
    pub(crate) fn add_owner(self: &Arc<Self>, owner: OwnerId, mode: CacheMode) {
        self.set_mode(owner, mode);
        drop(self.router.shard(owner).lock().insert(owner, Arc::clone(self)));
    }

    /// Unregisters `owner`.
    pub(crate) fn remove_owner(&self, owner: OwnerId) {
        drop(self.router.shard(owner).lock().remove(&owner));
        self.modes.lock().remove(&owner);
        self.numbers.remove(owner);
    }

    /// Sets the dataset number of `owner`; 0 stands for the pool's own objects.
    pub(crate) fn number(&self, owner: OwnerId, number: u64) {
        self.numbers.set(owner, number);
    }

    /// Returns the dataset number of an owner, if known.
    pub(crate) fn dataset_of_owner(&self, owner: OwnerId) -> Option<u64> {
        self.numbers.of(owner)
    }

    /// Returns the owner of a dataset. Opens the dataset if necessary and possible. May wait for
    /// the pool's devices.
    pub(crate) fn owner_of(&self, number: u64) -> Option<OwnerId> {
        self.numbers.owner(number)
    }

    /// Sets how datasets with blocks on an L2 are opened.
    pub(crate) fn set_dataset_opener(&self, opener: Arc<dyn DatasetOpener>) {
        self.numbers.set_dataset_opener(opener);
    }

    /// Sets which of an owner's blocks may go to L2 devices.
    pub(crate) fn set_mode(&self, owner: OwnerId, mode: CacheMode) {
        self.modes.lock().insert(owner, mode);
    }

    /// Which of an owner's blocks may go to L2 devices; none for an owner of another pool.
    pub(crate) fn mode(&self, owner: OwnerId) -> CacheMode {
        self.modes.lock().get(&owner).copied().unwrap_or(CacheMode::None)
    }

    /// Whether `owner` belongs to this pool.
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
        self.router.all_attached.lock().push(Arc::clone(&l2));
        {
            let mut attached = self.attached.lock();
            *attached = attached.iter().cloned().chain([l2]).collect();
        }
        self.router.attached.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops using an L2. Its running operations may continue. Returns false if it is not attached.
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
        self.router.attached.fetch_sub(1, Ordering::Relaxed);
        self.router.all_attached.lock().retain(|other| !Arc::ptr_eq(other, l2));
        true
    }

    /// Writes the blocks that belong to this pool to their L2 devices, as [`L2Cache::write_all`].
    /// Returns false if no L2 device can write any more.
    pub(crate) fn write_all(&self, mut blocks: Blocks) -> bool {
        blocks.retain(|block| self.has(block.key().owner()));
        let mut writes = blocks.is_empty();
        self.router.distribute(blocks, |l2, batch| writes |= l2.write_all(batch));
        writes
    }

    /// Whether the pool has an L2 that takes blocks of this owner and class.
    pub(crate) fn takes(&self, owner: OwnerId, class: Class) -> bool {
        let has_any = !self.attached.lock().is_empty();
        has_any && self.admission(owner, class) == ClassAdmission::Admitted
    }

    /// Whether L2 devices admit blocks of this owner and class.
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

/// Admission of a class of an owner's blocks to L2 devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassAdmission {
    Admitted,
    ClassExcluded,
    OwnerExcluded,
}
