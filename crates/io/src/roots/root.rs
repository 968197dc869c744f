//! One root, and the hold that a request has on it from submission until its callback has returned.
//!
//! Roots share only the drain signal, which is touched only by the last request of a generation
//! that a drain waits for.
//!
//! Locking: `io-root-failures` is taken when a request fails or failures are read.
//! `io-roots-signal` is taken by a drain, and by the last request it waits for. Neither is held
//! while the other is taken, or while user code runs.

use std::cell::Cell;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};

use super::failures::Failures;
use super::root_word::{Parity, RootWord};
use crate::completion::{self, Callback};
use crate::request::Completion;

/// A request's reference to its root. Reference count and root are on separate cache lines.
pub(super) type RootRef = Arc<CachePadded<Root>>;

/// A root: the requests in flight and their failures.
pub(super) struct Root {
    pub(super) word: RootWord,
    /// How often all requests in flight were cancelled.
    cancels: AtomicU32,
    /// The index in the set.
    index: u32,
    pub(super) refused: AtomicU64,
    failures: Mutex<FailureLog>,
    signal: Arc<DrainSignal>,
}

/// The failures of one root.
#[derive(Default)]
struct FailureLog {
    /// Failures of the generations that may have requests in flight, by parity.
    live: [Failures; 2],
    /// Counts of past generations.
    past: Failures,
}

impl Root {
    pub(super) fn new(index: u32, signal: &Arc<DrainSignal>) -> RootRef {
        Arc::new(CachePadded::new(Self {
            word: RootWord::new(),
            cancels: AtomicU32::new(0),
            index,
            refused: AtomicU64::new(0),
            failures: Mutex::named("io-root-failures", FailureLog::default()),
            signal: Arc::clone(signal),
        }))
    }

    /// Cancels all requests in flight.
    pub(super) fn cancel(&self) {
        self.cancels.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes the failures of a past generation.
    pub(super) fn take_failures(&self, parity: Parity) -> Failures {
        let mut log = self.failures.lock();
        let settled = std::mem::take(&mut log.live[parity.index()]);
        log.past.add_counts(&settled);
        settled
    }

    /// Returns all failures so far.
    pub(super) fn failures(&self) -> Failures {
        let log = self.failures.lock();
        let mut sum = log.past.clone();
        log.live.iter().for_each(|live| sum.add(live.clone()));
        sum
    }

    fn note(&self, parity: Parity, note: impl FnOnce(&mut Failures)) {
        note(&mut self.failures.lock().live[parity.index()]);
    }
}

/// Lets the last request of a generation wake the drain.
pub(super) struct DrainSignal {
    lock: Mutex<()>,
    drained: Condvar,
}

impl DrainSignal {
    pub(super) fn new() -> Arc<Self> {
        let lock = Mutex::named("io-roots-signal", ());
        Arc::new(Self { lock, drained: Condvar::new() })
    }

    /// Blocks until no request of `parity` is in flight under `root`. That generation must be past.
    pub(super) fn wait(&self, root: &Root, parity: Parity) {
        if root.word.count(parity) == 0 {
            return;
        }
        let mut guard = self.lock.lock();
        while root.word.count(parity) > 0 {
            self.drained.wait(&mut guard);
        }
    }

    #[cold]
    fn wake(&self) {
        // The drain checks the count under the lock. So it sleeps by now, or checks after this.
        drop(self.lock.lock());
        self.drained.notify_all();
    }
}

/// Counts one request in flight, until it is dropped.
pub(crate) struct Hold {
    root: RootRef,
    cancels: u32,
    parity: Parity,
}

impl Hold {
    /// Takes `n` holds on `root`: in the generation of `parent` if there is one, else in the
    /// current one. Returns `None` if the root is closed.
    pub(super) fn take(
        root: &RootRef,
        parent: Option<Parity>,
        n: usize,
    ) -> Option<impl Iterator<Item = Self> + '_> {
        let parity = match parent {
            Some(parity) => {
                root.word.enter_child(parity, n as u64);
                parity
            }
            None => root.word.enter(n as u64)?,
        };
        // A cancel in between is concurrent with the submission, so either order is right.
        let cancels = root.cancels.load(Ordering::Acquire);
        Some((0..n).map(move |_| Self { root: Arc::clone(root), cancels, parity }))
    }

    /// Returns whether the root was cancelled since the submission.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.root.cancels.load(Ordering::Acquire) != self.cancels
    }

    /// Completes the request: notes a failure, runs the callback, and releases the hold.
    pub(crate) fn end(self, callback: Option<Callback>, completion: Completion) {
        if let Err(error) = &completion.result {
            self.root.note(self.parity, |failures| failures.note(error));
        }
        let before = CurrentCallback::set(Some(CurrentCallback::of(&self)));
        let returned = completion::call(callback, completion);
        CurrentCallback::set(before);
        if !returned {
            self.root.note(self.parity, Failures::note_panic);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.root.word.leave(self.parity) {
            self.root.signal.wake();
        }
    }
}

forebay_base::sync::thread_local! {
    static CURRENT: Cell<Option<CurrentCallback>> = const { Cell::new(None) };
}

/// The root whose callback the thread runs. The request's hold keeps the root alive, so its address
/// identifies it.
#[derive(Clone, Copy)]
pub(super) struct CurrentCallback {
    address: usize,
    index: u32,
    parity: Parity,
}

impl CurrentCallback {
    fn of(hold: &Hold) -> Self {
        let address = Arc::as_ptr(&hold.root).addr();
        Self { address, index: hold.root.index, parity: hold.parity }
    }

    /// Replaces the thread's value, and returns the old one. A thread that is ending may have none.
    fn set(current: Option<Self>) -> Option<Self> {
        CURRENT.try_with(|cell| cell.replace(current)).ok().flatten()
    }

    /// Returns root and generation of the callback that the thread runs, if that root is one of
    /// `roots`.
    #[inline]
    pub(super) fn among(roots: &[RootRef]) -> Option<(&RootRef, Parity)> {
        let current = CURRENT.try_with(Cell::get).ok().flatten()?;
        let root = roots.get(current.index as usize)?;
        (Arc::as_ptr(root).addr() == current.address).then_some((root, current.parity))
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{DrainSignal, Root};
    use forebay_base::sync::Arc;

    #[test]
    fn roots_share_no_line() {
        let signal = DrainSignal::new();
        let mut lines: Vec<usize> = (0..64)
            .flat_map(|index| {
                let root = Root::new(index, &signal);
                let first = Arc::as_ptr(&root).addr();
                // The reference counts are on the line before.
                let lines = [first - 128, first].map(|at| at / 128);
                assert_eq!(first % 128, 0);
                std::mem::forget(root);
                lines
            })
            .collect();
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all);
    }
}
