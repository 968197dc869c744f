//! `forebay l2`: the L2 devices of pools.

use std::path::Path;

use forebay_pool::{L2Device, Pool};

use super::expand::{make_file, remove_unused};
use crate::control::Request;
use crate::control::client::{self, Target, processes_of};
use crate::control::messages::{L2DeviceInfo, PoolStatus, ProcessStats};
use crate::daemon::{self, stats};
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{device_content, output, units};

pub(crate) fn add(spec: &str, device: &Path, size: Option<u64>, force: bool) -> Result<()> {
    let target = client::find(spec)?;
    let has = match &target {
        Target::InUse { pool, .. } => &pool.devices,
        Target::Paths(paths) => paths,
    };
    device_content::refuse_repeated(&[device.to_owned()], has)?;
    if let Target::InUse { process, pool } = &target {
        // Checked first, because the device is locked by that process, and the error would only say
        // so.
        let status: PoolStatus = process.ask(&Request::Status { pool: pool.guid })?;
        let used = status.l2_devices.iter().filter(|used| used.state != "unavailable");
        if let Some(used) = used
            .map(|used| &used.path)
            .find(|path| device_content::is_same(device, Path::new(path)))
        {
            return Err(Failure::new(format!(
                "{}: is an L2 device of this pool already; to add it empty, run `forebay l2 remove {spec} {used}` first",
                device.display()
            )));
        }
    }
    let made = make_file(device, size)?;
    let added = add_to(&target, device, force).inspect_err(|_| {
        if made {
            remove_unused(device);
        }
    })?;
    output::line(&format!(
        "{spec}: added L2 device {} to pool {}, {}; `forebay l2 list {spec}` shows its statistics",
        added.path,
        added.pool,
        units::bytes(added.size_bytes)
    ));
    Ok(())
}

fn add_to(target: &Target, device: &Path, force: bool) -> Result<L2DeviceInfo> {
    // Absolute, for the daemon and for later imports.
    let device = pools::canonical(device)?;
    pools::refuse_served(&device)?;
    match target {
        Target::InUse { process, pool } => {
            process.ask(&Request::AddL2 { pool: pool.guid, device, force })
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths.clone(), false), &cache)?;
            let added = daemon::add_l2(&pool, &device, force)?;
            pool.export()?;
            Ok(added)
        }
    }
}

pub(crate) fn remove(spec: &str, device: &str) -> Result<()> {
    // The pool knows canonical paths.
    let known = pools::canonical(Path::new(device)).ok();
    let known = known.and_then(|path| path.to_str().map(str::to_owned));
    let device = known.unwrap_or_else(|| device.to_owned());
    match client::find(spec)? {
        Target::InUse { process, pool } => {
            process.ask::<()>(&Request::RemoveL2 { pool: pool.guid, device: device.clone() })?;
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            // With L2 devices, so that the removed device is cleared.
            let wanted = ImportRequest { l2_devices: true, ..ImportRequest::plain(paths, false) };
            let pool = pools::import(&wanted, &cache)?;
            daemon::remove_l2(&pool, &device)?;
            pool.export()?;
        }
    }
    output::line(&format!("{spec}: removed L2 device {device}"));
    Ok(())
}

pub(crate) fn list(pool: Option<&str>, json: bool) -> Result<()> {
    let mut devices = Vec::new();
    match pool.map(client::find).transpose()? {
        None => {
            for process in processes_of(None)? {
                let stats: ProcessStats = process.ask(&Request::Stats)?;
                devices.extend(stats.pools.into_iter().flat_map(|pool| pool.l2_devices));
            }
        }
        Some(Target::InUse { process, pool }) => {
            let status: PoolStatus = process.ask(&Request::Status { pool: pool.guid })?;
            if let Some(damage) = status.l2_devices_damage {
                return Err(Failure::new(damage));
            }
            devices = status.l2_devices;
        }
        Some(Target::Paths(paths)) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, true), &cache)?;
            if let Some(damage) = pool.l2_devices_damage() {
                return Err(Failure::new(damage));
            }
            devices = probe(&pool);
            pool.export()?;
        }
    }
    match json {
        true => output::json(&devices)?,
        false => output::print(&table(&devices)),
    }
    Ok(())
}

/// The L2 devices of a pool that is not in use: the state says whether they are there.
pub(super) fn probe(pool: &Pool) -> Vec<L2DeviceInfo> {
    let probe = |device: L2Device| {
        let state = pool.probe_l2_device(&device);
        stats::l2_device(pool.name(), L2Device { state, ..device })
    };
    pool.l2_devices().into_iter().map(probe).collect()
}

/// Formats L2 devices as a table.
pub(super) fn table(devices: &[L2DeviceInfo]) -> String {
    let row = |device: &L2DeviceInfo| {
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
        "L2 DEVICE",
        "NUMBER",
        "STATE",
        ">SIZE",
        ">USED",
        ">BLOCKS",
        ">HITS",
        ">HIT RATIO",
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

/// Warnings about missing L2 devices, one line each.
pub(super) fn warnings(status: &PoolStatus) -> Vec<String> {
    let pool = &status.name;
    let damage = status.l2_devices_damage.iter();
    let damage = damage.map(|why| format!("pool {pool} runs without its L2 devices: {why}"));
    let missing = status.l2_devices.iter().filter_map(|device| {
        let L2DeviceInfo { path, number, .. } = device;
        let why = device.why.as_ref()?;
        Some(format!(
            "pool {pool} runs without its L2 device {path}: {why}; repair the device and import the pool again, or run \
             `forebay l2 remove {pool} {number}`"
        ))
    });
    damage.chain(missing).collect()
}

/// The state of an L2 device, with the progress of a rebuild.
pub(super) fn state(device: &L2DeviceInfo) -> String {
    match device.state.as_str() {
        "rebuilding" => {
            format!("rebuilding, {}", units::percent(device.rebuilt_segments, device.segments))
        }
        other => other.to_owned(),
    }
}
