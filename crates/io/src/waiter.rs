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
    state: Mutex<State>,
    settled: Condvar,
    /// Where the engine has put the request: its own name for that.
    place: AtomicUsize,
}

enum State {
    Waiting(Option<Waker>),
    Settled(Completion),
    Taken,
}

impl Waiter {
    fn new() -> Self {
        let state = Mutex::named("request-waiter", State::Waiting(None));
        Self { state, settled: Condvar::new(), place: AtomicUsize::new(0) }
    }

    /// Notes where the engine has put the request.
    pub(crate) fn set_place(&self, place: usize) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Where the engine has put the request; 0 if that is not known.
    pub(crate) fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed)
    }

    /// Leaves the end and wakes who waits.
    pub(crate) fn settle(&self, completion: Completion) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut *state, State::Settled(completion));
        drop(state);
        self.settled.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Whether the end is there.
    pub fn is_settled(&self) -> bool {
        !matches!(*self.state.lock(), State::Waiting(_))
    }

    /// Sleeps until the end is there. Somebody else must be bringing it about.
    pub fn park(&self) {
        let mut state = self.state.lock();
        while matches!(*state, State::Waiting(_)) {
            self.settled.wait(&mut state);
        }
    }

    fn take(&self) -> Option<Completion> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Settled(completion) => Some(completion),
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
            State::Waiting(waiting) => {
                let before = waiting.replace(waker);
                drop(state);
                drop(before);
                Poll::Pending
            }
            State::Settled(_) => {
                drop(state);
                Poll::Ready(self.waiter.take().expect("settled, and nobody else takes it"))
            }
            State::Taken => panic!("polled after it was ready"),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("settled", &self.waiter.is_settled()).finish()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
