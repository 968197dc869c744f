//! Tests of the index: comparison with a hash map, memory per record at every size, and concurrent
//! threads.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::thread::spawn_named;
use forebay_cache::Class;
use proptest::prelude::*;

use super::Index;
use super::table::Table;
use crate::record::{
    BlockAddr, InsertOutcome, KeyHash, MAX_BLOCK_UNITS, MAX_HITS, MAX_SEGMENT_UNITS, MAX_SEGMENTS,
    Record, RecordState,
};

const STATES: [RecordState; 4] =
    [RecordState::Pending, RecordState::Live, RecordState::Bad, RecordState::Tombstone];

fn record(segment: u32, unit: u32) -> Record {
    let addr = BlockAddr { segment, unit, units: 3 };
    let (in_memory, undecodable, state) = (false, false, RecordState::Live);
    Record { addr, class: Class::Data, hits: 0, in_memory, undecodable, state }
}

/// Later addresses are newer.
fn newer(old: BlockAddr, new: BlockAddr) -> bool {
    (new.segment, new.unit) > (old.segment, old.unit)
}

#[test]
fn every_field_survives_packing() {
    let index = Index::new(MAX_SEGMENTS, 0, MAX_SEGMENT_UNITS);
    let edge =
        BlockAddr { segment: MAX_SEGMENTS - 1, unit: MAX_SEGMENT_UNITS, units: MAX_BLOCK_UNITS };
    let zero = BlockAddr { segment: 0, unit: 0, units: 0 };
    for (nth, hash) in [0, u64::MAX, 1 << 63, 0x00ff_ffff_ffff_ffff].into_iter().enumerate() {
        for addr in [edge, zero] {
            for class in Class::ALL {
                let (hits, in_memory, state) = (nth as u8, nth % 2 == 1, STATES[nth]);
                let undecodable = nth >= 2;
                let wanted = Record { addr, class, hits, in_memory, undecodable, state };
                index.insert(KeyHash(hash), wanted, |_, _| true).unwrap();
                assert_eq!(index.find(KeyHash(hash)), Some(wanted));
            }
        }
    }
    let mut seen = Vec::new();
    index.for_each(|hash, _| seen.push(hash.0));
    assert_eq!(seen, [0, 0x00ff_ffff_ffff_ffff, 1 << 63, u64::MAX], "in the order of key hashes");
}

#[test]
fn hits_are_counted_up_to_the_most() {
    let index = Index::new(4, 0, 4);
    let (hash, wanted) = (KeyHash(5), record(1, 2));
    index.insert(hash, wanted, newer).unwrap();
    for hits in 1..=MAX_HITS + 2 {
        index.touch(hash, wanted.addr, true);
        assert_eq!(index.find(hash).unwrap().hits, hits.min(MAX_HITS));
    }
    index.touch(hash, record(1, 3).addr, true);
    let touched = Record { hits: MAX_HITS, in_memory: true, ..wanted };
    assert_eq!(index.find(hash), Some(touched));
    index.clear_in_memory(hash);
    assert_eq!(index.find(hash), Some(Record { in_memory: false, ..touched }));
}

#[test]
fn a_block_with_an_older_value_becomes_bad() {
    let index = Index::new(4, 0, 4);
    let hash = KeyHash(5);
    index.supersede(hash);
    assert_eq!(index.find(hash), None);
    for state in STATES {
        let before = Record { state, ..record(1, 2) };
        index.insert(hash, Record { in_memory: true, ..before }, |_, _| true).unwrap();
        index.supersede(hash);
        let is_tombstone = state == RecordState::Tombstone;
        let after = if is_tombstone { state } else { RecordState::Bad };
        assert_eq!(index.find(hash), Some(Record { state: after, ..before }));
    }
}

#[test]
#[should_panic(expected = "not on any device")]
fn addresses_out_of_range_panic() {
    let _ = Index::new(4, 0, 4).insert(KeyHash(1), record(MAX_SEGMENTS, 0), newer);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, Record),
    Batch(Vec<(u64, Record)>, u64),
    Find(u64),
    ClearInMemory(u64),
    Supersede(u64),
    Touch(u64, BlockAddr),
    Change(u64, BlockAddr, Option<Record>),
    Take(u64),
    RemoveIfAt(u64, BlockAddr),
    RemoveSegment(u32),
    SupersedeFrom(u32, u32),
    Sweep,
}

/// Crowded key hashes: few partitions, neighbours, and shared homes.
fn key_hash() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..4u64, 0..300u64).prop_map(|(high, low)| high << 62 | low),
        3 => (0..4u64, 0..300u64).prop_map(|(high, low)| high << 56 | low << 47),
        1 => 0..=u64::MAX,
        1 => (0..8u64).prop_map(|low| u64::MAX - low),
    ]
}

fn any_record() -> impl Strategy<Value = Record> {
    let bits = (any::<bool>(), any::<bool>());
    (0..6u32, 0..8u32, 0..4usize, 0..2usize, 0..=MAX_HITS, bits).prop_map(
        |(segment, unit, s, c, hits, (in_memory, undecodable))| Record {
            state: STATES[s],
            class: Class::ALL[c],
            hits,
            in_memory,
            undecodable,
            ..record(segment, unit)
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let addr = || (0..6u32, 0..8u32).prop_map(|(segment, unit)| record(segment, unit).addr);
    let change = proptest::option::weighted(0.7, any_record());
    let expected = prop_oneof![0..2000u64, Just(u64::MAX)];
    prop_oneof![
        20 => (key_hash(), any_record()).prop_map(|(hash, r)| Op::Insert(hash, r)),
        4 => (prop::collection::vec((key_hash(), any_record()), 0..200), expected)
            .prop_map(|(records, expected)| Op::Batch(records, expected)),
        4 => key_hash().prop_map(Op::Find),
        4 => key_hash().prop_map(Op::ClearInMemory),
        4 => key_hash().prop_map(Op::Supersede),
        4 => (key_hash(), addr()).prop_map(|(hash, p)| Op::Touch(hash, p)),
        4 => (key_hash(), addr(), change).prop_map(|(hash, p, r)| Op::Change(hash, p, r)),
        8 => key_hash().prop_map(Op::Take),
        4 => (key_hash(), addr()).prop_map(|(hash, p)| Op::RemoveIfAt(hash, p)),
        1 => (0..6u32).prop_map(Op::RemoveSegment),
        1 => (0..6u32, 0..8u32).prop_map(|(segment, unit)| Op::SupersedeFrom(segment, unit)),
        1 => Just(Op::Sweep),
    ]
}

/// The reference model.
#[derive(Default)]
struct ReferenceModel(HashMap<u64, Record>);

impl ReferenceModel {
    fn insert(&mut self, hash: u64, record: Record) -> InsertOutcome {
        match self.0.get(&hash) {
            Some(old) if !newer(old.addr, record.addr) => InsertOutcome::Stale,
            _ => match self.0.insert(hash, record) {
                Some(old) => InsertOutcome::Replaced(old),
                None => InsertOutcome::Inserted,
            },
        }
    }

    fn take_if(&mut self, hash: u64, wanted: impl Fn(&Record) -> bool) -> Option<Record> {
        if !self.0.get(&hash).is_some_and(wanted) {
            return None;
        }
        self.0.remove(&hash)
    }

    fn retain(&mut self, wanted: impl Fn(&Record) -> bool) -> u64 {
        let before = self.0.len();
        self.0.retain(|_, record| wanted(record));
        (before - self.0.len()) as u64
    }

    fn supersede_from(&mut self, segment: u32, unit: u32) -> u64 {
        let could_return =
            |record: &Record| matches!(record.state, RecordState::Live | RecordState::Pending);
        let is_from = |record: &Record| record.addr.segment == segment && record.addr.unit >= unit;
        let chosen = self.0.values_mut().filter(|record| could_return(record) && is_from(record));
        chosen.map(|record| record.state = RecordState::Bad).count() as u64
    }
}

fn supersede(record: &mut Record) {
    record.in_memory = false;
    if record.state != RecordState::Tombstone {
        record.state = RecordState::Bad;
    }
}

fn apply(index: &Index, model: &mut ReferenceModel, op: &Op) {
    match op {
        Op::Insert(hash, record) => {
            let expected = model.insert(*hash, *record);
            assert_eq!(index.insert(KeyHash(*hash), *record, newer).unwrap(), expected);
        }
        Op::Batch(records, expected) => {
            let batch: Vec<_> = records.iter().map(|(hash, r)| (KeyHash(*hash), *r)).collect();
            let outcome = index.insert_batch(&batch, newer, *expected).unwrap();
            let mut counts = [0; 3];
            for (hash, record) in records {
                counts[match model.insert(*hash, *record) {
                    InsertOutcome::Inserted => 0,
                    InsertOutcome::Replaced(_) => 1,
                    InsertOutcome::Stale => 2,
                }] += 1;
            }
            assert_eq!([outcome.inserted, outcome.replaced, outcome.stale], counts);
        }
        Op::Find(hash) => assert_eq!(index.find(KeyHash(*hash)), model.0.get(hash).copied()),
        Op::ClearInMemory(hash) => {
            index.clear_in_memory(KeyHash(*hash));
            model.0.entry(*hash).and_modify(|record| record.in_memory = false);
        }
        Op::Supersede(hash) => {
            index.supersede(KeyHash(*hash));
            model.0.entry(*hash).and_modify(supersede);
        }
        Op::Touch(hash, addr) => {
            let to_memory = addr.unit % 3 > 0;
            index.touch(KeyHash(*hash), *addr, to_memory);
            if let Some(record) = model.0.get_mut(hash).filter(|record| record.addr == *addr) {
                record.hits = MAX_HITS.min(record.hits + 1);
                record.in_memory |= to_memory;
            }
        }
        Op::Change(hash, addr, to) => {
            let mut seen = None;
            let changed = index.change(KeyHash(*hash), *addr, |record| {
                seen = Some(record);
                *to
            });
            let old = model.take_if(*hash, |record| record.addr == *addr);
            assert_eq!((changed, seen), (old.is_some(), old));
            if let (Some(_), Some(record)) = (old, to) {
                model.0.insert(*hash, *record);
            }
        }
        Op::Take(hash) => assert_eq!(index.take(KeyHash(*hash)), model.0.remove(hash)),
        Op::RemoveIfAt(hash, addr) => {
            let expected = model.take_if(*hash, |record| record.addr == *addr);
            assert_eq!(index.remove_if_at(KeyHash(*hash), *addr), expected);
        }
        Op::RemoveSegment(segment) => {
            let expected = model.retain(|record| record.addr.segment != *segment);
            assert_eq!(index.remove_segment(*segment), expected);
        }
        Op::SupersedeFrom(segment, unit) => {
            let expected = model.supersede_from(*segment, *unit);
            assert_eq!(index.supersede_from(*segment, *unit), expected);
        }
        Op::Sweep => {
            let expected = model.retain(|record| record.state != RecordState::Tombstone);
            assert_eq!(index.sweep_tombstones(), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn matches_a_hash_map(ops in prop::collection::vec(op(), 1..400), hint in 0..1u64 << 24) {
        let index = Index::new(6, hint, 8);
        let mut model = ReferenceModel::default();
        for op in &ops {
            apply(&index, &mut model, op);
        }
        index.audit();
        prop_assert_eq!(index.len(), model.0.len() as u64);
        for (hash, record) in &model.0 {
            prop_assert_eq!(index.find(KeyHash(*hash)), Some(*record));
        }
        let mut shown = 0;
        index.for_each(|hash, record| {
            shown += 1;
            assert_eq!(model.0.get(&hash.0), Some(&record));
        });
        prop_assert_eq!(shown, model.0.len());
        index.clear();
        index.audit();
        prop_assert_eq!(index.len(), 0);
    }
}

/// Batches of a rebuild: many records per key hash, from many segments, in any order.
#[test]
fn the_newest_of_many_wins_in_batches_of_every_size() {
    const KEYS: u64 = 300;
    let mut rng = SmallRng::from_seed(3);
    for size in [10, 1000, 10_000, 50_000, 200_000] {
        let index = Index::new(64, 0, MAX_SEGMENT_UNITS);
        let mut model = ReferenceModel::default();
        for _ in 0..3 {
            let records: Vec<(u64, Record)> = (0..size)
                .map(|_| {
                    let hash = rng.below(KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    let addr = record(rng.below(64) as u32, rng.below(1000) as u32);
                    (hash, Record { state: STATES[rng.below(4) as usize], ..addr })
                })
                .collect();
            apply(&index, &mut model, &Op::Batch(records, rng.below(2 * size)));
            (0..KEYS).for_each(|key| {
                let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                apply(&index, &mut model, &Op::Find(hash));
            });
        }
        apply(&index, &mut model, &Op::Sweep);
        index.audit();
    }
}

/// A table in a region, and one whose key hashes all share one home.
#[test]
fn a_large_table_and_a_degenerate_one_grow_and_shrink() {
    const RECORDS: u64 = 30_000;
    for shift in [64 - 15, 0] {
        let index = Index::new(6, 0, MAX_SEGMENT_UNITS);
        let records = if shift == 0 { RECORDS / 20 } else { RECORDS };
        // Every 64 Ki-th hash of one partition, or neighbours.
        let hash = |nth: u64| KeyHash(if shift == 0 { nth } else { nth << (shift - 8) });
        for nth in 0..records {
            let inserted = index.insert(hash(nth), record(1, nth as u32), newer).unwrap();
            assert_eq!(inserted, InsertOutcome::Inserted);
        }
        index.audit();
        for nth in 0..records {
            assert_eq!(index.find(hash(nth)), Some(record(1, nth as u32)));
            assert_eq!(index.find(KeyHash(hash(nth).0 | 1 << 63)), None);
        }
        for nth in 0..records {
            if nth % 8 != 0 {
                assert!(index.take(hash(nth)).is_some());
            }
            if nth % 1000 == 0 {
                index.audit();
            }
        }
        index.audit();
        assert_eq!(index.len(), records.div_ceil(8));
        for nth in 0..records {
            assert_eq!(index.find(hash(nth)).is_some(), nth % 8 == 0);
        }
        index.clear();
        assert_eq!(index.memory_bytes(), Index::new(6, 0, MAX_SEGMENT_UNITS).memory_bytes());
    }
}

/// Maximum bytes per record, and the maximum while a table grows.
const MAX_RECORD_BYTES: f64 = 24.0;
const MAX_GROWING_RECORD_BYTES: f64 = 21.0;

#[test]
fn a_record_costs_at_most_24_bytes_at_every_size() {
    const RECORDS: u64 = 1_500_000;
    let cost = |index: &Index| index.memory_bytes() as f64 / index.len() as f64;
    for hint in [0, RECORDS, 8 * RECORDS] {
        let index = Index::new(1024, hint, MAX_SEGMENT_UNITS);
        let mut rng = SmallRng::from_seed(hint + 1);
        let ids: Vec<KeyHash> = (0..RECORDS).map(|_| KeyHash(rng.next_u64())).collect();
        let (mut growing, mut shrinking) = (0f64, 0f64);
        for (nth, hash) in ids.iter().enumerate() {
            index.insert(*hash, record(nth as u32 % 1024, nth as u32), newer).unwrap();
            if nth >= 100_000 && nth % 10_000 == 0 {
                growing = growing.max(cost(&index));
            }
        }
        index.audit();
        for (nth, hash) in ids.iter().enumerate() {
            if ids.len() - nth >= 100_000 && nth % 10_000 == 0 {
                shrinking = shrinking.max(cost(&index));
            }
            index.take(*hash);
        }
        println!("hint {hint}: at most {growing:.2} bytes growing, {shrinking:.2} shrinking");
        assert!(growing <= MAX_GROWING_RECORD_BYTES, "{growing} bytes while it grows, hint {hint}");
        assert!(shrinking <= MAX_RECORD_BYTES, "{shrinking} bytes while it shrinks, hint {hint}");
        index.audit();
        assert_eq!(index.len(), 0);

        let batch: Vec<_> = ids.iter().map(|hash| (*hash, record(1, 1))).collect();
        // As many as expected; more; and fewer, whose excess the sweep releases.
        for (expected, grown) in [
            (RECORDS, MAX_GROWING_RECORD_BYTES),
            (0, MAX_GROWING_RECORD_BYTES),
            (3 * RECORDS, 4.0 * MAX_GROWING_RECORD_BYTES),
        ] {
            index.clear();
            for chunk in batch.chunks(100_000) {
                index.insert_batch(chunk, newer, expected).unwrap();
            }
            assert!(cost(&index) <= grown, "{} bytes of {expected}, hint {hint}", cost(&index));
            assert!(ids.iter().step_by(97).all(|hash| index.find(*hash) == Some(record(1, 1))));
            index.sweep_tombstones();
            assert!(cost(&index) <= MAX_RECORD_BYTES, "{} bytes swept, hint {hint}", cost(&index));
        }
        assert_eq!(index.len(), RECORDS);
        index.audit();
    }
}

#[test]
fn an_empty_table_costs_nothing_but_itself() {
    assert_eq!(Table::new(0).bytes(), 0);
    assert!(Index::new(1024, 0, 1024).memory_bytes() <= 40 << 10);
}

#[test]
fn concurrent_threads_insert_find_and_take() {
    const IDS: u64 = 20_000;
    let index = Arc::new(Index::new(8, 1 << 22, MAX_SEGMENT_UNITS));
    let hash = |nth: u64| KeyHash(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let index = index.clone();
            let work = move || {
                // Each thread owns a quarter. All read everything.
                let mine = |nth: u64| nth % 4 == thread;
                for nth in (0..IDS).filter(|nth| mine(*nth)) {
                    index.insert(hash(nth), record(thread as u32, nth as u32), newer).unwrap();
                    if let Some(other) = index.find(hash(nth ^ 1)) {
                        assert_eq!(other.addr.unit, (nth ^ 1) as u32);
                    }
                    if nth % 3 == 0 {
                        assert!(index.take(hash(nth)).is_some());
                    }
                }
            };
            spawn_named("index-test", work).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    index.audit();
    for nth in 0..IDS {
        assert_eq!(index.find(hash(nth)).is_some(), nth % 3 != 0);
    }
}

/// User and system CPU time of this process, from the system's hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Measures how many records per second two threads insert in a rebuild, and the CPU time.
#[test]
#[ignore = "a measurement; run it in a release build, with --nocapture"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn speed_of_batches() {
    const RECORDS: usize = 10_000_000;
    let known = RECORDS as u64;
    for (batch, expected) in [(16 << 10, known), (128 << 10, known), (1 << 20, known), (1 << 20, 0)]
    {
        let index = Arc::new(Index::new(1024, 5_000_000, MAX_SEGMENT_UNITS));
        let mut rng = SmallRng::from_seed(7);
        let all: Vec<_> =
            (0..RECORDS).map(|nth| (KeyHash(rng.next_u64()), record(1, nth as u32 >> 4))).collect();
        let all = Arc::new(all);
        let (start, cpu) = (std::time::Instant::now(), cpu_seconds());
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (index, all) = (index.clone(), all.clone());
                let half = move || {
                    for batch in all.chunks(batch).skip(thread).step_by(2) {
                        index.insert_batch(batch, newer, expected).unwrap();
                    }
                };
                spawn_named("index-speed", half).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        index.sweep_tombstones();
        let seconds = start.elapsed().as_secs_f64();
        let rate = RECORDS as f64 / seconds / 1e6;
        let per_cpu = RECORDS as f64 / (cpu_seconds() - cpu) / 1e6;
        let bytes = index.memory_bytes() as f64 / index.len() as f64;
        println!(
            "batches of {batch}, {expected} expected: {rate:.1} M/s, {per_cpu:.1} M a CPU second, {bytes:.2} bytes"
        );
        index.audit();
    }
}
