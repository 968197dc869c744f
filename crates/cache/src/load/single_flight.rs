//! Single flight: the waiters of loads in flight.
//!
//! A request that joins a load pins the load's header, so the block stays until the request has
//! seen it. It adds a [`LoadWaiter`] to this table. The thread that ends the load takes all waiters
//! of the header and notifies them in the order in which they joined. A request that gives up
//! removes its waiter. A load without waiters allocates nothing.
//!
//! Locking: `in-flight-loads`, sharded by header; `load-waiter` is a leaf lock. Callbacks and
//! wakers run without locks.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_base::waits::{self, WaitKind};

use crate::load::error::LoadError;

const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 16 };

/// How a load ended: with a filled header, or an error.
pub(crate) type LoadOutcome = Result<(), LoadError>;

/// Called once, when the load has ended.
pub(crate) type Callback = Box<dyn FnOnce(LoadOutcome) + Send>;

/// One request that waits for a load.
pub(crate) struct LoadWaiter {
    state: Mutex<WaiterState>,
    settled: Condvar,
}

enum WaiterState {
    Waiting(Option<Waker>),
    Callback(Callback),
    Settled(LoadOutcome),
    /// The callback has taken the outcome.
    Done,
}

/// The notification of a waiter, delivered without locks.
pub(crate) enum Notice {
    None,
    Wake(Waker),
    Call(Callback, LoadOutcome),
}

impl Notice {
    pub(crate) fn deliver(self) {
        match self {
            Self::None => {}
            Self::Wake(waker) => waker.wake(),
            Self::Call(callback, outcome) => callback(outcome),
        }
    }
}

impl LoadWaiter {
    pub(crate) fn new() -> Arc<Self> {
        let state = Mutex::named("load-waiter", WaiterState::Waiting(None));
        Arc::new(Self { state, settled: Condvar::new() })
    }

    pub(crate) fn settle(&self, outcome: LoadOutcome) -> Notice {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut *state, WaiterState::Settled(outcome.clone()));
        match before {
            WaiterState::Waiting(waker) => {
                drop(state);
                self.settled.notify_all();
                waker.map_or(Notice::None, Notice::Wake)
            }
            WaiterState::Callback(callback) => {
                *state = WaiterState::Done;
                Notice::Call(callback, outcome)
            }
            WaiterState::Settled(_) | WaiterState::Done => unreachable!("a load ends once"),
        }
    }

    pub(crate) fn wait(&self) -> LoadOutcome {
        let _wait = waits::measure(WaitKind::Device);
        let mut state = self.state.lock();
        loop {
            if let WaiterState::Settled(outcome) = &*state {
                return outcome.clone();
            }
            self.settled.wait(&mut state);
        }
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Option<LoadOutcome> {
        let mut state = self.state.lock();
        match &mut *state {
            WaiterState::Settled(outcome) => Some(outcome.clone()),
            WaiterState::Waiting(slot) => {
                *slot = Some(waker.clone());
                None
            }
            WaiterState::Callback(_) | WaiterState::Done => {
                unreachable!("a waiter waits in one way")
            }
        }
    }

    /// Runs `callback` when the load ends; at once if it has ended.
    pub(crate) fn on_ready(&self, callback: Callback) {
        let mut state = self.state.lock();
        if let WaiterState::Settled(outcome) = &*state {
            let outcome = outcome.clone();
            drop(state);
            callback(outcome);
        } else {
            *state = WaiterState::Callback(callback);
        }
    }
}

/// The waiters of all loads.
pub(crate) struct InFlightLoads {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Default)]
struct Shard {
    /// By header, then by the waiter's number.
    waiters: HashMap<usize, BTreeMap<u64, Arc<LoadWaiter>>>,
    /// The next waiter's number. No number is reused, so no request removes another one's waiter.
    next: u64,
}

impl InFlightLoads {
    pub(crate) fn new() -> Self {
        let shard = || Mutex::named("in-flight-loads", Shard::default());
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, header: usize) -> &Mutex<Shard> {
        &self.shards[(header >> 6) % SHARDS]
    }

    /// Adds a waiter for the header, if `still_loading` says that the load has not been completed.
    /// `still_loading` is called under the shard's lock. Returns the waiter and its number.
    pub(crate) fn join(
        &self,
        header: usize,
        still_loading: impl FnOnce() -> bool,
    ) -> Option<(u64, Arc<LoadWaiter>)> {
        let mut shard = self.shard(header).lock();
        if !still_loading() {
            return None;
        }
        let (number, waiter) = (shard.next, LoadWaiter::new());
        shard.next += 1;
        shard.waiters.entry(header).or_default().insert(number, waiter.clone());
        Some((number, waiter))
    }

    /// Removes a waiter, unless the load has ended.
    pub(crate) fn leave(&self, header: usize, number: u64) {
        let mut shard = self.shard(header).lock();
        let Some(waiters) = shard.waiters.get_mut(&header) else { return };
        let waiter = waiters.remove(&number);
        if waiters.is_empty() {
            shard.waiters.remove(&header);
        }
        drop(shard);
        // Outside of the lock, because it may drop a waker.
        drop(waiter);
    }

    /// Tells all waiters of the header how its load ended. Returns how many of their callbacks and
    /// wakers panicked. A panic does not keep other waiters from being notified.
    pub(crate) fn complete(&self, header: usize, outcome: &LoadOutcome) -> u64 {
        let waiters = self.shard(header).lock().waiters.remove(&header).unwrap_or_default();
        let settle = |waiter: &Arc<LoadWaiter>| waiter.settle(outcome.clone());
        let notices: Vec<Notice> = waiters.values().map(settle).collect();
        let panicked =
            |notice: Notice| catch_unwind(AssertUnwindSafe(|| notice.deliver())).is_err();
        notices.into_iter().map(|notice| u64::from(panicked(notice))).sum()
    }

    /// The number of waiters, for audits.
    pub(crate) fn waiters(&self) -> usize {
        let of =
            |shard: &Mutex<Shard>| shard.lock().waiters.values().map(BTreeMap::len).sum::<usize>();
        self.shards.iter().map(of).sum()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::InFlightLoads;

    #[test]
    fn a_waiter_that_gives_up_takes_no_memory() {
        let loads = InFlightLoads::new();
        let join = |header| loads.join(header, || true).unwrap().0;
        let others = [join(64), join(128)];
        let rounds = if cfg!(miri) { 300 } else { 1_000_000 };
        for n in 0..rounds {
            // Alternates between a header with another waiter and one without.
            let header = 64 << (2 * (n % 2));
            let numbers = [join(header), join(header)];
            numbers.into_iter().for_each(|number| loads.leave(header, number));
        }
        assert_eq!(loads.waiters(), 2);
        let of_headers = |loads: &InFlightLoads| {
            loads.shards.iter().map(|s| s.lock().waiters.capacity()).max().unwrap()
        };
        assert!(of_headers(&loads) < 10, "the table has grown: {}", of_headers(&loads));
        // Late and repeated removals affect no other waiter.
        assert_eq!(loads.complete(64, &Ok(())), 0);
        let again = join(64);
        loads.leave(64, others[0]);
        loads.leave(128, again);
        assert_eq!(loads.waiters(), 2);
        loads.leave(64, again);
        loads.leave(128, others[1]);
        assert_eq!(loads.waiters(), 0);
    }
}
