//! Writes on their way to devices: a bound on their bytes, and what of them failed.
//!
//! Locking: `store-in-flight`, a leaf lock.

use forebay_base::sync::{Condvar, Mutex};

use crate::error::Error;

/// The writes of a store that have not ended.
pub(super) struct InFlightWrites {
    limit_bytes: u64,
    state: Mutex<InFlightState>,
    changed: Condvar,
}

#[derive(Default)]
struct InFlightState {
    writes: u64,
    bytes: u64,
    waiters: u64,
    failed: u64,
    first: Option<Error>,
}

impl InFlightWrites {
    pub(super) fn new(limit_bytes: u64) -> Self {
        let state = Mutex::named("store-in-flight", InFlightState::default());
        Self { limit_bytes, state, changed: Condvar::new() }
    }

    /// Counts a write in, after waiting until it is within the bound (one write always is). Says
    /// whether it waited. In a request's callback it does not wait.
    pub(super) fn begin(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let mut waited = false;
        while state.bytes > 0
            && state.bytes + bytes > self.limit_bytes
            && !forebay_io::in_callback()
        {
            waited = true;
            state.waiters += 1;
            self.changed.wait(&mut state);
            state.waiters -= 1;
        }
        state.writes += 1;
        state.bytes += bytes;
        waited
    }

    /// Counts a write out.
    pub(super) fn end(&self, bytes: u64, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.writes -= 1;
        state.bytes -= bytes;
        if let Err(error) = result {
            state.failed += 1;
            state.first.get_or_insert(error);
        }
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until no write is on its way, and returns what failed since the last call.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        while state.writes > 0 {
            state.waiters += 1;
            self.changed.wait(&mut state);
            state.waiters -= 1;
        }
        let failed = std::mem::take(&mut state.failed);
        match state.first.take() {
            None => Ok(()),
            Some(first) if failed == 1 => Err(first),
            Some(first) => {
                let text = format!("{first}; {} other writes failed as well", failed - 1);
                Err(Error::new(first.kind(), text).because(first))
            }
        }
    }

    /// Bytes on their way.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}
