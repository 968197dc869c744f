//! The states that a crash may leave.

use super::{History, ProgressSnapshot};
use crate::compare;
use crate::model::{Content, Model};

impl History {
    /// Checks that a crash may leave `found`, if `txg` is the newest group that survived and
    /// `snapshot` was known before the crash.
    ///
    /// # Errors
    /// The difference to each allowed state.
    pub fn check_allowed(
        &self,
        txg: u64,
        snapshot: &ProgressSnapshot,
        found: &Model,
    ) -> Result<(), String> {
        let (least, most) = (snapshot.fsyncs_done, snapshot.fsyncs_begun);
        let mut problems = String::new();
        for fsyncs in least..=most {
            match compare::difference(found, &self.state(txg, fsyncs)) {
                None => return Ok(()),
                Some(difference) => {
                    problems.push_str(&format!("\nwith {fsyncs} fsyncs:\n{difference}"));
                }
            }
        }
        match most > least && self.allows_partial_fsync(txg, (least, most), found) {
            true => Ok(()),
            false => Err(problems),
        }
    }

    /// Whether a partly written fsync explains `found`. An fsync that did not return may leave the
    /// names of any moment in between, and some of the changes of its object's content. Each byte
    /// must have its old or its new value.
    fn allows_partial_fsync(&self, txg: u64, (least, most): (usize, usize), found: &Model) -> bool {
        let mut state = self.state(txg, least);
        let whole = self.state(txg, most);
        let fsync = self.fsyncs[most - 1];
        let first = self.fsyncs[..least].last().map_or(0, |fsync| fsync.changes);
        let first = first.max(self.end_of(txg));
        let matches = |state: &Model| {
            let (mut found, mut wanted) = (found.clone(), state.clone());
            let partial = found.entries.remove(&fsync.key);
            let known = wanted.entries.remove(&fsync.key);
            let in_between = match (partial, known) {
                (Some(partial), Some(known)) => {
                    let last = whole.entries.get(&fsync.key);
                    is_between(&partial.content, &known.content, last.map(|entry| &entry.content))
                }
                (partial, known) => partial.is_none() && known.is_none(),
            };
            in_between && found == wanted
        };
        if matches(&state) {
            return true;
        }
        for done in self.changes.iter().take(fsync.changes).skip(first) {
            if done.change.is_of_names() {
                state.apply(done.key, &done.change);
                if matches(&state) {
                    return true;
                }
            }
        }
        false
    }
}

/// Whether each byte has its old value, its new value, or zero.
fn is_between(found: &Content, before: &Content, after: Option<&Content>) -> bool {
    let (Content::Bytes(found), Content::Bytes(before)) = (found, before) else {
        return found == before;
    };
    let empty = Vec::new();
    let after = match after {
        Some(Content::Bytes(after)) => after,
        _ => &empty,
    };
    found
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == 0 || before.get(at) == Some(byte) || after.get(at) == Some(byte))
}
