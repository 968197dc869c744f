//! The thread that moves buffered names of large directories to their leaves.
//!
//! A create that finds the change buffer of its directory two fifths full queues the directory. The
//! thread reads the next leaves, many at a time and without a transaction, and moves the names of
//! a few leaves in each transaction. While it moves the names of one batch, the first reads of the
//! next are in flight. It is slowed down by dirty data as others are. It passes what it cannot
//! read, reports it, and tries it again after a pause. If no transaction can begin, because the
//! pool is full or suspended, it gives up until a create queues the directory again.
//!
//! A lookup that must ask the buffer queues the directory for a drain. Once no more names are
//! buffered for a second, the thread moves all of them, a batch at a time, with pauses. Creates
//! that begin again stop it.
//!
//! # Locking
//!
//! `pool-merge-thread` holds the handle of the thread. The thread takes `object-lock` of the
//! directory inside its transactions, as a change of the directory does, so that no directory is
//! destroyed meanwhile.

use std::time::Duration;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Mutex, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::object::{Leaves, Node};
use crate::reservation::Intent;
use crate::tx::Transaction;
use crate::wait::Wait;
use crate::zap::{DRAIN_PAUSE_NS, DrainStep, MergeBatch, MergeQueue, MergeTask, Zap};

use super::{Directory, PoolInner};

/// Leaves that a call of [`Directory::merge_buffered`] reads.
const MERGE_LEAVES: usize = 64;
/// Pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two batches of a drain, which nobody waits for.
const DRAIN_BATCH_PAUSE_NS: u64 = 100_000_000;
/// Pause of a drain that cannot go on.
const DRAIN_FAILURE_PAUSE_NS: u64 = 60_000_000_000;

/// The handle of the thread.
pub(super) struct Merges(Mutex<Option<JoinHandle<()>>>);

/// A directory, and leaves of it that are being read.
struct Moving {
    node: Arc<Node>,
    zap: Arc<Zap<Leaves>>,
    batch: MergeBatch<Leaves>,
    drains: bool,
}

impl Merges {
    pub(super) fn new() -> Self {
        Self(Mutex::named("pool-merge-thread", None))
    }
}

impl Directory {
    /// Waits if creates in this directory fill its change buffer faster than names move to their
    /// leaves. Called before a transaction that adds a name begins. Nobody has to call it, but a
    /// create in a full buffer reads its own leaf.
    ///
    /// # Errors
    /// None.
    pub fn pace(&self) -> Result<()> {
        self.zap.pace(Wait::Allowed)
    }

    /// Moves some names of the change buffer to their leaves, and returns how many are left. The
    /// pool does so in the background while the buffer fills; nobody has to call this. Reads some
    /// dozens of leaves at a time, and begins transactions.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), and those of [`Pool::begin`](super::Pool::begin).
    pub fn merge_buffered(&self) -> Result<u64> {
        self.zap.retry_unreadable();
        let mut batch = self.zap.start_merge(MERGE_LEAVES, true);
        self.zap.load_merge(&mut batch, || false);
        while !batch.is_empty() {
            let tx = self.dataset.pool.begin(Intent::Use, Wait::Allowed)?;
            let _lock = self.zap.store().0.lock_object(tx.wait())?;
            self.zap.finish_merge(tx.tx(), &mut batch)?;
        }
        match batch.error {
            Some(error) if !batch.has_moved => Err(error),
            _ => self.zap.buffered(Wait::Allowed),
        }
    }
}

/// Starts the thread of a pool.
pub(super) fn start(inner: &Arc<PoolInner>) -> Result<()> {
    let pool = Arc::clone(inner);
    let run = move || pool.move_all_names();
    let thread = thread::spawn_named("forebay-merge", run)
        .map_err(|error| Error::no_thread("the directories of the pool", error))?;
    *inner.merges.0.lock() = Some(thread);
    inner.merge_queue().begin_drains();
    Ok(())
}

impl PoolInner {
    fn merge_queue(&self) -> &MergeQueue<Weak<Node>> {
        self.mos.io.ahead.merges()
    }

    /// Ends the thread, at once or with the reads that it waits for, and ends delays of creates.
    pub(super) fn end_merges(&self) {
        self.merge_queue().close();
        let thread = self.merges.0.lock().take();
        if let Some(thread) = thread {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }

    fn move_all_names(&self) {
        let (queue, clock) = (self.merge_queue(), self.mos.io.ahead.clock());
        let mut reading: Option<Moving> = None;
        loop {
            let next = queue.next(clock, reading.is_none());
            if next.is_none() && reading.is_none() {
                return;
            }
            let started = next.and_then(|task| match task {
                MergeTask::Move(node) => self.start_moving(&node),
                MergeTask::Drain(node) => self.start_draining(&node),
            });
            let Some(mut moving) = std::mem::replace(&mut reading, started) else { continue };
            let moved = self.finish_moving(&mut moving);
            if moving.drains {
                let failed = moved.is_err() || moving.batch.error.is_some();
                self.drain_on(&moving.node, moving.batch.has_moved, failed);
            }
            if moved.is_err() {
                self.give_up(reading.take());
            }
            self.report(&moving.node, &mut moving.batch);
        }
    }

    /// Starts to read the next leaves of a directory that no more names are added to.
    fn start_draining(&self, node: &Weak<Node>) -> Option<Moving> {
        let node = node.upgrade()?;
        let zap = node.directory.lock().upgrade()?;
        let leaves = self.tunables.directories().directory_merge_reads() as usize;
        match zap.drain_step() {
            DrainStep::Ended => return None,
            DrainStep::Idle if leaves > 0 => {}
            DrainStep::Idle | DrainStep::Busy => {
                self.drain_on(&node, false, leaves == 0);
                return None;
            }
        }
        let mut batch = zap.start_merge(leaves, true);
        let failed = self.report(&node, &mut batch);
        if batch.is_empty() {
            self.drain_on(&node, false, failed);
            return None;
        }
        Some(Moving { node, zap, batch, drains: true })
    }

    /// Queues a directory for the next step of its drain.
    fn drain_on(&self, node: &Arc<Node>, has_moved: bool, failed: bool) {
        let pause_ns = match (has_moved, failed) {
            (true, _) => DRAIN_BATCH_PAUSE_NS,
            (false, true) => DRAIN_FAILURE_PAUSE_NS,
            (false, false) => DRAIN_PAUSE_NS,
        };
        let due_ns = self.mos.io.ahead.clock().now_ns().saturating_add(pause_ns);
        self.merge_queue().push_drain(Arc::downgrade(node), due_ns);
    }

    /// Starts to read the next leaves of a directory, and queues it again.
    fn start_moving(&self, node: &Weak<Node>) -> Option<Moving> {
        let node = node.upgrade()?;
        let zap = node.directory.lock().upgrade()?;
        let leaves = self.tunables.directories().directory_merge_reads() as usize;
        if zap.end_merge_request(leaves == 0) {
            return None;
        }
        let mut batch = zap.start_merge(leaves, false);
        let has_passed = self.report(&node, &mut batch);
        if batch.is_empty() && !has_passed && !batch.has_more {
            zap.end_merge_request(true);
            return None;
        }
        self.merge_queue().push(Arc::downgrade(&node));
        (!batch.is_empty()).then(|| Moving { node, zap, batch, drains: false })
    }

    /// Reports why names of a batch do not move. Returns whether there is a reason.
    fn report(&self, node: &Node, batch: &mut MergeBatch<Leaves>) -> bool {
        let Some(error) = batch.error.take() else { return false };
        let (pool, directory) = (&*self.name, node.number);
        tracing::error!(pool, directory, %error, "names cannot move from a change buffer for now");
        true
    }

    /// Waits for the leaves of a batch, and moves their names.
    fn finish_moving(&self, moving: &mut Moving) -> Result<()> {
        let queue = self.merge_queue();
        let Moving { node, zap, batch, .. } = moving;
        zap.load_merge(batch, || queue.is_closed());
        while !batch.is_empty() && !queue.is_closed() {
            let tx = self.begin_moving()?;
            let lock = node.lock_object(tx.wait())?;
            zap.finish_merge(tx.tx(), batch)?;
            drop((lock, tx));
            queue.note_moved();
        }
        Ok(())
    }

    /// Begins a transaction, unless the pool is full.
    fn begin_moving(&self) -> Result<Transaction<'_>> {
        match self.reservations.available() {
            0 => Err(Error::new(ErrorKind::NoSpace, "no space to move names to their leaves")),
            _ => self.begin(Intent::Use, Wait::Allowed),
        }
    }

    /// After a failure: forgets all directories until a create queues them again.
    fn give_up(&self, reading: Option<Moving>) {
        let queue = self.merge_queue();
        let nodes = std::iter::from_fn(|| queue.next_move()).filter_map(|node| node.upgrade());
        let zaps = nodes.filter_map(|node| node.directory.lock().upgrade());
        zaps.for_each(|zap| {
            zap.end_merge_request(true);
        });
        match reading {
            Some(moving) if moving.drains => self.drain_on(&moving.node, false, true),
            Some(moving) => {
                moving.zap.end_merge_request(true);
            }
            None => {}
        }
        queue.pause(FAILURE_PAUSE);
    }
}
