//! Reads and writes labels and uberblocks.
//!
//! # Invariants
//!
//! - A change of the configuration is durable in all front labels before the first back label is
//!   written. So each device always has a valid label, the older or the newer one.
//! - An uberblock is written to its slot in both labels of all devices. It replaces the uberblock
//!   of [`RING_SLOTS`] txgs before.
//!
//! # What it does not do
//!
//! It searches for a back label only at the device's end, and at the end that a valid front label
//! states. If a device has grown and its front label is lost, the device is lost.

use forebay_base::arena::Buffer;
use forebay_io::{Device, Priority, Request};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::config::{Config, Label};
use super::{Devices, Member, usable_bytes};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::format::label::{
    LABEL_BYTES, LabelPhys, RING_OFFSET, RING_SLOTS, SLOT_BYTES, UberblockPhys, VERSION,
};

/// An uberblock: the root of the pool as of one txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uberblock {
    pub(crate) txg: u64,
    /// Wall-clock time of the write in nanoseconds since 1970, for information.
    pub(crate) time_ns: u64,
    pub(crate) root: BlockPtrPhys,
    /// Number of devices of the pool.
    pub(crate) device_count: u16,
    /// The txg that this one follows; 0 for the first.
    pub(crate) previous_txg: u64,
}

fn back_of(size_bytes: u64) -> u64 {
    size_bytes - LABEL_BYTES
}

/// Submits one request per device concurrently, waits for all, and returns the first failure.
fn run_all<'a>(requests: impl Iterator<Item = (&'a dyn Device, Request)>) -> Result<()> {
    let pending: Vec<_> = requests
        .map(|(device, request)| {
            let (request, pending) = request.pending();
            device.submit(request);
            (device, pending)
        })
        .collect();
    let ends = pending.into_iter().map(|(device, pending)| pending.wait(device).result);
    // Waits for all, even if one failed.
    let ends: Vec<_> = ends.collect();
    ends.into_iter().collect::<Result<(), _>>().map_err(Error::from)
}

/// Makes completed writes to these devices durable.
pub(super) fn flush(members: &[&Member]) -> Result<()> {
    // This thread executes the last flush itself, because it has to wait anyway.
    let last = members.len().saturating_sub(1);
    run_all(members.iter().enumerate().map(|(at, member)| {
        let flush = Request::flush();
        (&**member.device(), if at == last { flush.allow_inline() } else { flush })
    }))
}

fn is_cancelled(error: &Error) -> bool {
    error.device_error().is_some_and(|io| io.kind() == forebay_io::ErrorKind::Cancelled)
}

/// Writes the front or the back label of each device, without flushing; under the lease of
/// `devices`.
fn write_configs(
    members: &[&Member],
    config: &Config,
    at_back: bool,
    devices: Option<&Devices>,
    memory: &BlockCache,
) -> Result<()> {
    let mut requests = Vec::with_capacity(members.len());
    for member in members {
        let mut buffer = memory.alloc(SLOT_BYTES)?;
        buffer.copy_from_slice(config.encode(member.number()).as_bytes());
        // While a device is being extended, its labels state the new size before the pool uses it.
        let size_bytes = config.devices[usize::from(member.number())].size_bytes;
        let offset = if at_back { back_of(size_bytes) } else { 0 };
        let request = Request::write(offset, buffer).with_priority(Priority::SyncWrite);
        let request = request.with_fence(devices.and_then(Devices::fence));
        requests.push((&**member.device(), request));
    }
    run_all(requests.into_iter())
}

/// Clears both labels of new devices and writes the configuration to them, durably.
///
/// # Errors
/// [`ErrorKind::Device`] if a device fails, [`ErrorKind::NoMemory`].
pub(crate) fn format(members: &[&Member], config: &Config, memory: &BlockCache) -> Result<()> {
    for member in members {
        clear(member, 0, memory)?;
        clear(member, back_of(member.size_bytes()), memory)?;
    }
    // The labels of an older pool must be gone before the first new label is written.
    flush(members)?;
    write_configs(members, config, false, None, memory)?;
    write_configs(members, config, true, None, memory)?;
    flush(members)
}

fn clear(member: &Member, offset: u64, memory: &BlockCache) -> Result<()> {
    let zeros = memory.alloc_zeroed(LABEL_BYTES as usize)?;
    let request = Request::write(offset, zeros).with_priority(Priority::SyncWrite);
    Ok(member.device().run(request).result?)
}

/// Erases the labels of a device, durably: at its front, at its back, and at its end as of its
/// label.
///
/// # Errors
/// [`ErrorKind::Device`] if the device fails, [`ErrorKind::NoMemory`].
pub(crate) fn erase(device: &dyn Device, known_bytes: u64, memory: &BlockCache) -> Result<()> {
    let size_bytes = usable_bytes(device);
    let mut ends = vec![size_bytes];
    if (2 * LABEL_BYTES..size_bytes).contains(&known_bytes) {
        ends.push(known_bytes);
    }
    for offset in std::iter::once(0).chain(ends.into_iter().map(back_of)) {
        let zeros = memory.alloc_zeroed(LABEL_BYTES as usize)?;
        let request = Request::write(offset, zeros).with_priority(Priority::SyncWrite);
        device.run(request).result?;
    }
    Ok(device.run(Request::flush()).result?)
}

/// Asked before each pass of writes, with the generation of the labels that it writes: an earlier
/// one may have taken longer than the lease.
pub(crate) type MayWrite<'a> = &'a dyn Fn(u64) -> Result<()>;

/// Writes a changed configuration to all devices, with the next generation, durably.
///
/// # Errors
/// [`ErrorKind::Device`] if a device fails: some labels are old, some new. [`ErrorKind::NoMemory`].
/// What `may_write` returns.
pub(crate) fn update_config(
    devices: &Devices,
    config: &mut Config,
    memory: &BlockCache,
    may_write: MayWrite<'_>,
) -> Result<()> {
    config.generation += 1;
    let members: Vec<&Member> = devices.iter().collect();
    assert_eq!(members.len(), config.devices.len(), "a configuration of other devices");
    for at_back in [false, true] {
        may_write(config.generation)?;
        let failures = devices.flush_failures();
        let write = || write_configs(&members, config, at_back, Some(devices), memory);
        if let Err(error) = write() {
            if !is_cancelled(&error) {
                return Err(error);
            }
            // The lease ended while a label was queued.
            may_write(config.generation)?;
            write()?;
        }
        devices.flush_all()?;
        if devices.flush_failures() != failures {
            let text = "another flush failed meanwhile, and may have lost a label: try again";
            return Err(Error::new(ErrorKind::Device, text));
        }
    }
    Ok(())
}

/// Extends a device that has grown: writes its new back label and the configuration, durably, and
/// only then permits blocks past the old end. Returns the new size; the same if it has not grown.
///
/// # Errors
/// [`ErrorKind::Invalid`] if there is no such device; [`ErrorKind::Device`], after which the pool
/// uses the device as before, whatever its labels state; [`ErrorKind::NoMemory`]; what `may_write`
/// returns.
pub(crate) fn expand(
    devices: &Devices,
    number: u16,
    config: &mut Config,
    memory: &BlockCache,
    may_write: MayWrite<'_>,
) -> Result<u64> {
    let none = || Error::new(ErrorKind::Invalid, format!("the pool has no device {number}"));
    let member = devices.get(number).ok_or_else(none)?;
    let size_bytes = usable_bytes(&**member.device());
    if size_bytes <= member.size_bytes() {
        return Ok(member.size_bytes());
    }
    // The new position may hold a stale label. Blocks will overwrite the old back label with its
    // ring.
    may_write(config.generation)?;
    clear(member, back_of(size_bytes), memory)?;
    copy_ring(member, back_of(size_bytes), memory)?;
    flush(&[member])?;
    let mut grown = config.clone();
    grown.devices[usize::from(number)].size_bytes = size_bytes;
    let updated = update_config(devices, &mut grown, memory, may_write);
    // Some labels may have this generation, even after a failure.
    config.generation = grown.generation;
    updated?;
    *config = grown;
    devices.expand(number, size_bytes);
    Ok(size_bytes)
}

/// Copies the uberblocks of the front label to another label. A slot that is written meanwhile may
/// be torn in the copy, and is invalid then.
fn copy_ring(member: &Member, to: u64, memory: &BlockCache) -> Result<()> {
    let bytes = RING_SLOTS as usize * SLOT_BYTES;
    let ring = read_at(&**member.device(), RING_OFFSET, bytes, memory)?;
    let request = Request::write(to + RING_OFFSET, ring).with_priority(Priority::SyncWrite);
    Ok(member.device().run(request).result?)
}

/// Returns the newest valid label of a device, front or back; `None` if there is none.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if a newer version wrote it; [`ErrorKind::Corrupt`] if it is invalid
/// and there is no other one; [`ErrorKind::Device`] if the device cannot be read;
/// [`ErrorKind::NoMemory`].
pub(crate) fn read(device: &dyn Device, memory: &BlockCache) -> Result<Option<Label>> {
    let size_bytes = usable_bytes(device);
    if size_bytes < 2 * LABEL_BYTES {
        return Ok(None);
    }
    let front = read_one(device, 0, memory);
    let back = read_one(device, back_of(size_bytes), memory);
    let mut found = vec![front, back];
    // If the device has grown, its back label is at its previous end.
    if let Ok(Some(label)) = &found[0] {
        let ended = label.config.devices[usize::from(label.number)].size_bytes;
        if ended < size_bytes {
            found.push(read_one(device, back_of(ended), memory));
        }
    }
    let sound = found.iter().flatten().flatten();
    if let Some(newest) = sound.max_by_key(|label| label.config.generation) {
        return Ok(Some(newest.clone()));
    }
    // No valid label: return the first error, if any.
    found.into_iter().find(Result::is_err).unwrap_or(Ok(None))
}

fn read_one(device: &dyn Device, offset: u64, memory: &BlockCache) -> Result<Option<Label>> {
    let bytes = read_at(device, offset, SLOT_BYTES, memory)?;
    match LabelPhys::ref_from_bytes(&bytes) {
        Ok(label) => Label::decode(label, &device.info().name),
        Err(_) => Ok(None),
    }
}

pub(super) fn read_at(
    device: &dyn Device,
    offset: u64,
    len: usize,
    memory: &BlockCache,
) -> Result<Buffer> {
    let request = Request::read(offset, memory.alloc(len)?).allow_inline();
    let (request, pending) = request.pending();
    // Another host may have written it since the last look.
    device.submit_uncached(request);
    Ok(pending.wait(device).into_buffer()?)
}

/// Writes the uberblock of a txg to both labels of all devices concurrently, and flushes them.
/// Repeats a write that fails once. One copy suffices: an import looks at all of them. Returns the
/// number of copies that could not be written.
///
/// # Errors
/// [`ErrorKind::Device`] if no copy can be written, or a flush fails: the uberblock is on some, all
/// or no devices. [`ErrorKind::NoMemory`]. What `may_write` returns before the repetition.
pub(crate) fn write_uberblock(
    devices: &Devices,
    pool_guid: u64,
    uberblock: &Uberblock,
    memory: &BlockCache,
    may_write: &dyn Fn() -> Result<()>,
) -> Result<u64> {
    let mut phys = UberblockPhys::empty();
    phys.device_count = U32::new(u32::from(uberblock.device_count));
    phys.pool_guid = U64::new(pool_guid);
    phys.txg = U64::new(uberblock.txg);
    phys.time_ns = U64::new(uberblock.time_ns);
    phys.root = uberblock.root;
    phys.previous_txg = U64::new(uberblock.previous_txg);
    phys.seal();
    let slot = RING_OFFSET + uberblock.txg % RING_SLOTS * SLOT_BYTES as u64;
    let members: Vec<&Member> = devices.iter().collect();
    let places = members.iter().flat_map(|member| {
        [0, back_of(member.size_bytes())].map(|label| (&**member.device(), label + slot))
    });
    let places: Vec<(&dyn Device, u64)> = places.collect();
    let copies = places.len();
    let write = |places| write_copies(devices, places, phys.as_bytes(), memory);
    let failed = write(places)?;
    if !failed.is_empty() {
        may_write()?;
    }
    let again = failed.into_iter().map(|(place, _)| place).collect();
    let mut failed = write(again)?;
    let missing = failed.len();
    for (_, error) in &failed {
        tracing::warn!(%error, "device error");
    }
    if missing == copies
        && let Some((_, error)) = failed.pop()
    {
        return Err(super::failed(error));
    }
    flush(&members).inspect_err(|_| devices.note_flush_failure())?;
    Ok(missing as u64)
}

/// Where a copy of an uberblock lies.
type LabelPlace<'a> = (&'a dyn Device, u64);

/// Writes `bytes` to all places concurrently and waits. Returns the places that failed.
fn write_copies<'a>(
    devices: &Devices,
    places: Vec<LabelPlace<'a>>,
    bytes: &[u8],
    memory: &BlockCache,
) -> Result<Vec<(LabelPlace<'a>, forebay_io::Error)>> {
    let mut buffers = Vec::with_capacity(places.len());
    for _ in &places {
        let mut buffer = memory.alloc(bytes.len())?;
        buffer.copy_from_slice(bytes);
        buffers.push(buffer);
    }
    let submit = |((device, offset), buffer): (LabelPlace<'a>, Buffer)| {
        let request = Request::write(offset, buffer).with_priority(Priority::SyncWrite);
        let request = request.with_fence(devices.fence());
        let (request, pending) = request.pending();
        device.submit(request);
        (device, offset, pending)
    };
    let pending: Vec<_> = places.into_iter().zip(buffers).map(submit).collect();
    // Waits for all, even if one failed.
    let ends = pending.into_iter().map(|(device, offset, pending)| {
        pending.wait(device).result.err().map(|error| ((device, offset), error))
    });
    Ok(ends.flatten().collect())
}

/// Returns all valid uberblocks of a pool from all labels of these devices, newest first, without
/// duplicates. Unreadable labels and devices that are too small are skipped: other labels have
/// copies.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if a newer version wrote one; [`ErrorKind::NoMemory`].
pub(crate) fn best_uberblocks(
    devices: &[(&dyn Device, u64)],
    pool_guid: u64,
    memory: &BlockCache,
) -> Result<Vec<Uberblock>> {
    let mut found: Vec<Uberblock> = Vec::new();
    for (device, size_bytes) in devices.iter().filter(|(_, size)| *size >= LABEL_BYTES) {
        for label in [0, back_of(*size_bytes)] {
            let len = RING_SLOTS as usize * SLOT_BYTES;
            match read_at(*device, label + RING_OFFSET, len, memory) {
                Ok(ring) => read_ring(&ring, pool_guid, &device.info().name, &mut found)?,
                Err(error) if error.kind() == ErrorKind::Device => {}
                Err(error) => return Err(error),
            }
        }
    }
    found.sort_by_key(|uberblock| std::cmp::Reverse(uberblock.txg));
    Ok(found)
}

fn read_ring(ring: &[u8], pool_guid: u64, name: &str, found: &mut Vec<Uberblock>) -> Result<()> {
    for (slot, bytes) in ring.chunks_exact(SLOT_BYTES).enumerate() {
        let Ok(phys) = UberblockPhys::ref_from_bytes(bytes) else { continue };
        let mine = phys.is_sound() && phys.pool_guid.get() == pool_guid;
        if !mine || phys.txg.get() % RING_SLOTS != slot as u64 {
            continue;
        }
        let version = phys.version.get();
        if version != VERSION {
            let text = format!(
                "{name}: an uberblock has version {version}, this build supports {VERSION}; use another build"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let Ok(device_count) = u16::try_from(phys.device_count.get()) else { continue };
        let (txg, time_ns) = (phys.txg.get(), phys.time_ns.get());
        let (root, previous_txg) = (phys.root, phys.previous_txg.get());
        let uberblock = Uberblock { txg, time_ns, root, device_count, previous_txg };
        if !found.contains(&uberblock) {
            found.push(uberblock);
        }
    }
    Ok(())
}
