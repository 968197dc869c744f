//! Takes samples of all daemons.
//!
//! A thread asks, so that the screen answers keys while a daemon hangs. Each round looks for
//! daemons again: one may have started or ended meanwhile.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use forebay_base::sync::thread::spawn_named;

use crate::control::Request;
use crate::control::client;
use crate::control::sample::ProcessSample;
use crate::error::{Failure, Result};

/// Time to the second sample, after which rates are known.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);

/// The samples of one round.
pub(super) struct Round {
    /// When it ended.
    pub(super) at: Instant,
    pub(super) samples: Vec<ProcessSample>,
    /// Why a daemon does not answer.
    pub(super) trouble: Option<String>,
}

/// Asks all daemons. One that has ended meanwhile has no pools and is left out.
pub(super) fn round() -> Round {
    let daemons = client::daemons();
    let mut trouble = daemons.silent.first().map(|failure| failure.message.clone());
    let mut samples = Vec::new();
    for process in &daemons.answering {
        match process.ask::<ProcessSample>(&Request::Sample) {
            Ok(sample) => samples.push(sample),
            Err(failure) if process.is_alive() => trouble = Some(failure.message),
            Err(_) => {}
        }
    }
    Round { at: Instant::now(), samples, trouble }
}

/// Starts a thread that sends a round every `interval`.
///
/// # Errors
/// If the system has no thread.
pub(super) fn start(interval: Duration) -> Result<Receiver<Round>> {
    let (sender, receiver) = sync_channel(1);
    spawn_named("forebay-top", move || run(interval, &sender))
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    Ok(receiver)
}

fn run(interval: Duration, sender: &SyncSender<Round>) {
    let mut pause = FIRST_INTERVAL.min(interval);
    loop {
        let began = Instant::now();
        // Nobody listens any more when the screen has ended.
        if sender.send(round()).is_err() {
            return;
        }
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
        pause = interval;
    }
}
