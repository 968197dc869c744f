//! `forebay offline` and `forebay online`: take a side of a mirror out of use, and back.

use std::path::Path;

use crate::args::{OnlineArgs, SideArgs};
use crate::control::client::{self, Target};
use crate::control::messages::ResilverInfo;
use crate::control::{Request, SideChange};
use crate::daemon::jobs;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{output, units};

pub(crate) fn offline(args: &SideArgs) -> Result<()> {
    let resilver = change(args, SideChange::Offline)?;
    debug_assert!(!resilver.active || resilver.lost == 0, "it is about other devices");
    let SideArgs { pool, device } = args;
    output::line(&format!(
        "{device} is offline, and misses what is written from now on; `forebay online {pool} {device}` brings it back"
    ));
    Ok(())
}

pub(crate) fn online(args: &OnlineArgs) -> Result<()> {
    let resilver = change(&args.side, SideChange::Online { wait: !args.no_wait })?;
    let SideArgs { pool, device } = &args.side;
    output::line(&format!("{device} is in use; resilver: {}", line(&resilver)));
    if resilver.active || !resilver.degraded {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{device}: still misses blocks; `forebay status {pool}` says what is wrong, and `forebay online` tries again"
    )))
}

fn change(args: &SideArgs, change: SideChange) -> Result<ResilverInfo> {
    let device = name(&args.device);
    match client::find(&args.pool)? {
        Target::InUse { process, pool } => {
            process.ask(&Request::ChangeSide { pool: pool.guid, device, change })
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, false), &cache)?;
            // Nobody goes on with it after this process.
            let change = match change {
                SideChange::Online { .. } => SideChange::Online { wait: true },
                SideChange::Offline => SideChange::Offline,
            };
            let resilver = jobs::change_side(&pool, &device, change)?;
            pool.export()?;
            Ok(resilver)
        }
    }
}

/// The name by which a pool knows a device: its absolute path, or what is no path.
fn name(device: &str) -> String {
    let path = pools::canonical(Path::new(device));
    path.map_or_else(|_| device.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Describes a resilver in one line.
pub(super) fn line(resilver: &ResilverInfo) -> String {
    let ResilverInfo { blocks, bytes, written, lost, .. } = resilver;
    let state = match (resilver.active, *blocks) {
        (true, _) => "running",
        (false, 0) => return "nothing was missed".to_owned(),
        (false, _) => "ended",
    };
    let rate = units::bytes(resilver.bytes_per_second);
    let read = units::bytes(*bytes);
    format!(
        "{state}, {blocks} missed blocks ({read}) read at {rate}/s, {written} copies written, {lost} lost"
    )
}
