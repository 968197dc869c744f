//! Gives freed space back: discards free ranges of the devices.
//!
//! A thread of the pool discards in the background what recent transaction groups have freed, once
//! none of the newest three roots reaches it, see [`crate::space`]. It gathers for a while first
//! (`trim_delay_ms`): a busy pool uses most freed space again at once. [`Pool::trim`] discards all
//! free space. Both work in slices: a slice holds some free ranges, so that no allocation gets
//! them, discards them without a lock, and releases them.
//!
//! A discard that fails is counted, and the first one is logged. It never suspends the pool. A
//! device without support is told apart by its counter of ignored discards, and is left alone
//! until the next import.
//!
//! # Locking
//!
//! `pool-trim` protects the requests to the thread and what is known about devices, for a look. The
//! thread sleeps on it. `pool-trim-pass` admits one pass at a time, and is held during I/O.
//! `pool-trim-thread` holds the handle of the thread. `space` is taken under `pool-trim-pass`.

mod counters;
mod pass;

use std::time::Duration;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::error::{Error, ErrorKind, Result};

use super::PoolInner;

pub use crate::tunables::TrimTunables;
pub use counters::TrimCounters;
pub use pass::{TrimProgress, TrimReport};

/// Longest sleep of the thread while it waits for its rate.
const WAIT: Duration = Duration::from_millis(100);

/// The discards of a pool.
pub(super) struct Trims {
    state: Mutex<TrimState>,
    changed: Condvar,
    pass: Mutex<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counters: TrimCounters,
}

/// Protected by `pool-trim`.
#[derive(Default)]
struct TrimState {
    /// Whether a commit has freed space that is not discarded yet.
    wanted: bool,
    /// Whether no pass may go on.
    closed: bool,
    /// Calls of [`Pool::trim`](super::Pool::trim).
    jobs: usize,
    /// Devices that ignore discards.
    unsupported: Vec<u16>,
    /// Whether a failure was logged.
    has_failed: bool,
}

impl TrimState {
    fn yields(&self) -> bool {
        self.closed || self.jobs > 0
    }
}

impl Trims {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::named("pool-trim", TrimState::default()),
            changed: Condvar::new(),
            pass: Mutex::named("pool-trim-pass", ()),
            thread: Mutex::named("pool-trim-thread", None),
            counters: TrimCounters::new(),
        }
    }

    pub(super) fn counters(&self) -> &TrimCounters {
        &self.counters
    }

    /// Wakes the thread: a commit has freed space.
    pub(super) fn wake(&self) {
        self.state.lock().wanted = true;
        self.changed.notify_all();
    }

    /// Lets no slice begin any more, and waits until the running one has ended.
    pub(super) fn shut_down(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        while state.jobs > 0 {
            self.changed.wait(&mut state);
        }
        drop(state);
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Whether the thread leaves its pass: the pool is closed, or a pass over everything waits.
    fn thread_yields(&self) -> bool {
        self.state.lock().yields()
    }

    fn is_unsupported(&self, device: u16) -> bool {
        self.state.lock().unsupported.contains(&device)
    }

    /// Waits until a commit has freed space. Returns false if the pool is closed.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed && (!state.wanted || state.yields()) {
            self.changed.wait(&mut state);
        }
        state.wanted = false;
        !state.closed
    }

    fn begin_job(&self, name: &str) -> Result<TrimJob<'_>> {
        let mut state = self.state.lock();
        if state.closed {
            let text = format!("pool {name} was exported; import it again");
            return Err(Error::new(ErrorKind::Closed, text));
        }
        state.jobs += 1;
        self.changed.notify_all();
        Ok(TrimJob(self))
    }
}

/// A call of [`Pool::trim`](super::Pool::trim). An export waits for its end.
struct TrimJob<'a>(&'a Trims);

impl Drop for TrimJob<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.jobs -= 1;
        state.wanted = true;
        self.0.changed.notify_all();
    }
}

/// Starts the thread of a pool.
pub(super) fn start(inner: &Arc<PoolInner>) -> Result<()> {
    let pool = Arc::clone(inner);
    let run = move || {
        while pool.trim.wait() {
            if pool.gather_freed() {
                pool.trim_freed();
            }
        }
    };
    let thread = thread::spawn_named("forebay-trim", run)
        .map_err(|error| Error::no_thread("the discards of the pool", error))?;
    *inner.trim.thread.lock() = Some(thread);
    Ok(())
}
