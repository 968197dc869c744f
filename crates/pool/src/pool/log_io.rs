//! Connects the intent log to the pool: the log's devices, the content that a log commit reads, and
//! `fsync`.
//!
//! An fsync asks the intent log first. If the log cannot make the changes durable, the fsync waits
//! for the transaction group instead: the dataset has no log, the data does not fit the ring, or
//! records were lost.
//!
//! If a device may be away for long, a thread of the pool leads the commits of the log, so that an
//! fsync can stop to wait for it: it then waits for the group, as far as its dataset wants that.
//!
//! What an fsync does if a device fails depends on the device:
//!
//! - The log vdev: the ring moves into the space of the pool with the next group. The fsync waits
//!   for that group, and succeeds.
//! - A side of a mirror: the fsync waits for the group, with which labels say what the side misses.
//! - In front of an object store that has confirmed no group for a while: the fsync waits for one.
//!   Until then it does not ask the store, also if that is away.
//! - Another device, in a log write or its flush: the log counts the records as lost and stays
//!   closed until a new generation is durable. The fsync waits for its group.
//! - Such a device fails each flush after a failed one. So the commit of the group fails too. Once
//!   the pool is cleared, it first writes again all that no flush has covered.
//! - The commit of the group fails: the pool is suspended, and the fsync returns `Suspended`, also
//!   to callers that wait for the group already. `forebay-fs` waits for `forebay clear` and asks
//!   again, or returns the error (`failmode`). None succeeds before the group is durable.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_base::sync::thread;
use forebay_io::{Fence, Priority};

use crate::block_cache::BlockCache;
use crate::dataset;
use crate::devices::{Devices, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;
use crate::format::label::LOG_VDEV;
use crate::lease::Lease;
use crate::log::{Committed, Fetch, LogStorage};
use crate::wait::Wait;

use super::PoolInner;

/// The pool's devices as storage of the intent log.
pub(super) struct LogDevices {
    pub(super) devices: Arc<Devices>,
    pub(super) cache: Arc<BlockCache>,
    pub(super) lease: Arc<Lease>,
    /// On an object store: until when the log vdev may be relied on.
    pub(super) ownership: Option<Arc<Lease>>,
}

impl LogDevices {
    /// The device of an address that is one of a side. Sides with devices that miss nothing come
    /// first: each vdev has one, so all of the log is on the first side.
    fn place(&self, dva: Dva, side: usize) -> Place {
        let count = self.devices.place_count(dva);
        let mut places: Vec<_> = (0..count).map(|n| self.devices.nth_place(dva, n)).collect();
        places.sort_by_key(|place| !self.devices.is_whole(*place));
        places[side.min(count - 1)]
    }

    /// Fails if the object store may have another owner, which does not know of the log vdev.
    fn check_ownership(&self) -> Result<()> {
        match &self.ownership {
            Some(ownership) if !ownership.is_valid() => {
                let text = "the object store has not confirmed for a while that the pool is ours";
                Err(Error::new(ErrorKind::Device, text))
            }
            _ => Ok(()),
        }
    }

    /// Keeps writes from being issued late.
    fn log_fence(&self) -> Option<Fence> {
        match &self.ownership {
            Some(ownership) => {
                let ownership = Arc::clone(ownership);
                Some(Fence::new(move || ownership.is_valid()))
            }
            None => self.devices.fence(),
        }
    }
}

impl LogStorage for LogDevices {
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.cache.alloc(bytes)
    }

    fn sides(&self) -> usize {
        self.devices.sides()
    }

    fn is_whole(&self, dva: Dva, side: usize) -> bool {
        self.devices.is_whole(self.place(dva, side))
    }

    fn read(&self, dva: Dva, side: usize, buffer: Buffer) -> Result<Buffer> {
        self.devices.read(self.place(dva, side), buffer, Priority::SyncRead)
    }

    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()> {
        // The fsync may have waited for others. As after a failed write, it asks for a commit.
        self.lease.check()?;
        match writes.iter().any(|(dva, _)| is_on_log(*dva)) {
            true => {
                self.check_ownership()?;
                self.devices.write_log(writes, self.log_fence())
            }
            false => self.devices.write_all(writes, Priority::SyncWrite),
        }
    }

    fn flush(&self, dva: Dva) -> Result<()> {
        match is_on_log(dva) {
            true => {
                self.devices.flush_log()?;
                // Since this, another host may go on without what was written.
                self.check_ownership()?;
            }
            false => self.devices.flush_all()?,
        }
        if self.devices.has_unstored_changes() {
            // Labels say so once a group is durable. Until then that device, alone, would seem to
            // have the log.
            let text = "a device of a mirror misses records of the log";
            return Err(Error::new(ErrorKind::Device, text));
        }
        Ok(())
    }

    fn flush_failures(&self) -> u64 {
        self.devices.flush_failures() + self.devices.log_flush_failures()
    }
}

/// Whether an address is on the log vdev.
fn is_on_log(dva: Dva) -> bool {
    dva.device & LOG_VDEV != 0
}

impl Fetch for PoolInner {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        self.txgs.run_between_transactions(f)
    }

    fn content(&self, dataset: u64, object: u64, offset: u64, out: &mut [u8]) -> Result<()> {
        let node = self.dataset_of_guid(dataset)?.objset.open(object, Wait::Allowed)?;
        let there = node.read(offset, out, Wait::Allowed)?;
        out[there..].fill(0);
        Ok(())
    }
}

/// Starts the thread that leads commits of the log, if a device may be away and come back.
pub(super) fn start(inner: &Arc<PoolInner>) -> Result<()> {
    if !inner.txgs.may_have_outages() {
        return Ok(());
    }
    let pool = Arc::clone(inner);
    let run = move || pool.log.lead(&*pool);
    let thread = thread::spawn_named("forebay-log", run)
        .map_err(|error| Error::no_thread("the intent log of the pool", error))?;
    *inner.log_thread.lock() = Some(thread);
    Ok(())
}

impl PoolInner {
    /// Ends the thread that leads commits of the log, after its batch.
    pub(super) fn end_log_thread(&self) {
        self.log.end_leading();
        if let Some(thread) = self.log_thread.lock().take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }

    /// Returns the open dataset with this GUID.
    pub(super) fn dataset_of_guid(&self, guid: u64) -> Result<Arc<dataset::DatasetInner>> {
        let datasets = self.datasets.lock();
        let found = datasets.values().find(|dataset| dataset.guid == guid);
        found.cloned().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no dataset {guid:016x}"))
        })
    }

    /// Whether the log vdev, if there is one, may be relied on now. A group makes sure that it may.
    fn may_use_log_vdev(&self) -> bool {
        self.ownership.is_valid() || !self.devices.has_usable_log()
    }

    /// Makes durable: all changes of names and of objects' existence, and all changes of one
    /// object. Asks the intent log, then waits for the transaction group.
    pub(crate) fn fsync(&self, dataset: &dataset::DatasetInner, number: u64) -> Result<()> {
        self.check_writable()?;
        self.txgs.check_running()?;
        let may_log = match self.check_lease() {
            // The txg is waited for where the wait can end.
            Ok(()) => dataset.logs() && self.may_use_log_vdev() && !self.outage_stops_log(),
            // The heartbeat is late. The commit asks again, and suspends the pool if that fails.
            Err(error) if matches!(error.kind(), ErrorKind::Device | ErrorKind::NoMemory) => false,
            Err(error) => return Err(error),
        };
        let object = Some((dataset.guid, number));
        if may_log && self.commit_to_log(object) == Committed::Durable {
            return Ok(());
        }
        self.txgs.sync_now().map(|_| ())
    }

    /// Whether a device is away that the log needs. A log vdev works while the store behind it is
    /// away, as long as it may be relied on.
    fn outage_stops_log(&self) -> bool {
        let needs_store = || !self.log.is_away() || !self.ownership.is_valid();
        self.txgs.outage().is_some() && needs_store()
    }

    fn commit_to_log(&self, object: Option<(u64, u64)>) -> Committed {
        match self.txgs.may_have_outages() {
            true => self.log.commit_led(object, &|| self.outage_stops_log()),
            false => self.log.commit(object, self),
        }
    }
}
