//! A result that one thread provides and futures await, under any executor.
//!
//! Invariants: the first result stays. A future that waits has one waker here, and takes it back
//! when it is dropped.
//!
//! Locking: `l2-promise`, a leaf lock, to read or set the state. Wakers are called and dropped
//! outside of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use forebay_base::sync::{Arc, Mutex};

/// A result, once it is known.
pub(crate) struct Promise<T>(Mutex<PromiseState<T>>);

struct PromiseState<T> {
    result: Option<T>,
    wakers: BTreeMap<u64, Waker>,
    /// The number of the next future.
    next: u64,
}

/// Waits for the result of a promise.
pub(crate) struct Promised<T> {
    promise: Arc<Promise<T>>,
    number: u64,
    /// Reads the result, if it is known.
    read: fn(&mut Option<T>) -> Option<T>,
}

impl<T> Promise<T> {
    pub(crate) fn new() -> Arc<Self> {
        let state = PromiseState { result: None, wakers: BTreeMap::new(), next: 0 };
        Arc::new(Self(Mutex::named("l2-promise", state)))
    }

    /// Sets the result, unless there is one, and wakes the futures.
    pub(crate) fn fulfill(&self, result: T) {
        let mut state = self.0.lock();
        let mut late = None;
        match state.result {
            None => state.result = Some(result),
            Some(_) => late = Some(result),
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        drop(late);
        wakers.into_values().for_each(Waker::wake);
    }

    /// A future of the result for its only user.
    pub(crate) fn take(self: &Arc<Self>) -> Promised<T> {
        self.future(Option::take)
    }

    /// A future of the result, one of any number.
    pub(crate) fn wait(self: &Arc<Self>) -> Promised<T>
    where
        T: Clone,
    {
        self.future(|result| result.clone())
    }

    fn future(self: &Arc<Self>, read: fn(&mut Option<T>) -> Option<T>) -> Promised<T> {
        let mut state = self.0.lock();
        state.next += 1;
        Promised { promise: Arc::clone(self), number: state.next, read }
    }
}

impl<T> Future for Promised<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let waker = context.waker().clone();
        let mut state = self.promise.0.lock();
        if let Some(result) = (self.read)(&mut state.result) {
            return Poll::Ready(result);
        }
        let before = state.wakers.insert(self.number, waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T> Drop for Promised<T> {
    fn drop(&mut self) {
        let waker = self.promise.0.lock().wakers.remove(&self.number);
        drop(waker);
    }
}
