//! Crash images. `FOREBAY_FULL=1` looks at ten times as many; `FOREBAY_SEED` and `FOREBAY_IMAGE` repeat one.

use forebay_sim::crash::Run;
use forebay_sim::rig;
use forebay_sim::workload::Load;

const SEEDS: u64 = 4;
const IMAGES: u64 = 25;

/// Runs from `first` on, or the one that was asked for.
fn runs(first: u64, make: impl Fn(u64) -> Run) {
    if let Some(seed) = forebay_base::testing::requested_seed() {
        return make(seed).execute();
    }
    let times = if rig::full() { 10 } else { 1 };
    for seed in first..first + SEEDS * times {
        Run { images: IMAGES, ..make(seed) }.execute();
    }
}

#[test]
fn crashes_on_one_device() {
    runs(100, |seed| Run::new(seed, 1));
}

#[test]
fn crashes_while_directories_grow_and_shrink() {
    let load = Load { burst_max: 4000, ..Load::default() };
    runs(300, |seed| Run { load, steps: 300, ..Run::new(seed, 1) });
}

#[test]
fn crashes_with_a_cache_device_that_is_kept() {
    runs(400, |seed| Run { second: true, ..Run::new(seed, 1) });
}

#[test]
fn crashes_on_two_devices_while_groups_are_committed_beside_the_work() {
    let load = Load { beside: true, ..Load::default() };
    runs(200, |seed| Run { load, sector_bytes: 512 << (seed % 4), ..Run::new(seed, 2) });
}
