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
mod carry;
mod segment;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use forebay_base::arena::Buffer;
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::Key;
use forebay_io::{Request, StableBytes};

use crate::counters::LevelCounters;
use crate::feed::{Queued, Work};
use crate::format::{BatchPlace, BlockSeed, PAGE_BYTES};
use crate::inner::Inner;
use crate::medium::Trouble;
use crate::record::Identity;
use carry::{Carried, Evacuation};

/// Failures in a row after which the level has failed.
const FAILURES: u32 = 3;
/// Batches of the smallest segment, at least.
const LEAST_BATCHES: u64 = 2;
/// Bytes of a batch's memory, at least.
const LEAST_BATCH_BYTES: u64 = 16 << 10;
/// How often more it is tried for want of memory, and how long it is waited for each time.
const MEMORY_WAITS: u32 = 40;
const MEMORY_WAIT: Duration = Duration::from_millis(50);

/// Where the log goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// The next segment's sequence number.
    pub(crate) next_seq: u64,
    /// The youngest stamp of any block that was ever written to the level.
    pub(crate) stamp: u64,
    /// What came before this place of the log is void.
    pub(crate) floor: (u64, u32),
    /// What the newest segment holds, which has no footer yet, or a footer too.
    pub(crate) last: Contents,
}

/// What is in a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) seq: u64,
    pub(crate) places: Vec<BatchPlace>,
    pub(crate) records: u64,
    /// The chain after the last batch, or that of the header.
    pub(crate) chain: u64,
    /// Batches known to be durable.
    pub(crate) durable: u32,
    /// Whether a footer is there, or none is to be.
    pub(crate) sealed: bool,
}

/// The segment that is being filled.
struct Open {
    segment: u32,
    contents: Contents,
    /// Where the next batch goes.
    offset: u64,
    seed: BlockSeed,
    /// A write failed: nothing more goes here.
    abandoned: bool,
}

/// The writer.
pub(crate) struct Writer<K: Key, V: Send + Sync + 'static> {
    inner: Arc<Inner<K, V>>,
    next_seq: u64,
    stamp: u64,
    floor: (u64, u32),
    open: Option<Open>,
    /// What the segment before the next one holds.
    last: Contents,
    /// Segments in use with a batch that could not be written, by number of use. The index has bad
    /// records of that batch, which are in no log that counts.
    spoiled: BTreeSet<u64>,
    /// Memory of batches, as long as no stalled write has it.
    buffer: Option<Arc<Buffer>>,
    /// Blocks taken from the feed that did not fit into a batch yet.
    backlog: std::collections::VecDeque<Queued<K, V>>,
    /// Tombstones taken from the feed that are not durable yet, and the ticket of the last one.
    tombs: (Vec<Identity>, u64),
    evacuation: Option<Evacuation>,
    carried: Vec<Carried>,
    failures: u32,
    /// Whether a read has not ended in time: the device hangs, and nothing more is tried.
    stalled: Cell<bool>,
}

/// The front of a buffer, to be written.
struct Front {
    buffer: Arc<Buffer>,
    len: usize,
}

// SAFETY: the buffer stays where it is as long as this holds a reference to it, and is only written to by who has the
// only one (`Arc::get_mut`).
unsafe impl StableBytes for Front {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// However it ends, nobody waits for it any more.
impl<K: Key, V: Send + Sync + 'static> Drop for Writer<K, V> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.inner.fail("the writer panicked");
        }
        self.lose_backlog();
        self.inner.end_feed();
    }
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// What a batch may take of a segment. More than one fits, so that what is carried forward is spread over it; but of small segments each
    /// batch's log is a part that tells.
    fn batch_share(&self) -> u64 {
        self.ring.geometry.batch_room() / LEAST_BATCHES
    }

    /// Bytes of blocks that are written at once, if so much waits: about as many as a batch has room for, since the cache keeps
    /// them as long as they wait (of blocks below 256 bytes, whose log takes more, a rest goes by itself), and never more than may wait.
    pub(crate) fn lot_bytes(&self) -> u64 {
        let share = self.batch_share();
        let most = self.tunables.batch_bytes().min(self.tunables.queue_bytes());
        most.min(share - share / 16).max(LEAST_BATCH_BYTES)
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// A writer with memory for batches.
    pub(crate) fn new(inner: Arc<Inner<K, V>>) -> Result<Self, Trouble> {
        let buffer = inner.medium.alloc(Self::buffer_bytes(&inner))?;
        Ok(Self {
            inner,
            next_seq: 0,
            stamp: 0,
            floor: (0, 0),
            open: None,
            last: Contents::default(),
            spoiled: BTreeSet::new(),
            buffer: Some(Arc::new(buffer)),
            backlog: std::collections::VecDeque::new(),
            tombs: (Vec::new(), 0),
            evacuation: None,
            carried: Vec::new(),
            failures: 0,
            stalled: Cell::new(false),
        })
    }

    /// Bytes of the usual batch: blocks as wanted, and a log for small ones.
    fn buffer_bytes(inner: &Inner<K, V>) -> u64 {
        let batch = inner.tunables.batch_bytes();
        (batch + batch / 4)
            .min(inner.batch_share())
            .max(LEAST_BATCH_BYTES)
            .next_multiple_of(PAGE_BYTES)
    }

    /// The thread's body.
    pub(crate) fn run(mut self) {
        self.inner.enter_thread();
        loop {
            let linger = u64::from(self.inner.tunables.linger_ms()) * 1_000_000;
            let inner = Arc::clone(&self.inner);
            let now = || inner.clock.now_ns();
            let batch = inner.lot_bytes();
            let Some(work) = inner.feed.next(now, (batch, linger), !self.backlog.is_empty()) else {
                break;
            };
            let last = work.last;
            if let Err(trouble) = self.work(work) {
                self.forsake();
                inner.fail(&trouble.to_string());
                break;
            }
            if last {
                break;
            }
        }
    }

    /// Does what there is to do. An error is the level's end.
    fn work(&mut self, work: Work<K, V>) -> Result<(), Trouble> {
        if let Some(start) = work.start {
            self.next_seq = start.next_seq;
            self.stamp = start.stamp;
            self.floor = start.floor;
            self.last = start.last;
        }
        self.backlog.extend(work.blocks);
        if let Some(floor) = work.floor {
            self.floor = self.floor.max(floor);
            self.retrying(Self::advance)?;
            self.inner.feed.floor_raised();
        }
        let mut tombs = work.tombs > 0;
        // Each round writes something, or drops what cannot be written. Tombstones that come later make work of their own.
        while tombs || !self.backlog.is_empty() || !self.tombs.0.is_empty() {
            tombs = false;
            self.retrying(Self::write_batch)?;
        }
        if work.flush.is_some() || work.last {
            self.flush()?;
        }
        if let Some(flush) = work.flush {
            self.inner.feed.flushed(flush);
        }
        if work.last { self.seal() } else { Ok(()) }
    }

    /// Does something, and again a few times if it fails; not if the device hangs.
    fn retrying(&mut self, step: impl Fn(&mut Self) -> Result<(), Trouble>) -> Result<(), Trouble> {
        loop {
            match step(self) {
                Ok(()) => {
                    self.failures = 0;
                    return Ok(());
                }
                Err(trouble @ Trouble::Stalled(_)) => return Err(trouble),
                Err(trouble) => {
                    self.failures += 1;
                    // That the arena has nothing at the moment says nothing about the device.
                    let most = match trouble {
                        Trouble::NoMemory(_) => {
                            self.pause();
                            FAILURES + MEMORY_WAITS
                        }
                        _ => FAILURES,
                    };
                    if self.failures >= most {
                        return Err(trouble);
                    }
                }
            }
        }
    }

    /// Lets others give memory back.
    fn pause(&self) {
        let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
        condition.wait_timeout(&mut nobody.lock(), MEMORY_WAIT);
    }

    /// Makes durable what has been written.
    fn flush(&mut self) -> Result<(), Trouble> {
        let flushed = self.inner.medium.flush();
        let row = match flushed {
            Ok(()) => LevelCounters::FLUSHES,
            Err(_) => LevelCounters::FLUSH_ERRORS,
        };
        self.inner.counters.add(row, 0, 1);
        if let Some(open) = &mut self.open {
            match flushed {
                Ok(()) => open.contents.durable = open.contents.places.len() as u32,
                // What was written before may be lost, and nothing must follow a hole.
                Err(_) => open.abandoned = true,
            }
        }
        flushed
    }

    /// Writes the front of the batch's memory.
    fn put(&mut self, at: u64, buffer: Arc<Buffer>, len: u64) -> Result<Arc<Buffer>, Trouble> {
        let front = Front { buffer: Arc::clone(&buffer), len: len as usize };
        let written = self.inner.medium.run(Request::write_shared(at, Box::new(front)));
        if let Err(trouble) = written {
            self.inner.counters.add(LevelCounters::WRITE_ERRORS, 0, 1);
            return Err(trouble);
        }
        self.inner.counters.add(LevelCounters::WRITTEN_BYTES, 0, len);
        Ok(buffer)
    }

    /// Lets go of all that would be written, and of the blocks that are kept in memory for it.
    fn forsake(&mut self) {
        self.lose_backlog();
        self.carried.clear();
        self.evacuation = None;
    }

    fn lose_backlog(&mut self) {
        self.inner.lose(std::mem::take(&mut self.backlog));
    }
}
