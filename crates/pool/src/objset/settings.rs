//! The write settings of an objset, by txg.
//!
//! Space for the blocks of a txg is charged before they are written (`cost`), so a txg keeps the
//! settings that it began with. While a change of settings is pending, the larger number of copies
//! is charged.

use super::WriteSettings;

/// Protected by the lock `objset-settings`.
pub(super) struct VersionedSettings {
    /// Settings of the next txg to sync, unless an entry of `later` applies to it.
    now: WriteSettings,
    /// Settings for the txgs after the given one; ascending.
    later: Vec<(u64, WriteSettings)>,
}

impl VersionedSettings {
    pub(super) fn new(now: WriteSettings) -> Self {
        Self { now, later: Vec::new() }
    }

    /// Sets the write settings of the txgs after `txg`, which is open.
    pub(super) fn set_after(&mut self, txg: u64, settings: WriteSettings) {
        self.later.retain(|(after, _)| *after != txg);
        self.later.push((txg, settings));
    }

    /// The settings for the sync of a txg.
    pub(super) fn of_txg(&mut self, txg: u64) -> WriteSettings {
        let reached = self.later.partition_point(|(after, _)| *after < txg);
        for (_, settings) in self.later.drain(..reached) {
            self.now = settings;
        }
        self.now
    }

    /// Maximum copies of data, and of metadata, that an open txg may need.
    pub(super) fn copies_at_most(&self) -> (u8, u8) {
        let all = self.later.iter().map(|(_, settings)| settings);
        all.fold((self.now.data_copies, self.now.metadata_copies), |(data, metadata), settings| {
            (data.max(settings.data_copies), metadata.max(settings.metadata_copies))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{VersionedSettings, WriteSettings};
    use crate::format::Compression;

    fn copies(data_copies: u8, metadata_copies: u8) -> WriteSettings {
        let compression = Compression::Off;
        WriteSettings {
            data_compression: compression,
            data_copies,
            metadata_compression: compression,
            metadata_copies,
        }
    }

    #[test]
    fn a_txg_keeps_the_settings_that_it_began_with() {
        let mut settings = VersionedSettings::new(copies(1, 2));
        settings.set_after(7, copies(2, 1));
        settings.set_after(7, copies(2, 2));
        settings.set_after(8, copies(1, 1));
        let mut data_of = |txg| settings.of_txg(txg).data_copies;
        assert_eq!([data_of(6), data_of(7), data_of(8), data_of(9), data_of(10)], [1, 1, 2, 1, 1]);
    }

    #[test]
    fn the_larger_number_of_copies_counts_while_a_change_is_pending() {
        let mut settings = VersionedSettings::new(copies(1, 2));
        assert_eq!(settings.copies_at_most(), (1, 2));
        settings.set_after(7, copies(2, 1));
        assert_eq!(settings.copies_at_most(), (2, 2));
        settings.of_txg(8);
        assert_eq!(settings.copies_at_most(), (2, 1));
    }
}
