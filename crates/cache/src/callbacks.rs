//! The user's listener, which is told of each block that has left the cache, on its own thread.
//!
//! Invariants
//!
//! * The listener cannot stop reclaim, which never waits for it. It may block, take the user's
//!   locks, and call the cache.
//! * A value holds its capacity until the listener has run. So the queue is bounded by the capacity
//!   also if no event may be lost ([`Delivery::Lossless`]). A load that has no capacity causes no
//!   event.
//! * Inserters that find no capacity wait for the listener, before they have taken any and without
//!   a lock (`capacity::reserve`). The listener's own thread never waits for itself: its inserts
//!   may use the capacity of the value that it was handed. Nor does a loader, nor a load that is
//!   published: the listener may wait for that load.
//!
//! Locking: `callback-queue`, a leaf lock.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::thread::{ThreadId, current_id};
use forebay_base::sync::{Condvar, Mutex};

use crate::attributes::{Cause, Class};

/// A block that has left the cache.
#[derive(Debug)]
pub struct Evicted<K, V> {
    /// Key of the block.
    pub key: K,
    /// Value of the block. No other thread has it.
    pub value: V,
    /// Class of the block.
    pub class: Class,
    /// Why it left.
    pub cause: Cause,
    pub(crate) weight: u64,
}

/// What happens if blocks leave faster than the listener runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// The listener is told of every block. Threads that need capacity wait for it, as long as it
    /// takes, because values hold theirs until it has run. The default: a listener that misses
    /// events is of no use for what most listeners do, such as to keep another structure in step.
    ///
    /// The listener must not wait for a thread that inserts or loads: that thread may wait for the
    /// listener. The listener may itself insert and load, also a block that another thread loads: a
    /// loader that runs in [`get_or_load`](crate::Cache::get_or_load) or its kin never waits for
    /// the listener. What it inserts or loads itself is refused capacity instead. The cache does
    /// not know which thread has a [`LoadGuard`](crate::LoadGuard). If the listener loads, a thread
    /// that has one must insert and load nothing else.
    #[default]
    Lossless,
    /// At most this many blocks wait for the listener, and they weigh at most an eighth of the
    /// capacity. Further ones are dropped without it, and are counted as `callbacks_dropped`. No
    /// thread waits for the listener.
    Lossy(usize),
}

/// How often a thread that waits for the listener for a limited time looks at the clock.
const LOOK: Duration = Duration::from_millis(2);

/// A user's listener.
pub(crate) type Callback<K, V> = Box<dyn Fn(Evicted<K, V>) + Send + Sync>;

pub(crate) struct Callbacks<K, V> {
    pub(crate) run: Callback<K, V>,
    delivery: Delivery,
    /// Capacity of the event that the listener was handed, which its own inserts may use.
    in_hand: AtomicU64,
    queue: Mutex<Queue<K, V>>,
    /// Signals the thread: an event was queued, or the queue was closed.
    arrived: Condvar,
    /// Signals draining threads: the listener has run. Separate, so that the single wake-up of an
    /// event cannot go to a draining thread.
    done: Condvar,
}

struct Queue<K, V> {
    events: VecDeque<Evicted<K, V>>,
    bytes: u64,
    /// How many events have been queued so far.
    queued: u64,
    /// Whether the listener is running.
    busy: bool,
    closed: bool,
    /// The listener's thread, once it has begun.
    thread: Option<ThreadId>,
}

impl<K, V> Callbacks<K, V> {
    pub(crate) fn new(delivery: Delivery, run: Callback<K, V>) -> Self {
        let queue = Queue {
            events: VecDeque::new(),
            bytes: 0,
            queued: 0,
            busy: false,
            closed: false,
            thread: None,
        };
        Self {
            run,
            delivery,
            in_hand: AtomicU64::new(0),
            queue: Mutex::named("callback-queue", queue),
            arrived: Condvar::new(),
            done: Condvar::new(),
        }
    }

    /// Whether every event is delivered.
    pub(crate) fn is_lossless(&self) -> bool {
        self.delivery == Delivery::Lossless
    }

    /// Notes that the calling thread is the listener's.
    pub(crate) fn begin_thread(&self) {
        self.queue.lock().thread = Some(current_id());
    }

    /// Whether the calling thread is the listener's.
    fn is_own_thread(&self) -> bool {
        self.queue.lock().thread == Some(current_id())
    }

    /// Whether the calling thread should wait until the listener releases capacity: events are
    /// queued or running, none may be lost, and it is not the listener that asks.
    pub(crate) fn is_awaited(&self) -> bool {
        if !self.is_lossless() {
            return false;
        }
        let queue = self.queue.lock();
        (queue.busy || !queue.events.is_empty()) && queue.thread != Some(current_id())
    }

    /// Whether the calling thread may wait for the listener at all.
    pub(crate) fn may_be_awaited(&self) -> bool {
        self.is_lossless() && !self.is_own_thread()
    }

    /// Hands the capacity of an event to the listener's thread while the listener runs.
    pub(crate) fn hand_over(&self, weight: u64) {
        self.in_hand.store(weight, Ordering::Relaxed);
    }

    /// Takes back what the listener has not used of it.
    pub(crate) fn take_back(&self) -> u64 {
        self.in_hand.swap(0, Ordering::Relaxed)
    }

    /// Uses capacity that the listener has in hand. False if there is too little, or for a thread
    /// other than the listener's.
    pub(crate) fn use_in_hand(&self, weight: u64) -> bool {
        let left = self.in_hand.load(Ordering::Relaxed).checked_sub(weight);
        let left = left.filter(|_| self.is_own_thread());
        // Only the listener's thread changes it.
        left.map(|left| self.in_hand.store(left, Ordering::Relaxed)).is_some()
    }

    /// Queues an event, or returns it if the queue is full or closed. `most_bytes` bounds the
    /// weight of events that may be lost.
    pub(crate) fn push(&self, event: Evicted<K, V>, most_bytes: u64) -> Result<(), Evicted<K, V>> {
        let mut queue = self.queue.lock();
        let full = match self.delivery {
            Delivery::Lossless => false,
            Delivery::Lossy(most) => {
                let heavy = queue.bytes + event.weight > most_bytes && !queue.events.is_empty();
                queue.events.len() >= most.max(1) || heavy
            }
        };
        if queue.closed || full {
            return Err(event);
        }
        queue.bytes += event.weight;
        queue.queued += 1;
        queue.events.push_back(event);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// Notes that the listener has run, and that the event's capacity is released. True if it has
    /// nothing else to do.
    pub(crate) fn finish(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.busy = false;
        let idle = queue.events.is_empty();
        drop(queue);
        self.done.notify_all();
        idle
    }

    /// How many events have been queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.queue.lock().queued
    }

    /// The next event; `None` once closed and empty.
    pub(crate) fn next(&self) -> Option<Evicted<K, V>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                queue.bytes -= event.weight;
                queue.busy = true;
                return Some(event);
            }
            if queue.closed {
                return None;
            }
            self.arrived.wait(&mut queue);
        }
    }

    /// Weight of the queued values.
    pub(crate) fn bytes(&self) -> u64 {
        self.queue.lock().bytes
    }

    /// Waits until the queue is empty and the listener is not running.
    pub(crate) fn drain(&self) {
        let mut queue = self.queue.lock();
        while queue.busy || !queue.events.is_empty() {
            self.done.wait(&mut queue);
        }
    }

    /// Does the same as [`drain`](Self::drain) until `is_over`. False if the listener still has
    /// something to do then.
    pub(crate) fn drain_until(&self, is_over: impl Fn() -> bool) -> bool {
        let mut queue = self.queue.lock();
        while queue.busy || !queue.events.is_empty() {
            if is_over() {
                return false;
            }
            self.done.wait_timeout(&mut queue, LOOK);
        }
        true
    }

    /// Closes the queue. The thread ends after the queued events.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_one();
    }
}
