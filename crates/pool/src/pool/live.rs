//! Tells a device that takes each address once which addresses are live.
//!
//! An object store moves what is live out of objects that are mostly dead. A range is live as long
//! as one of the newest three roots may reach it, as for discards.

use crate::error::Result;
use crate::format::Dva;

use super::Pool;

impl Pool {
    /// Returns what may still be read among the addresses from `start` to `end` of a device, which
    /// is given by its number: ranges of bytes, sorted and apart. It reads space maps, so it may
    /// wait for the device.
    ///
    /// # Errors
    /// If a space map cannot be read. Then all must be taken for live.
    pub fn live_ranges(&self, device: u16, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let inner = &self.inner;
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut at = start;
        while at < end {
            let found = inner.space.lock().metaslab_at(Dva { device, offset: at });
            let Some((id, until)) = found else {
                // Nobody knows this address.
                live.push((at, end));
                break;
            };
            inner.load_metaslab(id)?;
            let here = inner.space.lock().live_in(id, at, end)?;
            for (from, to) in here {
                match live.last_mut().filter(|(_, last)| *last == from) {
                    Some((_, last)) => *last = to,
                    None => live.push((from, to)),
                }
            }
            at = until;
        }
        Ok(live)
    }
}
