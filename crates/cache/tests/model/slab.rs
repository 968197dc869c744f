//! Headers alone: given out once at a time, and harmless to look at however outdated the look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::model::Slab;

use forebay_base::model::{below, check, join, spawn};

/// Nobody has a header that another has; what is given back is used again; memory of empty chunks goes.
#[test]
fn a_header_has_one_owner() {
    check(7500, || {
        let slab = Arc::new(Slab::new());
        let user = |first: u64| {
            let slab = slab.clone();
            spawn(move || {
                for round in 0..2 {
                    let keys: Vec<u64> = (0..6).map(|i| first + 10 * round + i).collect();
                    let taken: Vec<_> = keys.iter().map(|key| slab.take(*key)).collect();
                    for (handle, key) in taken.iter().zip(&keys) {
                        assert_eq!(slab.pin(*handle), Some(*key), "taken by two at a time");
                        assert!(slab.find_again(*handle));
                        slab.unpin(*handle);
                    }
                    taken.into_iter().for_each(|handle| slab.retire(handle));
                }
            })
        };
        let threads = [user(100), user(200)];
        slab.trim();
        join(threads);
        assert_eq!(slab.in_use(), 0);
        slab.trim();
        assert_eq!(slab.bytes(), 0, "memory was not given back");
    });
}

/// Lookups that hold a header's address for ever pin it in any of its lives, or not at all; what they pin
/// stays as it is until they let go.
#[test]
fn outdated_lookups_meet_wiped_and_reused_headers() {
    check(12_000, || {
        let slab = Arc::new(Slab::new());
        let handle = slab.take(0);
        let latest = Arc::new(AtomicU64::new(0));
        let user = {
            let (slab, latest) = (slab.clone(), latest.clone());
            spawn(move || {
                slab.retire(handle);
                if below(2) == 0 {
                    slab.trim();
                }
                for key in 1..4 {
                    latest.store(key, Ordering::Relaxed);
                    let next = slab.take(key);
                    slab.retire(next);
                    slab.trim();
                }
            })
        };
        let mut last = 0;
        for _ in 0..4 {
            if let Some(key) = slab.pin(handle) {
                assert!(key >= last && key <= latest.load(Ordering::Relaxed));
                shuttle::thread::yield_now();
                assert_eq!(slab.key(handle), key, "a pinned header was used again");
                slab.unpin(handle);
                last = key;
            }
        }
        join([user]);
        assert_eq!(slab.in_use(), 0);
    });
}
