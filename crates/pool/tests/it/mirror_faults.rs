//! Mirrors whose sides fail, fall behind or are rolled back in ways that need several steps.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_pool::format::label::{
    HEARTBEAT_OFFSET, LABEL_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES,
};
use forebay_pool::{
    CreateOptions, Error, ErrorKind, ImportOptions, LeafState, NewVdev, Opened, Pool,
};

use crate::common::{MIB, arena, cache, create_options, dataset, import_options, memory};

const SIZE: u64 = 32 * MIB;
const RECORD: u64 = 8192;
const EIO: i32 = 5;
const ENODEV: i32 = 19;
const RING_BYTES: u64 = RING_SLOTS * SLOT_BYTES as u64;

/// Devices that can fail, mirrored in pairs unless a test says otherwise.
struct Rig {
    media: Vec<Arc<dyn Device>>,
    faults: Vec<Arc<FaultDevice>>,
}

impl Rig {
    fn new(count: usize) -> Self {
        Self::of(count, SIZE)
    }

    fn of(count: usize, bytes: u64) -> Self {
        let media: Vec<_> = (0..count).map(|_| memory(bytes)).collect();
        let fault = |one: &Arc<dyn Device>| Arc::new(FaultDevice::new(Arc::clone(one), 7));
        Self { faults: media.iter().map(fault).collect(), media }
    }

    fn device(&self, at: usize) -> Arc<dyn Device> {
        Arc::clone(&self.faults[at]) as _
    }

    /// Creates a pool of mirrors of so many sides.
    fn create(&self, sides: usize) -> Pool {
        let all: Vec<_> = (0..self.faults.len()).collect();
        let mirror = |these: &[usize]| {
            NewVdev::Mirror(these.iter().map(|at| self.device(*at).into()).collect())
        };
        let vdevs = all.chunks(sides).map(mirror).collect();
        let pool = Pool::create_tree(vdevs, &create_options(&cache(32 * MIB))).expect("a pool");
        pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
        pool
    }

    fn import(&self, these: &[usize]) -> Result<Pool, Error> {
        let opened = these.iter().map(|at| self.device(*at).into()).collect();
        let pool = Pool::import(opened, &import_options(&cache(32 * MIB)))?;
        pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
        Ok(pool)
    }

    /// No device fails any more.
    fn repair(&mut self) {
        let fault = |one: &Arc<dyn Device>| Arc::new(FaultDevice::new(Arc::clone(one), 7));
        self.faults = self.media.iter().map(fault).collect();
    }

    fn image(&self, at: usize) -> Vec<u8> {
        let mut image = Vec::new();
        for offset in (0..SIZE).step_by(MIB as usize) {
            let buffer = arena().alloc(MIB as usize).expect("memory");
            let read = self.media[at].run(Request::read(offset, buffer)).into_buffer();
            image.extend_from_slice(&read.expect("it reads"));
        }
        image
    }

    fn restore(&self, at: usize, image: &[u8]) {
        for (nth, bytes) in image.chunks(MIB as usize).enumerate() {
            put(&self.media[at], nth as u64 * MIB, bytes);
        }
    }
}

fn put(device: &Arc<dyn Device>, offset: u64, bytes: &[u8]) {
    let mut buffer = arena().alloc(bytes.len()).expect("memory");
    buffer.copy_from_slice(bytes);
    device.run(Request::write(offset, buffer)).result.expect("it takes it");
}

/// The uberblock of a txg, in both labels.
fn slots_of(txg: u64) -> [u64; 2] {
    let slot = RING_OFFSET + txg % RING_SLOTS * SLOT_BYTES as u64;
    [slot, SIZE - LABEL_BYTES + slot]
}

fn fill(pool: &Pool, records: u64) -> u64 {
    let data = dataset(pool);
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    drop(tx);
    overwrite(pool, number, records, 0);
    number
}

fn overwrite(pool: &Pool, number: u64, records: u64, salt: u8) {
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    for record in 0..records {
        let tx = pool.begin().expect("space");
        let content = [record as u8 ^ salt; RECORD as usize];
        object.write(&tx, record * RECORD, &content).expect("space");
    }
    pool.sync().expect("a txg");
}

fn verify(pool: &Pool, number: u64, records: u64, salt: u8) {
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut out = vec![0; RECORD as usize];
    for record in 0..records {
        object.read(record * RECORD, &mut out).expect("it reads");
        assert!(out.iter().all(|byte| *byte == record as u8 ^ salt), "record {record}");
    }
}

fn states(pool: &Pool) -> Vec<LeafState> {
    pool.devices().iter().map(|device| device.state).collect()
}

/// A power cut leaves an uberblock on one side. The other side is used alone, and writes another
/// one of the same txg.
#[test]
fn an_uberblock_that_a_side_wrote_apart_is_never_taken() {
    let rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 10);
    let before = rig.image(0);
    overwrite(&pool, number, 10, 1);
    let cut = pool.stats().synced_txg;
    pool.abandon();
    rig.restore(0, &before);
    let pool = rig.import(&[0]).expect("a whole side");
    overwrite(&pool, number, 10, 2);
    assert_eq!(pool.stats().synced_txg, cut, "not the case that this is about");
    pool.abandon();
    // Back, and a crash before the first commit.
    rig.import(&[1, 0]).expect("both").abandon();
    let pool = rig.import(&[1, 0]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    verify(&pool, number, 10, 2);
    pool.export().expect("exported");
}

#[test]
fn a_side_that_missed_more_than_is_left_is_recorded_readably() {
    let rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 10);
    overwrite(&pool, number, 10, 1);
    pool.export().expect("exported");
    let pool = rig.import(&[0]).expect("a whole side");
    let newest = pool.stats().synced_txg;
    pool.abandon();
    for (device, slot) in rig.media.iter().flat_map(|one| slots_of(newest).map(|at| (one, at))) {
        put(device, slot, &[0x5a; SLOT_BYTES]);
    }
    rig.import(&[0, 1]).expect("the group before").abandon();
    let pool = rig.import(&[0, 1]).expect("labels that can be read");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    pool.export().expect("exported");
}

/// Of two mirrors, another side of each misses the newest records of the log. Blocks of the log
/// lie on both mirrors: each extent is larger than what is allocated on one device in a row.
#[test]
fn the_log_is_read_across_mirrors_whose_other_sides_are_stale() {
    let mut rig = Rig::of(4, 3 * SIZE);
    let pool = rig.create(2);
    let number = fill(&pool, 1);
    for stale in [1, 2] {
        rig.faults[stale].add(Rule::new(Fault::Error(ENODEV)));
    }
    overwrite(&pool, number, 1, 0);
    let (up, down) = (LeafState::Online, LeafState::Faulted);
    assert_eq!(states(&pool), [up, down, down, up]);
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let began = pool.stats().synced_txg;
    // Three sectors each, so that one lies across the end of the first extent.
    for nth in 1..=200u8 {
        let tx = pool.begin().expect("space");
        object.write(&tx, 0, &[nth; 9000]).expect("space");
        drop(tx);
        object.fsync().expect("durable");
        assert_eq!(pool.stats().synced_txg, began, "the log has no space for fsync {nth}");
    }
    drop(object);
    pool.abandon();
    rig.repair();
    let pool = rig.import(&[0, 1, 2, 3]).expect("all");
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut out = vec![0; 9000];
    object.read(0, &mut out).expect("it reads");
    assert!(out.iter().all(|byte| *byte == 200), "fsync {} is the newest", out[0]);
    drop(object);
    pool.export().expect("exported");
}

#[test]
fn labels_know_a_side_that_took_no_uberblock() {
    let mut rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 10);
    for label in [0, SIZE - LABEL_BYTES] {
        let ring = label + RING_OFFSET..label + RING_OFFSET + RING_BYTES;
        rig.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(ring));
    }
    overwrite(&pool, number, 10, 1);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    pool.abandon();
    rig.repair();
    let pool = rig.import(&[1]).expect("nobody told it");
    overwrite(&pool, number, 10, 2);
    pool.abandon();
    let error = rig.import(&[0, 1]).map(drop).expect_err("both have what the other has not");
    assert!(error.to_string().contains("each used without the other"), "{error}");
    let pool = rig.import(&[0]).expect("the one to keep");
    verify(&pool, number, 10, 1);
    pool.export().expect("exported");
}

/// A side that takes no uberblock may miss nothing else. One that takes it may miss blocks.
#[test]
fn an_uberblock_counts_on_a_side_that_misses_nothing() {
    let rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 10);
    let blocks = MIB..SIZE - MIB;
    rig.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(blocks).times(1));
    for label in [0, SIZE - LABEL_BYTES] {
        let ring = label + RING_OFFSET..label + RING_OFFSET + RING_BYTES;
        rig.faults[0].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(ring));
    }
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let tx = pool.begin().expect("space");
    object.write(&tx, 0, &[7; RECORD as usize]).expect("space");
    drop((tx, object));
    let error = pool.sync().map(drop).expect_err("no whole side has the uberblock");
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    rig.faults[0].clear();
    pool.clear().expect("it goes on");
    pool.sync().expect("a txg");
    pool.export().expect("exported");
}

#[test]
fn a_side_that_was_rolled_back_is_not_believed() {
    let rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 10);
    let yesterday = rig.image(1);
    for salt in 1..4 {
        overwrite(&pool, number, 10, salt);
    }
    pool.export().expect("exported");
    rig.restore(1, &yesterday);
    let pool = rig.import(&[1, 0]).expect("one is whole");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    verify(&pool, number, 10, 3);
    assert!(pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs").healed > 0);
    pool.sync().expect("a txg");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    let pool = rig.import(&[1]).expect("it is whole");
    verify(&pool, number, 10, 3);
    pool.export().expect("exported");
}

#[test]
fn of_three_sides_one_with_an_old_label_is_no_other_pool() {
    let mut rig = Rig::new(3);
    let pool = rig.create(3);
    let number = fill(&pool, 10);
    pool.export().expect("exported");
    let pool = rig.import(&[1, 2]).expect("two whole sides");
    overwrite(&pool, number, 10, 1);
    pool.export().expect("exported");
    // Side 0 comes back, and side 1 takes no label.
    for label in [0, SIZE - LABEL_BYTES] {
        rig.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(label..label + 4096));
    }
    let pool = rig.import(&[0, 1, 2]).expect("all");
    overwrite(&pool, number, 10, 2);
    assert_eq!(states(&pool), [LeafState::Degraded, LeafState::Faulted, LeafState::Online]);
    pool.export().expect("exported");
    rig.repair();
    let pool = rig.import(&[0, 1, 2]).expect("side 2 was always there");
    assert_eq!(states(&pool), [LeafState::Degraded, LeafState::Degraded, LeafState::Online]);
    verify(&pool, number, 10, 2);
    pool.export().expect("exported");
}

/// A power cut between the labels that end a resilver: only those of the side that was behind say
/// that it has all blocks.
#[test]
fn a_side_whose_own_labels_alone_call_it_whole_was_not_used_apart() {
    let rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 10);
    pool.export().expect("exported");
    let pool = rig.import(&[0]).expect("it is whole");
    overwrite(&pool, number, 10, 1);
    pool.export().expect("exported");
    let pool = rig.import(&[0, 1]).expect("one is whole");
    overwrite(&pool, number, 10, 2);
    let before = rig.image(0);
    pool.start_resilver().expect("it can be written");
    assert_eq!(pool.wait_resilver().lost, 0);
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.abandon();
    for label in [0, SIZE - LABEL_BYTES] {
        let config = label as usize..(label + HEARTBEAT_OFFSET) as usize;
        put(&rig.media[0], label, &before[config]);
    }
    let pool = rig.import(&[0]).expect("it is whole");
    overwrite(&pool, number, 10, 3);
    pool.export().expect("exported");
    let pool = rig.import(&[0, 1]).expect("only one was used without the other");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    pool.start_resilver().expect("it can be written");
    assert_eq!(pool.wait_resilver().lost, 0);
    pool.export().expect("exported");
    let pool = rig.import(&[1]).expect("it is whole");
    verify(&pool, number, 10, 3);
    pool.export().expect("exported");
}

/// A flush fails on both sides during a scrub, and what had been healed is lost.
#[test]
fn a_scrub_heals_again_what_a_failed_flush_may_have_lost() {
    let rig = Rig::new(2);
    let pool = rig.create(2);
    let number = fill(&pool, 400);
    pool.export().expect("exported");
    let pool = rig.import(&[0]).expect("a whole side");
    overwrite(&pool, number, 400, 1);
    pool.export().expect("exported");
    let stale = rig.image(1);
    let pool = rig.import(&[0, 1]).expect("both");
    let mut looks = 0;
    let report = pool.scrub(&mut |_| {
        looks += 1;
        if looks == 3 {
            for fault in &rig.faults {
                fault.add(Rule::new(Fault::Error(EIO)).on(Op::Flush).times(1));
            }
            let error = pool.sync().map(drop).expect_err("no flush");
            assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
            let labels = MIB as usize;
            let blocks = &stale[labels..stale.len() - labels];
            for (nth, bytes) in blocks.chunks(MIB as usize).enumerate() {
                put(&rig.media[1], (nth as u64 + 1) * MIB, bytes);
            }
            pool.clear().expect("it goes on");
            pool.sync().expect("a txg");
        }
        ControlFlow::Continue(())
    });
    let report = report.expect("it runs");
    assert!(looks > 3 && report.complete && report.lost_count == 0, "{looks}: {report:?}");
    pool.sync().expect("a txg");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    let pool = rig.import(&[1]).expect("it is whole");
    verify(&pool, number, 400, 1);
    pool.export().expect("exported");
}

/// One side can be read, and takes no heartbeat: it holds that of an older session.
#[test]
fn a_side_that_takes_no_heartbeat_stops_no_import() {
    for crash in [false, true] {
        let rig = Rig::new(2);
        let shared = || vec![Opened::shared(rig.device(0)), Opened::shared(rig.device(1))];
        let tunables = || vec![("heartbeat_ms".to_owned(), "60000".to_owned())];
        let options = CreateOptions { tunables: tunables(), ..create_options(&cache(32 * MIB)) };
        let pool = Pool::create_tree(vec![NewVdev::Mirror(shared())], &options).expect("a pool");
        let number = fill(&pool, 10);
        let block = HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + SLOT_BYTES as u64;
        match crash {
            true => pool.abandon(),
            false => pool.export().expect("exported"),
        }
        rig.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write));
        let options = ImportOptions {
            pause: Some(Arc::new(|_: Duration| {})),
            tunables: tunables(),
            ..import_options(&cache(32 * MIB))
        };
        let pool = Pool::import(shared(), &options).expect("one side is enough");
        pool.heartbeat();
        overwrite(&pool, number, 10, 1);
        assert_eq!(states(&pool), [LeafState::Online, LeafState::Missing]);
        assert!(pool.import_notes()[0].contains("takes no heartbeat"), "{:?}", pool.import_notes());
        pool.export().expect("exported");
        // One that takes none any more.
        rig.faults[1].clear();
        let pool = Pool::import(shared(), &options).expect("both");
        assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
        rig.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(block));
        pool.heartbeat();
        assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
        pool.heartbeat();
        overwrite(&pool, number, 10, 2);
        pool.export().expect("exported");
    }
}
