//! The checks of a crash image.

use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_pool::{ImportOptions, L2DeviceStats, LeafState, Pool};

use super::image::ImageDevices;
use super::{CrashImage, CrashTest, RecordedRun, SharedCache};
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
    let options = fixture::import_options(cache);
    let txg = without_replay(test, done, crash_image, &image.to_look_at(&devices), &options);
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
    if test.sides > 1 { fixture::check_degraded(pool) } else { fixture::check(pool) }
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
    let mut work = Workload::new(pool, found, test.load, rng.next_u64()).expect("datasets");
    work.run(STEPS_AFTER).unwrap_or_else(|error| panic!("work after the crash: {error:?}"));
    let (pool, model, history) = work.end().expect("the last commit");
    check(test, &pool).unwrap_or_else(|problems| panic!("after more work: {problems}"));
    pool.export().expect("an export");
    image.reopen();
    let all = image.all();
    let devices = all.split_at(test.members());
    let pool = fixture::import_with(devices.0, devices.1, options).expect("another import");
    image.start_cleaner(&pool);
    check(test, &pool).unwrap_or_else(|problems| panic!("after another import: {problems}"));
    if let Some(difference) = compare::difference(&read(&pool, &history), &model) {
        panic!("after another import:\n{difference}");
    }
    if test.sides > 1 {
        for device in pool.devices().iter().filter(|one| one.state == LeafState::Offline) {
            pool.online_device(&format!("{:x}", device.guid)).expect("it is there");
        }
        pool.start_resilver().expect("it can be written");
        let status = pool.wait_resilver();
        let states: Vec<_> = pool.devices().iter().map(|device| device.state).collect();
        let whole = states.iter().all(|state| *state == LeafState::Online);
        assert!(whole && status.lost == 0, "after a resilver: {states:?}, {status:?}");
        fixture::check(&pool).unwrap_or_else(|problems| panic!("after a resilver: {problems}"));
    }
    pool.export().expect("the last export");
    image.reopen();
}
