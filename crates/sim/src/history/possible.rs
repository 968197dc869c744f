//! Which states a crash may leave, of those that the history knows.

use super::{History, Now};
use crate::compare;
use crate::model::{Content, Model};

impl History {
    /// Whether a crash may leave `found`, if `now` was known and `txg` is the newest group that survived: its state, with what some
    /// number of fsyncs made durable.
    ///
    /// # Errors
    /// How it differs from each state that it may be.
    pub fn explains(&self, txg: u64, now: &Now, found: &Model) -> Result<(), String> {
        let (least, most) = (now.fsyncs_done, now.fsyncs_begun);
        let mut problems = String::new();
        for fsyncs in least..=most {
            match compare::difference(found, &self.state(txg, fsyncs)) {
                None => return Ok(()),
                Some(difference) => {
                    problems.push_str(&format!("\nwith {fsyncs} fsyncs:\n{difference}"));
                }
            }
        }
        match most > least && self.explains_partly(txg, (least, most), found) {
            true => Ok(()),
            false => Err(problems),
        }
    }

    /// An fsync that did not return may have written a part of its records: names as they were at some moment between, and of its
    /// object's content some of the changes. Content is looked at byte by byte: each is as it was before or after.
    fn explains_partly(&self, txg: u64, (least, most): (usize, usize), found: &Model) -> bool {
        let mut state = self.state(txg, least);
        let whole = self.state(txg, most);
        let fsync = self.fsyncs[most - 1];
        let first = self.fsyncs[..least].last().map_or(0, |fsync| fsync.changes);
        let first = first.max(self.end_of(txg));
        let matches = |state: &Model| {
            let (mut found, mut wanted) = (found.clone(), state.clone());
            let partial = found.entries.remove(&fsync.key);
            let known = wanted.entries.remove(&fsync.key);
            let is_between = match (partial, known) {
                (Some(partial), Some(known)) => {
                    let last = whole.entries.get(&fsync.key);
                    between(&partial.content, &known.content, last.map(|entry| &entry.content))
                }
                (partial, known) => partial.is_none() && known.is_none(),
            };
            is_between && found == wanted
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

/// Whether each byte is that of one of two states, or zero.
fn between(found: &Content, before: &Content, after: Option<&Content>) -> bool {
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
