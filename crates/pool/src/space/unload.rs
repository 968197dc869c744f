//! Bounds the memory of loaded metaslabs on a device that takes each address once.
//!
//! There, only the metaslab at the frontier is allocated from. Others are loaded to be rewritten,
//! discarded or cleaned, and would stay in memory for as long as the pool is imported. So those
//! that were used longest ago are unloaded once all have too many ranges. What has changed since
//! the base of a metaslab was written is kept ([`Metaslab::since_base`]), and is applied when the
//! base is read again. The log bounds these changes.
//!
//! # Invariants
//!
//! - Nothing is unloaded from the begin of a txg until it is durable, or while a check compares
//!   the space maps.
//! - A metaslab whose ranges are held or listed for discards stays loaded, and so does that of the
//!   frontier: each txg uses it.
//! - The base and the changes of a metaslab that is unloaded yield its free ranges.
//!
//! Locking: none here; see [`super`].

use crate::Result;

use super::Space;
use super::metaslab::{FreeMap, Metaslab};

/// Ranges of all loaded metaslabs, if nothing else is set.
const RANGES_MAX: usize = 1 << 20;

/// What is known about loaded metaslabs.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The most ranges that they may have, except those of the frontier and the one used last.
    ranges_max: usize,
    /// Grows with each use of a metaslab.
    clock: u64,
    /// The metaslab of which a pass discards.
    listed: Option<u32>,
}

impl Default for Loaded {
    fn default() -> Self {
        Self { ranges_max: RANGES_MAX, clock: 0, listed: None }
    }
}

impl Space {
    /// Limits the ranges of loaded metaslabs, where these can be unloaded.
    pub(crate) fn limit_loaded(&mut self, ranges_max: usize) {
        self.loaded.ranges_max = ranges_max;
    }

    /// The metaslab is being used.
    pub(super) fn note_used(&mut self, id: u32) {
        self.loaded.clock += 1;
        self.metaslabs[id as usize].used = self.loaded.clock;
    }

    /// Keeps a metaslab loaded until another one is kept, or [`end_list`](Self::end_list).
    pub(super) fn begin_list(&mut self, id: u32) {
        self.loaded.listed = Some(id);
    }

    /// No metaslab needs to stay loaded for a list of discards. Unloads what is too much.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if a range is free twice.
    pub(crate) fn end_list(&mut self) -> Result<()> {
        self.loaded.listed = None;
        self.unload_excess()
    }

    /// Unloads metaslabs until the others are within the limit.
    ///
    /// # Errors
    /// As [`end_list`](Self::end_list).
    pub(crate) fn unload_excess(&mut self) -> Result<()> {
        if self.open.is_some() || !self.durable || self.audit.is_some() {
            return Ok(());
        }
        let is_candidate = |metaslab: &&Metaslab| metaslab.is_append_only && metaslab.is_loaded();
        let loaded = || self.metaslabs.iter().filter(is_candidate);
        let mut ranges: usize = loaded().filter_map(Metaslab::range_count).sum();
        if ranges <= self.loaded.ranges_max {
            return Ok(());
        }
        let mut by_use: Vec<(u64, u32)> = loaded().map(|it| (it.used, it.id)).collect();
        by_use.sort_unstable();
        by_use.pop();
        for (_, id) in by_use {
            if ranges <= self.loaded.ranges_max {
                break;
            }
            let stays = self.loaded.listed == Some(id) || self.is_at_frontier(id);
            let metaslab = &mut self.metaslabs[id as usize];
            let before = metaslab.range_count().unwrap_or_default();
            if !stays && metaslab.unload()? {
                ranges -= before;
            }
        }
        Ok(())
    }
}

impl Metaslab {
    /// Forgets the free ranges. Returns false if they are needed.
    fn unload(&mut self) -> Result<bool> {
        if !self.held.is_empty() || !self.allocated.is_empty() || self.must_flush {
            return Ok(false);
        }
        self.return_run()?;
        self.map = FreeMap::Unloaded(std::mem::take(&mut self.since_base));
        Ok(true)
    }
}
