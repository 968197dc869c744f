//! Heals of a scrub, which a commit does not wait for as long as their space cannot be reused.
//!
//! A scrub reads without being a [reader](super::readers), so it holds up no commit. Only when it
//! rewrites a bad copy must the space stay as it is: a copy that was freed and allocated again
//! belongs to a newer block. A heal enters with a durable transaction group, looks the pointer up
//! in a tree that is at least as new, and rewrites the copy.
//!
//! # Why it is safe
//!
//! A pointer that is in the tree of txg `n` is freed by txg `n + 1` or later. The space maps hand
//! freed space out again [`TXGS_TO_REUSE`] txgs after the one that freed it. So a commit of txg `t`
//! waits for heals that entered with a txg below `t - TXGS_TO_REUSE`, and for no other: a heal has
//! that many commits of time.
//!
//! Locking: `store-heals` is a leaf lock; a commit that has to wait sleeps on it.

use forebay_base::sync::{Condvar, Mutex};

use crate::format::TXGS_TO_REUSE;

/// The heals in progress.
pub(crate) struct Heals {
    /// The txgs with which they entered.
    active: Mutex<Vec<u64>>,
    left: Condvar,
}

/// A heal in progress. The space of a block whose pointer was current after it entered is not
/// reused until this is dropped.
pub(crate) struct HealGuard<'a> {
    heals: &'a Heals,
    txg: u64,
}

impl Heals {
    pub(super) fn new() -> Self {
        Self { active: Mutex::named("store-heals", Vec::new()), left: Condvar::new() }
    }

    /// Enters. `txg` is durable. Look pointers up only after this call.
    pub(crate) fn enter(&self, txg: u64) -> HealGuard<'_> {
        self.active.lock().push(txg);
        HealGuard { heals: self, txg }
    }

    /// Waits until no heal needs space that `txg` may reuse. Returns whether it had to wait. Call
    /// it before the txg allocates.
    pub(crate) fn wait_before(&self, txg: u64) -> bool {
        let blocks = |entered: &u64| entered.saturating_add(TXGS_TO_REUSE) < txg;
        let mut active = self.active.lock();
        let waits = active.iter().any(blocks);
        while active.iter().any(blocks) {
            self.left.wait(&mut active);
        }
        waits
    }
}

impl Drop for HealGuard<'_> {
    fn drop(&mut self) {
        let mut active = self.heals.active.lock();
        if let Some(at) = active.iter().position(|txg| *txg == self.txg) {
            active.swap_remove(at);
        }
        self.heals.left.notify_all();
    }
}
