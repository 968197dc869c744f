//! How blocks of a set are written, and from which txg on that changes.
//!
//! A txg's blocks are counted before they are written (`cost`): so what it has begun with holds to its end, and
//! while a change is ahead, the larger of all is counted.

use super::WriteSettings;

/// What `objset-settings` protects.
pub(super) struct VersionedSettings {
    /// Of the txg that syncs next, unless one of those below is for it.
    now: WriteSettings,
    /// Each for the txgs behind the one with its number; ascending.
    later: Vec<(u64, WriteSettings)>,
}

impl VersionedSettings {
    pub(super) fn new(now: WriteSettings) -> Self {
        Self { now, later: Vec::new() }
    }

    /// What txgs behind `txg`, which is open, are to be written with.
    pub(super) fn set_behind(&mut self, txg: u64, settings: WriteSettings) {
        self.later.retain(|(behind, _)| *behind != txg);
        self.later.push((txg, settings));
    }

    /// For the sync of a txg.
    pub(super) fn of_txg(&mut self, txg: u64) -> WriteSettings {
        let reached = self.later.partition_point(|(behind, _)| *behind < txg);
        for (_, settings) in self.later.drain(..reached) {
            self.now = settings;
        }
        self.now
    }

    /// Copies of data, and of metadata, that a txg which is open may come to.
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
    fn a_txg_is_written_as_it_began() {
        let mut settings = VersionedSettings::new(copies(1, 2));
        settings.set_behind(7, copies(2, 1));
        settings.set_behind(7, copies(2, 2));
        settings.set_behind(8, copies(1, 1));
        let mut data_of = |txg| settings.of_txg(txg).data_copies;
        assert_eq!([data_of(6), data_of(7), data_of(8), data_of(9), data_of(10)], [1, 1, 2, 1, 1]);
    }

    #[test]
    fn the_most_is_counted_while_a_change_is_ahead() {
        let mut settings = VersionedSettings::new(copies(1, 2));
        assert_eq!(settings.copies_at_most(), (1, 2));
        settings.set_behind(7, copies(2, 1));
        assert_eq!(settings.copies_at_most(), (2, 2));
        settings.of_txg(8);
        assert_eq!(settings.copies_at_most(), (2, 1));
    }
}
