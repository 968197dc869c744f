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

/// What a check may cache: indirect blocks, mostly.
const CACHE_BYTES: u64 = 256 << 20;

pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let work = Work { what: "check", args: &args.work, read_only: args.read_only };
    work.run(|guid| Request::Check { pool: guid }, jobs::check_with_files)
}

pub(crate) fn scrub(args: &JobArgs) -> Result<()> {
    let work = Work { what: "scrub", args, read_only: false };
    work.run(
        |guid| Request::Scrub { pool: guid },
        |pool, on_progress| jobs::scrub(pool, on_progress),
    )
}

struct Work<'a> {
    what: &'static str,
    args: &'a JobArgs,
    read_only: bool,
}

impl Work<'_> {
    fn run(
        &self,
        request: impl Fn(u64) -> Request,
        work: impl Fn(&Arc<Pool>, jobs::OnProgress<'_>) -> Result<JobReport>,
    ) -> Result<()> {
        let target = client::find(&self.args.pool)?;
        let progress = Progress::begin(self.what)?;
        let info = match target {
            Target::InUse { process, pool } => {
                let stop = progress.stop_flag();
                let asked = process.ask_until(
                    &request(pool.guid),
                    &mut |info| progress.show(info),
                    &stop,
                )?;
                asked.unwrap_or_default()
            }
            Target::Paths(paths) => {
                let cache = pools::cache(CACHE_BYTES)?;
                let pool =
                    Arc::new(pools::import(&ImportRequest::plain(paths, self.read_only), &cache)?);
                let info = work(&pool, &mut |info| progress.step(info))?;
                pool.close()?;
                info
            }
        };
        let stopped = progress.is_stopped();
        drop(progress);
        self.tell(&info, stopped)
    }

    fn tell(&self, info: &JobReport, stopped: bool) -> Result<()> {
        if self.args.json {
            output::json(info)?;
        } else {
            let mut text = String::new();
            for problem in &info.problems {
                text.push_str(&format!("{problem}\n"));
            }
            let more = info.problem_count.saturating_sub(info.problems.len() as u64);
            if more > 0 {
                text.push_str(&format!("and {more} more\n"));
            }
            for note in &info.notes {
                text.push_str(&format!("{note}\n"));
            }
            text.push_str(&format!(
                "{} blocks, {} in all copies",
                info.blocks,
                units::bytes(info.bytes)
            ));
            if self.what == "scrub" {
                text.push_str(&format!(", {} copies healed", info.healed));
            }
            text.push_str(match (info.problem_count, info.complete) {
                (0, true) => "; no problems found\n",
                (0, false) => "; no problems found until it was interrupted\n",
                _ => "\n",
            });
            output::print(&text);
        }
        let pool = &self.args.pool;
        match (info.problem_count, info.complete) {
            (0, true) => Ok(()),
            (0, false) if stopped => {
                Err(Failure::new(format!("{pool}: the {} was interrupted", self.what)))
            }
            (0, false) => Err(Failure::new(format!(
                "{pool}: the {} was not carried out to its end",
                self.what
            ))),
            (count, _) => Err(Failure::new(format!(
                "{pool}: {count} problem{}; restore what is named from a backup, or try `forebay scrub`",
                if count == 1 { "" } else { "s" }
            ))),
        }
    }
}
