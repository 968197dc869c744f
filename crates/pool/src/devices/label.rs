//! Reads and writes labels and uberblocks.
//!
//! # Invariants
//!
//! - A change of the configuration is durable in all front labels before the first back label is
//!   written. So each device always has a valid label, the older or the newer one.
//! - An uberblock is written to its slot in both labels of all devices that are in use. It replaces
//!   the uberblock of [`RING_SLOTS`] txgs before.
//! - A device of a mirror that takes no label is faulted, and the others go on.
//!
//! # What it does not do
//!
//! It searches for a back label only at the device's end, and at the end that a valid front label
//! states. If a device has grown and its front label is lost, the device is lost.

use forebay_base::arena::Buffer;
use forebay_io::{Device, Priority, Request};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::config::{Config, Label, LabelBytes, Missed, VdevKind};
use super::status::LeafSet;
use super::{Devices, Leaf, Vdev, usable_bytes};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::format::label::{
    LABEL_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES, TREE_BYTES, UberblockPhys, VERSION,
};

/// Bytes of a label that hold the configuration and the largest tree.
pub(crate) const CONFIG_BYTES: usize = SLOT_BYTES + TREE_BYTES;

/// An uberblock: the root of the pool as of one txg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uberblock {
    pub(crate) txg: u64,
    /// Wall-clock time of the write in nanoseconds since 1970, for information.
    pub(crate) time_ns: u64,
    pub(crate) root: BlockPtrPhys,
    /// Number of top-level vdevs of the pool.
    pub(crate) vdev_count: u16,
    /// The txg that this one follows; 0 for the first.
    pub(crate) previous_txg: u64,
}

pub(super) fn back_of(size_bytes: u64) -> u64 {
    size_bytes - LABEL_BYTES
}

/// Whether a request was cancelled, because the lease has ended.
pub(crate) fn is_cancelled(error: &Error) -> bool {
    error.device_error().is_some_and(|io| io.kind() == forebay_io::ErrorKind::Cancelled)
}

/// Writes the front or the back label of each device that is in use, without flushing; under the
/// lease of `devices`.
pub(super) fn write_configs(
    vdevs: &[&Vdev],
    config: &Config,
    at_back: bool,
    devices: Option<&Devices>,
    memory: &BlockCache,
) -> Result<()> {
    let mut requests = Vec::new();
    for vdev in vdevs {
        for (at, leaf) in vdev.used() {
            let number = vdev.number();
            let Some(request) = label_request(number, leaf, config, at_back, memory)? else {
                continue;
            };
            let request = request.with_fence(devices.and_then(Devices::fence));
            requests.push((number, at, &**leaf.device(), request));
        }
    }
    let submit = |(number, at, device, request): (u16, u8, _, Request)| {
        let (request, pending) = request.pending();
        let device: &dyn Device = device;
        device.submit(request);
        (number, at, device, pending)
    };
    let pending: Vec<_> = requests.into_iter().map(submit).collect();
    // Waits for all, even if one failed.
    let ends: Vec<_> = pending
        .into_iter()
        .map(|(number, at, device, pending)| (number, at, pending.wait(device).result))
        .collect();
    for vdev in vdevs {
        let (mut done, mut failed) = (LeafSet::default(), Vec::new());
        for (_, at, end) in ends.iter().filter(|(number, ..)| *number == vdev.number()) {
            match end {
                Ok(()) => done.insert(*at),
                Err(error) => failed.push((*at, error.clone())),
            }
        }
        // A device that takes no label is of no use.
        vdev.status().settle(&done, failed, true)?;
    }
    Ok(())
}

/// The write of the front or the back label of a device; `None` if the configuration does not list
/// it.
fn label_request(
    number: u16,
    leaf: &Leaf,
    config: &Config,
    at_back: bool,
    memory: &BlockCache,
) -> Result<Option<Request>> {
    let leaves = config.vdev(number).map_or(&[][..], |vdev| &vdev.leaves);
    let Some(index) = leaves.iter().position(|one| one.guid == leaf.guid()) else {
        return Ok(None);
    };
    let bytes = config.encode(number, index);
    let mut buffer = memory.alloc(bytes.len())?;
    buffer.copy_from_slice(&bytes);
    // While a device is being extended, its labels state the new size before the pool uses it.
    let offset = if at_back { back_of(leaves[index].size_bytes) } else { 0 };
    Ok(Some(Request::write(offset, buffer).with_priority(Priority::SyncWrite)))
}

/// Clears both labels of a new side of a mirror and writes the configuration to them, durably.
///
/// # Errors
/// [`ErrorKind::Device`] if the device fails, [`ErrorKind::NoMemory`].
pub(super) fn format_side(
    number: u16,
    leaf: &Leaf,
    config: &Config,
    memory: &BlockCache,
) -> Result<()> {
    let device = leaf.device();
    clear(leaf, 0, memory)?;
    clear(leaf, back_of(leaf.size_bytes()), memory)?;
    // The labels of an older pool must be gone before the first new label is written.
    device.run(Request::flush()).result?;
    for at_back in [false, true] {
        if let Some(request) = label_request(number, leaf, config, at_back, memory)? {
            device.run(request).result?;
        }
    }
    Ok(device.run(Request::flush()).result?)
}

/// Clears both labels of the devices of a new vdev and writes the configuration to them, durably.
///
/// # Errors
/// [`ErrorKind::Device`] if a device fails, [`ErrorKind::NoMemory`].
pub(crate) fn format(vdevs: &[&Vdev], config: &Config, memory: &BlockCache) -> Result<()> {
    for (_, leaf) in vdevs.iter().flat_map(|vdev| vdev.leaves()) {
        clear(leaf, 0, memory)?;
        clear(leaf, back_of(leaf.size_bytes()), memory)?;
    }
    let flush = || {
        let mut leaves = vdevs.iter().flat_map(|vdev| vdev.leaves());
        leaves.try_for_each(|(_, leaf)| leaf.device().run(Request::flush()).result)
    };
    // The labels of an older pool must be gone before the first new label is written.
    flush()?;
    for at_back in [false, true] {
        write_configs(vdevs, config, at_back, None, memory)?;
    }
    flush()?;
    // A new vdev must be whole.
    match vdevs.iter().find(|vdev| vdev.status().changes() > 0) {
        Some(vdev) => {
            let text = format!("{}: a device took no label", vdev.name());
            Err(Error::new(ErrorKind::Device, text))
        }
        None => Ok(()),
    }
}

fn clear(leaf: &Leaf, offset: u64, memory: &BlockCache) -> Result<()> {
    let zeros = memory.alloc_zeroed(LABEL_BYTES as usize)?;
    let request = Request::write(offset, zeros).with_priority(Priority::SyncWrite);
    Ok(leaf.device().run(request).result?)
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

/// Writes a changed configuration to all devices in use, with the next generation, durably; and
/// with it what is known of the devices.
///
/// # Errors
/// [`ErrorKind::Device`] if a vdev fails: some labels are old, some new. [`ErrorKind::NoMemory`].
/// What `may_write` returns.
pub(crate) fn update_config(
    devices: &Devices,
    config: &mut Config,
    memory: &BlockCache,
    may_write: MayWrite<'_>,
) -> Result<()> {
    config.generation += 1;
    config.count_uses();
    let changes = devices.store_in(config);
    assert_eq!(devices.count(), config.vdevs.len(), "a configuration of other devices");
    let vdevs: Vec<&Vdev> = devices.iter().collect();
    for at_back in [false, true] {
        may_write(config.generation)?;
        let failures = devices.flush_failures();
        let write = || write_configs(&vdevs, config, at_back, Some(devices), memory);
        if let Err(error) = write() {
            if !is_cancelled(&error) {
                return Err(error);
            }
            // The lease ended while a label was queued.
            may_write(config.generation)?;
            write()?;
        }
        devices.label_log(config, at_back, memory);
        devices.flush_all()?;
        if devices.flush_failures() != failures {
            let text = "another flush failed meanwhile, and may have lost a label: try again";
            return Err(Error::new(ErrorKind::Device, text));
        }
    }
    devices.stored(changes);
    Ok(())
}

/// Extends the devices of a vdev that have grown: writes their new back labels and the
/// configuration, durably, and only then permits blocks past the old end. A mirror grows to its
/// smallest device. Returns the new size of the vdev; the same if it has not grown.
///
/// # Errors
/// [`ErrorKind::Invalid`] if there is no such vdev, or if it is an object store;
/// [`ErrorKind::Device`], after which the pool uses the devices as before, whatever their labels
/// state; [`ErrorKind::NoMemory`]; what `may_write` returns.
pub(crate) fn expand(
    devices: &Devices,
    number: u16,
    config: &mut Config,
    memory: &BlockCache,
    may_write: MayWrite<'_>,
) -> Result<u64> {
    let none = || Error::new(ErrorKind::Invalid, format!("the pool has no device {number}"));
    // The log gains nothing by more space.
    let vdev = devices.get(number).filter(|vdev| !vdev.is_log()).ok_or_else(none)?;
    if vdev.kind() == VdevKind::ObjectStore {
        let text = format!("{}: an object store grows by itself", vdev.name());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut grown = config.clone();
    let mut sizes = Vec::new();
    for (at, leaf) in vdev.used() {
        let size_bytes = usable_bytes(&**leaf.device());
        if size_bytes <= leaf.size_bytes() {
            continue;
        }
        // The new position may hold a stale label. Blocks will overwrite the old back label with
        // its ring.
        may_write(config.generation)?;
        clear(leaf, back_of(size_bytes), memory)?;
        copy_ring(leaf, back_of(size_bytes), memory)?;
        leaf.device().run(Request::flush()).result?;
        if let Some(config) = grown.leaf_mut(leaf.guid()) {
            config.size_bytes = size_bytes;
        }
        sizes.push((at, size_bytes));
    }
    if sizes.is_empty() {
        return Ok(vdev.size_bytes());
    }
    let updated = update_config(devices, &mut grown, memory, may_write);
    // Some labels may have this generation, even after a failure.
    config.generation = grown.generation;
    updated?;
    *config = grown;
    sizes.into_iter().for_each(|(at, size_bytes)| devices.expand(number, at, size_bytes));
    Ok(vdev.size_bytes())
}

/// Copies the uberblocks of the front label to another label. A slot that is written meanwhile may
/// be torn in the copy, and is invalid then.
fn copy_ring(leaf: &Leaf, to: u64, memory: &BlockCache) -> Result<()> {
    let bytes = RING_SLOTS as usize * SLOT_BYTES;
    let ring = read_at(&**leaf.device(), RING_OFFSET, bytes, memory)?;
    let request = Request::write(to + RING_OFFSET, ring).with_priority(Priority::SyncWrite);
    Ok(leaf.device().run(request).result?)
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
        let ended = label.own().size_bytes;
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

pub(super) fn read_one(
    device: &dyn Device,
    offset: u64,
    memory: &BlockCache,
) -> Result<Option<Label>> {
    let bytes = read_at(device, offset, CONFIG_BYTES, memory)?;
    match LabelBytes::of(&bytes) {
        Some(label) => Label::decode(&label, &device.info().name),
        None => Ok(None),
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

/// Writes the uberblock of a txg to both labels of all devices in use concurrently, and flushes
/// them. Repeats a write that fails once. One copy suffices, on a device that misses nothing of the
/// txg: an import looks at all of those. Returns the number of copies that could not be written.
///
/// # Errors
/// [`ErrorKind::Device`] if no such copy can be written, or a flush fails: the uberblock is on
/// some, all or no devices. [`ErrorKind::NoMemory`]. What `may_write` returns before the
/// repetition.
pub(crate) fn write_uberblock(
    devices: &Devices,
    pool_guid: u64,
    uberblock: &Uberblock,
    memory: &BlockCache,
    may_write: &dyn Fn() -> Result<()>,
) -> Result<u64> {
    let phys = encode_uberblock(pool_guid, uberblock);
    let places: Vec<_> = devices.iter().flat_map(|vdev| places_in(vdev, uberblock.txg)).collect();
    let believed = |place: &&UberblockPlace<'_>| {
        let missed = place.vdev.status().missed(place.at);
        missed.is_none_or(|missed| !missed.contains(uberblock.txg))
    };
    let copies = places.iter().filter(believed).count();
    let write = |places| write_copies(devices, places, phys.as_bytes(), memory);
    let failed = write(places)?;
    if !failed.is_empty() {
        may_write()?;
    }
    let again = failed.into_iter().map(|(place, _)| place).collect();
    let mut failed = write(again)?;
    let missing = failed.len();
    let lost = failed.iter().map(|(place, _)| place).filter(believed).count();
    for (_, error) in &failed {
        devices.events().note_failure(error);
    }
    // A device of a mirror that takes no uberblock would fall behind.
    for pair in failed.windows(2) {
        let ((a, error), (b, _)) = (&pair[0], &pair[1]);
        if a.vdev.number() == b.vdev.number() && a.at == b.at {
            a.vdev.status().fault(a.at, error);
        }
    }
    if lost == copies
        && let Some((_, error)) = failed.pop()
    {
        return Err(super::failed(error));
    }
    devices.flush_all()?;
    Ok(missing as u64)
}

/// Writes the uberblock of a txg to the labels of the log vdev, without flushing. A device of a
/// mirror that takes none in either label is faulted.
///
/// # Errors
/// [`ErrorKind::Device`] if no device takes it; [`ErrorKind::NoMemory`].
pub(super) fn write_stamp(
    devices: &Devices,
    pool_guid: u64,
    stamp: &Uberblock,
    memory: &BlockCache,
) -> Result<()> {
    let Some(log) = devices.log() else { return Ok(()) };
    let phys = encode_uberblock(pool_guid, stamp);
    let places = places_in(log, stamp.txg);
    let copies = places.len();
    let mut failed = write_copies(devices, places, phys.as_bytes(), memory)?;
    let cancelled =
        failed.iter().position(|(_, error)| error.kind() == forebay_io::ErrorKind::Cancelled);
    // All devices alike: none of them has less than the others.
    let of_all = if failed.len() == copies { failed.len().checked_sub(1) } else { None };
    if let Some(at) = cancelled.or(of_all) {
        return Err(super::failed(failed.swap_remove(at).1));
    }
    for pair in failed.windows(2) {
        let ((a, error), (b, _)) = (&pair[0], &pair[1]);
        if a.at == b.at && !log.status().fault(a.at, error) {
            return Err(super::failed(error.clone()));
        }
    }
    Ok(())
}

fn encode_uberblock(pool_guid: u64, uberblock: &Uberblock) -> UberblockPhys {
    let mut phys = UberblockPhys::empty();
    phys.vdev_count = U32::new(u32::from(uberblock.vdev_count));
    phys.pool_guid = U64::new(pool_guid);
    phys.txg = U64::new(uberblock.txg);
    phys.time_ns = U64::new(uberblock.time_ns);
    phys.root = uberblock.root;
    phys.previous_txg = U64::new(uberblock.previous_txg);
    phys.seal();
    phys
}

/// The places of the uberblock of a txg on the devices of a vdev that are in use.
fn places_in(vdev: &Vdev, txg: u64) -> Vec<UberblockPlace<'_>> {
    let slot = RING_OFFSET + txg % RING_SLOTS * SLOT_BYTES as u64;
    let places = vdev.used().flat_map(|(at, leaf)| {
        let front = UberblockPlace { vdev, at, offset: slot };
        let back = back_of(leaf.size_bytes()) + slot;
        [front, UberblockPlace { offset: back, ..front }]
    });
    places.collect()
}

/// Where a copy of an uberblock lies.
#[derive(Clone, Copy)]
struct UberblockPlace<'a> {
    vdev: &'a Vdev,
    /// The device of the vdev.
    at: u8,
    offset: u64,
}

/// Writes `bytes` to all places concurrently and waits. Returns the places that failed, in order.
fn write_copies<'a>(
    devices: &Devices,
    places: Vec<UberblockPlace<'a>>,
    bytes: &[u8],
    memory: &BlockCache,
) -> Result<Vec<(UberblockPlace<'a>, forebay_io::Error)>> {
    let mut buffers = Vec::with_capacity(places.len());
    for _ in &places {
        let mut buffer = memory.alloc(bytes.len())?;
        buffer.copy_from_slice(bytes);
        buffers.push(buffer);
    }
    let submit = |(place, buffer): (UberblockPlace<'a>, Buffer)| {
        let request = Request::write(place.offset, buffer).with_priority(Priority::SyncWrite);
        let request = request.with_fence(devices.fence());
        let (request, pending) = request.pending();
        place.vdev.leaf(place.at).device().submit(request);
        (place, pending)
    };
    let pending: Vec<_> = places.into_iter().zip(buffers).map(submit).collect();
    // Waits for all, even if one failed.
    let ends = pending.into_iter().map(|(place, pending)| {
        let device = &**place.vdev.leaf(place.at).device();
        pending.wait(device).result.err().map(|error| (place, error))
    });
    Ok(ends.flatten().collect())
}

/// A device whose uberblocks are read.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) device: &'a dyn Device,
    /// Bytes of it that the pool uses.
    pub(crate) size_bytes: u64,
    /// What it misses. Its uberblocks of these txgs are not believed if another device misses
    /// nothing: that may have written others.
    pub(crate) missed: Option<Missed>,
}

/// Returns all valid uberblocks of a pool from all labels of these devices, newest first, without
/// duplicates. Unreadable labels and devices that are too small are skipped: other labels have
/// copies.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if a newer version wrote one; [`ErrorKind::NoMemory`].
pub(crate) fn best_uberblocks(
    rings: &[Ring<'_>],
    pool_guid: u64,
    memory: &BlockCache,
) -> Result<Vec<Uberblock>> {
    let mut found: Vec<Uberblock> = Vec::new();
    let has_whole = rings.iter().any(|ring| ring.missed.is_none());
    for Ring { device, size_bytes, missed } in rings.iter().filter(|r| r.size_bytes >= LABEL_BYTES)
    {
        let mut here = Vec::new();
        for label in [0, back_of(*size_bytes)] {
            let len = RING_SLOTS as usize * SLOT_BYTES;
            match read_at(*device, label + RING_OFFSET, len, memory) {
                Ok(ring) => read_ring(&ring, pool_guid, &device.info().name, &mut here)?,
                Err(error) if error.kind() == ErrorKind::Device => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(missed) = missed.filter(|_| has_whole) {
            here.retain(|one| !missed.contains(one.txg));
        }
        for one in here {
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    found.sort_by_key(|uberblock| std::cmp::Reverse(uberblock.txg));
    Ok(found)
}

/// The txg of the uberblock in the slot of `txg` in the label at `offset`; `None` if it is no
/// uberblock of the pool.
///
/// # Errors
/// [`ErrorKind::Device`], [`ErrorKind::NoMemory`]; [`ErrorKind::Unsupported`] if a newer version
/// wrote it.
pub(super) fn read_slot(
    device: &dyn Device,
    offset: u64,
    (pool_guid, txg): (u64, u64),
    memory: &BlockCache,
) -> Result<Option<u64>> {
    let slot = RING_OFFSET + txg % RING_SLOTS * SLOT_BYTES as u64;
    let bytes = read_at(device, offset + slot, SLOT_BYTES, memory)?;
    let phys = UberblockPhys::ref_from_bytes(&bytes).ok();
    let own = phys.filter(|phys| phys.is_sound() && phys.pool_guid.get() == pool_guid);
    Ok(own.map(|phys| phys.txg.get()))
}

/// Adds the valid uberblocks of a pool in the bytes of a ring, without duplicates.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if another version wrote one.
pub(super) fn read_ring(
    ring: &[u8],
    pool_guid: u64,
    name: &str,
    found: &mut Vec<Uberblock>,
) -> Result<()> {
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
        let Ok(vdev_count) = u16::try_from(phys.vdev_count.get()) else { continue };
        let (txg, time_ns) = (phys.txg.get(), phys.time_ns.get());
        let (root, previous_txg) = (phys.root, phys.previous_txg.get());
        let uberblock = Uberblock { txg, time_ns, root, vdev_count, previous_txg };
        if !found.contains(&uberblock) {
            found.push(uberblock);
        }
    }
    Ok(())
}
