//! Model checks: a parked sync thread against `clear`, `close` and those who wait.

use forebay_base::clock::ManualClock;
use forebay_base::model::{below, check, join, spawn};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

use super::{DevicesWait, TxgTunables, Txgs, Wake};
use crate::error::{Error, ErrorKind};

/// The txg that the sync thread writes.
const TXG: u64 = 10;

fn txgs() -> Arc<Txgs> {
    let tunables = TxgTunables::default();
    Arc::new(Txgs::new(TXG - 1, Arc::new(ManualClock::new()), Arc::new(tunables)))
}

fn cause() -> Error {
    Error::new(ErrorKind::Device, "gone")
}

/// The sync thread of a pool whose device fails a number of steps.
fn sync_thread(txgs: &Txgs, failures: &AtomicU64) {
    while txgs.next() != Wake::Ended {
        let Ok(txg) = txgs.quiesce() else { return };
        while failures.load(Ordering::SeqCst) > 0 {
            failures.fetch_sub(1, Ordering::SeqCst);
            if !txgs.park(&cause(), txg) {
                return txgs.suspend(&cause());
            }
        }
        txgs.synced(txg);
    }
}

/// Each `clear` lets the thread try again, until the txg is durable. No waiter sleeps forever.
#[test]
fn clears_end_a_suspension() {
    check(9000, || {
        let (txgs, failures) = (txgs(), Arc::new(AtomicU64::new(1 + below(2) as u64)));
        let syncing = {
            let (txgs, failures) = (Arc::clone(&txgs), Arc::clone(&failures));
            spawn(move || sync_thread(&txgs, &failures))
        };
        let writer = {
            let txgs = Arc::clone(&txgs);
            // It fails if it waits when the device does; then it waits for the end.
            spawn(move || {
                while txgs.wait_synced(TXG).is_err() {
                    assert!(txgs.wait_resumed(&|| false).expect("the device will work"));
                }
            })
        };
        let clearer = || {
            let txgs = Arc::clone(&txgs);
            spawn(move || {
                while txgs.synced_txg() < TXG {
                    let suspended = txgs.suspension().is_some();
                    match txgs.clear() {
                        Ok(()) if suspended => {
                            assert!(txgs.synced_txg() >= TXG, "it went on early")
                        }
                        Ok(()) => forebay_base::sync::thread::yield_now(),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Suspended),
                    }
                }
            })
        };
        // It may come between a refusal and the end of the suspension.
        let beginner = {
            let txgs = Arc::clone(&txgs);
            spawn(move || {
                if let Err(error) = txgs.begin_at(1).map(drop) {
                    assert_eq!(error.kind(), ErrorKind::Suspended);
                }
            })
        };
        join([writer, clearer(), clearer(), beginner]);
        assert!(txgs.suspension().is_none());
        drop(txgs.begin_at(0).expect("changes go on"));
        txgs.close();
        join([syncing]);
    });
}

/// A reader whose devices are gone waits for a txg that is written after its read has failed,
/// whether the sync thread notices that before, meanwhile, or not at all. It never sleeps forever.
#[test]
fn a_wait_for_devices_ends_with_a_later_txg() {
    check(9000, || {
        let (txgs, failures) = (txgs(), Arc::new(AtomicU64::new(below(3) as u64)));
        let syncing = {
            let (txgs, failures) = (Arc::clone(&txgs), Arc::clone(&failures));
            spawn(move || sync_thread(&txgs, &failures))
        };
        let reader = || {
            let txgs = Arc::clone(&txgs);
            spawn(move || {
                let open = txgs.open_txg();
                let ended = txgs.wait_for_devices(&|| false).expect("the device will work");
                assert!(txgs.synced_txg() >= open, "no txg was written since");
                assert_ne!(ended, DevicesWait::GaveUp);
            })
        };
        let readers = [reader(), reader()];
        let clearer = {
            let (txgs, failures) = (Arc::clone(&txgs), Arc::clone(&failures));
            spawn(move || {
                while txgs.synced_txg() < TXG || failures.load(Ordering::SeqCst) > 0 {
                    if txgs.suspension().is_none() || txgs.clear().is_err() {
                        forebay_base::sync::thread::yield_now();
                    }
                }
            })
        };
        join(readers);
        join([clearer]);
        assert!(txgs.suspension().is_none());
        txgs.close();
        join([syncing]);
    });
}

/// An export ends a park and all waits, also while other threads clear the pool.
#[test]
fn an_export_ends_a_suspension() {
    check(9000, || {
        let (txgs, failures) = (txgs(), Arc::new(AtomicU64::new(1 + below(2) as u64)));
        let syncing = {
            let (txgs, failures) = (Arc::clone(&txgs), Arc::clone(&failures));
            spawn(move || sync_thread(&txgs, &failures))
        };
        let of = |f: fn(&Txgs)| {
            let txgs = Arc::clone(&txgs);
            spawn(move || f(&txgs))
        };
        let others = [
            of(|txgs| drop(txgs.wait_synced(TXG))),
            of(|txgs| drop(txgs.wait_resumed(&|| false))),
            of(|txgs| drop(txgs.wait_for_devices(&|| false))),
            of(|txgs| {
                drop(txgs.clear());
                drop(txgs.clear());
            }),
            of(|txgs| drop(txgs.begin_at(1))),
        ];
        // As `Pool::close`.
        txgs.end_parks();
        let synced = txgs.sync_now();
        txgs.close();
        join([syncing]);
        match synced {
            Ok(txg) => assert!(txgs.synced_txg() >= txg),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Suspended);
                assert!(txgs.suspension().is_some_and(|suspension| !suspension.resumable));
            }
        }
        assert!(txgs.begin_at(0).is_err(), "nothing begins after an export");
        assert!(txgs.wait_resumed(&|| false).is_err());
        join(others);
    });
}
