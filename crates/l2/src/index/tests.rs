//! The index against a hash map, what a record costs at every size, and threads at once.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::thread::spawn_named;
use forebay_cache::Class;
use proptest::prelude::*;

use super::Index;
use super::table::Table;
use crate::record::{
    Identity, Inserted, MAX_BLOCK_UNITS, MAX_HITS, MAX_SEGMENT_UNITS, MAX_SEGMENTS, Place, Record,
    State,
};

const STATES: [State; 4] = [State::Pending, State::Live, State::Bad, State::Tomb];

fn record(segment: u32, unit: u32) -> Record {
    let place = Place { segment, unit, units: 3 };
    Record { place, class: Class::Data, hits: 0, in_memory: false, state: State::Live }
}

/// Later places are newer.
fn newer(old: Place, new: Place) -> bool {
    (new.segment, new.unit) > (old.segment, old.unit)
}

#[test]
fn every_field_survives_packing() {
    let index = Index::new(MAX_SEGMENTS, 0, MAX_SEGMENT_UNITS);
    let edge = Place { segment: MAX_SEGMENTS - 1, unit: MAX_SEGMENT_UNITS, units: MAX_BLOCK_UNITS };
    let zero = Place { segment: 0, unit: 0, units: 0 };
    for (nth, id) in [0, u64::MAX, 1 << 63, 0x00ff_ffff_ffff_ffff].into_iter().enumerate() {
        for place in [edge, zero] {
            for class in Class::ALL {
                let (hits, in_memory, state) = (nth as u8, nth % 2 == 1, STATES[nth]);
                let wanted = Record { place, class, hits, in_memory, state };
                index.insert(Identity(id), wanted, |_, _| true).unwrap();
                assert_eq!(index.find(Identity(id)), Some(wanted));
            }
        }
    }
    let mut seen = Vec::new();
    index.for_each(|id, _| seen.push(id.0));
    assert_eq!(seen, [0, 0x00ff_ffff_ffff_ffff, 1 << 63, u64::MAX], "in the order of identities");
}

#[test]
fn hits_are_counted_up_to_the_most() {
    let index = Index::new(4, 0, 4);
    let (id, wanted) = (Identity(5), record(1, 2));
    index.insert(id, wanted, newer).unwrap();
    for hits in 1..=MAX_HITS + 2 {
        index.touch(id, wanted.place, true);
        assert_eq!(index.find(id).unwrap().hits, hits.min(MAX_HITS));
    }
    index.touch(id, record(1, 3).place, true);
    let touched = Record { hits: MAX_HITS, in_memory: true, ..wanted };
    assert_eq!(index.find(id), Some(touched));
    index.leave_memory(id);
    assert_eq!(index.find(id), Some(Record { in_memory: false, ..touched }));
}

#[test]
#[should_panic(expected = "not on any device")]
fn a_place_that_does_not_fit_is_refused() {
    let _ = Index::new(4, 0, 4).insert(Identity(1), record(MAX_SEGMENTS, 0), newer);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, Record),
    Batch(Vec<(u64, Record)>, u64),
    Find(u64),
    LeaveMemory(u64),
    Touch(u64, Place),
    Change(u64, Place, Option<Record>),
    Take(u64),
    RemoveIfAt(u64, Place),
    RemoveSegment(u32),
    Sweep,
}

/// Identities that crowd: few partitions, neighbours, and homes that many share.
fn identity() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..4u64, 0..300u64).prop_map(|(high, low)| high << 62 | low),
        3 => (0..4u64, 0..300u64).prop_map(|(high, low)| high << 56 | low << 47),
        1 => 0..=u64::MAX,
        1 => (0..8u64).prop_map(|low| u64::MAX - low),
    ]
}

fn any_record() -> impl Strategy<Value = Record> {
    (0..6u32, 0..8u32, 0..4usize, 0..2usize, 0..=MAX_HITS, any::<bool>()).prop_map(
        |(segment, unit, s, c, hits, in_memory)| Record {
            state: STATES[s],
            class: Class::ALL[c],
            hits,
            in_memory,
            ..record(segment, unit)
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let place = || (0..6u32, 0..8u32).prop_map(|(segment, unit)| record(segment, unit).place);
    let change = proptest::option::weighted(0.7, any_record());
    let expected = prop_oneof![0..2000u64, Just(u64::MAX)];
    prop_oneof![
        20 => (identity(), any_record()).prop_map(|(id, r)| Op::Insert(id, r)),
        4 => (prop::collection::vec((identity(), any_record()), 0..200), expected)
            .prop_map(|(records, expected)| Op::Batch(records, expected)),
        4 => identity().prop_map(Op::Find),
        4 => identity().prop_map(Op::LeaveMemory),
        4 => (identity(), place()).prop_map(|(id, p)| Op::Touch(id, p)),
        4 => (identity(), place(), change).prop_map(|(id, p, r)| Op::Change(id, p, r)),
        8 => identity().prop_map(Op::Take),
        4 => (identity(), place()).prop_map(|(id, p)| Op::RemoveIfAt(id, p)),
        1 => (0..6u32).prop_map(Op::RemoveSegment),
        1 => Just(Op::Sweep),
    ]
}

/// The naive twin.
#[derive(Default)]
struct Twin(HashMap<u64, Record>);

impl Twin {
    fn insert(&mut self, id: u64, record: Record) -> Inserted {
        match self.0.get(&id) {
            Some(old) if !newer(old.place, record.place) => Inserted::Older,
            _ => match self.0.insert(id, record) {
                Some(old) => Inserted::Replaced(old),
                None => Inserted::Fresh,
            },
        }
    }

    fn take_if(&mut self, id: u64, wanted: impl Fn(&Record) -> bool) -> Option<Record> {
        if !self.0.get(&id).is_some_and(wanted) {
            return None;
        }
        self.0.remove(&id)
    }

    fn retain(&mut self, wanted: impl Fn(&Record) -> bool) -> u64 {
        let before = self.0.len();
        self.0.retain(|_, record| wanted(record));
        (before - self.0.len()) as u64
    }
}

fn apply(index: &Index, twin: &mut Twin, op: &Op) {
    match op {
        Op::Insert(id, record) => {
            let expected = twin.insert(*id, *record);
            assert_eq!(index.insert(Identity(*id), *record, newer).unwrap(), expected);
        }
        Op::Batch(records, expected) => {
            let batch: Vec<_> = records.iter().map(|(id, r)| (Identity(*id), *r)).collect();
            let outcome = index.insert_batch(&batch, newer, *expected).unwrap();
            let mut counts = [0; 3];
            for (id, record) in records {
                counts[match twin.insert(*id, *record) {
                    Inserted::Fresh => 0,
                    Inserted::Replaced(_) => 1,
                    Inserted::Older => 2,
                }] += 1;
            }
            assert_eq!([outcome.fresh, outcome.replaced, outcome.older], counts);
        }
        Op::Find(id) => assert_eq!(index.find(Identity(*id)), twin.0.get(id).copied()),
        Op::LeaveMemory(id) => {
            index.leave_memory(Identity(*id));
            twin.0.entry(*id).and_modify(|record| record.in_memory = false);
        }
        Op::Touch(id, place) => {
            let to_memory = place.unit % 3 > 0;
            index.touch(Identity(*id), *place, to_memory);
            if let Some(record) = twin.0.get_mut(id).filter(|record| record.place == *place) {
                record.hits = MAX_HITS.min(record.hits + 1);
                record.in_memory |= to_memory;
            }
        }
        Op::Change(id, place, to) => {
            let mut seen = None;
            let changed = index.change(Identity(*id), *place, |record| {
                seen = Some(record);
                *to
            });
            let old = twin.take_if(*id, |record| record.place == *place);
            assert_eq!((changed, seen), (old.is_some(), old));
            if let (Some(_), Some(record)) = (old, to) {
                twin.0.insert(*id, *record);
            }
        }
        Op::Take(id) => assert_eq!(index.take(Identity(*id)), twin.0.remove(id)),
        Op::RemoveIfAt(id, place) => {
            let expected = twin.take_if(*id, |record| record.place == *place);
            assert_eq!(index.remove_if_at(Identity(*id), *place), expected);
        }
        Op::RemoveSegment(segment) => {
            let expected = twin.retain(|record| record.place.segment != *segment);
            assert_eq!(index.remove_segment(*segment), expected);
        }
        Op::Sweep => {
            let expected = twin.retain(|record| record.state != State::Tomb);
            assert_eq!(index.sweep_tombstones(), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn does_what_a_hash_map_does(ops in prop::collection::vec(op(), 1..400), hint in 0..1u64 << 24) {
        let index = Index::new(6, hint, 8);
        let mut twin = Twin::default();
        for op in &ops {
            apply(&index, &mut twin, op);
        }
        index.audit();
        prop_assert_eq!(index.len(), twin.0.len() as u64);
        for (id, record) in &twin.0 {
            prop_assert_eq!(index.find(Identity(*id)), Some(*record));
        }
        let mut shown = 0;
        index.for_each(|id, record| {
            shown += 1;
            assert_eq!(twin.0.get(&id.0), Some(&record));
        });
        prop_assert_eq!(shown, twin.0.len());
        index.clear();
        index.audit();
        prop_assert_eq!(index.len(), 0);
    }
}

/// A rebuild's batches: many records of each identity, from many segments, in any order.
#[test]
fn the_newest_of_many_wins_in_batches_of_every_size() {
    const KEYS: u64 = 300;
    let mut rng = SmallRng::from_seed(3);
    for size in [10, 1000, 10_000, 50_000, 200_000] {
        let index = Index::new(64, 0, MAX_SEGMENT_UNITS);
        let mut twin = Twin::default();
        for _ in 0..3 {
            let records: Vec<(u64, Record)> = (0..size)
                .map(|_| {
                    let id = rng.below(KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    let place = record(rng.below(64) as u32, rng.below(1000) as u32);
                    (id, Record { state: STATES[rng.below(4) as usize], ..place })
                })
                .collect();
            apply(&index, &mut twin, &Op::Batch(records, rng.below(2 * size)));
            (0..KEYS).for_each(|key| {
                let id = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                apply(&index, &mut twin, &Op::Find(id));
            });
        }
        apply(&index, &mut twin, &Op::Sweep);
        index.audit();
    }
}

/// A table that has pages of its own, and one whose identities all have one home.
#[test]
fn a_large_table_and_a_degenerate_one_grow_and_shrink() {
    const RECORDS: u64 = 30_000;
    for spread in [64 - 15, 0] {
        let index = Index::new(6, 0, MAX_SEGMENT_UNITS);
        let records = if spread == 0 { RECORDS / 20 } else { RECORDS };
        // Every 64 Ki-th part of one partition, or neighbours.
        let id = |nth: u64| Identity(if spread == 0 { nth } else { nth << (spread - 8) });
        for nth in 0..records {
            let inserted = index.insert(id(nth), record(1, nth as u32), newer).unwrap();
            assert_eq!(inserted, Inserted::Fresh);
        }
        index.audit();
        for nth in 0..records {
            assert_eq!(index.find(id(nth)), Some(record(1, nth as u32)));
            assert_eq!(index.find(Identity(id(nth).0 | 1 << 63)), None);
        }
        for nth in 0..records {
            if nth % 8 != 0 {
                assert!(index.take(id(nth)).is_some());
            }
            if nth % 1000 == 0 {
                index.audit();
            }
        }
        index.audit();
        assert_eq!(index.len(), records.div_ceil(8));
        for nth in 0..records {
            assert_eq!(index.find(id(nth)).is_some(), nth % 8 == 0);
        }
        index.clear();
        assert_eq!(index.memory_bytes(), Index::new(6, 0, MAX_SEGMENT_UNITS).memory_bytes());
    }
}

/// Bytes a record that the issue allows, and those that growth keeps to.
const MOST_BYTES: f64 = 24.0;
const GROWING_BYTES: f64 = 21.0;

#[test]
fn a_record_costs_at_most_24_bytes_at_every_size() {
    const RECORDS: u64 = 1_500_000;
    let cost = |index: &Index| index.memory_bytes() as f64 / index.len() as f64;
    for hint in [0, RECORDS, 8 * RECORDS] {
        let index = Index::new(1024, hint, MAX_SEGMENT_UNITS);
        let mut rng = SmallRng::from_seed(hint + 1);
        let ids: Vec<Identity> = (0..RECORDS).map(|_| Identity(rng.next_u64())).collect();
        let (mut growing, mut shrinking) = (0f64, 0f64);
        for (nth, id) in ids.iter().enumerate() {
            index.insert(*id, record(nth as u32 % 1024, nth as u32), newer).unwrap();
            if nth >= 100_000 && nth % 10_000 == 0 {
                growing = growing.max(cost(&index));
            }
        }
        index.audit();
        for (nth, id) in ids.iter().enumerate() {
            if ids.len() - nth >= 100_000 && nth % 10_000 == 0 {
                shrinking = shrinking.max(cost(&index));
            }
            index.take(*id);
        }
        println!("hint {hint}: at most {growing:.2} bytes growing, {shrinking:.2} shrinking");
        assert!(growing <= GROWING_BYTES, "{growing} bytes while it grows, hint {hint}");
        assert!(shrinking <= MOST_BYTES, "{shrinking} bytes while it shrinks, hint {hint}");
        index.audit();
        assert_eq!(index.len(), 0);

        let batch: Vec<_> = ids.iter().map(|id| (*id, record(1, 1))).collect();
        // As many as were expected; more; and fewer, which a sweep makes up for.
        for (expected, grown) in
            [(RECORDS, GROWING_BYTES), (0, GROWING_BYTES), (3 * RECORDS, 4.0 * GROWING_BYTES)]
        {
            index.clear();
            for lot in batch.chunks(100_000) {
                index.insert_batch(lot, newer, expected).unwrap();
            }
            assert!(cost(&index) <= grown, "{} bytes of {expected}, hint {hint}", cost(&index));
            assert!(ids.iter().step_by(97).all(|id| index.find(*id) == Some(record(1, 1))));
            index.sweep_tombstones();
            assert!(cost(&index) <= MOST_BYTES, "{} bytes swept, hint {hint}", cost(&index));
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
fn threads_insert_find_and_take_at_once() {
    const IDS: u64 = 20_000;
    let index = Arc::new(Index::new(8, 1 << 22, MAX_SEGMENT_UNITS));
    let id = |nth: u64| Identity(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let index = index.clone();
            let work = move || {
                // Each owns a quarter; all look at everything.
                let mine = |nth: u64| nth % 4 == thread;
                for nth in (0..IDS).filter(|nth| mine(*nth)) {
                    index.insert(id(nth), record(thread as u32, nth as u32), newer).unwrap();
                    if let Some(other) = index.find(id(nth ^ 1)) {
                        assert_eq!(other.place.unit, (nth ^ 1) as u32);
                    }
                    if nth % 3 == 0 {
                        assert!(index.take(id(nth)).is_some());
                    }
                }
            };
            spawn_named("index-test", work).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    index.audit();
    for nth in 0..IDS {
        assert_eq!(index.find(id(nth)).is_some(), nth % 3 != 0);
    }
}

/// User and system time of this process so far, in the system's hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Rebuilding: how many records a second two threads put in, and what one costs.
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
        let all: Vec<_> = (0..RECORDS)
            .map(|nth| (Identity(rng.next_u64()), record(1, nth as u32 >> 4)))
            .collect();
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
