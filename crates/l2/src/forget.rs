//! Forgetting: what the level has of a key is never returned again, not even after a crash.
//!
//! # Why nothing comes back
//!
//! 1. A block's record enters the index before the writer asks whether the block is outdated, and before the block is
//!    written. So a key that is not in the index when it is forgotten has nothing on the device, and gets nothing: its
//!    block, if the writer has one, is found to be outdated.
//! 2. If the key is in the index, its record leaves, then a tombstone is queued, and who forgets waits until that is
//!    durable. A batch takes up its tombstones after its blocks, and its tombstones kill its own blocks too. So whatever was in the
//!    index lies before the tombstone in the log.
//! 3. The log's segments are used again strictly in turn, and a segment's records leave the index only once its new header is
//!    durable. So a tombstone is never lost before what it kills.
//! 4. Who forgets a key while somebody else does waits too: *pending* says that a tombstone may be on its way though the
//!    record has left the index already. One is registered there before the index is looked at.
//! 5. While the rebuild runs nobody knows what the device has: every key gets a tombstone, and a record in the index
//!    that keeps the rebuild from bringing in what is older.
//! 6. A batch whose write failed may be on the device all the same. The index keeps its records
//!    until the next segment's header is durable, and that header says that the batch does not
//!    count. So a key that is not in the index has nothing that a restart believes.
//!
//! With immutable keys there is nothing to fear, and the record just leaves.
//!
//! A level that has failed voids its label rather than to let anything old come back. One that was closed does not: it is to be
//! opened again. It forgets nothing any more and says so, and the cache in front of it is closed before it.
//!
//! Locking: `l2-pending-forgets` for a look; then the index's own, or `l2-write-queue`; never two at once.

use std::collections::HashMap;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::{Class, Key};

use crate::counters::L2Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{KeyHash, Record, RecordState};
use crate::shared::{Health, L2Shared};

const SHARDS: usize = if cfg!(forebay_model) { 1 } else { 16 };

/// Who forgets what at the moment.
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

    /// Registers one who forgets.
    fn register(&self, hash: KeyHash) {
        *self.shard(hash).lock().entry(hash.0).or_insert(0) += 1;
    }

    /// Whether more than one forgets it.
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

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// See the module's head.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the device has failed, or the level was closed, so that an old value could come back;
    /// [`ErrorKind::Codec`] if the codec panicked on the key.
    pub(crate) fn forget(&self, key: &K) -> Result<()> {
        if self.status.is_closed() {
            return Err(self.forget_error(ErrorKind::Closed, "the level was closed"));
        }
        let Some(hash) = self.key_hash(key) else {
            return Err(self.forget_error(ErrorKind::Codec, "the codec panicked on its key"));
        };
        if self.immutable_keys {
            if self.index.take(hash).is_some() {
                self.counters.add(L2Counters::FORGOTTEN, 0, 1);
            }
            return Ok(());
        }
        self.pending_forgets.register(hash);
        let outcome = self.forget_registered(hash);
        self.pending_forgets.unregister(hash);
        outcome
    }

    fn forget_registered(&self, hash: KeyHash) -> Result<()> {
        if !self.status.is_open() || !self.write_queue.wait_started() {
            return self.forget_without_log(hash);
        }
        let known = if self.rebuild.is_running() {
            let addr = self.ring.head();
            let tombstone = Record {
                addr,
                class: Class::Data,
                hits: 0,
                in_memory: false,
                state: RecordState::Tombstone,
            };
            if let Err(error) = self.index.insert(hash, tombstone, |_, _| true) {
                // The rebuild could bring the old value in, and nothing would say that it is old.
                self.fail(&format!("no memory to forget a key: {error}"));
                return self.void_label_or_fail();
            }
            if !self.rebuild.is_running() {
                // Nobody sweeps it any more.
                self.index.remove_if_at(hash, addr);
            }
            true
        } else if self.rebuild.was_incomplete() {
            // It was cancelled after the look at the status: what the index does not have may be on the device.
            return self.forget_without_log(hash);
        } else {
            self.index.take(hash).is_some()
        };
        // Asked after the look: who took the record out had registered before, and leaves once its tombstone is durable.
        if !known && !self.pending_forgets.is_shared(hash) {
            return Ok(());
        }
        self.counters.add(L2Counters::FORGOTTEN, 0, 1);
        if self.write_queue.write_tombstone(hash) {
            return Ok(());
        }
        // Whoever tries again is not to hear that there is nothing to forget.
        let tombstone = Record {
            addr: self.ring.head(),
            class: Class::Data,
            hits: 0,
            in_memory: false,
            state: RecordState::Tombstone,
        };
        let _ = self.index.insert(hash, tombstone, |_, _| true);
        self.void_label_or_fail()
    }

    /// Forgets a key when nothing can be written any more.
    fn forget_without_log(&self, hash: KeyHash) -> Result<()> {
        let known = self.rebuild.was_incomplete()
            || self.index.find(hash).is_some()
            || self.pending_forgets.is_shared(hash);
        if !known && !self.rebuild.is_running() {
            return Ok(());
        }
        self.void_label_or_fail()
    }

    fn void_label_or_fail(&self) -> Result<()> {
        if self.voided.load(Ordering::Acquire) {
            return Ok(());
        }
        // Who closes a level wants to have it again, and whoever comes too late hears of it.
        if self.status.is_closed() {
            return Err(self.forget_error(ErrorKind::Closed, "the level was closed"));
        }
        if self.try_void() {
            return Ok(());
        }
        let why = match self.health() {
            Health::Failed { why, .. } => format!("the device has failed ({why})"),
            _ => "the level was removed".to_owned(),
        };
        Err(self.forget_error(ErrorKind::Closed, &why))
    }

    /// The error of one whose key could not be forgotten.
    fn forget_error(&self, kind: ErrorKind, why: &str) -> Error {
        if !self.immutable_keys {
            self.counters.add(L2Counters::FORGET_FAILURES, 0, 1);
        }
        let name = &self.io.device.info().name;
        let text = format!(
            "a value on {name} was not forgotten, because {why}: if that level is opened again, an old value may come back; forget it then, or make the level anew"
        );
        Error::new(kind, text)
    }
}
