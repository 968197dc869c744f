//! The checks of a crash image.

use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_pool::{ErrorKind, ImportOptions, L2DeviceStats, LeafState, Pool, read_label};

use super::image::ImageDevices;
use super::{CrashImage, CrashTest, RecordedRun, SharedCache, TreeChange};
use crate::compare;
use crate::fixture;
use crate::history::History;
use crate::model::Model;
use crate::workload::Workload;

/// Steps of work after the crash.
const STEPS_AFTER: usize = 12;

/// Verifies one image. Returns the number of blocks that its L2 device supplied.
pub(super) fn verify(
    test: &CrashTest,
    done: &RecordedRun,
    crash_image: &CrashImage,
    cache: &SharedCache,
    rng: &mut SmallRng,
) -> u64 {
    let mut image = crash_image.devices(done, test);
    let mut devices = image.all();
    let l2_devices = devices.split_off(test.members());
    let absent = test.absent_side(rng);
    absent.into_iter().for_each(|at| drop(devices.remove(at)));
    let devices = labelled(&devices, cache);
    let options = fixture::import_options(cache);
    let to_look_at = image.to_look_at(&devices);
    let txg = without_replay(test, done, crash_image, &to_look_at, &options);
    if test.tree != TreeChange::None {
        // An absent side may have the newest uberblock.
        let all = labelled(&crash_image.devices(done, test).all()[..test.members()], cache);
        let newest = match absent {
            Some(_) => without_replay(test, done, crash_image, &image.to_look_at(&all), &options),
            None => txg,
        };
        with_one_less(test, done, crash_image, (newest, &options), rng);
    }
    let pool = fixture::import_with(&devices, &l2_devices, &options)
        .unwrap_or_else(|error| panic!("{crash_image:?}: the import: {error:?}"));
    image.start_cleaner(&pool);
    // Continue at once, after the L2 rebuild, or after the warm-up.
    match rng.below(3) {
        0 => pool.wait_for_l2_rebuild(),
        1 => pool.wait_for_l2_warm_up(),
        _ => {}
    }
    check(test, &pool).unwrap_or_else(|problems| panic!("{crash_image:?}: {problems}"));
    let found = read(&pool, &done.history);
    if let Err(problems) = done.history.check_allowed(txg, &crash_image.cut.snapshot, &found) {
        panic!("{crash_image:?}, txg {txg}: {problems}");
    }
    count_objects(&pool, &found);
    let hits = l2_reads(&pool);
    continue_work(test, pool, found, (&mut image, &options), rng);
    hits
}

/// Blocks that L2 devices supplied, by hits and by warm-up.
fn l2_reads(pool: &Pool) -> u64 {
    let stats = pool.l2_devices().into_iter().filter_map(|device| device.stats);
    let warmed = |stats: &L2DeviceStats| -> u64 {
        stats.counters.iter().filter(|c| c.0 == "warmed").map(|c| c.2).sum()
    };
    stats.map(|stats| stats.hits + warmed(&stats)).sum()
}

/// A side of a mirror may be out of date.
fn check(test: &CrashTest, pool: &Pool) -> Result<(), String> {
    if test.may_be_degraded() { fixture::check_degraded(pool) } else { fixture::check(pool) }
}

/// The devices that hold a label: others have left the pool, or are about to join it.
fn labelled(devices: &[Arc<dyn Device>], cache: &SharedCache) -> Vec<Arc<dyn Device>> {
    let has_label = |one: &&Arc<dyn Device>| {
        let label = read_label(&Arc::clone(one).into(), cache);
        label.expect("a label can be read").is_some()
    };
    devices.iter().filter(has_label).cloned().collect()
}

/// The devices of the pool that were not found.
fn missing(pool: &Pool) -> Vec<String> {
    let devices = pool.devices().into_iter();
    let missing = devices.filter(|device| device.state == LeafState::Missing);
    missing.map(|device| format!("{:x}", device.guid)).collect()
}

/// Imports without one of the devices: everything is there, or a device is named as missing, or the
/// log can be given up.
fn with_one_less(
    test: &CrashTest,
    done: &RecordedRun,
    crash_image: &CrashImage,
    (txg, options): (u64, &ImportOptions),
    rng: &mut SmallRng,
) {
    let image = crash_image.devices(done, test).all();
    let mut devices = labelled(&image[..test.members()], &options.cache);
    let absent = devices.remove(rng.below(devices.len() as u64) as usize);
    let what = format!("{crash_image:?}, without {}", absent.info().name);
    let snapshot = &crash_image.cut.snapshot;
    // Its uberblock may have been the only one of the newest txg.
    let mut txgs = snapshot.synced_txg..=txg;
    let pool = match fixture::import(&devices, options) {
        Ok(pool) => {
            let found = read(&pool, &done.history);
            let is_allowed = |txg| done.history.check_allowed(txg, snapshot, &found).is_ok();
            assert!(txgs.any(is_allowed), "{what}: something durable is not there");
            pool
        }
        Err(error) if devices.is_empty() => {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{what}: {error}");
            return;
        }
        Err(error) if error.to_string().contains("missing; found") => return,
        Err(error) => {
            assert!(error.to_string().contains("discard_log"), "{what}: no way out: {error}");
            let options = ImportOptions { discard_log: true, ..options.clone() };
            let pool = fixture::import(&devices, &options)
                .unwrap_or_else(|error| panic!("{what}, without the log: {error}"));
            let found = read(&pool, &done.history);
            let is_that = |txg| compare::difference(&found, &done.history.state(txg, 0)).is_none();
            assert!(txgs.any(is_that), "{what}: not the state of a group");
            pool
        }
    };
    check(test, &pool).unwrap_or_else(|problems| panic!("{what}: {problems}"));
    pool.abandon();
}

/// Imports without replay: the state must be that of one txg. Returns the txg.
fn without_replay(
    test: &CrashTest,
    done: &RecordedRun,
    crash_image: &CrashImage,
    devices: &[Arc<dyn Device>],
    options: &ImportOptions,
) -> u64 {
    let options = ImportOptions { read_only: true, ..options.clone() };
    let pool = fixture::import(devices, &options)
        .unwrap_or_else(|error| panic!("{crash_image:?}: the import without replay: {error:?}"));
    let txg = pool.stats().synced_txg;
    let least = crash_image.cut.snapshot.synced_txg;
    assert!(txg >= least, "{crash_image:?}: found txg {txg}, but {least} was durable");
    let end = done.history.end_of(txg);
    let begun = crash_image.cut.snapshot.changes_begun;
    assert!(
        end <= begun,
        "{crash_image:?}: {end} changes in txg {txg}, but only {begun} had begun"
    );
    check(test, &pool)
        .unwrap_or_else(|problems| panic!("{crash_image:?}, not replayed: {problems}"));
    let found = read(&pool, &done.history);
    if let Some(difference) = compare::difference(&found, &done.history.state(txg, 0)) {
        panic!("{crash_image:?}, not replayed, txg {txg}:\n{difference}");
    }
    pool.export().expect("an export");
    txg
}

fn read(pool: &Pool, history: &History) -> Model {
    let datasets = fixture::datasets(pool).expect("datasets");
    compare::read_all(&datasets, history.keys()).expect("all can be read")
}

fn count_objects(pool: &Pool, found: &Model) {
    for (at, dataset) in fixture::datasets(pool).expect("datasets").iter().enumerate() {
        let wanted = found.entries.keys().filter(|key| key.0 == at).count() as u64;
        assert_eq!(dataset.object_count(), wanted, "objects in {}", dataset.name());
    }
}

/// Works on, exports and imports; everything must be there.
fn continue_work(
    test: &CrashTest,
    pool: Pool,
    found: Model,
    (image, options): (&mut ImageDevices, &ImportOptions),
    rng: &mut SmallRng,
) {
    // All devices that hold a label are there.
    let never_labelled = match test.tree {
        TreeChange::LogMirror => missing(&pool),
        _ => Vec::new(),
    };
    let mut work = Workload::new(pool, found, test.load, rng.next_u64()).expect("datasets");
    work.run(STEPS_AFTER).unwrap_or_else(|error| panic!("work after the crash: {error:?}"));
    let (pool, model, history) = work.end().expect("the last commit");
    check(test, &pool).unwrap_or_else(|problems| panic!("after more work: {problems}"));
    pool.export().expect("an export");
    image.reopen();
    let all = image.all();
    let devices = all.split_at(test.members());
    let labelled = labelled(devices.0, &options.cache);
    let pool = fixture::import_with(&labelled, devices.1, options).expect("another import");
    image.start_cleaner(&pool);
    check(test, &pool).unwrap_or_else(|problems| panic!("after another import: {problems}"));
    if let Some(difference) = compare::difference(&read(&pool, &history), &model) {
        panic!("after another import:\n{difference}");
    }
    if test.may_be_degraded() || test.tree != TreeChange::None {
        for device in pool.devices().iter().filter(|one| one.state == LeafState::Offline) {
            pool.online_device(&format!("{:x}", device.guid)).expect("it is there");
        }
        // A log mirror was being added, and one side had a label already. The other one never gets
        // one: it can only leave.
        for side in never_labelled.iter().filter(|side| missing(&pool).contains(*side)) {
            pool.detach_device(side).expect("the other side is whole");
        }
        pool.start_resilver().expect("it can be written");
        let status = pool.wait_resilver();
        let states: Vec<_> = pool.devices().iter().map(|device| device.state).collect();
        let whole = states.iter().all(|state| *state == LeafState::Online);
        let replacing = pool.devices().iter().any(|device| device.replaces.is_some());
        assert!(!replacing, "a replacement goes on until its end");
        assert!(whole && status.lost == 0, "after a resilver: {states:?}, {status:?}");
        fixture::check(&pool).unwrap_or_else(|problems| panic!("after a resilver: {problems}"));
    }
    pool.export().expect("the last export");
    image.reopen();
}
