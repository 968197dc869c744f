//! The writer: the only thread that writes to the log.
//!
//! It takes work from the [write queue](crate::write_queue), assembles a batch, writes it, and
//! publishes its blocks. When a segment is full, it reuses the oldest one.
//!
//! # Invariants
//!
//! - One write is in flight at a time. A batch begins where the one before it ended, and its chain
//!   value proves it: nothing after an incomplete batch is valid.
//! - A segment's header is durable before anything else of its new use is written, and before the
//!   records of its old use leave the index.
//! - A batch whose write failed may be on the device, or arrive later. Nothing is written to its
//!   place or after it in its segment. The footer and the next header say how many batches count,
//!   and exclude it. Until the next header is durable, the index has all its blocks: new ones as
//!   bad, moved ones at their old addresses.
//! - The blocks of batches that a failed flush of the writer may have lost are bad.
//! - A failed header or footer is written again with the same bytes, so either write may arrive.
//!
//! Locking: none during I/O. The locks of the write queue and the index are held for single
//! operations.
//!
//! Not done: no operation is retried forever. After a few failures with no batch written between
//! them, the L2 fails.

mod assemble;
mod reinsert;
mod segment;

use std::cell::Cell;
use std::collections::BTreeSet;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_cache::Key;
use forebay_io::{Request, StableBytes};

use crate::counters::L2Counters;
use crate::device_io::{IoError, MEMORY_WAITS};
use crate::error::{Error, ErrorKind};
use crate::format::{BatchExtent, BlockSeed, PAGE_BYTES};
use crate::record::{Tombstone, UNIT_BYTES};
use crate::shared::L2Shared;
use crate::write_queue::{QueuedBlock, WriterWork};
use reinsert::{ReinsertedBlock, Reinsertion};

/// Errors of the device, with no batch written between them, after which the L2 fails.
const MAX_FAILURES: u32 = 3;
/// Minimum number of batches that fit into a segment.
const MIN_BATCHES: u64 = 2;
/// Minimum size of a batch buffer.
const MIN_BATCH_BYTES: u64 = 16 << 10;

/// The end of the log, where the writer starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogStart {
    /// Sequence number of the next segment.
    pub(crate) next_seq: u64,
    /// The newest stamp of any block ever written to the L2.
    pub(crate) stamp: u64,
    /// Everything before this position of the log is void.
    pub(crate) floor: (u64, u32),
    /// Contents of the newest segment, with or without a footer.
    pub(crate) last: SegmentContents,
}

/// The contents of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentContents {
    pub(crate) seq: u64,
    pub(crate) extents: Vec<BatchExtent>,
    pub(crate) records: u64,
    /// The chain value of the last batch, or of the header.
    pub(crate) chain: u64,
    /// Number of durable batches.
    pub(crate) durable: u32,
    /// Whether the footer is written, or must not be.
    pub(crate) sealed: bool,
}

/// The segment that is being filled.
struct OpenSegment {
    segment: u32,
    contents: SegmentContents,
    /// Offset of the next batch.
    offset: u64,
    seed: BlockSeed,
    /// A write failed. Nothing more is written to this segment.
    abandoned: bool,
}

/// The writer thread's state.
pub(crate) struct Writer<K: Key, V: Send + Sync + 'static> {
    shared: Arc<L2Shared<K, V>>,
    next_seq: u64,
    stamp: u64,
    floor: (u64, u32),
    open: Option<OpenSegment>,
    /// Contents of the segment before the next one.
    last: SegmentContents,
    /// Sequence numbers of segments with a batch whose write failed. The index has bad records of
    /// that batch, which are in no valid log.
    failed_segments: BTreeSet<u64>,
    /// The batch buffer, unless a stalled write holds it.
    buffer: Option<Arc<Buffer>>,
    /// Blocks taken from the write queue that are not in a batch yet.
    backlog: std::collections::VecDeque<QueuedBlock<K, V>>,
    /// Tombstones taken from the write queue that are not durable yet, and the last one's ticket.
    tombstones: (Vec<Tombstone>, u64),
    reinsertion: Option<Reinsertion>,
    reinserted: Vec<ReinsertedBlock>,
    /// Errors of the device since a batch was written.
    failures: u32,
    /// A read has stalled: the device hangs, and no more I/O is attempted.
    stalled: Cell<bool>,
}

/// The first `len` bytes of a buffer, to be written.
struct BufferPrefix {
    buffer: Arc<Buffer>,
    len: usize,
}

// SAFETY: this holds a reference to the buffer, so it stays in place. The buffer is only modified
// through a unique reference (`Arc::get_mut`).
unsafe impl StableBytes for BufferPrefix {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Terminates the write queue however the writer ends, so that no thread waits for it.
impl<K: Key, V: Send + Sync + 'static> Drop for Writer<K, V> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail("the writer panicked");
        }
        self.drop_backlog();
        self.shared.end_write_queue();
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Maximum size of a batch. Several batches fit into a segment, so that reinserted blocks
    /// spread over it. In small segments the log blocks take a notable share.
    fn max_batch_bytes(&self) -> u64 {
        self.ring.geometry.batch_space_bytes() / MIN_BATCHES
    }

    /// Bytes of queued blocks that make a batch: about as many as fit, because the cache pins them
    /// until then. Never more than the queue may hold. With blocks below 256 bytes, whose log is
    /// larger, a rest is written separately.
    pub(crate) fn batch_block_bytes(&self) -> u64 {
        let share = self.max_batch_bytes();
        let limit = self.tunables.batch_bytes().min(self.tunables.queue_bytes());
        limit.min(share - share / 16).max(MIN_BATCH_BYTES)
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Creates the writer and allocates its batch buffer.
    pub(crate) fn new(shared: Arc<L2Shared<K, V>>) -> Result<Self, IoError> {
        let buffer = shared.io.alloc(Self::buffer_bytes(&shared))?;
        Ok(Self {
            shared,
            next_seq: 0,
            stamp: 0,
            floor: (0, 0),
            open: None,
            last: SegmentContents::default(),
            failed_segments: BTreeSet::new(),
            buffer: Some(Arc::new(buffer)),
            backlog: std::collections::VecDeque::new(),
            tombstones: (Vec::new(), 0),
            reinsertion: None,
            reinserted: Vec::new(),
            failures: 0,
            stalled: Cell::new(false),
        })
    }

    /// Size of the default batch buffer: the target size, and a log block for small blocks.
    fn buffer_bytes(shared: &L2Shared<K, V>) -> u64 {
        let batch = shared.tunables.batch_bytes();
        (batch + batch / 4)
            .min(shared.max_batch_bytes())
            .max(MIN_BATCH_BYTES)
            .next_multiple_of(PAGE_BYTES)
    }

    /// The body of the writer thread.
    pub(crate) fn run(mut self) {
        self.shared.enter_thread();
        loop {
            let linger = u64::from(self.shared.tunables.linger_ms()) * 1_000_000;
            let shared = Arc::clone(&self.shared);
            let now = || shared.clock.now_ns();
            let batch = shared.batch_block_bytes();
            let Some(work) =
                shared.write_queue.next(now, (batch, linger), !self.backlog.is_empty())
            else {
                break;
            };
            let last = work.last;
            if let Err(error) = self.work(work) {
                self.abandon_writes();
                match error {
                    // All that was confirmed is in the log.
                    IoError::NoMemory(_) => shared.fail_intact(&error.to_string()),
                    IoError::Device(_) | IoError::Stalled(_) => shared.fail(&error.to_string()),
                }
                break;
            }
            if last {
                break;
            }
        }
    }

    /// Does one step of work. An error fails the L2.
    fn work(&mut self, work: WriterWork<K, V>) -> Result<(), IoError> {
        if let Some(start) = work.start {
            self.next_seq = start.next_seq;
            self.stamp = start.stamp;
            self.floor = start.floor;
            self.last = start.last;
        }
        self.backlog.extend(work.blocks);
        if let Some(floor) = work.floor {
            self.floor = self.floor.max(floor);
            self.with_retries(Self::begin_segment)?;
            self.shared.write_queue.finish_floor();
        }
        let mut tombstones = work.tombstones > 0;
        // Each round writes a batch or drops blocks that cannot be written. Later tombstones are
        // new work.
        while tombstones || !self.backlog.is_empty() || !self.tombstones.0.is_empty() {
            tombstones = false;
            self.with_retries(Self::write_batch)?;
        }
        if work.flush.is_some() || work.last {
            self.flush()?;
        }
        if let Some(flush) = work.flush {
            self.shared.write_queue.finish_flush(flush);
        }
        if work.last { self.seal() } else { Ok(()) }
    }

    /// Runs a step and retries it a few times after errors, but not after a stall.
    fn with_retries(
        &mut self,
        step: impl Fn(&mut Self) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let mut memory_waits = 0;
        loop {
            match step(self) {
                Ok(()) => return Ok(()),
                // An exhausted arena says nothing about the device.
                Err(IoError::NoMemory(_)) if memory_waits < MEMORY_WAITS => {
                    memory_waits += 1;
                    self.shared.io.wait_for_memory();
                }
                Err(IoError::Device(_)) if self.failures + 1 < MAX_FAILURES => self.failures += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes all written batches durable.
    fn flush(&mut self) -> Result<(), IoError> {
        let flushed = self.shared.io.flush();
        let counter = match flushed {
            Ok(()) => L2Counters::FLUSHES,
            Err(_) => L2Counters::FLUSH_ERRORS,
        };
        self.shared.counters.add(counter, 0, 1);
        if let Some(open) = &mut self.open {
            match flushed {
                Ok(()) => open.contents.durable = open.contents.extents.len() as u32,
                // Earlier writes may be lost, and nothing may follow a hole.
                Err(_) => open.abandoned = true,
            }
        }
        flushed.inspect_err(|error| self.drop_unflushed(error))
    }

    /// Drops the blocks that a failed flush may have lost: those of batches that are not durable.
    /// On a device that refuses all later flushes, the L2 fails soon.
    fn drop_unflushed(&self, error: &IoError) {
        let contents = self.open.as_ref().map_or(&self.last, |open| &open.contents);
        let Some(first) = contents.extents.get(contents.durable as usize) else { return };
        let segment = self.shared.ring.geometry.segment_of(contents.seq);
        let unit = (first.offset / UNIT_BYTES) as u32;
        // Bad, because their batches may be on the device: they require tombstones.
        if self.shared.index.supersede_from(segment, unit) > 0 {
            self.report_lost(ErrorKind::Device, &error.to_string());
        }
    }

    /// Reports that blocks were dropped, which the cache can offer again.
    fn report_lost(&self, kind: ErrorKind, why: &str) {
        let name = &self.shared.io.device.info().name;
        let text = format!("not all values were written to the L2 on {name}: {why}");
        self.shared.write_queue.report_lost(Error::new(kind, text));
    }

    /// Writes the first `len` bytes of the batch buffer.
    fn write_buffer(
        &mut self,
        at: u64,
        buffer: Arc<Buffer>,
        len: u64,
    ) -> Result<Arc<Buffer>, IoError> {
        let prefix = BufferPrefix { buffer: Arc::clone(&buffer), len: len as usize };
        let written = self.shared.io.run(Request::write_shared(at, Box::new(prefix)));
        if let Err(error) = written {
            self.shared.counters.add(L2Counters::WRITE_ERRORS, 0, 1);
            return Err(error);
        }
        self.shared.counters.add(L2Counters::WRITTEN_BYTES, 0, len);
        Ok(buffer)
    }

    /// Drops all blocks that wait to be written.
    fn abandon_writes(&mut self) {
        self.drop_backlog();
        self.reinserted.clear();
        self.reinsertion = None;
    }

    fn drop_backlog(&mut self) {
        self.shared.drop_blocks(std::mem::take(&mut self.backlog));
    }
}
