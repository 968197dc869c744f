//! Eviction callbacks of users, run on a thread of their own.
//!
//! A callback may block, take the user's locks, even call the cache: it can never stop reclaim (R1).
//! The queue to it is bounded; what does not fit is dropped and counted, since waiting for a callback
//! is just what reclaim must not do. A value keeps its room until its callback has taken it.
//!
//! Locking: `callback-queue`, a leaf lock.

use std::collections::VecDeque;

use forebay_base::sync::{Condvar, Mutex};

use crate::attributes::{Cause, Class};

/// A block that has left the cache.
#[derive(Debug)]
pub struct Evicted<K, V> {
    /// Its key.
    pub key: K,
    /// Its value, which was the cache's alone.
    pub value: V,
    /// Its class.
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
    /// For the thread: an event has come, or none will.
    arrived: Condvar,
    /// For those who drain: a callback is done. With one condition variable for both, the one wake-up of an event could go to them.
    done: Condvar,
}

struct Queue<K, V> {
    events: VecDeque<Evicted<K, V>>,
    bytes: u64,
    /// Whether the thread is in the middle of a callback.
    busy: bool,
    closed: bool,
}

impl<K, V> Callbacks<K, V> {
    pub(crate) fn new(run: Callback<K, V>) -> Self {
        let queue = Queue { events: VecDeque::new(), bytes: 0, busy: false, closed: false };
        let queue = Mutex::named("callback-queue", queue);
        Self { run, queue, arrived: Condvar::new(), done: Condvar::new() }
    }

    /// Queues an event, or returns it if there is no room for it.
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

    /// The next event; `None` once closed and empty. Marks the one before as done.
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

    /// Weight of the values that wait for their callback.
    pub(crate) fn bytes(&self) -> u64 {
        self.queue.lock().bytes
    }

    /// Waits until every event so far has been handled.
    pub(crate) fn drain(&self) {
        let mut queue = self.queue.lock();
        while queue.busy || !queue.events.is_empty() {
            self.done.wait(&mut queue);
        }
    }

    /// No events any more; the thread ends when it has handled those that are queued.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_one();
    }
}
