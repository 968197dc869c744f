//! Jobs on a pool: checks, scrubs and trims, with progress. A job can be interrupted.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use forebay_fs::{ErrorKind, FileSystem, FsOptions};
use forebay_pool::format::ScrubState;
use forebay_pool::{
    AttachOptions, CheckProgress, EventKind, LeafState, Pool, PoolDevice, ScrubReport, ScrubStatus,
};

use super::health;
use crate::control::messages::{JobProgress, JobReport, ResilverInfo, ScrubInfo, TrimReport};
use crate::control::{ScrubChange, SideChange};
use crate::error::Result;
use crate::pools;

/// Called at intervals with the progress of a job; `Break` interrupts the job.
pub(crate) type OnProgress<'a> = &'a mut dyn FnMut(&JobProgress) -> ControlFlow<()>;

fn job_progress(progress: &CheckProgress) -> JobProgress {
    JobProgress {
        blocks: progress.blocks,
        bytes: progress.bytes,
        total_bytes: progress.total_bytes,
        problems: progress.problems,
    }
}

/// Verifies every copy of every block, and compares allocated blocks with the space maps.
///
/// # Errors
/// If the job cannot run.
pub(crate) fn check(pool: &Pool, on_progress: OnProgress<'_>) -> Result<JobReport> {
    let away_at_first = away(pool);
    let report = pool.check(&mut |progress| on_progress(&job_progress(progress)))?;
    let damage = health::describe(pool, &report.damaged);
    let mut problems: Vec<String> =
        damage.iter().map(|one| format!("damaged: {}", one.text)).collect();
    let spaces = [
        ("leaked", &report.leaked),
        ("claimed twice", &report.double),
        ("not mapped", &report.unmapped),
    ];
    let mut problem_count = report.damaged_count + report.labels.len() as u64;
    problems.extend(report.labels.iter().map(|label| format!("damaged: {label}")));
    for (what, ranges) in spaces {
        problem_count += ranges.len() as u64;
        problems
            .extend(ranges.iter().map(|(dva, bytes)| format!("{what}: {bytes} bytes at {dva}")));
    }
    Ok(JobReport {
        blocks: report.blocks,
        bytes: report.bytes,
        complete: report.complete,
        state: if report.complete { "finished" } else { "interrupted" }.to_owned(),
        healed: 0,
        labels_healed: 0,
        problem_count,
        problems,
        unlisted: report.damaged_count.saturating_sub(report.damaged.len() as u64),
        damage,
        unreachable: report.unreachable.iter().map(ToString::to_string).collect(),
        not_read: not_read(pool).into_iter().chain(came_back(pool, &away_at_first)).collect(),
        notes: pool.import_notes().to_vec(),
    })
}

/// Devices that hold copies, and are not in use.
fn away(pool: &Pool) -> Vec<PoolDevice> {
    let mut devices = pool.devices();
    devices.retain(|device| {
        let away = [LeafState::Offline, LeafState::Faulted, LeafState::Missing];
        device.mirror && !device.log && away.contains(&device.state)
    });
    devices
}

/// Whether a device that holds copies is not in use.
pub(crate) fn lacks_devices(pool: &Pool) -> bool {
    !away(pool).is_empty()
}

/// Describes them.
fn not_read(pool: &Pool) -> Vec<String> {
    let away = away(pool).into_iter();
    away.map(|device| match device.missing {
        true => device.path,
        false => format!("{}, which is {}", device.path, device.state),
    })
    .collect()
}

/// Describes devices that were away when a check began, and came into use before it ended: it has
/// not read all of their copies.
fn came_back(pool: &Pool, away_at_first: &[PoolDevice]) -> Vec<String> {
    let (now, away_now) = (pool.devices(), away(pool));
    let has = |all: &[PoolDevice], one: &PoolDevice| all.iter().any(|other| other.path == one.path);
    let back = away_at_first.iter().filter(|one| has(&now, one) && !has(&away_now, one));
    back.map(|one| format!("{}, which was {} when the check began", one.path, one.state)).collect()
}

/// Runs [`check`] on a pool without mounts, then compares the names, link counts and objects of
/// each dataset.
///
/// # Errors
/// If the job cannot run.
pub(crate) fn check_with_files(pool: &Arc<Pool>, on_progress: OnProgress<'_>) -> Result<JobReport> {
    let mut info = check(pool, on_progress)?;
    if !info.complete {
        return Ok(info);
    }
    for name in pool.datasets()? {
        let options = FsOptions { read_only: pool.is_read_only(), ..FsOptions::default() };
        let audited = FileSystem::open_in(Arc::clone(pool), &name, &options).and_then(|files| {
            let report = files.audit();
            files.close().and(report)
        });
        match audited {
            Ok(report) => {
                info.problem_count += report.problem_count;
                info.unlisted += report.problem_count - report.problems.len() as u64;
                info.problems.extend(
                    report.problems.iter().map(|problem| format!("dataset {name}: {problem}")),
                );
                info.notes.push(format!(
                    "dataset {name}: {} directories, {} other files, {} names, {} orphans (unlinked, in use or being freed)",
                    report.directories, report.others, report.names, report.orphans
                ));
            }
            Err(error) if error.kind() == ErrorKind::Invalid => {
                info.notes.push(format!(
                    "dataset {name}: holds no file system; only its objects were checked"
                ));
            }
            Err(error) => {
                info.problem_count += 1;
                info.problems.push(format!("dataset {name}: cannot walk its files: {error}"));
            }
        }
    }
    Ok(info)
}

/// How to start a scrub.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScrubStart {
    /// The maximum rate from now on, if it changes.
    pub(crate) rate_bytes: Option<u64>,
    /// Whether to wait for the end.
    pub(crate) wait: bool,
}

/// Verifies every copy of every block, and rewrites bad copies from good ones. Goes on with a scrub
/// that was paused or interrupted. `Break` pauses it.
///
/// # Errors
/// If the job cannot run.
pub(crate) fn scrub(
    pool: &Pool,
    rate_bytes: Option<u64>,
    on_progress: OnProgress<'_>,
) -> Result<JobReport> {
    if let Some(rate_bytes) = rate_bytes {
        pool.set_scrub_rate(rate_bytes);
    }
    let report = pool.scrub(&mut |progress| on_progress(&job_progress(progress)))?;
    Ok(scrub_report(pool, report))
}

/// As [`scrub`], in the background. `Break` ends the wait; the scrub goes on.
///
/// # Errors
/// If the job cannot start, or fails while it is waited for.
pub(crate) fn start_scrub(
    pool: &Pool,
    how: ScrubStart,
    on_progress: OnProgress<'_>,
) -> Result<JobReport> {
    if let Some(rate_bytes) = how.rate_bytes {
        pool.set_scrub_rate(rate_bytes);
    }
    pool.start_scrub()?;
    let report = pool.wait_scrub(&mut |progress| match how.wait {
        true => on_progress(&job_progress(progress)),
        false => ControlFlow::Break(()),
    })?;
    Ok(scrub_report(pool, report))
}

fn scrub_report(pool: &Pool, report: ScrubReport) -> JobReport {
    let damage = health::describe(pool, &report.lost);
    let problems = damage.iter().map(|one| format!("lost: {}", one.text)).collect();
    JobReport {
        blocks: report.blocks,
        bytes: report.bytes,
        complete: report.complete,
        state: scrub_state(report.state, pool.scrub_status().is_active).to_owned(),
        healed: report.healed,
        labels_healed: report.labels_healed,
        problem_count: report.lost_count,
        problems,
        unreachable: Vec::new(),
        not_read: not_read(pool),
        unlisted: report.lost_count.saturating_sub(report.lost.len() as u64),
        damage,
        notes: Vec::new(),
    }
}

/// Discards the free space. `Break` ends it.
///
/// # Errors
/// If the job cannot run.
pub(crate) fn trim(pool: &Pool, on_progress: OnProgress<'_>) -> Result<TrimReport> {
    let report = pool.trim(&mut |progress| {
        let (bytes, total_bytes) = (progress.bytes, progress.total_bytes);
        on_progress(&JobProgress { bytes, total_bytes, ..JobProgress::default() })
    })?;
    Ok(TrimReport {
        complete: report.complete,
        bytes: report.bytes,
        error_count: report.errors,
        first_error: report.first_error,
        unsupported: report.unsupported,
    })
}

/// Changes the scrub, and describes it.
///
/// # Errors
/// If there is no scrub to change.
pub(crate) fn control_scrub(pool: &Pool, change: Option<ScrubChange>) -> Result<ScrubInfo> {
    match change {
        Some(ScrubChange::Pause) => pool.pause_scrub()?,
        Some(ScrubChange::Stop) => pool.stop_scrub()?,
        Some(ScrubChange::Every { seconds }) => pool.set_scrub_interval(seconds)?,
        None => {}
    }
    Ok(scrub_info(&pool.scrub_status()))
}

/// The word for the state of a scrub.
fn scrub_state(state: ScrubState, is_active: bool) -> &'static str {
    match state {
        ScrubState::Running if is_active => "running",
        state => state.name(),
    }
}

/// Describes a scrub.
pub(crate) fn scrub_info(status: &ScrubStatus) -> ScrubInfo {
    ScrubInfo {
        state: scrub_state(status.state, status.is_active).to_owned(),
        started: status.started,
        ended: status.ended,
        blocks: status.blocks,
        bytes: status.bytes,
        total_bytes: status.total_bytes,
        bytes_per_second: status.bytes_per_second(),
        seconds_left: status.left().map(|left| left.as_secs()),
        rate_bytes: status.rate_bytes,
        healed: status.healed,
        problem_count: status.lost,
        every_s: status.every_s,
        due: status.due(),
    }
}

/// Changes the sides of a mirror, and describes the resilver. `Break` ends the wait for it.
///
/// # Errors
/// If the pool refuses, or the device fails.
pub(crate) fn change_side(
    pool: &Pool,
    device: &str,
    change: SideChange,
    on_progress: OnProgress<'_>,
) -> Result<ResilverInfo> {
    let before = newest_event(pool);
    let waits = match change {
        SideChange::Offline => {
            pool.offline_device(device)?;
            false
        }
        SideChange::Detach => {
            pool.detach_device(device)?;
            false
        }
        SideChange::Online { wait } => {
            let path = Path::new(device);
            if path.is_absolute() {
                pools::refuse_served(path)?;
            }
            pool.online_device(device)?;
            wait
        }
        SideChange::Attach { new, replaces, force, sector, wait } => {
            let opened = pools::open_new_device(&new, pool)?;
            pools::refuse_content(&opened, &new, force)?;
            let options = AttachOptions { force, sector_bytes: sector };
            match replaces {
                true => pool.replace_device(device, opened, options)?,
                false => pool.attach_device(device, opened, options)?,
            }
            wait
        }
    };
    if waits {
        pool.wait_resilver_with(&mut |status| {
            on_progress(&JobProgress {
                blocks: status.blocks,
                bytes: status.bytes,
                total_bytes: status.total_bytes,
                problems: status.lost,
            })
        });
    }
    Ok(ResilverInfo { notes: lost_ends(pool, before), ..resilver_info(pool) })
}

/// The number of the newest event, for [`lost_ends`].
pub(crate) fn newest_event(pool: &Pool) -> u64 {
    pool.events().after(0).last().map_or(0, |event| event.number)
}

/// The devices that were taken into use since an event although they had lost their ends, a
/// sentence each.
pub(crate) fn lost_ends(pool: &Pool, since: u64) -> Vec<String> {
    let mut events = pool.events().after(since);
    events.retain(|event| event.pool_guid == pool.guid() && event.kind == EventKind::DeviceLostEnd);
    events.iter().map(ToString::to_string).collect()
}

/// Describes the newest resilver.
pub(crate) fn resilver_info(pool: &Pool) -> ResilverInfo {
    let status = pool.resilver_status();
    let is_degraded =
        |device: &PoolDevice| device.mirror && !device.log && device.state == LeafState::Degraded;
    ResilverInfo {
        active: status.is_active,
        degraded: pool.devices().iter().any(is_degraded),
        blocks: status.blocks,
        bytes: status.bytes,
        total_bytes: status.total_bytes,
        bytes_per_second: status.bytes_per_second(),
        seconds_left: status.left().map(|left| left.as_secs()),
        written: status.written,
        lost: status.lost,
        notes: Vec::new(),
    }
}
