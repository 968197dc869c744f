//! The read-ahead state of one object: its streams, and the reads that would have blocked.
//!
//! The object reports each read that is not on the fast path ([`ObjectReadahead::on_read`]) and
//! issues the plans that come back.
//!
//! # Locking
//!
//! None; the object's lock protects it.

use std::ops::Range;

use forebay_base::clock::Clock;
use forebay_base::sync::{Arc, Weak};

use super::counters::PrefetchCounters;
use super::detector::{Limits, Plan, ReadOutcome, StreamDetector};
use super::tunables::PrefetchTunables;
use crate::object::Node;
use crate::zap::{MergeQueue, ZapCounters, ZapShared, ZapTunables};

/// The parts of read-ahead that all objects of a pool share.
pub(crate) struct ReadAhead {
    tunables: Arc<PrefetchTunables>,
    counters: Arc<PrefetchCounters>,
    directories: ZapShared,
    /// Directories whose change buffers fill.
    merges: MergeQueue<Weak<Node>>,
    clock: Arc<dyn Clock>,
}

impl ReadAhead {
    pub(crate) fn new(
        tunables: Arc<PrefetchTunables>,
        directories: Arc<ZapTunables>,
        clock: Arc<dyn Clock>,
        (counters, zap_counters): (Arc<PrefetchCounters>, Arc<ZapCounters>),
    ) -> Arc<Self> {
        let directories = ZapShared::new(directories, zap_counters);
        Arc::new(Self { tunables, counters, directories, merges: MergeQueue::new(), clock })
    }

    /// What directories share.
    pub(crate) fn directories(&self) -> &ZapShared {
        &self.directories
    }

    pub(crate) fn merges(&self) -> &MergeQueue<Weak<Node>> {
        &self.merges
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn counters(&self) -> &PrefetchCounters {
        &self.counters
    }
}

/// Limit of remembered unserved reads. If the oldest is dropped, its retry is reported again.
const UNSERVED_MAX: usize = 64;

/// Limit of postponed plans.
const POSTPONED_MAX: usize = 16;

/// Read-ahead state of one object.
#[repr(C)]
pub(crate) struct ObjectReadahead {
    detector: Option<Box<StreamDetector>>,
    /// Where reads found blocks, as far as no stream has learned of it; a hit if all were in the
    /// cache.
    last_found: ReadOutcome,
    /// Block ranges of reads that were reported and then not served, because that would have
    /// blocked. A retry is not reported again.
    unserved: Vec<Range<u64>>,
    /// Plans, or the rest of them, that need an indirect block first, which is being read. The next
    /// read issues them.
    postponed: Vec<Plan>,
}

impl ObjectReadahead {
    pub(crate) fn new() -> Self {
        Self {
            detector: None,
            last_found: ReadOutcome::Hit,
            unserved: Vec::new(),
            postponed: Vec::new(),
        }
    }

    /// Whether a read of this cached block need not be reported.
    #[inline]
    pub(crate) fn may_skip_report(&self, block: u64) -> bool {
        self.unserved.is_empty()
            && self.postponed.is_empty()
            // A stream would count an old miss as its own.
            && self.last_found == ReadOutcome::Hit
            && !self.detector.as_ref().is_some_and(|streams| streams.is_near_a_stream(block))
    }

    /// Reports a read of blocks of an object of `end_block` blocks, and returns the blocks to read
    /// ahead. The detector learns how earlier reads were served: this one is not served yet.
    pub(crate) fn on_read(
        &mut self,
        shared: &ReadAhead,
        blocks: &Range<u64>,
        end_block: u64,
        block_bytes: u64,
    ) -> Option<Plan> {
        let limits = Limits::new(&shared.tunables, block_bytes);
        let count = (blocks.end - blocks.start).min(u64::from(u32::MAX)) as u32;
        let detector = self.detector.get_or_insert_with(|| Box::new(StreamDetector::new()));
        let now_ns = || shared.clock.now_ns();
        let found = &mut self.last_found;
        detector.on_read((blocks.start, count), end_block, found, now_ns, &limits, &shared.counters)
    }

    /// Records where a read found a block, if not in the cache. The first such block of a read
    /// counts: the stream may not have come to those behind it.
    pub(crate) fn set_found(&mut self, found: ReadOutcome) {
        if self.last_found == ReadOutcome::Hit {
            self.last_found = found;
        }
    }

    /// Whether this read is a retry of one that was reported before.
    #[inline]
    pub(crate) fn take_unserved(&mut self, blocks: &Range<u64>) -> bool {
        !self.unserved.is_empty() && self.find_unserved(blocks)
    }

    #[cold]
    fn find_unserved(&mut self, blocks: &Range<u64>) -> bool {
        let found = self.unserved.iter().position(|unserved| unserved == blocks);
        found.map(|at| self.unserved.swap_remove(at)).is_some()
    }

    /// Records that a reported read was not served and may be retried.
    pub(crate) fn put_unserved(&mut self, blocks: Range<u64>) {
        if self.unserved.len() == UNSERVED_MAX {
            self.unserved.remove(0);
        }
        self.unserved.push(blocks);
    }

    /// The postponed plans. Writes nothing if there are none: most reads leave none, and other
    /// threads read that cache line.
    #[inline]
    pub(crate) fn take_postponed(&mut self) -> Vec<Plan> {
        if self.postponed.is_empty() { Vec::new() } else { std::mem::take(&mut self.postponed) }
    }

    /// Leaves the plan to the next read. If there are too many, the oldest is dropped: most of its
    /// blocks are read by now.
    pub(crate) fn postpone(&mut self, plan: Plan) {
        if self.postponed.len() == POSTPONED_MAX {
            self.postponed.remove(0);
        }
        self.postponed.push(plan);
    }
}
