//! Listing directories.
//!
//! A *cookie* is a place in a listing: 0 before ".", 1 before "..", then the directory's own, moved by 2. It stays good whatever
//! happens to the directory: a listing that goes on at one returns each entry that is there all the time exactly once.

use forebay_pool::Cookie;

use crate::attrs::Dirent;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{FileSystem, InodeRef};
use crate::inode::Inode;
use crate::stats::{FsCounters, Op};
use crate::types::{Attr, FileKind, Handle, Ino};

/// Entries that are taken at once.
const BATCH: usize = 128;
/// Where the directory's own cookies begin.
const FIRST_COOKIE: u64 = 2;

/// An entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Which inode.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
    /// The cookie behind it.
    pub next: u64,
}

/// Takes entries and says whether it took one; then the next comes. With the number of the inode, and the
/// [`removals`](crate::inode::Inode::removals) of the directory from before the entry was read; without for "." and "..".
type EntryCallback<'a> = &'a mut dyn FnMut(DirEntry<'_>, Option<(u64, u64)>) -> Result<bool>;

impl FileSystem {
    /// Opens a directory. It stays until the handle is released.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), [`Stale`](ErrorKind::Stale).
    pub fn opendir(&self, ino: Ino) -> Result<Handle> {
        self.enter(Op::Opendir)?;
        let inode = self.directory_of(ino)?;
        Ok(self.add_open(&inode))
    }

    /// As [`release`](Self::release).
    pub fn releasedir(&self, handle: Handle) {
        self.release(handle);
    }

    /// Gives the entries from `cookie` on to `each`, with "." and "..", until it does not take one. Entries that make no sense are left
    /// out, and counted; an [`audit`](Self::audit) names them.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), and why a part cannot be read.
    pub fn readdir(
        &self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.enter(Op::Readdir)?;
        let _ = handle;
        let inode = self.directory_of(ino)?;
        self.list(&inode, cookie, &mut |entry, _| Ok(each(entry)))?;
        self.touch_atime(&inode);
        Ok(())
    }

    /// The same, with what is known of each inode; one is added to the count of lookups of each that was taken. "." and ".." come
    /// without, and are not counted.
    ///
    /// # Errors
    /// As [`readdir`](Self::readdir). If an inode cannot be read, or that would wait, the entries before it are what is there to be had,
    /// and there is an error only if it is the first.
    pub fn readdirplus(
        &self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        self.enter(Op::Readdir)?;
        let _ = handle;
        let inode = self.directory_of(ino)?;
        let mut taken = false;
        let listed = self.list(&inode, cookie, &mut |mut entry, number| {
            let Some((number, removals)) = number else {
                let takes = each(entry, None);
                taken |= takes;
                return Ok(takes);
            };
            let child = match self.entry_inode(&inode, &entry, number, removals) {
                Ok(Some(child)) => child,
                // It went while we looked.
                Ok(None) => return Ok(true),
                // The name is there, and can at least be seen and looked into by whoever can repair it.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let takes = each(entry, None);
                    taken |= takes;
                    return Ok(takes);
                }
                Err(error) => return Err(error),
            };
            let attr = self.attr(&child);
            (entry.ino, entry.kind) = (attr.ino, attr.kind);
            let takes = each(entry, Some(&attr));
            if takes {
                taken = true;
                child.count_lookup(inode.number, entry.name);
            }
            Ok(takes)
        });
        match listed {
            Err(error) if !taken => return Err(error),
            _ => {}
        }
        self.touch_atime(&inode);
        Ok(())
    }

    /// The inode of an entry that was read when the directory had that count of removals.
    fn entry_inode(
        &self,
        parent: &Inode,
        entry: &DirEntry<'_>,
        number: u64,
        removals: u64,
    ) -> Result<Option<InodeRef<'_>>> {
        let child = self.inode(number);
        // Names went: the number may be another inode's by now, or the name lead elsewhere.
        if parent.removals() != removals {
            drop(child);
            return self.resolve(parent, entry.name);
        }
        match child {
            Ok(child) if child.kind != entry.kind => {
                Err(Error::corrupt("the inode is of another kind"))
            }
            Ok(child) => Ok(Some(child)),
            Err(error) if error.kind() == ErrorKind::Stale => {
                Err(Error::corrupt("a name leads to an inode that is not there"))
            }
            Err(error) => Err(error),
        }
    }

    fn list(&self, inode: &InodeRef<'_>, cookie: u64, each: EntryCallback<'_>) -> Result<()> {
        let parent = inode.state().meta.parent;
        let dots = [(&b"."[..], inode.number), (&b".."[..], parent)];
        for (at, (name, number)) in
            dots.into_iter().enumerate().skip(cookie.min(FIRST_COOKIE) as usize)
        {
            let entry = DirEntry {
                name,
                ino: self.ino(number),
                kind: FileKind::Directory,
                next: at as u64 + 1,
            };
            if !each(entry, None)? {
                return Ok(());
            }
        }
        let directory = inode.directory(self.dataset())?;
        let mut from = Cookie::from_raw(cookie.saturating_sub(FIRST_COOKIE));
        while !from.is_end() {
            let removals = inode.removals();
            let entries = directory.entries(from, BATCH)?;
            for entry in &entries {
                let Ok(dirent) = Dirent::decode(&entry.value) else {
                    self.counters().add(FsCounters::ENTRIES_SKIPPED, 0, 1);
                    continue;
                };
                let entry = DirEntry {
                    name: &entry.name,
                    ino: self.ino(dirent.number),
                    kind: dirent.kind,
                    next: entry.next.raw() + FIRST_COOKIE,
                };
                if !each(entry, Some((dirent.number, removals)))? {
                    return Ok(());
                }
            }
            from = match entries.last() {
                Some(last) if entries.len() == BATCH => last.next,
                _ => Cookie::END,
            };
        }
        Ok(())
    }
}
