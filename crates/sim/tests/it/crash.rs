//! Crash images. `FOREBAY_FULL=1` verifies ten times as many; `FOREBAY_SEED` and `FOREBAY_IMAGE`
//! repeat one.

use forebay_sim::crash::{CrashTest, TreeChange};
use forebay_sim::fixture;
use forebay_sim::workload::WorkloadOptions;

const SEEDS: u64 = 4;
const IMAGES: u64 = 25;

/// Runs the tests from seed `first` on, or the one that `FOREBAY_SEED` names.
fn runs(first: u64, make: impl Fn(u64) -> CrashTest) {
    if let Some(seed) = forebay_base::testing::requested_seed() {
        return make(seed).execute();
    }
    let times = if fixture::full() { 10 } else { 1 };
    for seed in first..first + SEEDS * times {
        CrashTest { images: IMAGES, ..make(seed) }.execute();
    }
}

#[test]
fn crashes_on_one_device() {
    runs(100, |seed| CrashTest::new(seed, 1));
}

#[test]
fn crashes_while_directories_grow_and_shrink() {
    let load = WorkloadOptions { burst_max: 4000, ..WorkloadOptions::default() };
    runs(300, |seed| CrashTest { load, steps: 300, ..CrashTest::new(seed, 1) });
}

#[test]
fn crashes_while_names_are_buffered() {
    let aided = WorkloadOptions { aided_directories: true, ..WorkloadOptions::default() };
    let load = WorkloadOptions { burst_max: 12_000, objects_max: 6, ..aided };
    runs(500, |seed| CrashTest { load, steps: 300, ..CrashTest::new(seed, 1) });
}

#[test]
fn crashes_with_an_l2_device_that_is_kept() {
    runs(400, |seed| CrashTest { l2: true, ..CrashTest::new(seed, 1) });
}

#[test]
fn crashes_with_a_log_device() {
    let load = |seed| WorkloadOptions { background_sync: seed % 2 == 1, ..Default::default() };
    let logs = |seed| if seed % 4 == 2 { 2 } else { 1 };
    runs(800, |seed| CrashTest {
        load: load(seed),
        logs: logs(seed),
        ..CrashTest::new(seed, 1 + (seed % 2) as usize)
    });
}

#[test]
fn crashes_on_an_object_store_with_a_log_device() {
    runs(900, |seed| CrashTest { logs: 1, ..CrashTest::on_object_store(seed) });
}

#[test]
fn crashes_on_two_devices_while_txgs_are_synced_in_the_background() {
    let load = WorkloadOptions { background_sync: true, ..WorkloadOptions::default() };
    runs(200, |seed| CrashTest {
        load,
        sector_bytes: 512 << (seed % 4),
        ..CrashTest::new(seed, 2)
    });
}

#[test]
fn crashes_on_mirrors_with_a_side_that_is_stale_torn_or_absent() {
    let load = WorkloadOptions { background_sync: true, ..WorkloadOptions::default() };
    runs(1000, |seed| CrashTest {
        load,
        sides: 2,
        device_bytes: 32 << 20,
        ..CrashTest::new(seed, 2 + 2 * (seed % 2) as usize)
    });
}

#[test]
fn crashes_while_a_device_is_replaced() {
    runs(1100, |seed| CrashTest {
        tree: TreeChange::Replace,
        device_bytes: 32 << 20,
        ..CrashTest::new(seed, 1)
    });
}

#[test]
fn crashes_while_a_side_of_a_mirror_is_replaced() {
    runs(1200, |seed| CrashTest {
        tree: TreeChange::Replace,
        sides: 2,
        device_bytes: 32 << 20,
        ..CrashTest::new(seed, 2)
    });
}

#[test]
fn crashes_while_a_log_device_is_added_and_removed() {
    runs(1300, |seed| CrashTest { tree: TreeChange::Log, ..CrashTest::new(seed, 1) });
}

#[test]
fn crashes_while_the_sides_of_a_mirror_of_logs_change() {
    runs(1400, |seed| CrashTest {
        tree: TreeChange::LogMirror,
        steps: 200,
        ..CrashTest::new(seed, 1)
    });
}

#[test]
fn crashes_on_an_object_store() {
    let discards = |seed| seed % 2 == 1;
    runs(600, |seed| CrashTest { discards: discards(seed), ..CrashTest::on_object_store(seed) });
}

#[test]
fn crashes_on_an_object_store_with_an_l2_device() {
    let load = WorkloadOptions { background_sync: true, ..WorkloadOptions::default() };
    runs(700, |seed| CrashTest { load, l2: true, ..CrashTest::on_object_store(seed) });
}

/// Fewer than on devices: each image is opened by several hosts.
fn runs_on_simulated_stores(first: u64, make: impl Fn(u64) -> CrashTest) {
    if let Some(seed) = forebay_base::testing::requested_seed() {
        return make(seed).execute();
    }
    let times = if fixture::full() { 20 } else { 1 };
    for seed in first..first + 2 * times {
        CrashTest { images: IMAGES, ..make(seed) }.execute();
    }
}

#[test]
fn crashes_at_requests_to_a_simulated_object_store() {
    let discards = |seed| seed % 2 == 1;
    runs_on_simulated_stores(1100, |seed| CrashTest {
        discards: discards(seed),
        ..CrashTest::on_simulated_store(seed, false)
    });
}

#[test]
fn crashes_at_requests_that_fail_or_come_late() {
    let load = WorkloadOptions { background_sync: true, ..WorkloadOptions::default() };
    runs_on_simulated_stores(1200, |seed| CrashTest {
        load,
        steps: 80,
        discards: true,
        ..CrashTest::on_simulated_store(seed, true)
    });
}

#[test]
fn crashes_of_a_simulated_object_store_with_a_log_device() {
    runs_on_simulated_stores(1300, |seed| CrashTest {
        logs: 1,
        discards: seed % 2 == 0,
        ..CrashTest::on_simulated_store(seed, false)
    });
}

#[test]
fn crashes_while_freed_space_is_discarded() {
    runs(500, |seed| CrashTest {
        discards: true,
        device_bytes: if seed % 2 == 0 { 48 << 20 } else { 24 << 20 },
        ..CrashTest::new(seed, 1 + (seed % 2) as usize)
    });
}
