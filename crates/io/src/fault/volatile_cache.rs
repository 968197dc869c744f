//! The volatile cache of a fault device: acknowledged sectors that are not on the medium.
//!
//! Invariants:
//! * A cached sector is newer than the medium's. So a write that overlaps one is cached too, until
//!   a flush has emptied the cache. Then no request in flight can overwrite newer content with
//!   older.
//! * Each content has a number, in the order of writes. A flush writes the contents that it found,
//!   and forgets those that were not replaced meanwhile.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::sync::Arc;

/// Most bytes of adjacent sectors that are written together.
const RUN_BYTES: u64 = 1 << 20;

struct CachedSector {
    bytes: Arc<Vec<u8>>,
    number: u64,
}

/// Acknowledged sectors that are not on the medium.
pub(super) struct VolatileCache {
    sector_bytes: u64,
    max_bytes: u64,
    // By sector number.
    sectors: BTreeMap<u64, CachedSector>,
    // The number of the latest write.
    number: u64,
}

/// Adjacent sectors, as they were at some time.
pub(super) struct Run {
    /// The first byte on the device.
    pub(super) offset: u64,
    pub(super) sectors: Vec<Arc<Vec<u8>>>,
}

impl VolatileCache {
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

    /// Returns whether any of these bytes of the device are cached.
    pub(super) fn overlaps(&self, bytes: &Range<u64>) -> bool {
        !bytes.is_empty() && self.sectors.range(self.numbers(bytes)).next().is_some()
    }

    /// Returns whether `len` more bytes fit.
    pub(super) fn has_capacity(&self, len: u64) -> bool {
        self.sectors.len() as u64 * self.sector_bytes + len <= self.max_bytes
    }

    /// Stores whole sectors.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        self.number += 1;
        let first = offset / self.sector_bytes;
        for (at, sector) in bytes.chunks_exact(self.sector_bytes as usize).enumerate() {
            let cached = CachedSector { bytes: Arc::new(sector.to_vec()), number: self.number };
            self.sectors.insert(first + at as u64, cached);
        }
    }

    /// Returns the cached sectors of these bytes of the device: first byte, content.
    pub(super) fn cached_sectors(&self, bytes: &Range<u64>) -> Vec<(u64, Arc<Vec<u8>>)> {
        let found = self.sectors.range(self.numbers(bytes));
        found.map(|(at, cached)| (at * self.sector_bytes, Arc::clone(&cached.bytes))).collect()
    }

    /// Returns the whole content, and the number of its latest write.
    pub(super) fn runs(&self) -> (Vec<Run>, u64) {
        let mut runs: Vec<Run> = Vec::new();
        for (at, cached) in &self.sectors {
            let offset = at * self.sector_bytes;
            let bytes = Arc::clone(&cached.bytes);
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

    /// Forgets content up to write `number`, which is durable now.
    pub(super) fn forget(&mut self, number: u64) {
        self.sectors.retain(|_, cached| cached.number > number);
    }

    /// Takes the whole content: first byte, content.
    pub(super) fn take(&mut self) -> Vec<(u64, Arc<Vec<u8>>)> {
        let sector_bytes = self.sector_bytes;
        let sectors = std::mem::take(&mut self.sectors);
        sectors.into_iter().map(|(at, cached)| (at * sector_bytes, cached.bytes)).collect()
    }
}
