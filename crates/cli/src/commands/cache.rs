//! `forebay cache`: the memory of processes, and the cache devices of pools.

use std::path::Path;

use forebay_pool::L2Device;

use super::expand::make_file;
use crate::control::Request;
use crate::control::client::{self, Process, Target};
use crate::control::views::{CacheDeviceView, Flushed, PoolStatus, StatsView};
use crate::error::{Failure, Result};
use crate::host::{self, figures};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportWanted};
use crate::{foreign, output, units};

pub(crate) fn flush(pool: Option<&str>) -> Result<()> {
    for process in of(pool)? {
        let flushed: Flushed = process.ask(&Request::FlushCache)?;
        let (blocks, bytes) = (flushed.blocks, units::bytes(flushed.bytes));
        output::line(&format!("process {}: {blocks} blocks, {bytes} thrown out", process.view.pid));
    }
    Ok(())
}

pub(crate) fn add(spec: &str, device: &Path, size: Option<u64>, force: bool) -> Result<()> {
    let target = client::find(spec)?;
    let has = match &target {
        Target::Held { pool, .. } => &pool.devices,
        Target::Paths(paths) => paths,
    };
    foreign::refuse_repeated(&[device.to_owned()], has)?;
    if let Target::Held { process, pool } = &target {
        // This pool's process has it locked: that would be all that is said of it.
        let status: PoolStatus = process.ask(&Request::Status { pool: pool.guid })?;
        let used = status.l2_devices.iter().filter(|used| used.state != "away");
        if let Some(used) =
            used.map(|used| &used.path).find(|path| foreign::is_same(device, Path::new(path)))
        {
            return Err(Failure::new(format!(
                "{}: is a cache device of this pool already; `forebay cache remove {spec} {used}` first to make it anew",
                device.display()
            )));
        }
    }
    let made = make_file(device, size)?;
    let added = add_to(&target, device, force).inspect_err(|_| {
        if made {
            // The error is told.
            let _ = std::fs::remove_file(device);
        }
    })?;
    output::line(&format!(
        "{spec}: {} is a cache device of pool {} now, {}; `forebay cache list {spec}` shows what it does",
        added.path,
        added.pool,
        units::bytes(added.size_bytes)
    ));
    Ok(())
}

fn add_to(target: &Target, device: &Path, force: bool) -> Result<CacheDeviceView> {
    // Where others find it too.
    let device = pools::canonical(device)?;
    pools::refuse_served(&device)?;
    match target {
        Target::Held { process, pool } => {
            process.ask(&Request::AddCache { pool: pool.guid, device, force })
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportWanted::plain(paths.clone(), false), &cache)?;
            let added = host::add_cache(&pool, &device, force)?;
            pool.export()?;
            Ok(added)
        }
    }
}

pub(crate) fn remove(spec: &str, device: &str) -> Result<()> {
    // By the path that the pool knows, however it is written here.
    let known = pools::canonical(Path::new(device)).ok();
    let known = known.and_then(|path| path.to_str().map(str::to_owned));
    let device = known.unwrap_or_else(|| device.to_owned());
    match client::find(spec)? {
        Target::Held { process, pool } => {
            process.ask::<()>(&Request::RemoveCache { pool: pool.guid, device: device.clone() })?;
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            // With its cache devices, so that the one that goes is told.
            let wanted = ImportWanted { l2_devices: true, ..ImportWanted::plain(paths, false) };
            let pool = pools::import(&wanted, &cache)?;
            host::remove_cache(&pool, &device)?;
            pool.export()?;
        }
    }
    output::line(&format!("{spec}: {device} is no cache device any more"));
    Ok(())
}

pub(crate) fn list(pool: Option<&str>, json: bool) -> Result<()> {
    let mut devices = Vec::new();
    match pool.map(client::find).transpose()? {
        None => {
            for process in of(None)? {
                let stats: StatsView = process.ask(&Request::Stats)?;
                devices.extend(stats.pools.into_iter().flat_map(|pool| pool.l2_devices));
            }
        }
        Some(Target::Held { process, pool }) => {
            let status: PoolStatus = process.ask(&Request::Status { pool: pool.guid })?;
            if let Some(damage) = status.l2_devices_damage {
                return Err(Failure::new(damage));
            }
            devices = status.l2_devices;
        }
        Some(Target::Paths(paths)) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportWanted::plain(paths, true), &cache)?;
            if let Some(damage) = pool.l2_devices_damage() {
                return Err(Failure::new(damage));
            }
            for device in pool.l2_devices() {
                let state = pool.probe_l2_device(&device);
                devices.push(figures::l2_device(pool.name(), L2Device { state, ..device }));
            }
            pool.export()?;
        }
    }
    match json {
        true => output::json(&devices)?,
        false => output::print(&table(&devices)),
    }
    Ok(())
}

/// Cache devices, one a line.
pub(super) fn table(devices: &[CacheDeviceView]) -> String {
    let row = |device: &CacheDeviceView| {
        vec![
            device.pool.clone(),
            device.path.clone(),
            device.number.clone(),
            state(device),
            units::bytes(device.size_bytes),
            units::bytes(device.used_bytes),
            units::count(device.records as f64),
            units::count(device.hits as f64),
            units::percent(device.hits, device.lookups),
            units::bytes(device.written_bytes),
            units::bytes(device.memory_bytes),
        ]
    };
    let headings = [
        "POOL",
        "CACHE DEVICE",
        "NUMBER",
        "STATE",
        ">SIZE",
        ">USED",
        ">BLOCKS",
        ">HITS",
        ">OF ASKED",
        ">WRITTEN",
        ">MEMORY",
    ];
    let rows: Vec<_> = devices.iter().map(row).collect();
    let mut out = units::table(&headings, &rows);
    for device in devices {
        if let Some(why) = &device.why {
            out.push_str(&format!("{}: {}: {why}\n", device.path, device.state));
        }
    }
    out
}

/// Says of a pool that was just taken into use which of its cache devices it does without, and what helps.
pub(super) fn warn(status: &PoolStatus) {
    warnings(status).iter().for_each(|line| eprintln!("forebay: {line}"));
}

/// The same, a line a device.
pub(super) fn warnings(status: &PoolStatus) -> Vec<String> {
    let pool = &status.name;
    let damage = status.l2_devices_damage.iter();
    let damage = damage.map(|why| format!("pool {pool} does without its cache devices: {why}"));
    let missing = status.l2_devices.iter().filter_map(|device| {
        let CacheDeviceView { path, number, .. } = device;
        let why = device.why.as_ref()?;
        Some(format!(
            "pool {pool} does without its cache device {path}: {why}; mend that and import the pool again, or \
             `forebay cache remove {pool} {number}`"
        ))
    });
    damage.chain(missing).collect()
}

/// How a cache device is, in a few words.
pub(super) fn state(device: &CacheDeviceView) -> String {
    match device.state.as_str() {
        "rebuilding" => {
            format!("rebuilding, {}", units::percent(device.rebuilt_segments, device.segments))
        }
        other => other.to_owned(),
    }
}

/// The process that has a pool, or all.
///
/// # Errors
/// If there is none.
pub(super) fn of(pool: Option<&str>) -> Result<Vec<Process>> {
    let Some(spec) = pool else {
        let all = client::processes();
        return match all.is_empty() {
            true => Err(Failure::new("no pools are in use; `forebay mount` mounts one")),
            false => Ok(all),
        };
    };
    match client::find(spec)? {
        Target::Held { process, .. } => Ok(vec![process]),
        Target::Paths(_) => Err(Failure::new(format!(
            "{spec}: the pool is not in use; `forebay mount` or `forebay import` it"
        ))),
    }
}
