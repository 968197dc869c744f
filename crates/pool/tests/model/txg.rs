//! Transaction groups: holds race the close of a txg; waiters race commits, suspension and close;
//! throttled changes race the release of dirty bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use forebay_base::clock::ManualClock;
use forebay_pool::model::{TxgTunables, Txgs, Wake};
use forebay_pool::{Error, ErrorKind};

use forebay_base::model::{below, check, join, spawn};

fn txgs() -> Arc<Txgs> {
    let tunables = TxgTunables::default();
    tunables.set_dirty_max_bytes(1 << 20).unwrap();
    tunables.set_dirty_sync_percent(20).unwrap();
    let tunables = forebay_base::sync::Arc::new(tunables);
    let clock = forebay_base::sync::Arc::new(ManualClock::new());
    Arc::new(Txgs::new(9, clock, tunables))
}

fn cause() -> Error {
    Error::new(ErrorKind::Device, "gone")
}

/// No hold of a txg is left when `quiesce` returns, and later holds belong to a later txg.
#[test]
fn holds_race_quiesce() {
    check(12_000, || {
        let txgs = txgs();
        // Holds of each of the txgs 10 to 13, counted by their owners.
        let held: Arc<[AtomicI64; 4]> = Arc::default();
        let newest = Arc::new(AtomicU64::new(0));
        let changer = |cell: usize| {
            let (txgs, held, newest) = (txgs.clone(), held.clone(), newest.clone());
            spawn(move || {
                for _ in 0..3 {
                    let floor = newest.load(Ordering::SeqCst);
                    let hold = txgs.begin_at(cell).unwrap();
                    assert!(hold.txg() >= floor, "began after a change of a later txg");
                    newest.fetch_max(hold.txg(), Ordering::SeqCst);
                    let of = &held[(hold.txg() - 10) as usize];
                    of.fetch_add(1, Ordering::SeqCst);
                    let older = &held[..(hold.txg() - 10) as usize];
                    let left = older.iter().any(|of| of.load(Ordering::SeqCst) != 0);
                    assert!(!left, "two txgs change concurrently");
                    hold.dirty(50 << 10);
                    of.fetch_sub(1, Ordering::SeqCst);
                    drop(hold);
                }
            })
        };
        let changers = [changer(0), changer(1), changer(0)];
        for expected in 10..13 {
            let txg = txgs.quiesce().unwrap();
            assert_eq!(txg, expected);
            assert_eq!(held[(txg - 10) as usize].load(Ordering::SeqCst), 0, "a hold is left");
            txgs.synced(txg);
        }
        join(changers);
        let txg = txgs.quiesce().unwrap();
        txgs.synced(txg);
        assert_eq!(txgs.dirty_bytes(), 0);
    });
}

/// No change is in progress at rest, despite concurrent commits and other requests for rest.
/// Afterwards changes continue.
#[test]
fn rest_races_changes_and_commits() {
    check(9000, || {
        let txgs = txgs();
        let in_progress = Arc::new(AtomicI64::new(0));
        let changer = |cell: usize| {
            let (txgs, in_progress) = (txgs.clone(), in_progress.clone());
            spawn(move || {
                for _ in 0..2 {
                    let hold = txgs.begin_at(cell).unwrap();
                    in_progress.fetch_add(1, Ordering::SeqCst);
                    in_progress.fetch_sub(1, Ordering::SeqCst);
                    drop(hold);
                }
            })
        };
        let changers = [changer(0), changer(1)];
        let rest_thread = {
            let (txgs, in_progress) = (txgs.clone(), in_progress.clone());
            spawn(move || {
                let mut rested = 0;
                for _ in 0..2 {
                    let check_rest = || {
                        assert_eq!(
                            in_progress.load(Ordering::SeqCst),
                            0,
                            "a change is in progress"
                        );
                        rested += 1;
                    };
                    txgs.run_between_transactions(check_rest).unwrap();
                }
                assert_eq!(rested, 2);
            })
        };
        let txg = txgs.quiesce().unwrap();
        txgs.synced(txg);
        join(changers);
        join([rest_thread]);
        txgs.quiesce().unwrap();
    });
}

/// A waiter returns once its txg is durable. No waiter sleeps forever.
#[test]
fn waiters_race_commits() {
    check(9000, || {
        let txgs = txgs();
        let waiter = |cell: usize| {
            let txgs = txgs.clone();
            spawn(move || {
                for _ in 0..2 {
                    let txg = txgs.begin_at(cell).unwrap().txg();
                    if below(2) == 0 {
                        assert!(txgs.sync_now().unwrap() >= txg);
                    } else {
                        txgs.wait_synced(txg).unwrap();
                    }
                    assert!(txgs.synced_txg() >= txg);
                }
            })
        };
        let waiters = [waiter(0), waiter(1)];
        let syncer = {
            let txgs = txgs.clone();
            spawn(move || {
                while txgs.next() != Wake::Ended {
                    let txg = txgs.quiesce().unwrap();
                    txgs.synced(txg);
                }
            })
        };
        join(waiters);
        txgs.close();
        join([syncer]);
    });
}

/// Suspension and close reach every thread, and nothing begins afterwards.
#[test]
fn waiters_race_suspend_and_close() {
    check(9000, || {
        let txgs = txgs();
        let waiter = |cell: usize| {
            let txgs = txgs.clone();
            spawn(move || {
                let Ok(hold) = txgs.begin_at(cell) else { return };
                let txg = hold.txg();
                hold.dirty(2 << 20);
                drop(hold);
                if txgs.wait_synced(txg).is_ok() {
                    assert!(txgs.synced_txg() >= txg);
                }
                // Throttled at the maximum, if the txg was not committed.
                drop(txgs.begin_at(cell));
            })
        };
        let waiters = [waiter(0), waiter(1)];
        let syncer = {
            let txgs = txgs.clone();
            spawn(move || {
                while txgs.next() != Wake::Ended {
                    let Ok(txg) = txgs.quiesce() else { return };
                    txgs.synced(txg);
                }
            })
        };
        let suspends = below(2) == 0;
        if suspends {
            txgs.suspend(&cause());
        } else {
            txgs.close();
        }
        let expected = if suspends { ErrorKind::Suspended } else { ErrorKind::Closed };
        assert_eq!(txgs.begin_at(0).err().unwrap().kind(), expected);
        join(waiters);
        join([syncer]);
    });
}

/// A thread that is throttled at the maximum continues after the sync of the txg.
#[test]
fn throttled_changes_race_the_sync() {
    check(9000, || {
        let txgs = txgs();
        txgs.begin_at(0).unwrap().dirty(1 << 20);
        let txg = txgs.quiesce().unwrap();
        let beginner = |cell: usize| {
            let txgs = txgs.clone();
            spawn(move || {
                let hold = txgs.begin_at(cell).unwrap();
                hold.dirty(10);
                hold.txg()
            })
        };
        let beginners = [beginner(0), beginner(1)];
        txgs.synced(txg);
        assert_eq!(join(beginners), [11, 11]);
        assert_eq!(txgs.dirty_bytes(), 20);
    });
}

/// The bytes that make a txg large wake the sync thread, whichever thread adds them.
#[test]
fn a_large_txg_wakes_the_sync_thread() {
    check(9000, || {
        let txgs = txgs();
        let changer = |cell: usize| {
            let txgs = txgs.clone();
            spawn(move || txgs.begin_at(cell).unwrap().dirty(110 << 10))
        };
        let changers = [changer(0), changer(1)];
        assert_eq!(txgs.next(), Wake::Dirty);
        join(changers);
    });
}
