//! Running callbacks one after another on a thread, never nested.
//!
//! A callback may submit requests, and some of them complete at once (refused, or by a memory
//! device without latency). Running their callbacks inside the first one would make a chain of
//! requests recursive. So a request that completes inside a callback is deferred, in a list of the
//! thread, until that callback has returned.
//!
//! A completion is delivered in this order: to layers that were added after the request joined its
//! root, to the root ([`Hold`]), to the request's own callback.
//!
//! Invariant: when [`run`] returns and the thread is in no callback, its list is empty.
//!
//! A panic in a callback must not lose other requests' completions or the engine's thread. It is
//! caught here, after the panic hook has reported it. Roots count panics. A layer that panics may
//! have been about to reject the result (a checksum, perhaps), so its panic turns success into an
//! error.
//!
//! Locking: none.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::request::Completion;
use crate::roots::Hold;

/// A request's callback.
pub(crate) type Callback = Box<dyn FnOnce(Completion) + Send>;

/// A layer, which sees the completion before the callback.
pub(crate) type Layer = Box<dyn FnOnce(&mut Completion) + Send>;

/// A completion and its recipients.
pub(crate) struct RequestEnd {
    pub(crate) completion: Completion,
    pub(crate) layers: Option<Layer>,
    pub(crate) hold: Option<Hold>,
    pub(crate) callback: Option<Callback>,
}

impl RequestEnd {
    /// Delivers the completion. Catches panics.
    pub(crate) fn deliver(self) {
        let Self { mut completion, layers, hold, callback } = self;
        if let Some(layers) = layers
            && !catch_panic(|| layers(&mut completion))
        {
            completion.fail_for_panic();
        }
        match hold {
            Some(hold) => hold.end(callback, completion),
            None => {
                call(callback, completion);
            }
        }
    }
}

/// Calls `callback`, if there is one, and returns whether it did not panic.
pub(crate) fn call(callback: Option<Callback>, completion: Completion) -> bool {
    catch_panic(|| match callback {
        Some(callback) => callback(completion),
        // This may drop memory of a user's type.
        None => drop(completion),
    })
}

/// Runs `f`, and returns whether it did not panic. The panic hook has reported the panic.
pub(crate) fn catch_panic(f: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else {
        return true;
    };
    // Dropping the panic's payload may panic as well. There is no third attempt.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    false
}

forebay_base::sync::thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static DEFERRED: RefCell<VecDeque<RequestEnd>> = const { RefCell::new(VecDeque::new()) };
}

/// Returns whether the calling thread is in the callback of a request. Such a thread must not wait
/// for other requests.
pub fn in_callback() -> bool {
    // The variable may be gone while the thread's variables are dropped.
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// Delivers `end`, or defers it until the current callback of this thread has returned.
pub(crate) fn run(end: RequestEnd) {
    let mut end = Some(end);
    if in_callback() {
        // The list is gone if the thread is ending. Then a nested call is better than none.
        let _ = DEFERRED.try_with(|later| later.borrow_mut().extend(end.take()));
        if let Some(end) = end {
            end.deliver();
        }
        return;
    }
    let _scope = CallbackScope::enter();
    while let Some(next) = end {
        // A panic here is a defect of this crate, and still affects only one request.
        catch_panic(|| next.deliver());
        end = DEFERRED.try_with(|later| later.borrow_mut().pop_front()).ok().flatten();
    }
}

/// The calling thread is in a callback while this exists.
struct CallbackScope;

impl CallbackScope {
    fn enter() -> Self {
        let _ = IN_CALLBACK.try_with(|active| active.set(true));
        Self
    }
}

impl Drop for CallbackScope {
    fn drop(&mut self) {
        let _ = IN_CALLBACK.try_with(|active| active.set(false));
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
