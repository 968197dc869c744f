//! `forebay top`: figures of the pools over time, on a screen in the manner of htop, once as text,
//! or as JSON.
//!
//! `poll` takes samples of the daemons. `summary` computes totals and rates between two of them.
//! `tables` makes tables of these, for text and for the screen. `history` keeps what plots show,
//! `state` what the user chose. `screen` draws the state into cells, and `terminal` shows them.
//! Only `poll` and `terminal` do I/O; the others are pure.

mod history;
mod poll;
mod screen;
mod state;
mod summary;
mod tables;
mod terminal;
#[cfg(test)]
mod testing;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::args::TopArgs;
use crate::control::client;
use crate::error::{Failure, Result};
use crate::{output, units};
use state::State;
use summary::{PoolSummary, Samples};

/// Interval at which the stop flag is checked.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// Shows the figures until the user quits, or once.
///
/// # Errors
/// If no pool is in use, or the terminal cannot be used.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let selected = match &args.pool {
        Some(spec) => client::pool_in_use(Some(spec))?.1.guid,
        None => {
            client::processes_of(None)?;
            0
        }
    };
    if args.once || args.json {
        return once(args, selected);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top: the standard input and output are no terminal; use --once for text, or --json",
        ));
    }
    terminal::block_resize_signal();
    let shows_misses = Arc::new(AtomicBool::new(false));
    let rounds = poll::start(args.interval, Arc::clone(&shows_misses))?;
    terminal::run(State::new(selected, args.interval.as_secs_f64()), &rounds, &shows_misses)
}

/// Takes two samples, an interval apart, and prints the figures between them.
fn once(args: &TopArgs, selected: u64) -> Result<()> {
    let stop = output::interruptible()?;
    let before = poll::round(false);
    let until = Instant::now() + args.interval;
    while Instant::now() < until && !output::is_raised(&stop) {
        std::thread::sleep(STOP_PERIOD.min(until.saturating_duration_since(Instant::now())));
    }
    let now = poll::round(true);
    let mut all = Vec::new();
    for now in &now.samples {
        // A daemon that has started meanwhile has rates next time.
        let earlier = before.samples.iter().find(|before| before.pid == now.pid);
        all.extend(Samples { now, before: earlier.unwrap_or(now) }.all());
    }
    if selected != 0 {
        all.retain(|summary| summary.guid == format!("{selected:016x}"));
    }
    if let Some(trouble) = now.trouble {
        return Err(Failure::new(trouble));
    }
    if all.is_empty() {
        return Err(Failure::new("the pools were exported meanwhile; try again"));
    }
    if args.json {
        return output::json(&all);
    }
    let texts: Vec<String> = all.iter().map(text).collect();
    output::print(&texts.join("\n"));
    Ok(())
}

/// The figures of a pool as text.
fn text(summary: &PoolSummary) -> String {
    let mut out = format!(
        "pool {}: {}, {} of {} allocated, process {}, {} of {} of memory in use; rates of {:.1} s\n",
        summary.pool,
        summary.health,
        units::bytes(summary.allocated_bytes),
        units::bytes(summary.total_bytes),
        summary.pid,
        units::bytes(summary.resident_bytes),
        units::bytes(summary.memory_bytes),
        summary.interval_seconds
    );
    if let Some(why) = &summary.suspended {
        out.push_str(&format!("SUSPENDED: {why}\n"));
    }
    let tables = [
        tables::datasets(summary),
        tables::operations(summary),
        tables::hits(summary),
        tables::lists(summary),
        tables::causes(summary),
        tables::misses(summary),
        tables::devices(summary),
        tables::txgs(summary),
    ];
    for mut table in tables {
        table.rows.truncate(TEXT_ROWS_MAX);
        if !table.rows.is_empty() {
            out.push('\n');
            out.push_str(&table.to_text());
        }
    }
    out
}

/// Rows of a table in text; the JSON output has all.
const TEXT_ROWS_MAX: usize = 20;
