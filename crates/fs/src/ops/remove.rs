//! Removing names.
//!
//! An inode that loses its last name goes to the orphan directory. The background thread destroys
//! it when nobody uses it any more, which is usually at once.
//!
//! Locking: begins a transaction, then takes `fs-inode` of the directory and of the inode, the
//! smaller object number first, and holds both until the name is gone. Before, `fs-table` and locks
//! of the pool are taken for single steps.

use forebay_pool::Transaction;

use crate::attrs::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::inode_lock::InodeLocks;
use crate::reclaim::orphan_name;
use crate::stats::{FsCounters, Op};
use crate::types::{FileKind, Ino, Time};

use super::names::check_linked;
use super::{RETRIES_MAX, check_name, not_found, retries_exhausted, rolled_back};

impl FileSystem {
    /// Removes a name of an inode that is no directory.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`IsADirectory`](ErrorKind::IsADirectory).
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.run(Op::Unlink, || {
            check_name(name)?;
            let parent = self.directory_of(parent)?;
            self.remove(&parent, name, false)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory),
    /// [`NotEmpty`](ErrorKind::NotEmpty).
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.run(Op::Rmdir, || {
            if name == b".." {
                return Err(not_empty());
            }
            check_name(name)?;
            let parent = self.directory_of(parent)?;
            self.remove(&parent, name, true)
        })
    }

    fn remove(&self, parent: &Inode, name: &[u8], directory: bool) -> Result<()> {
        for _ in 0..RETRIES_MAX {
            let child = self.resolve(parent, name)?.ok_or_else(not_found)?;
            self.check_removable(&child, directory)?;
            self.warm(parent)?;
            self.warm_removal(&child)?;
            let tx = self.begin_freeing()?;
            let _locks = InodeLocks::of(&tx, [parent, &child])?;
            check_linked(parent)?;
            if self.find(parent, name)?.map(|dirent| dirent.number) != Some(child.number) {
                self.counters().add(FsCounters::RETRIES, 0, 1);
                continue;
            }
            self.check_removable(&child, directory)?;
            tx.allow_wait();
            return self.remove_now(&tx, parent, name, &child);
        }
        Err(retries_exhausted())
    }

    /// Checks the type, and that a directory is empty.
    pub(super) fn check_removable(&self, child: &Inode, directory: bool) -> Result<()> {
        match (child.kind == FileKind::Directory, directory) {
            (false, true) => Err(Error::new(ErrorKind::NotADirectory, "not a directory")),
            (true, false) => Err(Error::new(ErrorKind::IsADirectory, "is a directory")),
            (false, false) => Ok(()),
            (true, true) => match child.directory(self.dataset(), self.wait)?.is_empty() {
                true => Ok(()),
                false => Err(not_empty()),
            },
        }
    }

    /// Loads what [`drop_link`](Self::drop_link) needs.
    pub(super) fn warm_removal(&self, child: &Inode) -> Result<()> {
        let (orphans, name) = (self.orphans().with_wait(self.wait), orphan_name(child.number));
        orphans.lookup(name.as_bytes())?;
        orphans.warm(name.as_bytes())?;
        self.warm(child)
    }

    fn remove_now(
        &self,
        tx: &Transaction<'_>,
        parent: &Inode,
        name: &[u8],
        child: &Inode,
    ) -> Result<()> {
        let names = parent.directory(self.dataset(), tx.wait())?;
        let now = self.now();
        let meta = child.meta();
        let value = names.remove(tx, name)?;
        let updated = self.drop_link(tx, child, now).and_then(|()| {
            let updated = match child.kind {
                FileKind::Directory => self.change(tx, parent, |meta| {
                    meta.nlink = meta.nlink.saturating_sub(1);
                    meta.changed(now);
                }),
                _ => self.touch(tx, parent, |meta| meta.changed(now)),
            };
            updated.or_else(|error| rolled_back(self.restore_link(tx, child, meta)).and(Err(error)))
        });
        if let Err(error) = updated {
            rolled_back(names.restore(tx, name, &value).map_err(Error::from))?;
            return Err(error);
        }
        parent.note_removal();
        Ok(())
    }

    /// Removes one link. An inode without links becomes an orphan.
    pub(super) fn drop_link(&self, tx: &Transaction<'_>, child: &Inode, now: Time) -> Result<()> {
        let nlink = match child.kind {
            FileKind::Directory => 0,
            _ => child.state().meta.nlink.saturating_sub(1),
        };
        let orphan = orphan_name(child.number);
        if nlink == 0 {
            // The name may exist already, if destroying an older inode failed half-way.
            self.orphans().update(tx, orphan.as_bytes(), &[1])?;
        }
        let updated = self.change(tx, child, |meta| {
            meta.nlink = nlink;
            meta.ctime = now;
        });
        if updated.is_err() && nlink == 0 {
            rolled_back(self.orphans().remove(tx, orphan.as_bytes()).map_err(Error::from))?;
        }
        updated
    }

    /// Rolls back [`drop_link`](Self::drop_link).
    pub(super) fn restore_link(
        &self,
        tx: &Transaction<'_>,
        child: &Inode,
        before: Meta,
    ) -> Result<()> {
        if child.state().meta.nlink == 0 {
            self.orphans().remove(tx, orphan_name(child.number).as_bytes())?;
        }
        self.change(tx, child, |meta| *meta = before)
    }
}

#[cold]
pub(super) fn not_empty() -> Error {
    Error::new(ErrorKind::NotEmpty, "the directory is not empty")
}
