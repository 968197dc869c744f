//! `forebay dataset`: the datasets of a pool.

use forebay_fs::{FileSystem, Owner};
use forebay_pool::DatasetSettings;

use super::create::settings;
use crate::args::DatasetArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::run_dir;
use crate::control::views::PoolStatus;
use crate::error::{Failure, Result};
use crate::host::figures;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportWanted};
use crate::{output, units};

pub(crate) fn create(spec: &str, name: &str, args: &DatasetArgs) -> Result<()> {
    let settings = settings(args, DatasetSettings::default())?;
    match client::find(spec)? {
        Target::Held { process, pool } => Err(Failure::new(format!(
            "pool {0} is in use by process {1}; `forebay export {0}`, make the dataset, and mount it again",
            pool.name, process.view.pid
        ))),
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportWanted::plain(paths, false), &cache)?;
            let owner = Owner { uid: run_dir::uid(), gid: run_dir::gid(), mode: 0o755 };
            FileSystem::create_in(&pool, name, &settings, owner)?;
            let pool_name = pool.name().to_owned();
            pool.export()?;
            output::line(&format!(
                "made dataset {name} in pool {pool_name}; mount it with --dataset {name}"
            ));
            Ok(())
        }
    }
}

pub(crate) fn list(spec: &str) -> Result<()> {
    let status: PoolStatus = match client::find(spec)? {
        Target::Held { process, pool } => process.ask(&Request::Status { pool: pool.guid })?,
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportWanted::plain(paths, true), &cache)?;
            let status = figures::status(&pool, None, "");
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
                dataset.error.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let headings =
        ["DATASET", ">OBJECTS", ">SIZE", ">RECORDS", "COMPRESSION", ">COPIES", "FSYNC", ""];
    output::print(&units::table(&headings, &rows));
    Ok(())
}
