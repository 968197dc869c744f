//! Keeps the L2 devices of a pool on an object store up to date.
//!
//! L2 gets what memory evicts. That is too late for an object store: each block that is read again
//! after a crash costs a round trip and a request that is paid for. So a thread looks every now and
//! then whether blocks were fetched or written since, and writes all blocks that only memory has.
//! Neither a read nor a commit waits for it.
//!
//! A pass looks at all blocks in memory. So it waits until a share of them may be new, or for some
//! looks: its cost is in proportion to what was fetched or written.
//!
//! # Locking
//!
//! `pool-l2-fill` protects whether the thread ends; it sleeps on it. `pool-l2-fill-thread` holds
//! its handle. No L2 is called under either.

use std::time::Duration;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::devices::config::VdevKind;
use crate::error::{Error, Result};
use crate::store::counters::StoreCounters;

use super::PoolInner;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// A pass begins once this share of the cache was fetched or written since the last one.
const CHANGED_SHARE: u64 = 64;
/// After so many looks, less is enough.
const LOOKS_MAX: u32 = 15;
/// Maximum time of a pass over memory, in nanoseconds. The next one goes on.
const PASS_NS: u64 = 10_000_000_000;

/// The thread that fills L2 devices.
pub(super) struct L2Fills {
    ends: Mutex<bool>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl L2Fills {
    pub(super) fn new() -> Self {
        Self {
            ends: Mutex::named("pool-l2-fill", false),
            changed: Condvar::new(),
            thread: Mutex::named("pool-l2-fill-thread", None),
        }
    }

    /// Starts the thread, which calls [`run`](Self::run).
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(&self, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::spawn_named("forebay-l2-fill", run)
            .map_err(|error| Error::no_thread("the L2 of the pool", error))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Calls `fill`, with the time that a pass may take, whenever enough bytes have moved, until
    /// [`shut_down`](Self::shut_down). It returns whether nothing was left.
    pub(super) fn run(
        &self,
        cache_bytes: u64,
        moved_bytes: impl Fn() -> u64,
        fill: impl Fn(u64) -> bool,
    ) {
        let (mut seen, mut looks) = (0, 0);
        while self.wait() {
            let now = moved_bytes();
            looks += 1;
            if pays(now - seen, cache_bytes, looks) && fill(PASS_NS) {
                (seen, looks) = (now, 0);
            }
        }
    }

    /// Ends the thread, after its pass.
    pub(super) fn shut_down(&self) {
        *self.ends.lock() = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }

    /// Waits for the next look. Returns false if the thread ends.
    fn wait(&self) -> bool {
        let mut ends = self.ends.lock();
        if !*ends {
            self.changed.wait_timeout(&mut ends, INTERVAL);
        }
        !*ends
    }
}

/// Starts the thread of a pool, if it is on an object store.
pub(super) fn start(inner: &Arc<PoolInner>) -> Result<()> {
    if !inner.devices.iter().any(|vdev| vdev.kind() == VdevKind::ObjectStore) {
        return Ok(());
    }
    let pool = Arc::clone(inner);
    inner.l2_fills.start(move || {
        let cache_bytes = pool.store.cache().bound_bytes();
        pool.l2_fills.run(
            cache_bytes,
            || moved_bytes(pool.store.counters()),
            |allowed_ns| pool.l2_devices.fill(&*pool, allowed_ns),
        );
    })
}

/// Whether to begin a pass after `moved` bytes and some looks.
fn pays(moved: u64, cache_bytes: u64, looks: u32) -> bool {
    moved > 0 && (looks >= LOOKS_MAX || moved >= cache_bytes / CHANGED_SHARE)
}

/// Bytes that were fetched or written since the import.
pub(super) fn moved_bytes(counters: &StoreCounters) -> u64 {
    counters.total(StoreCounters::READ_BYTES) + counters.total(StoreCounters::PHYSICAL_BYTES)
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_pass_waits_for_a_share_of_the_cache_or_some_looks() {
        let cache = 64 << 20;
        assert!(!pays(0, cache, LOOKS_MAX), "nothing has changed");
        assert!(!pays(1 << 12, cache, 1));
        assert!(pays(1 << 12, cache, LOOKS_MAX));
        assert!(pays(cache / CHANGED_SHARE, cache, 1));
    }
}
