//! Geometry: the division of devices into metaslabs, and the metaslab of an address.
//!
//! All metaslabs of a device have the same size, a power of two fixed when the device joins the
//! pool. Only the last one may be shorter. When a device grows, its last metaslab is extended and
//! others are added.

use crate::devices::DeviceSpan;
use crate::format::{Dva, SECTOR_UNIT};
use crate::{Error, ErrorKind, Result};

use super::range_set::{MAX_UNITS, Run};

/// Log2 of the minimum size of a metaslab.
const MIN_SHIFT: u32 = 20;
/// Metaslabs are halved as long as a device has at most this many.
const METASLABS_MAX: u64 = 256;
/// Maximum number of metaslabs of all devices.
pub(super) const MAX_METASLABS: usize = 1 << 20;

/// The extent of a metaslab on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetaslabExtent {
    pub(super) device: u16,
    pub(super) start: u64,
    pub(super) units: u32,
    pub(super) shift: u8,
}

impl MetaslabExtent {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.units) * SECTOR_UNIT
    }

    /// Returns the address of a unit.
    pub(super) fn dva(&self, unit: u32) -> Dva {
        Dva { device: self.device, offset: self.start + u64::from(unit) * SECTOR_UNIT }
    }
}

/// The metaslabs of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceGeometry {
    pub(super) number: u16,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) shift: u8,
    /// Metaslab numbers, ordered by address.
    pub(super) metaslabs: Vec<u32>,
}

/// The metaslabs of all devices.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    pub(super) sector_bytes: u64,
    pub(super) devices: Vec<DeviceGeometry>,
    /// Index in `devices` by device number.
    by_number: Vec<Option<u16>>,
}

impl Geometry {
    /// Creates a geometry without devices.
    pub(super) fn new(sector_bytes: u64) -> Result<Self> {
        let fits = sector_bytes.is_power_of_two()
            && (SECTOR_UNIT..=1 << MIN_SHIFT).contains(&sector_bytes);
        if !fits {
            let message = format!("unsupported sector size of {sector_bytes} bytes");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Self { sector_bytes, devices: Vec::new(), by_number: Vec::new() })
    }

    /// Number of units of a sector.
    pub(super) fn sector_units(&self) -> u32 {
        (self.sector_bytes / SECTOR_UNIT) as u32
    }

    /// Returns the index of a device in `devices`.
    #[inline]
    pub(super) fn device_at(&self, number: u16) -> Option<usize> {
        self.by_number.get(usize::from(number)).copied().flatten().map(usize::from)
    }

    /// Appends a metaslab to its device. Fails with the reason why it is invalid.
    pub(super) fn push(&mut self, id: u32, extent: &MetaslabExtent) -> Result<(), &'static str> {
        let size = 1u64 << extent.shift;
        let bytes = extent.end() - extent.start;
        if !extent.start.is_multiple_of(self.sector_bytes)
            || !bytes.is_multiple_of(self.sector_bytes)
            || bytes == 0
            || bytes > size
        {
            return Err("has an invalid address or size");
        }
        let Some(at) = self.device_at(extent.device) else {
            let slot = usize::from(extent.device);
            if self.by_number.len() <= slot {
                self.by_number.resize(slot + 1, None);
            }
            self.by_number[slot] = Some(self.devices.len() as u16);
            self.devices.push(DeviceGeometry {
                number: extent.device,
                start: extent.start,
                end: extent.end(),
                shift: extent.shift,
                metaslabs: vec![id],
            });
            return Ok(());
        };
        let device = &mut self.devices[at];
        let place = device.start + device.metaslabs.len() as u64 * size;
        if device.shift != extent.shift || extent.start != place || device.end != place {
            return Err("does not follow the previous metaslab");
        }
        device.end = extent.end();
        device.metaslabs.push(id);
        Ok(())
    }

    /// Returns the metaslab of an address, and the range of units in it. `None` if the range is not
    /// within one metaslab or not made of whole sectors.
    #[inline]
    pub(super) fn locate(&self, dva: Dva, bytes: u64) -> Option<(u32, Run)> {
        let device = &self.devices[self.device_at(dva.device)?];
        let end = dva.offset.checked_add(bytes)?;
        if dva.offset < device.start || end > device.end || bytes == 0 {
            return None;
        }
        if !(dva.offset | bytes).is_multiple_of(self.sector_bytes) {
            return None;
        }
        let inside = dva.offset - device.start;
        let in_slab = inside & ((1 << device.shift) - 1);
        if in_slab + bytes > 1 << device.shift {
            return None;
        }
        let id = device.metaslabs[(inside >> device.shift) as usize];
        Some((id, Run::new((in_slab / SECTOR_UNIT) as u32, (bytes / SECTOR_UNIT) as u32)))
    }

    /// As [`locate`](Self::locate), for the front part of a range that lies in one metaslab.
    pub(super) fn locate_front(&self, dva: Dva, bytes: u64) -> Option<(u32, Run)> {
        let device = &self.devices[self.device_at(dva.device)?];
        let size = 1u64 << device.shift;
        let inside = dva.offset.checked_sub(device.start)?;
        self.locate(dva, bytes.min(size - (inside & (size - 1))))
    }

    /// Returns the span of a device, rounded to sectors.
    pub(super) fn usable(&self, span: &DeviceSpan) -> Result<(u64, u64)> {
        let start = span.start.checked_next_multiple_of(self.sector_bytes);
        let end = span.end / self.sector_bytes * self.sector_bytes;
        // The limit of the address format.
        let reach = (1u64 << 48) * SECTOR_UNIT;
        match start {
            Some(start) if start < end && end <= reach => Ok((start, end)),
            _ => {
                let message = format!("device {}: no space between its labels", span.device);
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }
}

/// Returns log2 of the metaslab size for a device of `bytes`.
pub(super) fn shift_for(bytes: u64) -> u8 {
    shift_to_cover(bytes, METASLABS_MAX)
}

/// Returns log2 of the metaslab size with which so many metaslabs cover `bytes`, as far as there
/// are such sizes.
pub(super) fn shift_to_cover(bytes: u64, metaslabs: u64) -> u8 {
    let size = bytes.div_ceil(metaslabs).next_power_of_two();
    let most = (u64::from(MAX_UNITS) * SECTOR_UNIT).ilog2();
    size.ilog2().clamp(MIN_SHIFT, most) as u8
}

/// Returns the metaslabs of a device from `at`, the start of a metaslab, to `end`.
pub(super) fn metaslab_extents(
    device: u16,
    shift: u8,
    at: u64,
    end: u64,
) -> impl Iterator<Item = MetaslabExtent> {
    (at..end).step_by(1 << shift).map(move |start| {
        let bytes = (end - start).min(1 << shift);
        MetaslabExtent { device, start, units: (bytes / SECTOR_UNIT) as u32, shift }
    })
}
