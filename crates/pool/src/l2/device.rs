//! One L2 device in use: an L2 of `forebay-l2` with the codec of a pool's blocks.
//!
//! The label of an L2 names its pool as the owner. This module also reads that label where no L2 is
//! opened.

use std::path::Path;

use forebay_base::arena::{Arena, Buffer};
use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use forebay_cache::{Cache, Candidate, Class, Filler, SecondLevel, SpareRoom};
use forebay_io::{Device, OpenOptions};
use forebay_l2::{Health, Level, LevelOptions};

use super::codec::BlockCodec;
use super::pool_l2::PoolL2;
use super::router::L2Cache;
use crate::block_key::BlockKey;
use crate::error::{Error, ErrorKind, Result};
use crate::open::{self, Opened};

/// What the owner's mark of a pool's L2 caches begins with.
const OWNER_MAGIC: [u8; 8] = *b"fbpool\0\x01";

/// The parts of a pool that its L2 caches use.
pub(crate) struct L2Context<'a> {
    pub(crate) pool_name: &'a str,
    pub(crate) pool_guid: u64,
    pub(crate) l2: &'a Arc<PoolL2>,
    pub(crate) cache: &'a Cache<BlockKey, Buffer>,
    pub(crate) arena: &'a Arc<Arena>,
    pub(crate) clock: &'a Arc<dyn Clock>,
}

impl L2Context<'_> {
    fn options(&self, seed: u64) -> LevelOptions {
        LevelOptions {
            immutable_keys: true,
            clock: Arc::clone(self.clock),
            seed,
            ..LevelOptions::new(owner_of(self.pool_guid), Arc::clone(self.arena))
        }
    }

    fn codec(&self) -> Arc<BlockCodec> {
        Arc::new(BlockCodec::new(Arc::clone(self.l2), Arc::clone(self.arena)))
    }
}

/// The owner's mark of a pool.
fn owner_of(guid: u64) -> [u8; 16] {
    let mut owner = [0; 16];
    owner[..8].copy_from_slice(&OWNER_MAGIC);
    owner[8..].copy_from_slice(&guid.to_le_bytes());
    owner
}

/// What an L2 on an L2 device says of itself, since it was opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct L2DeviceStats {
    /// Bytes of the ring, all segments.
    pub capacity_bytes: u64,
    /// Bytes of segments that have been used: all, once the ring has come round.
    pub used_bytes: u64,
    /// Blocks that can be found there.
    pub records: u64,
    /// Loads that it answered.
    pub hits: u64,
    /// Loads that it was asked for.
    pub lookups: u64,
    /// Bytes written to the device, of all kinds.
    pub written_bytes: u64,
    /// Bytes of RAM that its index takes.
    pub memory_bytes: u64,
    /// How far it knows what it has.
    pub rebuild: L2Rebuild,
    /// Name, label (empty if the counter has none) and value of each counter.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// How far an L2 knows what it has, after it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct L2Rebuild {
    /// Whether it knows all.
    pub done: bool,
    /// Segments that were looked at.
    pub segments: u64,
    /// Segments to look at.
    pub segments_total: u64,
    /// Records that were found.
    pub records: u64,
    /// How long it has taken.
    pub elapsed_ns: u64,
}

/// An L2 on a device.
pub(crate) struct OpenL2Device {
    l2: Arc<Level<BlockKey, Buffer>>,
    codec: Arc<BlockCodec>,
    device: Arc<dyn Device>,
}

impl OpenL2Device {
    /// Makes one. Nothing is written to it before [`admit`](Self::admit).
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the device holds something and it is not forced;
    /// [`ErrorKind::Invalid`] if it is too small; [`ErrorKind::Device`], [`ErrorKind::NoMemory`].
    pub(crate) fn create(
        device: Arc<dyn Device>,
        (context, seed): (&L2Context<'_>, u64),
        force: bool,
    ) -> Result<Arc<Self>> {
        let options = LevelOptions { force, ..context.options(seed) };
        let codec = context.codec();
        let l2 = Level::create(Arc::clone(&device), codec.clone(), &options).map_err(refused)?;
        Ok(Arc::new(Self { l2, codec, device }))
    }

    /// Opens the pool's L2 on a device. What it has of births above `trusted` is not this pool's:
    /// if there is such, it is emptied, and so it is if it is another one than `guid`, or none of
    /// `marks` is on it: another copy of the pool had it then.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it holds none, [`ErrorKind::Exists`] if it is another's; as
    /// [`create`](Self::create).
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
        let options = LevelOptions { max_stamp, ..context.options(seed) };
        let codec = context.codec();
        let l2 = Level::open(Arc::clone(&device), codec.clone(), &options).map_err(refused)?;
        Ok(Arc::new(Self { l2, codec, device }))
    }

    /// Names the L2.
    pub(crate) fn guid(&self) -> u64 {
        self.l2.label().guid
    }

    /// What is on it as the pool's mark.
    pub(crate) fn mark(&self) -> u64 {
        self.l2.label().user_mark
    }

    /// Marks it as used by who has this number in its list.
    ///
    /// # Errors
    /// Why that cannot be written.
    pub(crate) fn set_mark(&self, mark: u64) -> Result<()> {
        self.l2.set_user_mark(mark).map_err(refused)
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Waits until it knows what it has. False if that will not be: it has failed, or was closed.
    pub(crate) fn wait_rebuilt(&self) -> bool {
        self.l2.wait_rebuilt() && self.failure().is_none()
    }

    /// Puts blocks back into memory, in the background.
    pub(crate) fn warm_up(&self, target: SpareRoom<BlockKey, Buffer>) {
        self.l2.warm_up(target);
    }

    /// Waits until it has done so, if it does.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn wait_warm(&self) {
        self.l2.wait_warm();
    }

    /// Whether what is offered may be written.
    pub(crate) fn admits(&self) -> bool {
        self.codec.is_open()
    }

    /// What is offered may be written from now on.
    pub(crate) fn admit(&self) {
        self.codec.open();
    }

    /// Writes what waits to be written, and makes it durable; not if it has failed.
    pub(crate) fn flush(&self) {
        // It is told by the L2's state.
        let _ = self.l2.flush();
    }

    /// Writes what waits to be written, and lets go of the device.
    pub(crate) fn close(&self) {
        self.l2.close();
    }

    /// Lets go of the device, which holds no L2 any more.
    ///
    /// # Errors
    /// Why the device could not be told.
    pub(crate) fn remove(&self) -> Result<()> {
        self.l2.remove().map_err(refused)
    }

    /// Why it answers nothing any more, if so.
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

impl SecondLevel<BlockKey, Buffer> for OpenL2Device {
    fn offer(&self, candidates: Vec<Candidate<BlockKey, Buffer>>) {
        self.l2.offer(candidates);
    }

    fn evicted(&self, keys: &[BlockKey]) {
        self.l2.evicted(keys);
    }

    fn would_write(&self, key: &BlockKey, class: Class) -> bool {
        self.l2.would_write(key, class)
    }

    fn load(&self, filler: Filler<BlockKey, Buffer>) -> Result<(), Filler<BlockKey, Buffer>> {
        self.l2.load(filler)
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

/// What is on a device that is an L2 device, in words; nothing if it is none.
pub(crate) fn describe(device: &Arc<dyn Device>) -> Option<String> {
    let label = match forebay_l2::read_label(device) {
        Ok(label) => label,
        Err(error) if error.kind() == forebay_l2::ErrorKind::Unsupported => {
            return Some(format!("an L2 device that is not readable here: {error}"));
        }
        Err(_) => return None,
    };
    let whose = match label.owner.split_at(OWNER_MAGIC.len()) {
        (magic, pool) if magic == OWNER_MAGIC => {
            let pool: [u8; 8] = pool.try_into().expect("the other half");
            format!("of the pool {:016x}", u64::from_le_bytes(pool))
        }
        _ => "of a program, not of a pool".to_owned(),
    };
    let (guid, segments, bytes) = (label.guid, label.segments, label.segment_bytes);
    Some(format!("an L2 device ({guid:016x}) {whose}: {segments} segments of {bytes} bytes"))
}

/// Which L2 a device holds, if it is one's.
pub(crate) fn guid_of(device: &Arc<dyn Device>) -> Option<u64> {
    forebay_l2::read_label(device).ok().map(|label| label.guid)
}

/// Whether the L2 of that number lies at that path, for the pool `pool`; why not.
pub(crate) fn check_path(path: &str, guid: u64, pool: u64) -> Result<(), String> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = open::open_path(Path::new(path), &options).map_err(|error| error.to_string())?;
    let label = forebay_l2::read_label(&opened.device).map_err(|error| error.to_string())?;
    if label.owner != owner_of(pool) {
        return Err(format!("{path} holds the L2 of another"));
    }
    match label.guid == guid {
        true => Ok(()),
        false => Err(format!(
            "{path} holds another L2 device of the pool, {:016x}, which would be emptied",
            label.guid
        )),
    }
}

/// Opens the file or block device of an L2, locked.
///
/// # Errors
/// As [`open_path`](crate::open_path).
pub(crate) fn open_path(path: &str) -> Result<Opened> {
    open::open_path(Path::new(path), &OpenOptions::default())
}

/// In the words of the pool.
fn refused(error: forebay_l2::Error) -> Error {
    use forebay_l2::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::NotALevel => ErrorKind::NotFound,
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
