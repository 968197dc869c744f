//! A top-level vdev: a device, or a mirror of devices. An address names it, not its devices.
//!
//! A device behaves as it always did. A mirror writes to all devices that are in use, and flushes
//! them; [`VdevStatus::settle`] decides whether that counts. A read goes to one device. The block
//! store verifies the block, tries the others, and rewrites bad copies ([`crate::store`]).
//!
//! A device becomes a mirror if it gets a side ([`attach`](super::attach)), and a mirror becomes a
//! device if it has lost all others.

use std::fmt;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::{Fence, Pending, Priority, Request, StableBytes};

use super::DeviceSpan;
use super::config::{LeafConfig, LeafErrors, VdevConfig, VdevKind};
use super::leaf::Leaf;
use super::slots::Slots;
use super::status::{LeafSet, VdevStatus};
use crate::error::{Error, ErrorKind};
use crate::format::label::{LABEL_BYTES, LOG_VDEV, MAX_LEAVES, StoredState};

/// A top-level vdev of a pool.
pub(crate) struct Vdev {
    number: u16,
    guid: AtomicU64,
    is_mirror: AtomicBool,
    /// Whether it is an object store, which never becomes anything else.
    is_store: bool,
    /// Also those that were removed.
    leaves: Slots<Leaf>,
    /// The first one that was not removed.
    first: AtomicU8,
    /// Bytes of each device that the pool uses, labels included.
    size_bytes: AtomicU64,
    status: Arc<VdevStatus>,
}

/// Called once with the result of a write.
type Done = Box<dyn FnOnce(Result<(), forebay_io::Error>) + Send>;

/// Bytes that several requests write.
struct SharedBytes(Arc<Box<dyn StableBytes>>);

// SAFETY: the bytes are those of the box, which the count keeps where it is, and which nobody
// writes to.
unsafe impl StableBytes for SharedBytes {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A write to all devices of a mirror, in flight.
struct MirrorWrite {
    status: Arc<VdevStatus>,
    state: Mutex<MirrorWriteState>,
}

struct MirrorWriteState {
    left: usize,
    done: LeafSet,
    failed: Vec<(u8, forebay_io::Error)>,
    /// Taken by the last one.
    callback: Option<Done>,
}

impl MirrorWrite {
    /// The write of a device has ended, and its payload is dropped.
    fn end(&self, leaf: u8, result: Result<(), forebay_io::Error>) {
        let mut state = self.state.lock();
        state.left -= 1;
        match result {
            Ok(()) => state.done.insert(leaf),
            Err(error) => state.failed.push((leaf, error)),
        }
        if state.left > 0 {
            return;
        }
        let (done, failed) = (state.done, std::mem::take(&mut state.failed));
        let callback = state.callback.take();
        drop(state);
        let result = self.status.settle(&done, failed, false);
        if let Some(callback) = callback {
            callback(result);
        }
    }
}

/// The time of a read in flight, if its vdev is a mirror.
pub(super) struct ReadTime(Option<(Arc<VdevStatus>, u8, u64)>);

impl ReadTime {
    /// The read has ended.
    pub(super) fn end(self, is_good: bool) {
        if let Some((status, leaf, began_ns)) = self.0 {
            status.end_read(leaf, began_ns, is_good);
        }
    }
}

/// Requests to the devices of a vdev, in flight.
pub(super) struct VdevPending<'a> {
    vdev: &'a Vdev,
    pending: Vec<(u8, Pending)>,
    is_flush: bool,
}

impl VdevPending<'_> {
    /// Waits for all, and decides whether they count.
    ///
    /// # Errors
    /// As [`VdevStatus::settle`].
    pub(super) fn wait(self) -> Result<(), forebay_io::Error> {
        let mut done = LeafSet::default();
        let mut failed = Vec::new();
        for (leaf, pending) in self.pending {
            match pending.wait(&**self.vdev.leaf(leaf).device()).result {
                Ok(()) => done.insert(leaf),
                Err(error) => failed.push((leaf, error)),
            }
        }
        self.vdev.status.settle(&done, failed, self.is_flush)
    }
}

impl Vdev {
    /// Creates a vdev of devices that are in the order of its configuration. Writes count for
    /// `txg`.
    pub(crate) fn new(number: u16, config: &VdevConfig, leaves: Vec<Leaf>, txg: u64) -> Self {
        debug_assert_eq!(config.leaves.len(), leaves.len(), "other devices");
        let vdev = Self {
            number,
            guid: AtomicU64::new(config.guid),
            is_mirror: AtomicBool::new(config.kind == VdevKind::Mirror),
            is_store: config.kind == VdevKind::ObjectStore,
            leaves: Slots::new(MAX_LEAVES),
            first: AtomicU8::new(0),
            size_bytes: AtomicU64::new(0),
            status: Arc::new(VdevStatus::new(&config.leaves, txg)),
        };
        for leaf in leaves {
            let pushed = vdev.leaves.push(leaf);
            debug_assert!(pushed.is_ok(), "more devices than a pool can have");
        }
        vdev.update_size();
        vdev
    }

    /// Its number in addresses.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Whether it holds the intent log, and no blocks.
    pub(crate) fn is_log(&self) -> bool {
        self.number & LOG_VDEV != 0
    }

    /// Its GUID.
    pub(crate) fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    /// What it is.
    pub(crate) fn kind(&self) -> VdevKind {
        match self.is_mirror.load(Ordering::Acquire) {
            true => VdevKind::Mirror,
            false if self.is_store => VdevKind::ObjectStore,
            false => VdevKind::Device,
        }
    }

    /// It becomes a device, or a mirror.
    pub(super) fn set_kind(&self, kind: VdevKind, guid: u64) {
        self.guid.store(guid, Ordering::Release);
        self.is_mirror.store(kind == VdevKind::Mirror, Ordering::Release);
    }

    /// What is known of its devices.
    pub(crate) fn status(&self) -> &Arc<VdevStatus> {
        &self.status
    }

    /// Its devices, with their indices.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (u8, &Leaf)> {
        self.status.members().map(|at| (at, self.leaf(at)))
    }

    /// Its devices, and those that were removed.
    pub(super) fn all_leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter()
    }

    /// The device with this index.
    pub(crate) fn leaf(&self, leaf: u8) -> &Leaf {
        &self.leaves[usize::from(leaf)]
    }

    /// The index of its first device.
    pub(crate) fn first(&self) -> u8 {
        self.first.load(Ordering::Acquire)
    }

    /// Its device, unless it is a mirror.
    fn single(&self) -> Option<&Leaf> {
        (self.kind() != VdevKind::Mirror).then(|| self.leaf(self.first()))
    }

    /// Adds a device, which gets all writes from now on, and misses what its configuration says.
    /// Returns its index; or the device, if so many were added and removed that it gets none.
    pub(super) fn push(&self, leaf: Leaf, config: &LeafConfig) -> Result<u8, Box<Leaf>> {
        // A request that finds the status finds the device.
        let at = self.leaves.push(leaf)?;
        self.status.push(config);
        Ok(at as u8)
    }

    /// A device that was opened again takes the place of an index with its state. Returns its own
    /// index; or the device, if so many were added that it gets none.
    pub(super) fn exchange(&self, old: u8, leaf: Leaf) -> Result<u8, Box<Leaf>> {
        let config = LeafConfig {
            state: self.status.state(old),
            missed: self.status.missed(old),
            replaces: self.status.replaces(old),
            errors: self.errors(old),
            ..leaf.config()
        };
        // A request that finds the status finds the device.
        let at = self.leaves.push(leaf.with_failures(config.errors))? as u8;
        // It is not erased.
        self.leaf(old).begin_leave();
        self.status.exchange(old, &config);
        self.update_first();
        Ok(at)
    }

    /// A device gets no requests any more.
    pub(super) fn remove(&self, leaf: u8) {
        self.status.remove(leaf);
        self.update_first();
    }

    /// A device has left: another one may be the first.
    fn update_first(&self) {
        if let Some(first) = self.status.members().next() {
            self.first.store(first, Ordering::Release);
        }
    }

    /// Blocks may be placed as far as all of its devices reach. Labels must say so.
    pub(super) fn update_size(&self) {
        let size = self.leaves().map(|(_, leaf)| leaf.size_bytes()).min();
        self.size_bytes.store(size.unwrap_or(0), Ordering::Release);
    }

    /// Converts the error of a request to a device, which may have been removed meanwhile, or
    /// closed to be opened again.
    pub(super) fn failed(&self, at: u8, error: forebay_io::Error) -> Error {
        let leaf = self.leaf(at);
        let why = match error.kind() {
            forebay_io::ErrorKind::Closed if self.status.is_removed(at) => "was detached",
            forebay_io::ErrorKind::Closed if leaf.is_closed_to_reopen() => {
                "was closed, and could not be opened again yet"
            }
            _ => return super::failed(error),
        };
        Error::new(ErrorKind::Device, format!("{}: {why}", leaf.name())).because(error)
    }

    /// The device, or what is mirrored.
    pub(crate) fn name(&self) -> String {
        match self.single() {
            Some(leaf) => leaf.name().to_owned(),
            None if self.is_log() => "mirror of the log".to_owned(),
            None => format!("mirror {}", self.number),
        }
    }

    /// The vdev in messages about its devices.
    pub(super) fn title(&self) -> String {
        match self.is_log() {
            true => "the log".to_owned(),
            false => format!("mirror {}", self.number),
        }
    }

    /// The configuration of a new vdev of these devices.
    pub(crate) fn config_of(guid: u64, kind: VdevKind, leaves: &[Leaf]) -> VdevConfig {
        VdevConfig { guid, kind, leaves: leaves.iter().map(Leaf::config).collect() }
    }

    /// Begins to time a read of a device. Only a mirror has a use for that.
    pub(super) fn time_read(&self, leaf: u8) -> ReadTime {
        let begun = || (Arc::clone(&self.status), leaf, self.status.begin_read(leaf));
        ReadTime((self.kind() == VdevKind::Mirror).then(begun))
    }

    /// Copies what is known of its devices into its configuration.
    pub(super) fn store_in(&self, config: &mut VdevConfig) {
        for (at, leaf) in self.leaves() {
            let found = config.leaves.iter_mut().find(|one| one.guid == leaf.guid());
            if let Some(config) = found {
                config.state = self.status.state(at);
                config.missed = self.status.missed(at);
                config.errors = self.errors(at);
            }
        }
    }

    /// Failures of a device since it joined the pool, or was cleared.
    pub(crate) fn errors(&self, leaf: u8) -> LeafErrors {
        let (reads, writes) = self.leaf(leaf).failures();
        LeafErrors { reads, writes, checksums: self.status.checksums(leaf) }
    }

    /// Its devices that are in use, with their indices.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u8, &Leaf)> {
        let is_alone = self.kind() != VdevKind::Mirror && !self.is_log();
        self.leaves().filter(move |(at, _)| is_alone || self.status.is_used(*at))
    }

    /// The devices that a request goes to: those in use. If there are none, the first one, which
    /// says why.
    fn targets(&self) -> Vec<(u8, &Leaf)> {
        let mut targets: Vec<_> = self.used().collect();
        if targets.is_empty() {
            let first = self.first();
            targets.push((first, self.leaf(first)));
        }
        targets
    }

    /// Whether none of its devices is there.
    pub(crate) fn is_missing(&self) -> bool {
        self.leaves().all(|(_, leaf)| leaf.is_missing())
    }

    /// The state of a device, for people.
    pub(crate) fn leaf_state(&self, leaf: u8) -> LeafState {
        match self.status.state(leaf) {
            _ if self.leaf(leaf).is_missing() => LeafState::Missing,
            StoredState::Missing => LeafState::Missing,
            StoredState::Faulted => LeafState::Faulted,
            StoredState::Offline => LeafState::Offline,
            StoredState::Online if self.status.missed(leaf).is_some() => LeafState::Degraded,
            StoredState::Online => LeafState::Online,
        }
    }

    /// Its device that leaves once this one has all blocks.
    pub(crate) fn replaced_by(&self, leaf: u8) -> Option<(u8, &Leaf)> {
        let guid = self.status.replaces(leaf)?;
        self.leaves().find(|(_, other)| other.guid() == guid)
    }

    /// Bytes of each device that the pool uses, labels included.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// The range that can hold blocks.
    #[inline]
    pub(crate) fn span(&self) -> DeviceSpan {
        let end = self.size_bytes() - LABEL_BYTES;
        let append_only = self.single().and_then(|leaf| leaf.device().info().append_only);
        DeviceSpan { device: self.number, start: LABEL_BYTES, end, append_only }
    }

    /// Starts to write `payload`. `done` runs exactly once, on any thread, after the payload is
    /// dropped.
    pub(super) fn write_async(
        &self,
        offset: u64,
        payload: Box<dyn StableBytes>,
        (priority, fence): (Priority, Option<Fence>),
        done: impl FnOnce(Result<(), forebay_io::Error>) + Send + 'static,
    ) {
        if let Some(leaf) = self.single() {
            let request = Request::write_shared(offset, payload).with_priority(priority);
            let request = request.with_fence(fence);
            return leaf.roots().submit(request.on_done(move |completion| {
                drop(completion.payload);
                done(completion.result);
            }));
        }
        let leaves = self.targets();
        let write = Arc::new(MirrorWrite {
            status: Arc::clone(&self.status),
            state: Mutex::named(
                "pool-mirror-write",
                MirrorWriteState {
                    left: leaves.len(),
                    done: LeafSet::default(),
                    failed: Vec::new(),
                    callback: Some(Box::new(done)),
                },
            ),
        });
        let payload = Arc::new(payload);
        let requests: Vec<_> = leaves
            .into_iter()
            .map(|(at, leaf)| {
                let bytes = Box::new(SharedBytes(Arc::clone(&payload)));
                let request = Request::write_shared(offset, bytes).with_priority(priority);
                let write = Arc::clone(&write);
                let request = request.with_fence(fence.clone()).on_done(move |completion| {
                    drop(completion.payload);
                    write.end(at, completion.result);
                });
                (leaf, request)
            })
            .collect();
        // The last request to end drops the payload.
        drop(payload);
        requests.into_iter().for_each(|(leaf, request)| leaf.roots().submit(request));
    }

    /// Starts to write `buffer`.
    pub(super) fn begin_write(
        &self,
        offset: u64,
        buffer: Buffer,
        (priority, fence): (Priority, Option<Fence>),
    ) -> VdevPending<'_> {
        let submit = |leaf: &Leaf, request: Request| {
            let request = request.with_priority(priority).with_fence(fence.clone());
            let (request, pending) = request.pending();
            leaf.roots().submit(request);
            pending
        };
        let pending = match self.single() {
            Some(leaf) => vec![(self.first(), submit(leaf, Request::write(offset, buffer)))],
            None => {
                let buffer = Arc::new(buffer);
                let shared = || Request::write_shared(offset, Box::new(Arc::clone(&buffer)));
                let targets = self.targets().into_iter();
                targets.map(|(at, leaf)| (at, submit(leaf, shared()))).collect()
            }
        };
        VdevPending { vdev: self, pending, is_flush: false }
    }

    /// Starts to flush. This thread may execute the last flush itself.
    pub(super) fn begin_flush(&self, is_last: bool) -> VdevPending<'_> {
        let targets = self.targets();
        let count = targets.len();
        let submit = |(nth, (at, leaf)): (usize, (u8, &Leaf))| {
            let flush = Request::flush();
            let allowed = is_last && nth + 1 == count;
            let (flush, pending) = if allowed { flush.allow_inline() } else { flush }.pending();
            leaf.device().submit(flush);
            (at, pending)
        };
        let pending = targets.into_iter().enumerate().map(submit).collect();
        VdevPending { vdev: self, pending, is_flush: true }
    }
}

/// State of a device, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum LeafState {
    /// It has all blocks.
    Online,
    /// It is used, and misses blocks.
    Degraded,
    /// It failed, and is not used.
    Faulted,
    /// It is not there.
    Missing,
    /// It was taken out of use.
    Offline,
}

impl LeafState {
    /// The state as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Degraded => "degraded",
            Self::Faulted => "faulted",
            Self::Missing => "missing",
            Self::Offline => "offline",
        }
    }
}

impl fmt::Display for LeafState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
