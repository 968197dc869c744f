//! `forebay cache flush`.

use crate::control::Request;
use crate::control::client::{self, Process, Target};
use crate::control::views::Flushed;
use crate::error::{Failure, Result};
use crate::{output, units};

pub(crate) fn flush(pool: Option<&str>) -> Result<()> {
    for process in of(pool)? {
        let flushed: Flushed = process.ask(&Request::FlushCache)?;
        let (blocks, bytes) = (flushed.blocks, units::bytes(flushed.bytes));
        output::line(&format!("process {}: {blocks} blocks, {bytes} thrown out", process.view.pid));
    }
    Ok(())
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
