//! Attributes, and usage of the file system.

use forebay_pool::Wait;

use crate::attrs::{MODE_BITS, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::extras;
use crate::format::{EXTRA_TARGET, NAME_MAX};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::options::AtimeMode;
use crate::stats::Op;
use crate::types::{Attr, Caller, FileKind, FsUsage, Ino, SetAttr, SetTime, Time};

/// Block size of [`FsUsage`] in bytes.
const USAGE_BYTES: u64 = 4096;
/// Minimum space of an inode in bytes, with its copy.
const INODE_BYTES: u64 = 1024;
/// After a read, a relative access time is at most this old, in seconds.
const DAY_SECONDS: i64 = 24 * 60 * 60;

impl FileSystem {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale).
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.run(Op::Getattr, || Ok(self.attr(&*self.inode_of(ino)?)))
    }

    /// Changes attributes, including the file size, and returns them. A large file is truncated in
    /// steps: after a crash it may have its old size, with zeros in part of the truncated range.
    ///
    /// A change of owner or group clears set-user-id, and set-group-id of a group-executable file,
    /// except on directories. So does a change of size by a caller without `CAP_FSETID`, and a call
    /// that changes nothing: the kernel sends one for a `chown` to the same owner, and to clear
    /// these bits after a change of content.
    ///
    /// # Errors
    /// [`FileTooLarge`](ErrorKind::FileTooLarge), [`IsADirectory`](ErrorKind::IsADirectory),
    /// [`NoSpace`](ErrorKind::NoSpace), and others.
    pub fn setattr(&self, ino: Ino, set: &SetAttr, caller: Caller) -> Result<Attr> {
        self.run(Op::Setattr, || self.setattr_once(ino, set, caller))
    }

    fn setattr_once(&self, ino: Ino, set: &SetAttr, caller: Caller) -> Result<Attr> {
        let inode = self.inode_of(ino)?;
        if let Some(size) = set.size {
            self.prepare_resize(&inode, size)?;
        }
        self.warm(&inode)?;
        let shrinks = set.size.is_some_and(|size| size < inode.size_info().0.size);
        {
            let tx = if shrinks { self.begin_freeing()? } else { self.begin_update()? };
            let _lock = inode.lock(&tx)?;
            let now = self.now();
            let is_owner_change = set.uid.is_some() || set.gid.is_some();
            let is_content_change = set.size.is_some() || changes_nothing(set);
            let drops =
                is_owner_change || is_content_change && !self.keeps_set_id_of(&inode, caller);
            let member = drops && self.may_keep_sgid(&inode, caller);
            let dropped = drops.then_some(member);
            if let Some(size) = set.size {
                inode.file(self.dataset(), tx.wait())?.truncate(&tx, size)?;
                self.writeback_errors().clear(inode.number, size..u64::MAX);
                // Only the first change may report that it would block.
                tx.allow_wait();
            }
            self.change(&tx, &inode, |meta| set_meta(meta, set, dropped, now))?;
        }
        Ok(self.attr(&inode))
    }

    /// Truncates a file for a caller that opens it. Tells the client if that clears set-user-id.
    pub(crate) fn truncate_on_open(&self, ino: Ino, caller: Caller) -> Result<()> {
        let mode = self.inode_of(ino)?.meta().mode;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        if self.setattr(ino, &set, caller)?.mode != mode {
            self.mode_changed(&*self.inode_of(ino)?);
        }
        Ok(())
    }

    /// Returns the target of a symlink.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the inode is no symlink.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.run(Op::Readlink, || {
            let inode = self.inode_of(ino)?;
            if inode.kind != FileKind::Symlink {
                return Err(Error::new(ErrorKind::Invalid, "not a symlink"));
            }
            let target = self.target(&inode.meta())?;
            self.touch_atime(&inode);
            Ok(target)
        })
    }

    /// Returns the target from a symlink's attributes.
    pub(crate) fn target(&self, meta: &Meta) -> Result<Vec<u8>> {
        let items = extras::read(self.dataset(), &meta.extras, self.wait)?;
        let target = items.into_iter().find(|item| item.kind == EXTRA_TARGET);
        let target = target.ok_or_else(|| Error::corrupt("symlink without a target"))?;
        Ok(target.value)
    }

    /// Returns the space usage. Freed space that is reusable three transaction groups later
    /// counts as free, because operations that need it wait for it.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed).
    pub fn statfs(&self) -> Result<FsUsage> {
        self.enter(Op::Statfs)?;
        let usage = self.pool().usage();
        let inodes = self.dataset().object_count();
        let files_free = usage.available_bytes / INODE_BYTES;
        let free_bytes = usage.free_bytes + usage.deferred_bytes;
        Ok(FsUsage {
            block_bytes: USAGE_BYTES as u32,
            // Without addresses that are neither: an object store takes each of them once, and
            // what `df` shows as used must be what is allocated.
            blocks: (usage.allocated_bytes + free_bytes) / USAGE_BYTES,
            free: free_bytes / USAGE_BYTES,
            available: usage.available_bytes / USAGE_BYTES,
            files: inodes + files_free,
            files_free,
            name_max: NAME_MAX as u32,
        })
    }

    /// Whether a read may have to update the access time.
    pub(crate) fn atime_is_due(&self, inode: &Inode) -> bool {
        let mode = self.atime_of(inode.kind);
        let kept = mode != AtimeMode::Off && self.check_writable().is_ok();
        kept && (mode == AtimeMode::Strict || inode.atime_may_need_update(self.now()))
    }

    /// As [`touch_atime`](Self::touch_atime), on a worker thread. For threads that may hold a
    /// transaction: a thread that waits for a device runs callbacks of other requests meanwhile. If
    /// the queue is full, the time is not updated.
    pub(crate) fn touch_atime_later(&self, ino: Ino) {
        let fs = self.blocking();
        let touch = move |_| {
            if let Ok(inode) = fs.inode_of(ino) {
                fs.touch_atime(&inode);
            }
        };
        // A job that comes back is dropped.
        let _ = self.shared.workers.push(Box::new(touch), false);
    }

    /// Updates the access time after a read, if necessary. Never blocks: if it would, the time is
    /// not updated. The thread holds no transaction.
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        if !self.atime_is_due(inode) {
            return;
        }
        let now = self.now();
        let fresh_until = |meta: &Meta| {
            let fresh = meta.atime > meta.mtime && meta.atime > meta.ctime;
            if fresh { meta.atime.seconds.saturating_add(DAY_SECONDS) } else { 0 }
        };
        let until = fresh_until(&inode.state().meta);
        if until > now.seconds && self.atime_of(inode.kind) == AtimeMode::Relative {
            inode.set_atime_fresh_until(until);
            return;
        }
        let note = || -> Result<()> {
            let tx = self.begin_with(Wait::Refused)?;
            let Some(_lock) = inode.try_lock() else { return Ok(()) };
            self.touch(&tx, inode, |meta| meta.atime = now)
        };
        if note().is_ok() {
            inode.set_atime_fresh_until(fresh_until(&inode.state().meta));
        }
    }
}

fn changes_nothing(set: &SetAttr) -> bool {
    let SetAttr { mode, uid, gid, size, atime, mtime, ctime: _ } = set;
    let (owner, times) = (uid.is_some() || gid.is_some(), atime.is_some() || mtime.is_some());
    !owner && !times && mode.is_none() && size.is_none()
}

/// `dropped` is `Some` if set-id bits must be cleared, and says whether the caller is a member of
/// the group.
fn set_meta(meta: &mut Meta, set: &SetAttr, dropped: Option<bool>, now: Time) {
    let time = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if let Some(mode) = set.mode {
        meta.mode = mode & MODE_BITS;
    } else if let Some(member) = dropped.filter(|_| meta.kind != FileKind::Directory) {
        meta.clear_set_id(member);
    }
    meta.uid = set.uid.unwrap_or(meta.uid);
    meta.gid = set.gid.unwrap_or(meta.gid);
    meta.atime = set.atime.map_or(meta.atime, time);
    let mtime = set.mtime.map(time).or(set.size.map(|_| now));
    meta.mtime = mtime.unwrap_or(meta.mtime);
    meta.ctime = set.ctime.unwrap_or(now);
}
