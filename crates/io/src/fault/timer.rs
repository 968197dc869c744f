//! A thread that holds items until they are due.
//!
//! Invariants: each scheduled item is delivered once, on the timer's thread. If there is no thread
//! or the timer has stopped, the caller gets the item back. An item whose delay was chosen before
//! an expiration is due at once, also if it is scheduled after that.
//!
//! Locking: `fault-timer`, for looks at the list. Items are delivered outside it.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::completion::in_callback;

/// Most scheduled items. Then a caller waits for capacity.
const MAX_SCHEDULED: usize = 4096;

/// Items sorted by due time.
pub(super) struct Timer<T> {
    shared: Arc<TimerShared<T>>,
}

struct TimerShared<T> {
    state: Mutex<TimerState<T>>,
    // An item is due earlier than before, or the timer stops.
    earlier: Condvar,
    capacity: Condvar,
    clock: SystemClock,
    /// Changed under the lock.
    expirations: AtomicU64,
    due: Box<dyn Fn(T) + Send + Sync>,
}

struct TimerState<T> {
    // By due time and sequence number.
    scheduled: BTreeMap<(u64, u64), T>,
    next: u64,
    stopping: bool,
    thread: Option<JoinHandle<()>>,
}

/// The result of scheduling an item.
pub(super) enum Scheduled<T> {
    Accepted,
    /// The timer has stopped.
    Stopped(T),
    /// The system refused a thread.
    NoThread(T),
}

impl<T: Send + 'static> Timer<T> {
    /// Creates a timer that delivers due items to `due`. Its thread starts at the first use.
    pub(super) fn new(due: impl Fn(T) + Send + Sync + 'static) -> Self {
        let state =
            TimerState { scheduled: BTreeMap::new(), next: 0, stopping: false, thread: None };
        let shared = TimerShared {
            state: Mutex::named("fault-timer", state),
            earlier: Condvar::new(),
            capacity: Condvar::new(),
            clock: SystemClock::new(),
            expirations: AtomicU64::new(0),
            due: Box::new(due),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The time in nanoseconds.
    pub(super) fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    /// How often all items were made due.
    pub(super) fn expirations(&self) -> u64 {
        self.shared.expirations.load(Ordering::SeqCst)
    }

    /// Schedules `item` after `delay`, which was chosen when there had been so many `expirations`.
    /// Waits for capacity, except in a request's callback.
    pub(super) fn schedule(&self, item: T, delay: Duration, expirations: u64) -> Scheduled<T> {
        let shared = &self.shared;
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = shared.clock.now_ns().saturating_add(delay_ns);
        let mut state = shared.state.lock();
        while state.scheduled.len() >= MAX_SCHEDULED && !state.stopping && !in_callback() {
            shared.capacity.wait(&mut state);
        }
        if state.stopping {
            return Scheduled::Stopped(item);
        }
        if state.thread.is_none() {
            let shared = Arc::clone(shared);
            match thread::spawn_named("fault-timer", move || shared.run()) {
                Ok(handle) => state.thread = Some(handle),
                Err(_) => return Scheduled::NoThread(item),
            }
        }
        let due_ns = if self.expirations() == expirations { due_ns } else { 0 };
        let number = state.next;
        state.next += 1;
        state.scheduled.insert((due_ns, number), item);
        if state.scheduled.keys().next() == Some(&(due_ns, number)) {
            shared.earlier.notify_one();
        }
        Scheduled::Accepted
    }

    /// Makes all scheduled items due now.
    pub(super) fn expire_all(&self) {
        let mut state = self.shared.state.lock();
        self.shared.expirations.fetch_add(1, Ordering::SeqCst);
        let scheduled = std::mem::take(&mut state.scheduled);
        state.scheduled =
            scheduled.into_iter().map(|((_, number), item)| ((0, number), item)).collect();
        drop(state);
        self.shared.earlier.notify_one();
    }

    /// Returns whether an item was ever scheduled.
    pub(super) fn is_used(&self) -> bool {
        self.shared.state.lock().thread.is_some()
    }

    /// Makes all items due, and returns once they were delivered. Later items are not accepted. In
    /// a request's callback it does not wait, because the delivery may wait for that callback.
    pub(super) fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopping = true;
        let thread = state.thread.take();
        drop(state);
        self.shared.earlier.notify_one();
        self.shared.capacity.notify_all();
        if let Some(handle) = thread
            && !in_callback()
        {
            // The thread panics only if `due` panics, which the panic hook has reported.
            let _ = handle.join();
        }
    }
}

impl<T> TimerShared<T> {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let first = state.scheduled.first_key_value().map(|(&(due_ns, _), _)| due_ns);
            let now_ns = self.clock.now_ns();
            match first {
                Some(due_ns) if due_ns <= now_ns || state.stopping => {
                    let (_, item) = state.scheduled.pop_first().expect("there is a first one");
                    drop(state);
                    self.capacity.notify_one();
                    (self.due)(item);
                    state = self.state.lock();
                }
                Some(due_ns) => {
                    let wait = Duration::from_nanos(due_ns - now_ns);
                    self.earlier.wait_timeout(&mut state, wait);
                }
                None if state.stopping => return,
                None => self.earlier.wait(&mut state),
            }
        }
    }
}
