//! The pool: the public handle [`Pool`] and the shared state [`PoolInner`].
//!
//! `create` and `import` construct a pool. `sync_txg` commits transaction groups on the sync
//! thread. `export` closes the pool.

mod about;
mod check;
mod create;
mod datasets;
mod errors;
mod export;
mod followed;
mod grow;
mod handle_view;
mod handles;
mod health;
mod heartbeat;
mod import;
mod l2;
mod l2_fill;
mod live;
mod log_io;
mod merge;
mod outage_watch;
mod replay;
mod resilver;
mod scrub;
mod sides;
mod space_io;
mod stats;
mod sync_txg;
mod trace;
mod trim;
mod txg_history;
mod walk;

use forebay_base::clock::Clock;
use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::thread::JoinHandle;
use forebay_base::sync::{Arc, Mutex};
use hashbrown::HashMap;

use crate::dataset;
use crate::devices::Devices;
use crate::devices::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{EventLog, PoolEvents};
use crate::format::{BlockPtrPhys, TXGS_TO_REUSE};
use crate::l2::L2Devices;
use crate::lease::Lease;
use crate::log::IntentLog;
use crate::object::Leaves;
use crate::objset::Objset;
use crate::reservation::{Intent, Reservations};
use crate::space::{DeviceSpan, Space, SpaceCounters, SpaceStats};
use crate::store::Store;
use crate::tunables::PoolTunables;
use crate::tx::Transaction;
use crate::txg::{DevicesWait, Suspension, Txgs};
use crate::wait::Wait;
use crate::zap::Zap;

pub use about::{LabelInfo, PoolDevice, PoolVdev, destroy, read_label};
pub use check::{CheckProgress, CheckReport, UnreachableBlocks};
pub use create::CreateOptions;
pub(crate) use create::open_owner;
pub use errors::{DamageReport, DamagedTree, LoggedDamage};
pub use followed::FollowedPool;
pub use handle_view::HandleView;
pub use handles::{Dataset, Directory, Object, ObjectInfo};
pub use health::{HealthState, PoolHealth};
use heartbeat::Heartbeats;
pub use import::ImportOptions;
pub(crate) use import::read_root;
use l2::L2DeviceList;
use l2_fill::L2Fills;
pub use live::LiveRanges;
use merge::Merges;
pub use outage_watch::GivesUp;
pub use resilver::ResilverStatus;
use resilver::Resilvers;
use scrub::Scrubs;
pub use scrub::{ScrubCounters, ScrubProgress, ScrubReport, ScrubStatus, ScrubTunables};
pub use sides::AttachOptions;
pub use stats::{CounterGroup, Durations, PoolHistograms, PoolStats, PoolUsage};
use trim::Trims;
pub use trim::{TrimCounters, TrimProgress, TrimReport, TrimTunables};
use txg_history::TxgHistory;
pub use txg_history::{TxgHistoryInfo, TxgPhase, TxgRecord};

/// How often a clear lets the commit go on, as long as devices are opened again.
const CLEAR_TRIES: u32 = 3;

/// A pool: devices and the datasets on them. Dropping it exports it.
pub struct Pool {
    inner: Arc<PoolInner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the pool handle, its datasets and the sync thread.
pub(crate) struct PoolInner {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) devices: Arc<Devices>,
    /// Store of the pool's own blocks. Each dataset has its own store over the same devices.
    pub(crate) store: Store,
    pub(crate) txgs: Arc<Txgs>,
    pub(crate) log: IntentLog,
    /// Held by the sync thread for a whole commit.
    space: Mutex<Space>,
    /// Space statistics as of the newest durable txg; readable without waiting for the sync thread.
    space_stats: Mutex<SpaceStats>,
    space_counters: Arc<SpaceCounters>,
    /// The pool's own objects (the meta object set).
    mos: Arc<Objset>,
    /// Maps dataset names to object numbers.
    directory: Zap<Leaves>,
    directory_number: u64,
    /// Number of the object of the error log, among the pool's own objects.
    errors_number: u64,
    datasets: Mutex<HashMap<String, Arc<dataset::DatasetInner>>>,
    l2_devices: L2Devices,
    l2_list: L2DeviceList,
    /// Serialises dataset creation and changes of dataset settings.
    datasets_changing: Mutex<()>,
    config: Mutex<Config>,
    /// One thread at a time ends a suspension. Else one could open a device again, and close that
    /// of before, while the commit that another one lets go on uses it.
    clearing: Mutex<()>,
    /// The device ranges that [`Self::space`] covers.
    spans: Mutex<Vec<DeviceSpan>>,
    tunables: Arc<PoolTunables>,
    rng: Mutex<SmallRng>,
    /// The root block of the newest durable txg.
    root: Mutex<BlockPtrPhys>,
    /// Space promised to open transactions.
    reservations: Reservations,
    scrub: Scrubs,
    resilver: Resilvers,
    trim: Trims,
    merges: Merges,
    l2_fills: L2Fills,
    /// Until when a log vdev may be relied on, if the pool is on an object store.
    ownership: Arc<Lease>,
    heartbeats: Heartbeats,
    /// The thread that leads commits of the log, if there is one.
    log_thread: Mutex<Option<JoinHandle<()>>>,
    /// The newest txg of which a failed step was repeated at once, see `sync_txg`.
    tried_again_in: AtomicU64,
    txg_history: TxgHistory,
    /// Whether the space maps could not be read; only after a read-only import.
    space_maps_lost: bool,
    /// See [`ImportOptions::followed`].
    followed: Option<FollowedPool>,
    /// See [`Pool::import_notes`].
    import_notes: Vec<String>,
    closed: AtomicBool,
    read_only: bool,
    clock: Arc<dyn Clock>,
}

impl Pool {
    /// Begins a transaction. Waits while too much data is dirty.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if the pool is full, [`ErrorKind::Suspended`] after a failed write,
    /// [`ErrorKind::Closed`] after an export, [`ErrorKind::ReadOnly`] after a read-only import.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.inner.begin(Intent::Use, Wait::Allowed)
    }

    /// Begins a transaction that changes attributes or names and uses little more space. It may use
    /// a part of the reserve, so it can begin in a full pool.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub fn begin_update(&self) -> Result<Transaction<'_>> {
        self.inner.begin(Intent::Update, Wait::Allowed)
    }

    /// Begins a transaction that frees space. It may use the reserve, so it can begin in a full
    /// pool.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub fn begin_freeing(&self) -> Result<Transaction<'_>> {
        self.inner.begin(Intent::Free, Wait::Allowed)
    }

    /// Commits the open transaction group and returns once it is durable. The calling thread must
    /// not hold a transaction.
    ///
    /// # Errors
    /// The error that kept the txg from being written.
    pub fn sync(&self) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.txgs.sync_now().map(|_| ())
    }

    /// Ends a suspension: repeats the step of the commit that failed, and goes on. Returns once the
    /// transaction group is durable, with all changes that it had when the pool was suspended. Does
    /// nothing if the pool is not suspended. A device that is gone is opened again first, if it was
    /// opened by a path and no other one stands in for it. If the step fails once more because of
    /// such a device, all that is repeated, a few times. Starts a resilver again that the
    /// suspension has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`] with the new cause if a device still fails, or if the pool was
    /// suspended for another reason than a device. Then the pool stays suspended.
    pub fn clear(&self) -> Result<()> {
        self.end_suspension()?;
        self.resume_resilver();
        Ok(())
    }

    fn end_suspension(&self) -> Result<()> {
        let _clearing = self.inner.clearing.lock();
        for _ in 1..CLEAR_TRIES {
            let reopened = self.inner.reopen_gone()?;
            let cleared = self.inner.txgs.clear();
            // The first flush of an open file may report what was lost before; and another device
            // may be known to be gone only now.
            let tries_again = || reopened || self.inner.devices.has_gone_vdev();
            if cleared.is_ok() || !tries_again() {
                return cleared;
            }
        }
        self.inner.reopen_gone()?;
        self.inner.txgs.clear()
    }

    /// Why the pool is suspended, or `None`.
    pub fn suspension(&self) -> Option<Suspension> {
        self.inner.txgs.suspension()
    }

    /// Waits while the pool is suspended and can be [cleared](Self::clear). Returns false if
    /// `give_up` says so, which is asked several times a second.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`] if only another import helps, or the pool is exported meanwhile;
    /// [`ErrorKind::Closed`].
    pub fn wait_resumed(&self, give_up: &dyn Fn() -> bool) -> Result<bool> {
        self.inner.txgs.wait_resumed(give_up)
    }

    /// For a caller whose read has failed because [no device answers](crate::Error::is_gone):
    /// commits the open transaction group, which suspends the pool if a device is gone, and waits
    /// until the group is durable. A group can become durable without a vdev: then waits until that
    /// answers. The read can then be repeated. `give_up` is asked several times a second. The
    /// calling thread must not have a transaction.
    ///
    /// # Errors
    /// As [`wait_resumed`](Self::wait_resumed); [`ErrorKind::ReadOnly`] if the pool commits
    /// nothing.
    pub fn wait_for_devices(&self, give_up: &dyn Fn() -> bool) -> Result<DevicesWait> {
        self.inner.check_writable()?;
        let ended = self.inner.txgs.wait_for_devices(give_up)?;
        let (devices, memory) = (&self.inner.devices, self.inner.store.cache());
        self.inner.txgs.wait_while_silent(ended, &|| devices.has_silent_vdev(memory), give_up)
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The log of events that the pool notes its own in.
    pub fn events(&self) -> &Arc<EventLog> {
        self.inner.events().log()
    }

    /// The GUID of the pool. It never changes.
    pub fn guid(&self) -> u64 {
        self.inner.guid
    }
}

impl PoolInner {
    /// Notes the events of the pool.
    pub(crate) fn events(&self) -> &Arc<PoolEvents> {
        self.devices.events()
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self, intent: Intent, wait: Wait) -> Result<Transaction<'_>> {
        self.check_writable()?;
        for round in 0..TXGS_TO_REUSE {
            if let Some(reservation) = self.reservations.reserve(intent) {
                return Ok(Transaction::new(self.txgs.begin_with(wait)?, Some(reservation), wait));
            }
            // The first commit returns unused reservations. Further ones only make space reusable
            // that is free already.
            if round > 0 && !self.reservations.may_succeed_later(intent) {
                break;
            }
            wait.check("space that a transaction group gives back")?;
            self.txgs.sync_now()?;
        }
        let last =
            self.reservations.reserve(intent).or_else(|| self.reservations.reserve_less(intent));
        let reservation = last.ok_or_else(|| self.full())?;
        Ok(Transaction::new(self.txgs.begin_with(wait)?, Some(reservation), wait))
    }

    fn full(&self) -> Error {
        let text = format!("pool {} is full: delete something, or add a device", self.name);
        Error::new(ErrorKind::NoSpace, text)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            let text = format!("pool {} was exported; import it again", self.name);
            return Err(Error::new(ErrorKind::Closed, text));
        }
        if self.read_only {
            let text = format!("pool {} was imported for reading only", self.name);
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool {} ({:016x})", self.inner.name, self.inner.guid)
    }
}
