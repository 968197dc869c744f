//! `forebay check` and `forebay scrub`.

use std::sync::Arc;

use forebay_pool::Pool;

use crate::args::{CheckArgs, JobArgs};
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::messages::JobReport;
use crate::daemon::jobs;
use crate::error::{Failure, Result};
use crate::output::{self, Progress};
use crate::pools::{self, ImportRequest};
use crate::units;

/// Cache size of a check, in bytes; it holds mostly indirect blocks.
const CACHE_BYTES: u64 = 256 << 20;

pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let job = Job { name: "check", args: &args.work, read_only: args.read_only };
    job.run(|guid| Request::Check { pool: guid }, jobs::check_with_files)
}

pub(crate) fn scrub(args: &JobArgs) -> Result<()> {
    let job = Job { name: "scrub", args, read_only: false };
    job.run(
        |guid| Request::Scrub { pool: guid },
        |pool, on_progress| jobs::scrub(pool, on_progress),
    )
}

struct Job<'a> {
    name: &'static str,
    args: &'a JobArgs,
    read_only: bool,
}

impl Job<'_> {
    fn run(
        &self,
        request: impl Fn(u64) -> Request,
        work: impl Fn(&Arc<Pool>, jobs::OnProgress<'_>) -> Result<JobReport>,
    ) -> Result<()> {
        let target = client::find(&self.args.pool)?;
        let progress = Progress::begin(self.name)?;
        let report = match target {
            Target::InUse { process, pool } => {
                let stop = progress.stop_flag();
                let asked = process.ask_until(
                    &request(pool.guid),
                    &mut |state| progress.show(state),
                    &stop,
                )?;
                asked.unwrap_or_default()
            }
            Target::Paths(paths) => {
                let cache = pools::cache(CACHE_BYTES)?;
                let pool =
                    Arc::new(pools::import(&ImportRequest::plain(paths, self.read_only), &cache)?);
                let report = work(&pool, &mut |state| progress.step(state))?;
                pool.close()?;
                report
            }
        };
        let stopped = progress.is_stopped();
        drop(progress);
        self.print(&report, stopped)
    }

    fn print(&self, report: &JobReport, stopped: bool) -> Result<()> {
        if self.args.json {
            output::json(report)?;
        } else {
            let mut text = String::new();
            for problem in &report.problems {
                text.push_str(&format!("{problem}\n"));
            }
            let more = report.problem_count.saturating_sub(report.problems.len() as u64);
            if more > 0 {
                text.push_str(&format!("and {more} more\n"));
            }
            for note in &report.notes {
                text.push_str(&format!("{note}\n"));
            }
            text.push_str(&format!(
                "{} blocks, {} in all copies",
                report.blocks,
                units::bytes(report.bytes)
            ));
            if self.name == "scrub" {
                text.push_str(&format!(", {} copies healed", report.healed));
            }
            text.push_str(match (report.problem_count, report.complete) {
                (0, true) => "; no problems found\n",
                (0, false) => "; no problems found before the interruption\n",
                _ => "\n",
            });
            output::print(&text);
        }
        let pool = &self.args.pool;
        match (report.problem_count, report.complete) {
            (0, true) => Ok(()),
            (0, false) if stopped => Err(Failure::new(format!(
                "{pool}: the {} was interrupted; run it again for a full result",
                self.name
            ))),
            (0, false) => Err(Failure::new(format!(
                "{pool}: the {} ended early; export the pool or wait for other jobs, then run it again",
                self.name
            ))),
            (count, _) => Err(Failure::new(format!(
                "{pool}: {count} problem{}; run `forebay scrub` to repair bad copies, and restore lost files from a backup",
                if count == 1 { "" } else { "s" }
            ))),
        }
    }
}
