//! Looking up, creating and linking names.

use forebay_pool::{Directory, ErrorKind as PoolKind, Transaction, Wait};

use crate::attrs::{Dirent, Meta, SGID, new_mode};
use crate::error::{Error, ErrorKind, Result};
use crate::extras::{self, Item};
use crate::format::{LINKS_MAX, TARGET_MAX};
use crate::fs::FileSystem;
use crate::inode::{Inode, SizeInfo};
use crate::inode_lock::InodeLocks;
use crate::inodes::InodeRef;
use crate::stats::{FsCounters, Op};
use crate::types::{Caller, Entry, FileKind, Handle, Ino, NewNode};

use super::{RETRIES_MAX, check_name, exists, not_found, retries_exhausted, rolled_back};

impl FileSystem {
    /// Looks up a name, and adds one to the lookup count of its inode.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory).
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.run(Op::Lookup, || {
            check_name(name)?;
            let parent = self.directory_of(parent)?;
            let child = self.resolve(&parent, name)?.ok_or_else(not_found)?;
            Ok(child.into_entry(parent.number, name))
        })
    }

    /// Subtracts `count` from an inode's lookup count.
    pub fn forget(&self, ino: Ino, count: u64) {
        // Works on a closed file system too.
        let _ = self.enter(Op::Forget);
        let Ok(number) = self.number(ino) else { return };
        if self.table().forget(number, count).is_some() {
            self.evict_if_unused(number);
        }
    }

    /// Creates an inode of any type.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists), [`NotFound`](ErrorKind::NotFound) if the directory was
    /// removed, [`TooManyLinks`](ErrorKind::TooManyLinks), [`NoSpace`](ErrorKind::NoSpace), and
    /// others.
    pub fn make(
        &self,
        parent: Ino,
        name: &[u8],
        node: &NewNode<'_>,
        caller: Caller,
    ) -> Result<Entry> {
        self.run(Op::Make, || {
            let parent = self.directory_of(parent)?;
            let made = self.make_in(&parent, name, node, caller)?;
            Ok(made.into_entry(parent.number, name))
        })
    }

    /// Creates a regular file and opens it.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u16,
        caller: Caller,
    ) -> Result<(Entry, Handle)> {
        let node = NewNode { kind: FileKind::File, mode, rdev: 0, target: None };
        self.run(Op::Create, || {
            let parent = self.directory_of(parent)?;
            let made = self.make_in(&parent, name, &node, caller)?;
            let handle = self.add_open(&made);
            Ok((made.into_entry(parent.number, name), handle))
        })
    }

    /// Creates a hard link to an inode that is no directory.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists), [`NotPermitted`](ErrorKind::NotPermitted) for a directory,
    /// [`NotFound`](ErrorKind::NotFound) if either inode was removed,
    /// [`TooManyLinks`](ErrorKind::TooManyLinks), and others.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.run(Op::Link, || self.link_once(ino, parent, name))
    }

    fn link_once(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        check_name(name)?;
        let parent = self.directory_of(parent)?;
        let inode = self.inode_of(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::new(ErrorKind::NotPermitted, "a directory cannot have hard links"));
        }
        let names = parent.directory(self.dataset(), self.wait)?;
        if names.with_wait(self.wait).lookup(name)?.is_some() {
            return Err(exists());
        }
        names.with_wait(self.wait).warm(name)?;
        self.pace(&names)?;
        self.warm(&parent)?;
        self.warm(&inode)?;
        {
            let tx = self.begin()?;
            let _locks = InodeLocks::of(&tx, [&*parent, &*inode])?;
            tx.allow_wait();
            check_linked(&parent)?;
            check_linked(&inode)?;
            check_nlink(&inode)?;
            let now = self.now();
            self.order_content(&tx, &inode);
            // First, because nothing may fail after the link is made.
            self.touch(&tx, &parent, |meta| meta.changed(now))?;
            let dirent = Dirent { number: inode.number, kind: inode.kind };
            names.insert(&tx, name, &dirent.encode())?;
            let counted = self.change(&tx, &inode, |meta| {
                meta.nlink += 1;
                meta.parent = parent.number;
                meta.ctime = now;
            });
            counted.or_else(|error| {
                let removed = names.remove(&tx, name);
                parent.note_removal();
                rolled_back(removed.map_err(Error::from)).and(Err(error))
            })?;
        }
        Ok(inode.into_entry(parent.number, name))
    }

    /// Looks up a name without counting a lookup.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup), but a missing name is no error.
    pub fn peek(&self, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        self.unless_gone(|| {
            let parent = self.directory_of(parent)?;
            Ok(self.find(&parent, name)?.map(|dirent| self.ino(dirent.number)))
        })
    }

    /// Returns the inode of a name, if the name exists.
    pub(crate) fn resolve(&self, parent: &Inode, name: &[u8]) -> Result<Option<InodeRef<'_>>> {
        for _ in 0..RETRIES_MAX {
            let removals = parent.removals();
            let Some(dirent) = self.find(parent, name)? else { return Ok(None) };
            let child = self.inode(dirent.number);
            // If no name was removed meanwhile, this name existed when the inode was referenced.
            // From then on the inode is not destroyed.
            if parent.removals() != removals {
                self.counters().add(FsCounters::RETRIES, 0, 1);
                continue;
            }
            let doing = |error: Error| {
                let name = String::from_utf8_lossy(name);
                error.doing(format_args!("name {name:?} in directory {}", parent.number))
            };
            let child = child.map_err(|error| match error.kind() {
                ErrorKind::Stale => doing(Error::corrupt("its inode does not exist")),
                _ => doing(error),
            })?;
            if child.kind != dirent.kind {
                return Err(doing(Error::corrupt(
                    "the inode has another type than the directory entry",
                )));
            }
            return Ok(Some(child));
        }
        Err(retries_exhausted())
    }

    /// Waits if names are added to this directory faster than its leaves can get them. The thread
    /// holds nothing, and another worker takes its place, so that others are not slowed down.
    ///
    /// # Errors
    /// [`WouldBlock`](ErrorKind::WouldBlock) if it must wait and may not.
    pub(super) fn pace(&self, names: &Directory) -> Result<()> {
        match names.with_wait(Wait::Refused).pace() {
            Err(error) if error.kind() == PoolKind::WouldBlock && self.wait == Wait::Allowed => {
                let _blocked = self.shared.workers.blocked();
                Ok(names.with_wait(self.wait).pace()?)
            }
            paced => Ok(paced?),
        }
    }

    /// Loads what a change of a name needs, after a lookup of the name.
    pub(super) fn warm_name(&self, parent: &Inode, name: &[u8]) -> Result<()> {
        Ok(parent.directory(self.dataset(), self.wait)?.with_wait(self.wait).warm(name)?)
    }

    /// Reads a directory entry.
    pub(crate) fn find(&self, parent: &Inode, name: &[u8]) -> Result<Option<Dirent>> {
        let value =
            parent.directory(self.dataset(), self.wait)?.with_wait(self.wait).lookup(name)?;
        value.map(|value| Dirent::decode(&value)).transpose()
    }

    fn make_in(
        &self,
        parent: &Inode,
        name: &[u8],
        node: &NewNode<'_>,
        caller: Caller,
    ) -> Result<InodeRef<'_>> {
        check_name(name)?;
        let target = check_node(node)?;
        let names = parent.directory(self.dataset(), self.wait)?;
        if names.with_wait(self.wait).lookup(name)?.is_some() {
            return Err(exists());
        }
        names.with_wait(self.wait).warm(name)?;
        self.pace(&names)?;
        self.warm(parent)?;
        let record = self.dataset().settings()?.record_bytes;
        let tx = self.begin()?;
        let _lock = parent.lock(&tx)?;
        tx.allow_wait();
        check_linked(parent)?;
        if node.kind == FileKind::Directory {
            check_nlink(parent)?;
        }
        let mut meta = self.new_meta(parent, node, caller);
        if let Some(target) = target {
            let items = extras::encode(&[Item::target(target)])?;
            meta.extras = extras::store(self.dataset(), &tx, items)?;
        }
        let size = target.map_or(0, |target| target.len() as u64);
        let size_info = SizeInfo { size, allocated: 0, record };
        let made = self.create_inode(&tx, parent, name, &meta, size_info);
        if made.is_err() {
            rolled_back(extras::discard(self.dataset(), &tx, &meta.extras))?;
        }
        made
    }

    /// Creates an object and its name.
    fn create_inode(
        &self,
        tx: &Transaction<'_>,
        parent: &Inode,
        name: &[u8],
        meta: &Meta,
        size_info: SizeInfo,
    ) -> Result<InodeRef<'_>> {
        let dataset = self.dataset();
        let is_directory = meta.kind == FileKind::Directory;
        let names = parent.directory(dataset, tx.wait())?;
        let attributes = meta.encode();
        let number = match is_directory {
            true => dataset.create_directory(tx, &attributes)?,
            false => dataset.create_object(tx, &attributes)?,
        };
        // Before the name exists, so that every lookup of the name finds this inode.
        let made = self.add(Inode::new(number, tx.txg(), meta.clone(), size_info, tx.txg()));
        let undo = || -> Result<()> {
            // Threads that have looked it up find it removed and retry.
            made.state().meta.nlink = 0;
            let destroyed = dataset.destroy(tx, number);
            self.table().remove(&made);
            Ok(destroyed?)
        };
        let dirent = Dirent { number, kind: meta.kind };
        if let Err(error) = names.insert(tx, name, &dirent.encode()) {
            rolled_back(undo())?;
            return Err(error.into());
        }
        let now = meta.ctime;
        let updated = match is_directory {
            true => self.change(tx, parent, |meta| {
                meta.nlink += 1;
                meta.changed(now);
            }),
            false => self.touch(tx, parent, |meta| meta.changed(now)),
        };
        if let Err(error) = updated {
            rolled_back(names.remove(tx, name).map_err(Error::from))?;
            parent.note_removal();
            rolled_back(undo())?;
            return Err(error);
        }
        Ok(made)
    }

    fn new_meta(&self, parent: &Inode, node: &NewNode<'_>, caller: Caller) -> Meta {
        let above = parent.meta();
        let inherits = above.mode & SGID != 0;
        let gid = if inherits { above.gid } else { caller.gid };
        let is_directory = node.kind == FileKind::Directory;
        let mode = match (is_directory, inherits) {
            (true, true) => node.mode | SGID,
            (true, false) => node.mode,
            (false, _) => new_mode(node.mode, caller.uid != 0 && gid != caller.gid),
        };
        let mode = if node.kind == FileKind::Symlink { 0o777 } else { mode };
        let mut meta = Meta::new(node.kind, mode, (caller.uid, gid), self.now());
        if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            meta.rdev = node.rdev;
        }
        meta.parent = parent.number;
        meta
    }
}

/// Returns the target of a new symlink.
fn check_node<'a>(node: &NewNode<'a>) -> Result<Option<&'a [u8]>> {
    match (node.kind, node.target) {
        (FileKind::Symlink, Some(target)) if target.len() > TARGET_MAX => {
            let text = format!(
                "symlink target of {} bytes is too long: at most {TARGET_MAX}",
                target.len()
            );
            Err(Error::new(ErrorKind::NameTooLong, text))
        }
        (FileKind::Symlink, Some(target)) if !target.is_empty() => Ok(Some(target)),
        (FileKind::Symlink, _) => Err(Error::new(ErrorKind::NotFound, "a symlink needs a target")),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(Error::new(ErrorKind::Invalid, "only a symlink has a target")),
    }
}

/// # Errors
/// [`NotFound`](ErrorKind::NotFound) if the inode has no name.
pub(super) fn check_linked(inode: &Inode) -> Result<()> {
    match inode.state().meta.nlink {
        0 => Err(Error::new(ErrorKind::NotFound, "the file or directory was removed")),
        _ => Ok(()),
    }
}

/// # Errors
/// [`TooManyLinks`](ErrorKind::TooManyLinks) if the inode cannot have another link.
pub(super) fn check_nlink(inode: &Inode) -> Result<()> {
    match inode.state().meta.nlink {
        LINKS_MAX.. => Err(Error::new(ErrorKind::TooManyLinks, "too many links")),
        _ => Ok(()),
    }
}
