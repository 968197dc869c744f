//! Jobs on a pool: checks and scrubs, with progress. A job can be interrupted.

use std::ops::ControlFlow;

use std::sync::Arc;

use forebay_fs::{ErrorKind, FileSystem, FsOptions};
use forebay_pool::{CheckProgress, Pool};

use crate::control::messages::{JobProgress, JobReport};
use crate::error::Result;

/// Called at intervals with the progress of a job; `Break` interrupts the job.
pub(crate) type OnProgress<'a> = &'a mut dyn FnMut(&JobProgress) -> ControlFlow<()>;

/// Problems listed in a report; more are only counted.
const PROBLEMS_MAX: usize = 100;

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
    let report = pool.check(&mut |progress| on_progress(&job_progress(progress)))?;
    let mut problems: Vec<String> =
        report.damaged.iter().map(|problem| format!("damaged: {problem}")).collect();
    let spaces = [
        ("leaked", &report.leaked),
        ("claimed twice", &report.double),
        ("not mapped", &report.unmapped),
    ];
    let mut problem_count = report.damaged_count;
    for (what, ranges) in spaces {
        problem_count += ranges.len() as u64;
        problems
            .extend(ranges.iter().map(|(dva, bytes)| format!("{what}: {bytes} bytes at {dva}")));
    }
    problems.truncate(PROBLEMS_MAX);
    Ok(JobReport {
        blocks: report.blocks,
        bytes: report.bytes,
        complete: report.complete,
        healed: 0,
        problem_count,
        problems,
        notes: Vec::new(),
    })
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
    info.problems.truncate(PROBLEMS_MAX);
    Ok(info)
}

/// Verifies every copy of every block, and rewrites bad copies from good ones.
///
/// # Errors
/// If the job cannot run.
pub(crate) fn scrub(pool: &Pool, on_progress: OnProgress<'_>) -> Result<JobReport> {
    let mut bytes = 0;
    let report = pool.scrub(&mut |progress| {
        bytes = progress.bytes;
        on_progress(&job_progress(progress))
    })?;
    let mut problems: Vec<String> =
        report.lost.iter().map(|problem| format!("lost: {problem}")).collect();
    problems.truncate(PROBLEMS_MAX);
    Ok(JobReport {
        blocks: report.blocks,
        bytes,
        complete: report.complete,
        healed: report.healed,
        problem_count: report.lost_count,
        problems,
        notes: Vec::new(),
    })
}
