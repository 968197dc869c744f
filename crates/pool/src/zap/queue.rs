//! Directories whose buffered names should move to their leaves, and creates that wait for that.
//!
//! A directory whose names should all move when creates pause waits here for that, too.
//!
//! A directory is queued when its buffer is two fifths full. One thread of the pool takes it, see
//! `pool/merge.rs`. Creates are slowed down when names come faster than they move: let `x` be how
//! far the buffer is between the start of that (0) and its end (1). A create waits
//! `scale · x² / (1 − x)` before its transaction begins, as for dirty data (see `txg/throttle.rs`).
//! Delays of a directory run one after another, and end early when enough names have moved.
//!
//! # Locking
//!
//! `directory-merges` protects the queue. The thread sleeps on it, and slowed creates too.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_base::clock::Clock;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Condvar, Mutex};
use forebay_base::waits::{self, WaitKind};

use crate::Result;
use crate::wait::Wait;

/// Longest delay of a create.
const DELAY_MAX_NS: u64 = 100_000_000;
/// A drain looks after so long whether names have come, and begins if none have.
pub(crate) const DRAIN_PAUSE_NS: u64 = 1_000_000_000;
/// Delays add up to this before a create sleeps for them.
const SLACK_NS: u64 = 200_000;

/// The queue of a pool. `T` leads to a directory.
pub(crate) struct MergeQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
    moved: Condvar,
}

struct QueueState<T> {
    directories: VecDeque<T>,
    /// Those to drain, by the time of that and a serial number.
    drains: BTreeMap<(u64, u64), T>,
    serial: u64,
    /// Whether there is a thread that drains: not in a read-only pool.
    drains_any: bool,
    closed: bool,
}

/// What the thread does next.
pub(crate) enum MergeTask<T> {
    /// Moves some names.
    Move(T),
    /// Moves all of them, if no more come.
    Drain(T),
}

/// How full the change buffer of a directory is, for creates that begin.
pub(crate) struct Pace {
    /// In thousandths of the range in which creates are slowed down; 0 below it.
    pressure: AtomicU64,
    /// When the newest delay ends.
    due_ns: AtomicU64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { pressure: AtomicU64::new(0), due_ns: AtomicU64::new(0) }
    }

    /// Whether creates are slowed down.
    #[inline]
    pub(super) fn is_slow(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(super) fn set_pressure(&self, pressure: u64) {
        if self.pressure.load(Ordering::Relaxed) != pressure {
            self.pressure.store(pressure, Ordering::Relaxed);
        }
    }

    fn delay_ns(&self, scale_ns: u64) -> u64 {
        let x = self.pressure.load(Ordering::Relaxed);
        let left = 1000u64.saturating_sub(x).max(1);
        let delay_ns = u128::from(scale_ns) * u128::from(x * x) / u128::from(1000 * left);
        u64::try_from(delay_ns).unwrap_or(u64::MAX).min(DELAY_MAX_NS)
    }

    /// Assigns a delay that begins now, or when the one before ends. Returns when it ends.
    fn assign(&self, now_ns: u64, delay_ns: u64) -> u64 {
        let mut known_ns = self.due_ns.load(Ordering::Relaxed);
        loop {
            let due_ns = known_ns.max(now_ns).saturating_add(delay_ns);
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            match self.due_ns.compare_exchange(known_ns, due_ns, order.0, order.1) {
                Ok(_) => return due_ns,
                Err(found_ns) => known_ns = found_ns,
            }
        }
    }
}

impl<T> MergeQueue<T> {
    pub(crate) fn new() -> Self {
        let state = QueueState {
            directories: VecDeque::new(),
            drains: BTreeMap::new(),
            serial: 0,
            drains_any: false,
            closed: false,
        };
        Self {
            state: Mutex::named("directory-merges", state),
            changed: Condvar::new(),
            moved: Condvar::new(),
        }
    }

    /// Adds a directory.
    pub(crate) fn push(&self, directory: T) {
        self.state.lock().directories.push_back(directory);
        self.changed.notify_all();
    }

    /// From now on directories are drained.
    pub(crate) fn begin_drains(&self) {
        self.state.lock().drains_any = true;
    }

    /// Adds a directory to drain at a time.
    pub(crate) fn push_drain(&self, directory: T, due_ns: u64) {
        let mut state = self.state.lock();
        if state.drains_any && !state.closed {
            state.serial += 1;
            let key = (due_ns, state.serial);
            state.drains.insert(key, directory);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes a directory whose names should move.
    pub(crate) fn next_move(&self) -> Option<T> {
        let mut state = self.state.lock();
        if state.closed { None } else { state.directories.pop_front() }
    }

    /// Takes a directory; drains come last. If there is none, waits for one if `waits`. `None` also
    /// if the queue is closed.
    pub(crate) fn next(&self, clock: &dyn Clock, waits: bool) -> Option<MergeTask<T>> {
        let mut state = self.state.lock();
        while !state.closed {
            if let Some(directory) = state.directories.pop_front() {
                return Some(MergeTask::Move(directory));
            }
            let due_ns = state.drains.first_key_value().map(|((due_ns, _), _)| *due_ns);
            let left_ns = due_ns.map(|due_ns| due_ns.saturating_sub(clock.now_ns()));
            match left_ns {
                Some(0) => {
                    return state.drains.pop_first().map(|(_, drain)| MergeTask::Drain(drain));
                }
                _ if !waits => return None,
                Some(left_ns) => {
                    self.changed.wait_timeout(&mut state, Duration::from_nanos(left_ns));
                }
                None => self.changed.wait(&mut state),
            }
        }
        None
    }

    /// Waits until the queue is closed, but not longer than this.
    pub(crate) fn pause(&self, most: Duration) {
        let mut state = self.state.lock();
        if !state.closed {
            self.moved.wait_timeout(&mut state, most);
        }
    }

    /// Names have moved: creates need not wait as long.
    pub(crate) fn note_moved(&self) {
        let _state = self.state.lock();
        self.moved.notify_all();
    }

    /// From now on nothing is taken, and no create waits.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.directories.clear();
        state.drains.clear();
        self.changed.notify_all();
        self.moved.notify_all();
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Delays a create. Returns whether it has waited.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) in non-blocking mode, if it would wait.
    pub(crate) fn delay(
        &self,
        clock: &dyn Clock,
        scale_ns: u64,
        pace: &Pace,
        wait: Wait,
    ) -> Result<bool> {
        let (now_ns, delay_ns) = (clock.now_ns(), pace.delay_ns(scale_ns));
        let due_ns = pace.due_ns.load(Ordering::Relaxed).max(now_ns).saturating_add(delay_ns);
        if due_ns - now_ns < SLACK_NS {
            pace.assign(now_ns, delay_ns);
            return Ok(false);
        }
        // No delay is assigned if it fails: the retry on another thread gets its own.
        wait.check("names of a directory to move from its change buffer")?;
        let due_ns = pace.assign(now_ns, delay_ns);
        let _wait = waits::measure(WaitKind::Transaction);
        let mut state = self.state.lock();
        while !state.closed {
            if pace.pressure.load(Ordering::Relaxed) == 0 {
                pace.due_ns.store(0, Ordering::Relaxed);
                break;
            }
            let left_ns = due_ns.saturating_sub(clock.now_ns());
            if left_ns == 0 {
                break;
            }
            self.moved.wait_timeout(&mut state, Duration::from_nanos(left_ns));
        }
        Ok(true)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::clock::SystemClock;
    use forebay_base::sync::Arc;
    use forebay_base::sync::thread::spawn_named;

    use super::*;
    use crate::ErrorKind;

    const SCALE_NS: u64 = 1_000_000;
    const HOUR_NS: u64 = 3_600_000_000_000;

    fn pace(pressure: u64) -> Pace {
        let pace = Pace::new();
        pace.pressure.store(pressure, Ordering::Relaxed);
        pace
    }

    #[test]
    fn a_delay_grows_smoothly_and_without_bound() {
        let delays: Vec<u64> = (0..=1000).map(|x| pace(x).delay_ns(SCALE_NS)).collect();
        assert_eq!(delays[0], 0);
        assert!(delays.windows(2).all(|two| two[0] <= two[1]));
        assert!(delays[100] < SCALE_NS / 50, "it starts flat: {}", delays[100]);
        assert_eq!((delays[500], delays[1000]), (SCALE_NS / 2, DELAY_MAX_NS));
    }

    #[test]
    fn small_delays_add_up() {
        let (queue, clock) = (MergeQueue::<()>::new(), SystemClock::new());
        // 10 µs each.
        let pace = pace(95);
        assert!(pace.delay_ns(SCALE_NS) < SLACK_NS / 10);
        assert!(!queue.delay(&clock, SCALE_NS, &pace, Wait::Refused).expect("no wait"));
        pace.due_ns.store(clock.now_ns() + HOUR_NS, Ordering::Relaxed);
        let error = queue.delay(&clock, SCALE_NS, &pace, Wait::Refused).expect_err("it is late");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn drains_come_last_and_when_they_are_due() {
        let (queue, clock) = (MergeQueue::new(), SystemClock::new());
        queue.push_drain(0, 0);
        queue.begin_drains();
        queue.push_drain(1, 0);
        queue.push_drain(2, clock.now_ns() + HOUR_NS);
        queue.push(3);
        assert!(matches!(queue.next(&clock, true), Some(MergeTask::Move(3))));
        assert!(matches!(queue.next(&clock, true), Some(MergeTask::Drain(1))));
        assert!(queue.next(&clock, false).is_none());
        queue.close();
        queue.push_drain(4, 0);
        assert!(queue.next(&clock, true).is_none());
    }

    /// An export, or names that have moved, end it.
    #[test]
    fn a_delay_ends_early() {
        for closes in [false, true] {
            let clock = Arc::new(SystemClock::new());
            let (queue, pace) = (Arc::new(MergeQueue::<()>::new()), Arc::new(pace(95)));
            pace.due_ns.store(clock.now_ns() + HOUR_NS, Ordering::Relaxed);
            let waiter = {
                let (queue, pace, clock) = (Arc::clone(&queue), Arc::clone(&pace), clock);
                let wait = move || queue.delay(&*clock, SCALE_NS, &pace, Wait::Allowed);
                spawn_named("zap-test", wait).expect("threads can be had")
            };
            if closes {
                queue.close();
                assert!(queue.next(&SystemClock::new(), true).is_none());
            } else {
                pace.set_pressure(0);
                queue.note_moved();
            }
            waiter.join().expect("no panic").expect("no error");
        }
    }
}
