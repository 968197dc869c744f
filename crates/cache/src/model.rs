//! The throttle and the slab alone, for the model checks in `tests/model`. Checks of the whole
//! cache would need too many steps to reach them. Exists under `--cfg forebay_model` only.

use std::ptr::NonNull;
use std::time::Duration;

use forebay_base::sync::Arc;

use crate::attributes::Class;
use crate::capacity;
use crate::header::slab;
use crate::header::{Header, Unpinned};

/// The throttle of a cache.
pub struct Capacity(capacity::Capacity);

/// A ticket in its queue.
pub struct Ticket(Arc<capacity::Ticket>);

impl Capacity {
    /// Capacity up to `limit`.
    pub fn new(target: u64, limit: u64) -> Self {
        Self(capacity::Capacity::new(target, limit, 1))
    }
    /// Reserves without waiting. Fails while others queue.
    pub fn reserve(&self, weight: u64) -> bool {
        self.0.reserve(weight).is_reserved()
    }
    /// Returns capacity.
    pub fn release(&self, weight: u64) {
        self.0.release(weight);
    }
    /// Joins the queue. The ticket expires at time 1.
    pub fn queue_up(&self, weight: u64) -> Ticket {
        let ticket = Ticket(self.0.queue_up(weight, Some(1)));
        self.0.grant();
        ticket
    }
    /// Waits for the ticket; true if it was granted.
    pub fn wait(&self, ticket: &Ticket) -> bool {
        self.0.wait(&ticket.0, Duration::from_secs(1))
    }
    /// Leaves the queue. True if the ticket was granted meanwhile.
    pub fn leave(&self, ticket: &Ticket) -> bool {
        self.0.leave(&ticket.0)
    }
    /// The outcome, if there is one.
    pub fn outcome(&self, ticket: &Ticket) -> Option<bool> {
        ticket.0.poll(std::task::Waker::noop())
    }
    /// Refuses all tickets.
    pub fn expire(&self) {
        self.0.expire(1, true);
    }
    /// Serves the queue, as the reclaimer does after each pass.
    pub fn grant(&self) {
        self.0.grant();
    }
    /// Reserved weight. Exact if nothing else runs.
    pub fn reserved(&self) -> u64 {
        self.0.gather();
        self.0.reserved()
    }
    /// Whether the queue is not empty.
    pub fn has_waiters(&self) -> bool {
        self.0.has_waiters()
    }
}

/// Headers without a cache.
pub struct Slab(slab::Slab<u64, u64>);

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(NonNull<Header<u64, u64>>);

// SAFETY: headers are type-stable while their slab lives, and the methods of `Slab` access them
// with atomics, or as their owner.
unsafe impl Send for Handle {}

impl Slab {
    /// An empty slab.
    pub fn new() -> Self {
        Self(
            slab::Slab::new(forebay_base::vm::PageSize::system(), 1)
                .expect("memory for a small slab"),
        )
    }
    /// Takes a header, occupies it and publishes it with `key`.
    pub fn take(&self, key: u64) -> Handle {
        let header = self.0.take().expect("memory for a small slab");
        // SAFETY: fresh from the slab, so this thread's alone.
        let h = unsafe { header.as_ref() };
        // SAFETY: it was free, and this thread alone has it.
        unsafe { h.occupy(key, 1, Some(key), (Class::Data, false)) };
        h.announce(crate::header::VALID | crate::header::FILLED);
        let _ = h.unpin();
        Handle(header)
    }
    /// Retires a header. The thread that drops its last pin returns it.
    pub fn retire(&self, handle: Handle) {
        // SAFETY: headers are type-stable.
        let h = unsafe { handle.0.as_ref() };
        assert!(h.retire(crate::Cause::Removed).is_some(), "retired by another thread");
        self.unpin(handle);
    }
    /// Pins a header in any state. Returns its key if it was valid.
    pub fn pin(&self, handle: Handle) -> Option<u64> {
        // SAFETY: headers are type-stable.
        let h = unsafe { handle.0.as_ref() };
        // SAFETY: pinned from a valid state.
        h.try_pin(0).ok().map(|_| unsafe { *h.key() })
    }
    /// The key of a pinned header.
    pub fn key(&self, handle: Handle) -> u64 {
        // SAFETY: the caller has pinned it.
        unsafe { *handle.0.as_ref().key() }
    }
    /// Drops a pin.
    pub fn unpin(&self, handle: Handle) {
        // SAFETY: headers are type-stable.
        let h = unsafe { handle.0.as_ref() };
        if h.unpin() != Unpinned::Last {
            return;
        }
        // SAFETY: the last pin of a retired header was released, and no index refers to it.
        let emptied = unsafe { h.empty() }.expect("it was filled");
        assert_eq!(emptied.value, Some(emptied.key));
        assert_eq!(h.unpin(), Unpinned::Last, "no other thread pins a retired header");
        // SAFETY: it is empty, and the pin that `empty` left was the last.
        unsafe { h.vacate() };
        self.0.give(handle.0);
    }
    /// Finds a header by its number in the slab.
    pub fn find_again(&self, handle: Handle) -> bool {
        // SAFETY: headers are type-stable.
        let id = unsafe { handle.0.as_ref() }.id();
        // A returned chunk loses the numbers of its headers.
        id == 0 || self.0.by_id(id) == Some(handle.0)
    }
    /// Returns memory to the system.
    pub fn trim(&self) {
        self.0.trim();
    }
    /// Headers in use. Exact if nothing else runs.
    pub fn in_use(&self) -> u64 {
        self.0.in_use()
    }
    /// Bytes of headers that may be resident.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

impl Default for Slab {
    fn default() -> Self {
        Self::new()
    }
}
