//! Model checks of concurrent operations on the index.

use forebay_base::sync::Arc;
use forebay_cache::Class;

use super::Index;
use crate::record::{BlockAddr, InsertOutcome, KeyHash, Record, RecordState};

const SCHEDULES: usize = 2000;

fn record(segment: u32, state: RecordState) -> Record {
    let addr = BlockAddr { segment, unit: 0, units: 1 };
    Record { addr, class: Class::Data, hits: 0, in_memory: false, undecodable: false, state }
}

fn newer(old: BlockAddr, new: BlockAddr) -> bool {
    new.segment > old.segment
}

/// Two key hashes of one partition, so that one displaces the other.
const IDS: [KeyHash; 2] = [KeyHash(1), KeyHash(2)];

/// An insert, a forget and a completion of one key hash: a removed record stays removed, and a
/// completion changes only the record that it began with.
#[test]
fn a_completion_never_revives_a_removed_record() {
    shuttle::check_random(
        || {
            let index = Arc::new(Index::new(8, 0, 8));
            let old = record(1, RecordState::Pending);
            index.insert(IDS[0], old, newer).unwrap();
            let completing = {
                let index = index.clone();
                shuttle::thread::spawn(move || {
                    let live = |r: Record| Some(Record { state: RecordState::Live, ..r });
                    index.change(IDS[0], old.addr, live)
                })
            };
            let overwriting = {
                let index = index.clone();
                shuttle::thread::spawn(move || {
                    let taken = index.take(IDS[0]);
                    let inserted =
                        index.insert(IDS[0], record(2, RecordState::Pending), newer).unwrap();
                    assert_eq!(inserted, InsertOutcome::Inserted, "no other thread inserts it");
                    taken
                })
            };
            let neighbour = {
                let index = index.clone();
                shuttle::thread::spawn(move || {
                    index.insert(IDS[1], record(3, RecordState::Live), newer).unwrap();
                    index.take(IDS[1])
                })
            };
            let completed = completing.join().unwrap();
            let taken = overwriting.join().unwrap().expect("the record is in the index");
            assert_eq!(
                taken.state == RecordState::Live,
                completed,
                "the removed record shows which thread came first"
            );
            assert_eq!(neighbour.join().unwrap(), Some(record(3, RecordState::Live)));
            assert_eq!(index.find(IDS[0]), Some(record(2, RecordState::Pending)));
            assert_eq!(index.len(), 1);
            index.audit();
        },
        SCHEDULES,
    );
}

/// Two rebuild threads and one that forgets: the newest record wins in any order, and a tombstone
/// keeps older ones out.
#[test]
fn the_newest_wins_in_any_order() {
    shuttle::check_random(
        || {
            let index = Arc::new(Index::new(8, 0, 8));
            let rebuild = |segment: u32| {
                let index = index.clone();
                shuttle::thread::spawn(move || {
                    let batch = IDS.map(|hash| (hash, record(segment, RecordState::Live)));
                    index.insert_batch(&batch, newer, 0).unwrap()
                })
            };
            let (first, second) = (rebuild(1), rebuild(2));
            let tombstone = index.insert(IDS[0], record(5, RecordState::Tombstone), newer).unwrap();
            let (first, second) = (first.join().unwrap(), second.join().unwrap());
            let inserted =
                first.inserted + second.inserted + u64::from(tombstone == InsertOutcome::Inserted);
            assert_eq!(inserted, 2, "each key hash was inserted once");
            assert_eq!(first.inserted + first.replaced + first.stale, 2);
            assert_eq!(index.find(IDS[0]), Some(record(5, RecordState::Tombstone)));
            assert_eq!(index.find(IDS[1]), Some(record(2, RecordState::Live)));
            assert_eq!(index.sweep_tombstones(), 1);
            assert_eq!(index.len(), 1);
            index.audit();
        },
        SCHEDULES,
    );
}
