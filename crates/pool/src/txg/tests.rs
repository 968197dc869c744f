#![allow(clippy::disallowed_methods, reason = "plain threads for a test")]

use std::thread;
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock, SystemClock};
use forebay_base::sync::Arc;
use proptest::prelude::*;

use super::suspension::GIVE_UP_INTERVAL;
use super::throttle::ThrottleBounds;
use super::{DevicesWait, TxgCounters, TxgTunables, Txgs, Wake};
use crate::error::{Error, ErrorKind};
use crate::wait::Wait;

fn txgs(tunables: TxgTunables) -> Arc<Txgs> {
    Arc::new(Txgs::new(9, Arc::new(SystemClock::new()), Arc::new(tunables)))
}

fn small() -> TxgTunables {
    let tunables = TxgTunables::default();
    tunables.set_dirty_max_bytes(1 << 20).unwrap();
    tunables.set_txg_timeout_ms(600_000).unwrap();
    tunables
}

fn commit(txgs: &Txgs) -> u64 {
    let txg = txgs.quiesce().unwrap();
    txgs.synced(txg);
    txg
}

#[test]
fn txgs_follow_one_another() {
    let txgs = txgs(small());
    let hold = txgs.begin().unwrap();
    assert_eq!(hold.txg(), 10);
    drop(hold);
    assert_eq!(commit(&txgs), 10);
    assert_eq!(txgs.begin().unwrap().txg(), 11);
    assert_eq!((txgs.open_txg(), txgs.synced_txg()), (11, 10));
    txgs.wait_synced(10).unwrap();
}

#[test]
fn who_waits_for_the_closed_txg_does_not_wait_for_the_open_one() {
    let txgs = txgs(small());
    txgs.begin().unwrap().dirty(5);
    txgs.wait_closed().expect("none is being written");
    let txg = txgs.quiesce().unwrap();
    let waiter = thread::spawn({
        let txgs = txgs.clone();
        move || txgs.wait_closed().map(|()| txgs.synced_txg()).unwrap()
    });
    txgs.synced(txg);
    assert_eq!((waiter.join().unwrap(), txgs.open_txg()), (txg, txg + 1));
}

#[test]
fn a_txg_waits_for_its_holds_and_the_next_one_for_the_txg() {
    let txgs = txgs(small());
    let hold = txgs.begin().unwrap();
    let syncer = thread::spawn({
        let txgs = txgs.clone();
        move || commit(&txgs)
    });
    while !txgs.is_closing() {
        thread::yield_now();
    }
    let later = thread::spawn({
        let txgs = txgs.clone();
        move || txgs.begin().unwrap().txg()
    });
    while txgs.counters().total(TxgCounters::WAITED_OPEN) == 0 {
        thread::yield_now();
    }
    assert_eq!((txgs.open_txg(), txgs.synced_txg()), (10, 9));
    hold.dirty(5);
    drop(hold);
    assert_eq!(later.join().unwrap(), 11);
    assert_eq!(syncer.join().unwrap(), 10);
    assert_eq!(txgs.dirty_bytes(), 0);
}

#[test]
fn dirty_bytes_are_summed_exactly_and_freed_by_their_txg() {
    let txgs = txgs(small());
    {
        let hold = txgs.begin().unwrap();
        hold.dirty(1000);
        hold.dirty(100_000);
        assert_eq!(txgs.dirty_bytes(), 101_000);
    }
    let txg = txgs.quiesce().unwrap();
    txgs.begin().unwrap().dirty(7);
    assert_eq!(txgs.dirty_bytes(), 101_007);
    txgs.synced(txg);
    assert_eq!(txgs.dirty_bytes(), 7);
}

#[test]
fn the_sync_thread_learns_why() {
    let tunables = small();
    tunables.set_txg_timeout_ms(1).unwrap();
    let txgs = txgs(tunables);
    let waiter = thread::spawn({
        let txgs = txgs.clone();
        move || txgs.sync_now().unwrap()
    });
    assert_eq!(txgs.next(), Wake::Requested);
    assert_eq!(commit(&txgs), waiter.join().unwrap());
    txgs.begin().unwrap().dirty(1);
    assert_eq!(txgs.next(), Wake::Timeout);
    commit(&txgs);
    let waiter = thread::spawn({
        let txgs = txgs.clone();
        move || txgs.next()
    });
    txgs.begin().unwrap().dirty(300 << 10);
    // It may have been open for a millisecond by then.
    assert!(matches!(waiter.join().unwrap(), Wake::Dirty | Wake::Timeout));
    txgs.close();
    assert_eq!(txgs.next(), Wake::Ended);
}

#[test]
fn suspension_tells_everybody_why() {
    let txgs = txgs(small());
    let waiter = thread::spawn({
        let txgs = txgs.clone();
        move || txgs.sync_now().unwrap_err()
    });
    assert_eq!(txgs.next(), Wake::Requested);
    txgs.suspend(&Error::new(ErrorKind::Device, "disk 7 is gone"));
    txgs.suspend(&Error::new(ErrorKind::Device, "disk 8 is gone"));
    for error in [waiter.join().unwrap(), txgs.begin().err().unwrap(), txgs.quiesce().unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Suspended);
        assert!(format!("{error:?}").contains("disk 7 is gone"), "{error:?}");
    }
    assert_eq!(txgs.counters().total(TxgCounters::REFUSED), 1);
}

#[test]
fn a_closed_pool_can_commit_once_more() {
    let txgs = txgs(small());
    txgs.begin().unwrap().dirty(1);
    txgs.close();
    assert_eq!(txgs.begin().err().unwrap().kind(), ErrorKind::Closed);
    assert_eq!(commit(&txgs), 10);
    assert_eq!(txgs.sync_now().unwrap_err().kind(), ErrorKind::Closed);
}

/// Bytes for indirect blocks need space, but few of them are written.
#[test]
fn indirect_blocks_count_less_for_the_throttle_than_for_space() {
    let txgs = txgs(small());
    let mib = 1 << 20;
    txgs.begin().unwrap().dirty_pointers(2 * mib);
    assert_eq!((txgs.dirty_bytes(), txgs.dirty_estimate()), (2 * mib, 2 * mib));
    // Half of the limit: a commit is due, but nothing waits.
    assert_eq!(txgs.next(), Wake::Dirty);
    txgs.begin_with(Wait::Refused).expect("no delay").dirty_pointers(mib / 4);
    let txg = txgs.quiesce().unwrap();
    txgs.begin_with(Wait::Refused).expect("no delay").dirty_pointers(7);
    txgs.synced(txg);
    assert_eq!(txgs.dirty_bytes(), 7);
    txgs.begin().unwrap().dirty_pointers(4 * mib);
    let error = txgs.begin_with(Wait::Refused).err().expect("the limit is reached");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    commit(&txgs);
    assert_eq!(txgs.dirty_bytes(), 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "its thread had another one")]
fn a_change_inside_a_change_is_caught() {
    let txgs = txgs(small());
    let _hold = txgs.begin().unwrap();
    let _ = txgs.begin();
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "its thread had another one")]
fn a_wait_for_devices_inside_a_change_is_caught() {
    let txgs = txgs(small());
    let _hold = txgs.begin().unwrap();
    let _ = txgs.wait_for_devices(&|| true);
}

/// A device that is busy may need some time to answer, and each commit wakes who waits.
#[test]
fn commits_do_not_shorten_the_wait_for_a_device() {
    let txgs = txgs(small());
    let waiter = thread::spawn({
        let txgs = txgs.clone();
        move || {
            let clock = SystemClock::new();
            let ended = txgs.wait_while_silent(DevicesWait::Durable, &|| false, &|| false);
            (ended.unwrap(), Duration::from_nanos(clock.now_ns()))
        }
    });
    while !waiter.is_finished() {
        commit(&txgs);
        thread::yield_now();
    }
    let (ended, waited) = waiter.join().unwrap();
    assert_eq!(ended, DevicesWait::Durable);
    // A busy machine makes it longer, never shorter.
    assert!(waited >= GIVE_UP_INTERVAL, "{waited:?}");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "its thread had another one")]
fn a_change_inside_a_change_is_caught_after_one_that_did_not_wait() {
    let txgs = txgs(small());
    let hold = txgs.begin().unwrap();
    let inner = txgs.begin_with(Wait::Refused).expect("it would not have to wait");
    assert_eq!(inner.txg(), hold.txg());
    drop(inner);
    let _ = txgs.begin();
}

#[test]
fn changes_wait_for_a_commit_at_the_maximum() {
    let txgs = txgs(small());
    txgs.begin().unwrap().dirty(2 << 20);
    let beginner = thread::spawn({
        let txgs = txgs.clone();
        move || txgs.begin().unwrap().txg()
    });
    while txgs.counters().total(TxgCounters::FULL) == 0 {
        thread::yield_now();
    }
    assert_ne!(txgs.next(), Wake::Ended);
    commit(&txgs);
    assert_eq!(beginner.join().unwrap(), 11);
    assert_eq!(txgs.counters().total(TxgCounters::DELAYED), 1);
    assert_eq!(txgs.throttle_ns().snapshot().count, 1);
}

#[test]
fn the_time_of_a_commit_counts_from_the_close_of_its_txg() {
    let clock = Arc::new(ManualClock::new());
    let txgs = Arc::new(Txgs::new(9, clock.clone(), Arc::new(small())));
    for sync_ns in [70, 30] {
        clock.advance(1000);
        let txg = txgs.quiesce().unwrap();
        clock.advance(sync_ns);
        txgs.synced(txg);
    }
    let taken = txgs.sync_ns().snapshot();
    assert_eq!((taken.count, taken.sum, taken.max), (2, 100, 70));
}

#[test]
fn delays_are_served_in_turn_and_end_with_a_commit() {
    let clock = Arc::new(ManualClock::new());
    let tunables = Arc::new(small());
    tunables.set_throttle_scale_ns(1_000_000_000).unwrap();
    let txgs = Arc::new(Txgs::new(9, clock.clone(), tunables));
    txgs.begin().unwrap().dirty(900 << 10);
    let beginners: Vec<_> = (0..3)
        .map(|_| {
            let txgs = txgs.clone();
            thread::spawn(move || txgs.begin().unwrap().txg())
        })
        .collect();
    while txgs.state.lock().throttled < 3 {
        thread::yield_now();
    }
    // Each has the longest delay, one after another.
    assert_eq!(txgs.state.lock().delay_end_ns, 300_000_000);
    let txg = txgs.quiesce().unwrap();
    clock.advance(100_000_000);
    while txgs.state.lock().throttled > 2 {
        thread::yield_now();
    }
    txgs.synced(txg);
    let joined: Vec<_> = beginners.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(joined, [11, 11, 11]);
}

#[test]
#[cfg(debug_assertions)]
fn the_end_of_a_change_inside_a_change_does_not_hide_the_outer_one() {
    let (txgs, other) = (txgs(small()), txgs(small()));
    let would_nest = |txgs: &Txgs| {
        let begun = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(txgs.begin())));
        begun.is_err()
    };
    let outer = txgs.begin().unwrap();
    // As in the callback of a read that ends inside of it.
    let inner = txgs.begin_with(Wait::Refused).unwrap();
    assert_eq!(inner.txg(), outer.txg());
    drop(inner);
    assert!(would_nest(&txgs), "the outer one is forgotten");
    // Another pool's change may be inside, and know nothing of it.
    drop(other.begin().unwrap());
    assert!(would_nest(&txgs), "the outer one is forgotten");
    drop(outer);
    assert!(!would_nest(&txgs));
    commit(&txgs);
}

#[test]
fn many_threads_and_commits() {
    let txgs = txgs(small());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let txgs = txgs.clone();
            thread::spawn(move || {
                let mut last = 0;
                for round in 0..2000u64 {
                    let hold = txgs.begin().unwrap();
                    assert!(hold.txg() >= last, "back from {last} to {}", hold.txg());
                    last = hold.txg();
                    assert!(txgs.synced_txg() < last);
                    hold.dirty(round);
                    drop(hold);
                    if round % 500 == 0 {
                        txgs.sync_now().unwrap();
                    }
                }
            })
        })
        .collect();
    let syncer = thread::spawn({
        let txgs = txgs.clone();
        move || {
            while txgs.next() != Wake::Ended {
                commit(&txgs);
            }
        }
    });
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    txgs.close();
    syncer.join().unwrap();
    commit(&txgs);
    assert_eq!(txgs.dirty_bytes(), 0);
}

proptest! {
    #[test]
    fn delays_grow_from_nothing_without_a_jump(max_mib in 1u64..10_000, percent in 1u32..=99) {
        let tunables = TxgTunables::default();
        tunables.set_dirty_max_bytes(max_mib << 20).unwrap();
        tunables.set_throttle_percent(percent).unwrap();
        let bounds = ThrottleBounds::of(&tunables);
        let max = max_mib << 20;
        let start = max / 100 * u64::from(percent);
        prop_assert_eq!(bounds.delay_ns(start), Some(0));
        prop_assert_eq!(bounds.delay_ns(max), None);
        prop_assert_eq!(bounds.delay_ns(max + 1), None);
        let at = |part: u64| bounds.delay_ns(start + (max - start) * part / 1000).unwrap();
        let mut before = 0;
        for part in 0..1000 {
            let now = at(part);
            prop_assert!(now >= before);
            before = now;
        }
        // Flat at first, steep at last.
        prop_assert!(at(10) < 1000, "{}", at(10));
        prop_assert!(at(999) > 1000 * at(300));
    }
}
