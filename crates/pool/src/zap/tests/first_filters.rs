//! The filters of a directory that has just become large.

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::super::memory::MemoryStore;
use super::super::{ZapCounters, ZapStats};
use super::buffer::VALUE;
use super::limits::{fetched, sizes};
use super::{Zap, new};
use crate::format::ZapBlock;

/// Few of these names fill a leaf.
fn name(number: u64) -> Vec<u8> {
    format!("{number:0>200}").into_bytes()
}

fn is_leaf(id: ZapBlock) -> bool {
    matches!(id, ZapBlock::Leaf(_))
}

/// A directory that becomes large with so many leaves.
fn large_at(leaves: u64, seed: u64) -> (Zap<MemoryStore>, MemoryStore) {
    let zap = new(seed);
    let store = zap.store().clone();
    store.state.lock().aided_leaves = leaves;
    (zap, store)
}

fn is_large(zap: &Zap<MemoryStore>) -> bool {
    zap.write_state.state.lock().is_aided()
}

/// Adds names, and calls `between` after each, until the directory is large. Returns their number.
fn grow(zap: &Zap<MemoryStore>, mut between: impl FnMut()) -> u64 {
    for number in 0.. {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        if is_large(zap) {
            return number + 1;
        }
        between();
    }
    unreachable!("the directory becomes large")
}

fn audited(zap: &Zap<MemoryStore>) -> ZapStats {
    zap.audit().expect("it is valid")
}

/// All leaves have been changed in the group already, and no other follows.
#[test]
fn a_group_makes_filters_of_leaves_that_it_changed_before() {
    for leaves in [4, 17, 64, 100] {
        let (zap, store) = large_at(leaves, 3);
        grow(&zap, || {});
        store.commit();
        let stats = audited(&zap);
        assert_eq!((stats.leaves, stats.filters), (leaves, leaves), "{stats}");
    }
}

/// Only the last name was added after the import, and only its leaf was read.
#[test]
fn leaves_that_are_away_are_not_read_for_their_filter() {
    let (zap, store) = large_at(64, 5);
    let (mut rng, mut before) = (SmallRng::from_seed(5), 0);
    grow(&zap, || {
        store.commit();
        store.evict(&mut rng, 2);
        before = fetched(&store);
    });
    let read = fetched(&store) - before;
    assert!(read <= 1, "{read} blocks were read");
    let away = {
        let state = store.state.lock();
        state.leaves.iter().filter(|(id, leaf)| is_leaf(**id) && leaf.is_away()).count() as u64
    };
    store.commit();
    let stats = audited(&zap);
    assert!(away > 10 && stats.leaves == 64, "{away} of {} leaves are away", stats.leaves);
    assert_eq!(stats.filters, stats.leaves - away, "{stats}");
}

/// A directory that had many leaves before it got filters gets them over several changes.
#[test]
fn many_filter_blocks_are_opened_by_several_changes() {
    let (zap, store) = large_at(u64::MAX, 9);
    let mut number = 0;
    while sizes(&zap).1 < 300 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        number += 1;
    }
    store.commit();
    store.state.lock().aided_leaves = 64;
    let opened = || store.dirty_blocks(|id| matches!(id, ZapBlock::Filter(_)));
    while !is_large(&zap) {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        number += 1;
    }
    let first = opened();
    assert!((4..16).contains(&first), "{first} blocks were opened at once");
    for more in number..number + 8 {
        zap.insert(&(), &name(more), &VALUE).expect("it is new");
    }
    assert!(opened() > first);
    store.commit();
    let stats = audited(&zap);
    assert_eq!(stats.filters, stats.leaves, "{stats}");
}

#[test]
fn a_directory_without_a_share_or_space_gives_up() {
    for has_share in [false, true] {
        let (zap, store) = large_at(64, 11);
        {
            let mut state = store.state.lock();
            state.aid_bytes_max = (!has_share).then_some(0);
            state.is_short_of_space = has_share;
        }
        grow(&zap, || {});
        assert_eq!(store.dirty_blocks(|id| !is_leaf(id)), 0);
        let refused = store.counted(ZapCounters::DIRECTORY_SHARES_REFUSED);
        assert_eq!(refused > 0, !has_share);
        store.commit();
        assert_eq!(audited(&zap).filters, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Groups end at any time, and leaves are changed by any of them. The store here ends a group
    /// together with the one before, so it makes filters that a pool leaves to the next change.
    #[test]
    fn all_leaves_in_memory_have_filters(seed in any::<u64>(), leaves in 4..80u64, ends in 1..400u64) {
        let (zap, store) = large_at(leaves, seed);
        let mut rng = SmallRng::from_seed(seed);
        grow(&zap, || match rng.below(ends) {
            0 => store.commit(),
            1 => store.open_next_txg(),
            _ => {}
        });
        store.commit();
        let stats = audited(&zap);
        prop_assert_eq!(stats.filters, stats.leaves);
    }
}
