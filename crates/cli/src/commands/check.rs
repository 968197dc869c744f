//! `forebay check` and `forebay scrub`.

use std::sync::Arc;

use forebay_pool::Pool;

use crate::args::{CheckArgs, WorkArgs};
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::views::CheckView;
use crate::error::{Failure, Result};
use crate::host::long;
use crate::output::{self, Progress};
use crate::pools::{self, ImportWanted};
use crate::units;

/// What a check may cache: indirect blocks, mostly.
const CACHE_BYTES: u64 = 256 << 20;

pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let work = Work { what: "check", args: &args.work, read_only: args.read_only };
    work.run(|guid| Request::Check { pool: guid }, long::check_with_files)
}

pub(crate) fn scrub(args: &WorkArgs) -> Result<()> {
    let work = Work { what: "scrub", args, read_only: false };
    work.run(
        |guid| Request::Scrub { pool: guid },
        |pool, on_progress| long::scrub(pool, on_progress),
    )
}

struct Work<'a> {
    what: &'static str,
    args: &'a WorkArgs,
    read_only: bool,
}

impl Work<'_> {
    fn run(
        &self,
        request: impl Fn(u64) -> Request,
        work: impl Fn(&Arc<Pool>, long::OnProgress<'_>) -> Result<CheckView>,
    ) -> Result<()> {
        let target = client::find(&self.args.pool)?;
        let progress = Progress::begin(self.what)?;
        let view = match target {
            Target::Held { process, pool } => {
                let stop = progress.stop_flag();
                let asked = process.ask_until(
                    &request(pool.guid),
                    &mut |view| progress.show(view),
                    &stop,
                )?;
                asked.unwrap_or_default()
            }
            Target::Paths(paths) => {
                let cache = pools::cache(CACHE_BYTES)?;
                let pool =
                    Arc::new(pools::import(&ImportWanted::plain(paths, self.read_only), &cache)?);
                let view = work(&pool, &mut |view| progress.step(view))?;
                pool.close()?;
                view
            }
        };
        let stopped = progress.is_stopped();
        drop(progress);
        self.tell(&view, stopped)
    }

    fn tell(&self, view: &CheckView, stopped: bool) -> Result<()> {
        if self.args.json {
            output::json(view)?;
        } else {
            let mut text = String::new();
            for problem in &view.problems {
                text.push_str(&format!("{problem}\n"));
            }
            let more = view.problem_count.saturating_sub(view.problems.len() as u64);
            if more > 0 {
                text.push_str(&format!("and {more} more\n"));
            }
            for note in &view.notes {
                text.push_str(&format!("{note}\n"));
            }
            text.push_str(&format!(
                "{} blocks, {} in all copies",
                view.blocks,
                units::bytes(view.bytes)
            ));
            if self.what == "scrub" {
                text.push_str(&format!(", {} copies healed", view.healed));
            }
            text.push_str(match (view.problem_count, view.complete) {
                (0, true) => "; no problems found\n",
                (0, false) => "; no problems found until it was interrupted\n",
                _ => "\n",
            });
            output::print(&text);
        }
        let pool = &self.args.pool;
        match (view.problem_count, view.complete) {
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
