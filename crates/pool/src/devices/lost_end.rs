//! Devices that have lost their end: files that were truncated, and have grown again since.
//!
//! What was cut off reads as zeros, and so does the label that was there. A crash leaves something
//! of that label. The front labels have a new configuration before a back label is written, and of
//! the uberblocks beside it a commit writes one. So a device with uberblocks in its front label,
//! and with neither a configuration nor an uberblock at its end, was truncated or overwritten. It
//! may lack any block, whatever its front label says.
//!
//! A side of a mirror that has lost its end misses all blocks, until a resilver has ended. If no
//! other side has them, it is used as it is: a scrub finds what it lacks.
//!
//! Not found: a device in use that has grown again before a flush has noticed it, and one that has
//! lost its beginning.

use forebay_io::Device;

use super::config::{Config, Label, Missed, VdevKind};
use super::label::{self, Uberblock, back_of};
use super::usable_bytes;
use crate::block_cache::BlockCache;
use crate::error::{ErrorKind, Result};
use crate::format::label::{RING_OFFSET, RING_SLOTS, SLOT_BYTES, StoredState};
use crate::open::Opened;

/// Whether a device with this label has lost its end. One that is too short has not: its size says
/// so. Nor has one that cannot be read there.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if another version wrote an uberblock; [`ErrorKind::NoMemory`].
pub(super) fn has_lost_end(
    device: &dyn Device,
    label: &Label,
    memory: &BlockCache,
) -> Result<bool> {
    let size_bytes = label.own().size_bytes;
    if usable_bytes(device) < size_bytes {
        return Ok(false);
    }
    let back = back_of(size_bytes);
    match label::read_one(device, back, memory) {
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
        Ok(Some(_)) | Err(_) => return Ok(false),
    }
    let has = |offset, if_unreadable| {
        has_uberblocks(device, offset, (label.config.pool_guid, if_unreadable), memory)
    };
    Ok(has(0, false)? && !has(back, true)?)
}

/// Whether the label at this offset has an uberblock of the pool; `if_unreadable` if it cannot be
/// read.
fn has_uberblocks(
    device: &dyn Device,
    offset: u64,
    (pool_guid, if_unreadable): (u64, bool),
    memory: &BlockCache,
) -> Result<bool> {
    let len = RING_SLOTS as usize * SLOT_BYTES;
    let ring = match label::read_at(device, offset + RING_OFFSET, len, memory) {
        Err(error) if error.kind() == ErrorKind::Device => return Ok(if_unreadable),
        ring => ring?,
    };
    let mut found = Vec::new();
    label::read_ring(&ring, pool_guid, &device.info().name, &mut found)?;
    Ok(!found.is_empty())
}

/// Finds devices that have lost their end, among those of an import. A side of a mirror misses all
/// blocks then, if another one has them.
///
/// # Errors
/// As [`has_lost_end`].
pub(super) fn note_lost_ends(
    labelled: &[(Opened, Label)],
    config: &mut Config,
    (newest, notes): (&Uberblock, &mut Vec<String>),
    memory: &BlockCache,
) -> Result<()> {
    for vdev in config.vdevs.iter_mut().filter(|vdev| vdev.kind != VdevKind::ObjectStore) {
        let mut lost = Vec::new();
        let mut has_whole = false;
        for (at, leaf) in vdev.leaves.iter().enumerate() {
            let opened = labelled.iter().find(|(_, label)| label.own().guid == leaf.guid);
            let Some((one, label)) = opened else { continue };
            if has_lost_end(&*one.device, label, memory)? {
                lost.push((at, one.device.info().name.clone()));
            } else {
                let is_long = one.device.info().size_bytes >= leaf.size_bytes;
                let is_used = leaf.state != StoredState::Offline;
                has_whole |= is_long && is_used && leaf.missed.is_none();
            }
        }
        for (at, name) in lost {
            let leaf = &mut vdev.leaves[at];
            let end = "has lost its end: it was truncated or overwritten there";
            if !has_whole {
                notes.push(format!(
                    "{name} {end}, and no other device has its blocks; `forebay scrub` finds what is lost"
                ));
                continue;
            }
            let to = leaf.missed.map_or(0, |missed| missed.to).max(newest.txg + 1);
            leaf.missed = Some(Missed { from: 1, to });
            notes.push(format!("{name} {end}; it misses all blocks until a resilver has ended"));
        }
    }
    Ok(())
}
