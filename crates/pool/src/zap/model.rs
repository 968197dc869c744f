//! Model checks: lookups against names that enter the change buffer and move to their leaf.

use forebay_base::model::{check, spawn};
use forebay_base::sync::Arc;

use super::memory::MemoryStore;
use super::{Zap, ZapCounters};
use crate::format::ZapBlock;
use crate::wait::Wait;

const SCHEDULES: usize = 300;
const NAMES: u32 = 300;

/// Long names: few fill a leaf.
fn name(number: u32) -> Vec<u8> {
    format!("{number:0>240}").into_bytes()
}

/// An aided directory whose leaves are not resident.
fn directory() -> Zap<MemoryStore> {
    let zap = Zap::open(MemoryStore::with_seed(1), Wait::Allowed).unwrap();
    for number in 0..NAMES {
        zap.insert(&(), &name(number), b"v").unwrap();
    }
    zap.store().commit();
    zap
}

fn evict_leaves(zap: &Zap<MemoryStore>) {
    zap.store().evict_if(|id| matches!(id, ZapBlock::Leaf(_)));
}

fn exists(zap: &Zap<MemoryStore>, number: u32) -> bool {
    zap.lookup(&name(number), Wait::Allowed).unwrap().is_some()
}

/// A name that was seen stays, and none is seen before it is inserted or after it is removed,
/// while names are buffered, moved and synced.
#[test]
fn a_name_is_found_on_its_way_to_its_leaf() {
    let body = || {
        let zap = Arc::new(directory());
        evict_leaves(&zap);
        zap.insert(&(), &name(NAMES + 20), b"v").unwrap();
        let buffered = zap.store().counted(ZapCounters::DIRECTORY_NAMES_BUFFERED);
        assert_eq!(buffered, 1, "the leaf was away");
        let inserter = {
            let zap = Arc::clone(&zap);
            let work = move || {
                for number in NAMES..NAMES + 3 {
                    zap.insert(&(), &name(number), b"v").unwrap();
                    assert!(exists(&zap, number), "it was inserted");
                }
                zap.remove(&(), &name(NAMES)).unwrap();
                assert!(!exists(&zap, NAMES), "it was removed");
            };
            spawn(work)
        };
        let reader = {
            let zap = Arc::clone(&zap);
            let work = move || {
                let mut seen = false;
                for _ in 0..3 {
                    let found = exists(&zap, NAMES + 1);
                    assert!(found || !seen, "it was there before");
                    seen |= found;
                    assert!(exists(&zap, 7) && !exists(&zap, NAMES + 9));
                }
            };
            spawn(work)
        };
        let merger = {
            let zap = Arc::clone(&zap);
            let work = move || {
                for _ in 0..2 {
                    zap.merge_some().unwrap();
                    zap.store().commit();
                    evict_leaves(&zap);
                }
            };
            spawn(work)
        };
        [inserter, reader, merger].into_iter().for_each(|thread| thread.join().unwrap());
        zap.store().commit();
        assert_eq!(zap.audit().unwrap().entries, u64::from(NAMES) + 3);
        assert!(exists(&zap, NAMES + 1) && exists(&zap, NAMES + 2));
    };
    check(SCHEDULES, body);
}
