//! Proof that the process that had a pool on an object store before has ended.
//!
//! Each owner of a store draws a session, which the store keeps. A process notes its own, and the
//! boot of the kernel, in the file that it locks for the store. A process that locks this file in
//! the same boot, and finds the session of the owner before in it, knows that this owner has ended.
//! So an import need not wait until it gives up its log device.
//!
//! # Invariant
//!
//! A session is noted only once all owners before it have ended or been waited for: after the
//! import, or at once if the note proves it. A crash while an import waits leaves no proof.

use std::path::PathBuf;

use forebay_object::Sessions;

/// The note of a process that has locked a store.
pub(super) struct SessionNote {
    file: PathBuf,
    text: String,
}

impl SessionNote {
    /// The note of this boot, in the locked file. Returns also whether the owner before has ended.
    /// `None` if the system does not identify its boot.
    pub(super) fn of_this_boot(file: PathBuf, sessions: Sessions) -> Option<(Self, bool)> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = Some(boot.trim()).filter(|boot| !boot.is_empty())?;
        Some(Self::new(file, boot, sessions))
    }

    fn new(file: PathBuf, boot: &str, sessions: Sessions) -> (Self, bool) {
        let text_of = |session: u128| format!("{boot} {session:032x}\n");
        let noted = std::fs::read_to_string(&file).unwrap_or_default();
        let has_ended = sessions.before.is_some_and(|before| noted == text_of(before));
        (Self { file, text: text_of(sessions.own) }, has_ended)
    }

    /// Notes the session.
    pub(super) fn write(&self) {
        if let Err(error) = std::fs::write(&self.file, &self.text) {
            // After a crash, the next import waits.
            tracing::debug!(file = %self.file.display(), %error, "cannot note session");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_this_boot_proves_that_the_owner_before_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        let note =
            |boot, own, before| SessionNote::new(file.clone(), boot, Sessions { own, before });
        let (first, has_ended) = note("a", 1, None);
        assert!(!has_ended, "there is no file");
        let (_, has_ended) = note("a", 2, Some(1));
        assert!(!has_ended, "nothing is noted before the import has ended");
        first.write();
        let (second, has_ended) = note("a", 2, Some(1));
        assert!(has_ended);
        for (boot, before) in [("a", Some(3)), ("b", Some(1)), ("a", None)] {
            assert!(!note(boot, 2, before).1, "{boot} {before:?}");
        }
        second.write();
        assert!(!note("a", 3, Some(1)).1, "another owner came after it");
        assert!(note("a", 3, Some(2)).1);
    }
}
