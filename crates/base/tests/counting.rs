//! Tests of the counting build: `--features counting`.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Mutex, count};

#[test]
fn locks_and_failed_swaps_are_counted_for_this_thread() {
    let before = count::thread();
    let lock = Mutex::named("test-of-count", 1);
    *lock.lock() += 1;
    let cell = AtomicU64::new(1);
    assert!(cell.compare_exchange(2, 3, Ordering::Relaxed, Ordering::Relaxed).is_err());
    count::retry();
    let after = count::thread();
    assert_eq!(after.locks - before.locks, 1);
    assert_eq!(after.cas_failed - before.cas_failed, 1);
    assert_eq!(after.rmw - before.rmw, 1);
    assert_eq!(after.retries - before.retries, 1);
    assert!(count::by_lock().iter().any(|(name, c)| *name == "test-of-count" && c.locks >= 1));
}
