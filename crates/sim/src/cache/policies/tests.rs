//! Compares the policies with reference models: the same rules on plain vectors, searched linearly.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_cache::Attributes;

use super::Policy;
use super::clock::Clock;
use super::fifo::Fifo;
use super::forebay::Forebay;
use super::lru::Lru;
use super::opt;
use super::sieve::Sieve;
use crate::cache::run::POLICIES;
use crate::cache::trace::{Trace, TraceBuilder};

/// Keys of the random accesses.
pub(super) const KEYS: usize = 120;

/// Accesses of several kinds in turns: skewed, looping, sequential, random.
pub(super) fn mixed(seed: u64, length: usize) -> Vec<u32> {
    let mut rng = SmallRng::from_seed(seed);
    let mut accesses = Vec::new();
    while accesses.len() < length {
        let (kind, keys) = (rng.below(4), 2 + rng.below(KEYS as u64 - 2));
        let from = rng.below(KEYS as u64 - keys + 1);
        for i in 0..rng.below(150) {
            let key = match kind {
                0 => rng.below(keys).min(rng.below(keys)).min(rng.below(keys)),
                1 => i % keys,
                2 => (i / 2) % keys,
                _ => rng.below(keys),
            };
            accesses.push((from + key) as u32);
        }
    }
    accesses
}

/// Replays accesses to a policy and to its reference model, which must agree on each.
pub(super) fn agree<P: Policy>(
    name: &str,
    mut model: impl FnMut(usize) -> Box<dyn FnMut(u32) -> bool>,
) {
    for seed in 0..40 {
        let capacity = [1, 2, 3, 7, 20, 50][seed as usize % 6];
        let (mut policy, mut model) = (P::new(capacity, KEYS), model(capacity));
        for (i, key) in mixed(seed, 3000).into_iter().enumerate() {
            let (ours, theirs) = (policy.access(key), model(key));
            assert_eq!(
                ours, theirs,
                "{name}, seed {seed}, capacity {capacity}: access {i} of {key}"
            );
            assert!(policy.resident() <= capacity, "{name}: too many");
        }
    }
}

fn position(list: &[u32], key: u32) -> Option<usize> {
    list.iter().position(|k| *k == key)
}

#[test]
fn fifo_and_lru_are_their_definitions() {
    let naive = |reorder: bool| {
        move |capacity: usize| -> Box<dyn FnMut(u32) -> bool> {
            // The most recent last.
            let mut list: Vec<u32> = Vec::new();
            Box::new(move |key| {
                let at = position(&list, key);
                if let Some(at) = at.filter(|_| reorder) {
                    list.remove(at);
                    list.push(key);
                } else if at.is_none() {
                    if list.len() == capacity {
                        list.remove(0);
                    }
                    list.push(key);
                }
                at.is_some()
            })
        }
    };
    agree::<Fifo>("fifo", naive(false));
    agree::<Lru>("lru", naive(true));
}

#[test]
fn clock_is_its_definition() {
    // A circle of frames and a hand, as in Corbató's paper.
    agree::<Clock>("clock", |capacity| {
        let (mut frames, mut hand): (Vec<(u32, bool)>, usize) = (Vec::new(), 0);
        Box::new(move |key| {
            if let Some(frame) = frames.iter_mut().find(|(k, _)| *k == key) {
                frame.1 = true;
                return true;
            }
            if frames.len() < capacity {
                frames.push((key, false));
                return false;
            }
            while frames[hand].1 {
                frames[hand].1 = false;
                hand = (hand + 1) % capacity;
            }
            frames[hand] = (key, false);
            hand = (hand + 1) % capacity;
            false
        })
    });
}

#[test]
fn sieve_is_its_definition() {
    agree::<Sieve>("sieve", |capacity| {
        // The oldest first. The hand is an index.
        let (mut queue, mut hand): (Vec<u32>, usize) = (Vec::new(), 0);
        let mut visited: HashMap<u32, bool> = HashMap::new();
        Box::new(move |key| {
            if position(&queue, key).is_some() {
                visited.insert(key, true);
                return true;
            }
            if queue.len() == capacity {
                hand %= queue.len();
                while visited.insert(queue[hand], false) == Some(true) {
                    hand = (hand + 1) % queue.len();
                }
                queue.remove(hand);
                // Past the newest entry, the search starts at the oldest again.
                if hand == queue.len() {
                    hand = 0;
                }
            }
            queue.push(key);
            visited.insert(key, false);
            false
        })
    });
}

fn trace_of(accesses: &[u32]) -> Trace {
    let mut builder = TraceBuilder::new();
    accesses.iter().for_each(|key| builder.number(u64::from(*key)).unwrap());
    builder.build("random")
}

#[test]
fn no_policy_beats_the_optimum_or_hits_more_than_it_can() {
    for seed in 0..12 {
        let accesses = mixed(100 + seed, 4000);
        let trace = trace_of(&accesses);
        for capacity in [1, 2, 5, 17, 60, KEYS] {
            let most = opt::hits(trace.accesses(), trace.unique(), capacity);
            for policy in POLICIES {
                let hits = policy.run(&trace, capacity, seed).unwrap().hits;
                assert!(
                    hits <= most,
                    "{policy:?}, seed {seed}, capacity {capacity}: {hits} > {most}"
                );
            }
        }
    }
}

#[test]
fn what_fits_is_missed_once() {
    // Includes the optimum. Admission filters and small first queues must give unused space away.
    let trace = trace_of(&mixed(3, 5000));
    let all = (trace.accesses().len() - trace.unique()) as u64;
    for policy in POLICIES {
        for capacity in [trace.unique(), usize::MAX] {
            let hits = policy.run(&trace, capacity, 1).unwrap().hits;
            assert_eq!(hits, all, "{policy:?} of {capacity}");
        }
    }
}

#[test]
fn the_real_cache_holds_as_many_entries_as_it_is_told() {
    for capacity in [1, 2, 3, 32, 33, 275, 5000, 20_000] {
        let mut cache = Forebay::new(capacity, 1).unwrap();
        for key in 0..capacity as u64 {
            assert!(!cache.access(key, Attributes::DATA).unwrap());
        }
        assert_eq!(cache.resident(), capacity, "nothing had to go");
        assert!((0..capacity as u64).all(|key| cache.access(key, Attributes::DATA).unwrap()));
        let mut rng = SmallRng::from_seed(9);
        for i in 0..3 * capacity + 500 {
            let class = if i % 3 == 0 { Attributes::METADATA } else { Attributes::DATA };
            cache.access(rng.below(4 * capacity as u64), class).unwrap();
            if i % 97 == 0 {
                assert_eq!(cache.resident(), capacity, "access {i}");
            }
        }
        cache.cache().audit();
    }
}

#[test]
fn the_real_cache_does_the_same_on_any_thread() {
    let trace = trace_of(&mixed(5, 60_000));
    let replay = |seed| {
        let forebay = POLICIES.iter().find(|policy| policy.name == "forebay").unwrap();
        forebay.run(&trace, 40, seed).unwrap()
    };
    let here = replay(7);
    assert_eq!(here, replay(7));
    // Concurrent threads have different slots, and so different shards.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| replay(7))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), here);
        }
    });
}
