//! `forebay offline`, `online`, `attach`, `detach` and `replace`: change the sides of mirrors.

use std::path::Path;

use super::expand::{make_file, remove_unused};
use crate::args::{AttachArgs, AttachFlags, OnlineArgs, ReplaceArgs, SideArgs};
use crate::control::client::{self, Target};
use crate::control::messages::ResilverInfo;
use crate::control::{Request, SideChange};
use crate::daemon::jobs;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::output::{self, Progress};
use crate::pools::{self, ImportRequest};
use crate::{device_content, units};

pub(crate) fn offline(args: &SideArgs) -> Result<()> {
    let SideArgs { pool, device } = args;
    change(&client::find(pool)?, device, SideChange::Offline)?;
    output::line(&format!(
        "{device} is offline, and misses what is written from now on; `forebay online {pool} {device}` brings it back"
    ));
    Ok(())
}

pub(crate) fn online(args: &OnlineArgs) -> Result<()> {
    let SideArgs { pool, device } = &args.side;
    let target = client::find(pool)?;
    let resilver = change(&target, device, SideChange::Online { wait: !args.no_wait })?;
    resilver.notes.iter().for_each(|note| output::line(note));
    output::line(&format!("{device} is in use; resilver: {}", line(&resilver)));
    check_whole(pool, device, &resilver)
}

pub(crate) fn detach(args: &SideArgs) -> Result<()> {
    let SideArgs { pool, device } = args;
    change(&client::find(pool)?, device, SideChange::Detach)?;
    output::line(&format!(
        "{device} is no device of {pool} any more; its labels are erased, unless it is missing or not at its path: do not import it alone later"
    ));
    Ok(())
}

pub(crate) fn attach(args: &AttachArgs) -> Result<()> {
    let AttachArgs { pool, device, new, how } = args;
    let resilver = join(pool, (device, new), how, false)?;
    let new = new.display().to_string();
    output::line(&format!("{new} mirrors {device}; resilver: {}", line(&resilver)));
    check_whole(pool, &new, &resilver)
}

pub(crate) fn replace(args: &ReplaceArgs) -> Result<()> {
    let ReplaceArgs { pool, old, new, how } = args;
    let resilver = join(pool, (old, new), how, true)?;
    let new = new.display().to_string();
    let does = if resilver.active { "is replacing" } else { "has replaced" };
    check_whole(pool, &new, &resilver)?;
    output::line(&format!("{new} {does} {old}; resilver: {}", line(&resilver)));
    Ok(())
}

/// Attaches a device beside another one, or in its place.
fn join(
    pool: &str,
    (device, new): (&str, &Path),
    how: &AttachFlags,
    replaces: bool,
) -> Result<ResilverInfo> {
    let target = client::find(pool)?;
    let has = match &target {
        Target::InUse { pool, .. } => &pool.devices,
        Target::Paths(paths) => paths,
    };
    device_content::refuse_repeated(&[new.to_owned()], has)?;
    let AttachFlags { size, sector, force, no_wait } = *how;
    let is_made = make_file(new, size)?;
    let joined = pools::canonical(new).and_then(|path| {
        let wait = !no_wait;
        change(&target, device, SideChange::Attach { new: path, replaces, force, sector, wait })
    });
    if joined.is_err() && is_made {
        remove_unused(new);
    }
    joined
}

/// Fails if a device still misses blocks after the resilver.
fn check_whole(pool: &str, device: &str, resilver: &ResilverInfo) -> Result<()> {
    if resilver.active || !resilver.degraded {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{device}: still misses blocks; `forebay status {pool}` says what is wrong, and `forebay online` tries again"
    )))
}

fn change(target: &Target, device: &str, change: SideChange) -> Result<ResilverInfo> {
    let device = name(device);
    let progress = Progress::begin("resilver")?;
    match target {
        Target::InUse { process, pool } => {
            let stop = progress.stop_flag();
            let request = Request::ChangeSide { pool: pool.guid, device, change };
            process.ask_until(&request, &mut |state| progress.show(state), &stop)
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths.clone(), false), &cache)?;
            // Nobody goes on with it after this process.
            let show = &mut |state: &_| progress.step(state);
            let resilver = jobs::change_side(&pool, &device, change.waiting(), show)?;
            pool.export()?;
            Ok(resilver)
        }
    }
}

/// The name by which a pool knows a device: its absolute path, also if nothing is there any more;
/// or its guid.
fn name(device: &str) -> String {
    let path = Path::new(device);
    let is_guid = || is_guid(device);
    let known = pools::canonical(path).ok().or_else(|| {
        let name = path.file_name().filter(|_| !is_guid())?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some(pools::canonical(folder.unwrap_or(Path::new("."))).ok()?.join(name))
    });
    known.map_or_else(|| device.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Whether this is written as a guid. Without `0x` it needs most of the 16 digits that a random
/// one has, of which leading zeros are not shown: `b` and `d1` are files.
fn is_guid(device: &str) -> bool {
    let digits = device.strip_prefix("0x").or(Some(device).filter(|all| all.len() >= 12));
    digits.is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok())
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
    let of = match (resilver.active, resilver.total_bytes) {
        (true, total) if total > 0 => format!(" of at most {}", units::bytes(total)),
        _ => String::new(),
    };
    let left = match resilver.seconds_left.filter(|_| resilver.active) {
        Some(seconds) => format!(", about {} left", units::seconds(seconds)),
        None => String::new(),
    };
    format!(
        "{state}, {blocks} missed blocks ({read}{of}) read at {rate}/s{left}, {written} copies written, {lost} lost"
    )
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn a_short_name_of_a_file_that_is_gone_is_no_guid() {
        for file in ["b", "d1", "0xy", "1123456789abcdef0"] {
            let named = name(file);
            assert!(named.starts_with('/') && named.ends_with(&format!("/{file}")), "{named}");
        }
        for guid in ["0xb", "fedcba9876543210", "edcba9876543210"] {
            assert_eq!(name(guid), guid);
        }
    }
}
