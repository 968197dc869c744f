//! Takes samples of all daemons.
//!
//! A thread asks, so that the screen answers keys while a daemon hangs. Each round looks for
//! daemons again: one may have started or ended meanwhile. What was missed is asked for only while
//! its page shows, because a daemon looks up names for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use forebay_base::sync::thread::spawn_named;

use crate::control::client::{self, Process};
use crate::control::messages::ExplainReport;
use crate::control::sample::{MissesSample, PoolSample, ProcessSample};
use crate::control::{ExplainScope, Request};
use crate::error::{Failure, Result};

/// Time to the second sample, after which rates are known.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);

/// What was missed is asked for so often, and for so many seconds.
const MISSES_INTERVAL: Duration = Duration::from_secs(5);
const MISSES_S: u64 = 60;

/// The samples of one round.
pub(super) struct Round {
    /// When it ended.
    pub(super) at: Instant,
    pub(super) samples: Vec<ProcessSample>,
    /// Why a daemon does not answer.
    pub(super) trouble: Option<String>,
}

/// Asks all daemons. One that has ended meanwhile has no pools and is left out. With `misses`, asks
/// also what was missed, which looks up names in directories.
pub(super) fn round(misses: bool) -> Round {
    let daemons = client::daemons();
    let mut trouble = daemons.silent.first().map(|silent| silent.failure.message.clone());
    let mut samples = Vec::new();
    for process in &daemons.answering {
        match process.ask::<ProcessSample>(&Request::Sample) {
            Ok(mut sample) => {
                if misses {
                    sample.pools.iter_mut().for_each(|pool| ask_misses(process, pool));
                }
                samples.push(sample);
            }
            Err(failure) if process.is_alive() => trouble = Some(failure.message),
            Err(_) => {}
        }
    }
    Round { at: Instant::now(), samples, trouble }
}

/// Asks what was missed. A suspended pool might not answer.
fn ask_misses(process: &Process, pool: &mut PoolSample) {
    if pool.stats.suspended.is_some() {
        return;
    }
    let scope = ExplainScope { pool: Some(pool.guid), since_s: MISSES_S, ..Default::default() };
    // A pool may be exported meanwhile.
    if let Ok(report) = process.ask::<ExplainReport>(&Request::Explain(scope)) {
        let (span_ns, misses, blocks) = (report.span_ns, report.missed, report.blocks);
        pool.misses = MissesSample { span_ns, misses, blocks };
    }
}

/// Starts a thread that sends a round every `interval`, with what was missed while `shows_misses`.
///
/// # Errors
/// If the system has no thread.
pub(super) fn start(interval: Duration, shows_misses: Arc<AtomicBool>) -> Result<Receiver<Round>> {
    let (sender, receiver) = sync_channel(1);
    spawn_named("forebay-top", move || run(interval, &sender, &shows_misses))
        .map_err(|error| Failure::no_thread("cannot ask the daemons", &error))?;
    Ok(receiver)
}

fn run(interval: Duration, sender: &SyncSender<Round>, shows_misses: &AtomicBool) {
    let mut pause = FIRST_INTERVAL.min(interval);
    let mut asked: Option<Instant> = None;
    let mut misses: HashMap<(u32, u64), MissesSample> = HashMap::new();
    loop {
        let began = Instant::now();
        let is_due = shows_misses.load(Ordering::Relaxed)
            && asked.is_none_or(|at| began.duration_since(at) >= MISSES_INTERVAL);
        let mut round = round(is_due);
        if is_due {
            asked = Some(began);
            misses.clear();
        }
        for sample in &mut round.samples {
            for pool in &mut sample.pools {
                let newest = misses.entry((sample.pid, pool.guid));
                pool.misses = newest.or_insert_with(|| pool.misses.clone()).clone();
            }
        }
        // Nobody listens any more when the screen has ended.
        if sender.send(round).is_err() {
            return;
        }
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
        pause = interval;
    }
}
