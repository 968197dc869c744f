//! Objects with an unreadable indirect block.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, Dataset, DatasetSettings, ErrorKind, Object, Pool, Transaction};

use crate::common::{MIB, cache, check, create, import, memory};

const RECORD: u64 = 4096;
const ENODEV: i32 = 19;
/// Records that fill an indirect block.
const FULL: u64 = 512;

/// A pool with an object of two levels whose only indirect block is damaged, and another object.
struct Damaged {
    pool: Pool,
    data: Dataset,
    damaged: u64,
    /// Records of the damaged object.
    records: u64,
    other: u64,
    cache: Arc<BlockCache>,
    device: Arc<dyn Device>,
    faulty: Arc<FaultDevice>,
    bad: Range<u64>,
}

fn faulty(device: &Arc<dyn Device>) -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let faulty = Arc::new(FaultDevice::new(Arc::clone(device), 1));
    (Arc::clone(&faulty), faulty)
}

fn rot(bad: &Range<u64>) -> Rule {
    Rule::new(Fault::Rot { bits: 64 }).on(Op::Read).within(bad.clone())
}

impl Damaged {
    fn new() -> Self {
        Self::with_records(100)
    }

    fn with_records(records: u64) -> Self {
        let device = memory(64 * MIB);
        let (damaged, other) = Self::make(&device, records);
        let bad = Self::indirect_of(&device, damaged);
        let (faulty, dynamic) = faulty(&device);
        let cache = cache(32 * MIB);
        let pool = import(&dynamic, &cache);
        let data = pool.dataset("data").expect("the dataset");
        faulty.add(rot(&bad));
        Self { pool, data, damaged, records, other, cache, device, faulty, bad }
    }

    fn make(device: &Arc<dyn Device>, records: u64) -> (u64, u64) {
        let pool = create(device, &cache(32 * MIB));
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: RECORD as u32,
            metadata_copies: 1,
            metadata_compression: Compression::Off,
            ..DatasetSettings::default()
        };
        let data = pool.create_dataset("data", &settings).expect("a dataset");
        let tx = pool.begin().expect("space");
        let new = || data.create_object(&tx, &[]).expect("an object");
        let (damaged, other) = (new(), new());
        let object = data.object(damaged).expect("it");
        object.write(&tx, 0, &vec![5; (records * RECORD) as usize]).expect("space");
        data.object(other).expect("it").write(&tx, 0, b"before").expect("space");
        drop((tx, object, data));
        pool.export().expect("exported");
        (damaged, other)
    }

    /// Location of the object's indirect block: the first block that a read of the object reads.
    fn indirect_of(device: &Arc<dyn Device>, number: u64) -> Range<u64> {
        let (faulty, dynamic) = faulty(device);
        let pool = import(&dynamic, &cache(32 * MIB));
        let data = pool.dataset("data").expect("the dataset");
        let object = data.object(number).expect("it");
        let rule = faulty.add(Rule::new(Fault::Delay(Duration::ZERO)).on(Op::Read));
        object.read(0, &mut [0]).expect("it reads");
        faulty.remove(rule);
        let at = faulty.injected()[0].offset;
        drop((object, data));
        pool.export().expect("exported");
        at..at + RECORD
    }

    fn object(&self) -> Object {
        self.data.object(self.damaged).expect("it")
    }

    /// Writes the changes of `change` in a txg of their own, and syncs it.
    fn sync_after(&self, change: impl FnOnce(&Object, &Transaction<'_>)) {
        let tx = self.pool.begin().expect("space");
        change(&self.object(), &tx);
        drop(tx);
        self.pool.sync().expect("the pool is not suspended");
    }

    /// Once the indirect block is readable again, the content is unchanged.
    fn assert_unchanged(&self) {
        self.faulty.clear();
        let mut out = vec![0; (self.records * RECORD) as usize];
        assert_eq!(self.object().read(0, &mut out).expect("it reads"), out.len());
        assert!(out.iter().all(|byte| *byte == 5));
        check(&self.pool);
    }

    fn write_other(&self) {
        let tx = self.pool.begin().expect("space");
        let other = self.data.object(self.other).expect("it");
        other.write(&tx, 0, b"after!").expect("space");
    }

    /// Makes the sync fail halfway: the block of dnodes cannot be read.
    fn suspend(&self) {
        self.cache.cache().clear();
        self.faulty.clear();
        self.faulty.add(Rule::new(Fault::Error(5)).on(Op::Read));
        assert!(self.pool.sync().is_err());
        self.faulty.clear();
    }

    fn leaks(&self) -> u64 {
        let counters = self.pool.stats().counters;
        let leaked = counters.iter().find(|(name, ..)| *name == "trees_leaked");
        leaked.expect("the counter").2
    }
}

/// Its device is gone when a group frees the object, and comes back.
#[test]
fn a_device_that_is_away_leaks_nothing_of_what_is_freed() {
    let fixture = Damaged::new();
    fixture.pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    fixture.faulty.clear();
    fixture.cache.cache().clear();
    // All else that a commit reads is in memory then.
    fixture.write_other();
    fixture.pool.sync().expect("a txg");
    let tx = fixture.pool.begin().expect("space");
    fixture.data.destroy(&tx, fixture.damaged).expect("it exists");
    drop(tx);
    fixture.faulty.add(Rule::new(Fault::Error(ENODEV)));
    let error = fixture.pool.sync().expect_err("its device is gone");
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    fixture.faulty.clear();
    fixture.pool.clear().expect("it is back");
    assert_eq!(fixture.leaks(), 0);
    check(&fixture.pool);
}

#[test]
fn a_write_under_an_unreadable_indirect_block_fails_alone() {
    let fixture = Damaged::new();
    fixture.write_other();
    let tx = fixture.pool.begin().expect("space");
    let object = fixture.data.object(fixture.damaged).expect("it");
    object.write(&tx, RECORD, &[1; RECORD as usize]).expect_err("its block pointer is unreadable");
    object.punch(&tx, RECORD, RECORD).expect_err("its block pointer is unreadable");
    object.truncate(&tx, 5 * RECORD + 1).expect_err("its block pointer is unreadable");
    drop(tx);
    assert_eq!(object.size(), 100 * RECORD);
    fixture.pool.sync().expect("the others' changes are written");
    // Once the block is readable again, the content is unchanged.
    fixture.faulty.clear();
    let mut out = vec![0; 100 * RECORD as usize];
    assert_eq!(object.read(0, &mut out).expect("it reads"), out.len());
    assert!(out.iter().all(|byte| *byte == 5));
}

#[test]
fn preallocating_where_there_is_data_reads_no_full_indirect_block() {
    let fixture = Damaged::with_records(FULL);
    fixture.sync_after(|object, tx| {
        object.preallocate(tx, 0, FULL * RECORD).expect("nothing is to be read");
    });
    // The tree grows. The old indirect block is beneath a new one and stays as it is.
    fixture.sync_after(|object, tx| {
        object.preallocate(tx, 10 * RECORD, 3 * FULL * RECORD).expect("nothing is to be read");
        // This needs the block, which the preallocation has not read.
        let error = object.write(tx, 5 * RECORD, &[1; RECORD as usize]);
        assert_eq!(error.expect_err("it is unreadable").kind(), ErrorKind::Corrupt);
    });
    fixture.assert_unchanged();
}

#[test]
fn changes_after_a_truncation_to_zero_read_no_old_block() {
    let changes: [fn(&Object, &Transaction<'_>); 4] = [
        |object, tx| object.write(tx, 3, b"new").expect("space"),
        |object, tx| object.preallocate(tx, 0, 3 * RECORD).expect("space"),
        |object, tx| object.preallocate(tx, RECORD, 3 * FULL * RECORD + 1).expect("space"),
        |object, tx| {
            object.write(tx, 3 * FULL * RECORD, b"new").expect("space");
            object.preallocate(tx, 5 * RECORD, 7 * RECORD).expect("space");
        },
    ];
    for (records, change) in [100, FULL].into_iter().flat_map(|n| changes.map(|each| (n, each))) {
        let fixture = Damaged::with_records(records);
        fixture.sync_after(|object, tx| {
            object.truncate(tx, 0).expect("nothing is to be read");
            change(object, tx);
        });
        assert_eq!(fixture.leaks(), 1);
        let mut out = [5; RECORD as usize];
        let read = fixture.object().read(0, &mut out).expect("it reads");
        assert!(!out[..read].contains(&5), "the old content is gone");
    }
}

#[test]
fn changes_behind_the_last_block_fail_alone_if_its_indirect_block_is_unreadable() {
    let fixture = Damaged::new();
    fixture.sync_after(|object, tx| {
        object.truncate(tx, 400 * RECORD).expect("nothing is to be read");
    });
    let changes: [fn(&Object, &Transaction<'_>) -> forebay_pool::Result<()>; 6] = [
        |object, tx| object.write(tx, 100 * RECORD, &[1; RECORD as usize]),
        |object, tx| object.write(tx, 110 * RECORD, b"part of a record"),
        |object, tx| object.preallocate(tx, 120 * RECORD, 2 * RECORD),
        |object, tx| object.preallocate(tx, 130 * RECORD, 7),
        |object, tx| object.punch(tx, 140 * RECORD, 3 * RECORD),
        |object, tx| object.truncate(tx, 150 * RECORD),
    ];
    for change in changes {
        fixture.sync_after(|object, tx| {
            let error = change(object, tx).expect_err("the indirect block is unreadable");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        });
    }
    fixture.assert_unchanged();
}

#[test]
fn truncating_to_zero_leaks_unreadable_blocks() {
    let fixture = Damaged::new();
    let tx = fixture.pool.begin().expect("space");
    let object = fixture.data.object(fixture.damaged).expect("it");
    object.truncate(&tx, 0).expect("nothing is to be read");
    drop(tx);
    fixture.pool.sync().expect("a txg");
    assert_eq!((object.size(), fixture.leaks()), (0, 1));
    let tx = fixture.pool.begin().expect("space");
    object.write(&tx, 0, b"new").expect("it is whole again");
    drop(tx);
    fixture.pool.sync().expect("a txg");
}

#[test]
fn destroying_a_damaged_object_leaks_unreadable_blocks() {
    let fixture = Damaged::new();
    fixture.write_other();
    let tx = fixture.pool.begin().expect("space");
    fixture.data.destroy(&tx, fixture.damaged).expect("destroyed");
    drop(tx);
    fixture.pool.sync().expect("a txg");
    assert_eq!(fixture.leaks(), 1);
}

#[test]
fn a_pool_whose_log_destroys_a_damaged_object_can_be_imported() {
    let fixture = Damaged::new();
    fixture.pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let tx = fixture.pool.begin().expect("space");
    fixture.data.destroy(&tx, fixture.damaged).expect("destroyed");
    drop(tx);
    fixture.data.fsync(fixture.other).expect("durable");
    let Damaged { pool, data, damaged, device, bad, .. } = fixture;
    drop(data);
    pool.abandon();
    let (faulty, dynamic) = faulty(&device);
    faulty.add(rot(&bad));
    let pool = import(&dynamic, &cache(32 * MIB));
    let data = pool.dataset("data").expect("the dataset");
    assert!(data.object_info(damaged).is_err(), "it is destroyed");
}

#[test]
fn reads_after_a_suspension_return_the_newest_content() {
    let fixture = Damaged::new();
    fixture.write_other();
    let read = || {
        let mut out = [0; 6];
        fixture.data.object(fixture.other).expect("it").read(0, &mut out).expect("it reads");
        out
    };
    assert_eq!(&read(), b"after!");
    fixture.suspend();
    assert_eq!(&read(), b"after!");
}

#[test]
fn a_pool_suspended_during_a_sync_releases_its_memory() {
    let fixture = Damaged::new();
    let tx = fixture.pool.begin().expect("space");
    let other = fixture.data.object(fixture.other).expect("it");
    other.write(&tx, RECORD, &vec![1; 2 << 20]).expect("space");
    drop((tx, other));
    fixture.suspend();
    let Damaged { pool, data, cache, .. } = fixture;
    drop((pool, data));
    assert_eq!(cache.dirty_bytes(), 0);
}
