//! The flight recorder: why blocks were not in memory when they were requested.
//!
//! It records the lives of a sample of blocks: when they entered, how they left, and whose inserts
//! pushed them out. So it can say of each miss of a sampled block what it came from, and how much
//! more memory would have made it a hit. [`Explanation`] sums that up.
//!
//! It is closed at first. [`Cache::record`](crate::Cache::record) opens it. It sees no hits, so a
//! hit costs the same with it and without. Inserts and evictions pay a relaxed load; those of
//! sampled blocks take its lock. Its memory is bounded and counts as the cache's overhead.
//!
//! It does not see misses of [`get`](crate::Cache::get) that no load follows.
//!
//! Locking: `recorder`, a leaf lock.

mod departed;
mod events;
mod explanation;
mod forgotten;
mod hooks;
mod larger_secondary;
mod log;
mod secondary_sizes;
mod sentences;
mod windows;

use forebay_base::sync::Mutex;

use crate::attributes::Class;
use crate::header::List;
use crate::key::OwnerId;
use crate::sample::{Sample, sample_key};
use log::Log;
use secondary_sizes::Needed;

pub use events::MissEvent;
pub use explanation::{BlockGroup, Explanation, MissGroup, Remedy};

/// Why a block was not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MissCause {
    /// It was evicted for capacity.
    Evicted,
    /// It was evicted, and would not have been if the cache had kept its earlier size.
    MemoryPressure,
    /// It had been requested before, and was not cached because no capacity became free.
    NoCapacity,
    /// It had been requested before, and is heavier than the cache.
    TooHeavy,
    /// It had been requested before, and its owner does not cache such blocks.
    ByOwner,
    /// It was removed or replaced.
    Invalidated,
    /// Its time was over.
    Expired,
    /// The cache was flushed, or its owner closed.
    Flushed,
    /// It was never requested before, or so long ago that the recorder has forgotten it, and the
    /// cache was full.
    NeverSeen,
    /// As [`NeverSeen`](Self::NeverSeen), while the cache was filling up.
    Filling,
}

/// What the secondary cache did for a block that was not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecondaryFate {
    /// There was no secondary cache, or it was not asked.
    Absent,
    /// It had the block.
    Served,
    /// It had the block when memory evicted it, and lost it since.
    Dropped,
    /// It did not take the block.
    Declined,
    /// It may not take such blocks.
    Excluded,
}

/// Identifies what a block belongs to: its owner, and the label that the program gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordedBlock {
    pub(crate) owner: OwnerId,
    pub(crate) label: u64,
    pub(crate) class: Class,
}

/// A miss of a sampled block.
#[derive(Clone, Copy)]
struct Miss {
    block: RecordedBlock,
    cause: MissCause,
    /// The list that the block was evicted from.
    list: Option<List>,
    secondary: SecondaryFate,
    /// Whether the secondary cache had the block when memory evicted it.
    stored: bool,
    /// The block whose insert evicted this one.
    evictor: Option<RecordedBlock>,
    /// Bytes by which the cache was too small to keep it, if it was evicted. Of a block that was
    /// forgotten since, known only if it was noted.
    lacking: u64,
    /// Time since it left.
    gone_ns: u64,
    /// Duration of its load.
    waited_ns: u64,
    /// When the load began.
    at_ns: u64,
    /// Blocks that a sampled block stands for.
    scale: u64,
    /// Whether the block was never seen, or would have been noted when it was forgotten.
    is_noted: bool,
    /// The size of the secondary cache that would have served it.
    needed: Needed,
}

pub(crate) struct Recorder {
    /// The blocks whose lives are recorded.
    sample: Sample,
    /// The blocks in the simulated sizes of the secondary cache. One of the samples is a part of
    /// the other.
    secondary_sample: Sample,
    log: Mutex<Option<Box<Log>>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let (sample, secondary_sample) = (Sample::none(), Sample::none());
        Self { sample, secondary_sample, log: Mutex::named("recorder", None) }
    }

    /// Whether blocks of that hash are recorded now.
    #[inline]
    fn samples(&self, hash: u64) -> bool {
        self.sample.has(sample_key(hash))
    }

    /// Whether blocks of that hash are recorded, or in the simulated sizes of the secondary cache.
    #[inline]
    fn samples_any(&self, hash: u64) -> bool {
        self.samples(hash) || self.secondary_sample.has(sample_key(hash))
    }

    /// Whether it is open.
    #[inline]
    fn is_open(&self) -> bool {
        !self.sample.is_none()
    }

    /// Replaces the log; `None` closes the recorder.
    fn set(&self, log: Option<Box<Log>>) {
        let mut current = self.log.lock();
        self.set_masks(log.as_deref());
        *current = log;
    }

    /// Publishes the samples of the log, under its lock.
    fn set_masks(&self, log: Option<&Log>) {
        self.sample.set_mask(log.map_or(Sample::NONE, Log::mask));
        self.secondary_sample.set_mask(log.map_or(Sample::NONE, |log| log.secondary.mask()));
    }

    /// Records an event of the block with that hash, if the recorder is open.
    fn record(&self, hash: u64, event: impl FnOnce(&mut Log, u64)) {
        let key = sample_key(hash);
        let mut log = self.log.lock();
        let Some(log) = log.as_mut() else { return };
        // The sample may have changed meanwhile.
        if key & log.mask() == 0 {
            event(log, key);
            self.sample.set_mask(log.mask());
        }
    }

    /// Does the same for a block that may be in either sample. `event` has to ask which.
    fn record_in_any(&self, hash: u64, event: impl FnOnce(&mut Log, u64)) {
        let mut log = self.log.lock();
        let Some(log) = log.as_mut() else { return };
        event(log, sample_key(hash));
        self.set_masks(Some(log));
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.log.lock().as_ref().map_or(0, |log| log.memory_bytes())
    }
}
