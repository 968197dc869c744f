//! Waiting for one request: on a thread, or as a future. No runtime is needed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::request::Completion;

/// Where a request's end is left for one who waits.
pub struct Waiter {
    state: Mutex<WaiterState>,
    completed: Condvar,
    /// Where the engine has put the request: its own name for that.
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

    /// Notes where the engine has put the request.
    pub(crate) fn set_engine_tag(&self, engine_tag: usize) {
        self.engine_tag.store(engine_tag, Ordering::Relaxed);
    }

    /// Where the engine has put the request; 0 if that is not known.
    pub(crate) fn engine_tag(&self) -> usize {
        self.engine_tag.load(Ordering::Relaxed)
    }

    /// Leaves the end and wakes who waits.
    pub(crate) fn complete(&self, completion: Completion) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut *state, WaiterState::Completed(completion));
        drop(state);
        self.completed.notify_all();
        if let WaiterState::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Whether the end is there.
    pub fn is_complete(&self) -> bool {
        !matches!(*self.state.lock(), WaiterState::Waiting(_))
    }

    /// Sleeps until the end is there. Somebody else must be bringing it about.
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

/// The end of a request, to come. Dropping it does not cancel the request.
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

    /// Waits on this thread and returns the end. With `device`, the thread helps to bring it
    /// about (see [`Device::help`](crate::Device::help)).
    ///
    /// # Panics
    /// Inside a callback of a request, where waiting could wait for itself.
    pub fn wait<D: crate::Device + ?Sized>(self, device: &D) -> Completion {
        assert!(!crate::in_callback(), "a callback must not wait for a request");
        device.help(&self.waiter);
        self.waiter.park();
        self.waiter.take().expect("nobody else takes it")
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
                Poll::Ready(self.waiter.take().expect("settled, and nobody else takes it"))
            }
            WaiterState::Taken => panic!("polled after it was ready"),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("settled", &self.waiter.is_complete()).finish()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
