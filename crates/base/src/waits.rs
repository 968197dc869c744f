//! What a thread waits for while it works on an operation.
//!
//! Who receives an operation calls [`begin`] with an identifier. Places that block call
//! [`measure`], and who answers takes the sums with [`end`]. An operation that continues on another
//! thread takes its sums with it as [`Carried`].
//!
//! # Invariants
//!
//! - A thread works on one operation at a time. Sums of another one are not returned.
//! - A wait within a wait counts once, as the outer one.
//! - A thread that has begun no operation measures nothing, and does not look at the clock.
//!
//! # Locking
//!
//! None: all state is local to a thread.
//!
//! # What it does not do
//!
//! It does not see waits of the system, such as those for a processor, and none in the model build.

use crate::clock::{Clock, SystemClock};
use std::cell::Cell;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum WaitKind {
    /// A lock that others hold during I/O.
    Lock,
    /// A transaction group: that it opens, becomes durable, or that less data is dirty.
    Transaction,
    /// A device, or another thread's request to it.
    Device,
    /// A thread that continues the operation.
    Queue,
}

const KINDS: usize = WaitKind::Queue as usize + 1;

/// Nanoseconds waited, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits([u64; KINDS]);

impl Waits {
    /// Nanoseconds waited for `kind`.
    pub fn of(&self, kind: WaitKind) -> u64 {
        self.0[kind as usize]
    }

    /// Adds nanoseconds to a kind.
    pub fn add(&mut self, kind: WaitKind, ns: u64) {
        let sum = &mut self.0[kind as usize];
        *sum = sum.saturating_add(ns);
    }

    /// Nanoseconds waited in all.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }
}

/// The operation of a thread; 0 for none.
#[derive(Clone, Copy)]
struct Current {
    operation: u64,
    waits: Waits,
    /// Whether a wait is being measured.
    waiting: bool,
}

const NONE: Current = Current { operation: 0, waits: Waits([0; KINDS]), waiting: false };

#[allow(clippy::disallowed_macros, reason = "the model build measures nothing")]
mod local {
    use super::{Cell, Current, NONE};

    std::thread_local! {
        pub(super) static CURRENT: Cell<Current> = const { Cell::new(NONE) };
    }
}

/// What the thread works on. The variable may be gone while the thread ends.
fn current() -> Current {
    local::CURRENT.try_with(Cell::get).unwrap_or(NONE)
}

fn set(current: Current) {
    let _ = local::CURRENT.try_with(|cell| cell.set(current));
}

/// From now on this thread works on `operation`, which is not 0.
#[inline]
pub fn begin(operation: u64) {
    set(Current { operation, ..NONE });
}

/// What `operation` has waited for, if this thread works on it. Ends the work on it.
pub fn end(operation: u64) -> Waits {
    let now = current();
    if now.operation != operation {
        return Waits::default();
    }
    set(NONE);
    now.waits
}

/// Measures from now until it is dropped.
#[must_use]
pub struct Measured {
    /// The kind, the clock, which has started with the wait, and the operation.
    wait: Option<(WaitKind, SystemClock, u64)>,
}

/// Begins to wait for `kind`.
pub fn measure(kind: WaitKind) -> Measured {
    if cfg!(forebay_model) {
        return Measured { wait: None };
    }
    let now = current();
    if now.operation == 0 || now.waiting {
        return Measured { wait: None };
    }
    set(Current { waiting: true, ..now });
    Measured { wait: Some((kind, SystemClock::new(), now.operation)) }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let Some((kind, clock, operation)) = self.wait.take() else { return };
        let mut now = current();
        if now.operation == operation {
            now.waits.add(kind, clock.now_ns());
            set(Current { waiting: false, ..now });
        }
    }
}

/// An operation on its way to another thread.
pub struct Carried {
    current: Current,
    clock: SystemClock,
}

/// Takes the operation of this thread away, for another thread to go on with.
pub fn carry() -> Carried {
    let current = Current { waiting: false, ..current() };
    set(NONE);
    Carried { current, clock: SystemClock::new() }
}

impl Carried {
    /// Goes on with the operation on this thread. The time since [`carry`] counts as waiting for a
    /// thread.
    pub fn resume(self) {
        let mut current = self.current;
        if current.operation != 0 {
            current.waits.add(WaitKind::Queue, self.clock.now_ns());
        }
        set(current);
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    fn pass_a_little() {
        let clock = SystemClock::new();
        while clock.now_ns() < 1000 {}
    }

    #[test]
    fn waits_are_counted_once_and_belong_to_their_operation() {
        // Nothing has begun.
        drop(measure(WaitKind::Lock));
        begin(5);
        {
            let _outer = measure(WaitKind::Transaction);
            let _inner = measure(WaitKind::Device);
            pass_a_little();
        }
        assert_eq!(end(6), Waits::default());
        let waits = end(5);
        assert!(waits.of(WaitKind::Transaction) >= 1000);
        assert_eq!(waits.total(), waits.of(WaitKind::Transaction));
        assert_eq!(end(5), Waits::default());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test needs a second thread")]
    fn an_operation_takes_its_waits_to_another_thread() {
        begin(5);
        {
            let _wait = measure(WaitKind::Lock);
            pass_a_little();
        }
        let carried = carry();
        assert_eq!(end(5), Waits::default());
        pass_a_little();
        let there = std::thread::spawn(move || {
            carried.resume();
            end(5)
        });
        let waits = there.join().unwrap();
        assert!(waits.of(WaitKind::Lock) >= 1000 && waits.of(WaitKind::Queue) >= 1000);
    }

    #[test]
    fn a_wait_that_outlives_its_operation_is_dropped() {
        begin(5);
        let wait = measure(WaitKind::Lock);
        begin(6);
        drop(wait);
        assert_eq!(end(6), Waits::default());
    }
}
