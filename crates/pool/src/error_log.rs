//! The error log of a pool: damage that reads, scrubs and checks have found.
//!
//! It is kept in memory. The sync thread stores it in one of the pool's own objects with the next
//! transaction group (`pool/errors.rs`); no error forces a commit. A scrub that reaches its end
//! drops what was not found since it began: healed, overwritten or freed. `clear` drops everything.
//! Entries of the space maps name blocks by address, so they go once the block is freed.
//!
//! # Invariants
//!
//! - One entry for a range of blocks of a tree, with the newest kind of damage.
//! - At most [`ERROR_LOG_MAX`] entries. What does not fit is counted.
//!
//! # Locking
//!
//! `pool-errors` is a leaf lock, held for a look, a change of an entry, or a copy of all entries.

use std::collections::BTreeMap;

use forebay_base::sync::Mutex;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{DamageKind, DamagePhys, ERROR_LOG_MAGIC, ERROR_LOG_MAX, ErrorLogPhys};

/// Blocks of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DamagedRange {
    /// As in [`DamagePhys`].
    pub(crate) dataset: u64,
    /// As in [`DamagePhys`].
    pub(crate) object: u64,
    /// The first data block.
    pub(crate) block: u64,
    /// Number of data blocks; [`TO_THE_END`] if the damage reaches to the end of the object.
    pub(crate) blocks: u64,
}

/// [`DamagedRange::blocks`] of damage that reaches to the end of the object.
pub(crate) const TO_THE_END: u64 = u64::MAX;

/// What is known about the damage of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DamageEntry {
    pub(crate) kind: DamageKind,
    pub(crate) first_txg: u64,
    pub(crate) last_txg: u64,
    pub(crate) scrub_txg: u64,
    pub(crate) count: u32,
}

/// The error log of a pool.
pub(crate) struct ErrorLog(Mutex<LogState>);

/// Protected by `pool-errors`.
struct LogState {
    /// Name of the pool, for events.
    pool: String,
    entries: BTreeMap<DamagedRange, DamageEntry>,
    unlisted: u64,
    unlisted_txg: u64,
    /// The open txg.
    txg: u64,
    /// Whether the stored log differs.
    changed: bool,
}

/// Number of entries of an error log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ErrorLogCounts {
    /// Entries without a good copy.
    pub(crate) lost: u64,
    /// Entries of bad copies that have a good one beside them.
    pub(crate) bad_copies: u64,
    /// Errors that did not fit.
    pub(crate) unlisted: u64,
}

impl ErrorLog {
    pub(crate) fn new() -> Self {
        Self(Mutex::named(
            "pool-errors",
            LogState {
                pool: String::new(),
                entries: BTreeMap::new(),
                unlisted: 0,
                unlisted_txg: 0,
                txg: 1,
                changed: true,
            },
        ))
    }

    /// Sets the name of the pool, and the open txg.
    pub(crate) fn begin(&self, pool: &str, txg: u64) {
        let mut state = self.0.lock();
        pool.clone_into(&mut state.pool);
        state.txg = txg;
    }

    /// Sets the open txg.
    pub(crate) fn set_txg(&self, txg: u64) {
        self.0.lock().txg = txg;
    }

    /// Adds the entries of a stored log.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is invalid.
    pub(crate) fn load(&self, stored: &[u8]) -> Result<()> {
        let invalid = |what: &str| Error::new(ErrorKind::Corrupt, format!("the error log {what}"));
        let (head, rest) =
            ErrorLogPhys::read_from_prefix(stored).map_err(|_| invalid("is truncated"))?;
        let entries = head.entries.get() as usize;
        if head.magic.get() != ERROR_LOG_MAGIC {
            return Err(invalid("has the wrong magic"));
        }
        if entries > ERROR_LOG_MAX || entries * size_of::<DamagePhys>() != rest.len() {
            return Err(invalid("has the wrong length"));
        }
        let mut read = BTreeMap::new();
        for entry in rest.chunks_exact(size_of::<DamagePhys>()) {
            let entry = DamagePhys::read_from_bytes(entry).ok();
            let (range, entry) =
                entry.and_then(|entry| decode(&entry)).ok_or_else(|| invalid("has a bad entry"))?;
            read.insert(range, entry);
        }
        let mut state = self.0.lock();
        // What the import itself has found is newer.
        for (range, entry) in read {
            state.entries.entry(range).or_insert(entry);
        }
        state.unlisted += head.unlisted.get();
        state.unlisted_txg = state.unlisted_txg.max(head.unlisted_txg.get());
        state.changed = state.entries.len() != entries;
        Ok(())
    }

    /// Notes damage. `scrub_txg` is the `until_txg` of the scrub that found it; 0 for a reader or a
    /// check. The first time is logged.
    pub(crate) fn note(&self, range: DamagedRange, kind: DamageKind, scrub_txg: u64) {
        // Logged without the lock.
        let Some(pool) = self.0.lock().note(range, kind, scrub_txg) else { return };
        let (pool, DamagedRange { dataset, object, block, .. }) = (&*pool, range);
        let object = object.checked_sub(1);
        match kind {
            DamageKind::BadCopy => {
                tracing::warn!(pool, dataset, object, block, "bad copy of a block");
            }
            _ => tracing::error!(pool, dataset, object, block, %kind, "damaged block"),
        }
    }

    /// Drops the damage that was not found since the scrub with this `until_txg` began. Call it
    /// when the scrub has reached its end.
    pub(crate) fn finish_scrub(&self, until_txg: u64) {
        let mut state = self.0.lock();
        state.entries.retain(|_, entry| entry.last_txg > until_txg);
        if state.unlisted_txg <= until_txg {
            state.unlisted = 0;
        }
        state.changed = true;
    }

    /// Whether there are entries of a dataset.
    pub(crate) fn has_entries_of(&self, dataset: u64) -> bool {
        self.0.lock().entries.keys().any(|range| range.dataset == dataset)
    }

    /// Drops the entries of a dataset that `is_there` does not know.
    pub(crate) fn retain_of(&self, dataset: u64, is_there: impl Fn(&DamagedRange) -> bool) {
        let mut state = self.0.lock();
        let before = state.entries.len();
        state.entries.retain(|range, _| range.dataset != dataset || is_there(range));
        state.changed |= state.entries.len() != before;
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        let mut state = self.0.lock();
        state.entries.clear();
        state.unlisted = 0;
        state.changed = true;
    }

    /// All entries, and the number of errors that did not fit.
    pub(crate) fn entries(&self) -> (Vec<(DamagedRange, DamageEntry)>, u64) {
        let state = self.0.lock();
        (state.entries.iter().map(|(range, entry)| (*range, *entry)).collect(), state.unlisted)
    }

    pub(crate) fn counts(&self) -> ErrorLogCounts {
        let state = self.0.lock();
        let is_bad_copy = |entry: &&DamageEntry| entry.kind == DamageKind::BadCopy;
        let bad_copies = state.entries.values().filter(is_bad_copy).count() as u64;
        let lost = state.entries.len() as u64 - bad_copies;
        ErrorLogCounts { lost, bad_copies, unlisted: state.unlisted }
    }

    /// The log to store, if the stored one differs. The caller stores it, or calls
    /// [`keep_changed`](Self::keep_changed).
    pub(crate) fn take_changed(&self) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        if !std::mem::take(&mut state.changed) {
            return None;
        }
        let mut head = ErrorLogPhys::new_zeroed();
        head.magic = ERROR_LOG_MAGIC.into();
        head.entries = (state.entries.len() as u64).into();
        head.unlisted = state.unlisted.into();
        head.unlisted_txg = state.unlisted_txg.into();
        let mut bytes = head.as_bytes().to_vec();
        for (range, entry) in &state.entries {
            bytes.extend_from_slice(encode(range, entry).as_bytes());
        }
        Some(bytes)
    }

    /// The log could not be stored.
    pub(crate) fn keep_changed(&self) {
        self.0.lock().changed = true;
    }
}

impl LogState {
    /// Adds an entry, or changes it. Returns the name of the pool if it is new.
    fn note(&mut self, range: DamagedRange, kind: DamageKind, scrub_txg: u64) -> Option<String> {
        self.changed = true;
        let txg = self.txg;
        if let Some(entry) = self.entries.get_mut(&range) {
            entry.kind = kind;
            entry.last_txg = txg;
            entry.scrub_txg = entry.scrub_txg.max(scrub_txg);
            entry.count = entry.count.saturating_add(1);
            return None;
        }
        if self.entries.len() == ERROR_LOG_MAX {
            self.unlisted = self.unlisted.saturating_add(1);
            self.unlisted_txg = txg;
            return None;
        }
        let entry = DamageEntry { kind, first_txg: txg, last_txg: txg, scrub_txg, count: 1 };
        self.entries.insert(range, entry);
        Some(self.pool.clone())
    }
}

fn encode(range: &DamagedRange, entry: &DamageEntry) -> DamagePhys {
    DamagePhys {
        dataset: range.dataset.into(),
        object: range.object.into(),
        block: range.block.into(),
        blocks: range.blocks.into(),
        first_txg: entry.first_txg.into(),
        last_txg: entry.last_txg.into(),
        scrub_txg: entry.scrub_txg.into(),
        count: entry.count.into(),
        kind: entry.kind as u8,
        reserved: [0; 3],
    }
}

fn decode(phys: &DamagePhys) -> Option<(DamagedRange, DamageEntry)> {
    let range = DamagedRange {
        dataset: phys.dataset.get(),
        object: phys.object.get(),
        block: phys.block.get(),
        blocks: phys.blocks.get(),
    };
    let entry = DamageEntry {
        kind: DamageKind::from_raw(phys.kind)?,
        first_txg: phys.first_txg.get(),
        last_txg: phys.last_txg.get(),
        scrub_txg: phys.scrub_txg.get(),
        count: phys.count.get(),
    };
    (range.blocks > 0).then_some((range, entry))
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    fn range(block: u64) -> DamagedRange {
        DamagedRange { dataset: 3, object: 6, block, blocks: 1 }
    }

    #[test]
    fn a_stored_log_comes_back_and_a_scrub_drops_what_it_did_not_find() {
        let log = ErrorLog::new();
        log.begin("tank", 5);
        log.note(range(0), DamageKind::NoGoodCopy, 0);
        log.note(range(1), DamageKind::BadCopy, 0);
        log.set_txg(9);
        log.note(range(0), DamageKind::Unreadable, 8);
        let stored = log.take_changed().expect("it changed");
        assert_eq!(log.take_changed(), None);

        let log = ErrorLog::new();
        log.begin("tank", 10);
        log.load(&stored).expect("it is valid");
        assert_eq!(log.take_changed(), None, "an import changes nothing");
        let (entries, unlisted) = log.entries();
        assert_eq!((entries.len(), unlisted), (2, 0));
        let (found, entry) = entries[0];
        assert_eq!((found, entry.kind, entry.count), (range(0), DamageKind::Unreadable, 2));
        assert_eq!((entry.first_txg, entry.last_txg, entry.scrub_txg), (5, 9, 8));
        log.finish_scrub(8);
        assert_eq!(log.entries().0.len(), 1, "the bad copy was not found again");
        log.finish_scrub(9);
        assert_eq!(log.entries().0.len(), 0);
        assert!(log.take_changed().is_some());
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_the_rest_is_counted() {
        let log = ErrorLog::new();
        for block in 0..ERROR_LOG_MAX as u64 + 7 {
            log.note(range(block), DamageKind::NoGoodCopy, 0);
        }
        let counts = log.counts();
        assert_eq!((counts.lost, counts.unlisted), (ERROR_LOG_MAX as u64, 7));
        let stored = log.take_changed().expect("it changed");
        assert_eq!(stored.len(), 128 << 10);
        let again = ErrorLog::new();
        again.load(&stored).expect("it is valid");
        assert_eq!((again.counts().lost, again.counts().unlisted), (counts.lost, 7));
    }

    #[test]
    fn an_invalid_log_is_refused() {
        let log = ErrorLog::new();
        log.note(range(0), DamageKind::NoGoodCopy, 0);
        let stored = log.take_changed().expect("it changed");
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = stored.clone();
            change(&mut bytes);
            let error = ErrorLog::new().load(&bytes).expect_err("it is invalid");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        };
        refused(&|bytes| bytes[0] ^= 1);
        refused(&|bytes| bytes.truncate(20));
        refused(&|bytes| bytes.truncate(100));
        refused(&|bytes| bytes[8] = 2);
        refused(&|bytes| bytes[64 + 60] = 9);
        refused(&|bytes| bytes[64 + 24..64 + 32].fill(0));
    }
}
