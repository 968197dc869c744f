//! The writer: the one thread that writes to the log.
//!
//! It takes what waits in the [feed](crate::feed), puts it together into a batch, writes that, and makes its blocks findable. When
//! a segment is full it goes on with the oldest one.
//!
//! # Invariants
//!
//! - One write is on its way at a time. A batch lies where the one before it ended, and its chain says so: what comes after
//!   a batch that is not whole is never believed.
//! - A segment's header is durable before anything else of its new use is written, and before what its old use held leaves the index.
//! - A batch that could not be written may be there all the same, or arrive later. Nothing is
//!   written to its place or after it in its segment. Footer and next header say how many batches
//!   count, and it is not among them. Until the next header is durable, the index knows all that is
//!   in it: new blocks as bad, moved ones at their old places.
//! - A header or footer that could not be written is written again with the same bytes, so that it
//!   does not matter which of the writes arrives.
//!
//! # What it does not do
//!
//! It does not try anything for ever: a few failures in a row and the level has failed.
//!
//! Locking: none while it writes; it takes the feed's and the index's for a moment.

mod assemble;
mod reinsert;
mod segment;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use forebay_base::arena::Buffer;
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::Key;
use forebay_io::{Request, StableBytes};

use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::format::{BatchExtent, BlockSeed, PAGE_BYTES};
use crate::record::KeyHash;
use crate::shared::L2Shared;
use crate::write_queue::{QueuedBlock, WriterWork};
use reinsert::{ReinsertedBlock, Reinsertion};

/// Failures in a row after which the level has failed.
const MAX_FAILURES: u32 = 3;
/// Batches of the smallest segment, at least.
const MIN_BATCHES: u64 = 2;
/// Bytes of a batch's memory, at least.
const MIN_BATCH_BYTES: u64 = 16 << 10;
/// How often more it is tried for want of memory, and how long it is waited for each time.
const MEMORY_WAITS: u32 = 40;
const MEMORY_WAIT: Duration = Duration::from_millis(50);

/// Where the log goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogStart {
    /// The next segment's sequence number.
    pub(crate) next_seq: u64,
    /// The youngest stamp of any block that was ever written to the level.
    pub(crate) stamp: u64,
    /// What came before this place of the log is void.
    pub(crate) floor: (u64, u32),
    /// What the newest segment holds, which has no footer yet, or a footer too.
    pub(crate) last: SegmentContents,
}

/// What is in a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentContents {
    pub(crate) seq: u64,
    pub(crate) extents: Vec<BatchExtent>,
    pub(crate) records: u64,
    /// The chain after the last batch, or that of the header.
    pub(crate) chain: u64,
    /// Batches known to be durable.
    pub(crate) durable: u32,
    /// Whether a footer is there, or none is to be.
    pub(crate) sealed: bool,
}

/// The segment that is being filled.
struct OpenSegment {
    segment: u32,
    contents: SegmentContents,
    /// Where the next batch goes.
    offset: u64,
    seed: BlockSeed,
    /// A write failed: nothing more goes here.
    abandoned: bool,
}

/// The writer.
pub(crate) struct Writer<K: Key, V: Send + Sync + 'static> {
    shared: Arc<L2Shared<K, V>>,
    next_seq: u64,
    stamp: u64,
    floor: (u64, u32),
    open: Option<OpenSegment>,
    /// What the segment before the next one holds.
    last: SegmentContents,
    /// Segments in use with a batch that could not be written, by number of use. The index has bad
    /// records of that batch, which are in no log that counts.
    failed_segments: BTreeSet<u64>,
    /// Memory of batches, as long as no stalled write has it.
    buffer: Option<Arc<Buffer>>,
    /// Blocks taken from the feed that did not fit into a batch yet.
    backlog: std::collections::VecDeque<QueuedBlock<K, V>>,
    /// Tombstones taken from the feed that are not durable yet, and the ticket of the last one.
    tombstones: (Vec<KeyHash>, u64),
    reinsertion: Option<Reinsertion>,
    reinserted: Vec<ReinsertedBlock>,
    failures: u32,
    /// Whether a read has not ended in time: the device hangs, and nothing more is tried.
    stalled: Cell<bool>,
}

/// The front of a buffer, to be written.
struct BufferPrefix {
    buffer: Arc<Buffer>,
    len: usize,
}

// SAFETY: the buffer stays where it is as long as this holds a reference to it, and is only written to by who has the
// only one (`Arc::get_mut`).
unsafe impl StableBytes for BufferPrefix {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// However it ends, nobody waits for it any more.
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
    /// What a batch may take of a segment. More than one fits, so that what is carried forward is spread over it; but of small segments each
    /// batch's log is a part that tells.
    fn max_batch_bytes(&self) -> u64 {
        self.ring.geometry.batch_space_bytes() / MIN_BATCHES
    }

    /// Bytes of blocks that are written at once, if so much waits: about as many as a batch has room for, since the cache keeps
    /// them as long as they wait (of blocks below 256 bytes, whose log takes more, a rest goes by itself), and never more than may wait.
    pub(crate) fn batch_block_bytes(&self) -> u64 {
        let share = self.max_batch_bytes();
        let limit = self.tunables.batch_bytes().min(self.tunables.queue_bytes());
        limit.min(share - share / 16).max(MIN_BATCH_BYTES)
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// A writer with memory for batches.
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

    /// Bytes of the usual batch: blocks as wanted, and a log for small ones.
    fn buffer_bytes(shared: &L2Shared<K, V>) -> u64 {
        let batch = shared.tunables.batch_bytes();
        (batch + batch / 4)
            .min(shared.max_batch_bytes())
            .max(MIN_BATCH_BYTES)
            .next_multiple_of(PAGE_BYTES)
    }

    /// The thread's body.
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
                shared.fail(&error.to_string());
                break;
            }
            if last {
                break;
            }
        }
    }

    /// Does what there is to do. An error is the level's end.
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
        // Each round writes something, or drops what cannot be written. Tombstones that come later make work of their own.
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

    /// Does something, and again a few times if it fails; not if the device hangs.
    fn with_retries(
        &mut self,
        step: impl Fn(&mut Self) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        loop {
            match step(self) {
                Ok(()) => {
                    self.failures = 0;
                    return Ok(());
                }
                Err(error @ IoError::Stalled(_)) => return Err(error),
                Err(error) => {
                    self.failures += 1;
                    // That the arena has nothing at the moment says nothing about the device.
                    let limit = match error {
                        IoError::NoMemory(_) => {
                            self.wait_for_memory();
                            MAX_FAILURES + MEMORY_WAITS
                        }
                        _ => MAX_FAILURES,
                    };
                    if self.failures >= limit {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Lets others give memory back.
    fn wait_for_memory(&self) {
        let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
        condition.wait_timeout(&mut nobody.lock(), MEMORY_WAIT);
    }

    /// Makes durable what has been written.
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
                // What was written before may be lost, and nothing must follow a hole.
                Err(_) => open.abandoned = true,
            }
        }
        flushed
    }

    /// Writes the front of the batch's memory.
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

    /// Lets go of all that would be written, and of the blocks that are kept in memory for it.
    fn abandon_writes(&mut self) {
        self.drop_backlog();
        self.reinserted.clear();
        self.reinsertion = None;
    }

    fn drop_backlog(&mut self) {
        self.shared.drop_blocks(std::mem::take(&mut self.backlog));
    }
}
