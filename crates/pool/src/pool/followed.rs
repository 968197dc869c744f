//! What the states of a followed pool share.
//!
//! A pool on an object store that another host writes is imported again and again, once for each
//! transaction group that is taken up. Its addresses are written once. So a cache key stands for
//! the same content in all groups, and a block that one of them has read is a hit for the next.
//! Counters of reads go on from group to group, because metrics must not decrease.
//!
//! # Locking
//! `followed-owners` is a leaf lock, held for a look or an insert.

use forebay_base::sync::{Arc, Mutex};
use hashbrown::HashMap;

use crate::dataset::DatasetSettings;
use crate::error::Result;
use crate::events::EventCounters;
use crate::readahead::PrefetchCounters;
use crate::store::counters::StoreCounters;
use crate::store::{SharedOwner, Store};
use crate::zap::ZapCounters;

/// The number under which the owner of the pool's own objects is kept. No dataset has it.
const OWN_OBJECTS: u64 = 0;

/// A pool that is followed: see [`ImportOptions::followed`](crate::ImportOptions::followed).
#[derive(Clone)]
pub struct FollowedPool(Arc<Followed>);

struct Followed {
    owners: Mutex<HashMap<u64, SharedOwner>>,
    counters: ReadCounters,
}

/// The counters that also change in a pool that is only read.
#[derive(Clone)]
pub(super) struct ReadCounters {
    pub(super) store: Arc<StoreCounters>,
    pub(super) events: Arc<EventCounters>,
    pub(super) prefetch: Arc<PrefetchCounters>,
    pub(super) directories: Arc<ZapCounters>,
}

impl Default for ReadCounters {
    fn default() -> Self {
        Self {
            store: Arc::new(StoreCounters::new()),
            events: Arc::new(EventCounters::new()),
            prefetch: Arc::new(PrefetchCounters::new()),
            directories: Arc::new(ZapCounters::new()),
        }
    }
}

impl Default for FollowedPool {
    fn default() -> Self {
        Self::new()
    }
}

impl FollowedPool {
    /// Returns what is to be shared by the imports of one pool.
    pub fn new() -> Self {
        let owners = Mutex::named("followed-owners", HashMap::new());
        Self(Arc::new(Followed { owners, counters: ReadCounters::default() }))
    }

    pub(super) fn counters(&self) -> &ReadCounters {
        &self.0.counters
    }

    /// The owner of a dataset's keys, if an import of before has opened it.
    fn owner(&self, number: u64) -> Option<SharedOwner> {
        self.0.owners.lock().get(&number).cloned()
    }

    /// The store of the pool's own objects: with the owner of before, or as `open` makes it.
    pub(super) fn own_store(
        &self,
        share: impl FnOnce(SharedOwner) -> Store,
        open: impl FnOnce() -> Result<Store>,
    ) -> Result<Store> {
        self.store(OWN_OBJECTS, share, open)
    }

    /// The store of a dataset: with the owner of before, or as `open` makes it.
    pub(super) fn dataset_store(
        &self,
        (number, settings): (u64, &DatasetSettings),
        own: &Store,
        open: impl FnOnce() -> Result<Store>,
    ) -> Result<Store> {
        let share = |owner| {
            let store = own.with_shared_owner(owner);
            store.cache().cache().set_owner_caching(store.owner(), settings.caching());
            store.set_l2_mode(settings.l2);
            store
        };
        self.store(number, share, open)
    }

    fn store(
        &self,
        number: u64,
        share: impl FnOnce(SharedOwner) -> Store,
        open: impl FnOnce() -> Result<Store>,
    ) -> Result<Store> {
        if let Some(owner) = self.owner(number) {
            return Ok(share(owner));
        }
        let store = open()?;
        self.0.owners.lock().entry(number).or_insert_with(|| store.shared_owner());
        Ok(store)
    }
}

impl std::fmt::Debug for FollowedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FollowedPool({} owners)", self.0.owners.lock().len())
    }
}
