//! Starts the scrubs that are due: pools say how often they want one (`forebay scrub --every`).
//!
//! A thread looks at all pools of the daemon at intervals. It takes `daemon-state` for a look, and
//! starts a scrub without it.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::sync::thread::spawn_named;
use forebay_pool::Pool;

use super::Daemon;
use crate::error::{Failure, Result};

/// Pause between two looks. Scrubs are hours apart at least.
const PERIOD: Duration = Duration::from_secs(30);

/// Starts the thread. It ends when the daemon is dropped.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn start(daemon: &Arc<Daemon>) -> Result<()> {
    let daemon = Arc::downgrade(daemon);
    let run = move || {
        while let Some(daemon) = Weak::upgrade(&daemon) {
            daemon.pools().iter().for_each(|imported| start_due(&imported.pool()));
            drop(daemon);
            thread::sleep(PERIOD);
        }
    };
    spawn_named("forebay-schedule", run)
        .map(drop)
        .map_err(|error| Failure::no_thread("cannot schedule scrubs", &error))
}

/// Starts the scrub of a pool if it is due. The next look tries again if that fails.
pub(super) fn start_due(pool: &Pool) {
    let now = SystemWallClock.unix_time().seconds.max(0) as u64;
    let is_due = pool.scrub_status().due().is_some_and(|due| due <= now);
    if !is_due || pool.is_read_only() || pool.suspension().is_some() {
        return;
    }
    if let Err(error) = pool.start_scrub() {
        tracing::warn!(pool = pool.name(), %error, "cannot start the scrub that is due");
    }
}
