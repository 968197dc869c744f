//! Limits the bytes of writes in flight, and collects their failures.
//!
//! Locking: `store-in-flight`, a leaf lock.

use forebay_base::sync::{Condvar, Mutex};

use crate::error::Error;

/// The writes of a store that are in flight.
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

    /// Counts a write. Waits until it is within the limit; a single write always is. Returns
    /// whether it waited. In an I/O callback it does not wait.
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

    /// Removes a write and records its failure.
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

    /// Waits until no write is in flight. Returns the failures since the last call.
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
                let text = format!("{first}; {} more writes failed", failed - 1);
                Err(Error::new(first.kind(), text).because(first))
            }
        }
    }

    /// Bytes of writes in flight.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}
