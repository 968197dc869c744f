//! Attributes, and figures of the whole.

use forebay_base::sync::Arc;
use forebay_pool::without_waiting;

use crate::attrs::{MODE_BITS, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::extras;
use crate::format::{EXTRA_TARGET, NAME_MAX};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::options::AtimeMode;
use crate::stats::Op;
use crate::types::{Attr, Caller, FileKind, FsUsage, Ino, SetAttr, SetTime, Time};

use super::apply;

/// Unit of the figures of [`FsUsage`].
const USAGE_BYTES: u64 = 4096;
/// What an inode takes at least, with its copy.
const INODE_BYTES: u64 = 1024;
/// A relative time of access is at most this old after a read.
const DAY_SECONDS: i64 = 24 * 60 * 60;

impl FileSystem {
    /// What is known of an inode.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale).
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.enter(Op::Getattr)?;
        let inode = self.inode_of(ino)?;
        Ok(self.attr(&inode))
    }

    /// Changes attributes, the length among them, and returns them. A large file is shortened in steps: after a crash it may have its
    /// old length, and zeros for some of what was to go.
    ///
    /// A change of owner or group takes set-user-id away from what is no directory, and set-group-id if
    /// its group may execute it. So does a change of the length by anybody but user 0 with all rights, and
    /// a change of nothing: that is what is left of a `chown` to the same owner, and of the wish that a
    /// change of content takes such rights away.
    ///
    /// # Errors
    /// [`FileTooLarge`](ErrorKind::FileTooLarge), [`IsADirectory`](ErrorKind::IsADirectory), [`NoSpace`](ErrorKind::NoSpace), …
    pub fn setattr(&self, ino: Ino, set: &SetAttr, caller: Caller) -> Result<Attr> {
        self.enter(Op::Setattr)?;
        let inode = self.inode_of(ino)?;
        if let Some(size) = set.size {
            self.prepare_resize(&inode, size)?;
        }
        self.warm(&inode)?;
        let shrinks = set.size.is_some_and(|size| size < inode.size_info().0.size);
        {
            let tx = if shrinks { self.begin_freeing()? } else { self.begin()? };
            let _lock = inode.lock()?;
            let now = self.now();
            let is_owner_change = set.uid.is_some() || set.gid.is_some();
            let is_content_change = set.size.is_some() || changes_nothing(set);
            let drops =
                is_owner_change || is_content_change && !self.keeps_set_id_of(&inode, caller);
            let member = drops && self.may_keep_sgid(&inode, caller);
            let dropped = drops.then_some(member);
            let change = || self.change(&tx, &inode, |meta| set_meta(meta, set, dropped, now));
            // The first change may say that it would wait; what follows may wait.
            match set.size {
                Some(size) => {
                    inode.file(self.dataset())?.truncate(&tx, size)?;
                    self.writeback_errors().clear(inode.number, size..u64::MAX);
                    apply(change)?;
                }
                None => change()?,
            }
        }
        Ok(self.attr(&inode))
    }

    /// Empties a file for a caller who opens it, and tells the watcher if that takes set-user-id away.
    pub(crate) fn truncate_on_open(&self, ino: Ino, caller: Caller) -> Result<()> {
        let mode = self.inode_of(ino)?.meta().mode;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        if self.setattr(ino, &set, caller)?.mode != mode {
            self.mode_changed(&*self.inode_of(ino)?);
        }
        Ok(())
    }

    /// The path in a symlink.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it is none.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.enter(Op::Readlink)?;
        let inode = self.inode_of(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::new(ErrorKind::Invalid, "not a symlink"));
        }
        let target = self.target(&inode.meta())?;
        self.touch_atime(&inode);
        Ok(target)
    }

    /// The path in the attributes of a symlink.
    pub(crate) fn target(&self, meta: &Meta) -> Result<Vec<u8>> {
        let items = extras::read(self.dataset(), &meta.extras)?;
        let target = items.into_iter().find(|item| item.kind == EXTRA_TARGET);
        let target = target.ok_or_else(|| Error::corrupt("symlink without a target"))?;
        Ok(target.value)
    }

    /// How full it is. Room that was freed and can be used again two transaction groups later counts as free: who needs it
    /// waits for it.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed).
    pub fn statfs(&self) -> Result<FsUsage> {
        self.enter(Op::Statfs)?;
        let usage = self.pool().usage();
        let inodes = self.dataset().object_count();
        let files_free = usage.available_bytes / INODE_BYTES;
        Ok(FsUsage {
            block_bytes: USAGE_BYTES as u32,
            blocks: usage.total_bytes / USAGE_BYTES,
            free: (usage.free_bytes + usage.deferred_bytes) / USAGE_BYTES,
            available: usage.available_bytes / USAGE_BYTES,
            files: inodes + files_free,
            files_free,
            name_max: NAME_MAX as u32,
        })
    }

    /// Whether reading may change the time of access.
    pub(crate) fn atime_is_due(&self, inode: &Inode) -> bool {
        let mode = self.atime_of(inode.kind);
        let kept = mode != AtimeMode::Off && self.check_writable().is_ok();
        kept && (mode == AtimeMode::Strict || inode.atime_may_need_update(self.now()))
    }

    /// As [`touch_atime`](Self::touch_atime), by a worker thread, for a thread that may have a transaction: one that waits for a device
    /// does what comes of other requests meanwhile. If there is too much to do, the time stays as it is.
    pub(crate) fn touch_atime_later(self: &Arc<Self>, ino: Ino) {
        let fs = Arc::clone(self);
        let touch = move |_| {
            if let Ok(inode) = fs.inode_of(ino) {
                fs.touch_atime(&inode);
            }
        };
        // What comes back is not done.
        let _ = self.workers.push(Box::new(touch), false);
    }

    /// Something was read: sets the time of access, if it is to be set. Never waits for anything: if that would have to wait, the time
    /// stays as it is.
    /// The thread has no transaction.
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
        let noted = without_waiting(|| -> Result<()> {
            let tx = self.begin()?;
            let Some(_lock) = inode.try_lock() else { return Ok(()) };
            self.touch(&tx, inode, |meta| meta.atime = now)
        });
        if noted.is_ok() {
            inode.set_atime_fresh_until(fresh_until(&inode.state().meta));
        }
    }
}

fn changes_nothing(set: &SetAttr) -> bool {
    let SetAttr { mode, uid, gid, size, atime, mtime, ctime: _ } = set;
    let (owner, times) = (uid.is_some() || gid.is_some(), atime.is_some() || mtime.is_some());
    !owner && !times && mode.is_none() && size.is_none()
}

/// `dropped`: set-id bits go, but for what a member of the group may keep, who the caller is or not.
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
