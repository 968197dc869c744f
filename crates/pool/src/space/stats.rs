//! What the space maps know, in numbers.

use crate::format::SECTOR_UNIT;

use super::Space;

/// The space of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    /// Bytes between the labels of all devices, cut to sectors.
    pub(crate) total_bytes: u64,
    /// Bytes in use.
    pub(crate) allocated_bytes: u64,
    /// Bytes that were freed and wait to be allocatable.
    pub(crate) deferred_bytes: u64,
    /// Bytes that can be allocated now.
    pub(crate) free_bytes: u64,
    /// The part of these that only the space maps get.
    pub(crate) reserved_bytes: u64,
    /// Bytes of the longest free range; of metaslabs that are not loaded a guess.
    pub(crate) largest_free_bytes: u64,
    /// Free ranges in the metaslabs that are loaded.
    pub(crate) loaded_ranges: u64,
    /// Metaslabs.
    pub(crate) metaslabs: u64,
    /// Metaslabs whose free ranges are in memory.
    pub(crate) metaslabs_loaded: u64,
    /// Records of the log.
    pub(crate) log_records: u64,
    /// Blocks of the log.
    pub(crate) log_blocks: u64,
    /// Entries of the log.
    pub(crate) log_entries: u64,
    /// Each device.
    pub(crate) devices: Vec<DeviceSpace>,
}

/// The space of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceSpace {
    /// Its number in the pool.
    pub(crate) device: u16,
    /// Bytes between its labels, cut to sectors.
    pub(crate) total_bytes: u64,
    /// Bytes that can be allocated now.
    pub(crate) free_bytes: u64,
    /// Metaslabs.
    pub(crate) metaslabs: u64,
}

impl Space {
    /// How much there is of what.
    pub(crate) fn stats(&self) -> SpaceStats {
        let used = self.total_units.saturating_sub(self.free_units + self.deferred_units);
        let largest = self.metaslabs.iter().map(|metaslab| metaslab.largest_units()).max();
        let ranges = self.metaslabs.iter().filter_map(|metaslab| metaslab.range_count());
        SpaceStats {
            total_bytes: self.total_units * SECTOR_UNIT,
            allocated_bytes: used * SECTOR_UNIT,
            deferred_bytes: self.deferred_units * SECTOR_UNIT,
            free_bytes: self.free_units * SECTOR_UNIT,
            reserved_bytes: self.reserve_units().min(self.free_units) * SECTOR_UNIT,
            largest_free_bytes: u64::from(largest.unwrap_or(0)) * SECTOR_UNIT,
            loaded_ranges: ranges.map(|ranges| ranges as u64).sum(),
            metaslabs: self.metaslabs.len() as u64,
            metaslabs_loaded: self.metaslabs.iter().filter(|it| it.is_loaded()).count() as u64,
            log_records: self.records.len() as u64,
            log_blocks: self.records.iter().map(|record| record.blocks.len() as u64).sum(),
            log_entries: self.records.iter().map(|record| record.entries).sum(),
            devices: self
                .geometry
                .devices
                .iter()
                .zip(&self.devices)
                .map(|(geometry, state)| DeviceSpace {
                    device: geometry.number,
                    total_bytes: state.units * SECTOR_UNIT,
                    free_bytes: state.free_units * SECTOR_UNIT,
                    metaslabs: geometry.metaslabs.len() as u64,
                })
                .collect(),
        }
    }
}
