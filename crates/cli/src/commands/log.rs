//! `forebay log`: the log device of a pool.

use std::path::PathBuf;

use super::expand::{make_file, remove_unused};
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::error::Result;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{daemon, device_content, output};

pub(crate) fn add(spec: &str, devices: &[PathBuf], size: Option<u64>, force: bool) -> Result<()> {
    let target = client::find(spec)?;
    let has = match &target {
        Target::InUse { pool, .. } => &pool.devices,
        Target::Paths(paths) => paths,
    };
    device_content::refuse_repeated(devices, has)?;
    let mut made = Vec::new();
    let added = make_files(devices, size, &mut made).and_then(|()| add_to(&target, devices, force));
    if added.is_err() {
        made.iter().for_each(|path| remove_unused(path));
    }
    added?;
    let what = if devices.len() == 1 { "a device" } else { "a mirror" };
    output::line(&format!("{spec}: the intent log is on {what} of its own now"));
    Ok(())
}

fn make_files(devices: &[PathBuf], size: Option<u64>, made: &mut Vec<PathBuf>) -> Result<()> {
    for path in devices {
        if make_file(path, size)? {
            made.push(path.clone());
        }
    }
    Ok(())
}

fn add_to(target: &Target, devices: &[PathBuf], force: bool) -> Result<()> {
    // Absolute, for the daemon.
    let devices = pools::absolute(devices)?;
    match target {
        Target::InUse { process, pool } => {
            process.ask(&Request::AddLog { pool: pool.guid, devices, force })
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths.clone(), false), &cache)?;
            daemon::add_log(&pool, &devices, force)?;
            Ok(pool.export()?)
        }
    }
}

pub(crate) fn remove(spec: &str) -> Result<()> {
    match client::find(spec)? {
        Target::InUse { process, pool } => {
            process.ask::<()>(&Request::RemoveLog { pool: pool.guid })?;
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, false), &cache)?;
            daemon::remove_log(&pool)?;
            pool.export()?;
        }
    }
    output::line(&format!("{spec}: the intent log is on the other devices of the pool now"));
    Ok(())
}
