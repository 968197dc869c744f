//! Objects whose indirect block cannot be read any more.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, Dataset, DatasetSettings, Pool};

use crate::common::{MIB, cache, create, import, memory};

const RECORD: u64 = 4096;

/// A pool with an object of two levels whose only indirect block has rotten, and another object.
struct Damaged {
    pool: Pool,
    data: Dataset,
    damaged: u64,
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
        let device = memory(64 * MIB);
        let (damaged, other) = Self::make(&device);
        let bad = Self::indirect_of(&device, damaged);
        let (faulty, dynamic) = faulty(&device);
        let cache = cache(32 * MIB);
        let pool = import(&dynamic, &cache);
        let data = pool.dataset("data").expect("the dataset");
        faulty.add(rot(&bad));
        Self { pool, data, damaged, other, cache, device, faulty, bad }
    }

    fn make(device: &Arc<dyn Device>) -> (u64, u64) {
        let pool = create(device, &cache(32 * MIB));
        let settings = DatasetSettings {
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
        object.write(&tx, 0, &vec![5; 100 * RECORD as usize]).expect("space");
        data.object(other).expect("it").write(&tx, 0, b"before").expect("space");
        drop((tx, object, data));
        pool.export().expect("exported");
        (damaged, other)
    }

    /// Where the object's indirect block is: what is read first of it.
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

    fn write_other(&self) {
        let tx = self.pool.begin().expect("space");
        let other = self.data.object(self.other).expect("it");
        other.write(&tx, 0, b"after!").expect("space");
    }

    /// Has the sync fail in the middle of the dataset: the block of dnodes cannot be read.
    fn suspend(&self) {
        self.cache.cache().flush();
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

#[test]
fn writing_under_a_lost_indirect_block_fails_for_the_writer_alone() {
    let made = Damaged::new();
    made.write_other();
    let tx = made.pool.begin().expect("space");
    let object = made.data.object(made.damaged).expect("it");
    object.write(&tx, RECORD, &[1; RECORD as usize]).expect_err("its place is not known");
    object.punch(&tx, RECORD, RECORD).expect_err("its place is not known");
    object.truncate(&tx, 5 * RECORD + 1).expect_err("its place is not known");
    drop(tx);
    assert_eq!(object.size(), 100 * RECORD);
    made.pool.sync().expect("the others' changes are written");
    // When it can be read again, nothing has changed.
    made.faulty.clear();
    let mut out = vec![0; 100 * RECORD as usize];
    assert_eq!(object.read(0, &mut out).expect("it reads"), out.len());
    assert!(out.iter().all(|byte| *byte == 5));
}

#[test]
fn truncating_all_away_leaks_what_cannot_be_read() {
    let made = Damaged::new();
    let tx = made.pool.begin().expect("space");
    let object = made.data.object(made.damaged).expect("it");
    object.truncate(&tx, 0).expect("nothing is to be read");
    drop(tx);
    made.pool.sync().expect("a txg");
    assert_eq!((object.size(), made.leaks()), (0, 1));
    let tx = made.pool.begin().expect("space");
    object.write(&tx, 0, b"new").expect("it is whole again");
    drop(tx);
    made.pool.sync().expect("a txg");
}

#[test]
fn destroying_a_damaged_object_leaks_what_cannot_be_read() {
    let made = Damaged::new();
    made.write_other();
    let tx = made.pool.begin().expect("space");
    made.data.destroy(&tx, made.damaged).expect("destroyed");
    drop(tx);
    made.pool.sync().expect("a txg");
    assert_eq!(made.leaks(), 1);
}

#[test]
fn a_pool_whose_log_destroys_a_damaged_object_can_be_imported() {
    let made = Damaged::new();
    made.pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let tx = made.pool.begin().expect("space");
    made.data.destroy(&tx, made.damaged).expect("destroyed");
    drop(tx);
    made.data.fsync(made.other).expect("durable");
    let Damaged { pool, data, damaged, device, bad, .. } = made;
    drop(data);
    pool.abandon();
    let (faulty, dynamic) = faulty(&device);
    faulty.add(rot(&bad));
    let pool = import(&dynamic, &cache(32 * MIB));
    let data = pool.dataset("data").expect("the dataset");
    assert!(data.object_info(damaged).is_err(), "it is destroyed");
}

#[test]
fn what_was_written_before_a_suspension_is_not_read_as_older() {
    let made = Damaged::new();
    made.write_other();
    let read = || {
        let mut out = [0; 6];
        made.data.object(made.other).expect("it").read(0, &mut out).expect("it reads");
        out
    };
    assert_eq!(&read(), b"after!");
    made.suspend();
    assert_eq!(&read(), b"after!");
}

#[test]
fn a_pool_suspended_within_a_sync_gives_its_memory_back() {
    let made = Damaged::new();
    let tx = made.pool.begin().expect("space");
    let other = made.data.object(made.other).expect("it");
    other.write(&tx, RECORD, &vec![1; 2 << 20]).expect("space");
    drop((tx, other));
    made.suspend();
    let Damaged { pool, data, cache, .. } = made;
    drop((pool, data));
    assert_eq!(cache.dirty_bytes(), 0);
}
