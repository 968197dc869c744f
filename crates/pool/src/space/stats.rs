//! Statistics of the space maps.

use crate::format::SECTOR_UNIT;

use super::Space;

/// Space of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    /// Bytes between the labels of all devices, rounded to sectors.
    pub(crate) total_bytes: u64,
    /// Allocated bytes.
    pub(crate) allocated_bytes: u64,
    /// Freed bytes that are not allocatable yet.
    pub(crate) deferred_bytes: u64,
    /// Free bytes, without those to which writes have failed.
    pub(crate) free_bytes: u64,
    /// Part of `free_bytes` that only the space maps may use.
    pub(crate) reserved_bytes: u64,
    /// Length of the longest free range in bytes; an estimate for metaslabs that are not loaded.
    pub(crate) largest_free_bytes: u64,
    /// Number of free ranges in loaded metaslabs.
    pub(crate) loaded_ranges: u64,
    /// Number of metaslabs.
    pub(crate) metaslabs: u64,
    /// Number of metaslabs whose free ranges are in memory.
    pub(crate) metaslabs_loaded: u64,
    /// Number of records in the log.
    pub(crate) log_records: u64,
    /// Number of blocks of the log.
    pub(crate) log_blocks: u64,
    /// Number of entries in the log.
    pub(crate) log_entries: u64,
    /// The devices.
    pub(crate) devices: Vec<DeviceSpace>,
}

/// Space of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceSpace {
    /// The device's number in the pool.
    pub(crate) device: u16,
    /// Bytes between its labels, rounded to sectors.
    pub(crate) total_bytes: u64,
    /// Free bytes.
    pub(crate) free_bytes: u64,
    /// Number of metaslabs.
    pub(crate) metaslabs: u64,
}

impl Space {
    /// Units that the newest txg uses.
    pub(super) fn used_units(&self) -> u64 {
        let others = self.free_units + self.deferred_units + self.withheld_units;
        self.total_units.saturating_sub(others)
    }

    /// Bytes that can be allocated now.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_units * SECTOR_UNIT
    }

    /// Returns the statistics.
    pub(crate) fn stats(&self) -> SpaceStats {
        let used = self.used_units();
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
