//! `forebay cache`: the block cache of daemons.

use crate::control::Request;
use crate::control::client::processes_of;
use crate::control::messages::FlushReport;
use crate::error::Result;
use crate::{output, units};

pub(crate) fn flush(pool: Option<&str>) -> Result<()> {
    for process in processes_of(pool)? {
        let flushed: FlushReport = process.ask(&Request::FlushCache)?;
        let (blocks, bytes) = (flushed.blocks, units::bytes(flushed.bytes));
        output::line(&format!("process {}: evicted {blocks} blocks, {bytes}", process.info.pid));
    }
    Ok(())
}
