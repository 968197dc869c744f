//! An L2 device in use: an L2 of `forebay-l2` with the codec of the pool's blocks.
//!
//! The label of an L2 names its pool as the owner. This module also reads labels without opening an
//! L2.

use std::path::Path;

use forebay_base::arena::{Arena, Buffer};
use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use forebay_cache::{Cache, Candidate, Class, Holding, LoadGuard, SecondaryCache, WarmUp};
use forebay_io::{Device, OpenOptions};
use forebay_l2::{Health, L2, L2Options};

use super::codec::BlockCodec;
use super::pool_l2::PoolL2;
use super::router::L2Cache;
use crate::block_key::BlockKey;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind, PoolEvents};
use crate::open::{self, Opened};

/// Prefix of the owner field of a pool's L2 labels.
const OWNER_MAGIC: [u8; 8] = *b"fbpool\0\x01";
/// The same of an L2 that only a follower of the pool knows.
const FOLLOWER_MAGIC: [u8; 8] = *b"fbfollow";

/// The parts of a pool that its L2 devices use.
pub(crate) struct L2Context<'a> {
    pub(crate) pool_name: &'a str,
    pub(crate) pool_guid: u64,
    pub(crate) l2: &'a Arc<PoolL2>,
    pub(crate) cache: &'a Cache<BlockKey, Buffer>,
    pub(crate) arena: &'a Arc<Arena>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) events: &'a Arc<PoolEvents>,
    /// Whether this host follows the pool, which another one writes.
    pub(crate) follows: bool,
}

impl L2Context<'_> {
    fn owner(&self) -> [u8; 16] {
        let magic = if self.follows { FOLLOWER_MAGIC } else { OWNER_MAGIC };
        owner_with(magic, self.pool_guid)
    }

    fn options(&self, device: &Arc<dyn Device>, seed: u64) -> L2Options {
        let (events, name) = (Arc::clone(self.events), device.info().name.to_string());
        let lost = move |why: &str| events.note(EventKind::L2Lost, lost_device(&name, why));
        L2Options {
            on_failure: Some(Arc::new(lost)),
            immutable_keys: true,
            clock: Arc::clone(self.clock),
            seed,
            ..L2Options::new(self.owner(), Arc::clone(self.arena))
        }
    }

    fn codec(&self) -> Arc<BlockCodec> {
        Arc::new(BlockCodec::new(Arc::clone(self.l2), Arc::clone(self.arena)))
    }
}

/// The event of an L2 device that is not used any more.
pub(crate) fn lost_device<'a>(name: &'a str, why: &str) -> Event<'a> {
    Event { detail: Some(why.to_owned()), ..Event::of_device(name) }
}

/// Returns the owner field of a pool, or of its followers.
fn owner_with(magic: [u8; 8], guid: u64) -> [u8; 16] {
    let mut owner = [0; 16];
    owner[..8].copy_from_slice(&magic);
    owner[8..].copy_from_slice(&guid.to_le_bytes());
    owner
}

/// Statistics of an L2 device, since it was opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct L2DeviceStats {
    /// Bytes of the ring, all segments.
    pub capacity_bytes: u64,
    /// Bytes of used segments. Equals the capacity once the ring has wrapped.
    pub used_bytes: u64,
    /// Number of live records.
    pub records: u64,
    /// Loads served.
    pub hits: u64,
    /// Loads requested.
    pub lookups: u64,
    /// Bytes written to the device, all kinds.
    pub written_bytes: u64,
    /// Bytes of RAM that the index takes.
    pub memory_bytes: u64,
    /// Progress of the index rebuild.
    pub rebuild: L2Rebuild,
    /// Name, label (empty if the counter has none) and value of each counter.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// Progress of an L2's index rebuild after opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct L2Rebuild {
    /// Whether the rebuild has finished.
    pub done: bool,
    /// Segments read.
    pub segments: u64,
    /// Segments to read.
    pub segments_total: u64,
    /// Records found.
    pub records: u64,
    /// Elapsed time in nanoseconds.
    pub elapsed_ns: u64,
}

/// An open L2 device.
pub(crate) struct OpenL2Device {
    l2: Arc<L2<BlockKey, Buffer>>,
    codec: Arc<BlockCodec>,
    device: Arc<dyn Device>,
}

impl OpenL2Device {
    /// Creates an L2 on a device. Nothing is written to it before [`admit`](Self::admit).
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the device holds data and `force` is not set;
    /// [`ErrorKind::Invalid`] if it is too small; [`ErrorKind::Device`], [`ErrorKind::NoMemory`].
    pub(crate) fn create(
        device: Arc<dyn Device>,
        (context, seed): (&L2Context<'_>, u64),
        force: bool,
    ) -> Result<Arc<Self>> {
        let options = L2Options { force, ..context.options(&device, seed) };
        let codec = context.codec();
        let l2 = L2::create(Arc::clone(&device), codec.clone(), &options).map_err(refused)?;
        Ok(Arc::new(Self { l2, codec, device }))
    }

    /// Opens the pool's L2 on a device. Empties it if it is not the L2 `guid`, if its mark is not
    /// in `marks` (another copy of the pool has used it), or if it has blocks born after txg
    /// `trusted`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the device holds no L2, [`ErrorKind::Exists`] if the L2 belongs
    /// to another owner; otherwise as [`create`](Self::create).
    pub(crate) fn open(
        device: Arc<dyn Device>,
        (context, seed): (&L2Context<'_>, u64),
        guid: u64,
        marks: [u64; 2],
        trusted: u64,
    ) -> Result<Arc<Self>> {
        let label = forebay_l2::read_label(&device).map_err(refused)?;
        let ours = label.guid == guid && marks.contains(&label.user_mark);
        let max_stamp = if ours { trusted } else { 0 };
        let options = L2Options { max_stamp, ..context.options(&device, seed) };
        let codec = context.codec();
        let l2 = L2::open(Arc::clone(&device), codec.clone(), &options).map_err(refused)?;
        Ok(Arc::new(Self { l2, codec, device }))
    }

    /// Opens the L2 of a follower on a device, or creates it there. Keeps blocks that were born
    /// before or in txg `newest`, if it is of this pool and `is_ancestor` of its mark. Otherwise
    /// empties it: also if it is of a follower of another pool, as of one that was destroyed.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the device holds anything else; otherwise as
    /// [`create`](Self::create).
    pub(super) fn open_to_follow(
        device: Arc<dyn Device>,
        (context, seed): (&L2Context<'_>, u64),
        newest: u64,
        is_ancestor: impl FnOnce(u64) -> bool,
    ) -> Result<Arc<Self>> {
        let name = device.info().name.to_string();
        let emptied = |why: &str| tracing::info!(device = name, why, "the L2 begins anew");
        let holds = |what: &str| {
            let text = format!(
                "{name} holds {what}, which would be lost; give another file or device for the L2, \
                 or clear the first and last MiB of this one"
            );
            Error::new(ErrorKind::Exists, text)
        };
        let label = match forebay_l2::read_label(&device) {
            Ok(label) => Some(label),
            Err(error) if error.kind() == forebay_l2::ErrorKind::NotAnL2 => None,
            Err(error) => return Err(refused(error)),
        };
        match label {
            Some(label) if label.owner == context.owner() => {
                let mark = label.user_mark;
                let is_ours = is_ancestor(mark);
                if !is_ours && mark != 0 {
                    emptied("what it holds may be of a state of the pool that was given up");
                }
                let trusted = if is_ours { newest } else { 0 };
                Self::open(device, (context, seed), label.guid, [mark; 2], trusted)
            }
            Some(label) if label.owner.starts_with(&FOLLOWER_MAGIC) => {
                emptied("it was of another pool");
                Self::create(device, (context, seed), true)
            }
            Some(_) => Err(holds(&describe(&device).unwrap_or_default())),
            None => Self::create(Arc::clone(&device), (context, seed), false).map_err(|error| {
                match error.kind() {
                    ErrorKind::Exists => holds("other data"),
                    _ => error,
                }
            }),
        }
    }

    /// The GUID of the L2.
    pub(crate) fn guid(&self) -> u64 {
        self.l2.label().guid
    }

    /// The pool's mark on the device.
    pub(crate) fn mark(&self) -> u64 {
        self.l2.label().user_mark
    }

    /// Writes the mark of the pool's list to the device.
    ///
    /// # Errors
    /// The error of writing the mark.
    pub(crate) fn set_mark(&self, mark: u64) -> Result<()> {
        self.l2.set_user_mark(mark).map_err(refused)
    }

    /// The path of the device.
    pub(crate) fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Waits until the index is rebuilt. Returns false if the L2 failed or was closed.
    pub(crate) fn wait_rebuilt(&self) -> bool {
        self.l2.wait_rebuilt() && self.failure().is_none()
    }

    /// Whether the index is rebuilt.
    pub(super) fn is_rebuilt(&self) -> bool {
        self.l2.rebuild().done && self.failure().is_none()
    }

    /// Loads blocks into memory, in the background.
    pub(crate) fn warm_up(&self, target: WarmUp<BlockKey, Buffer>) {
        self.l2.warm_up(target);
    }

    /// Waits until the warm-up has ended.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn wait_warm_up(&self) {
        self.l2.wait_warm_up();
    }

    /// Whether offered blocks may be written.
    pub(crate) fn admits(&self) -> bool {
        self.codec.is_open()
    }

    /// Allows writing offered blocks.
    pub(crate) fn admit(&self) {
        self.codec.open();
    }

    /// Writes queued blocks and flushes the device; does nothing if the L2 has failed.
    pub(crate) fn flush(&self) {
        // The state and the counters of the L2 report errors.
        let _ = self.l2.flush();
    }

    /// Writes queued blocks and closes the device.
    pub(crate) fn close(&self) {
        self.l2.close();
    }

    /// Removes the L2 from the device and closes it.
    ///
    /// # Errors
    /// The error of erasing its label.
    pub(crate) fn remove(&self) -> Result<()> {
        self.l2.remove().map_err(refused)
    }

    /// Why the L2 has failed, or `None`.
    pub(crate) fn failure(&self) -> Option<String> {
        match self.l2.health() {
            Health::Failed { why, .. } => Some(why),
            _ => None,
        }
    }

    pub(crate) fn stats(&self) -> L2DeviceStats {
        let stats = self.l2.stats();
        let written_bytes = stats.count("written_bytes");
        L2DeviceStats {
            capacity_bytes: stats.size_bytes,
            used_bytes: stats.used_bytes,
            records: stats.records,
            hits: stats.hits,
            lookups: stats.loads,
            written_bytes,
            memory_bytes: stats.memory_bytes,
            rebuild: L2Rebuild {
                done: stats.rebuild.done,
                segments: stats.rebuild.segments_read,
                segments_total: stats.rebuild.segments,
                records: stats.rebuild.records,
                elapsed_ns: stats.rebuild.elapsed_ns,
            },
            counters: stats
                .counters
                .iter()
                .map(|c| (c.name, c.label.unwrap_or_default(), c.value))
                .collect(),
        }
    }
}

impl SecondaryCache<BlockKey, Buffer> for OpenL2Device {
    fn offer(&self, candidates: Vec<Candidate<BlockKey, Buffer>>) {
        self.l2.offer(candidates);
    }

    fn evicted(&self, keys: &[BlockKey]) {
        self.l2.evicted(keys);
    }

    fn would_write(&self, key: &BlockKey, class: Class) -> bool {
        self.l2.would_write(key, class)
    }

    fn holding(&self, key: &BlockKey, class: Class) -> Option<Holding> {
        self.l2.holding(key, class)
    }

    fn capacity_bytes(&self) -> Option<u64> {
        self.l2.capacity_bytes()
    }

    fn load(
        &self,
        load_guard: LoadGuard<BlockKey, Buffer>,
    ) -> Result<(), LoadGuard<BlockKey, Buffer>> {
        self.l2.load(load_guard)
    }

    fn forget(&self, key: &BlockKey) {
        self.l2.forget(key);
    }
}

impl L2Cache for OpenL2Device {
    fn memory_bytes(&self) -> u64 {
        self.l2.memory_bytes()
    }

    fn write_all(&self, blocks: Vec<Candidate<BlockKey, Buffer>>) -> bool {
        self.l2.write_all(blocks).is_ok()
    }
}

/// Describes the L2 on a device; `None` if there is none.
pub(crate) fn describe(device: &Arc<dyn Device>) -> Option<String> {
    let label = match forebay_l2::read_label(device) {
        Ok(label) => label,
        Err(error) if error.kind() == forebay_l2::ErrorKind::Unsupported => {
            return Some(format!("an L2 device that this version cannot read: {error}"));
        }
        Err(_) => return None,
    };
    let (magic, pool) = label.owner.split_at(OWNER_MAGIC.len());
    let pool = u64::from_le_bytes(pool.try_into().expect("the other half"));
    let whose = match magic {
        _ if magic == OWNER_MAGIC => format!("of the pool {pool:016x}"),
        _ if magic == FOLLOWER_MAGIC => format!("of a follower of the pool {pool:016x}"),
        _ => "of a program, not of a pool".to_owned(),
    };
    let (guid, segments, bytes) = (label.guid, label.segments, label.segment_bytes);
    Some(format!("an L2 device ({guid:016x}) {whose}: {segments} segments of {bytes} bytes"))
}

/// Returns the GUID of the L2 on a device, if there is one.
pub(crate) fn guid_of(device: &Arc<dyn Device>) -> Option<u64> {
    forebay_l2::read_label(device).ok().map(|label| label.guid)
}

/// Checks that `path` holds the L2 `guid` of pool `pool`. Fails with the reason if not.
pub(crate) fn check_path(path: &str, guid: u64, pool: u64) -> Result<(), String> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened =
        open::open_new_path(Path::new(path), &options).map_err(|error| error.to_string())?;
    let label = forebay_l2::read_label(&opened.device).map_err(|error| error.to_string())?;
    if label.owner != owner_with(OWNER_MAGIC, pool) {
        return Err(format!("{path} holds an L2 device of another owner"));
    }
    match label.guid == guid {
        true => Ok(()),
        false => Err(format!(
            "{path} holds another L2 device of the pool, {:016x}, which would be emptied",
            label.guid
        )),
    }
}

/// Opens and locks the file or block device of an L2.
///
/// # Errors
/// As [`open_path`](crate::open_path).
pub(crate) fn open_path(path: &str) -> Result<Opened> {
    open::open_new_path(Path::new(path), &OpenOptions::default())
}

/// Converts an error of `forebay-l2`.
fn refused(error: forebay_l2::Error) -> Error {
    use forebay_l2::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::NotAnL2 => ErrorKind::NotFound,
        Kind::Foreign => ErrorKind::Exists,
        Kind::Unsupported => ErrorKind::Unsupported,
        Kind::Invalid | Kind::TooSmall => ErrorKind::Invalid,
        Kind::ReadOnly => ErrorKind::ReadOnly,
        Kind::NoMemory | Kind::Thread => ErrorKind::NoMemory,
        Kind::Closed => ErrorKind::Closed,
        _ => ErrorKind::Device,
    };
    Error::new(kind, error.to_string()).because(error)
}
