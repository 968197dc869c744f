//! How devices are cut into metaslabs, and which metaslab an address is in.
//!
//! Metaslabs of a device are a power of two in size, fixed when the device joins the pool; only the
//! last may be shorter. A device that grows gets a longer last one, and more of them behind it.

use crate::devices::DeviceSpan;
use crate::format::{Dva, SECTOR_UNIT};
use crate::{Error, ErrorKind, Result};

use super::range_set::{MAX_UNITS, Run};

/// The smallest metaslabs.
const MIN_SHIFT: u32 = 20;
/// Metaslabs are halved as long as a device has no more than this.
const MANY: u64 = 256;
/// Metaslabs of all devices together: more are refused, whoever asks for them.
pub(super) const MAX_METASLABS: usize = 1 << 20;

/// A metaslab's extent of its device.
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

    /// The address of a unit of it.
    pub(super) fn dva(&self, unit: u32) -> Dva {
        Dva { device: self.device, offset: self.start + u64::from(unit) * SECTOR_UNIT }
    }
}

/// One device's metaslabs.
#[derive(Clone, Debug)]
pub(super) struct DeviceGeometry {
    pub(super) number: u16,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) shift: u8,
    /// Numbers of its metaslabs, by place.
    pub(super) metaslabs: Vec<u32>,
}

/// All devices' metaslabs.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    pub(super) sector_bytes: u64,
    pub(super) devices: Vec<DeviceGeometry>,
    /// Place in `devices` by the device's number.
    by_number: Vec<Option<u16>>,
}

impl Geometry {
    /// No devices yet.
    pub(super) fn new(sector_bytes: u64) -> Result<Self> {
        let fits = sector_bytes.is_power_of_two()
            && (SECTOR_UNIT..=1 << MIN_SHIFT).contains(&sector_bytes);
        if !fits {
            let message = format!("sectors of {sector_bytes} bytes are none of a pool");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Self { sector_bytes, devices: Vec::new(), by_number: Vec::new() })
    }

    /// Units of a sector.
    pub(super) fn sector_units(&self) -> u32 {
        (self.sector_bytes / SECTOR_UNIT) as u32
    }

    /// The place of a device in `devices`.
    #[inline]
    pub(super) fn device_at(&self, number: u16) -> Option<usize> {
        self.by_number.get(usize::from(number)).copied().flatten().map(usize::from)
    }

    /// Adds a metaslab, the next of its device; says what is wrong if it cannot be.
    pub(super) fn push(&mut self, id: u32, extent: &MetaslabExtent) -> Result<(), &'static str> {
        let size = 1u64 << extent.shift;
        let bytes = extent.end() - extent.start;
        if !extent.start.is_multiple_of(self.sector_bytes)
            || !bytes.is_multiple_of(self.sector_bytes)
            || bytes == 0
            || bytes > size
        {
            return Err("has an impossible place or size");
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
            return Err("does not follow the one before it");
        }
        device.end = extent.end();
        device.metaslabs.push(id);
        Ok(())
    }

    /// The metaslab of an address, and the range of units in it. Nothing if the range is not
    /// all in one metaslab, or not made of sectors.
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

    /// As much from the front of a range as is in one metaslab.
    pub(super) fn locate_front(&self, dva: Dva, bytes: u64) -> Option<(u32, Run)> {
        let device = &self.devices[self.device_at(dva.device)?];
        let size = 1u64 << device.shift;
        let inside = dva.offset.checked_sub(device.start)?;
        self.locate(dva, bytes.min(size - (inside & (size - 1))))
    }

    /// The span of a device, cut to sectors.
    pub(super) fn usable(&self, span: &DeviceSpan) -> Result<(u64, u64)> {
        let start = span.start.checked_next_multiple_of(self.sector_bytes);
        let end = span.end / self.sector_bytes * self.sector_bytes;
        // What an address can say.
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

/// Log2 of the size of metaslabs of a device of `bytes`.
pub(super) fn shift_for(bytes: u64) -> u8 {
    let size = bytes.div_ceil(MANY).next_power_of_two();
    let most = (u64::from(MAX_UNITS) * SECTOR_UNIT).ilog2();
    size.ilog2().clamp(MIN_SHIFT, most) as u8
}

/// The metaslabs of a device from `at` to `end`; `at` is where a metaslab begins.
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
