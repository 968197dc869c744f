//! `forebay trim`: gives the free space of a pool back to its devices.

use crate::args::TrimArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::messages::TrimReport;
use crate::daemon::jobs;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::output::{self, Progress};
use crate::pools::{self, ImportRequest};
use crate::units;

pub(crate) fn run(args: &TrimArgs) -> Result<()> {
    let args = &args.work;
    let target = client::find(&args.pool)?;
    let progress = Progress::begin("trim")?;
    let report: TrimReport = match target {
        Target::InUse { process, pool } => {
            let stop = progress.stop_flag();
            let show = &mut |state: &_| progress.show(state);
            process.ask_until(&Request::Trim { pool: pool.guid }, show, &stop)?
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, false), &cache)?;
            let report = jobs::trim(&pool, &mut |state| progress.step(state));
            let closed = pools::close_after(&pool, &progress);
            let report = report?;
            closed?;
            report
        }
    };
    drop(progress);
    match args.json {
        true => output::json(&report)?,
        false => output::line(&format!("{} discarded", units::bytes(report.bytes))),
    }
    outcome(&args.pool, &report)
}

/// # Errors
/// If not all free space was discarded.
fn outcome(pool: &str, report: &TrimReport) -> Result<()> {
    let unsupported = report.unsupported.join(", ");
    match report {
        TrimReport { first_error: Some(error), error_count, .. } => Err(Failure::new(format!(
            "{pool}: {error_count} discards failed; the space stays usable; the first failure: {error}"
        ))),
        _ if !unsupported.is_empty() => Err(Failure::new(format!(
            "{pool}: {unsupported}: does not support discards; its free space stays allocated there"
        ))),
        TrimReport { complete: false, .. } => {
            Err(Failure::new(format!("{pool}: the trim was interrupted; run it again")))
        }
        _ => Ok(()),
    }
}
