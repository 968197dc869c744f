//! The loads that this thread runs at the moment: a loader that requests its own block must not
//! wait for itself.
//!
//! [`scope`] marks a load while its loader runs on this thread; an asynchronous one only while it
//! is polled, so that other tasks of the thread can wait for it. A request that would wait asks
//! [`is_own`]. One that would wait for the listener asks [`is_loading`].
//! Not found: a loader that waits for another thread which waits for it.
//!
//! Locking: none; the list is of this thread.

use std::cell::RefCell;

forebay_base::sync::thread_local! {
    /// Addresses of the headers of the loads, outermost first, and of their entered keys
    /// (`keyed::loading_keys`). A guard's pin keeps each header in use, so an address is that of
    /// one load in all caches.
    static OWN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A load that this thread runs.
pub(crate) struct Scope(usize);

/// Marks a load as run by this thread until the scope is dropped.
pub(crate) fn scope(header: usize) -> Scope {
    // A thread that is ending has no list, and finds no load of its own.
    let _ = OWN.try_with(|own| own.borrow_mut().push(header));
    Scope(header)
}

/// Whether this thread runs the load of that header.
pub(crate) fn is_own(header: usize) -> bool {
    OWN.try_with(|own| own.borrow().contains(&header)).unwrap_or(false)
}

/// Whether this thread runs a load of any cache.
pub(crate) fn is_loading() -> bool {
    OWN.try_with(|own| !own.borrow().is_empty()).unwrap_or(false)
}

impl Scope {
    /// Runs a part of the loader.
    pub(crate) fn run<T>(self, part: impl FnOnce() -> T) -> T {
        part()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let _ = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            if let Some(at) = own.iter().rposition(|header| *header == self.0) {
                own.remove(at);
            }
        });
    }
}
