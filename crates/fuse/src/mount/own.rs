//! A mount of this process, as an entry of the mount table.
//!
//! # Invariants
//!
//! - It is known by its id, its device and its type, not by its path: others may rename a directory
//!   above the mount point, or mount something over it. After its end the kernel gives these
//!   numbers to the next mount, so the unique id decides before anything is done to a mount.
//! - A system call takes a path, and acts on the topmost mount there. It is called only if that is
//!   this mount.
//!
//! # Limits
//!
//! Another process may mount something between the look and the call. Before Linux 6.8, and while
//! another mount is over it, a mount with the same numbers is taken for it.

use std::io;
use std::path::{Path, PathBuf};

use super::attach::FS_TYPE;
use super::mountinfo::{self, MountEntry, MountId};
use super::{DeviceNumber, detach};
use crate::error::MountError;

/// How often the table is read again because it changed between two looks.
const ATTEMPTS: u32 = 5;

/// A mount of this process. It may have left the mount table.
pub(super) struct OwnMount {
    id: u64,
    unique_id: Option<u64>,
    device: DeviceNumber,
    /// Where it was attached.
    path: PathBuf,
}

impl OwnMount {
    /// The mount of `source` that was just attached at `path`. If a directory above it is bound to
    /// itself and shared, the kernel has put a copy of the mount at the same path, beneath it.
    ///
    /// # Errors
    /// The mount table cannot be read, or lacks it.
    pub(super) fn attached_at(path: &Path, source: &str) -> io::Result<Self> {
        let mut entries = mountinfo::entries()?;
        entries.retain(|entry| {
            entry.path == path && entry.fs_type == FS_TYPE && entry.source == source
        });
        let reached = mountinfo::reached_at(path).ok();
        let is_reached = |entry: &MountEntry| reached.as_ref().is_some_and(|it| it.id == entry.id);
        // Another mount may be over it already. Then it is the newest one.
        let at = entries.iter().position(is_reached);
        let at = at.or(entries.len().checked_sub(1)).ok_or(io::ErrorKind::NotFound)?;
        let MountEntry { id, device, .. } = entries.swap_remove(at);
        let unique_id = reached.filter(|reached| reached.id == id).and_then(|it| it.unique);
        Ok(Self { id, unique_id, device, path: path.to_path_buf() })
    }

    /// Where it was attached.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its device number.
    pub(super) fn device(&self) -> DeviceNumber {
        self.device
    }

    /// The entry with its numbers, which has its current path; `None` once it has left the table.
    /// After its end the entry may be of a later mount. Walks no path.
    pub(super) fn entry(&self) -> io::Result<Option<MountEntry>> {
        Ok(mountinfo::entries()?.into_iter().find(|entry| self.has_numbers_of(entry)))
    }

    /// Whether its numbers are in the table; see [`entry`](Self::entry).
    pub(super) fn is_attached(&self) -> io::Result<bool> {
        Ok(self.entry()?.is_some())
    }

    fn has_numbers_of(&self, entry: &MountEntry) -> bool {
        entry.id == self.id && entry.device == self.device && entry.fs_type == FS_TYPE
    }

    /// Whether this is a later mount, which has its numbers now.
    fn is_replaced_by(&self, reached: &MountId) -> bool {
        let differs = self.unique_id.zip(reached.unique).is_some_and(|(own, now)| own != now);
        differs && reached.id == self.id
    }

    /// Its current path, on which a system call acts on this mount. `None` once it has left the
    /// table. Walks the path, which may hang if a file system above it does, and uses the mount
    /// meanwhile.
    ///
    /// # Errors
    /// [`MountError::Covered`], or the mount table cannot be read.
    pub(super) fn reachable(&self) -> Result<Option<PathBuf>, MountError> {
        let failed = |source| MountError::System {
            what: "look in the mount table for",
            path: self.path.clone(),
            source,
        };
        for _ in 0..ATTEMPTS {
            let Some(own) = self.entry().map_err(failed)? else { return Ok(None) };
            let reached = mountinfo::reached_at(&own.path).map_err(failed)?;
            if reached.id == self.id {
                return Ok((!self.is_replaced_by(&reached)).then_some(own.path));
            }
            let mut entries = mountinfo::entries().map_err(failed)?.into_iter();
            if let Some(other) = entries.find(|entry| entry.id == reached.id) {
                return Err(MountError::Covered {
                    path: own.path,
                    by: other.path,
                    fs_type: other.fs_type,
                    source_name: other.source,
                });
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// Takes it out of the mount table, unless somebody else has done so.
    ///
    /// # Errors
    /// As [`reachable`](Self::reachable), if it is busy, or if a system call fails.
    pub(super) fn detach(&self, lazy: bool) -> Result<(), MountError> {
        let mut path = self.path.clone();
        for _ in 0..ATTEMPTS {
            let Some(current) = self.reachable()? else { return Ok(()) };
            match detach::detach(&current, lazy) {
                // Somebody has renamed a directory above it, or was faster.
                Err(MountError::NotMounted { .. }) => path = current,
                detached => return detached,
            }
        }
        Err(MountError::Busy { path, users: Vec::new() })
    }

    /// Detaches it after the end of its session, in which `broke` says that the session was not
    /// ended by an unmount: every access to a mount without a session fails.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub(super) fn detach_ended(&self, broke: bool) -> Result<(), MountError> {
        match self.reachable()? {
            // After an unmount, another mount may have its numbers. That one is alive.
            Some(path) if broke || detach::is_dead(&path) => self.detach(true),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attach;
    use super::*;
    use crate::MountOptions;

    /// A mount that nobody serves. It ends with the descriptor.
    fn attach(path: &Path) -> (std::os::fd::OwnedFd, OwnMount) {
        let options = MountOptions { fs_name: "test/own".to_owned(), ..MountOptions::default() };
        let session = attach::attach(path, 0o40755, &options).expect("a mount");
        (session, OwnMount::attached_at(path, "test/own").expect("its entry"))
    }

    #[test]
    fn a_mount_with_the_numbers_of_an_ended_one_is_another() {
        if crate::available().is_err() || !attach::may_mount() {
            return forebay_base::testing::skip("fuse", "this process cannot mount");
        }
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for _ in 0..1000 {
            let (session, ended) = attach(&first.path().canonicalize().unwrap());
            assert!(ended.reachable().unwrap().is_some());
            detach::detach(ended.path(), true).unwrap();
            drop(session);
            let (session, other) = attach(&second.path().canonicalize().unwrap());
            let has_its_numbers = (ended.id, ended.device) == (other.id, other.device);
            let (ours, there) = (ended.reachable().unwrap(), other.reachable().unwrap());
            detach::detach(other.path(), true).unwrap();
            drop(session);
            if other.unique_id.is_none() {
                return forebay_base::testing::skip("statx", "it does not know unique mount ids");
            }
            assert!(there.is_some() && ours.is_none());
            if has_its_numbers {
                return;
            }
        }
        panic!("the kernel gives no number to the next mount");
    }
}
