//! A leaf of the tree: one device, with its labels at both ends.

use std::path::Path;

use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::metrics::{Metrics, MetricsDevice};
use forebay_io::{
    Away, Completion, Device, Health, MemoryDevice, MemoryOptions, Op, Request, Roots,
};

use super::config::{LeafConfig, LeafErrors};
use super::too_small;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::MIN_DEVICE_BYTES;
use crate::open::{Locks, Opened, OpenedPath};

/// A device that has not answered for so many milliseconds is away.
const OUTAGE_MS: u64 = 3000;

/// A device of a pool.
pub(crate) struct Leaf {
    guid: u64,
    /// The device, measured by `metrics`.
    device: Arc<dyn Device>,
    metrics: Arc<MetricsDevice>,
    roots: Roots,
    /// Bytes that the pool uses, labels included; a multiple of the label size.
    size_bytes: AtomicU64,
    /// The sector size when it joined the pool.
    sector_bytes: u32,
    /// Failed requests that were forgotten, see [`forget_errors`](Self::forget_errors).
    forgotten_errors: AtomicU64,
    /// What the labels say of failed reads and writes, less what `metrics` had counted then.
    failures_before: [AtomicU64; 2],
    /// Held until the pool is closed.
    lock: Mutex<Option<Locks>>,
    /// How to open the device again.
    path: Option<OpenedPath>,
    /// Whether the device is not there: nothing of it can be read.
    missing: bool,
    /// Whether the device was closed to be opened again.
    closed_to_reopen: AtomicBool,
    /// Whether the device leaves the pool, or has left it.
    left: AtomicBool,
    /// Whether the side was written without the other ones when it was last looked at.
    apart: AtomicBool,
}

impl Leaf {
    /// # Errors
    /// [`ErrorKind::Invalid`] if the device is too small.
    pub(crate) fn new(guid: u64, size_bytes: u64, opened: Opened) -> Result<Self> {
        let info = opened.device.info();
        if size_bytes < MIN_DEVICE_BYTES || size_bytes > info.size_bytes {
            return Err(too_small(&info.name, info.size_bytes, size_bytes.max(MIN_DEVICE_BYTES)));
        }
        Ok(Self::to_read(guid, size_bytes, opened))
    }

    /// Creates a leaf that is only read. The device may be shorter than `size_bytes`; the missing
    /// part cannot be read.
    pub(crate) fn to_read(guid: u64, size_bytes: u64, opened: Opened) -> Self {
        let Opened { device, lock, path, .. } = opened;
        let metrics = Arc::new(MetricsDevice::new(device));
        let device: Arc<dyn Device> = Arc::clone(&metrics) as _;
        let roots = Roots::new(Arc::clone(&device), 0);
        let sector_bytes = device.info().medium_sector_bytes();
        Self {
            guid,
            device,
            metrics,
            roots,
            size_bytes: AtomicU64::new(size_bytes),
            sector_bytes,
            forgotten_errors: AtomicU64::new(0),
            failures_before: [AtomicU64::new(0), AtomicU64::new(0)],
            lock: Mutex::named("pool-device-lock", lock),
            path,
            missing: false,
            closed_to_reopen: AtomicBool::new(false),
            left: AtomicBool::new(false),
            apart: AtomicBool::new(false),
        }
    }

    /// Creates a leaf without its device. `what` names it in messages.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn missing(what: &str, guid: u64, size_bytes: u64) -> Result<Self> {
        let options =
            MemoryOptions { submission_queues: 1, sector_bytes: 512, ..MemoryOptions::default() };
        let name = format!("{what}, which is missing");
        let device = MemoryDevice::new(&name, 512, &options).map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("{name}: {error}")).because(error)
        })?;
        let device: Arc<dyn Device> = Arc::new(device);
        Ok(Self { missing: true, ..Self::to_read(guid, size_bytes, device.into()) })
    }

    /// Whether the device is not there.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing
    }

    /// The GUID of the device.
    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// What was requested of the device, and how long it took.
    pub(crate) fn metrics(&self) -> Metrics {
        self.metrics.snapshot()
    }

    /// The path of the device.
    pub(crate) fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Bytes that the pool uses, labels included.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    pub(super) fn grow_to(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    }

    /// The configuration of a new leaf.
    pub(crate) fn config(&self) -> LeafConfig {
        LeafConfig {
            guid: self.guid,
            size_bytes: self.size_bytes(),
            sector_bytes: self.sector_bytes,
            state: Default::default(),
            missed: None,
            replaces: None,
            errors: Default::default(),
        }
    }

    /// That the device has not answered for a while, if it comes back by itself.
    pub(crate) fn outage(&self) -> Option<String> {
        // Only an object store is expected to.
        self.device.info().append_only?;
        let Away { since_ms, error } = self.device.stats().away?;
        let (name, seconds) = (self.name(), since_ms / 1000);
        (since_ms >= OUTAGE_MS).then(|| {
            format!(
                "{name} has not answered for {seconds} s, and is asked again and again: {error}"
            )
        })
    }

    /// What is wrong with the device, or `None`.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let Some(outage) = self.outage() {
            return Some(outage);
        }
        let name = self.name();
        match self.device.health() {
            Health::Healthy => None,
            Health::Gone => Some(format!("device {name} is gone")),
            Health::Degraded { errors } => {
                let new = errors.saturating_sub(self.forgotten_errors.load(Ordering::Relaxed));
                (new > 0).then(|| format!("device {name}: {new} requests failed since the import"))
            }
        }
    }

    /// Adds the failures of before.
    pub(super) fn with_failures(self, errors: LeafErrors) -> Self {
        let [reads, writes] = &self.failures_before;
        reads.store(errors.reads, Ordering::Relaxed);
        writes.store(errors.writes, Ordering::Relaxed);
        self
    }

    /// Reads that failed, and writes and flushes.
    pub(super) fn failures(&self) -> (u64, u64) {
        let [reads, writes] = self.failed_now();
        let [reads_before, writes_before] = &self.failures_before;
        (
            reads.wrapping_add(reads_before.load(Ordering::Relaxed)),
            writes.wrapping_add(writes_before.load(Ordering::Relaxed)),
        )
    }

    /// Failures since the device was opened.
    fn failed_now(&self) -> [u64; 2] {
        let metrics = self.metrics();
        let of = |wanted: fn(Op) -> bool| {
            let rows = metrics.rows().iter().filter(|row| wanted(row.op));
            rows.map(|row| row.failed).sum()
        };
        [of(|op| op == Op::Read), of(|op| matches!(op, Op::Write | Op::Flush))]
    }

    /// Does not count the requests that have failed so far as [`trouble`](Self::trouble) any more.
    pub(crate) fn forget_errors(&self) {
        for (before, now) in self.failures_before.iter().zip(self.failed_now()) {
            before.store(now.wrapping_neg(), Ordering::Relaxed);
        }
        if let Health::Degraded { errors } = self.device.health() {
            self.forgotten_errors.store(errors, Ordering::Relaxed);
        }
    }

    /// Executes a request and waits for it. Fails once the pool is closed.
    pub(crate) fn run(&self, request: Request) -> Completion {
        let (request, pending) = request.pending();
        self.roots.submit(request);
        pending.wait(&*self.device)
    }

    /// Rejects new requests.
    pub(super) fn close_roots(&self) {
        self.roots.close();
    }

    /// Waits until all requests submitted before have ended, including their callbacks.
    pub(super) fn drain(&self) {
        let drained = self.roots.drain();
        debug_assert!(drained.is_ok(), "a callback drains");
    }

    /// Closes the device if its opener wants that, and releases the lock of the file.
    pub(super) fn unlock(&self) {
        let locks = self.lock.lock().take();
        // Not under the lock: a device may have something to write.
        drop(locks);
    }

    /// How to open the device again; `None` if it was not opened by a path.
    pub(super) fn opened_path(&self) -> Option<&OpenedPath> {
        self.path.as_ref()
    }

    /// Whether the device is gone, and may be opened again.
    pub(super) fn is_gone(&self) -> bool {
        self.path.is_some() && self.device.health() == Health::Gone
    }

    /// Releases the file, so that it can be opened again. The device stays open. Returns whether
    /// the pool had its lock.
    pub(super) fn unlock_file(&self) -> bool {
        let mut lock = self.lock.lock();
        lock.as_mut().map(Locks::release_file).is_some()
    }

    /// Whether its path leads to another file than the one that is open. Asks the system.
    pub(super) fn is_elsewhere(&self) -> bool {
        let Some(path) = &self.path else { return false };
        self.is_at(path.path()) == Some(false)
    }

    /// Whether `path` leads to the open file. `None` if that is not known.
    pub(super) fn is_at(&self, path: &Path) -> Option<bool> {
        self.lock.lock().as_ref()?.is_at(path)
    }

    /// Closes a device that is opened again, and releases its file; [`inherit`](Self::inherit)
    /// takes what was kept with that. Waits for its requests. Until another leaf has its place, the
    /// device does not answer.
    pub(super) fn close_to_reopen(&self) {
        self.drain();
        // Before a request can be refused.
        self.closed_to_reopen.store(true, Ordering::Release);
        self.close_roots();
        self.drain();
        self.unlock_file();
        self.device.close();
    }

    /// Whether the device was closed to be opened again. Nothing else has its place before that has
    /// succeeded.
    pub(super) fn is_closed_to_reopen(&self) -> bool {
        self.closed_to_reopen.load(Ordering::Acquire)
    }

    /// Takes over what is kept until the pool is closed from the same device, opened before.
    pub(super) fn inherit(&self, before: &Self) {
        let kept = before.lock.lock().take();
        if let Some(kept) = kept {
            self.lock.lock().get_or_insert_default().inherit(kept);
        }
    }

    /// Notes whether the side was written without the other ones.
    pub(super) fn set_apart(&self, is_apart: bool) {
        self.apart.store(is_apart, Ordering::Release);
    }

    /// Whether the device may be the only one with what was written there alone.
    pub(super) fn is_apart(&self) -> bool {
        self.apart.load(Ordering::Acquire)
    }

    /// Whether the device leaves the pool, or has left it.
    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// From now on the device leaves the pool. Returns whether it did before.
    pub(super) fn begin_leave(&self) -> bool {
        self.left.swap(true, Ordering::AcqRel)
    }

    /// The device leaves an imported pool: closes it, if the pool has its lock, so that others can
    /// use it. What was [kept](Opened::keep) with the lock is about the pool, and stays.
    pub(super) fn leave(&self) {
        if self.unlock_file() {
            self.device.close();
        }
    }
}
