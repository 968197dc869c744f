//! Running callbacks: one after the other on a thread, never inside each other.
//!
//! A callback may submit requests, and some of them end at once (refused, or a memory device
//! without latency). If their callbacks ran inside the first one, a chain of requests would be
//! a recursion. So what ends inside a callback waits in a list of the thread's own until that
//! callback has returned.
//!
//! Who hears of an end, in this order: the layers that were put over the request after it joined
//! its root, the root ([`Hold`]), the request's own callback.
//!
//! Invariant: when [`run`] returns and the thread is in no callback, its list is empty.
//!
//! A panic in a callback is the callback's defect, but neither other requests' ends nor the engine's
//! thread may be lost for it: it ends here, after the panic hook has told of it. Roots count panics. A
//! layer that panics may have had something to say against the result (a checksum, perhaps), so
//! its panic turns success into an error.
//!
//! Locking: none.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::request::Completion;
use crate::roots::Hold;

/// What is to be done with a request's end.
pub(crate) type Callback = Box<dyn FnOnce(Completion) + Send>;

/// What sees a request's end before that.
pub(crate) type Layer = Box<dyn FnOnce(&mut Completion) + Send>;

/// The end of a request, and who is to hear of it.
pub(crate) struct RequestEnd {
    pub(crate) completion: Completion,
    pub(crate) layers: Option<Layer>,
    pub(crate) hold: Option<Hold>,
    pub(crate) callback: Option<Callback>,
}

impl RequestEnd {
    /// Tells them. Panics of theirs end here.
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

/// Calls `callback`, if there is one, and says whether it returned.
pub(crate) fn call(callback: Option<Callback>, completion: Completion) -> bool {
    catch_panic(|| match callback {
        Some(callback) => callback(completion),
        // Memory of a user's own type may go with it.
        None => drop(completion),
    })
}

/// Runs `f`, and says whether it returned. If not, the panic hook has told why.
pub(crate) fn catch_panic(f: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else {
        return true;
    };
    // What was thrown may panic in its drop. What that throws is not worth another attempt.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    false
}

forebay_base::sync::thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static DEFERRED: RefCell<VecDeque<RequestEnd>> = const { RefCell::new(VecDeque::new()) };
}

/// Whether the calling thread is in the callback of a request. Such a thread must not wait for
/// other requests.
pub fn in_callback() -> bool {
    // Asked by the drop of another of the thread's own variables, the answer may be gone.
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// Tells who is to hear of `end`, or has the callback that this thread is in do so after it.
pub(crate) fn run(end: RequestEnd) {
    let mut end = Some(end);
    if in_callback() {
        // The list is gone if the thread is ending; then a nested call is better than none.
        let _ = DEFERRED.try_with(|later| later.borrow_mut().extend(end.take()));
        if let Some(end) = end {
            end.deliver();
        }
        return;
    }
    let _scope = CallbackScope::enter();
    while let Some(next) = end {
        // What panics in here is a defect of this crate, and one request's affair all the same.
        catch_panic(|| next.deliver());
        end = DEFERRED.try_with(|later| later.borrow_mut().pop_front()).ok().flatten();
    }
}

/// The calling thread is in a callback, as long as this exists.
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
