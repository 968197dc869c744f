//! A crash: the device is gone, with the content of its volatile cache.

use std::collections::BTreeSet;

use forebay_base::rng::SmallRng;

use super::{FaultDevice, FaultShared};
use crate::error::Error;
use crate::in_callback;
use crate::request::{Op, Request};

/// With `Crash::Sample`, one sector in this many is torn.
const TORN_ONE_IN: u64 = 16;

/// The part of the volatile cache that survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Nothing.
    LoseAll,
    /// All of it.
    KeepAll,
    /// Each sector survives or not, drawn from this seed. A few are damaged.
    Sample(u64),
}

/// The fate of the sectors of the volatile cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crashed {
    /// Sectors that reached the medium.
    pub kept: u64,
    /// Sectors whose old content is on the medium.
    pub lost: u64,
    /// Damaged sectors: new bytes at the start, then bytes that are neither old nor new. The other
    /// sectors of their physical sectors are damaged too, and not counted here.
    pub torn: u64,
}

impl FaultDevice {
    /// Crashes the device. New and delayed requests fail with
    /// [`ErrorKind::Gone`](crate::ErrorKind::Gone), and `how` decides what survives of the volatile
    /// cache. Returns once all requests have completed. The device below stays open: it is the
    /// medium as it is found after the crash.
    ///
    /// # Errors
    /// An error of the device below while surviving sectors are written.
    ///
    /// # Panics
    /// Inside a callback of a request.
    pub fn crash(&self, how: Crash) -> Result<Crashed, Error> {
        assert!(!in_callback(), "a callback must not wait for requests");
        self.shared.state.lock().crashed = true;
        self.drain();
        let sectors = self.shared.state.lock().volatile.take();
        let mut rng = SmallRng::from_seed(match how {
            Crash::Sample(seed) => seed,
            Crash::LoseAll | Crash::KeepAll => 0,
        });
        let mut crashed = Crashed::default();
        let mut torn = Vec::new();
        for (offset, sector) in sectors {
            let mut bytes = sector.to_vec();
            let keep = match how {
                Crash::LoseAll => false,
                Crash::KeepAll => true,
                Crash::Sample(_) if rng.below(TORN_ONE_IN) == 0 => {
                    let cut = rng.below(bytes.len() as u64) as usize;
                    bytes[cut..].iter_mut().for_each(|byte| *byte = !*byte);
                    crashed.torn += 1;
                    torn.push(offset);
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
        self.shared.damage_neighbours(&torn)?;
        Ok(crashed)
    }
}

impl FaultShared {
    /// Damages the other sectors of the physical sectors of torn ones.
    fn damage_neighbours(&self, torn: &[u64]) -> Result<(), Error> {
        let info = self.inner.info();
        let (sector, physical) = (info.sector_bytes as usize, u64::from(info.physical_bytes));
        let neighbours = torn.iter().flat_map(|offset| {
            let start = offset / physical * physical;
            (start..(start + physical).min(info.size_bytes)).step_by(sector)
        });
        let neighbours: BTreeSet<u64> = neighbours.filter(|at| !torn.contains(at)).collect();
        for offset in neighbours {
            let no_memory = |error| self.no_memory(Op::Read, (offset, sector as u64), &error);
            let buffer = self.scratch.alloc(sector).map_err(no_memory)?;
            let buffer = self.inner.run(Request::read(offset, buffer)).into_buffer()?;
            let damaged: Vec<u8> = buffer.iter().map(|byte| !byte).collect();
            self.put(offset, &damaged)?;
        }
        Ok(())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut buffer = self
            .scratch
            .alloc(bytes.len())
            .map_err(|error| self.no_memory(Op::Write, (offset, bytes.len() as u64), &error))?;
        buffer.copy_from_slice(bytes);
        self.inner.run(Request::write(offset, buffer)).result
    }
}
