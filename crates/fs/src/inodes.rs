//! Inodes of a file system: finds and loads them by number, reads and changes their attributes.
//!
//! An [`InodeRef`] keeps its inode in memory. `inode_table` has the table of inodes, `inode` one of
//! them.
//!
//! Locking: `fs-table` for a lookup, `fs-inode-state` for attributes, neither over a load. Changes
//! need the inode lock of the caller.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_pool::format::ObjectKind;
use forebay_pool::{ErrorKind as PoolKind, Transaction};

use crate::attrs::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::{Inode, SizeInfo};
use crate::inode_table::{CacheLookup, InodeTable};
use crate::ops::{RETRIES_MAX, retries_exhausted};
use crate::stats::FsCounters;
use crate::types::{Attr, Entry, FileKind, Ino};

/// Unit of `Attr::blocks` in bytes.
const BLOCK_BYTES: u64 = 512;
/// Preferred I/O size of inodes that have no content of their own.
const PREFERRED_BYTES: u32 = 4096;

/// A reference to an inode. It keeps the inode in memory.
pub(crate) struct InodeRef<'a> {
    fs: &'a FileSystem,
    inode: Arc<Inode>,
}

impl std::ops::Deref for InodeRef<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        self.fs.put(&self.inode);
    }
}

impl FileSystem {
    /// Loads the dnode that a change of the inode's attributes needs, so that the change itself
    /// does not block. After a change in the open transaction group it is in memory already.
    pub(crate) fn warm(&self, inode: &Inode) -> Result<()> {
        let last = self.shared.last_txg.load(Ordering::Relaxed);
        if last > 0 && inode.state().stored_txg >= last {
            return Ok(());
        }
        Ok(self.shared.dataset.with_wait(self.wait).object_info(inode.number).map(drop)?)
    }

    pub(crate) fn ino(&self, number: u64) -> Ino {
        match number == self.shared.root {
            true => Ino::ROOT,
            // Numbers from a device were checked. A saturated number belongs to no other inode.
            false => Ino(number.saturating_add(2)),
        }
    }

    /// The object number of an inode.
    pub(crate) fn number(&self, ino: Ino) -> Result<u64> {
        match ino {
            Ino::ROOT => Ok(self.shared.root),
            Ino(ino) => ino.checked_sub(2).filter(|number| *number > 0).ok_or_else(stale),
        }
    }

    /// Returns the inode if it is in memory.
    pub(crate) fn cached(&self, number: u64) -> Option<InodeRef<'_>> {
        Some(InodeRef { fs: self, inode: self.shared.table.get(number)? })
    }

    /// Returns the inode with this number, loaded from the dataset if necessary.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale) if it does not exist, or a read error.
    pub(crate) fn inode(&self, number: u64) -> Result<InodeRef<'_>> {
        for _ in 0..RETRIES_MAX {
            let guard = match self.shared.table.get_or_load(number) {
                CacheLookup::Hit(inode) => return Ok(InodeRef { fs: self, inode }),
                CacheLookup::Miss(guard) => guard,
            };
            let loaded = self.load(number);
            #[cfg(test)]
            crate::tests::after_load();
            match loaded {
                Ok(loaded) => {
                    if let Some(inode) = guard.finish(loaded) {
                        return Ok(InodeRef { fs: self, inode });
                    }
                }
                Err(error) if !guard.is_stale() => return Err(error),
                Err(_) => {}
            }
            // The inode was in memory during the load.
            self.shared.counters.add(FsCounters::RETRIES, 0, 1);
        }
        Err(retries_exhausted())
    }

    /// Returns the inode that a caller names.
    pub(crate) fn inode_of(&self, ino: Ino) -> Result<InodeRef<'_>> {
        self.inode(self.number(ino)?)
    }

    /// Returns the directory that a caller names.
    pub(crate) fn directory_of(&self, ino: Ino) -> Result<InodeRef<'_>> {
        let inode = self.inode_of(ino)?;
        inode.check_directory()?;
        Ok(inode)
    }

    /// Enters a new inode into the table, before it has a name.
    pub(crate) fn add(&self, inode: Inode) -> InodeRef<'_> {
        InodeRef { fs: self, inode: self.shared.table.add(inode) }
    }

    fn load(&self, number: u64) -> Result<Inode> {
        let doing = |error: Error| error.doing(format_args!("inode {number}"));
        if number == self.shared.orphans.number() {
            return Err(stale());
        }
        let info = match self.shared.dataset.with_wait(self.wait).object_info(number) {
            Ok(info) => info,
            Err(error) if error.kind() == PoolKind::NotFound => return Err(stale()),
            Err(error) => return Err(doing(error.into())),
        };
        let meta = Meta::decode(&info.attributes).map_err(doing)?;
        let wanted = match meta.kind {
            FileKind::Directory => ObjectKind::Zap,
            _ => ObjectKind::Data,
        };
        if info.kind != wanted {
            return Err(doing(Error::corrupt("the object has another type than the inode")));
        }
        if meta.nlink == 0 {
            return Err(stale());
        }
        self.shared.counters.add(FsCounters::INODES_LOADED, 0, 1);
        let size = match meta.kind {
            FileKind::Symlink => self.target(&meta).map_err(doing)?.len() as u64,
            _ => info.usage.size_bytes,
        };
        let size_info =
            SizeInfo { size, allocated: info.usage.allocated_bytes, record: info.record_bytes };
        let inode = Inode::new(number, info.created_txg, meta, size_info, 0);
        if info.usage.is_estimate {
            // The object is in memory and will have the final size.
            match inode.kind {
                FileKind::File => {
                    inode.file(&self.shared.dataset, self.wait).map(drop).map_err(doing)?
                }
                FileKind::Directory => {
                    inode.directory(&self.shared.dataset, self.wait).map(drop).map_err(doing)?
                }
                _ => {}
            }
        }
        Ok(inode)
    }

    /// Drops a reference.
    pub(crate) fn put(&self, inode: &Inode) {
        if InodeTable::put(inode) {
            self.evict_if_unused(inode.number);
        }
    }

    /// A number that differs for different content, attributes or names of the inode, as of the
    /// transaction group that a read-only pool shows.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale) if it does not exist, or a read error.
    pub fn version(&self, ino: Ino) -> Result<u64> {
        self.shared.check_open()?;
        let number = self.number(ino)?;
        match self.shared.dataset.with_wait(self.wait).object_version(number) {
            Err(error) if error.kind() == PoolKind::NotFound => Err(stale()),
            version => Ok(version?),
        }
    }

    pub(crate) fn attr(&self, inode: &Inode) -> Attr {
        let (size_info, blocks_estimated) = inode.size_info();
        let (size, allocated, block_bytes) = match inode.kind {
            FileKind::File => (size_info.size, size_info.allocated, size_info.record),
            FileKind::Symlink => (size_info.size, 0, PREFERRED_BYTES),
            FileKind::Directory => {
                (u64::from(PREFERRED_BYTES), size_info.allocated, PREFERRED_BYTES)
            }
            _ => (0, 0, PREFERRED_BYTES),
        };
        let state = inode.state();
        let meta = &state.meta;
        Attr {
            ino: self.ino(inode.number),
            kind: meta.kind,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: meta.rdev,
            size,
            blocks: allocated.div_ceil(BLOCK_BYTES),
            blocks_estimated,
            block_bytes,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: meta.btime,
            generation: inode.generation,
        }
    }

    /// Changes an inode's attributes, in memory and in its object. The caller holds the inode lock.
    pub(crate) fn change(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        change: impl FnOnce(&mut Meta),
    ) -> Result<()> {
        self.shared.change(tx, inode, change)
    }

    /// Changes an inode's times. Stores them in the object once per transaction group; later
    /// changes are pending. The caller holds the inode lock.
    pub(crate) fn touch(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        change: impl FnOnce(&mut Meta),
    ) -> Result<()> {
        {
            let mut state = inode.state();
            if state.stored_txg == tx.txg() {
                change(&mut state.meta);
                state.times_pending = true;
                drop(state);
                inode.set_atime_fresh_until(0);
                return Ok(());
            }
        }
        self.change(tx, inode, change)
    }

    /// Stores pending times.
    pub(crate) fn flush_times(&self, inode: &Inode) -> Result<()> {
        if !inode.state().times_pending {
            return Ok(());
        }
        let tx = self.begin_freeing()?;
        self.shared.write_times(&tx, inode)
    }
}

impl InodeRef<'_> {
    /// Adds a reference. The caller drops it with [`put`](FileSystem::put).
    pub(crate) fn add_ref(&self) {
        self.inode.refs.fetch_add(1, Ordering::SeqCst);
    }

    /// Drops the reference, but leaves the inode in memory: a task that evicts it waits.
    pub(crate) fn leave(self) {
        let inode = Arc::clone(&self.inode);
        self.add_ref();
        drop(self);
        let _ = InodeTable::put(&inode);
    }

    /// Turns the reference into the result of a lookup, and counts the lookup.
    pub(crate) fn into_entry(self, parent: u64, name: &[u8]) -> Entry {
        let attr = self.fs.attr(&self);
        self.count_lookup(parent, name);
        Entry { attr }
    }

    /// Counts a lookup by this name.
    pub(crate) fn count_lookup(&self, parent: u64, name: &[u8]) {
        self.add_ref();
        self.fs.shared.table.count_lookup(&self.inode);
        let mut state = self.state();
        let same =
            state.dentry.as_ref().is_some_and(|dentry| dentry.0 == parent && *dentry.1 == *name);
        if !same {
            state.dentry = Some((parent, name.into()));
        }
    }
}

#[cold]
pub(crate) fn stale() -> Error {
    Error::new(ErrorKind::Stale, "the inode no longer exists")
}
