//! What the states of a followed pool share.
//!
//! A pool on an object store that another host writes is imported again and again, once for each
//! transaction group that is taken up. Its addresses are written once. So a cache key stands for
//! the same content in all groups, and a block that one of them has read is a hit for the next.
//! Counters of reads go on from group to group, because metrics must not decrease. An L2 of this
//! host ([`FollowerL2`]) serves all of them.
//!
//! # Locking
//! `followed-owners`, `followed-history`, `followed-mark` and `followed-l2` are leaf locks, held
//! for a look, or for storing or taking what they protect.

use forebay_base::sync::{Arc, Mutex};
use hashbrown::HashMap;

use crate::dataset::DatasetSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::events::EventCounters;
use crate::l2::{FollowerL2, L2Device, L2Host};
use crate::open::Opened;
use crate::readahead::PrefetchCounters;
use crate::store::counters::StoreCounters;
use crate::store::{SharedOwner, Store};
use crate::zap::ZapCounters;

use super::Pool;
use super::l2_fill::{L2Fills, moved_bytes};

/// The number under which the owner of the pool's own objects is kept. No dataset has it.
const OWN_OBJECTS: u64 = 0;

/// A pool that is followed: see [`ImportOptions::followed`](crate::ImportOptions::followed).
#[derive(Clone)]
pub struct FollowedPool {
    all: Arc<Followed>,
    /// Those of an import; `None` before it.
    owners: Option<Owners>,
}

/// Owners of cache keys, by the number of their dataset.
type Owners = Arc<Mutex<HashMap<u64, SharedOwner>>>;

struct Followed {
    /// Those of the next imports. Imports of a history that was given up keep theirs.
    owners: Mutex<Owners>,
    counters: ReadCounters,
    /// The mark of the newest state that was noted.
    mark: Mutex<Option<u64>>,
    l2: Mutex<Option<Arc<FollowerL2>>>,
    l2_fills: L2Fills,
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
        let (mark, counters) = (Mutex::named("followed-mark", None), ReadCounters::default());
        let (l2, l2_fills) = (Mutex::named("followed-l2", None), L2Fills::new());
        let owners = Mutex::named("followed-history", new_owners());
        let all = Followed { owners, counters, mark, l2, l2_fills };
        Self { all: Arc::new(all), owners: None }
    }

    /// What an import that begins now shares with others.
    pub(super) fn of_import(&self) -> Self {
        Self { owners: Some(self.owners()), ..self.clone() }
    }

    fn owners(&self) -> Owners {
        self.owners.clone().unwrap_or_else(|| Arc::clone(&self.all.owners.lock()))
    }

    /// Uses `device` as an L2 of this host, for all imports: it keeps the blocks that they have
    /// read, also for a later process. `pool` is the newest import, and `mark` that of the state of
    /// the store that it shows. If the device has an L2 of a follower of this pool, `is_ancestor`
    /// says of its mark whether that state descends from it. If it does not, the L2 is emptied, and
    /// so is that of a follower of another pool. Call [`close_l2`](Self::close_l2) at the end.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) if the device holds anything else,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is too small or there is an L2
    /// already, [`ErrorKind::Device`](crate::ErrorKind::Device).
    pub fn open_l2(
        &self,
        pool: &Pool,
        device: Opened,
        mark: u64,
        is_ancestor: impl FnOnce(u64) -> bool,
    ) -> Result<()> {
        let inner = &pool.inner;
        if self.all.l2.lock().is_some() {
            let text = "a followed pool has one L2 device; it has one already";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let context = (L2Host::context(&**inner), L2Host::random(&**inner));
        let cache = inner.store.cache();
        let l2 = FollowerL2::open(context, cache, device, mark, is_ancestor)?;
        *self.all.mark.lock() = Some(mark);
        *self.all.l2.lock() = Some(Arc::clone(&l2));
        let (followed, cache_bytes) = (self.clone(), cache.bound_bytes());
        let run = move || {
            let counters = Arc::clone(&followed.all.counters.store);
            let fill = |allowed_ns| l2.fill(allowed_ns);
            followed.all.l2_fills.run(cache_bytes, || moved_bytes(&counters), fill);
        };
        self.all.l2_fills.start(run).inspect_err(|_| self.close_l2())
    }

    /// Notes that the state of the store with `mark` is imported next, or is still the newest one.
    /// To be called before that import, and now and then: the L2 keeps nothing new before.
    /// `is_ancestor` is asked whether the newest state descends from the one that was noted before.
    /// If not, the store may have been set back, and cached blocks may be of a history that was
    /// given up: later imports share nothing with those of before, and the L2 is used no more.
    pub fn note_state(&self, mark: u64, is_ancestor: impl FnOnce(u64) -> bool) {
        let before = self.all.mark.lock().replace(mark).filter(|before| *before != mark);
        let l2 = self.l2();
        if before.is_none_or(is_ancestor) {
            l2.iter().for_each(|l2| l2.note_state(mark));
            return;
        }
        // Outside of the lock: the last reference closes them.
        let owners = std::mem::replace(&mut *self.all.owners.lock(), new_owners());
        drop(owners);
        tracing::warn!(
            "the pool may have been set back: what was cached of it is not used any more"
        );
        l2.iter().for_each(|l2| l2.note_set_back());
    }

    /// Loads blocks of the L2 into memory, in the background; once. Those of datasets that are open
    /// in an import. Its tunable `l2_warm_up` may forbid it.
    pub fn warm_up_l2(&self, pool: &Pool) {
        if let Some(l2) = self.l2().filter(|_| pool.inner.tunables.l2_devices().l2_warm_up()) {
            l2.warm_up();
        }
    }

    /// Writes what only memory has to the L2, and closes it. Its content stays. `pool` is not
    /// closed yet.
    pub fn fill_and_close_l2(&self, pool: &Pool) {
        self.all.l2_fills.shut_down();
        let allowed_ms = u64::from(pool.inner.tunables.l2_devices().l2_export_ms());
        if let Some(l2) = self.l2() {
            l2.fill(allowed_ms * 1_000_000);
        }
        self.close_l2();
    }

    /// Closes the L2. Its content stays.
    pub fn close_l2(&self) {
        self.all.l2_fills.shut_down();
        let l2 = self.all.l2.lock().take();
        if let Some(l2) = l2 {
            l2.close();
        }
    }

    /// Waits until the index of the L2 is rebuilt, and what it loads is in memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn wait_for_l2(&self) {
        if let Some(l2) = self.l2() {
            l2.wait_rebuilt();
            l2.wait_warm_up();
        }
    }

    fn l2(&self) -> Option<Arc<FollowerL2>> {
        self.all.l2.lock().clone()
    }

    /// The L2 of this host, if there is one.
    pub(super) fn l2_device(&self) -> Option<L2Device> {
        self.l2().map(|l2| l2.info())
    }

    pub(super) fn counters(&self) -> &ReadCounters {
        &self.all.counters
    }

    /// The owner of a dataset's keys, if an import of before has opened it.
    fn owner(&self, number: u64) -> Option<SharedOwner> {
        self.owners().lock().get(&number).cloned()
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
        self.owners().lock().entry(number).or_insert_with(|| store.shared_owner());
        Ok(store)
    }
}

fn new_owners() -> Owners {
    Arc::new(Mutex::named("followed-owners", HashMap::new()))
}

impl std::fmt::Debug for FollowedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FollowedPool({} owners)", self.owners().lock().len())
    }
}
