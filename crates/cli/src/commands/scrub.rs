//! `forebay scrub`: scrubs a pool, and controls its scrub.

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_pool::utc;

use super::check::Job;
use crate::args::ScrubArgs;
use crate::control::client::{self, Target};
use crate::control::messages::{JobReport, ScrubInfo};
use crate::control::{Request, ScrubChange};
use crate::daemon::jobs;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{output, units};

pub(crate) fn run(args: &ScrubArgs) -> Result<()> {
    let change = match (args.pause, args.stop) {
        (true, _) => Some(ScrubChange::Pause),
        (_, true) => Some(ScrubChange::Stop),
        _ if args.every.is_some() => args.every.map(|seconds| ScrubChange::Every { seconds }),
        _ if args.status => None,
        _ if args.no_wait => return start(args),
        _ => return wait(args),
    };
    let scrub = control(args, change)?;
    match args.work.json {
        true => output::json(&scrub),
        false => {
            output::line(&line(&scrub));
            Ok(())
        }
    }
}

/// Scrubs the pool, and waits for the end.
fn wait(args: &ScrubArgs) -> Result<()> {
    let job = Job {
        name: "scrub",
        args: &args.work,
        read_only: false,
        writes_in_any_case: true,
        advice: "restore lost files from a backup",
        why_incomplete: |state, _| match state {
            "running" => {
                "the scrub goes on in the background; `forebay scrub --status` shows it, `--pause` pauses it"
            }
            "paused" => "the scrub was paused; `forebay scrub` goes on with it",
            "stopped" => "the scrub was stopped; the next one starts from the beginning",
            _ => {
                "the scrub ended early, because the pool was exported; the next mount or `forebay scrub` goes on with it"
            }
        },
    };
    let rate_bytes = args.rate;
    job.run(
        |guid| Request::Scrub { pool: guid, rate_bytes, wait: true },
        |pool, on_progress| jobs::scrub(pool, rate_bytes, on_progress),
    )
}

/// Starts the scrub of an imported pool.
fn start(args: &ScrubArgs) -> Result<()> {
    let name = &args.work.pool;
    let Target::InUse { process, pool } = client::find(name)? else {
        return Err(Failure::new(format!(
            "{name}: the pool is not imported, so nothing could scrub it in the background; run `forebay mount` or `forebay import` first, or omit --no-wait"
        )));
    };
    let request = Request::Scrub { pool: pool.guid, rate_bytes: args.rate, wait: false };
    process.ask::<JobReport>(&request)?;
    if args.work.json {
        let shown = Request::ControlScrub { pool: pool.guid, change: None };
        return output::json(&process.ask::<ScrubInfo>(&shown)?);
    }
    output::line(&format!("scrubbing pool {}", pool.name));
    Ok(())
}

fn control(args: &ScrubArgs, change: Option<ScrubChange>) -> Result<ScrubInfo> {
    match client::find(&args.work.pool)? {
        Target::InUse { process, pool } => {
            process.ask(&Request::ControlScrub { pool: pool.guid, change })
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let read_only = change.is_none();
            let pool = pools::import(&ImportRequest::plain(paths, read_only), &cache)?;
            let scrub = jobs::control_scrub(&pool, change)?;
            pool.export()?;
            Ok(scrub)
        }
    }
}

/// Describes the newest scrub and the next one in one line.
pub(super) fn line(scrub: &ScrubInfo) -> String {
    if scrub.every_s == 0 {
        return newest(scrub);
    }
    let (every, now) = (units::seconds(scrub.every_s), now());
    let next = match scrub.due {
        None => "after this one".to_owned(),
        Some(due) if due <= now => "now, or when the pool is imported".to_owned(),
        Some(due) => format!("in {}, {}", units::seconds(due - now), utc(due * 1000)),
    };
    format!("{}; every {every}, the next {next}", newest(scrub))
}

fn now() -> u64 {
    SystemWallClock.unix_time().seconds.max(0) as u64
}

fn newest(scrub: &ScrubInfo) -> String {
    let done = units::percent(scrub.bytes.min(scrub.total_bytes), scrub.total_bytes);
    let ago = units::seconds(now().saturating_sub(scrub.ended));
    let state = match &*scrub.state {
        "none" => return "never".to_owned(),
        "running" => {
            let rate = units::bytes(scrub.bytes_per_second);
            let left = scrub.seconds_left.map(|left| format!(", {} left", units::seconds(left)));
            format!("running, {done}, {rate}/s{}", left.unwrap_or_default())
        }
        "interrupted" => {
            format!("interrupted at {done}; the next mount or `forebay scrub` goes on with it")
        }
        "paused" => format!("paused at {done}; `forebay scrub` goes on with it"),
        "stopped" => format!("stopped at {done}, {ago} ago"),
        state => format!("{state} {ago} ago, {} read", units::bytes(scrub.bytes)),
    };
    format!("{state}; {} copies healed, {} problems", scrub.healed, scrub.problem_count)
}
