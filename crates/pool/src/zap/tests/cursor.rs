//! Walks while other operations change the directory.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, thread};
use proptest::prelude::*;

use super::super::Cookie;
use super::new;
use crate::wait::Wait;

fn name(number: u64) -> Vec<u8> {
    format!("{number:0>40}").into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_walk_returns_each_kept_entry_exactly_once(seed in any::<u64>(), batch in 1..100usize, changes in 1..60u64) {
        let zap = new(seed);
        let mut rng = SmallRng::from_seed(seed);
        let is_kept = |number: u64| number.is_multiple_of(3);
        let mut existing = BTreeSet::new();
        let most = 1 + rng.below(3000);
        for number in 0..most {
            if is_kept(number) || rng.below(2) == 0 {
                zap.insert(&(), &name(number), b"v").expect("it is new");
                existing.insert(number);
            }
        }
        let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut from = Cookie::START;
        let grows = rng.below(2) == 0;
        while !from.is_end() {
            let entries = zap.entries(from, batch, Wait::Allowed).expect("it is possible");
            let next = entries.last().map_or(Cookie::END, |entry| entry.next);
            prop_assert!(next > from);
            from = Cookie::from_raw(next.raw());
            for entry in entries {
                *seen.entry(entry.name.to_vec()).or_default() += 1;
            }
            for _ in 0..changes {
                let number = rng.below(most) + if grows { most } else { 0 };
                if is_kept(number) && !grows {
                    zap.upsert(&(), &name(number), b"other").expect("it is possible");
                } else if existing.remove(&number) {
                    zap.remove(&(), &name(number)).expect("it is there");
                } else if grows {
                    zap.upsert(&(), &name(number), b"new").expect("it is possible");
                }
            }
            if rng.below(10) == 0 {
                zap.store().commit();
                zap.store().evict(&mut rng, 2);
            }
        }
        for number in (0..most).filter(|number| is_kept(*number)) {
            prop_assert_eq!(seen.get(&name(number)), Some(&1));
        }
        // An entry that is removed and added again may be returned twice, but here no entry is
        // added again.
        prop_assert!(seen.values().all(|times| *times == 1));
        zap.audit().expect("it is valid");
    }
}

#[test]
fn many_threads_share_a_directory() {
    const EACH: u64 = 3000;
    let zap = Arc::new(new(7));
    let worker = |first: u64| {
        let zap = Arc::clone(&zap);
        let work = move || {
            for number in first..first + EACH {
                zap.insert(&(), &name(number), b"v").expect("it is new");
                if number % 64 == 0 {
                    zap.store().evict(&mut SmallRng::from_seed(number), 2);
                }
            }
            let seen =
                zap.cursor(Cookie::START, Wait::Allowed).filter(|entry| entry.is_ok()).count()
                    as u64;
            assert!(seen >= EACH);
            for number in first..first + EACH - 10 {
                zap.remove(&(), &name(number)).expect("it is there");
            }
        };
        thread::spawn_named("zap-test", work).expect("threads can be had")
    };
    let workers: Vec<_> = (0..4).map(|number| worker(number * EACH)).collect();
    for worker in workers {
        worker.join().expect("it did not panic");
    }
    zap.store().commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 40);
}

#[test]
fn lookups_find_kept_entries_while_leaves_split_and_merge() {
    const KEPT: u64 = 50;
    let zap = Arc::new(new(11));
    for number in 0..KEPT {
        zap.insert(&(), &name(number), &number.to_le_bytes()).expect("it is new");
    }
    let done = Arc::new(AtomicBool::new(false));
    let reader = || {
        let (zap, done) = (Arc::clone(&zap), Arc::clone(&done));
        let work = move || {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) || rounds == 0 {
                for number in 0..KEPT {
                    let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
                    assert_eq!(found.as_deref(), Some(&number.to_le_bytes()[..]));
                    let absent = zap
                        .lookup(&name(number + (1 << 40)), Wait::Allowed)
                        .expect("it is possible");
                    assert_eq!(absent, None);
                }
                rounds += 1;
            }
        };
        thread::spawn_named("zap-test", work).expect("threads can be had")
    };
    let readers = [reader(), reader()];
    for round in 0..4 {
        for number in KEPT..6000 {
            zap.insert(&(), &name(number), b"v").expect("it is new");
        }
        zap.store().evict(&mut SmallRng::from_seed(round), 2);
        for number in KEPT..6000 {
            zap.remove(&(), &name(number)).expect("it is there");
        }
        zap.store().commit();
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().expect("it did not panic");
    }
    zap.audit().expect("it is valid");
}
