//! Renaming.
//!
//! Only one directory at a time moves to another parent, under `fs-rename`. So the ancestors of a
//! directory do not change during the check for loops. That lock comes after the transaction and
//! before the inode locks.

use forebay_pool::Transaction;

use crate::attrs::{Dirent, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::inode_lock::InodeLocks;
use crate::inodes::InodeRef;
use crate::stats::{FsCounters, Op};
use crate::types::{FileKind, Ino, RenameMode, Time};

use super::names::{check_linked, check_nlink};
use super::{RETRIES_MAX, check_name, exists, not_found, retries_exhausted, rolled_back};

/// Largest depth of a directory. A deeper one is in a loop.
const DEPTH_MAX: usize = 1 << 20;

/// A rename, with all inodes that take part.
struct Rename<'a> {
    from: &'a Inode,
    name: &'a [u8],
    to: &'a Inode,
    new_name: &'a [u8],
    mode: RenameMode,
    source: &'a Inode,
    target: Option<&'a Inode>,
}

impl FileSystem {
    /// Renames an entry. Does nothing if both names refer to the same inode.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Exists`](ErrorKind::Exists),
    /// [`NotADirectory`](ErrorKind::NotADirectory), [`IsADirectory`](ErrorKind::IsADirectory),
    /// [`NotEmpty`](ErrorKind::NotEmpty), [`Invalid`](ErrorKind::Invalid) if a directory would move
    /// into itself, and others.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.run(Op::Rename, || self.rename_once((parent, name), (new_parent, new_name), mode))
    }

    fn rename_once(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let from = self.directory_of(parent)?;
        let to = self.directory_of(new_parent)?;
        for _ in 0..RETRIES_MAX {
            let source = self.resolve(&from, name)?.ok_or_else(not_found)?;
            let target = self.resolve(&to, new_name)?;
            let target = target.as_deref();
            let rename =
                Rename { from: &from, name, to: &to, new_name, mode, source: &source, target };
            if self.check_rename(&rename)? {
                return Ok(());
            }
            let moves = rename.moves_directory();
            if moves {
                // Loads the ancestors. The result may still change.
                self.check_loops(&rename)?;
            }
            if rename.exchanged().is_some() {
                self.warm_name(&from, name)?;
            }
            self.warm_name(&to, new_name)?;
            if target.is_none() {
                let names = to.directory(self.dataset(), self.wait)?;
                self.pace(&names)?;
            }
            [&*from, &*to, &*source].into_iter().try_for_each(|inode| self.warm(inode))?;
            if let Some(target) = target {
                self.warm_removal(target)?;
            }
            let tx = self.begin_renaming(&rename)?;
            let rename_lock = || tx.wait().lock(&self.shared.rename_mutex, "the rename lock");
            let _rename_lock = moves.then(rename_lock).transpose()?;
            let _locks = InodeLocks::of(&tx, [&from, &to, &source, target.unwrap_or(&source)])?;
            if !self.is_unchanged(&rename)? {
                self.counters().add(FsCounters::RETRIES, 0, 1);
                continue;
            }
            if self.check_rename(&rename)? {
                return Ok(());
            }
            if moves {
                self.check_loops(&rename)?;
            }
            tx.allow_wait();
            return self.rename_now(&tx, &rename);
        }
        Err(retries_exhausted())
    }

    /// Orders content before a new name: after a crash, the inode has the new name only together
    /// with the content it had at the rename. For a directory this covers the content of all files,
    /// because the files below it are not known.
    pub(super) fn order_content(&self, tx: &Transaction<'_>, inode: &Inode) {
        match inode.kind {
            FileKind::File => self.dataset().order_content(tx, inode.number),
            FileKind::Directory => self.dataset().order_all_content(tx),
            _ => {}
        }
    }

    /// Whether the names still refer to the same inodes.
    fn is_unchanged(&self, rename: &Rename<'_>) -> Result<bool> {
        check_linked(rename.from)?;
        check_linked(rename.to)?;
        let still = |parent, name, inode: Option<&Inode>| -> Result<bool> {
            let found = self.find(parent, name)?.map(|dirent| dirent.number);
            Ok(found == inode.map(|inode| inode.number))
        };
        Ok(still(rename.from, rename.name, Some(rename.source))?
            && still(rename.to, rename.new_name, rename.target)?)
    }

    /// A rename that removes an inode frees space. Any other adds at most a name.
    fn begin_renaming(&self, rename: &Rename<'_>) -> Result<Transaction<'_>> {
        match rename.target.is_some() {
            true => self.begin_freeing(),
            false => self.begin_update(),
        }
    }

    /// Checks whether the rename is allowed. Returns true if there is nothing to do.
    fn check_rename(&self, rename: &Rename<'_>) -> Result<bool> {
        let is_directory = |inode: &Inode| inode.kind == FileKind::Directory;
        match (rename.mode, rename.target) {
            (RenameMode::NoReplace, Some(_)) => return Err(exists()),
            (RenameMode::Exchange, None) => return Err(not_found()),
            (_, Some(target)) if target.number == rename.source.number => return Ok(true),
            (RenameMode::Replace, Some(target)) => {
                self.check_removable(target, is_directory(rename.source))?;
            }
            _ => {}
        }
        // The link count of a directory that receives a subdirectory must not be at its maximum.
        if rename.links_to() > 0 {
            check_nlink(rename.to)?;
        }
        if rename.links_from() > 0 {
            check_nlink(rename.from)?;
        }
        Ok(false)
    }

    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if a directory would move into itself.
    fn check_loops(&self, rename: &Rename<'_>) -> Result<()> {
        self.check_not_above(rename.source, rename.to)?;
        match (rename.mode, rename.target) {
            (RenameMode::Exchange, Some(target)) => self.check_not_above(target, rename.from),
            _ => Ok(()),
        }
    }

    /// Fails if `inode` is `below` or one of its ancestors.
    fn check_not_above(&self, inode: &Inode, below: &Inode) -> Result<()> {
        if inode.kind != FileKind::Directory {
            return Ok(());
        }
        let mut ancestor: Option<InodeRef<'_>> = None;
        for _ in 0..DEPTH_MAX {
            let at = ancestor.as_deref().unwrap_or(below);
            if at.number == inode.number {
                let text = "a directory cannot be moved into itself";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            if at.number == self.root() {
                return Ok(());
            }
            let above = at.state().meta.parent;
            ancestor = Some(self.inode(above)?);
        }
        Err(Error::corrupt("directory loop"))
    }

    fn rename_now(&self, tx: &Transaction<'_>, rename: &Rename<'_>) -> Result<()> {
        let now = self.now();
        self.order_content(tx, rename.source);
        if let Some(exchanged) = rename.exchanged() {
            self.order_content(tx, exchanged);
        }
        self.swap_names(tx, rename)?;
        let mut updates = AttrUpdates { fs: self, tx, before: Vec::new() };
        let replaced = rename.target.filter(|_| rename.mode != RenameMode::Exchange);
        let before = replaced.map(Inode::meta);
        if let Some(replaced) = replaced
            && let Err(error) = self.drop_link(tx, replaced, now)
        {
            rolled_back(self.swap_names_back(tx, rename))?;
            return Err(error);
        }
        if let Err(error) = updates.apply_all(rename, now) {
            rolled_back(updates.undo())?;
            if let (Some(replaced), Some(before)) = (replaced, before) {
                rolled_back(self.restore_link(tx, replaced, before))?;
            }
            rolled_back(self.swap_names_back(tx, rename))?;
            return Err(error);
        }
        rename.from.note_removal();
        rename.to.note_removal();
        let mut state = rename.source.state();
        state.dentry = Some((rename.to.number, rename.new_name.into()));
        Ok(())
    }

    fn swap_names(&self, tx: &Transaction<'_>, rename: &Rename<'_>) -> Result<()> {
        let from = rename.from.directory(self.dataset(), tx.wait())?;
        let to = rename.to.directory(self.dataset(), tx.wait())?;
        match rename.target {
            Some(_) => drop(to.replace(tx, rename.new_name, &value_of(rename.source))?),
            None => to.insert(tx, rename.new_name, &value_of(rename.source))?,
        }
        let taken = match (rename.mode, rename.target) {
            (RenameMode::Exchange, Some(target)) => {
                from.replace(tx, rename.name, &value_of(target)).map(|_| ())
            }
            _ => from.remove(tx, rename.name).map(|_| ()),
        };
        if let Err(error) = taken {
            let undone = match rename.target {
                Some(target) => to.replace(tx, rename.new_name, &value_of(target)),
                None => to.remove(tx, rename.new_name),
            };
            rolled_back(undone.map_err(Error::from))?;
            return Err(error.into());
        }
        Ok(())
    }

    fn swap_names_back(&self, tx: &Transaction<'_>, rename: &Rename<'_>) -> Result<()> {
        let from = rename.from.directory(self.dataset(), tx.wait())?;
        let to = rename.to.directory(self.dataset(), tx.wait())?;
        match rename.exchanged() {
            Some(_) => drop(from.replace(tx, rename.name, &value_of(rename.source))?),
            None => from.restore(tx, rename.name, &value_of(rename.source))?,
        }
        match rename.target {
            Some(target) => drop(to.replace(tx, rename.new_name, &value_of(target))?),
            None => drop(to.remove(tx, rename.new_name)?),
        }
        Ok(())
    }
}

fn value_of(inode: &Inode) -> [u8; size_of::<crate::format::DirentPhys>()] {
    Dirent { number: inode.number, kind: inode.kind }.encode()
}

impl Rename<'_> {
    fn across(&self) -> bool {
        self.from.number != self.to.number
    }

    fn exchanged(&self) -> Option<&Inode> {
        self.target.filter(|_| self.mode == RenameMode::Exchange)
    }

    /// Whether a directory gets another parent.
    fn moves_directory(&self) -> bool {
        let is = |inode: &Inode| inode.kind == FileKind::Directory;
        self.across() && (is(self.source) || self.exchanged().is_some_and(is))
    }

    /// Change of the number of subdirectories of `to`.
    fn links_to(&self) -> i32 {
        let is = |inode: &Inode| i32::from(inode.kind == FileKind::Directory);
        let comes = if self.across() { is(self.source) } else { 0 };
        let goes = match self.target {
            Some(target) if self.across() || self.exchanged().is_none() => is(target),
            _ => 0,
        };
        comes - goes
    }

    /// Change of the number of subdirectories of `from`, if it is another directory.
    fn links_from(&self) -> i32 {
        let is = |inode: &Inode| i32::from(inode.kind == FileKind::Directory);
        match self.across() {
            true => self.exchanged().map_or(0, is) - is(self.source),
            false => 0,
        }
    }
}

/// Attribute updates of a rename, with the old attributes for rollback.
struct AttrUpdates<'a> {
    fs: &'a FileSystem,
    tx: &'a Transaction<'a>,
    before: Vec<(&'a Inode, Meta)>,
}

impl<'a> AttrUpdates<'a> {
    fn apply_all(&mut self, rename: &Rename<'a>, now: Time) -> Result<()> {
        let (from, to) = (rename.from, rename.to);
        self.update(to, |meta| {
            meta.nlink = meta.nlink.saturating_add_signed(rename.links_to());
            meta.changed(now);
        })?;
        if rename.across() {
            self.update(from, |meta| {
                meta.nlink = meta.nlink.saturating_add_signed(rename.links_from());
                meta.changed(now);
            })?;
        }
        let moved = |meta: &mut Meta, to: &Inode| {
            meta.ctime = now;
            meta.parent = to.number;
        };
        self.update(rename.source, |meta| moved(meta, to))?;
        match (rename.mode, rename.target) {
            (RenameMode::Exchange, Some(target)) => self.update(target, |meta| moved(meta, from)),
            _ => Ok(()),
        }
    }

    fn update(&mut self, inode: &'a Inode, change: impl FnOnce(&mut Meta)) -> Result<()> {
        let before = inode.meta();
        self.fs.change(self.tx, inode, change)?;
        self.before.push((inode, before));
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        while let Some((inode, before)) = self.before.pop() {
            self.fs.change(self.tx, inode, |meta| *meta = before)?;
        }
        Ok(())
    }
}
