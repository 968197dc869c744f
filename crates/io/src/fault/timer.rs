//! A thread that keeps things until their time has come.
//!
//! Invariant: what was given to the timer comes out once, on the timer's thread, or on the giver's
//! if there is no thread to be had or the timer has stopped.
//!
//! Locking: `fault-timer`, for looks at the list; what is due is handled outside it.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::completion::in_callback;

/// Things that wait at most; who comes then waits for room.
const MAX_HELD: usize = 4096;

/// A list of things by the time they are due.
pub(super) struct Timer<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    // Something is due earlier than before, or the timer stops.
    earlier: Condvar,
    room: Condvar,
    clock: SystemClock,
    due: Box<dyn Fn(T) + Send + Sync>,
}

struct State<T> {
    // By time and number of arrival.
    held: BTreeMap<(u64, u64), T>,
    next: u64,
    stopping: bool,
    thread: Option<JoinHandle<()>>,
}

/// What became of a thing.
pub(super) enum Kept<T> {
    Yes,
    /// The timer has stopped.
    Stopped(T),
    /// The system refused a thread.
    NoThread(T),
}

impl<T: Send + 'static> Timer<T> {
    /// A timer that hands what is due to `due`. Its thread starts when it is first needed.
    pub(super) fn new(due: impl Fn(T) + Send + Sync + 'static) -> Self {
        let state = State { held: BTreeMap::new(), next: 0, stopping: false, thread: None };
        let shared = Shared {
            state: Mutex::named("fault-timer", state),
            earlier: Condvar::new(),
            room: Condvar::new(),
            clock: SystemClock::new(),
            due: Box::new(due),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Keeps `thing` for `delay`. Waits for room, unless the thread is in a request's callback.
    pub(super) fn keep(&self, thing: T, delay: Duration) -> Kept<T> {
        let shared = &self.shared;
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = shared.clock.now_ns().saturating_add(delay_ns);
        let mut state = shared.state.lock();
        while state.held.len() >= MAX_HELD && !state.stopping && !in_callback() {
            shared.room.wait(&mut state);
        }
        if state.stopping {
            return Kept::Stopped(thing);
        }
        if state.thread.is_none() {
            let shared = Arc::clone(shared);
            match thread::spawn_named("fault-timer", move || shared.run()) {
                Ok(handle) => state.thread = Some(handle),
                Err(_) => return Kept::NoThread(thing),
            }
        }
        let number = state.next;
        state.next += 1;
        state.held.insert((due_ns, number), thing);
        if state.held.keys().next() == Some(&(due_ns, number)) {
            shared.earlier.notify_one();
        }
        Kept::Yes
    }

    /// Makes everything that is kept due now.
    pub(super) fn hurry(&self) {
        let mut state = self.shared.state.lock();
        let held = std::mem::take(&mut state.held);
        state.held = held.into_iter().map(|((_, number), thing)| ((0, number), thing)).collect();
        drop(state);
        self.shared.earlier.notify_one();
    }

    /// Whether anything was ever kept.
    pub(super) fn is_used(&self) -> bool {
        self.shared.state.lock().thread.is_some()
    }

    /// Makes everything due, and returns once it has been handed over; from now on nothing is
    /// kept. In a request's callback it does not wait: handing over may need that callback's end.
    pub(super) fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopping = true;
        let thread = state.thread.take();
        drop(state);
        self.shared.earlier.notify_one();
        self.shared.room.notify_all();
        if let Some(handle) = thread
            && !in_callback()
        {
            // It ends by a panic only if what is due panics; then nothing is left to say.
            let _ = handle.join();
        }
    }
}

impl<T> Shared<T> {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let first = state.held.first_key_value().map(|(&(due_ns, _), _)| due_ns);
            let now_ns = self.clock.now_ns();
            match first {
                Some(due_ns) if due_ns <= now_ns || state.stopping => {
                    let (_, thing) = state.held.pop_first().expect("there is a first one");
                    drop(state);
                    self.room.notify_one();
                    (self.due)(thing);
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
