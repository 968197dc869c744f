//! Preallocated holes count as allocated space until they are written or freed.

use forebay_base::rng::SmallRng;
use forebay_base::testing::seed;
use forebay_pool::Object;

use crate::common::{MIB, cache, check, create, dataset, import, memory};

const RECORD: u64 = 8192;
/// Records of the model: more than one level of indirect blocks.
const RECORDS: u64 = 1200;
/// More than the indirect blocks of any object here.
const INDIRECT_BYTES: u64 = 256 << 10;

/// Bytes that the object counts, with whether each record has data or is preallocated.
fn expected(model: &[Record]) -> u64 {
    model.iter().map(|record| if *record == Record::Hole { 0 } else { RECORD }).sum()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Record {
    Hole,
    Preallocated,
    Data,
}

fn allocated(object: &Object) -> u64 {
    object.usage().allocated_bytes
}

/// Asserts the allocated bytes. A few indirect blocks may come on top.
#[track_caller]
fn assert_allocated(object: &Object, wanted: u64) {
    let found = allocated(object);
    assert!((wanted..wanted + INDIRECT_BYTES).contains(&found), "{found}, not {wanted}");
}

#[test]
fn a_preallocated_range_counts_until_it_is_freed() {
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    // Far more than the pool has: nothing is reserved.
    object.preallocate(&tx, 0, 5 << 30).unwrap();
    drop(tx);
    assert_eq!((object.size(), allocated(&object)), (0, 5 << 30), "before the sync");
    pool.sync().unwrap();
    assert_allocated(&object, 5 << 30);
    let tx = pool.begin().unwrap();
    object.truncate(&tx, 4 << 30).unwrap();
    drop(tx);
    // An extension frees nothing.
    assert_allocated(&object, 5 << 30);
    let tx = pool.begin().unwrap();
    object.truncate(&tx, 4 << 30).unwrap();
    drop(tx);
    // The same size frees what is behind it.
    assert_allocated(&object, 4 << 30);
    pool.sync().unwrap();
    assert_allocated(&object, 4 << 30);
    let tx = pool.begin().unwrap();
    object.truncate(&tx, 1 << 30).unwrap();
    drop(tx);
    assert_allocated(&object, 1 << 30);
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();
    let pool = import(&device, &cache);
    let object = pool.dataset("data").unwrap().object(number).unwrap();
    assert_allocated(&object, 1 << 30);
    assert_eq!(object.next_data(0).unwrap(), None, "all holes");
    let tx = pool.begin().unwrap();
    object.truncate(&tx, 0).unwrap();
    drop(tx);
    assert_eq!(allocated(&object), 0);
    pool.sync().unwrap();
    assert_eq!(allocated(&object), 0);
    drop(object);
    check(&pool);
    pool.export().unwrap();
}

#[test]
fn writes_into_a_preallocated_range_count_no_more() {
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    for synced in [false, true] {
        let tx = pool.begin().unwrap();
        let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
        object.preallocate(&tx, 4095, 2).unwrap();
        drop(tx);
        if synced {
            pool.sync().unwrap();
        }
        assert_eq!(allocated(&object), 8192, "both blocks of 4 KiB");
        let tx = pool.begin().unwrap();
        object.write(&tx, 4095, b"ab").unwrap();
        drop(tx);
        assert!(allocated(&object) <= 8192, "{}", allocated(&object));
        pool.sync().unwrap();
        assert!(allocated(&object) <= 8192, "{}", allocated(&object));
    }
    drop(data);
    check(&pool);
    pool.export().unwrap();
}

#[test]
fn preallocation_survives_a_crash_after_an_fsync() {
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let object = data.object(number).unwrap();
    let tx = pool.begin().unwrap();
    object.preallocate(&tx, 0, 10 * MIB).unwrap();
    object.write(&tx, RECORD, &[7; RECORD as usize]).unwrap();
    drop(tx);
    object.fsync().unwrap();
    drop((object, data));
    pool.abandon();
    let pool = import(&device, &cache);
    let object = pool.dataset("data").unwrap().object(number).unwrap();
    assert!(allocated(&object) >= 9 * MIB, "{}", allocated(&object));
    assert_eq!(object.next_data(0).unwrap(), Some(RECORD));
    drop(object);
    check(&pool);
    pool.export().unwrap();
}

/// Each step changes a bounded number of indirect blocks; without any, one step is enough.
#[test]
fn a_range_with_many_indirect_blocks_is_preallocated_in_steps() {
    const PART: u64 = 512 * RECORD;
    const PARTS: u64 = 600;
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    assert_eq!(object.preallocate_some(&tx, 5, 1 << 60).unwrap(), 1 << 60, "a hole");
    object.truncate(&tx, 0).unwrap();
    for part in 0..PARTS {
        object.write(&tx, part * PART, &[1]).unwrap();
    }
    drop(tx);
    pool.sync().unwrap();
    let (before, end) = (allocated(&object), PARTS * PART + 5000);
    // Who must not wait changes all of it or nothing.
    {
        let tx = pool.non_blocking().begin().unwrap();
        let refused = object.preallocate_some(&tx, 0, end).unwrap_err();
        assert_eq!(refused.kind(), forebay_pool::ErrorKind::WouldBlock);
    }
    assert_eq!(allocated(&object), before);
    let (mut at, mut steps) = (0, 0);
    while at < end {
        let tx = pool.begin().unwrap();
        at += object.preallocate_some(&tx, at, end - at).unwrap();
        drop(tx);
        steps += 1;
        // The records with data count less than a whole record.
        let (wanted, found) = (at, allocated(&object));
        assert!(found.abs_diff(wanted) < PARTS * RECORD + MIB, "{found}, not {wanted}");
    }
    assert_eq!((at, steps), (end, 3));
    pool.sync().unwrap();
    assert!(allocated(&object) >= PARTS * (PART - RECORD), "{}", allocated(&object));
    assert_eq!(object.next_data(1 + RECORD).unwrap(), Some(PART));
    drop((object, data));
    check(&pool);
    pool.export().unwrap();
}

/// All changes of an object against a list of its records.
#[test]
fn preallocation_agrees_with_a_model() {
    let mut rng = SmallRng::from_seed(seed(0x5eed_0568));
    let (device, cache) = (memory(128 * MIB), cache(32 * MIB));
    let mut pool = create(&device, &cache);
    let mut data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    let mut object = data.object(number).unwrap();
    let mut model = vec![Record::Hole; RECORDS as usize];
    for step in 0..400 {
        let from = rng.below(RECORDS);
        let most = if rng.below(3) == 0 { RECORDS } else { 40 };
        let to = (from + 1 + rng.below(most)).min(RECORDS);
        let (offset, len) = (from * RECORD, (to - from) * RECORD);
        let tx = pool.begin().unwrap();
        let range = &mut model[from as usize..to as usize];
        match rng.below(8) {
            0..3 => {
                object.preallocate(&tx, offset, len).unwrap();
                let holes = range.iter_mut().filter(|record| **record == Record::Hole);
                holes.for_each(|record| *record = Record::Preallocated);
            }
            3 => {
                object.punch(&tx, offset, len).unwrap();
                range.fill(Record::Hole);
            }
            4 => {
                object.truncate(&tx, offset).unwrap();
                object.truncate(&tx, offset).unwrap();
                model[from as usize..].fill(Record::Hole);
            }
            _ => {
                let to = to.min(from + 30);
                let mut bytes = vec![0; ((to - from) * RECORD) as usize];
                rng.fill(&mut bytes);
                object.write(&tx, offset, &bytes).unwrap();
                model[from as usize..to as usize].fill(Record::Data);
            }
        }
        drop(tx);
        if rng.below(3) > 0 {
            continue;
        }
        pool.sync().unwrap();
        assert_allocated(&object, expected(&model));
        if rng.below(10) == 0 {
            drop((object, data));
            check(&pool);
            pool.export().unwrap();
            pool = import(&device, &cache);
            data = pool.dataset("data").unwrap();
            object = data.object(number).unwrap();
            assert_allocated(&object, expected(&model));
            for _ in 0..20 {
                let at = rng.below(RECORDS);
                if at * RECORD < object.size() {
                    let is_data = object.next_data(at * RECORD).unwrap() == Some(at * RECORD);
                    assert_eq!(is_data, model[at as usize] == Record::Data, "{step}: record {at}");
                }
            }
        }
    }
    drop((object, data));
    pool.export().unwrap();
}
