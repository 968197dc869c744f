//! A queued device with its owner: closing it, and dropping it.
//!
//! Closing refuses new requests, waits until every queue is idle, joins the backend's threads, and
//! closes the file. In a callback it only refuses, because it would wait for that callback.
//!
//! Locking: `io-submission-queue`, one after another; `io-threads` briefly.

use forebay_base::sync::{Arc, thread};

use super::core::{Backend, Core};
use crate::completion::in_callback;
use crate::device::{Device, DeviceInfo, DeviceStats, Health};
use crate::request::Request;
use crate::waiter::Waiter;

impl<B: Backend> Core<B> {
    fn refuse_from_now_on(&self) {
        for queue in 0..self.queues() {
            let mut state = self.lock(queue);
            state.closed = true;
            self.wake_slot_waiters(queue);
            self.slot(queue).idle.notify_all();
        }
    }

    fn close(&self) {
        self.refuse_from_now_on();
        if in_callback() {
            // The wait would include this callback.
            return;
        }
        for queue in 0..self.queues() {
            let mut state = self.lock(queue);
            while !state.is_idle() {
                self.slot(queue).idle.wait(&mut state);
            }
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        B::stop(self);
        for thread in threads {
            // The panic hook has reported any panic.
            let _ = thread.join();
        }
        B::close_file(self);
    }
}

/// A core with its owner. Dropping it closes the device.
pub(crate) struct QueuedDevice<B: Backend>(Arc<Core<B>>);

impl<B: Backend> QueuedDevice<B> {
    pub(crate) fn new(core: Arc<Core<B>>) -> Self {
        Self(core)
    }
}

impl<B: Backend> Device for QueuedDevice<B> {
    fn submit(&self, request: Request) {
        if let Some(request) = self.0.execute_inline(request) {
            self.0.submit_all(std::iter::once(request));
        }
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        self.0.submit_all(requests.drain(..));
    }

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn stats(&self) -> DeviceStats {
        let counters = self.0.counters.snapshot();
        let counters = counters.into_iter().map(|c| (c.name, c.label.unwrap_or(""), c.value));
        DeviceStats::new(self.0.backend.engine(&self.0.info.engine), counters.collect())
    }

    fn help(&self, waiter: &Waiter) {
        self.0.help(waiter);
    }

    fn close(&self) {
        self.0.close();
    }
}

impl<B: Backend> Drop for QueuedDevice<B> {
    fn drop(&mut self) {
        self.0.close();
        if in_callback() {
            // Threads cannot be joined in a callback. Another thread does the waiting.
            let core = Arc::clone(&self.0);
            let _ = thread::spawn_named("io-close", move || core.close());
        }
    }
}
