//! What must be true of the image of a crash.

use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_pool::{ImportOptions, L2DeviceStats, Pool};

use super::{Picked, Run, SharedCache, Worked};
use crate::compare;
use crate::history::History;
use crate::model::Model;
use crate::rig;
use crate::workload::Workload;

/// Steps of work after a crash.
const STEPS_AFTER: usize = 12;

/// Looks at one image. Returns how many blocks its cache device answered for.
pub(super) fn verify(
    run: &Run,
    done: &Worked,
    picked: &Picked,
    cache: &SharedCache,
    rng: &mut SmallRng,
) -> u64 {
    let devices = picked.devices(&done.recordings);
    let devices = devices.split_at(run.devices);
    let options = rig::import_options(cache);
    let txg = without_replay(done, picked, devices.0, &options);
    let pool = rig::import_with(devices.0, devices.1, &options)
        .unwrap_or_else(|error| panic!("{picked:?}: the import: {error:?}"));
    // At once, or when the cache device knows what it has, or has put back into memory what it has.
    match rng.below(3) {
        0 => pool.wait_for_l2_rebuild(),
        1 => pool.wait_for_l2_warm_up(),
        _ => {}
    }
    rig::check(&pool).unwrap_or_else(|problems| panic!("{picked:?}: {problems}"));
    let found = read(&pool, &done.history);
    if let Err(problems) = done.history.explains(txg, &picked.cut.now, &found) {
        panic!("{picked:?}, group {txg}: {problems}");
    }
    count_objects(&pool, &found);
    let hits = given(&pool);
    go_on(run, pool, found, (devices, &options), rng);
    hits
}

/// Blocks that cache devices gave, asked or unasked.
fn given(pool: &Pool) -> u64 {
    let stats = pool.l2_devices().into_iter().filter_map(|device| device.stats);
    let warmed = |stats: &L2DeviceStats| -> u64 {
        stats.counters.iter().filter(|c| c.0 == "warmed").map(|c| c.2).sum()
    };
    stats.map(|stats| stats.hits + warmed(&stats)).sum()
}

/// Imports, writing nothing: there must be exactly one group's state. Returns which.
fn without_replay(
    done: &Worked,
    picked: &Picked,
    devices: &[Arc<dyn Device>],
    options: &ImportOptions,
) -> u64 {
    let options = ImportOptions { read_only: true, ..options.clone() };
    let pool = rig::import(devices, &options)
        .unwrap_or_else(|error| panic!("{picked:?}: the import without replay: {error:?}"));
    let txg = pool.stats().synced_txg;
    let least = picked.cut.now.synced_txg;
    assert!(txg >= least, "{picked:?}: group {txg}, when {least} was durable");
    let end = done.history.end_of(txg);
    let begun = picked.cut.now.changes_begun;
    assert!(end <= begun, "{picked:?}: {end} changes in group {txg}, when {begun} had begun");
    rig::check(&pool).unwrap_or_else(|problems| panic!("{picked:?}, not replayed: {problems}"));
    let found = read(&pool, &done.history);
    if let Some(difference) = compare::difference(&found, &done.history.state(txg, 0)) {
        panic!("{picked:?}, not replayed, group {txg}:\n{difference}");
    }
    pool.export().expect("an export");
    txg
}

fn read(pool: &Pool, history: &History) -> Model {
    let datasets = rig::datasets(pool).expect("datasets");
    compare::read_all(&datasets, history.keys()).expect("all can be read")
}

fn count_objects(pool: &Pool, found: &Model) {
    for (at, dataset) in rig::datasets(pool).expect("datasets").iter().enumerate() {
        let wanted = found.entries.keys().filter(|key| key.0 == at).count() as u64;
        assert_eq!(dataset.object_count(), wanted, "objects in {}", dataset.name());
    }
}

/// More work, an export, an import: all must be there.
fn go_on(
    run: &Run,
    pool: Pool,
    found: Model,
    (devices, options): ((&[Arc<dyn Device>], &[Arc<dyn Device>]), &ImportOptions),
    rng: &mut SmallRng,
) {
    let mut work = Workload::new(pool, found, run.load, rng.next_u64()).expect("datasets");
    work.run(STEPS_AFTER).unwrap_or_else(|error| panic!("work after the crash: {error:?}"));
    let (pool, model, history) = work.end().expect("the last commit");
    rig::check(&pool).unwrap_or_else(|problems| panic!("after more work: {problems}"));
    pool.export().expect("an export");
    let pool = rig::import_with(devices.0, devices.1, options).expect("another import");
    rig::check(&pool).unwrap_or_else(|problems| panic!("after another import: {problems}"));
    if let Some(difference) = compare::difference(&read(&pool, &history), &model) {
        panic!("after another import:\n{difference}");
    }
    pool.export().expect("the last export");
}
