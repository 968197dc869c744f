//! R2's load: many threads, each reading its own region with a stride, with asynchronous read-ahead
//! under I/O roots.
//!
//! A [`Reader`] keeps two batches of reads ahead of the next block. At a batch it raises the
//! priority of its blocks that are still in flight, and waits for them. A used batch's buffers are
//! reused for the next one.
//!
//! All subjects share the code that waits. A reader waits for a batch, the last block first, so it
//! sleeps at most about once per batch. A reader that waited for each block would wake up to once
//! per block, more often the sooner it gets a CPU, and that would hide the cost of the roots.

mod compared_roots;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use forebay_base::arena::Buffer;
use forebay_io::{Completion, Device, Payload, Pending, Priority, RaiseHandle, Request};

use crate::measure::Worker;
use crate::test_file::{BLOCK_BYTES, Stamp};

pub(crate) use compared_roots::{AnyRoots, RootsKind};

/// R2's benchmark reads every seventeenth record.
pub(crate) const STRIDE_BLOCKS: u64 = 17;

/// A thread's region of the device, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

/// The blocks of a region with a stride, pass after pass. Each pass starts one block later, so all
/// blocks are read before one is repeated.
#[derive(Clone, Debug)]
struct Strided {
    region: Region,
    at: u64,
    pass: u64,
}

impl Strided {
    /// Starts in the region at an offset given by `seed`.
    fn new(region: Region, seed: u64) -> Self {
        assert!(region.blocks > 0, "a region has a block");
        let at = seed % region.blocks;
        Self { region, at, pass: at % STRIDE_BLOCKS }
    }

    /// Offset of the next block, in bytes.
    fn next(&mut self) -> u64 {
        let block = self.region.first + self.at;
        self.at += STRIDE_BLOCKS;
        if self.at >= self.region.blocks {
            self.pass = (self.pass + 1) % STRIDE_BLOCKS.min(self.region.blocks);
            self.at = self.pass;
        }
        block * BLOCK_BYTES as u64
    }
}

/// Errors during a measurement. Any error invalidates it.
#[derive(Default)]
pub(crate) struct ReadErrors {
    count: AtomicU64,
    first: Mutex<Option<String>>,
}

impl ReadErrors {
    fn add(&self, text: String) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }

    /// The number of errors, and the first of them.
    pub(crate) fn summary(&self) -> Option<String> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Relaxed);
        first.as_ref().map(|first| format!("{count} reads failed; the first: {first}"))
    }
}

/// State that all readers of a measurement share.
pub(crate) struct ReaderContext<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) roots: &'a AnyRoots,
    pub(crate) stamp: Stamp,
    pub(crate) errors: &'a ReadErrors,
}

/// Batches in a reader's window.
const BATCHES: usize = 2;

/// A block that is read ahead.
struct ReadAhead {
    /// Set until the read is complete.
    pending: Option<Pending>,
    raise: RaiseHandle,
    /// Set once the read is complete.
    completed: Option<Completion>,
}

impl ReadAhead {
    /// Polls the read. Returns true if it is complete.
    fn poll_completed(&mut self) -> bool {
        if let Some(pending) = &mut self.pending {
            match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(completion) => {
                    self.completed = Some(completion);
                    self.pending = None;
                }
                Poll::Pending => return false,
            }
        }
        true
    }

    /// Waits for the read.
    fn wait(&mut self, device: &dyn Device) {
        if let Some(pending) = self.pending.take() {
            self.completed = Some(pending.wait(device));
        }
    }
}

/// One thread of the load.
pub(crate) struct Reader<'a> {
    context: &'a ReaderContext<'a>,
    blocks: Strided,
    /// Blocks that are read ahead, in the order of use.
    window: VecDeque<ReadAhead>,
    /// Buffers of used blocks, for the next batch.
    used: Vec<Buffer>,
    batch: usize,
    /// Unused blocks of the first batch.
    left: usize,
    /// Waits that were not reported yet.
    waits: usize,
}

impl<'a> Reader<'a> {
    /// Starts the read-ahead with all `buffers`.
    pub(crate) fn new(
        context: &'a ReaderContext<'a>,
        region: Region,
        seed: u64,
        buffers: Vec<Buffer>,
    ) -> Self {
        let window = VecDeque::with_capacity(buffers.len());
        let batch = (buffers.len() / BATCHES).max(1);
        let blocks = Strided::new(region, seed);
        let used = Vec::with_capacity(batch);
        let mut reader = Self { context, blocks, window, used, batch, left: 0, waits: 0 };
        buffers.into_iter().for_each(|buffer| reader.give_back(buffer));
        reader
    }

    /// Takes back a buffer. Submits the next batch once there are enough.
    fn give_back(&mut self, buffer: Buffer) {
        self.used.push(buffer);
        if self.used.len() < self.batch {
            return;
        }
        let mut requests = Vec::with_capacity(self.batch);
        for buffer in self.used.drain(..) {
            let request = Request::read(self.blocks.next(), buffer);
            let (request, pending) = request.with_priority(Priority::AsyncRead).pending();
            let (request, raise) = request.raisable();
            self.window.push_back(ReadAhead { pending: Some(pending), raise, completed: None });
            requests.push(request);
        }
        self.context.roots.submit_all(requests);
    }

    /// Waits for the next batch.
    fn complete_batch(&mut self) {
        self.left = self.batch.min(self.window.len());
        for ahead in self.window.range_mut(..self.left) {
            if !ahead.poll_completed() {
                ahead.raise.raise(Priority::SyncRead);
            }
        }
        // Once the last read is complete, most others are too.
        for ahead in self.window.range_mut(..self.left).rev() {
            if !ahead.poll_completed() {
                self.waits += 1;
                ahead.wait(self.context.device);
            }
        }
    }

    /// Checks a block and returns its buffer.
    fn check(&self, completion: Completion) -> Option<Buffer> {
        let ReaderContext { stamp, errors, .. } = self.context;
        let Completion { offset, result, payload, .. } = completion;
        let buffer = payload.and_then(Payload::into_buffer);
        match (&result, &buffer) {
            (Err(error), _) => errors.add(error.to_string()),
            (Ok(()), Some(block)) if stamp.fits(offset, block) => {}
            (Ok(()), _) => errors.add(format!("the block at offset {offset} has wrong content")),
        }
        buffer
    }
}

impl Worker for Reader<'_> {
    // A read may take long, so check the stop flag after each.
    const BATCH_OPERATIONS: u64 = 1;

    /// Reads a block. Returns false once for each wait.
    fn step(&mut self) -> bool {
        if self.left == 0 {
            self.complete_batch();
        }
        self.left = self.left.saturating_sub(1);
        // A block is missing only if its buffer was lost, which is a recorded error.
        let completed = self.window.pop_front().and_then(|ahead| ahead.completed);
        if let Some(buffer) = completed.and_then(|completion| self.check(completion)) {
            self.give_back(buffer);
        }
        let waited = self.waits > 0;
        self.waits = self.waits.saturating_sub(1);
        !waited
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        for ahead in &mut self.window {
            ahead.wait(self.context.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_reach_every_block_before_one_comes_again() {
        for blocks in [1, 5, 17, 100, 1024] {
            let region = Region { first: 1000, blocks };
            let mut strided = Strided::new(region, 0);
            let mut seen: Vec<u64> =
                (0..blocks).map(|_| strided.next() / BLOCK_BYTES as u64).collect();
            if blocks > STRIDE_BLOCKS {
                assert_eq!(seen[1] - seen[0], STRIDE_BLOCKS);
            }
            seen.sort_unstable();
            assert_eq!(seen, (1000..1000 + blocks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_stride_may_begin_anywhere() {
        let region = Region { first: 0, blocks: 100 };
        for seed in 0..200 {
            let mut strided = Strided::new(region, seed);
            assert!((0..500).all(|_| strided.next() < 100 * BLOCK_BYTES as u64));
        }
    }
}
