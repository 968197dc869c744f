//! Forgetting a key: no block that the L2 holds for the key is ever returned again, not even after
//! a crash. The one limit is a device that returns a lost batch later: see "What a reader of an L2
//! must check" in `docs/format.md`. The proof stands at the implementation below.
//!
//! With immutable keys an old block is never wrong, so the record just leaves the index.
//!
//! An L2 that fails voids its label, so that no old block can return. If its log is intact, it does
//! so when the first key is forgotten. A closed L2 keeps its label, because it will be opened
//! again: `forget` returns an error, and the cache in front must be closed first.
//!
//! A forget either blocks its thread (`forget`), or ends in a callback (`forget_then`): at once, or
//! on the thread that makes its tombstone durable or finds that it cannot. Both take the same
//! steps. The key stays registered until the end of the forget, also if no thread waits for it. If
//! the log cannot be written, a thread of its own voids the label for all callbacks that need it.
//!
//! Locking: `l2-pending-forgets` to read or update a count. Then the index lock or
//! `l2-write-queue`. `l2-void-queue`, a leaf lock, to pass forgets to the thread that voids the
//! label. Never two at once. Callbacks run without any lock.

use std::collections::HashMap;

use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::spawn_named;
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Class, Key};

use crate::counters::L2Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{BlockAddr, KeyHash, Record, RecordState, Tombstone};
use crate::shared::{Health, L2Shared};

const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 16 };

/// Key hashes that threads are forgetting, with the number of threads.
pub(crate) struct PendingForgets {
    pending: Box<[Mutex<HashMap<u64, u32>>]>,
}

impl PendingForgets {
    pub(crate) fn new() -> Self {
        let shard = || Mutex::named("l2-pending-forgets", HashMap::new());
        Self { pending: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, hash: KeyHash) -> &Mutex<HashMap<u64, u32>> {
        &self.pending[(hash.0 >> 32) as usize % SHARDS]
    }

    /// Registers a thread that forgets the key.
    fn register(&self, hash: KeyHash) {
        *self.shard(hash).lock().entry(hash.0).or_insert(0) += 1;
    }

    /// Whether more than one thread forgets the key.
    fn is_shared(&self, hash: KeyHash) -> bool {
        self.shard(hash).lock().get(&hash.0).is_some_and(|count| *count > 1)
    }

    fn unregister(&self, hash: KeyHash) {
        let mut shard = self.shard(hash).lock();
        if let Some(count) = shard.get_mut(&hash.0) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&hash.0);
            }
        }
    }
}

/// What ends a forget that no thread waits for.
pub(crate) type ForgetCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// A forget that no thread waits for. Its key is registered, or all blocks of its group are void.
pub(crate) struct UnfinishedForget {
    /// What has to be durable.
    pub(crate) tombstone: Tombstone,
    pub(crate) done: ForgetCallback,
}

/// Forgets that wait for the label to be void; `None` while no thread works on them.
pub(crate) type VoidQueue = Mutex<Option<Vec<UnfinishedForget>>>;

pub(crate) fn void_queue() -> VoidQueue {
    Mutex::named("l2-void-queue", None)
}

/// What a forget requires after its record has left the index.
enum ForgetStep {
    /// Nothing: no block of the key is or will be valid.
    Done,
    /// A durable tombstone.
    Tombstone,
    /// A void label, because the log cannot be written.
    VoidLabel,
}

/// # Why no old block returns
///
/// 1. A new block's record enters the index before the writer checks whether the block is outdated,
///    and before the block is written. A reinserted block has a record already: the writer checks
///    that it is still there, and changes it after the write. So if a key is not in the index when
///    it is forgotten, the device holds no block of it that a restart would find, and will not
///    receive one: the writer finds its block outdated.
/// 2. If the key is in the index, its record leaves the index. Then a tombstone is queued, and the
///    forgetting thread waits until it is durable. A batch takes its tombstones after its blocks,
///    and its tombstones also cover its own blocks. So every block that was in the index precedes
///    the tombstone in the log.
/// 3. Segments are reused strictly in order, and the records of a segment leave the index only
///    after its new header is durable. So a tombstone is never lost before the blocks that it
///    covers. If a segment is reused before the rebuild has read it, the rebuild goes on until that
///    header is durable.
/// 4. A thread that forgets a key while another thread forgets the same key waits too. The table of
///    pending forgets says that a tombstone may be queued although the record has already left the
///    index. A thread registers there before it looks into the index.
/// 5. While the rebuild runs, the contents of the device are unknown. Every forgotten key gets a
///    tombstone, and a record in the index that keeps the rebuild from inserting older blocks.
/// 6. A batch whose write failed may still be on the device. The index keeps its records until the
///    next segment's header is durable, and that header excludes the batch. So if a key is not in
///    the index, a restart finds no valid block of it.
impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Forgets a key; see above why it works.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the L2 was closed, or if neither the tombstone nor a void label
    /// could be written: an old value may then return after a restart. [`ErrorKind::Codec`] if the
    /// codec panicked on the key.
    pub(crate) fn forget(&self, key: &K) -> Result<()> {
        let Some(hash) = self.hash_to_forget(key)? else { return Ok(()) };
        self.pending_forgets.register(hash);
        let can_write = self.status.is_open() && self.write_queue.wait_started();
        let outcome = match self.begin_forget(hash, can_write) {
            ForgetStep::Done => Ok(()),
            ForgetStep::Tombstone if self.write_queue.write_tombstone(Tombstone::Key(hash)) => {
                Ok(())
            }
            ForgetStep::Tombstone => self.without_tombstone(Tombstone::Key(hash)),
            ForgetStep::VoidLabel => self.void_label_or_fail(),
        };
        self.pending_forgets.unregister(hash);
        outcome
    }

    /// Forgets a key, and calls `done` with the outcome when it is known, on any thread. Does not
    /// block the thread. [`WriteQueue::started`](crate::write_queue::WriteQueue::started) must have
    /// been awaited.
    pub(crate) fn forget_then(self: &Arc<Self>, key: &K, done: ForgetCallback) {
        let hash = match self.hash_to_forget(key) {
            Ok(Some(hash)) => hash,
            Ok(None) => return done(Ok(())),
            Err(error) => return done(Err(error)),
        };
        self.pending_forgets.register(hash);
        let forget = UnfinishedForget { tombstone: Tombstone::Key(hash), done };
        let can_write = self.status.is_open() && self.write_queue.is_started();
        match self.begin_forget(hash, can_write) {
            ForgetStep::Done => self.end_forget(forget, Ok(())),
            ForgetStep::Tombstone => self.write_tombstone_then(forget),
            ForgetStep::VoidLabel => self.void_then(forget),
        }
    }

    /// Has the tombstone of a forget written, or else the label voided.
    pub(crate) fn write_tombstone_then(self: &Arc<Self>, forget: UnfinishedForget) {
        if let Some(forget) = self.write_queue.queue_tombstone(forget) {
            self.remember_unforgotten(forget.tombstone);
            self.void_then(forget);
        }
    }

    /// The hash of a key that has to be forgotten, unless that is done.
    fn hash_to_forget(&self, key: &K) -> Result<Option<KeyHash>> {
        if self.status.is_closed() {
            return Err(self.forget_error(ErrorKind::Closed, "the L2 was closed"));
        }
        let Some(hash) = self.key_hash(key) else {
            return Err(self.forget_error(ErrorKind::Codec, "the codec panicked on the key"));
        };
        if !self.immutable_keys {
            return Ok(Some(hash));
        }
        if self.index.take(hash).is_some() {
            self.counters.add(L2Counters::FORGOTTEN, 0, 1);
        }
        Ok(None)
    }

    /// Takes the key's record out of the index. `can_write` says that the log can be written.
    fn begin_forget(&self, hash: KeyHash, can_write: bool) -> ForgetStep {
        if !can_write {
            return self.begin_without_log(hash);
        }
        let known = if self.rebuild.is_running() {
            let addr = self.ring.head();
            if let Err(error) = self.index.insert(hash, tombstone(addr), |_, _| true) {
                // The rebuild could insert the old block, and no record would show that it is old.
                self.fail(&format!("no memory to forget a key: {error}"));
                return ForgetStep::VoidLabel;
            }
            if !self.rebuild.is_running() {
                // The rebuild has ended and will not sweep this tombstone.
                self.index.remove_if_at(hash, addr);
            }
            true
        } else if self.rebuild.was_incomplete() {
            // The rebuild was stopped after the status check. The device may hold blocks that the
            // index lacks.
            return self.begin_without_log(hash);
        } else {
            let take = || self.index.take(hash).is_some();
            // Checked after the index: a thread that took the record had registered before, and
            // unregisters only after its tombstone is durable. If it is not, the record is back.
            take() || self.pending_forgets.is_shared(hash) || take()
        };
        if !known {
            return ForgetStep::Done;
        }
        self.counters.add(L2Counters::FORGOTTEN, 0, 1);
        ForgetStep::Tombstone
    }

    /// As [`begin_forget`](Self::begin_forget), when the log can no longer be written.
    fn begin_without_log(&self, hash: KeyHash) -> ForgetStep {
        let find = || self.index.find(hash).is_some();
        // In this order: the index is complete once the rebuild has ended, unless it was stopped.
        let is_known = self.rebuild.is_running()
            || self.rebuild.was_incomplete()
            || find()
            || self.pending_forgets.is_shared(hash)
            || find();
        match is_known {
            true => ForgetStep::VoidLabel,
            false => ForgetStep::Done,
        }
    }

    /// Ends a forget whose tombstone could not be written.
    fn without_tombstone(&self, tombstone: Tombstone) -> Result<()> {
        self.remember_unforgotten(tombstone);
        self.void_label_or_fail()
    }

    /// A retry must not find the key absent and report success. A group stays void.
    fn remember_unforgotten(&self, what: Tombstone) {
        if let Tombstone::Key(hash) = what {
            // The end of the rebuild sweeps tombstones, and no bad record.
            let record = Record { state: RecordState::Bad, ..tombstone(self.ring.head()) };
            let _ = self.index.insert(hash, record, |_, _| true);
        }
    }

    /// Ends a forget that no thread waits for. A panic of user code in its callback is caught and
    /// counted.
    fn end_forget(&self, forget: UnfinishedForget, outcome: Result<()>) {
        if let Tombstone::Key(hash) = forget.tombstone {
            self.pending_forgets.unregister(hash);
        }
        self.catch_panic(|| (forget.done)(outcome));
    }

    /// Ends a forget whose tombstone is durable.
    pub(crate) fn end_durable(&self, forget: UnfinishedForget) {
        if let Tombstone::Group(group) = forget.tombstone {
            self.groups.end(group);
        }
        self.end_forget(forget, Ok(()));
    }

    /// Ends a forget whose tombstone was queued and is not durable.
    pub(crate) fn end_unwritten(&self, forget: UnfinishedForget) {
        let outcome = self.without_tombstone(forget.tombstone);
        self.end_forget(forget, outcome);
    }

    /// Ends a forget that needs a void label. One thread voids it for all of them.
    pub(crate) fn void_then(self: &Arc<Self>, forget: UnfinishedForget) {
        if self.voided.load(Ordering::Acquire) {
            return self.end_forget(forget, Ok(()));
        }
        {
            let mut queue = self.void_queue.lock();
            if let Some(queue) = &mut *queue {
                return queue.push(forget);
            }
            *queue = Some(vec![forget]);
        }
        let shared = Arc::clone(self);
        if spawn_named("l2-void", move || shared.run_void_queue()).is_err() {
            let refused = self.void_queue.lock().take().unwrap_or_default();
            for forget in refused {
                let why = "the system refused a thread to void the label";
                self.end_forget(forget, Err(self.forget_error(ErrorKind::Closed, why)));
            }
        }
    }

    /// The body of the thread that voids the label.
    fn run_void_queue(&self) {
        loop {
            let forgets = {
                let mut queue = self.void_queue.lock();
                let forgets = queue.as_mut().map(std::mem::take).unwrap_or_default();
                if forgets.is_empty() {
                    *queue = None;
                    return;
                }
                forgets
            };
            for forget in forgets {
                let outcome = self.void_label_or_fail();
                self.end_forget(forget, outcome);
            }
        }
    }

    pub(crate) fn void_label_or_fail(&self) -> Result<()> {
        if self.voided.load(Ordering::Acquire) {
            return Ok(());
        }
        // A closed L2 will be opened again, so its label stays.
        if self.status.is_closed() {
            return Err(self.forget_error(ErrorKind::Closed, "the L2 was closed"));
        }
        if self.try_void() {
            return Ok(());
        }
        let why = match self.health() {
            Health::Failed { why, .. } => format!("the device has failed ({why})"),
            _ => "the L2 was removed".to_owned(),
        };
        Err(self.forget_error(ErrorKind::Closed, &why))
    }

    /// Builds and counts the error of a failed forget.
    fn forget_error(&self, kind: ErrorKind, why: &str) -> Error {
        if !self.immutable_keys {
            self.counters.add(L2Counters::FORGET_FAILURES, 0, 1);
        }
        let name = &self.io.device.info().name;
        let text = format!(
            "cannot forget a key of the L2 on {name}: {why}; an old value may return when the L2 is opened again: forget the key then, or recreate the L2"
        );
        Error::new(kind, text)
    }
}

/// The record of a tombstone.
pub(crate) fn tombstone(addr: BlockAddr) -> Record {
    let state = RecordState::Tombstone;
    Record { addr, class: Class::Data, hits: 0, in_memory: false, undecodable: false, state }
}
