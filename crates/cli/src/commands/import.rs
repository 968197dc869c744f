//! `forebay import`: imports a pool into the daemon without a mount, lists pools that could be
//! imported, or shows labels.

use std::path::PathBuf;

use forebay_pool::{HostId, LabelInfo};

use super::expand::remove_unused;
use crate::args::{ImportArgs, ImportOptionArgs};
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::messages::{DeviceInfo, PoolInfo, PoolStatus};
use crate::daemon::spawn::{self, DaemonOptions};
use crate::discover::{self, Found, FoundPool};
use crate::error::{Failure, Result};
use crate::logging::LogArgs;
use crate::pools::{self, ImportRequest};
use crate::{output, units};

pub(crate) fn run(args: &ImportArgs, log: &LogArgs) -> Result<()> {
    if args.devices.is_empty() {
        return list(args);
    }
    if args.show {
        return show(args);
    }
    let paths = paths(args)?;
    if let Some((pid, pool)) = paths.iter().find_map(|path| client::holder_of(path)) {
        return Err(Failure::new(format!(
            "pool {} is in use already, by process {pid}; `forebay status {}` shows it",
            pool.name, pool.name
        )));
    }
    let mut options = args.options.clone();
    let l2 = super::follower_l2::make(&mut options.readers)?;
    let import = import_request(&options, paths);
    let options = DaemonOptions { memory: args.memory, threads: None, log };
    let request = Request::Import { import };
    let imported = spawn::ask_shared(&options, |process| {
        let metrics = super::metrics::serve(&args.metrics, process)?;
        let pool: PoolInfo = process.ask(&request)?;
        Ok((pool, metrics))
    });
    let (process, (pool, metrics)) =
        imported.inspect_err(|_| l2.iter().for_each(|path| remove_unused(path)))?;
    let status = process.ask(&Request::Status { pool: pool.guid })?;
    warn(&status, import_has_l2(&args.options));
    output::line(&format!(
        "imported pool {} into process {3}, {} of {} available; export it with `forebay export {0}`",
        pool.name,
        units::bytes(pool.available_bytes),
        units::bytes(pool.total_bytes),
        process.info.pid
    ));
    super::metrics::print(metrics.as_ref());
    Ok(())
}

/// Folders to look for pools in.
fn folders(args: &ImportArgs) -> Vec<PathBuf> {
    args.dir.iter().cloned().chain([PathBuf::from(".")]).collect()
}

/// The paths of the devices to import, which a single argument that is no path names.
fn paths(args: &ImportArgs) -> Result<Vec<PathBuf>> {
    let name = match &args.devices[..] {
        [one] => one.to_str().filter(|spec| pools::paths_of(spec).is_none()),
        _ => None,
    };
    let Some(name) = name else { return pools::absolute(&args.devices) };
    match client::find_in(name, &folders(args))? {
        Target::Paths(paths) => Ok(paths),
        Target::InUse { pool, .. } => Ok(pool.devices),
    }
}

/// Lists the pools that could be imported.
fn list(args: &ImportArgs) -> Result<()> {
    args.dir.iter().try_for_each(|folder| pools::canonical(folder).map(drop))?;
    let Found { pools, unreadable } = discover::all(&folders(args));
    unreadable.iter().for_each(|why| eprintln!("forebay: {why}"));
    if pools.is_empty() {
        let text = "no pools found on block devices, in these folders, and where pools were last; `forebay list` shows \
                    imported pools, --dir searches another folder";
        return Err(Failure::new(text));
    }
    pools.iter().for_each(|pool| output::print(&describe_found(pool)));
    Ok(())
}

fn describe_found(pool: &FoundPool) -> String {
    let label = &pool.label;
    let mut text = format!(
        "pool {} ({:016x}): {}, {}\n",
        label.pool_name,
        label.pool_guid,
        pool.state(),
        pool.ownership()
    );
    for device in &pool.devices {
        let place = match &device.paths[..] {
            [] => format!("missing: device {:016x}", device.guid),
            [path] => path.display().to_string(),
            several => format!("{}: the label of one device", discover::list(several)),
        };
        text.push_str(&format!("  vdev {}  {place}\n", device.vdev));
    }
    for path in &pool.strangers {
        let path = path.display();
        text.push_str(&format!(
            "  not used  {path}: the pool does not list this device any more\n"
        ));
    }
    text
}

/// Whether the L2 devices of the pool are used.
fn import_has_l2(args: &ImportOptionArgs) -> bool {
    !args.no_l2 && !args.read_only
}

/// Prints what an import gave up or does without.
pub(super) fn warn(status: &PoolStatus, has_l2: bool) {
    warnings(status, has_l2).iter().for_each(|line| eprintln!("forebay: {line}"));
}

/// What an import gave up or does without, a line each.
pub(super) fn warnings(status: &PoolStatus, has_l2: bool) -> Vec<String> {
    let notes = status.import_notes.iter();
    let mut lines: Vec<String> =
        notes.map(|note| format!("pool {}: {note}", status.name)).collect();
    let is_short = |device: &&DeviceInfo| device.mirror && device.state != "online";
    lines.extend(status.devices.iter().filter(is_short).map(|device| {
        format!(
            "pool {0}: {1} of a mirror is {2}; the mirror goes on, and `forebay status {0}` says what to do",
            status.name,
            device.name(),
            device.state
        )
    }));
    if has_l2 {
        lines.extend(super::l2::warnings(status));
    }
    lines
}

/// Builds the request for these devices from the command line.
pub(crate) fn import_request(args: &ImportOptionArgs, paths: Vec<PathBuf>) -> ImportRequest {
    ImportRequest {
        paths,
        read_only: args.read_only,
        force: args.force,
        rewind: args.rewind,
        txg: args.txg,
        discard_log: args.discard_log,
        tunables: args.tunables.clone(),
        l2_devices: !args.no_l2,
        follow_ms: args.readers.follow_ms(),
        follow_l2: args.readers.l2.clone(),
        retention_ms: args.readers.retention_ms(),
    }
}

fn show(args: &ImportArgs) -> Result<()> {
    let mut missing = 0;
    for path in &args.devices {
        let label = match client::holder_of(&pools::canonical(path)?) {
            Some((pid, pool)) => {
                output::line(&format!(
                    "{}: pool {}, in use by process {pid}",
                    path.display(),
                    pool.name
                ));
                continue;
            }
            None => pools::labels(std::slice::from_ref(path))?.pop().flatten(),
        };
        match label {
            None => {
                missing += 1;
                output::line(&format!("{}: holds no pool", path.display()));
            }
            Some(label) => output::line(&describe(&path.display().to_string(), &label)),
        }
    }
    match missing {
        0 => Ok(()),
        _ => Err(Failure::new(
            "not every device holds a pool that can be read; give the devices of a pool, or look at the labels with \
             `forebay inspect DEVICE label`",
        )),
    }
}

fn describe(path: &str, label: &LabelInfo) -> String {
    let this = HostId::of_this_host();
    let state = match (label.active, label.host.id == this.id) {
        (false, _) => "exported".to_owned(),
        (true, true) => {
            "not exported: this host uses it or crashed with it; an import replays its intent log"
                .to_owned()
        }
        (true, false) => {
            format!(
                "not exported: host {} uses it or crashed with it; an import needs --force",
                label.host
            )
        }
    };
    format!(
        "{path}: device {} of {} of pool {} ({:016x}), {} used, transaction group {} or newer; {state}",
        label.device + 1,
        label.device_count,
        label.pool_name,
        label.pool_guid,
        units::bytes(label.size_bytes),
        label.txg
    )
}
