//! Proof that the process that had a pool on an object store before has ended.
//!
//! Each owner of a store draws a session, which the store keeps. A process notes its own, and the
//! boot of the kernel, in the file that it locks for the store. A process that locks this file in
//! the same boot, and finds the session of the owner before in it, knows that this owner has ended.
//! So an import need not wait until it gives up its log device.
//!
//! # Invariants
//!
//! The file is read and written through the descriptor that has the lock: another process may have
//! removed it, and a new one of that name has the lock and the note of another owner.
//!
//! A session is noted only once all owners before it have ended or been waited for: after the
//! import, or at once if the note proves it. A crash while an import waits leaves no proof.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use forebay_io::FileLock;
use forebay_object::Sessions;

/// No note is longer.
const NOTE_BYTES_MAX: usize = 256;

/// The note of a process that has locked a store.
pub(super) struct SessionNote {
    /// The locked file.
    file: File,
    text: String,
}

impl SessionNote {
    /// The note of this boot, in the locked file. Returns also whether the owner before has ended.
    /// `None` if the system does not identify its boot.
    pub(super) fn of_this_boot(lock: &FileLock, sessions: Sessions) -> Option<(Self, bool)> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = Some(boot.trim()).filter(|boot| !boot.is_empty())?;
        Self::new(lock, boot, sessions).ok()
    }

    fn new(lock: &FileLock, boot: &str, sessions: Sessions) -> io::Result<(Self, bool)> {
        let text_of = |session: u128| format!("{boot} {session:032x}\n");
        let file = File::from(lock.as_fd().try_clone_to_owned()?);
        let mut noted = [0; NOTE_BYTES_MAX];
        let len = file.read_at(&mut noted, 0)?;
        let is_noted = |before: u128| noted[..len] == *text_of(before).as_bytes();
        let has_ended = sessions.before.is_some_and(is_noted);
        Ok((Self { file, text: text_of(sessions.own) }, has_ended))
    }

    /// Notes the session.
    pub(super) fn write(&self) {
        let write = || {
            self.file.set_len(0)?;
            self.file.write_all_at(self.text.as_bytes(), 0)
        };
        if let Err(error) = write() {
            // After a crash, the next import waits.
            tracing::debug!(note = self.text.trim_end(), %error, "cannot note session");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use crate::pool_locks;

    fn note(file: &Path, boot: &str, own: u128, before: Option<u128>) -> (SessionNote, bool) {
        let lock = pool_locks::lock(file, false, false).unwrap().expect("nobody has it");
        // The lock ends here, as with a killed process.
        SessionNote::new(&lock, boot, Sessions { own, before }).unwrap()
    }

    #[test]
    fn a_note_of_this_boot_proves_that_the_owner_before_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        let note = |boot, own, before| note(&file, boot, own, before);
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

    #[test]
    fn the_note_of_an_owner_whose_lock_file_was_removed_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        let (alive, _) = note(&file, "a", 1, None);
        std::fs::remove_file(&file).unwrap();
        alive.write();
        let (_, has_ended) = note(&file, "a", 2, Some(1));
        assert!(!has_ended, "another file has its lock");
    }
}
