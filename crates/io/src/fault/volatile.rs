//! The volatile cache of a fault device: sectors of writes that were acknowledged and are not on
//! the medium.
//!
//! Invariants
//! * A sector that is here is newer than the medium's. So a write that touches one goes here too,
//!   until a flush has emptied the cache: then no request that is in flight can put an older
//!   content over a newer one.
//! * Each content has a number, in the order of writes. A flush writes the contents that it
//!   found, and forgets those that are still the ones it wrote.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::sync::Arc;

/// Sectors that lie side by side are written together up to so many bytes.
const RUN_BYTES: u64 = 1 << 20;

struct Held {
    bytes: Arc<Vec<u8>>,
    number: u64,
}

/// Acknowledged, and not on the medium.
pub(super) struct Volatile {
    sector_bytes: u64,
    max_bytes: u64,
    // By number of the sector.
    sectors: BTreeMap<u64, Held>,
    // Of the latest write.
    number: u64,
}

/// Sectors side by side, as they were at some time.
pub(super) struct Run {
    /// The first byte on the device.
    pub(super) offset: u64,
    pub(super) sectors: Vec<Arc<Vec<u8>>>,
}

impl Volatile {
    pub(super) fn new(sector_bytes: u32, max_bytes: u64) -> Self {
        let sector_bytes = u64::from(sector_bytes);
        Self { sector_bytes, max_bytes, sectors: BTreeMap::new(), number: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.sectors.len()
    }

    fn numbers(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start / self.sector_bytes..bytes.end.div_ceil(self.sector_bytes)
    }

    /// Whether some of these bytes of the device are here.
    pub(super) fn overlaps(&self, bytes: &Range<u64>) -> bool {
        !bytes.is_empty() && self.sectors.range(self.numbers(bytes)).next().is_some()
    }

    /// Whether `len` more bytes fit.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.sectors.len() as u64 * self.sector_bytes + len <= self.max_bytes
    }

    /// Takes whole sectors.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        self.number += 1;
        let first = offset / self.sector_bytes;
        for (at, sector) in bytes.chunks_exact(self.sector_bytes as usize).enumerate() {
            let held = Held { bytes: Arc::new(sector.to_vec()), number: self.number };
            self.sectors.insert(first + at as u64, held);
        }
    }

    /// The sectors that are here of these bytes of the device: first byte, content.
    pub(super) fn over(&self, bytes: &Range<u64>) -> Vec<(u64, Arc<Vec<u8>>)> {
        let found = self.sectors.range(self.numbers(bytes));
        found.map(|(at, held)| (at * self.sector_bytes, Arc::clone(&held.bytes))).collect()
    }

    /// All that is here, and the number of the latest write in it.
    pub(super) fn runs(&self) -> (Vec<Run>, u64) {
        let mut runs: Vec<Run> = Vec::new();
        for (at, held) in &self.sectors {
            let offset = at * self.sector_bytes;
            let bytes = Arc::clone(&held.bytes);
            let joins = |run: &&mut Run| {
                let len = run.sectors.len() as u64 * self.sector_bytes;
                run.offset + len == offset && len < RUN_BYTES
            };
            match runs.last_mut().filter(joins) {
                Some(run) => run.sectors.push(bytes),
                None => runs.push(Run { offset, sectors: vec![bytes] }),
            }
        }
        (runs, self.number)
    }

    /// Forgets what is not newer than write `number`, which is durable now.
    pub(super) fn forget(&mut self, number: u64) {
        self.sectors.retain(|_, held| held.number > number);
    }

    /// Takes everything out: first byte, content.
    pub(super) fn take(&mut self) -> Vec<(u64, Arc<Vec<u8>>)> {
        let sector_bytes = self.sector_bytes;
        let sectors = std::mem::take(&mut self.sectors);
        sectors.into_iter().map(|(at, held)| (at * sector_bytes, held.bytes)).collect()
    }
}
