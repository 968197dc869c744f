//! `forebay dataset`: creates, changes and lists datasets.

use forebay_fs::{FileSystem, Owner};
use forebay_pool::{DatasetSettings, Pool};

use super::create::settings;
use crate::args::DatasetArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::messages::PoolStatus;
use crate::control::run_dir;
use crate::daemon::stats;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{output, units};

pub(crate) fn create(spec: &str, name: &str, args: &DatasetArgs) -> Result<()> {
    let settings = settings(args, DatasetSettings::default())?;
    let pool = open_exported(spec, "create the dataset")?;
    let owner = Owner { uid: run_dir::uid(), gid: run_dir::gid(), mode: 0o755 };
    FileSystem::create_in(&pool, name, &settings, owner)?;
    let pool_name = pool.name().to_owned();
    pool.export()?;
    output::line(&format!(
        "created dataset {name} in pool {pool_name}; mount it with --dataset {name}"
    ));
    Ok(())
}

pub(crate) fn set(spec: &str, name: &str, args: &DatasetArgs) -> Result<()> {
    if *args == DatasetArgs::default() {
        return Err(Failure::usage("no setting is given; see `forebay help dataset set`"));
    }
    let pool = open_exported(spec, "change the dataset")?;
    let dataset = pool.dataset(name)?;
    dataset.set_settings(&settings(args, dataset.settings()?)?)?;
    drop(dataset);
    let pool_name = pool.name().to_owned();
    pool.export()?;
    output::line(&format!("changed dataset {name} of pool {pool_name}"));
    Ok(())
}

/// Imports a pool that no daemon has; `operation` names the reason in the error.
fn open_exported(spec: &str, operation: &str) -> Result<Pool> {
    match client::find(spec)? {
        Target::InUse { process, pool } => Err(Failure::new(format!(
            "pool {0} is in use by process {1}; run `forebay export {0}`, {operation}, and mount it again",
            pool.name, process.info.pid
        ))),
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            pools::import(&ImportRequest::plain(paths, false), &cache)
        }
    }
}

pub(crate) fn list(spec: &str) -> Result<()> {
    let status: PoolStatus = match client::find(spec)? {
        Target::InUse { process, pool } => process.ask(&Request::Status { pool: pool.guid })?,
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, true), &cache)?;
            let status = stats::pool_status(&pool, None, "");
            pool.export()?;
            status
        }
    };
    let rows: Vec<Vec<String>> = status
        .datasets
        .iter()
        .map(|dataset| {
            vec![
                dataset.name.clone(),
                dataset.objects.to_string(),
                units::bytes(dataset.allocated_bytes),
                units::bytes(u64::from(dataset.record_bytes)),
                dataset.compression.clone(),
                dataset.copies.to_string(),
                dataset.sync.clone(),
                dataset.failmode.clone(),
                dataset.l2.clone(),
                dataset.error.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let headings = [
        "DATASET",
        ">OBJECTS",
        ">SIZE",
        ">RECORDS",
        "COMPRESSION",
        ">COPIES",
        "FSYNC",
        "FAILMODE",
        "L2",
        "",
    ];
    output::print(&units::table(&headings, &rows));
    Ok(())
}
