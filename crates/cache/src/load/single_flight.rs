//! Waiting for a load that somebody else has begun (single flight).
//!
//! A request that joins a load holds a pin on its header, so that the block cannot go
//! before the request has seen it, and leaves a [`LoadWaiter`] in the table of flights. Whoever ends the load
//! takes the seats and settles them, in the order in which they were taken. Who gives up waiting takes its seat
//! back. Nothing is allocated for a load that nobody joins.
//!
//! Locking: `loads` (sharded by header), then nothing; `flight-waiter` is a leaf lock.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::error::LoadError;

const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 16 };

/// How a load ended: the header is filled, or an error.
pub(crate) type LoadOutcome = Result<(), LoadError>;

/// Run once, when the load has ended.
pub(crate) type Callback = Box<dyn FnOnce(LoadOutcome) + Send>;

/// One request's place among those that wait for a load.
pub(crate) struct LoadWaiter {
    state: Mutex<WaiterState>,
    settled: Condvar,
}

enum WaiterState {
    Waiting(Option<Waker>),
    Callback(Callback),
    Settled(LoadOutcome),
    /// Its callback has taken the ending.
    Done,
}

/// What is to be done once no lock is held any more.
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
                unreachable!("one way of waiting a seat")
            }
        }
    }

    /// Runs `callback` when the load ends, at once if it has.
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

/// All seats.
pub(crate) struct InFlightLoads {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Default)]
struct Shard {
    /// By header; those of one by their numbers.
    waiters: HashMap<usize, BTreeMap<u64, Arc<LoadWaiter>>>,
    /// The next seat's number: none is used twice, so that nobody gives up another's seat.
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

    /// Takes a seat for the header, if `still_loading` (asked under the flight's lock) says that its
    /// ending has yet to be told. Returns it with its number.
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

    /// Gives up a seat, unless the load has ended.
    pub(crate) fn leave(&self, header: usize, number: u64) {
        let mut shard = self.shard(header).lock();
        let Some(waiters) = shard.waiters.get_mut(&header) else { return };
        let waiter = waiters.remove(&number);
        if waiters.is_empty() {
            shard.waiters.remove(&header);
        }
        drop(shard);
        // Not under the lock: with it goes a waker.
        drop(waiter);
    }

    /// Tells all who wait for the header how its load ended. Returns how many of their callbacks and
    /// wakers panicked: that must not keep the others from hearing of it.
    pub(crate) fn complete(&self, header: usize, outcome: &LoadOutcome) -> u64 {
        let waiters = self.shard(header).lock().waiters.remove(&header).unwrap_or_default();
        let settle = |waiter: &Arc<LoadWaiter>| waiter.settle(outcome.clone());
        let notices: Vec<Notice> = waiters.values().map(settle).collect();
        let panicked =
            |notice: Notice| catch_unwind(AssertUnwindSafe(|| notice.deliver())).is_err();
        notices.into_iter().map(|notice| u64::from(panicked(notice))).sum()
    }

    /// Seats that are taken, for audits.
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
            // Now of the header that somebody else waits for, now of one that nobody does.
            let header = 64 << (2 * (n % 2));
            let numbers = [join(header), join(header)];
            numbers.into_iter().for_each(|number| loads.leave(header, number));
        }
        assert_eq!(loads.waiters(), 2);
        let of_headers = |loads: &InFlightLoads| {
            loads.shards.iter().map(|s| s.lock().waiters.capacity()).max().unwrap()
        };
        assert!(of_headers(&loads) < 10, "the table has grown: {}", of_headers(&loads));
        // Too late, and twice: nobody else's seat is given up.
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
