//! `forebay status`: shows the devices, space, datasets, mounts and errors of a pool.

use forebay_pool::HostId;

use crate::args::StatusArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::follow::FollowInfo;
use crate::control::messages::{DeviceInfo, L2DeviceInfo, PoolStatus, StoredInfo};
use crate::daemon::{health, stats};
use crate::error::Result;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{output, units};

/// Damaged files that are printed; the JSON output has all.
const DAMAGE_LINES_MAX: usize = 20;

/// Prints the status, and returns the exit code of the pool's health.
pub(crate) fn run(args: &StatusArgs) -> Result<u8> {
    let status = match client::find(&args.pool)? {
        Target::InUse { process, pool } => process.ask(&Request::Status { pool: pool.guid })?,
        Target::Paths(paths) => exported_status(paths)?,
    };
    match args.json {
        true => output::json(&status)?,
        false => output::print(&text(&status)),
    }
    Ok(health::exit_code(status.health))
}

/// Status of a pool that is not imported, read from its devices.
fn exported_status(paths: Vec<std::path::PathBuf>) -> Result<PoolStatus> {
    let labels = pools::labels(&paths)?;
    let this = HostId::of_this_host();
    let active = labels.iter().flatten().find(|label| label.active);
    let state = match active {
        None => "exported".to_owned(),
        Some(label) if label.host.id == this.id => {
            "not exported: the process that had it imported was killed; changes that only the intent log holds are not shown".to_owned()
        }
        Some(label) => format!("not exported by host {}: an import needs --force", label.host),
    };
    let cache = pools::cache(MemoryPlan::small())?;
    let pool = pools::import(&ImportRequest::plain(paths, true), &cache)?;
    let mut status = stats::pool_status(&pool, None, &state);
    status.l2_devices = super::l2::probe(&pool);
    pool.export()?;
    Ok(status)
}

fn text(status: &PoolStatus) -> String {
    let lines = general(status).into_iter().chain(damage(status)).chain(parts(status));
    lines.map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}

/// Lines about the whole pool.
fn general(status: &PoolStatus) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut put = |name: &str, value: String| lines.push((name.to_owned(), value));
    let read_only = if status.read_only && status.state != "exported" { ", read-only" } else { "" };
    put("pool", format!("{} ({:016x})", status.name, status.guid));
    put("state", format!("{}{read_only}", status.state));
    put("health", health_line(status));
    if let Some(follow) = &status.follow {
        follow_lines(follow).into_iter().for_each(|line| put("follow", line));
    }
    if let Some(why) = &status.suspended {
        put("SUSPENDED", format!("the pool accepts no writes: {why}"));
    }
    if !status.read_only {
        status.import_notes.iter().for_each(|note| put("import", note.clone()));
    }
    if status.devices.iter().any(|device| device.missing && !device.mirror && !device.log) {
        put("hint", "give all of its devices, joined by `:`".to_owned());
    }
    let is_store = status.devices.iter().any(|device| device.object_store);
    let in_datasets = status.datasets.iter().map(|dataset| dataset.allocated_bytes).sum();
    let space = match is_store {
        // Its space maps are those of the writer.
        _ if status.follow.is_some() => {
            format!("{} allocated by the datasets", units::bytes(in_datasets))
        }
        // Nobody can ask a store how much it takes.
        true => format!(
            "{} allocated, {} freed and given back three txgs later; {} can be written until all addresses are used",
            units::bytes(status.allocated_bytes),
            units::bytes(status.deferred_bytes),
            units::bytes(status.available_bytes)
        ),
        false => format!(
            "{} total, {} allocated, {} free, {} freed and reusable three txgs later; {} available for new data",
            units::bytes(status.total_bytes),
            units::bytes(status.allocated_bytes),
            units::bytes(status.free_bytes),
            units::bytes(status.deferred_bytes),
            units::bytes(status.available_bytes)
        ),
    };
    put("space", space);
    put(
        "txg",
        format!("{} durable, {} dirty in memory", status.txg, units::bytes(status.dirty_bytes)),
    );
    let log = &status.log;
    put(
        "log",
        format!(
            "{} commits, {} written, {} waited for the txg, {} records replayed",
            log.commits,
            units::bytes(log.bytes),
            log.to_txg,
            log.replayed
        ),
    );
    put("scrub", super::scrub::line(&status.scrub));
    if let Some(resilver) = &status.resilver {
        put("resilver", super::sides::line(resilver));
    }
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

/// How a pool is followed.
fn follow_lines(follow: &FollowInfo) -> Vec<String> {
    let FollowInfo { owner, epoch, staleness_ms, groups, .. } = follow;
    let age = match follow.is_behind {
        true => "an older transaction group is shown".to_owned(),
        false => format!("at most {:.1} s old", *staleness_ms as f64 / 1000.0),
    };
    let pin = match (follow.pinned, &follow.pin_error) {
        (true, _) => "pinned".to_owned(),
        (false, None) => "not pinned".to_owned(),
        (false, Some(error)) => {
            format!("not pinned, so what was freed stays for a time only: {error}")
        }
    };
    let mut lines =
        vec![format!("{owner} writes it (epoch {epoch}); {age}, {groups} groups in use, {pin}")];
    lines.extend(follow.error.iter().map(|error| format!("the newest look failed: {error}")));
    lines
}

fn health_line(status: &PoolStatus) -> String {
    match status.health_reasons.is_empty() {
        true => status.health.to_string(),
        false => format!("{}: {}", status.health, status.health_reasons.join("; ")),
    }
}

/// Lines about damaged files and structures.
fn damage(status: &PoolStatus) -> Vec<(String, String)> {
    let shown = status.damage.iter().take(DAMAGE_LINES_MAX).map(|one| one.text.clone());
    let mut lines: Vec<String> = shown.collect();
    let more = status.damage.len().saturating_sub(DAMAGE_LINES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more; --json lists all"));
    }
    if status.damage_unlisted > 0 {
        lines.push(format!("{} further errors are only counted", status.damage_unlisted));
    }
    if !lines.is_empty() {
        lines.push(
            "restore damaged files from a backup; `forebay scrub` then forgets them".to_owned(),
        );
    }
    lines.into_iter().map(|line| ("damage".to_owned(), line)).collect()
}

/// Lines about devices, datasets and mounts.
fn parts(status: &PoolStatus) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    lines.extend(tree(status));
    for device in &status.devices {
        let access = match &device.buffered {
            _ if device.direct => "direct".to_owned(),
            Some(why) => format!("through the page cache: {why}"),
            None => "through the page cache".to_owned(),
        };
        let size = units::bytes(device.size_bytes);
        if device.object_store {
            lines.push(("store".to_owned(), device.path.clone()));
            lines.extend(device.stored.map(|stored| ("objects".to_owned(), store_objects(stored))));
            lines.extend(store_requests(device).map(|value| ("requests".to_owned(), value)));
        } else if !device.missing {
            let value = format!("{}, {size}, by {}, {access}", device.path, device.engine);
            let name = match device.log {
                true => "log device".to_owned(),
                false => format!("device {}", device.number),
            };
            lines.push((name, value));
        }
        if device.physical_bytes > status.sector_bytes {
            let (physical, own) = (device.physical_bytes, status.sector_bytes);
            let value = format!(
                "sectors of {own} bytes on physical ones of {physical}: a power cut can damage data beside a block that is written"
            );
            lines.push(("caution".to_owned(), value));
        }
    }
    for device in &status.l2_devices {
        lines.push(("l2".to_owned(), l2_device(device)));
    }
    if let Some(damage) = &status.l2_devices_damage {
        lines.push(("l2".to_owned(), format!("no L2 devices are used: {damage}")));
    }
    for dataset in &status.datasets {
        let value = match &dataset.error {
            Some(error) => format!("{}: {error}", dataset.name),
            None => format!(
                "{}: {} objects, {}, records of {}, compression {}, {} cop{}, fsync by {}, failmode {}, L2 holds {}",
                dataset.name,
                dataset.objects,
                units::bytes(dataset.allocated_bytes),
                units::bytes(u64::from(dataset.record_bytes)),
                dataset.compression,
                dataset.copies,
                if dataset.copies == 1 { "y" } else { "ies" },
                dataset.sync,
                dataset.failmode,
                dataset.l2
            ),
        };
        lines.push(("dataset".to_owned(), value));
    }
    for mount in &status.mounts {
        let cache = if mount.kernel_cache { " with kernel cache" } else { "" };
        let mode = if mount.read_only { "read-only" } else { "read-write" };
        let value =
            format!("{} at {} {mode}{cache}, process {}", mount.dataset, mount.place(), mount.pid);
        lines.push(("mounted".to_owned(), value));
    }
    lines
}

/// What an object store keeps, and bills.
fn store_objects(stored: StoredInfo) -> String {
    let live = units::bytes(stored.live_bytes.min(stored.bytes));
    let text =
        format!("{} with {}, {live} of them live", stored.objects, units::bytes(stored.bytes));
    format!("{text}; what was freed lately comes on top, until it is deleted")
}

/// The requests to an object store in one line, if it is open.
fn store_requests(device: &DeviceInfo) -> Option<String> {
    let each = device.requests.iter().filter(|one| one.count > 0).map(|one| {
        let retries = match one.retries {
            0 => String::new(),
            retries => format!(", {retries} repeated"),
        };
        format!("{} {} ({}{retries})", one.count, one.kind, units::bytes(one.bytes))
    });
    let text = each.collect::<Vec<_>>().join(", ");
    (!text.is_empty()).then(|| format!("{text} (since the import)"))
}

/// The tree of vdevs with states and errors, and what to do next. Only of pools with a mirror or an
/// error: otherwise it would say nothing.
fn tree(status: &PoolStatus) -> Vec<(String, String)> {
    let errors =
        |device: &DeviceInfo| device.read_errors + device.write_errors + device.checksum_errors;
    if !status.devices.iter().any(|device| device.mirror || device.log || errors(device) > 0) {
        return Vec::new();
    }
    let row = |name: &str, columns: [&str; 4], note: &str| {
        let [state, read, write, checksum] = columns;
        let text = format!("{name:<40} {state:<9} {read:>6} {write:>6} {checksum:>6}  {note}");
        ("tree".to_owned(), text.trim_end().to_owned())
    };
    let pool = status.health.to_string();
    let mut lines = vec![
        row("NAME", ["STATE", "READ", "WRITE", "CKSUM"], ""),
        row(&status.name, [&pool, "", "", ""], ""),
    ];
    let mut mirror = None;
    for device in &status.devices {
        if device.mirror && mirror != Some(device.number) {
            mirror = Some(device.number);
            let mut sides = status.devices.iter().filter(|other| other.number == device.number);
            let is_whole = sides.all(|side| side.state == "online");
            let state = if is_whole { "online" } else { "degraded" };
            let name = match device.log {
                true => "  log mirror".to_owned(),
                false => format!("  mirror {}", device.number),
            };
            lines.push(row(&name, [state, "", "", ""], ""));
        }
        let indent = if device.mirror { "    " } else { "  " };
        let [read, write, checksum] =
            [device.read_errors, device.write_errors, device.checksum_errors]
                .map(|count| count.to_string());
        let note = match (device.missed_from, device.missed_to) {
            (Some(from), Some(to)) => format!("misses blocks of txgs {from} to {to}"),
            (Some(from), None) => format!("misses blocks from txg {from} on"),
            (None, _) => String::new(),
        };
        let note = match &device.replaces {
            Some(old) => format!("replaces {old}; {note}"),
            None => note,
        };
        let is_log = device.log && !device.mirror;
        let name = format!("{indent}{}{}", if is_log { "log " } else { "" }, device.name());
        lines.push(row(&name, [&device.state, &read, &write, &checksum], &note));
    }
    lines.extend(next_steps(status).map(|text| ("action".to_owned(), text)));
    lines
}

/// What to do about devices of mirrors that are not whole.
fn next_steps(status: &PoolStatus) -> impl Iterator<Item = String> {
    let of_mirrors = || status.devices.iter().filter(|one| one.mirror && !one.log);
    let has = |state: &str| of_mirrors().any(|one| one.state == state);
    let name = status.name.clone();
    let resilvers = status.resilver.as_ref().is_some_and(|resilver| resilver.active);
    let steps = [
        (has("degraded") && !resilvers).then(|| {
            format!("`forebay online {name} DEVICE` brings back what a degraded device misses")
        }),
        (has("degraded") && resilvers)
            .then(|| "wait for the resilver: a degraded device gets what it misses".to_owned()),
        has("faulted").then(|| {
            format!("check the cable of a faulted device and its log, then run `forebay online {name} DEVICE`")
        }),
        has("offline").then(|| format!("`forebay online {name} DEVICE` takes an offline device into use")),
        of_mirrors().find(|one| one.state == "missing").map(|one| {
            let guid = one.guid;
            format!("connect the missing device, and run `forebay online {name} PATH`; or put a new one in its place with `forebay replace {name} {guid:016x} NEW`")
        }),
    ];
    let lost_log = status.devices.iter().any(|one| one.log && one.state != "online");
    let log_step = lost_log.then(|| {
        format!("`forebay clear {}` uses a log device again that has failed", status.name)
    });
    steps.into_iter().flatten().chain(log_step)
}

/// Describes an L2 device in one line.
fn l2_device(device: &L2DeviceInfo) -> String {
    let L2DeviceInfo { path, size_bytes, .. } = device;
    let size = units::bytes(*size_bytes);
    match &device.why {
        Some(why) => format!("{path}, {size}, {}: {why}", device.state),
        None => format!(
            "{path}, {size}, {}: {} blocks of {}, {} of {} lookups hit, {} written, {} of memory",
            super::l2::state(device),
            units::count(device.records as f64),
            units::bytes(device.used_bytes),
            units::count(device.hits as f64),
            units::count(device.lookups as f64),
            units::bytes(device.written_bytes),
            units::bytes(device.memory_bytes)
        ),
    }
}
