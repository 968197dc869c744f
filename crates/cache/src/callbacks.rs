//! Eviction callbacks of users, which run on their own thread.
//!
//! Invariants
//!
//! * A callback cannot stop reclaim. It may block, take the user's locks, and call the cache.
//! * The queue is bounded. Reclaim does not wait for it: events that do not fit are dropped and
//!   counted.
//! * A value holds its capacity until its callback has run.
//!
//! Locking: `callback-queue`, a leaf lock.

use std::collections::VecDeque;

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

/// A user's callback.
pub(crate) type Callback<K, V> = Box<dyn Fn(Evicted<K, V>) + Send + Sync>;

pub(crate) struct Callbacks<K, V> {
    pub(crate) run: Callback<K, V>,
    queue: Mutex<Queue<K, V>>,
    /// Signals the thread: an event was queued, or the queue was closed.
    arrived: Condvar,
    /// Signals draining threads: a callback has run. Separate, so that the single wake-up of an
    /// event cannot go to a draining thread.
    done: Condvar,
}

struct Queue<K, V> {
    events: VecDeque<Evicted<K, V>>,
    bytes: u64,
    /// Whether the thread is running a callback.
    busy: bool,
    closed: bool,
}

impl<K, V> Callbacks<K, V> {
    pub(crate) fn new(run: Callback<K, V>) -> Self {
        let queue = Queue { events: VecDeque::new(), bytes: 0, busy: false, closed: false };
        let queue = Mutex::named("callback-queue", queue);
        Self { run, queue, arrived: Condvar::new(), done: Condvar::new() }
    }

    /// Queues an event, or returns it if the queue is full.
    pub(crate) fn push(
        &self,
        event: Evicted<K, V>,
        most: usize,
        most_bytes: u64,
    ) -> Result<(), Evicted<K, V>> {
        let mut queue = self.queue.lock();
        let full = queue.events.len() >= most || queue.bytes + event.weight > most_bytes;
        if queue.closed || (full && !queue.events.is_empty()) {
            return Err(event);
        }
        queue.bytes += event.weight;
        queue.events.push_back(event);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next event; `None` once closed and empty. Marks the previous event as done.
    pub(crate) fn next(&self) -> Option<Evicted<K, V>> {
        let mut queue = self.queue.lock();
        queue.busy = false;
        self.done.notify_all();
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

    /// Waits until the queue is empty and no callback is running.
    pub(crate) fn drain(&self) {
        let mut queue = self.queue.lock();
        while queue.busy || !queue.events.is_empty() {
            self.done.wait(&mut queue);
        }
    }

    /// Closes the queue. The thread ends after the queued events.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_one();
    }
}
