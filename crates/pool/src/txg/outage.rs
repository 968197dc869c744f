//! Outages: a device does not answer, and comes back by itself, as an object store does.
//!
//! Its requests wait, so no txg becomes durable. Nothing is suspended: changes go on until too much
//! data is dirty. Then they, and all that wait for a durable txg, fail as those of a suspended pool
//! do, so that callers can wait where they can be interrupted ([`Txgs::wait_resumed`]). The sync
//! thread knows nothing of it.
//!
//! Locking: the device is asked without `txg-state`.

use std::time::Duration;

use forebay_base::sync::{Condvar, MutexGuard};

use super::{TxgState, Txgs};
use crate::error::{Error, ErrorKind, Result};

/// Interval at which a thread that waits asks for outages.
const INTERVAL: Duration = Duration::from_millis(250);

/// Says which device does not answer, as a sentence.
pub(crate) type AskOutage = Box<dyn Fn() -> Option<String> + Send + Sync>;

impl Txgs {
    /// Returns the txgs of a pool with a device that may be away.
    pub(crate) fn with_outages(self, ask: AskOutage) -> Self {
        Self { outages: Some(ask), ..self }
    }

    /// Whether a device of the pool may be away and come back by itself.
    pub(crate) fn may_have_outages(&self) -> bool {
        self.outages.is_some()
    }

    /// Which device does not answer.
    pub(crate) fn outage(&self) -> Option<String> {
        self.outages.as_ref().and_then(|ask| ask())
    }

    /// Waits until `changed` is notified. Returns early now and then if a device may be away.
    ///
    /// # Errors
    /// `Suspended` if one is.
    pub(super) fn wait_or_outage<'a>(
        &'a self,
        changed: &Condvar,
        mut state: MutexGuard<'a, TxgState>,
    ) -> (MutexGuard<'a, TxgState>, Result<()>) {
        let Some(ask) = &self.outages else {
            changed.wait(&mut state);
            return (state, Ok(()));
        };
        if !changed.wait_timeout(&mut state, INTERVAL) {
            return (state, Ok(()));
        }
        drop(state);
        let refused = ask().map_or(Ok(()), |outage| Err(refusal(&outage)));
        (self.state.lock(), refused)
    }
}

fn refusal(outage: &str) -> Error {
    let text = "nothing can be made durable; it goes on by itself once the device answers";
    Error::new(ErrorKind::Suspended, text).because(outage.to_owned())
}
