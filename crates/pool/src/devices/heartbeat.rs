//! The heartbeat of the process that has a pool imported, and the watch for that of another one.
//!
//! A lock keeps two processes of one host from importing a pool. Against another host, which shares
//! the device, the importing process writes a *heartbeat* at intervals: a block in the front label
//! of vdev 0 that nothing else writes; of a mirror, in that of each device. It names a *session*, a
//! random number per import. Host ids are for messages only: two hosts may have the same one.
//!
//! # Taking over
//!
//! An import of a pool that was not exported *watches* the block. If it changes, the pool is in
//! use. If not, the import *claims* the pool: it writes its own session, and watches once more, for
//! longer than a *lease* lasts. Only then it reads what the pool holds, and writes.
//!
//! A session may write for [`LEASE`] intervals after it has last seen its own session in the block.
//! So a process that was held up for so long that another one could take over looks before it
//! writes: it finds the claim, or the new generation of the labels, and stops. Its heartbeat is not
//! issued that late either: it would look to the new owner like a claim.
//!
//! # Without a watch
//!
//! Imports of an exported pool exclude each other as `docs/decisions/0181` says. If the heartbeat
//! names this boot of this kernel and a file that this process has locked, its owner is gone. And
//! nobody else can open a device that was not opened by a path.

use std::time::Duration;

use forebay_io::{Device, ErrorKind as IoErrorKind, Fence, Priority, Request};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::config::{Config, put_text, text_of};
use super::label::read_at;
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{HEARTBEAT_OFFSET, HeartbeatPhys, SLOT_BYTES};
use crate::open::{HostId, Owner};

/// Intervals for which a session may write without another look at the block.
pub(crate) const LEASE: u32 = 4;
/// Intervals of the watch before the claim.
const WATCH: u32 = 5;
/// Intervals of the watch after the claim: more than a lease, by a request that takes long.
const CLAIM: u32 = LEASE + 2;
/// Interval to watch for if the block is not readable.
const DEFAULT_MS: u32 = 1000;
/// Longer intervals in a block are not believed.
const INTERVAL_MS_MAX: u32 = 60_000;

/// The content of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    pub(crate) session: u64,
    pub(crate) sequence: u64,
    /// Milliseconds between two heartbeats; 0 if only the claim is written.
    pub(crate) interval_ms: u32,
    pub(crate) host: HostId,
    pub(crate) owner: Owner,
}

impl Heartbeat {
    /// The heartbeat of an import that may yet give the pool up. It names no owner: that of another
    /// process, which the block named before, may still be there.
    pub(crate) fn without_owner(&self) -> Self {
        Self { owner: Owner::NONE, ..self.clone() }
    }
}

/// What a look at the block found.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The valid heartbeats of this pool, one per device at most.
    pub(crate) heartbeats: Vec<Heartbeat>,
    /// Whether nothing was ever written.
    is_zero: bool,
    /// Sum of the bytes, valid or not.
    sum: u64,
}

/// Waits between two looks.
pub(crate) type Pause<'a> = &'a (dyn Fn(Duration) + Send + Sync);

/// The devices of vdev 0 that are in use.
pub(crate) type Beaten<'a> = &'a [&'a dyn Device];

/// Reads the blocks.
///
/// # Errors
/// [`ErrorKind::Device`] if none can be read, [`ErrorKind::NoMemory`].
pub(crate) fn read(devices: Beaten<'_>, pool_guid: u64, memory: &BlockCache) -> Result<Seen> {
    let mut seen = Seen { heartbeats: Vec::new(), is_zero: true, sum: 0 };
    let mut failed = Ok(());
    let mut readable = 0;
    for device in devices {
        let bytes = match read_at(*device, HEARTBEAT_OFFSET, SLOT_BYTES, memory) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Device => {
                failed = Err(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        readable += 1;
        let phys = HeartbeatPhys::ref_from_bytes(&bytes).ok();
        let sound = phys.filter(|phys| phys.is_sound() && phys.pool_guid.get() == pool_guid);
        seen.heartbeats.extend(sound.map(|phys| Heartbeat {
            session: phys.session.get(),
            sequence: phys.sequence.get(),
            interval_ms: phys.interval_ms.get().min(INTERVAL_MS_MAX),
            host: HostId { id: phys.host_id.get(), name: text_of(&phys.host_name) },
            owner: Owner { boot: phys.boot.get(), lock: phys.lock.get() },
        }));
        seen.is_zero &= bytes.iter().all(|byte| *byte == 0);
        seen.sum = seen.sum.rotate_left(1) ^ xxh3_64(&bytes);
    }
    match readable {
        0 => failed.map(|()| seen),
        _ => Ok(seen),
    }
}

/// Devices that took no heartbeat: their places among those that should, and why.
pub(crate) type Refused = Vec<(usize, forebay_io::Error)>;

/// Writes the blocks. Another host sees one when this returns. Returns the devices that took none:
/// they may hold that of an older session, so the caller must not use them, nor look there again.
///
/// # Errors
/// [`ErrorKind::Device`] if none can be written, [`ErrorKind::NoMemory`].
pub(crate) fn write(
    devices: Beaten<'_>,
    pool_guid: u64,
    heartbeat: &Heartbeat,
    memory: &BlockCache,
) -> Result<Refused> {
    write_fenced(devices, pool_guid, heartbeat, (None, memory))
}

/// As [`write`], while `fence` allows it.
///
/// # Errors
/// As [`write`]; [`ErrorKind::Device`] with a cancelled request also if the fence has kept a block
/// from being written. That says nothing of its device.
pub(crate) fn write_fenced(
    devices: Beaten<'_>,
    pool_guid: u64,
    heartbeat: &Heartbeat,
    (fence, memory): (Option<&Fence>, &BlockCache),
) -> Result<Refused> {
    let mut phys = HeartbeatPhys::empty();
    phys.pool_guid = U64::new(pool_guid);
    phys.session = U64::new(heartbeat.session);
    phys.sequence = U64::new(heartbeat.sequence);
    phys.interval_ms = U32::new(heartbeat.interval_ms);
    phys.host_id = U64::new(heartbeat.host.id);
    phys.boot = U64::new(heartbeat.owner.boot);
    phys.lock = U64::new(heartbeat.owner.lock);
    put_text(&mut phys.host_name, &heartbeat.host.name);
    phys.seal();
    let mut refused = Refused::new();
    for (at, device) in devices.iter().enumerate() {
        let mut buffer = memory.alloc(SLOT_BYTES)?;
        buffer.copy_from_slice(phys.as_bytes());
        let request = Request::write(HEARTBEAT_OFFSET, buffer).with_priority(Priority::SyncWrite);
        let mut result = device.run(request.with_fence(fence.cloned())).result;
        if let Err(error) = &result
            && fence.is_some()
            && error.kind() == IoErrorKind::Cancelled
        {
            return Err(error.clone().into());
        }
        if result.is_ok() && !device.info().direct {
            // It may be in a cache of this host.
            result = device.run(Request::flush()).result;
        }
        refused.extend(result.err().map(|error| (at, error)));
    }
    if refused.len() < devices.len() {
        return Ok(refused);
    }
    match refused.pop() {
        Some((_, error)) => Err(error.into()),
        None => Ok(refused),
    }
}

/// What a claim found.
pub(crate) struct Claimed {
    /// Whether it has watched: the pool may have changed before the claim.
    pub(crate) watched: bool,
    /// As [`write`] returns.
    pub(crate) refused: Refused,
}

/// Makes sure that no other session has the pool, and writes the first heartbeat of `own`, without
/// an owner.
///
/// # Errors
/// [`ErrorKind::InUse`] if another session is active; the errors of [`read`] and [`write`].
pub(crate) fn claim(
    devices: Beaten<'_>,
    config: &Config,
    own: &Heartbeat,
    pause: Pause<'_>,
    memory: &BlockCache,
) -> Result<Claimed> {
    let seen = read(devices, config.pool_guid, memory)?;
    let found = &seen.heartbeats;
    let all = |what: &dyn Fn(&Heartbeat) -> bool| !found.is_empty() && found.iter().all(what);
    let was_off = all(&|seen| seen.interval_ms == 0);
    let is_gone = all(&|seen| seen.owner.is_gone(&own.owner));
    let watches = config.active && !is_gone && !was_off && !seen.is_zero;
    let claim = own.without_owner();
    if !watches {
        let refused = write(devices, config.pool_guid, &claim, memory)?;
        return Ok(Claimed { watched: false, refused });
    }
    let interval_ms = found.iter().map(|seen| seen.interval_ms).max().unwrap_or(DEFAULT_MS);
    let interval_ms = interval_ms.max(own.interval_ms);
    let host = found.first().map_or(&config.host, |seen| &seen.host);
    tracing::info!(pool = &*config.pool_name, %host, interval_ms, "watching for another host");
    let watch = Watch { devices, config, interval_ms, pause, memory };
    watch.run(&seen, WATCH)?;
    let refused = write(devices, config.pool_guid, &claim, memory)?;
    let took = |at: &usize| refused.iter().all(|(other, _)| other != at);
    let devices: Vec<_> = (0..devices.len()).filter(took).map(|at| devices[at]).collect();
    let claimed = read(&devices, config.pool_guid, memory)?;
    if claimed.heartbeats.is_empty() || claimed.heartbeats.iter().any(|seen| *seen != claim) {
        return Err(in_use(config, &claimed));
    }
    Watch { devices: &devices, ..watch }.run(&claimed, CLAIM)?;
    Ok(Claimed { watched: true, refused })
}

struct Watch<'a> {
    devices: Beaten<'a>,
    config: &'a Config,
    interval_ms: u32,
    pause: Pause<'a>,
    memory: &'a BlockCache,
}

impl Watch<'_> {
    /// Fails if the block changes within so many intervals.
    fn run(&self, from: &Seen, intervals: u32) -> Result<()> {
        for _ in 0..intervals {
            (self.pause)(Duration::from_millis(self.interval_ms.into()));
            let now = read(self.devices, self.config.pool_guid, self.memory)?;
            if now.sum != from.sum {
                return Err(in_use(self.config, &now));
            }
        }
        Ok(())
    }
}

fn in_use(config: &Config, seen: &Seen) -> Error {
    let host = seen.heartbeats.first().map_or(&config.host, |seen| &seen.host);
    let text = format!(
        "pool {:?}: host {host} uses it: its heartbeat in the label of device 0 goes on; export the pool there",
        config.pool_name
    );
    Error::new(ErrorKind::InUse, text)
}
