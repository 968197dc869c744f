//! Crash tests on a simulated object store.
//!
//! Everything from the pool to the requests is real. The store is simulated: requests end in any
//! order, and a crash may be between any two events of any of them. The next host takes the store
//! over, while requests of the one before still come in.

use std::sync::Arc;
use std::time::Duration;

use forebay_io::Device;
use forebay_object::simulated::{CrashedStore, Network, SimulatedStore};
use forebay_object::{
    Body, Condition, LiveRanges, ObjectDevice, ObjectStore, Options, StoreDecorator, StoreFuture,
    Version,
};
use forebay_pool::Pool;

use super::cuts::{Cuts, Recorder};

/// The longest time that a request takes in one direction.
const LATENCY_MAX: Duration = Duration::from_millis(3);

/// How far the clock of the store goes forward between two hosts: what the one before has listed
/// for its deletion is old then.
const BETWEEN_HOSTS: Duration = Duration::from_secs(60);

/// An empty store that is recorded.
pub(super) fn recorded(fails: bool, seed: u64) -> Arc<SimulatedStore> {
    let network = if fails { Network::BAD } else { Network::GOOD };
    SimulatedStore::recorded(Network { latency: Duration::ZERO..LATENCY_MAX, ..network }, seed)
}

/// Creates the device of a new pool on a recorded store.
pub(super) fn create(
    store: &Arc<SimulatedStore>,
    cuts: &Arc<Cuts>,
    seed: u64,
) -> Arc<ObjectDevice> {
    let store = CutStore { inner: Arc::clone(store), cuts: Arc::clone(cuts) };
    ObjectDevice::create(Arc::new(store), "store", options(0, seed)).expect("a store")
}

/// Whether what is freed waits in lists of the store: those are in crash images then.
fn has_lists(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Checkpoints are frequent. What is freed is deleted at once, so that a delete too many is found,
/// or goes to lists, which a later host finds.
fn options(host: u64, seed: u64) -> Options {
    let (grace, freed_max) = match has_lists(seed) {
        true => (Duration::from_millis(20), 4),
        false => (Duration::ZERO, Options::default().freed_max),
    };
    Options {
        owner: format!("host {host}"),
        seal_after: Duration::from_millis(1),
        grace,
        freed_max,
        pin_check: Duration::from_millis(10),
        chain_objects: 4 + seed % 16,
        seed: Some(seed ^ host << 32),
        ..Options::default()
    }
}

/// Lets the device merge and delete objects.
pub(super) fn start_cleaner(device: &ObjectDevice, pool: &Pool) {
    struct Live(forebay_pool::LiveRanges);
    impl LiveRanges for Live {
        fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
            self.0.within(start, end).map_err(|error| error.to_string())
        }
    }
    device.set_live_ranges(Arc::new(Live(pool.live_ranges())));
}

/// Closes the device of the work.
///
/// # Panics
/// If it was to write lists of what is freed, and has written none.
pub(super) fn close(device: &ObjectDevice, seed: u64) {
    let stats = device.stats();
    let lists = stats.counters.iter().find(|counter| counter.0 == "freed_lists");
    let lists = lists.map_or(0, |counter| counter.2);
    assert!(lists > 0 || !has_lists(seed), "no list of freed objects was written");
    device.close();
}

/// A store after a crash, with the host that has it now.
pub(crate) struct StoreImage {
    front: Arc<SimulatedStore>,
    device: Arc<ObjectDevice>,
    host: u64,
    seed: u64,
}

impl StoreImage {
    /// The next host takes the store over.
    pub(super) fn new(crashed: CrashedStore, seed: u64) -> Self {
        let front = SimulatedStore::after_crash(crashed, seed);
        front.memory().advance(BETWEEN_HOSTS);
        let options = Options { force: true, ..options(1, seed) };
        let device = ObjectDevice::open(Arc::<SimulatedStore>::clone(&front), "image", options)
            .unwrap_or_else(|error| panic!("the takeover: {error}"));
        Self { front, device, host: 1, seed }
    }

    pub(super) fn device(&self) -> &Arc<ObjectDevice> {
        &self.device
    }

    /// A copy of the store as the host has found it, to read only.
    pub(super) fn copy(&self) -> Arc<dyn Device> {
        let device = ObjectDevice::open_read_only(
            self.front.memory().fork(),
            "copy",
            options(u64::MAX, self.seed),
        );
        device.unwrap_or_else(|error| panic!("a copy of the image: {error}"))
    }

    /// The host closes the store, so that another one may open it without force.
    pub(super) fn reopen(&mut self) {
        self.device.close();
        self.host += 1;
        self.front.memory().advance(BETWEEN_HOSTS);
        let store = Arc::<SimulatedStore>::clone(&self.front);
        self.device = ObjectDevice::open(store, "image", options(self.host, self.seed))
            .unwrap_or_else(|error| panic!("an open after a close: {error}"));
    }
}

/// A store that takes cuts before each change, and after each answer to a conditional put.
struct CutStore {
    inner: Arc<SimulatedStore>,
    cuts: Arc<Cuts>,
}

impl Recorder for SimulatedStore {
    fn position(&self) -> usize {
        Self::position(self)
    }
}

impl StoreDecorator for CutStore {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn own_put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let publishes = condition != Condition::Always;
            self.cuts.take_cut(publishes);
            let result = self.inner.put(key, body, condition).await;
            if publishes {
                self.cuts.take_cut(false);
            }
            result
        })
    }

    fn own_delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        self.cuts.take_cut(false);
        self.inner.delete(key)
    }
}
