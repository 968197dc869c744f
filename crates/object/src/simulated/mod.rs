//! A simulated object store, for tests: an exact store in memory behind a bad network.
//!
//! Requests take time, so they end in any order. A request may fail before it takes effect, after
//! it did (*lost response*), or fail and take effect much later (*late*). Bodies may be cut. The
//! client may die at any change: the requests in flight then take effect or do not, and nothing is
//! answered any more.
//!
//! Time is that of the async runtime, which tests pause. A seed gives the same run.
//!
//! A store may be recorded, which gives the state after a crash at each of its moments.

mod recording;

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Mutex};
use tokio::time::sleep;

use crate::memory::{MemoryStore, cut};
use crate::store::{
    Body, Condition, ObjectStore, StoreError, StoreErrorKind, StoreFuture, Version,
};
use recording::{Recording, UnderWay};

pub use recording::{Change, CrashedStore};

/// How the network behaves. The numbers are chances of a thousand.
#[derive(Clone, Debug)]
pub struct Network {
    /// The time that a request takes in each direction.
    pub latency: Range<Duration>,
    /// The request fails before it takes effect.
    pub refused: u64,
    /// It takes effect, and its answer is lost.
    pub lost: u64,
    /// It fails, and takes effect much later.
    pub late: u64,
    /// The store asks for fewer requests.
    pub slow_down: u64,
    /// The body of the answer is cut.
    pub cut: u64,
    /// Something else answers an unconditional change: there is no such object.
    pub strange: u64,
}

impl Network {
    /// Nothing fails.
    pub const GOOD: Self = Self {
        latency: Duration::from_millis(2)..Duration::from_millis(40),
        refused: 0,
        lost: 0,
        late: 0,
        slow_down: 0,
        cut: 0,
        strange: 0,
    };
    /// Nothing fails, and nothing takes time.
    pub const INSTANT: Self = Self { latency: Duration::ZERO..Duration::ZERO, ..Self::GOOD };
    /// A tenth of the requests fails in one way or another.
    pub const BAD: Self =
        Self { refused: 30, lost: 40, late: 20, slow_down: 20, cut: 20, strange: 10, ..Self::GOOD };
}

/// A simulated store.
///
/// Locking: `simulated-store`, a leaf lock.
pub struct SimulatedStore {
    inner: Arc<MemoryStore>,
    recording: Option<Arc<Recording>>,
    state: Mutex<State>,
}

struct State {
    network: Network,
    rng: SmallRng,
    /// Changes until the client dies.
    changes_left: Option<u64>,
    dead: bool,
    away: bool,
    full: bool,
    /// The start of the keys whose deletes are refused.
    kept: Option<String>,
    timeless: bool,
    /// Bytes a second that the bodies of puts share.
    bandwidth: Option<u64>,
    uploads: u64,
    paused: bool,
    /// Held by each put that was not executed yet.
    puts: Arc<()>,
    /// Changes of an earlier client that are still under way.
    stragglers: Vec<Change>,
    /// Gets that still are answered by "not found".
    hidden: u64,
    requests: u64,
    changes: u64,
    in_flight: usize,
    most_in_flight: usize,
}

enum Fate {
    Done,
    Refused,
    Lost,
    Late,
    SlowDown,
    Cut,
    Strange,
}

impl SimulatedStore {
    /// Creates a front of `inner`. The seed decides what fails, and which requests are fast.
    pub fn new(inner: Arc<MemoryStore>, network: Network, seed: u64) -> Arc<Self> {
        Self::create(inner, network, seed, None)
    }

    /// Creates an empty store that records all changes.
    pub fn recorded(network: Network, seed: u64) -> Arc<Self> {
        Self::create(MemoryStore::new(), network, seed, Some(Arc::new(Recording::new())))
    }

    fn create(
        inner: Arc<MemoryStore>,
        network: Network,
        seed: u64,
        recording: Option<Arc<Recording>>,
    ) -> Arc<Self> {
        let state = State {
            network,
            rng: SmallRng::from_seed(seed),
            changes_left: None,
            dead: false,
            away: false,
            full: false,
            kept: None,
            timeless: false,
            bandwidth: None,
            uploads: 0,
            paused: false,
            puts: Arc::new(()),
            stragglers: Vec::new(),
            hidden: 0,
            requests: 0,
            changes: 0,
            in_flight: 0,
            most_in_flight: 0,
        };
        Arc::new(Self { inner, recording, state: Mutex::named("simulated-store", state) })
    }

    /// Number of events of the recording until now; 0 without one.
    pub fn position(&self) -> usize {
        self.recording.as_ref().map_or(0, |recording| recording.position())
    }

    /// The store after a crash of its client when `position` events had happened.
    ///
    /// # Panics
    /// If it is not recorded, or had fewer events.
    pub fn crash_at(&self, position: usize) -> CrashedStore {
        self.recording.as_ref().expect("a recorded store").crash_at(position)
    }

    /// Opens the front of a store whose last client has crashed. Each request that was under way is
    /// executed before the first one of the new client, between two of its requests, or never.
    pub fn after_crash(crashed: CrashedStore, seed: u64) -> Arc<Self> {
        let CrashedStore { memory, mut under_way } = crashed;
        let store = Self::new(memory, Network::INSTANT, seed);
        {
            let mut state = store.state.lock();
            for at in (1..under_way.len()).rev() {
                let other = state.rng.below(at as u64 + 1) as usize;
                under_way.swap(at, other);
            }
            for change in under_way {
                match state.rng.below(3) {
                    0 => drop(change.execute(&store.inner)),
                    1 => state.stragglers.push(change),
                    _ => {}
                }
            }
        }
        store
    }

    /// What the store has.
    pub fn memory(&self) -> &Arc<MemoryStore> {
        &self.inner
    }

    /// Lets a request of an earlier client take effect, or not.
    fn let_straggler_in(&self) {
        let straggler = {
            let mut state = self.state.lock();
            let comes = !state.stragglers.is_empty() && state.rng.below(4) == 0;
            if comes { state.stragglers.pop() } else { None }
        };
        if let Some(change) = straggler {
            drop(change.execute(&self.inner));
        }
    }

    /// Lets the client die at the change after `changes` others.
    pub fn die_after(&self, changes: u64) {
        self.state.lock().changes_left = Some(changes);
    }

    /// Sets whether the store answers nothing but errors.
    pub fn set_away(&self, away: bool) {
        self.state.lock().away = away;
    }

    /// Sets whether the store refuses puts, and answers all else.
    pub fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Sets whether the store refuses deletes, and answers all else.
    pub fn set_keeping(&self, keeping: bool) {
        self.state.lock().kept = keeping.then(String::new);
    }

    /// Lets the store refuse deletes of keys that start so, and answer all else.
    pub fn keep(&self, prefix: &str) {
        self.state.lock().kept = Some(prefix.to_owned());
    }

    /// Sets whether the store fails to tell when an object was written.
    pub fn set_timeless(&self, timeless: bool) {
        self.state.lock().timeless = timeless;
    }

    /// Sets the bandwidth that all puts share.
    pub fn set_bandwidth(&self, bytes_per_second: u64) {
        self.state.lock().bandwidth = Some(bytes_per_second);
    }

    /// Sends a body. It shares the link fairly with the others, until it is sent or given up.
    async fn upload(&self, mut bytes: u64) {
        /// Gives the share of the link back.
        struct Share<'a>(&'a SimulatedStore);
        impl Drop for Share<'_> {
            fn drop(&mut self) {
                self.0.state.lock().uploads -= 1;
            }
        }
        self.state.lock().uploads += 1;
        let _share = Share(self);
        while bytes > 0 {
            let (bandwidth, uploads) = {
                let state = self.state.lock();
                (state.bandwidth, state.uploads)
            };
            let Some(bandwidth) = bandwidth else { return };
            sleep(Duration::from_millis(100)).await;
            bytes = bytes.saturating_sub((bandwidth / 10 / uploads).max(1));
        }
    }

    /// Puts that were sent and not executed.
    pub fn puts_under_way(&self) -> usize {
        Arc::strong_count(&self.state.lock().puts) - 1
    }

    /// Sets whether the client is suspended: its requests stay where they are.
    pub fn set_paused(&self, paused: bool) {
        self.state.lock().paused = paused;
    }

    /// Lets the next `gets` find nothing.
    pub fn hide(&self, gets: u64) {
        self.state.lock().hidden = gets;
    }

    fn is_hidden(&self) -> bool {
        let mut state = self.state.lock();
        let hidden = state.hidden > 0;
        state.hidden = state.hidden.saturating_sub(1);
        hidden
    }

    async fn travel(&self, time: Duration) {
        if !time.is_zero() {
            sleep(time).await;
        }
        while self.state.lock().paused {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sets how the network behaves.
    pub fn set_network(&self, network: Network) {
        self.state.lock().network = network;
    }

    /// Whether the client has died.
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Puts and deletes that were sent.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// All requests that were sent.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// The most requests that were in flight at a time since the last call.
    pub fn take_most_in_flight(&self) -> usize {
        std::mem::take(&mut self.state.lock().most_in_flight)
    }

    fn draw(&self) -> (Fate, Duration) {
        let mut state = self.state.lock();
        let Network { latency, refused, lost, late, slow_down, cut, strange } =
            state.network.clone();
        let span = (latency.end - latency.start).as_micros() as u64;
        let wait = latency.start + Duration::from_micros(state.rng.below(span + 1));
        let mut chance = state.rng.below(1000);
        let mut is = |share: u64| {
            let hit = chance < share;
            chance = chance.saturating_sub(share) + if hit { 1000 } else { 0 };
            hit
        };
        let fate = if state.away || is(refused) {
            Fate::Refused
        } else if is(lost) {
            Fate::Lost
        } else if is(late) {
            Fate::Late
        } else if is(slow_down) {
            Fate::SlowDown
        } else if is(cut) {
            Fate::Cut
        } else if is(strange) {
            Fate::Strange
        } else {
            Fate::Done
        };
        (fate, wait)
    }

    /// Executes a change, after it has travelled.
    async fn change(&self, change: Change, count: Option<Arc<()>>) -> Result<Version, StoreError> {
        {
            let mut state = self.state.lock();
            state.changes += 1;
            if let Some(left) = &mut state.changes_left {
                if *left == 0 {
                    state.dead = true;
                } else {
                    *left -= 1;
                }
            }
        }
        let conditional = change.is_conditional();
        let under_way = UnderWay::new(change, self.recording.as_ref(), count);
        let (fate, wait) = self.start().await;
        self.travel(wait).await;
        if self.is_dead() {
            // It may have been sent in time.
            if self.state.lock().rng.below(2) == 0 {
                drop(under_way.execute(&self.inner));
            }
            return std::future::pending().await;
        }
        let result = match fate {
            Fate::Refused => Err(failure("connection refused")),
            Fate::SlowDown => Err(slow_down()),
            Fate::Strange if !conditional => Err(strange()),
            Fate::Strange => Err(failure("404 page not found")),
            Fate::Late => {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    sleep(wait * 20).await;
                    drop(under_way.execute(&inner));
                });
                Err(failure("the connection was reset, the request is on its way"))
            }
            Fate::Lost => {
                drop(under_way.execute(&self.inner));
                Err(failure("the connection was reset after the request"))
            }
            Fate::Done | Fate::Cut => under_way.execute(&self.inner),
        };
        self.end().await;
        result
    }

    /// Executes a request that changes nothing.
    async fn look<T>(
        &self,
        execute: impl FnOnce(&MemoryStore) -> Result<T, StoreError>,
        cut_short: impl FnOnce(T) -> T,
    ) -> Result<T, StoreError> {
        let (fate, wait) = self.start().await;
        self.travel(wait).await;
        let result = match fate {
            _ if self.is_hidden() => Err(strange()),
            Fate::Refused | Fate::Lost | Fate::Late | Fate::Strange => {
                Err(failure("connection refused"))
            }
            Fate::SlowDown => Err(slow_down()),
            Fate::Done => execute(&self.inner),
            Fate::Cut => execute(&self.inner).map(cut_short),
        };
        self.end().await;
        result
    }

    async fn start(&self) -> (Fate, Duration) {
        self.let_straggler_in();
        {
            let mut state = self.state.lock();
            state.requests += 1;
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
        }
        self.draw()
    }

    async fn end(&self) {
        let (_, wait) = self.draw();
        self.travel(wait).await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
        self.state.lock().in_flight -= 1;
    }
}

fn failure(text: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Other, text)
}

fn slow_down() -> StoreError {
    StoreError::new(StoreErrorKind::SlowDown, "slow down")
}

fn strange() -> StoreError {
    StoreError::new(StoreErrorKind::NotFound, "404 page not found")
}

fn half(body: Bytes) -> Bytes {
    body.slice(..body.len() / 2)
}

impl ObjectStore for SimulatedStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Bytes, Version)> {
        let cut_short = |(body, version)| (half(body), version);
        Box::pin(self.look(move |store| store.get_now(key), cut_short))
    }

    fn modified<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Duration>> {
        let timeless = self.state.lock().timeless;
        let execute = move |store: &MemoryStore| match timeless {
            true => Err(failure("the time is not known")),
            false => store.modified_now(key),
        };
        Box::pin(self.look(execute, |modified| modified))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        let execute = move |store: &MemoryStore| Ok(cut(&store.get_now(key)?.0, &range));
        Box::pin(self.look(execute, half))
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        let key = key.to_owned();
        Box::pin(async move {
            if self.state.lock().full {
                sleep(Duration::from_millis(10)).await;
                return Err(StoreError::new(StoreErrorKind::Denied, "the quota is exceeded"));
            }
            self.upload(body.len()).await;
            let count = Arc::clone(&self.state.lock().puts);
            self.change(Change::Put { key, body, condition }, Some(count)).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        let key = key.to_owned();
        Box::pin(async move {
            let kept = self.state.lock().kept.clone();
            if kept.is_some_and(|prefix| key.starts_with(&prefix)) {
                sleep(Duration::from_millis(10)).await;
                return Err(StoreError::new(StoreErrorKind::Denied, "deletes are not permitted"));
            }
            self.change(Change::Delete { key }, None).await.map(|_| ())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>> {
        // A page that is cut is a shorter page, and no error: the next one goes on after it.
        let cut_short = |page: Vec<String>| page;
        Box::pin(self.look(move |store| Ok(store.list_now(prefix, after)), cut_short))
    }
}
