//! The audit: checks every structure against every other. For tests, while nothing else runs.
//!
//! Locking: `reclaim`, and each other lock for a step.

use std::collections::HashMap;

use crate::attributes::Class;
use crate::header::{List, RETIRED, VALID};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ghosts::{Ghost, GhostList};

/// Panics at the first contradiction.
pub(crate) fn audit<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) {
    let reclaim = inner.reclaim.lock();
    inner.learn(&inner.sizes());
    let mut listed: HashMap<(usize, usize, u32), usize> = HashMap::new();
    let (mut in_use, mut linked, mut weights, mut spilled) = (0, 0, 0, 0);
    let mut by_list: HashMap<(usize, usize), (u64, u64)> = HashMap::new();
    inner.slab.for_each(|header| {
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let state = h.state();
        if state.is_free() {
            return;
        }
        in_use += 1;
        spilled += usize::from(state.is_spilled());
        weights += u64::from(h.weight());
        if state.has(RETIRED) {
            assert!(state.pins() > 0, "a retired header without a pin was not freed: {state:?}");
            return;
        }
        // SAFETY: in use, and nothing else runs.
        let key = unsafe { h.key() };
        let hash = inner.hash(key);
        let slot = inner.index.lock(hash).find_resident(|a| a == header.addr().get());
        assert!(slot.is_some(), "a header in use has no slot: {state:?}");
        linked += 1;
        if !state.has(VALID) {
            return;
        }
        assert_eq!(state.pins(), 0, "a pin was not released: {state:?}");
        let list = state.list().unwrap_or_else(|| panic!("valid, but in no list: {state:?}"));
        let sum = by_list.entry((list as usize, state.class_index())).or_default();
        *sum = (sum.0 + u64::from(h.weight()), sum.1 + 1);
        let position = (list as usize, state.class_index(), state.position());
        let other = listed.insert(position, header.addr().get());
        assert_eq!(other, None, "two headers at one position: {state:?}");
    });
    assert_eq!(in_use, inner.slab.in_use(), "headers neither in use nor returned");
    assert_eq!(inner.in_flight.waiters(), 0, "waiters of loads remain");
    assert_eq!(inner.spilled.headers(), spilled, "headers with spilled pins");
    for list in List::ALL {
        for class in Class::ALL {
            let sums = by_list.get(&(list as usize, class as usize)).copied().unwrap_or_default();
            let multilist = inner.list(list, class);
            assert_eq!((multilist.bytes(), multilist.blocks()), sums, "sums of {list:?} {class:?}");
            for sublist in multilist.iter() {
                let ring = sublist.lock();
                for position in ring.tail()..ring.next_position() {
                    let id = ring.get(position).expect("within the ring");
                    let header = inner.slab.by_id(id).map(|h| h.addr().get());
                    let position = (list as usize, class as usize, sublist.stamp(position));
                    if listed.get(&position).copied() == header {
                        listed.remove(&position);
                    }
                }
            }
        }
    }
    assert!(listed.is_empty(), "{} blocks are in no ring: they can never be evicted", listed.len());
    linked += audit_ghosts(inner);
    assert_eq!(inner.index.stats().entries, linked, "index slots without a block or ghost");
    inner.capacity.gather();
    let queued = inner.callbacks.as_ref().map_or(0, |c| c.bytes());
    assert_eq!(inner.capacity.reserved(), weights + queued, "capacity that no block holds");
    drop(reclaim);
}

/// Returns how many ghosts have a slot.
fn audit_ghosts<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> u64 {
    let mut linked = 0;
    for (number, ghosts) in inner.ghosts.iter().enumerate() {
        let list = GhostList::from_number(number);
        let all = ghosts.all();
        assert_eq!(all.len() as u64, ghosts.remembered(0).1, "entries of {list:?}");
        let bytes: u64 = all.iter().map(|(_, ghost)| u64::from(ghost.weight)).sum();
        assert_eq!(bytes, ghosts.remembered(0).0, "weight of ghosts of {list:?}");
        let has_slot = |(position, ghost): &&(u64, Ghost)| {
            ghost.weight > 0
                && inner.index.lock(ghost.hash).find_ghost_at(number, *position).is_some()
        };
        let live = all.iter().filter(has_slot).count() as u64;
        assert_eq!(live, ghosts.count(), "ghosts of {list:?}");
        linked += live;
    }
    linked
}
