//! Gives an export up that waits for a device that is away.
//!
//! An export waits for a device that comes back by itself, in many places: commits, labels, threads
//! that read. A thread watches meanwhile. If the device is away and the caller gives up, it stops
//! the txgs and closes the device, so that all that waits for either fails. The newest durable
//! group stays as it is.
//!
//! Locking: `pool-outage-watch` protects whether the watch ends, and what was lost. The watching
//! thread sleeps on it, and asks devices and the caller without it.

use std::time::Duration;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::error::{Error, ErrorKind};

use super::PoolInner;

/// Interval at which the thread asks whether to give up.
const INTERVAL: Duration = Duration::from_millis(100);

/// Says whether an export gives up to wait for a device that is away.
pub type GivesUp = Arc<dyn Fn() -> bool + Send + Sync>;

/// A watch over an export.
pub(super) struct OutageWatch {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchState {
    ends: bool,
    /// What is lost, once the export was given up.
    lost: Option<String>,
}

impl OutageWatch {
    /// Watches a pool; `None` if none of its devices comes back by itself, or the system gives no
    /// thread.
    pub(super) fn start(pool: &Arc<PoolInner>, gives_up: GivesUp) -> Option<Self> {
        if !pool.txgs.may_have_outages() {
            return None;
        }
        let state = Mutex::named("pool-outage-watch", WatchState::default());
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let (watch, pool) = (Arc::clone(&shared), Arc::clone(pool));
        let run = move || watch.run(&pool, &*gives_up);
        let thread = thread::spawn_named("forebay-export", run).ok()?;
        Some(Self { shared, thread })
    }

    /// Ends the watch, after the export. Returns the error if it was given up.
    pub(super) fn end(self) -> Option<Error> {
        self.shared.state.lock().ends = true;
        self.shared.changed.notify_all();
        // The panic hook has already reported a panic of the thread.
        let _ = self.thread.join();
        let lost = self.shared.state.lock().lost.take()?;
        Some(Error::new(ErrorKind::Device, lost))
    }
}

impl Shared {
    fn run(&self, pool: &PoolInner, gives_up: &dyn Fn() -> bool) {
        let mut was_said = false;
        while !self.wait() {
            let Some(outage) = pool.txgs.outage() else { continue };
            if !gives_up() {
                if !std::mem::replace(&mut was_said, true) {
                    tracing::warn!(pool = &*pool.name, %outage, "the export waits for a device");
                }
                continue;
            }
            self.state.lock().lost = Some(what_is_lost(pool, &outage));
            pool.txgs.close();
            pool.devices.leaves().for_each(|leaf| leaf.device().close());
            return;
        }
    }

    /// Waits for the next look. Returns whether the export has ended.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.ends {
            self.changed.wait_timeout(&mut state, INTERVAL);
        }
        state.ends
    }
}

fn what_is_lost(pool: &PoolInner, outage: &str) -> String {
    let (txg, dirty) = (pool.txgs.synced_txg(), pool.txgs.dirty_bytes());
    format!(
        "{outage}; gave up: changes since transaction group {txg}, about {dirty} bytes, are lost \
         unless an fsync has reported them as durable; import the pool once the store answers"
    )
}
