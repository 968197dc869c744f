//! The slab alone: each header has one owner at a time, and outdated lookups of headers are
//! harmless.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::model::Slab;

use forebay_base::model::{below, check, join, spawn};

/// No two threads own a header at once. Returned headers are reused. Memory of empty chunks is
/// returned.
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

/// Lookups that keep a header's address pin it in any of its uses, or not at all. A pinned header
/// does not change until it is unpinned.
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
