//! `forebay check`, and the job of `forebay scrub`.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_pool::Pool;

use crate::args::{CheckArgs, JobArgs};
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::messages::JobReport;
use crate::daemon::jobs;
use crate::error::{Failure, Result};
use crate::object_stores;
use crate::output::{self, Progress};
use crate::pools::{self, ImportRequest};
use crate::units;

/// Problems that are printed; more are in the JSON output.
const LINES_MAX: usize = 100;
/// Cache size of a check, in bytes; it holds mostly indirect blocks.
const CACHE_BYTES: u64 = 256 << 20;

pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let job = Job {
        name: "check",
        args: &args.work,
        read_only: args.read_only,
        writes_in_any_case: false,
        advice: "run `forebay scrub` to repair bad copies, and restore lost files from a backup",
        why_incomplete: |_, by_user| match by_user {
            true => "the check was interrupted; run it again for a full result",
            false => "the check ended early, because the pool was exported; run it again",
        },
    };
    job.run(|guid| Request::Check { pool: guid }, jobs::check_with_files)
}

/// A check or scrub.
pub(super) struct Job<'a> {
    pub(super) name: &'static str,
    pub(super) args: &'a JobArgs,
    pub(super) read_only: bool,
    /// Whether it is there to write, even if a device of a mirror is away.
    pub(super) writes_in_any_case: bool,
    /// What to do about problems.
    pub(super) advice: &'static str,
    /// Says why it is not complete, from its state and whether the user has interrupted it here.
    pub(super) why_incomplete: fn(&str, bool) -> &'static str,
}

impl Job<'_> {
    /// Runs the job here, or in the daemon that has the pool imported.
    ///
    /// # Errors
    /// If it cannot run, does not end, or finds problems.
    pub(super) fn run(
        &self,
        request: impl Fn(u64) -> Request,
        work: impl Fn(&Arc<Pool>, jobs::OnProgress<'_>) -> Result<JobReport>,
    ) -> Result<()> {
        let target = client::find(&self.args.pool)?;
        let progress = Progress::begin(self.name)?;
        let report: JobReport = match target {
            Target::InUse { process, pool } => {
                let stop = progress.stop_flag();
                let show = &mut |state: &_| progress.show(state);
                process.ask_until(&request(pool.guid), show, &stop)?
            }
            Target::Paths(paths) => {
                let pool = Arc::new(self.import(&paths)?);
                let report = work(&pool, &mut |state| progress.step(state));
                let closed = pools::close_after(&pool, &progress);
                let report = report?;
                closed?;
                report
            }
        };
        let why = (self.why_incomplete)(&report.state, progress.is_stopped());
        drop(progress);
        self.print(&report, why)
    }

    /// Imports the pool here. A check does not write while a device of a mirror is away: the
    /// devices that are here would have something that the other one lacks. Two such checks, each
    /// of one side, would make two pools of a mirror.
    fn import(&self, paths: &[PathBuf]) -> Result<Pool> {
        let cache = pools::cache(CACHE_BYTES)?;
        let import =
            |read_only| pools::import(&ImportRequest::plain(paths.to_vec(), read_only), &cache);
        let is_store = paths.iter().any(|path| object_stores::url(path).is_some());
        if self.writes_in_any_case || self.read_only || is_store {
            return import(self.read_only);
        }
        // What cannot be imported read-only either has an error of its own.
        if let Ok(pool) = import(true) {
            if jobs::lacks_devices(&pool) {
                return Ok(pool);
            }
            pool.close()?;
        }
        import(false)
    }

    /// Prints the report. `why` says why it is not complete, if it is not.
    fn print(&self, report: &JobReport, why: &str) -> Result<()> {
        match self.args.json {
            true => output::json(report)?,
            false => output::print(&self.text(report)),
        }
        let (pool, count) = (&self.args.pool, report.problem_count);
        let s = if count == 1 { "" } else { "s" };
        let unread = report.not_read.len();
        match (count, report.complete) {
            (0, true) if unread == 0 => Ok(()),
            (0, true) => {
                let what = match unread {
                    1 => "a device of a mirror was not read; bring it back".to_owned(),
                    _ => format!("{unread} devices of mirrors were not read; bring them back"),
                };
                Err(Failure::trouble(format!(
                    "{pool}: {what} with `forebay online`, or put another in its place with `forebay replace`, and run `forebay {}` again",
                    self.name
                )))
            }
            (0, false) => Err(Failure::trouble(format!("{pool}: {why}"))),
            (_, true) => {
                Err(Failure::trouble(format!("{pool}: {count} problem{s}; {}", self.advice)))
            }
            (_, false) => Err(Failure::trouble(format!(
                "{pool}: {count} problem{s} so far; {why}; {}",
                self.advice
            ))),
        }
    }

    fn text(&self, report: &JobReport) -> String {
        let mut text = String::new();
        for problem in report.problems.iter().take(LINES_MAX) {
            text.push_str(&format!("{problem}\n"));
        }
        let more = report.problems.len().saturating_sub(LINES_MAX);
        if more > 0 {
            text.push_str(&format!("and {more} more; --json lists all\n"));
        }
        // The list of unreachable blocks is complete.
        if report.unlisted > 0 && report.unreachable.is_empty() {
            text.push_str(&format!("{} further problems are only counted\n", report.unlisted));
        }
        for objects in &report.unreachable {
            text.push_str(&format!("unreachable: {objects}\n"));
        }
        for device in &report.not_read {
            text.push_str(&format!("not read: {device}\n"));
        }
        for note in &report.notes {
            text.push_str(&format!("{note}\n"));
        }
        let bytes = units::bytes(report.bytes);
        text.push_str(&format!(
            "{} blocks, {bytes} allocated (of mirrors one side counts)",
            report.blocks
        ));
        if self.name == "scrub" {
            text.push_str(&format!(", {} copies healed", report.healed));
            if report.labels_healed > 0 {
                text.push_str(&format!(", {} labels rewritten", report.labels_healed));
            }
        }
        text.push_str(match (report.problem_count, report.complete) {
            (0, true) => "; no problems found\n",
            (0, false) => "; no problems found so far\n",
            _ => "\n",
        });
        text
    }
}
