//! More pins on one block than its header's word counts, taken in every way there is.

use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Begin, OwnedRef};

use crate::support::{Counted, Live, audit, inline, inline_blocks, seed};

/// A word counts at most 32,768 pins; this exceeds even 18 bits.
const MANY: usize = (1 << 18) + 3;

#[test]
fn a_block_may_have_any_number_of_guards() {
    let live = Live::default();
    let cache = inline(10, |_, _: &Counted| 1).build().unwrap();
    cache.insert(1, live.value(7)).unwrap();
    let mut owned: Vec<OwnedRef<u64, Counted>> = Vec::new();
    let mut borrowed = Vec::new();
    while owned.len() + borrowed.len() < MANY {
        borrowed.push(cache.get(&1).unwrap());
        let Begin::Hit(hit) = cache.begin(1, 1, Attributes::DATA).unwrap() else { panic!() };
        borrowed.push(hit);
        assert!(cache.contains(&1));
        owned.push(borrowed[0].to_owned_ref());
        owned.push(owned[0].clone());
        owned.push(cache.get_owned(&1).unwrap());
    }
    // It is pinned, so it stays.
    for key in 2..100 {
        cache.insert(key, live.value(key)).unwrap();
    }
    assert!(owned[0].is_cached());
    assert!(cache.remove(&1).is_some());
    cache.clear();
    assert_eq!(live.count(), 1);
    // In random order, so that pins are spilled and refilled.
    let mut rng = SmallRng::from_seed(seed("guards"));
    while owned.len() > 1 || !borrowed.is_empty() {
        let at = rng.below((owned.len() + borrowed.len()) as u64) as usize;
        if at < borrowed.len() {
            assert_eq!(borrowed.swap_remove(at).payload(), 7);
        } else if owned.len() > 1 {
            assert_eq!(owned.swap_remove(at - borrowed.len()).payload(), 7);
        }
        if rng.below(10) == 0 {
            owned.push(owned[0].clone());
        }
        if rng.below(1000) == 0 {
            assert_eq!(live.count(), 1);
        }
    }
    assert_eq!(live.count(), 1);
    drop(owned);
    assert_eq!(live.count(), 0);
    audit(&cache);
}

#[test]
fn one_key_may_be_asked_for_many_times_at_once() {
    let cache = inline_blocks(10);
    cache.insert(1, 10).unwrap();
    let mut found = Vec::new();
    cache.get_many(&vec![1; MANY], &mut found);
    assert!(found.iter().all(|block| block.as_deref() == Some(&10)));
    drop(found);
    audit(&cache);
}

#[test]
fn a_load_may_be_joined_any_number_of_times() {
    let live = Live::default();
    let cache = inline(10, |_, _: &Counted| 1).build().unwrap();
    let begin = || cache.begin(1, 1, Attributes::DATA).unwrap();
    let Begin::Vacant(guard) = begin() else { panic!("it is empty") };
    let mut flights = Vec::new();
    for _ in 0..MANY {
        let Begin::InFlight(in_flight) = begin() else { panic!("it is loading") };
        flights.push(in_flight);
    }
    // All bits of the header's state are correct.
    assert!(cache.get(&1).is_none());
    drop(guard.publish(live.value(7)));
    let blocks: Vec<_> = flights.into_iter().map(|in_flight| in_flight.wait().unwrap()).collect();
    assert!(blocks.iter().all(|block| block.payload() == 7 && block.is_cached()));
    assert!(cache.remove(&1).is_some());
    assert_eq!(live.count(), 1);
    drop(blocks);
    assert_eq!(live.count(), 0);
    audit(&cache);
}

#[test]
fn a_block_may_be_offered_any_number_of_times() {
    let cache = inline_blocks(10);
    cache.insert(1, 10).unwrap();
    let mut candidates = Vec::new();
    for n in 0..MANY {
        cache.offer_all(1, |offered| candidates.extend(offered));
        assert_eq!(candidates.len(), n + 1);
    }
    assert!(candidates.iter().all(|candidate| *candidate.value() == 10));
    assert!(candidates[0].key() == &1 && cache.contains(&1));
    drop(candidates);
    audit(&cache);
}

/// Leaked references are never released: the block stays for good, and can still be used.
#[test]
fn guards_may_be_forgotten() {
    let live = Live::default();
    let cache = inline(10, |_, _: &Counted| 1).build().unwrap();
    cache.insert(1, live.value(7)).unwrap();
    for _ in 0..MANY {
        std::mem::forget(cache.get(&1).unwrap());
    }
    for key in 2..100 {
        cache.insert(key, live.value(key)).unwrap();
    }
    let last = cache.get_owned(&1).unwrap();
    assert!(cache.remove(&1).is_some());
    drop(cache);
    assert_eq!((last.clone().payload(), live.count()), (7, 1));
    drop(last);
    assert_eq!(live.count(), 1);
}

/// The last references outlive the cache, and keep its memory.
#[test]
fn many_guards_outlive_the_cache() {
    let live = Live::default();
    let token = Arc::new(());
    let inside = token.clone();
    let weigh = move |_: &u64, _: &Counted| {
        let _kept = &inside;
        1
    };
    let cache = inline(10, weigh).build().unwrap();
    cache.insert(1, live.value(7)).unwrap();
    let mut guards: Vec<_> = (0..MANY).map(|_| cache.get_owned(&1).unwrap()).collect();
    drop(cache);
    let last = guards.pop().unwrap();
    drop(guards);
    assert_eq!((last.payload(), live.count(), Arc::strong_count(&token)), (7, 1, 2));
    drop(last);
    assert_eq!((live.count(), Arc::strong_count(&token)), (0, 1));
}
