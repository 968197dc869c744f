//! Waiting for one request, on a thread or as a future. It needs no async runtime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_base::waits::{self, WaitKind};

use crate::request::Completion;

/// The shared state of one request and the thread or future that waits for it.
pub struct Waiter {
    state: Mutex<WaiterState>,
    completed: Condvar,
    /// The engine's note of the queue that holds the request.
    engine_tag: AtomicUsize,
}

enum WaiterState {
    Waiting(Option<Waker>),
    Completed(Completion),
    Taken,
}

impl Waiter {
    fn new() -> Self {
        let state = Mutex::named("request-waiter", WaiterState::Waiting(None));
        Self { state, completed: Condvar::new(), engine_tag: AtomicUsize::new(0) }
    }

    /// Stores the engine's tag.
    pub(crate) fn set_engine_tag(&self, engine_tag: usize) {
        self.engine_tag.store(engine_tag, Ordering::Relaxed);
    }

    /// Returns the engine's tag; 0 if there is none.
    pub(crate) fn engine_tag(&self) -> usize {
        self.engine_tag.load(Ordering::Relaxed)
    }

    /// Stores the completion, and wakes the waiting thread or future.
    pub(crate) fn complete(&self, completion: Completion) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut *state, WaiterState::Completed(completion));
        drop(state);
        self.completed.notify_all();
        if let WaiterState::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Returns whether the request has completed.
    pub fn is_complete(&self) -> bool {
        !matches!(*self.state.lock(), WaiterState::Waiting(_))
    }

    /// Blocks until the request has completed. Another thread must complete it.
    pub fn park(&self) {
        let mut state = self.state.lock();
        while matches!(*state, WaiterState::Waiting(_)) {
            self.completed.wait(&mut state);
        }
    }

    fn take(&self) -> Option<Completion> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, WaiterState::Taken) {
            WaiterState::Completed(completion) => Some(completion),
            before => {
                *state = before;
                None
            }
        }
    }
}

/// A request's future completion. Dropping it does not cancel the request.
pub struct Pending {
    waiter: Arc<Waiter>,
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self { waiter: Arc::new(Waiter::new()) }
    }

    pub(crate) fn waiter(&self) -> Arc<Waiter> {
        Arc::clone(&self.waiter)
    }

    /// Blocks this thread until the request has completed, and returns the completion. Meanwhile
    /// the thread helps `device` (see [`Device::help`](crate::Device::help)).
    ///
    /// # Panics
    /// Inside a callback of a request, where the wait could be for itself.
    pub fn wait<D: crate::Device + ?Sized>(self, device: &D) -> Completion {
        assert!(!crate::in_callback(), "a callback must not wait for a request");
        let _wait = waits::measure(WaitKind::Device);
        device.help(&self.waiter);
        self.waiter.park();
        self.waiter.take().expect("only this future takes it")
    }
}

impl Future for Pending {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        if let Some(completion) = self.waiter.take() {
            return Poll::Ready(completion);
        }
        let waker = context.waker().clone();
        let mut state = self.waiter.state.lock();
        match &mut *state {
            WaiterState::Waiting(waiting) => {
                let before = waiting.replace(waker);
                drop(state);
                drop(before);
                Poll::Pending
            }
            WaiterState::Completed(_) => {
                drop(state);
                Poll::Ready(self.waiter.take().expect("complete, and only this future takes it"))
            }
            WaiterState::Taken => panic!("polled after completion"),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("complete", &self.waiter.is_complete()).finish()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
