//! Metrics of a pool and its devices.

use forebay_metrics::Snapshot;
use forebay_object::counters::ObjectCounters;
use forebay_pool::{HealthState, L2Counters, L2Device, Pool};

use crate::control::follow::FollowInfo;

/// The states of a pool.
const STATES: [HealthState; 4] =
    [HealthState::Online, HealthState::Degraded, HealthState::Damaged, HealthState::Suspended];
/// The states of an L2 device.
const L2_STATES: [&str; 4] = ["active", "rebuilding", "failed", "unavailable"];

/// Adds a pool. `name` is its label.
pub(super) fn add(pool: &Pool, name: &str, paths: bool, out: &mut Snapshot) {
    let labels = [("pool", name)];
    for group in pool.counters() {
        out.counters(group.part, &group.counters, &labels);
    }
    space(pool, name, out);
    let health = pool.health().state;
    out.state(
        "forebay_pool_health",
        "Health of the pool: 1 for the current state.",
        &labels,
        &STATES.map(HealthState::name),
        health.name(),
    );
    let taken = pool.histograms();
    let help = "Delays of changes because too much data was dirty.";
    out.durations("forebay_txg_throttle_seconds", help, &labels, &taken.throttle_ns);
    let help = "Time to close a transaction group. New changes wait meanwhile.";
    out.durations("forebay_txg_quiesce_seconds", help, &labels, &taken.quiesce_ns);
    let help =
        "Time from the close of a transaction group until it was durable, suspensions included.";
    out.durations("forebay_txg_sync_seconds", help, &labels, &taken.sync_ns);
    devices(pool, name, paths, out);
    for device in pool.l2_devices() {
        l2_device(&device, name, paths, out);
    }
}

/// Adds how a pool is followed.
pub(super) fn follow(follow: &FollowInfo, name: &str, out: &mut Snapshot) {
    let gauges = [
        (
            "forebay_follow_staleness_seconds",
            "What is shown of a followed pool was the newest transaction group so long ago.",
            follow.staleness_ms as f64 / 1000.0,
        ),
        (
            "forebay_follow_behind",
            "1 if a newer transaction group is known and could not be imported.",
            f64::from(u8::from(follow.is_behind)),
        ),
        (
            "forebay_follow_groups",
            "Transaction groups of a followed pool that mounts use.",
            follow.groups as f64,
        ),
        (
            "forebay_follow_pinned",
            "1 if a pin keeps what these groups need.",
            f64::from(u8::from(follow.pinned)),
        ),
    ];
    for (gauge, help, value) in gauges {
        out.gauge(gauge, help, &[("pool", name)], value);
    }
}

fn space(pool: &Pool, name: &str, out: &mut Snapshot) {
    let stats = pool.stats();
    let gauges = [
        ("forebay_pool_size_bytes", "Bytes that blocks can occupy.", stats.total_bytes),
        ("forebay_pool_allocated_bytes", "Allocated bytes, all copies.", stats.allocated_bytes),
        (
            "forebay_pool_deferred_bytes",
            "Freed bytes that become reusable three transaction groups later.",
            stats.deferred_bytes,
        ),
        ("forebay_pool_free_bytes", "Free bytes.", stats.free_bytes),
        (
            "forebay_pool_available_bytes",
            "Bytes that new changes can take, without the reserve.",
            stats.available_bytes,
        ),
        ("forebay_pool_dirty_bytes", "Dirty bytes in memory.", stats.dirty_bytes),
        ("forebay_pool_synced_txg", "The newest durable transaction group.", stats.synced_txg),
    ];
    for (gauge, help, value) in gauges {
        out.gauge(gauge, help, &[("pool", name)], value as f64);
    }
}

fn devices(pool: &Pool, name: &str, paths: bool, out: &mut Snapshot) {
    for device in pool.devices() {
        // Sides of a mirror are devices of one number.
        let number = match (device.log, device.mirror) {
            (true, _) => format!("log.{}", device.side),
            (false, true) => format!("{}.{}", device.number, device.side),
            (false, false) => device.number.to_string(),
        };
        let labels = [("pool", name), ("device", &*number)];
        let help = "Size of a device.";
        out.gauge("forebay_device_size_bytes", help, &labels, device.size_bytes as f64);
        let help = "1 if the pool is used without the device.";
        let missing = f64::from(u8::from(device.missing));
        out.gauge("forebay_device_missing", help, &labels, missing);
        if paths {
            info(out, "forebay_device_info", &labels, ("path", &device.path));
        }
        if device.object_store {
            let rows = ObjectCounters::ROWS;
            super::counters(out, "object", rows, &device.store_counters, &labels);
            let stored = device.stored.unwrap_or_default();
            let gauges = [
                ("forebay_object_stored_objects", "Data objects in the store.", stored.objects),
                ("forebay_object_stored_bytes", "Bytes of their payloads.", stored.bytes),
                (
                    "forebay_object_live_bytes",
                    "Bytes of them that are believed to be live.",
                    stored.live_bytes,
                ),
            ];
            for (gauge, help, value) in gauges {
                out.gauge(gauge, help, &labels, value as f64);
            }
        }
    }
}

fn l2_device(device: &L2Device, name: &str, paths: bool, out: &mut Snapshot) {
    let number = format!("{:016x}", device.guid);
    let labels = [("pool", name), ("device", &*number)];
    let help = "Size of an L2 device.";
    out.gauge("forebay_l2_size_bytes", help, &labels, device.size_bytes as f64);
    let help = "State of an L2 device: 1 for the current state.";
    out.state("forebay_l2_state", help, &labels, &L2_STATES, device.state.name());
    if paths {
        info(out, "forebay_l2_info", &labels, ("path", &device.path));
    }
    let Some(stats) = &device.stats else { return };
    super::counters(out, "l2", L2Counters::ROWS, &stats.counters, &labels);
    let help = "Loads requested, hits and all misses.";
    out.counter("forebay_l2_lookups_total", help, &labels, stats.lookups);
    let gauges = [
        ("forebay_l2_used_bytes", "Bytes of used segments.", stats.used_bytes),
        ("forebay_l2_records", "Live records.", stats.records),
        ("forebay_l2_memory_bytes", "Memory that the index takes.", stats.memory_bytes),
    ];
    for (gauge, help, value) in gauges {
        out.gauge(gauge, help, &labels, value as f64);
    }
}

fn info(
    out: &mut Snapshot,
    metric: &str,
    labels: &[(&'static str, &str); 2],
    path: (&'static str, &str),
) {
    let labels = [labels[0], labels[1], path];
    out.gauge(metric, "Path of a device; the value is 1.", &labels, 1.0);
}
