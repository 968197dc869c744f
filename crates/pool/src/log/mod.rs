//! The intent log: what makes an fsync durable before its transaction group is.
//!
//! Every change is noted in memory when it is made ([`IntentLog::append`]), and forgotten when its txg is durable.
//! A commit ([`IntentLog::commit`]) writes what an fsync promises, and is not durable yet, to a ring on the
//! devices. After a crash [`IntentLog::replay`] reads it back.
//!
//! What a commit writes: all changes of existence and names so far, of all objects ([`pending`]), and
//! the content of its own object ([`objects`]), fetched as it is by then; also that of *bound* objects, whose
//! content such a change of names needs ([`Change::Bind`]). So the log is always the beginning of the pool's
//! history, but for content that nobody asked to be durable.
//!
//! # Invariants
//!
//! - Between two batches nothing is missing: what a batch should have had and has not (too much of it,
//!   no memory, a failed read or write) is *lost*, and nothing is written until the txg of what was
//!   lost is durable. A block says which txg that was, so that a replay from an older one does not go past it.
//! - The log is written by one thread at a time, the *leader*, who writes for all that wait. A batch is durable
//!   before the next one is begun: only the last one can be torn.
//! - Root and ring: see [`ring`].
//!
//! # Locking
//!
//! `log-pending`, a shard's list of encoded changes; `log-objects`, a shard of objects; `log-ring`; `log-commit`, who leads
//! and who waits. None is held while another is taken, and none during I/O.
//!
//! # What it does not do
//!
//! It allocates nothing on devices: its ring is there for ever. It applies no records: who replays does.

mod change;
mod commit;
mod counters;
#[cfg(forebay_model)]
pub(crate) mod model;
mod objects;
mod pending;
mod replay;
mod ring;
mod storage;
#[cfg(all(test, not(forebay_model)))]
mod tests;
pub(crate) mod tunables;

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use zerocopy::FromZeros;

pub(crate) use change::Change;
pub(crate) use commit::{Committed, Fetch};
pub use counters::LogCounters;
pub(crate) use replay::Replay;
pub(crate) use storage::LogStorage;
pub use tunables::LogTunables;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    Dva, DvaPhys, LOG_EXTENTS_MAX, LOG_ROOT_MAGIC, LogExtentPhys, LogRecord, LogRootPhys,
};
use commit::Commits;
use objects::{Objects, Touch};
use pending::Pending;
use ring::{Extents, Ring};

/// A part of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) place: DvaPhys,
    pub(crate) bytes: u64,
}

/// The intent log of a pool.
pub(crate) struct IntentLog {
    pending: Pending,
    objects: Objects,
    ring: Mutex<Ring>,
    commits: Commits,
    extents: Extents,
    guid: u64,
    /// The newest durable txg.
    synced: AtomicU64,
    /// The newest txg of which a change was lost.
    lost: AtomicU64,
    storage: Arc<dyn LogStorage>,
    tunables: Arc<LogTunables>,
    counters: Arc<LogCounters>,
}

impl IntentLog {
    /// The log of a new pool whose first txg will be `first_txg`, on space that the caller allocated for it. Without
    /// extents every commit goes to the txg.
    ///
    /// # Errors
    /// `Invalid` for too many extents.
    pub(crate) fn create(
        extents: &[Extent],
        guid: u64,
        first_txg: u64,
        storage: Arc<dyn LogStorage>,
        tunables: Arc<LogTunables>,
    ) -> Result<Self> {
        if extents.len() > LOG_EXTENTS_MAX {
            let text = format!("{} extents for a log, at most {LOG_EXTENTS_MAX}", extents.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut root = LogRootPhys::new_zeroed();
        root.magic = LOG_ROOT_MAGIC.into();
        root.guid = guid.into();
        root.txg = first_txg.saturating_sub(1).into();
        root.extent_count = (extents.len() as u32).into();
        for (slot, extent) in root.extents.iter_mut().zip(extents) {
            *slot = LogExtentPhys { start: extent.place, bytes: extent.bytes.into() };
        }
        let log = Self::open(&root, first_txg.saturating_sub(1), storage, tunables)?;
        log.discard();
        Ok(log)
    }

    /// The log that a root names; `synced` is that root's txg. Before anything is logged, [`replay`](Self::replay) has to be
    /// brought to its end, or [`discard`](Self::discard) called; until then every commit goes to the txg.
    ///
    /// # Errors
    /// `Corrupt`, if the root makes no sense.
    pub(crate) fn open(
        root: &LogRootPhys,
        synced: u64,
        storage: Arc<dyn LogStorage>,
        tunables: Arc<LogTunables>,
    ) -> Result<Self> {
        let extents = Extents::of(root, storage.sector_bytes())?;
        let ring = Ring::open(root, &extents)?;
        Ok(Self {
            pending: Pending::new(),
            objects: Objects::new(),
            ring: Mutex::named("log-ring", ring),
            commits: Commits::new(),
            extents,
            guid: root.guid.get(),
            synced: AtomicU64::new(synced),
            lost: AtomicU64::new(0),
            storage,
            tunables,
            counters: Arc::new(LogCounters::new()),
        })
    }

    /// Notes a change, made in txg `txg`, of which the caller has a hold. Whoever changes the same thing in turn
    /// (under its lock) must note it in that turn.
    #[inline]
    pub(crate) fn append(&self, txg: u64, dataset: u64, object: u64, change: Change<'_>) {
        let record = match change {
            Change::Write { offset, len } => {
                return self.touch(txg, dataset, object, Touch::Write { offset, len });
            }
            Change::Truncate { size } => {
                return self.touch(txg, dataset, object, Touch::Truncate { size });
            }
            Change::Punch { offset, len } => {
                return self.touch(txg, dataset, object, Touch::Punch { offset, len });
            }
            Change::TouchAttributes { attributes } => {
                let serial = || self.pending.next_serial();
                return self.objects.note_attributes((txg, dataset, object), attributes, serial);
            }
            Change::Bind => return self.objects.bind((txg, dataset, object)),
            Change::BindAll => return self.objects.bind_all(txg),
            Change::Create { kind, record_shift, attributes } => {
                LogRecord::Create { kind, record_shift, attributes }
            }
            Change::Destroy => {
                self.objects.forget(dataset, object);
                LogRecord::Destroy
            }
            Change::SetAttributes { attributes, touched } => {
                if touched {
                    // Older ones are not to come behind these.
                    self.objects.forget_attributes(dataset, object);
                }
                LogRecord::SetAttributes { attributes }
            }
            Change::ZapInsert { name, value } => LogRecord::ZapInsert { name, value },
            Change::ZapUpdate { name, value } => LogRecord::ZapUpdate { name, value },
            Change::ZapRemove { name } => LogRecord::ZapRemove { name },
        };
        // What would not be written anyway need not be kept.
        if self.lost.load(Ordering::Relaxed) >= txg {
            return self.counters.add(LogCounters::DROPPED, 0, 1);
        }
        let max_bytes = self.tunables.log_commit_max_bytes();
        let of = (txg, dataset, object);
        if self.pending.append(of, record, max_bytes, || self.lose(txg)).is_err() {
            self.counters.add(LogCounters::DROPPED, 0, 1);
        }
    }

    #[inline]
    fn touch(&self, txg: u64, dataset: u64, object: u64, touch: Touch) {
        let max_bytes = self.tunables.log_commit_max_bytes();
        self.objects.note((txg, dataset, object), touch, max_bytes, || self.pending.next_serial());
    }

    /// Not all changes of txg `txg`, of which the caller has a hold, are noted: nothing more is written before that
    /// txg is durable.
    pub(crate) fn leave_gap(&self, txg: u64) {
        self.lose(txg);
    }

    /// A change of `txg` was not kept, or taken and not written: nothing is written before that txg is durable.
    fn lose(&self, txg: u64) {
        self.lost.fetch_max(txg, Ordering::SeqCst);
    }

    fn has_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst) > self.synced.load(Ordering::SeqCst)
    }

    /// What the root block of `txg` has to hold. For the sync thread, once the txg's holds are gone.
    pub(crate) fn root_for(&self, txg: u64) -> LogRootPhys {
        self.ring.lock().root_for(txg)
    }

    /// The root block with what [`root_for`](Self::root_for) said last is durable. For the sync thread, before it lets
    /// the next txg quiesce.
    pub(crate) fn synced(&self, txg: u64) {
        // First: who takes changes looks at it afterwards, and learns what may be missing.
        self.synced.store(txg, Ordering::SeqCst);
        self.pending.drop_txg(txg);
        self.objects.drop_txg(txg);
        self.ring.lock().synced(txg);
    }

    /// The records to be replayed.
    pub(crate) fn replay(&self, root: &LogRootPhys) -> Replay<'_> {
        Replay::new(self, root)
    }

    /// The record that a replay returned last is applied, in txg `txg`, of which the caller has a hold. If the pool
    /// crashes during a long replay, the next one goes on where the durable txg ended.
    pub(crate) fn applied(&self, txg: u64) {
        self.counters.add(LogCounters::REPLAYED, 0, 1);
        self.ring.lock().applied(txg);
    }

    /// Gives up what there would be to replay.
    pub(crate) fn discard(&self) {
        let mut ring = self.ring.lock();
        ring.discard();
    }

    /// Tells where the ring lies.
    pub(crate) fn for_each_extent(&self, tell: &mut dyn FnMut(Dva, u64)) {
        for (dva, bytes) in self.extents.places(0, self.extents.bytes()) {
            tell(dva, bytes);
        }
    }

    /// What was counted.
    pub(crate) fn counters(&self) -> &Arc<LogCounters> {
        &self.counters
    }
}
