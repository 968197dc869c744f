//! Mirrors: reads and writes go on with a device less, bad copies are healed, sides that were away
//! are known to have missed txgs, and impossible sets of devices are refused by name.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Crash, Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_pool::{ErrorKind, HealthState, ImportOptions, LeafState, NewVdev, Object, Pool};

use crate::common::{
    MIB, arena, cache, check, copy_of, create_options, dataset, import_options, memory,
};

pub(crate) const SIZE: u64 = 32 * MIB;
pub(crate) const RECORD: u64 = 8192;
const ENODEV: i32 = 19;
const EIO: i32 = 5;

/// Two devices that can fail.
pub(crate) struct Sides {
    pub(crate) media: [Arc<dyn Device>; 2],
    pub(crate) faults: [Arc<FaultDevice>; 2],
}

impl Sides {
    pub(crate) fn new() -> Self {
        Self::over([memory(SIZE), memory(SIZE)])
    }

    pub(crate) fn over(media: [Arc<dyn Device>; 2]) -> Self {
        let fault = |at: usize| Arc::new(FaultDevice::new(Arc::clone(&media[at]), 7));
        Self { faults: [fault(0), fault(1)], media }
    }

    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.faults.iter().map(|one| Arc::clone(one) as Arc<dyn Device>).collect()
    }

    pub(crate) fn create(&self) -> Pool {
        create(&self.devices())
    }
}

fn create(devices: &[Arc<dyn Device>]) -> Pool {
    let mirror = NewVdev::Mirror(devices.iter().map(|one| Arc::clone(one).into()).collect());
    Pool::create_tree(vec![mirror], &create_options(&cache(32 * MIB))).expect("a pool")
}

pub(crate) fn import(devices: &[&Arc<dyn Device>]) -> Result<Pool, forebay_pool::Error> {
    import_with(devices, &import_options(&cache(32 * MIB)))
}

fn import_with(
    devices: &[&Arc<dyn Device>],
    options: &ImportOptions,
) -> Result<Pool, forebay_pool::Error> {
    let opened = devices.iter().map(|one| Arc::clone(one).into()).collect();
    Pool::import(opened, options)
}

/// Creates an object with so many records, each of its own content.
pub(crate) fn fill(pool: &Pool, records: u64) -> u64 {
    let data = dataset(pool);
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    drop(tx);
    overwrite(pool, number, records, 0);
    number
}

pub(crate) fn overwrite(pool: &Pool, number: u64, records: u64, salt: u8) {
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    for record in 0..records {
        let tx = pool.begin().expect("space");
        let content = [record as u8 ^ salt; RECORD as usize];
        object.write(&tx, record * RECORD, &content).expect("space");
    }
    pool.sync().expect("a txg");
}

/// Overwrites the first record so many times, each time with the next number, and syncs some of
/// them. Returns the last number that is durable, and the last one.
pub(crate) fn write_and_sync(
    pool: &Pool,
    object: &Object,
    count: u64,
    rng: &mut SmallRng,
    mut before_each: impl FnMut(&mut SmallRng),
) -> (u8, u8) {
    let (mut synced, mut written) = (0, 0);
    for _ in 0..count {
        before_each(rng);
        written += 1;
        let tx = pool.begin().expect("space");
        object.write(&tx, 0, &[written; RECORD as usize]).expect("space");
        drop(tx);
        match rng.below(3) {
            0 => pool.sync().map(drop).expect("a side is whole"),
            1 => object.fsync().expect("a side is whole"),
            _ => continue,
        }
        synced = written;
    }
    (synced, written)
}

pub(crate) fn verify(pool: &Pool, number: u64, records: u64, salt: u8) {
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut out = vec![0; RECORD as usize];
    for record in 0..records {
        object.read(record * RECORD, &mut out).expect("it reads");
        assert!(out.iter().all(|byte| *byte == record as u8 ^ salt), "record {record}");
    }
}

pub(crate) fn states(pool: &Pool) -> Vec<LeafState> {
    pool.devices().iter().map(|device| device.state).collect()
}

/// Overwrites what lies between the labels.
pub(crate) fn scribble(device: &Arc<dyn Device>, from: u64, until: u64) {
    let arena = arena();
    for at in (from..until).step_by(1 << 20) {
        let mut buffer = arena.alloc(1 << 20).expect("memory");
        buffer.fill(0x5a);
        device.run(Request::write(at, buffer)).result.expect("it takes it");
    }
}

pub(crate) fn scrub(pool: &Pool) -> forebay_pool::ScrubReport {
    pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs")
}

pub(crate) fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().filter(|(known, ..)| *known == name).map(|(.., value)| value).sum()
}

#[test]
fn each_side_alone_has_everything() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 100);
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    assert_eq!(pool.health().state, HealthState::Online);
    check(&pool);
    pool.export().expect("exported");
    for left in sides.devices() {
        // Read-only, so that no side learns that the other is missing.
        let options =
            forebay_pool::ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
        let pool = Pool::import(vec![left.into()], &options).expect("a whole side");
        verify(&pool, number, 100, 0);
        pool.export().expect("exported");
    }
}

#[test]
fn a_pool_goes_on_with_one_side_left_and_a_scrub_brings_the_other_one_back() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 100);
    sides.faults[1].add(Rule::new(Fault::Error(ENODEV)));
    overwrite(&pool, number, 50, 0xff);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Faulted]);
    let health = pool.health();
    assert_eq!(health.state, HealthState::Degraded);
    assert!(health.reasons[0].contains("of mirror 0 is faulted"), "{:?}", health.reasons);
    let gone = &pool.devices()[1];
    assert!(gone.missed_from.is_some() && gone.missed_to.is_none(), "{gone:?}");
    assert!(gone.write_errors > 0, "{gone:?}");
    pool.export().expect("exported");

    // It returns, and is known to miss what was written without it.
    sides.faults[1].clear();
    let again = Sides::over(sides.media.clone());
    let devices = again.devices();
    let pool = import(&[&devices[1], &devices[0]]).expect("both sides");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    verify(&pool, number, 50, 0xff);
    assert_eq!(counter(&pool, "healed"), 0, "the side that misses blocks was not asked");
    let report = scrub(&pool);
    assert!(report.complete && report.lost_count == 0 && report.healed > 0, "{report:?}");
    pool.sync().expect("a txg");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.export().expect("exported");
    let pool = import(&[&devices[1]]).expect("it is whole again");
    assert_eq!(states(&pool), [LeafState::Missing, LeafState::Online]);
    verify(&pool, number, 50, 0xff);
    pool.export().expect("exported");
}

#[test]
fn a_stale_side_alone_is_refused_if_it_knows() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 20);
    // Writes of blocks fail, and those of labels do not.
    let blocks = MIB..SIZE - MIB;
    sides.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(blocks).times(3));
    overwrite(&pool, number, 20, 1);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    verify(&pool, number, 20, 1);
    pool.export().expect("exported");
    let devices = sides.devices();
    let error = import(&[&devices[1]]).map(drop).expect_err("it misses blocks");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert!(error.to_string().contains("with the blocks from txg "), "{error}");
    let pool = import(&[&devices[0]]).expect("a whole side");
    verify(&pool, number, 20, 1);
    pool.export().expect("exported");
}

#[test]
fn bad_copies_are_read_from_the_other_side_and_rewritten() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 200);
    pool.export().expect("exported");
    scribble(&sides.media[0], MIB, SIZE - MIB);
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("one side is good");
    verify(&pool, number, 200, 0);
    assert!(counter(&pool, "healed") > 0);
    assert!(pool.devices()[0].checksum_errors > 0);
    assert_eq!(counter(&pool, "blocks_lost"), 0);
    assert_eq!(
        counter(&pool, "verify_failures"),
        pool.devices()[0].checksum_errors,
        "each bad copy that a reader found counts once"
    );
    let before = counter(&pool, "verify_failures");
    let report = scrub(&pool);
    assert!(report.complete && report.lost_count == 0 && report.healed > 0, "{report:?}");
    let failures = counter(&pool, "verify_failures") - before;
    assert_eq!(failures, report.healed, "each bad copy that the scrub found counts once");
    assert_eq!(scrub(&pool).healed, 0);
    check(&pool);
    pool.export().expect("exported");
    // The other side may rot now.
    scribble(&sides.media[1], MIB, SIZE - MIB);
    let pool = import(&[&devices[0], &devices[1]]).expect("one side is good");
    verify(&pool, number, 200, 0);
    pool.export().expect("exported");
}

#[test]
fn unreadable_copies_are_read_from_the_other_side() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 100);
    pool.export().expect("exported");
    let devices = sides.devices();
    // The other side answers later, so the bad one is asked first.
    sides.faults[1].add(Rule::new(Fault::Delay(Duration::from_millis(5))).on(Op::Read));
    let pool = import(&[&devices[0], &devices[1]]).expect("both");
    let blocks = MIB..SIZE - MIB;
    sides.faults[0].add(Rule::new(Fault::Error(EIO)).on(Op::Read).within(blocks));
    verify(&pool, number, 100, 0);
    assert!(pool.devices()[0].read_errors > 0);
    assert_eq!(pool.devices()[1].read_errors, 0);
    pool.export().expect("exported");
}

#[test]
fn an_fsync_survives_with_either_side() {
    for lost in 0..2 {
        let sides = Sides::new();
        let pool = sides.create();
        pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
        let number = fill(&pool, 1);
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let tx = pool.begin().expect("space");
        object.write(&tx, 0, &[9; RECORD as usize]).expect("space");
        drop(tx);
        object.fsync().expect("durable");
        drop(object);
        pool.abandon();
        // All of one side rots, the log too.
        scribble(&sides.media[lost], MIB, SIZE - MIB);
        let devices = sides.devices();
        let pool = import(&[&devices[0], &devices[1]]).expect("one side is good");
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let mut out = vec![0; RECORD as usize];
        object.read(0, &mut out).expect("it reads");
        assert!(out.iter().all(|byte| *byte == 9), "side {lost} is bad");
        drop(object);
        pool.export().expect("exported");
    }
}

#[test]
fn a_failed_flush_of_a_side_faults_it_and_fsync_waits_for_the_labels() {
    let sides = Sides::new();
    let pool = sides.create();
    pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let number = fill(&pool, 1);
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let tx = pool.begin().expect("space");
    object.write(&tx, 0, &[9; RECORD as usize]).expect("space");
    drop(tx);
    sides.faults[0].add(Rule::new(Fault::Error(EIO)).on(Op::Flush).times(1));
    object.fsync().expect("durable on the other side");
    assert_eq!(states(&pool), [LeafState::Faulted, LeafState::Online]);
    drop(object);
    pool.abandon();
    // A crash: the labels of the good side know it.
    let devices = sides.devices();
    let pool = import(&[&devices[0], &devices[1]]).expect("one side is whole");
    assert_eq!(states(&pool), [LeafState::Degraded, LeafState::Online]);
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut out = vec![0; RECORD as usize];
    object.read(0, &mut out).expect("it reads");
    assert!(out.iter().all(|byte| *byte == 9));
    drop(object);
    pool.export().expect("exported");
}

#[test]
fn sides_that_were_used_apart_are_refused_together() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    pool.export().expect("exported");
    let devices = sides.devices();
    for (at, salt) in [(0, 1), (1, 2)] {
        let pool = import(&[&devices[at]]).expect("a whole side");
        overwrite(&pool, number, 10, salt);
        pool.export().expect("exported");
    }
    let error = import(&[&devices[0], &devices[1]]).map(drop).expect_err("which one is right?");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert!(error.to_string().contains("each used without the other"), "{error}");
    let pool = import(&[&devices[1]]).expect("the one to keep");
    verify(&pool, number, 10, 2);
    pool.export().expect("exported");
}

#[test]
fn a_side_that_missed_an_import_is_not_believed() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 10);
    pool.export().expect("exported");
    let devices = sides.devices();
    let pool = import(&[&devices[0]]).expect("a whole side");
    overwrite(&pool, number, 10, 1);
    // A crash, and then both.
    pool.abandon();
    let pool = import(&[&devices[1], &devices[0]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Degraded]);
    verify(&pool, number, 10, 1);
    pool.export().expect("exported");
}

#[test]
fn an_import_of_an_older_group_asks_to_scrub_a_mirror() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 4);
    let older = pool.stats().synced_txg;
    overwrite(&pool, number, 4, 1);
    pool.abandon();
    let devices = sides.devices();
    for (read_only, advises) in [(true, false), (false, true)] {
        let options =
            ImportOptions { txg: Some(older), read_only, ..import_options(&cache(32 * MIB)) };
        let pool = import_with(&[&devices[0], &devices[1]], &options).expect("it is whole");
        verify(&pool, number, 4, 0);
        let [note] = pool.import_notes() else { panic!("{:?}", pool.import_notes()) };
        assert_eq!(note.contains("scrub the pool"), advises, "{note}");
        pool.abandon();
    }
}

#[test]
fn clones_and_sides_of_other_pools_are_named() {
    let sides = Sides::new();
    sides.create().export().expect("exported");
    let (clone, cache) = (copy_of(&sides.media[0]), cache(64 * MIB));
    let devices = sides.devices();
    let error = import(&[&devices[0], &clone]).map(drop).expect_err("one of them is a copy");
    assert!(error.to_string().contains("one is a copy of the other"), "{error}");

    let others = Sides::new();
    let mut options = create_options(&cache);
    options.seed = Some(8);
    let mirror = others.devices().into_iter().map(Into::into).collect();
    let pool = Pool::create_tree(vec![NewVdev::Mirror(mirror)], &options).expect("a pool");
    pool.export().expect("exported");
    let error = import(&[&devices[0], &others.devices()[1]]).map(drop).expect_err("two pools");
    assert!(error.to_string().contains("of another one"), "{error}");
}

#[test]
fn mirrors_and_devices_are_striped_and_grow() {
    let devices: Vec<_> = (0..5).map(|_| memory(SIZE)).collect();
    let mirror = |range: std::ops::Range<usize>| {
        NewVdev::Mirror(devices[range].iter().map(|one| Arc::clone(one).into()).collect())
    };
    let wanted = vec![NewVdev::Device(Arc::clone(&devices[0]).into()), mirror(1..3)];
    let pool = Pool::create_tree(wanted, &create_options(&cache(32 * MIB))).expect("a pool");
    let number = fill(&pool, 400);
    assert_eq!(pool.add_vdev(mirror(3..5), false, None).expect("it grows"), 2);
    overwrite(&pool, number, 400, 3);
    let numbers: Vec<u16> = pool.devices().iter().map(|device| device.number).collect();
    assert_eq!(numbers, [0, 1, 1, 2, 2]);
    assert!(pool.vdevs()[2].mirror && !pool.vdevs()[0].mirror);
    check(&pool);
    pool.export().expect("exported");
    let all: Vec<_> = devices.iter().collect();
    let pool = import(&all[..4]).expect("each vdev has a whole device");
    verify(&pool, number, 400, 3);
    pool.export().expect("exported");
    let error = import(&[all[0], all[3]]).map(drop).expect_err("mirror 1 is missing");
    assert!(error.to_string().contains("of mirror 1"), "{error}");
    let error = Pool::create_tree(
        vec![NewVdev::Mirror(vec![memory(SIZE).into()])],
        &create_options(&cache(32 * MIB)),
    )
    .map(drop)
    .expect_err("one side");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Power cuts: what no flush covered is lost, kept or torn, on each side in its own way; or a side
/// was away since some write.
#[test]
fn crashes_with_a_side_stale_torn_or_absent_lose_nothing_that_was_synced() {
    let seeds = forebay_base::testing::requested_seed().map_or(0..24, |seed| seed..seed + 1);
    for seed in seeds {
        println!("FOREBAY_SEED={seed}");
        let mut rng = SmallRng::from_seed(seed);
        let sides = Sides::new();
        let pool = sides.create();
        let number = fill(&pool, 8);
        if seed % 3 == 0 {
            let gone = Rule::new(Fault::Error(ENODEV)).after(rng.below(200));
            sides.faults[(seed / 3 % 2) as usize].add(gone);
        }
        for fault in &sides.faults {
            fault.add(Rule::new(Fault::Volatile).on(Op::Write));
        }
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let count = rng.below(30);
        let (synced, written) = write_and_sync(&pool, &object, count, &mut rng, |_| {});
        drop(object);
        for (nth, fault) in sides.faults.iter().enumerate() {
            fault.crash(Crash::Sample(seed.wrapping_mul(2) + nth as u64)).expect("it crashes");
        }
        pool.abandon();
        let [a, b] = &sides.media;
        let pool = import(&[a, b]).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
        let mut out = vec![0; RECORD as usize];
        object.read(0, &mut out).expect("it reads");
        let found = out[0];
        assert!(out.iter().all(|byte| *byte == found), "seed {seed}: torn");
        assert!((synced..=written).contains(&found), "seed {seed}: {found} of {synced}");
        drop(object);
        let report = scrub(&pool);
        assert_eq!(report.lost_count, 0, "seed {seed}: {report:?}");
        check(&pool);
        assert_eq!(states(&pool), [LeafState::Online; 2], "seed {seed}");
        pool.export().expect("exported");
    }
}
