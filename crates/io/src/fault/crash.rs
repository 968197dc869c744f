//! A crash: the device is gone, and with it what was in its volatile cache.

use forebay_base::rng::SmallRng;

use super::{FaultDevice, Shared};
use crate::error::Error;
use crate::in_callback;
use crate::request::{Op, Request};

/// One sector in so many is torn, if chance decides what survives.
const TORN_ONE_IN: u64 = 16;

/// What of the volatile cache survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Nothing.
    LoseAll,
    /// All of it.
    KeepAll,
    /// Each sector or not, as the numbers of this seed fall; a few are damaged.
    Sample(u64),
}

/// What became of the sectors of the volatile cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crashed {
    /// Sectors that are on the medium now.
    pub kept: u64,
    /// Sectors of which the medium has what it had before.
    pub lost: u64,
    /// Sectors that are damaged: they begin as the new one and go on as something else.
    pub torn: u64,
}

impl FaultDevice {
    /// Crashes: whatever comes from now on, and what is delayed, fails with
    /// [`ErrorKind::Gone`](crate::ErrorKind::Gone), and of the volatile cache there survives
    /// what `how` says. Returns once all requests have ended. The device below stays open: it is the
    /// medium as the next one to open it finds it.
    ///
    /// # Errors
    /// Those of the device below, when it writes what survives.
    ///
    /// # Panics
    /// Inside a callback of a request.
    pub fn crash(&self, how: Crash) -> Result<Crashed, Error> {
        assert!(!in_callback(), "a callback must not wait for requests");
        self.shared.state.lock().crashed = true;
        self.land();
        let sectors = self.shared.state.lock().volatile.take();
        let mut rng = SmallRng::from_seed(match how {
            Crash::Sample(seed) => seed,
            Crash::LoseAll | Crash::KeepAll => 0,
        });
        let mut crashed = Crashed::default();
        for (offset, sector) in sectors {
            let mut bytes = sector.to_vec();
            let keep = match how {
                Crash::LoseAll => false,
                Crash::KeepAll => true,
                Crash::Sample(_) if rng.below(TORN_ONE_IN) == 0 => {
                    let cut = rng.below(bytes.len() as u64) as usize;
                    bytes[cut..].iter_mut().for_each(|byte| *byte = !*byte);
                    crashed.torn += 1;
                    self.shared.put(offset, &bytes)?;
                    continue;
                }
                Crash::Sample(_) => rng.below(2) == 0,
            };
            if keep {
                crashed.kept += 1;
                self.shared.put(offset, &bytes)?;
            } else {
                crashed.lost += 1;
            }
        }
        Ok(crashed)
    }
}

impl Shared {
    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut buffer = self
            .scratch
            .alloc(bytes.len())
            .map_err(|error| self.no_memory(Op::Write, (offset, bytes.len() as u64), &error))?;
        buffer.copy_from_slice(bytes);
        self.inner.run(Request::write(offset, buffer)).result
    }
}
