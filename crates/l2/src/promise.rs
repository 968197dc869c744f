//! A result that one thread provides. Futures await it, under any executor, or threads.
//!
//! Invariants: the first result stays. A future that waits has one waker here, and takes it back
//! when it is dropped.
//!
//! Locking: `l2-promise`, a leaf lock, to read or set the state. Wakers are called and dropped
//! outside of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_base::sync::{Arc, Condvar, Mutex};

/// A result, once it is known.
pub(crate) struct Promise<T> {
    state: Mutex<PromiseState<T>>,
    fulfilled: Condvar,
}

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
        let state = Mutex::named("l2-promise", state);
        Arc::new(Self { state, fulfilled: Condvar::new() })
    }

    /// Sets the result, unless there is one, and wakes the futures. If a waker panics, the others
    /// are woken before the panic goes on.
    pub(crate) fn fulfill(&self, result: T) {
        let mut state = self.state.lock();
        let mut late = None;
        match state.result {
            None => state.result = Some(result),
            Some(_) => late = Some(result),
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.fulfilled.notify_all();
        drop(late);
        let mut panicked = None;
        for waker in wakers.into_values() {
            let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            panicked = panicked.or(woken.err());
        }
        match panicked {
            Some(panic) if !std::thread::panicking() => resume_unwind(panic),
            _ => {}
        }
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

    /// Blocks the thread until the result is known, or until the time is over.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> Option<T>
    where
        T: Clone,
    {
        let mut state = self.state.lock();
        // Only `fulfill` wakes it: a spurious wake-up restarts the timeout.
        while state.result.is_none() && !self.fulfilled.wait_timeout(&mut state, timeout) {}
        state.result.clone()
    }

    fn future(self: &Arc<Self>, read: fn(&mut Option<T>) -> Option<T>) -> Promised<T> {
        let mut state = self.state.lock();
        state.next += 1;
        Promised { promise: Arc::clone(self), number: state.next, read }
    }
}

impl<T> Future for Promised<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let waker = context.waker().clone();
        let mut state = self.promise.state.lock();
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
        let waker = self.promise.state.lock().wakers.remove(&self.number);
        drop(waker);
    }
}

/// Calls a function when it is dropped, also because user code has panicked.
pub(crate) struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    pub(crate) fn new(call: F) -> Self {
        Self(Some(call))
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts, and panics if it is told to.
    struct Counting {
        wakes: AtomicU64,
        panics: bool,
    }

    impl Wake for Counting {
        fn wake(self: std::sync::Arc<Self>) {
            self.wakes.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "a waker that panics");
        }
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_others_asleep() {
        let promise = Promise::new();
        let wakers = [false, true, false]
            .map(|panics| std::sync::Arc::new(Counting { wakes: AtomicU64::new(0), panics }));
        let mut futures = wakers.each_ref().map(|_| Box::pin(promise.wait()));
        for (future, counting) in futures.iter_mut().zip(&wakers) {
            let waker = Waker::from(std::sync::Arc::clone(counting));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(catch_unwind(AssertUnwindSafe(|| promise.fulfill(7))).is_err());
        assert_eq!(wakers.map(|counting| counting.wakes.load(Ordering::SeqCst)), [1; 3]);
        let mut again = pin!(promise.wait());
        assert_eq!(again.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(7));
    }
}
