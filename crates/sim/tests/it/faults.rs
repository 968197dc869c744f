//! Devices that rot, fail, or vanish.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Crash, Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::format::Compression;
use forebay_pool::format::label::LABEL_BYTES;
use forebay_pool::{BlockCache, DatasetSettings, ErrorKind, Pool};
use forebay_sim::compare;
use forebay_sim::fixture::{self, MIB};
use forebay_sim::model::Model;
use forebay_sim::raw_device::RawDevice;
use forebay_sim::workload::{Workload, WorkloadOptions};

const DEVICE_BYTES: u64 = 32 * MIB;
const EIO: i32 = 5;
const RECORD: usize = 8192;

/// A memory device, and a fault injector on top of it.
fn faulty(name: &str) -> (Arc<dyn Device>, Arc<FaultDevice>) {
    let memory = fixture::memory(name, DEVICE_BYTES, 512);
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), 1));
    (memory, faulty)
}

fn settings() -> DatasetSettings {
    DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        ..DatasetSettings::default()
    }
}

fn import(devices: &[Arc<dyn Device>], cache: &Arc<BlockCache>) -> Pool {
    fixture::import(devices, &fixture::import_options(cache)).expect("an import")
}

fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().filter(|(found, _, _)| *found == name).map(|(_, _, value)| value).sum()
}

/// Asserts that the pool has the expected content.
fn assert_holds(pool: &Pool, wanted: &Model) {
    let datasets = fixture::datasets(pool).expect("datasets");
    let found = compare::read_all(&datasets, wanted.entries.keys().copied()).expect("all is read");
    if let Some(difference) = compare::difference(&found, wanted) {
        panic!("{difference}");
    }
}

fn assert_clean(pool: &Pool) {
    fixture::check(pool).unwrap_or_else(|problems| panic!("{problems}"));
}

/// Makes a pool, works on it and exports it. Returns its content.
fn worked(devices: &[Arc<dyn Device>], settings: &DatasetSettings, seed: u64) -> Model {
    let cache = fixture::cache(24 * MIB);
    let pool = fixture::create(devices, &cache, settings).expect("a pool");
    let mut work =
        Workload::new(pool, Model::default(), WorkloadOptions::default(), seed).expect("datasets");
    work.run(150).expect("work");
    let (pool, model, _) = work.end().expect("a commit");
    pool.export().expect("an export");
    model
}

#[test]
fn what_has_two_copies_survives_the_rot_of_one_device() {
    let settings = DatasetSettings { data_copies: 2, ..settings() };
    let devices =
        [fixture::memory("a", DEVICE_BYTES, 512), fixture::memory("b", DEVICE_BYTES, 512)];
    let model = worked(&devices, &settings, 5);
    let blocks = LABEL_BYTES..DEVICE_BYTES - LABEL_BYTES;
    for rotten in [0, 1, 0] {
        let mut rng = SmallRng::from_seed(9);
        RawDevice::new(&devices[rotten]).scramble(blocks.clone(), &mut rng);
        let cache = fixture::cache(24 * MIB);
        let pool = import(&devices, &cache);
        assert_holds(&pool, &model);
        assert!(counter(&pool, "healed") > 0, "reading heals");
        let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("a scrub");
        assert_eq!(report.lost_count, 0, "{report:?}");
        assert!(report.healed > 0, "{report:?}");
        assert_clean(&pool);
        let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("a scrub");
        assert_eq!((report.healed, report.lost_count), (0, 0), "{report:?}");
        pool.export().expect("an export");
    }
}

#[test]
fn rot_of_the_only_copy_is_an_error_that_names_object_and_block() {
    let device = fixture::memory("a", DEVICE_BYTES, 512);
    let cache = fixture::cache(24 * MIB);
    let pool = fixture::create(&[Arc::clone(&device)], &cache, &settings()).expect("a pool");
    let data = pool.dataset("one").expect("a dataset");
    let mut content = vec![0; 5 * RECORD];
    SmallRng::from_seed(3).fill(&mut content);
    let tx = pool.begin().expect("a transaction");
    let number = data.create_object(&tx, &[]).expect("an object");
    data.object(number).expect("it").write(&tx, 0, &content).expect("a write");
    drop((tx, data));
    pool.export().expect("an export");

    let raw_device = RawDevice::new(&device);
    let block = &content[2 * RECORD..3 * RECORD];
    let places = raw_device.find(block);
    assert_eq!(places.len(), 1, "one copy, as it is");
    raw_device.flip(places[0] + 1000, 3);
    let pool = import(std::slice::from_ref(&device), &fixture::cache(24 * MIB));
    let data = pool.dataset("one").expect("a dataset");
    let object = data.object(number).expect("it");
    let mut read = vec![0; RECORD];
    for at in 0..5 {
        match object.read((at * RECORD) as u64, &mut read) {
            Ok(_) if at != 2 => assert_eq!(read, content[at * RECORD..(at + 1) * RECORD]),
            Err(error) if at == 2 => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                let text = error.to_string();
                assert!(text.contains(&format!("object {number}")), "{text}");
                assert!(text.contains("block 2"), "{text}");
            }
            other => panic!("block {at}: {other:?}"),
        }
    }
    let report = pool.check(&mut |_| ControlFlow::Continue(())).expect("a check");
    assert_eq!(report.damaged_count, 1, "{report}");
    assert!(
        report.damaged[0].to_string().contains(&format!("object {number}, block 2")),
        "{report}"
    );
    assert!(report.leaked.is_empty() && report.double.is_empty(), "{report}");
    let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("a scrub");
    assert_eq!((report.healed, report.lost_count), (0, 1), "{report:?}");
    // A partial write needs the rest of the block, a full write does not.
    let tx = pool.begin().expect("a transaction");
    let partly = object.write(&tx, 2 * RECORD as u64, b"x").expect_err("its rest is gone");
    assert_eq!(partly.kind(), ErrorKind::Corrupt);
    object.write(&tx, 2 * RECORD as u64, block).expect("a write");
    drop(tx);
    assert_clean(&pool);
    let mut read = vec![0; content.len()];
    object.read(0, &mut read).expect("a read");
    assert_eq!(read, content);
}

#[test]
fn rot_while_reading_is_an_error_or_does_not_matter() {
    let (memory, device) = faulty("a");
    let model = worked(&[Arc::clone(&memory)], &settings(), 6);
    let pool = import(&[Arc::clone(&device) as Arc<dyn Device>], &fixture::cache(24 * MIB));
    let rule = Rule::new(Fault::Rot { bits: 2 }).on(Op::Read).with_probability(0.05);
    let datasets = fixture::datasets(&pool).expect("datasets");
    device.add(rule);
    let (mut good, mut bad) = (0, 0);
    for (key, wanted) in &model.entries {
        match compare::read(&datasets[key.0], key.1) {
            Ok(found) => {
                assert!(found == *wanted, "{key:?} reads as something else");
                good += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                bad += 1;
            }
        }
    }
    println!("{good} good, {bad} bad");
    assert!(good > 0);
    device.clear();
    assert_holds(&pool, &model);
    assert_clean(&pool);
}

#[test]
fn read_errors_are_passed_on_and_harm_nothing() {
    let (memory, device) = faulty("a");
    let model = worked(&[Arc::clone(&memory)], &settings(), 7);
    let pool = import(&[Arc::clone(&device) as Arc<dyn Device>], &fixture::cache(24 * MIB));
    let datasets = fixture::datasets(&pool).expect("datasets");
    device.add(Rule::new(Fault::Error(EIO)).on(Op::Read).with_probability(0.3));
    let mut failed = 0;
    for (key, wanted) in &model.entries {
        match compare::read(&datasets[key.0], key.1) {
            Ok(found) => assert!(found == *wanted, "{key:?} reads as something else"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Device, "{error:?}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "some reads fail");
    device.clear();
    assert_holds(&pool, &model);
    drop(pool.begin().expect("reads suspend nothing"));
    assert_clean(&pool);
}

#[test]
fn a_failed_write_suspends_the_pool_and_reads_go_on() {
    for op in [Op::Write, Op::Flush] {
        let (memory, device) = faulty("a");
        let model = worked(&[Arc::clone(&memory)], &settings(), 8);
        let pool = import(&[Arc::clone(&device) as Arc<dyn Device>], &fixture::cache(24 * MIB));
        let data = pool.dataset("one").expect("a dataset");
        device.add(Rule::new(Fault::Error(EIO)).on(op));
        let tx = pool.begin().expect("a transaction");
        let number = data.create_object(&tx, b"new").expect("an object");
        let object = data.object(number).expect("it");
        object.write(&tx, 5, b"dirty").expect("a write");
        drop(tx);
        pool.sync().expect_err("the device takes nothing");
        let refused = pool.begin().expect_err("it is suspended");
        assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused:?}");
        assert_eq!(pool.begin_freeing().expect_err("too").kind(), ErrorKind::Suspended);
        assert_eq!(data.fsync(number).expect_err("too").kind(), ErrorKind::Suspended);
        assert!(pool.stats().suspended.is_some());
        // Old content and unwritten changes can both be read.
        assert_holds(&pool, &model);
        let mut read = [0; 10];
        assert_eq!(object.read(0, &mut read).expect("a read"), 10);
        assert_eq!(&read, b"\0\0\0\0\0dirty");
        drop((object, data));
        pool.export().expect_err("the last group was not written");

        let pool = import(&[memory], &fixture::cache(24 * MIB));
        assert_holds(&pool, &model);
        assert_clean(&pool);
        pool.export().expect("an export");
    }
}

/// Works until the `n`-th write or flush fails. What was durable must be there afterwards.
fn fail_nth(n: u64, times: u64, op: Op) {
    let (memory, device) = faulty("a");
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    let pool = fixture::create(&[shared], &fixture::cache(24 * MIB), &settings()).expect("a pool");
    let mut work =
        Workload::new(pool, Model::default(), WorkloadOptions::default(), n).expect("datasets");
    device.add(Rule::new(Fault::Error(EIO)).on(op).after(n).times(times));
    let outcome = work.run(80).and_then(|()| work.sync());
    if let Err(error) = &outcome {
        assert!(
            matches!(error.kind(), ErrorKind::Suspended | ErrorKind::Device),
            "{op} {n}: {error:?}"
        );
    }
    let progress = Arc::clone(work.progress());
    let (pool, _, history) = work.end().expect("no background commit failed");
    let exported = pool.export();
    assert!(outcome.is_ok() || exported.is_err(), "{op} {n}: exported after {outcome:?}");
    device.clear();

    let cache = fixture::cache(24 * MIB);
    let devices = [memory];
    let mut options = fixture::import_options(&cache);
    options.read_only = true;
    let pool = fixture::import(&devices, &options).expect("an import");
    let txg = pool.stats().synced_txg;
    pool.export().expect("an export");
    let pool = import(&devices, &cache);
    assert_clean(&pool);
    let datasets = fixture::datasets(&pool).expect("datasets");
    let found = compare::read_all(&datasets, history.keys()).expect("all is read");
    let allowed = history.check_allowed(txg, &progress.snapshot(), &found);
    allowed.unwrap_or_else(|problems| panic!("{op} {n}, txg {txg}: {problems}"));
}

#[test]
fn whichever_write_fails_nothing_durable_is_lost() {
    let step = if fixture::full() { 1 } else { 9 };
    for n in (0..180).step_by(step) {
        fail_nth(n, u64::MAX, Op::Write);
        fail_nth(n, 1, Op::Write);
    }
    for n in (0..40).step_by(step.min(4)) {
        fail_nth(n, 1, Op::Flush);
    }
}

#[test]
fn a_device_that_vanishes_takes_nothing_with_it_that_was_durable() {
    let (memories, devices): (Vec<_>, Vec<_>) = ["a", "b"].map(faulty).into_iter().unzip();
    let shared: Vec<Arc<dyn Device>> =
        devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let pool = fixture::create(&shared, &fixture::cache(24 * MIB), &settings()).expect("a pool");
    let mut work =
        Workload::new(pool, Model::default(), WorkloadOptions::default(), 11).expect("datasets");
    work.run(60).expect("work");
    work.sync().expect("a commit");
    let model = work.model().clone();
    devices[1].crash(Crash::LoseAll).expect("the crash");
    let (mut suspended, datasets) = (false, fixture::datasets(work.pool()).expect("datasets"));
    for _ in 0..60 {
        if let Err(error) = work.step() {
            let expected = [ErrorKind::Suspended, ErrorKind::Device, ErrorKind::Closed];
            assert!(expected.contains(&error.kind()), "{error:?}");
            suspended |= error.kind() == ErrorKind::Suspended;
        }
    }
    assert!(suspended, "a write to it failed");
    for (key, wanted) in &model.entries {
        // Cached content, content of the other device, or an error, but nothing else.
        if let (Ok(found), Some(now)) =
            (compare::read(&datasets[key.0], key.1), work.model().entries.get(key))
        {
            assert!(found == *wanted || found == *now, "{key:?} reads as something else");
        }
    }
    drop(datasets);
    let (pool, ..) = work.end().expect("no background commit failed");
    pool.export().expect_err("it cannot be committed");
    let pool = import(&memories, &fixture::cache(24 * MIB));
    assert_holds(&pool, &model);
    assert_clean(&pool);
}
