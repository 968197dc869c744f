//! Chooses the transaction group of an import: the newest, or an older one.
//!
//! # Invariant
//!
//! Only *ancestors* of the newest group are tried unasked: the group that it follows, and the one
//! before. Their blocks are intact, because space is reused three groups after it was freed. A
//! group with a number between may belong to a history that an earlier import gave up.

use super::super::Pool;
use super::{Import, Unusable, is_damage};
use crate::devices::label::Uberblock;
use crate::error::{Error, ErrorKind, Result};
use crate::format::TXGS_TO_REUSE;

const NS_PER_SECOND: f64 = 1e9;

impl Import<'_> {
    /// Opens the first of the groups that the options permit and that is whole. Returns the pool
    /// and the txg.
    pub(super) fn open(&self) -> Result<(Pool, u64)> {
        let mut failed: Vec<(u64, Error)> = Vec::new();
        for from in self.candidates()? {
            let given_up = self.given_up(from, failed.first().map(|(_, error)| error));
            match self.open_txg(from, given_up) {
                Ok(pool) => return Ok((pool, from.txg)),
                Err(Unusable { error, changed }) => {
                    if changed || !self.may_fall_back(&error) {
                        return Err(self.with_advice(error));
                    }
                    tracing::warn!(txg = from.txg, %error, "cannot import transaction group");
                    failed.push((from.txg, error));
                }
            }
        }
        Err(self.none_is_whole(failed))
    }

    pub(super) fn newest(&self) -> &Uberblock {
        &self.uberblocks[0]
    }

    /// Whether the options leave it open which group is imported, or ask for an older one.
    pub(super) fn chooses(&self) -> bool {
        self.options.rewind || self.options.txg.is_some()
    }

    fn candidates(&self) -> Result<Vec<&Uberblock>> {
        let Some(wanted) = self.options.txg else {
            let mut tried = self.ancestors();
            tried.truncate(if self.options.rewind { tried.len() } else { 1 });
            return Ok(tried);
        };
        let found = self.uberblocks.iter().find(|one| one.txg == wanted);
        found.map(|found| vec![found]).ok_or_else(|| {
            let known: Vec<String> =
                self.uberblocks.iter().map(|one| one.txg.to_string()).collect();
            let text = format!(
                "there is no uberblock of transaction group {wanted}; there are those of {}",
                known.join(", ")
            );
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// The newest uberblock and its ancestors whose blocks are intact, newest first.
    fn ancestors(&self) -> Vec<&Uberblock> {
        let mut found = vec![self.newest()];
        while found.len() < TXGS_TO_REUSE as usize
            && let Some(last) = found.last()
            && last.previous_txg < last.txg
            && let Some(previous) = self.uberblocks.iter().find(|one| one.txg == last.previous_txg)
        {
            found.push(previous);
        }
        found
    }

    /// A device error does not lead to an older group: the device may recover, and then nothing is
    /// lost. An import that writes nothing loses nothing either way.
    fn may_fall_back(&self, error: &Error) -> bool {
        self.options.rewind
            && (self.options.read_only || error.kind() == ErrorKind::Corrupt)
            && is_damage(error)
    }

    /// Says what an import of an older group gives up.
    fn given_up(&self, chosen: &Uberblock, why: Option<&Error>) -> Option<String> {
        let newest = self.newest();
        if chosen.txg == newest.txg {
            return None;
        }
        let lost = self.lost_since(chosen);
        let log = match (self.options.read_only, self.options.discard_log) {
            (true, _) => "the intent log was not replayed",
            (false, true) => "and all of the intent log",
            (false, false) => "and the records of the intent log that need them",
        };
        let why = why.map(|error| format!(", because of damage: {error}")).unwrap_or_default();
        // A resilver leaves out what a newer group has freed.
        let is_mirrored = self.config.vdevs.iter().any(|vdev| vdev.leaves.len() > 1);
        let advice = match is_mirrored && !self.options.read_only {
            true => "; scrub the pool: devices of mirrors may lack blocks of that group",
            false => "",
        };
        Some(format!(
            "imported transaction group {} instead of the newest, {}; gave up {lost}, {log}{why}{advice}",
            chosen.txg, newest.txg
        ))
    }

    /// The groups after `chosen`, as a number and as a time.
    fn lost_since(&self, chosen: &Uberblock) -> String {
        let newest = self.newest();
        let newer = self.groups_after(chosen);
        let s = if newer == 1 { "" } else { "s" };
        let seconds = newest.time_ns.saturating_sub(chosen.time_ns) as f64 / NS_PER_SECOND;
        format!("{newer} transaction group{s}: the changes of {seconds:.1} s, and later ones")
    }

    /// Number of groups of the newest history after `chosen`, as far as there are uberblocks.
    fn groups_after(&self, chosen: &Uberblock) -> u64 {
        let (mut count, mut next) = (0, Some(self.newest()));
        while let Some(group) = next.filter(|group| group.txg > chosen.txg) {
            count += 1;
            let previous = group.previous_txg.min(group.txg - 1);
            next = self.uberblocks.iter().find(|one| one.txg == previous);
        }
        count
    }

    /// Adds to the error of the newest group whether an older one is whole.
    fn with_advice(&self, error: Error) -> Error {
        if self.chooses() || !is_damage(&error) {
            return error;
        }
        for older in self.ancestors().into_iter().skip(1) {
            if let Ok((pool, _)) = self.read_txg(older, None) {
                pool.give_up();
                let (txg, lost) = (older.txg, self.lost_since(older));
                let text = format!(
                    "{error}; `rewind` goes back to transaction group {txg} and gives up {lost}"
                );
                return Error::new(error.kind(), text).because(error);
            }
        }
        error
    }

    fn none_is_whole(&self, failed: Vec<(u64, Error)>) -> Error {
        let texts: Vec<String> =
            failed.iter().map(|(txg, error)| format!("{txg}: {error}")).collect();
        let mut failed = failed.into_iter();
        let Some((_, first)) = failed.next() else {
            return Error::new(ErrorKind::NotAPool, "it has no uberblock");
        };
        if failed.len() == 0 {
            return first;
        }
        let text = format!(
            "no transaction group is whole whose blocks are sure to be there; import read-only to rescue files{}. {}",
            self.older_advice(),
            texts.join("; ")
        );
        Error::new(first.kind(), text).because(first)
    }

    /// Whether an older ancestor can be opened. It is not tried unasked: its space may have been
    /// reused since, which shows only when a file is read.
    fn older_advice(&self) -> String {
        let mut group = self.ancestors().last().copied();
        while let Some(last) = group {
            let previous = last.previous_txg.min(last.txg - 1);
            group = self.uberblocks.iter().find(|one| one.txg == previous);
            if let Some(older) = group
                && let Ok((pool, _)) = self.read_txg(older, None)
            {
                pool.give_up();
                return format!(
                    ", or go back with the option `txg` {} and give up {}: files of that group whose space was \
                     reused since are damaged, and a check lists them",
                    older.txg,
                    self.lost_since(older)
                );
            }
        }
        String::new()
    }
}
