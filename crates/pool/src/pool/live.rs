//! Tells a device that takes each address once which addresses are live.
//!
//! An object store moves what is live out of objects that are mostly dead. A range is live as long
//! as one of the newest three roots may reach it, as for discards.

use forebay_base::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;

use super::{Pool, PoolInner};

/// Knows which addresses of a pool on an object store are live. It does not keep the pool open.
#[derive(Clone)]
pub struct LiveRanges {
    pool: Weak<PoolInner>,
    name: String,
}

impl Pool {
    /// Returns what a device that takes each address once asks for live addresses.
    pub fn live_ranges(&self) -> LiveRanges {
        LiveRanges { pool: Arc::downgrade(&self.inner), name: self.inner.name.clone() }
    }
}

impl LiveRanges {
    /// Returns what may still be read among the addresses from `start` to `end` of the device:
    /// ranges of bytes, sorted and apart. It reads space maps, so it may wait for the device.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the pool is exported, and the error of reading a space map. Then
    /// all must be taken for live.
    pub fn within(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let closed = || Error::new(ErrorKind::Closed, format!("pool {} was exported", self.name));
        let pool = self.pool.upgrade().ok_or_else(closed)?;
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut at = start;
        while at < end {
            let found = pool.space.lock().metaslab_at(Dva { device: 0, offset: at });
            let Some((id, until)) = found else {
                // Nobody knows this address.
                live.push((at, end));
                break;
            };
            let here = {
                let mut space = pool.lock_loaded(id)?;
                let here = space.live_in(id, at, end)?;
                space.unload_excess()?;
                here
            };
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
