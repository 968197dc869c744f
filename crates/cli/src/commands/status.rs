//! `forebay status`: all that is known of a pool.

use forebay_pool::HostId;

use crate::args::StatusArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::views::{CacheDeviceView, PoolStatus};
use crate::error::Result;
use crate::host::figures;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportWanted};
use crate::{output, units};

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let status = match client::find(&args.pool)? {
        Target::Held { process, pool } => process.ask(&Request::Status { pool: pool.guid })?,
        Target::Paths(paths) => unused(paths)?,
    };
    match args.json {
        true => output::json(&status)?,
        false => output::print(&text(&status)),
    }
    Ok(())
}

/// Of a pool that nobody has in use: nothing is written.
fn unused(paths: Vec<std::path::PathBuf>) -> Result<PoolStatus> {
    let labels = pools::labels(&paths)?;
    let this = HostId::of_this_host();
    let active = labels.iter().flatten().find(|label| label.active);
    let state = match active {
        None => "exported".to_owned(),
        Some(label) if label.host.id == this.id => {
            "not exported: whoever had it was killed; what was fsynced since is in the intent log, and is not shown".to_owned()
        }
        Some(label) => format!("not exported by host {}: importing it needs --force", label.host),
    };
    let cache = pools::cache(MemoryPlan::small())?;
    let pool = pools::import(&ImportWanted::plain(paths, true), &cache)?;
    let status = figures::status(&pool, None, &state);
    pool.export()?;
    Ok(status)
}

fn text(status: &PoolStatus) -> String {
    let lines = general(status).into_iter().chain(parts(status));
    lines.map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}

/// Of the pool as a whole.
fn general(status: &PoolStatus) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut put = |name: &str, value: String| lines.push((name.to_owned(), value));
    let read_only = if status.read_only && status.state != "exported" { ", read-only" } else { "" };
    put("pool", format!("{} ({:016x})", status.name, status.guid));
    put("state", format!("{}{read_only}", status.state));
    if let Some(why) = &status.suspended {
        let way_out =
            "nothing is written any more: `forebay export` it, mend the device, mount it again";
        put("SUSPENDED", format!("{why}; {way_out}"));
    }
    put(
        "space",
        format!(
            "{} in all, {} used, {} free, {} freed and free again two groups later; {} for new data",
            units::bytes(status.total_bytes),
            units::bytes(status.allocated_bytes),
            units::bytes(status.free_bytes),
            units::bytes(status.deferred_bytes),
            units::bytes(status.available_bytes)
        ),
    );
    put(
        "group",
        format!("{} durable, {} dirty in memory", status.txg, units::bytes(status.dirty_bytes)),
    );
    let log = &status.log;
    put(
        "log",
        format!(
            "{} commits, {} written, {} left to the group, {} records replayed",
            log.commits,
            units::bytes(log.bytes),
            log.to_txg,
            log.replayed
        ),
    );
    let errors = &status.errors;
    put(
        "errors",
        format!(
            "{} reads, {} checksums, {} writes; {} healed, {} blocks lost (since the import)",
            errors.reads, errors.checksums, errors.writes, errors.healed, errors.lost
        ),
    );
    lines
}

/// Of its devices, datasets and mounts.
fn parts(status: &PoolStatus) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for device in &status.devices {
        let way = if device.direct { "direct" } else { "through the page cache" };
        let size = units::bytes(device.size_bytes);
        let value = format!("{}, {size}, by {}, {way}", device.path, device.engine);
        lines.push((format!("device {}", device.number), value));
    }
    for device in &status.l2_devices {
        lines.push(("cache".to_owned(), l2_device(device)));
    }
    if let Some(damage) = &status.l2_devices_damage {
        lines.push(("cache".to_owned(), format!("no cache devices are used: {damage}")));
    }
    for dataset in &status.datasets {
        let value = match &dataset.error {
            Some(error) => format!("{}: {error}", dataset.name),
            None => format!(
                "{}: {} objects, {}, records of {}, compression {}, {} cop{}, fsync by {}, cache devices hold {}",
                dataset.name,
                dataset.objects,
                units::bytes(dataset.allocated_bytes),
                units::bytes(u64::from(dataset.record_bytes)),
                dataset.compression,
                dataset.copies,
                if dataset.copies == 1 { "y" } else { "ies" },
                dataset.sync,
                dataset.l2
            ),
        };
        lines.push(("dataset".to_owned(), value));
    }
    for mount in &status.mounts {
        let cache = if mount.kernel_cache { " with the kernel's cache" } else { "" };
        let mode = if mount.read_only { "read-only" } else { "read-write" };
        let value = format!(
            "{} at {} {mode}{cache}, process {}",
            mount.dataset,
            mount.at.display(),
            mount.pid
        );
        lines.push(("mounted".to_owned(), value));
    }
    lines
}

/// A cache device, in a line.
fn l2_device(device: &CacheDeviceView) -> String {
    let CacheDeviceView { path, size_bytes, .. } = device;
    let size = units::bytes(*size_bytes);
    match &device.why {
        Some(why) => format!("{path}, {size}, {}: {why}", device.state),
        None => format!(
            "{path}, {size}, {}: {} blocks of {}, {} of {} loads answered, {} written, {} of memory",
            super::cache::state(device),
            units::count(device.records as f64),
            units::bytes(device.used_bytes),
            units::count(device.hits as f64),
            units::count(device.lookups as f64),
            units::bytes(device.written_bytes),
            units::bytes(device.memory_bytes)
        ),
    }
}
