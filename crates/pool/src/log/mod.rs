//! The intent log: makes an fsync durable before its transaction group is.
//!
//! Every change is recorded in memory when it is made ([`IntentLog::append`]) and dropped when its
//! txg is durable. A commit ([`IntentLog::commit`]) writes the records that an fsync needs and that
//! are not durable yet to a ring on the devices. After a crash, [`IntentLog::replay`] reads them
//! back.
//!
//! # Invariants
//!
//! - No gaps: a change that a batch should contain but cannot (too much data, no memory, a failed
//!   read or write) is *lost*. Nothing more is written until the txg of the lost change is durable.
//!   A block stores that txg, so a replay that starts from an older root does not go past it.
//! - One thread at a time writes the log: the *leader*, for all waiters. A batch is durable before
//!   the next one begins, so only the last batch can be torn.
//! - Root and ring: see [`ring`].
//!
//! # Locking
//!
//! `log-pending`: a shard of encoded changes. `log-objects`: a shard of objects. `log-ring`: the
//! ring. `log-commit`: leader and waiters. A thread holds at most one of them, and none during I/O.
//!
//! # What it does not do
//!
//! It allocates no space: the ring is where the pool has put it, there or on a log vdev. It does
//! not apply records; the pool's replay does.

mod change;
mod commit;
mod counters;
mod find;
mod leader;
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
use zerocopy::{FromZeros, IntoBytes};

pub(crate) use change::Change;
pub(crate) use commit::{Committed, Fetch};
pub use counters::LogCounters;
pub(crate) use find::ReadDevice;
pub(crate) use replay::Replay;
pub(crate) use storage::LogStorage;
pub use tunables::LogTunables;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    Dva, DvaPhys, LOG_EXTENTS_MAX, LOG_ROOT_MAGIC, LogExtentPhys, LogHomePhys, LogRecord,
    LogRootPhys,
};
use commit::Commits;
use objects::{Objects, Touch};
use pending::Pending;
use ring::{Extents, Ring};

/// An extent of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) place: DvaPhys,
    pub(crate) bytes: u64,
}

/// The intent log of a pool.
///
/// A commit writes all changes of existence and names so far, of all objects ([`pending`]), and the
/// content of its own object ([`objects`]), read at the time of the commit. It also writes the
/// content of *bound* objects, on which a change of names depends ([`Change::Bind`]). So the log is
/// always a prefix of the pool's history, except for content that was never fsynced.
pub(crate) struct IntentLog {
    pending: Pending,
    objects: Objects,
    ring: Mutex<Ring>,
    commits: Commits,
    /// The ring in the space of the pool.
    home: Arc<Extents>,
    guid: u64,
    /// The newest durable txg.
    synced: AtomicU64,
    /// The newest txg with a lost change.
    lost: AtomicU64,
    storage: Arc<dyn LogStorage>,
    tunables: Arc<LogTunables>,
    counters: Arc<LogCounters>,
}

impl IntentLog {
    /// Creates the log of a new pool whose first txg is `first_txg`, on space that the caller
    /// allocated. Without extents, every commit falls back to the txg.
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
            let text = format!(
                "an intent log has {} extents; the maximum is {LOG_EXTENTS_MAX}",
                extents.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut root = root_of(extents);
        root.guid = guid.into();
        root.txg = first_txg.saturating_sub(1).into();
        let log = Self::open(&root, first_txg.saturating_sub(1), storage, tunables)?;
        log.discard();
        Ok(log)
    }

    /// Opens the log of a root; `synced` is the txg of that root. The caller must finish a
    /// [`replay`](Self::replay) or call [`discard`](Self::discard). Until then every commit falls
    /// back to the txg.
    ///
    /// # Errors
    /// `Corrupt` if the root is invalid.
    pub(crate) fn open(
        root: &LogRootPhys,
        synced: u64,
        storage: Arc<dyn LogStorage>,
        tunables: Arc<LogTunables>,
    ) -> Result<Self> {
        Self::open_away(root, &LogHomePhys::new_zeroed(), synced, storage, tunables)
    }

    /// As [`open`](Self::open), of a log that may be on a log vdev; `home` is its ring in the space
    /// of the pool.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_away(
        root: &LogRootPhys,
        home: &LogHomePhys,
        synced: u64,
        storage: Arc<dyn LogStorage>,
        tunables: Arc<LogTunables>,
    ) -> Result<Self> {
        let extents = Arc::new(Extents::of(root)?);
        let home = match home.extent_count.get() {
            0 => Arc::clone(&extents),
            _ => Arc::new(Extents::of_home(home)?),
        };
        let ring = Ring::open(root, &extents)?;
        Ok(Self {
            pending: Pending::new(),
            objects: Objects::new(),
            ring: Mutex::named("log-ring", ring),
            commits: Commits::new(),
            home,
            guid: root.guid.get(),
            synced: AtomicU64::new(synced),
            lost: AtomicU64::new(0),
            storage,
            tunables,
            counters: Arc::new(LogCounters::new()),
        })
    }

    /// Records a change made in `txg`, of which the caller has a hold. If changes of one object are
    /// made under its lock, they must be recorded under the same lock.
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
            Change::Preallocate { offset, len } => {
                return self.touch(txg, dataset, object, Touch::Preallocate { offset, len });
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
                    // Older attributes must not follow these in the log.
                    self.objects.forget_attributes(dataset, object);
                }
                LogRecord::SetAttributes { attributes }
            }
            Change::ZapInsert { name, value } => LogRecord::ZapInsert { name, value },
            Change::ZapUpdate { name, value } => LogRecord::ZapUpdate { name, value },
            Change::ZapRemove { name } => LogRecord::ZapRemove { name },
        };
        // A lost txg is not written, so its records need not be kept.
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

    /// Records that not all changes of `txg` are recorded: nothing more is written before that txg
    /// is durable. The caller has a hold of `txg`.
    pub(crate) fn leave_gap(&self, txg: u64) {
        self.lose(txg);
    }

    /// Marks a change of `txg` as lost: nothing is written before that txg is durable.
    fn lose(&self, txg: u64) {
        self.lost.fetch_max(txg, Ordering::SeqCst);
    }

    fn has_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst) > self.synced.load(Ordering::SeqCst)
    }

    /// Returns the log's part of the root block of `txg`. For the sync thread, after the txg's
    /// holds are gone.
    pub(crate) fn root_for(&self, txg: u64) -> LogRootPhys {
        self.ring.lock().root_for(txg)
    }

    /// The ring in the space of the pool, if that is not the one of this root.
    pub(crate) fn home_of(&self, root: &LogRootPhys) -> LogHomePhys {
        let mut home = LogHomePhys::new_zeroed();
        let extents = self.home.encode();
        if extents.as_bytes() != root.extents.as_bytes() {
            home.extent_count = self.home.count().into();
            home.extents = extents;
        }
        home
    }

    /// Moves the ring to a log vdev, or home without one, with the next root that needs no block of
    /// the old place and, for a log vdev, whose txg that was [stamped](Self::stamped) with. Until
    /// then every commit falls back to the txg.
    ///
    /// # Errors
    /// `Corrupt` if an extent is invalid.
    pub(crate) fn move_to(&self, away: Option<Extent>) -> Result<()> {
        let target = match away {
            Some(extent) => Arc::new(Extents::of(&root_of(&[extent]))?),
            None => Arc::clone(&self.home),
        };
        self.ring.lock().move_to(&target);
        Ok(())
    }

    /// Whether the ring is in the space of the pool, and stays there.
    pub(crate) fn is_home(&self) -> bool {
        self.ring.lock().is_home()
    }

    /// Whether the ring is on a log vdev, and stays there.
    pub(crate) fn is_away(&self) -> bool {
        self.ring.lock().is_away()
    }

    /// Whether the ring waits for a root to move it.
    pub(crate) fn is_moving(&self) -> bool {
        self.ring.lock().is_moving()
    }

    /// The log vdev with this number has the stamp of `txg`, durably.
    pub(crate) fn stamped(&self, number: u16, txg: u64) {
        self.ring.lock().stamped(number, txg);
    }

    /// Whether no root to which an import may go back needs a log vdev, nor the next one does.
    pub(crate) fn has_left_log_vdev(&self) -> bool {
        let left = self.ring.lock().left_log_vdev();
        // The newest two are without.
        left.is_some_and(|txg| txg == 0 || self.synced.load(Ordering::SeqCst) >= txg + 2)
    }

    /// Whether the last result of [`root_for`](Self::root_for) contains all replayed changes.
    pub(crate) fn ends_replay(&self) -> bool {
        self.ring.lock().ends_replay()
    }

    /// The root block with the last result of [`root_for`](Self::root_for) is durable. For the sync
    /// thread, before the next txg quiesces.
    pub(crate) fn synced(&self, txg: u64) {
        // First: a thread that takes changes reads `synced` afterwards, and so knows which may be
        // missing.
        self.synced.store(txg, Ordering::SeqCst);
        self.pending.drop_txg(txg);
        self.objects.drop_txg(txg);
        self.ring.lock().synced(txg);
    }

    /// This many groups after the root were given up: no block of them may follow blocks that are
    /// written from now on. For a log that was just opened.
    pub(crate) fn give_up_groups(&self, groups: u64) {
        self.ring.lock().skip_generations(groups);
    }

    /// Starts a replay from `root`.
    pub(crate) fn replay(&self, root: &LogRootPhys) -> Replay<'_> {
        Replay::new(self, root)
    }

    /// The record that a replay returned last is applied, in `txg`, of which the caller has a hold.
    /// If the pool crashes during a long replay, the next replay continues after the last durable
    /// record.
    pub(crate) fn applied(&self, txg: u64) {
        self.counters.add(LogCounters::REPLAYED, 0, 1);
        self.ring.lock().applied(txg);
    }

    /// Discards all records that a replay would return.
    pub(crate) fn discard(&self) {
        let mut ring = self.ring.lock();
        ring.discard();
    }

    /// Calls `report` for each extent of the ring in the space of the pool.
    pub(crate) fn for_each_extent(&self, report: &mut dyn FnMut(Dva, u64)) {
        for (dva, bytes) in self.home.places(0, self.home.bytes()) {
            report(dva, bytes);
        }
    }

    /// The counters.
    pub(crate) fn counters(&self) -> &Arc<LogCounters> {
        &self.counters
    }
}

/// A root with these extents, and zeros.
fn root_of(extents: &[Extent]) -> LogRootPhys {
    let mut root = LogRootPhys::new_zeroed();
    root.magic = LOG_ROOT_MAGIC.into();
    root.extent_count = (extents.len() as u32).into();
    for (slot, extent) in root.extents.iter_mut().zip(extents) {
        *slot = LogExtentPhys { start: extent.place, bytes: extent.bytes.into() };
    }
    root
}
