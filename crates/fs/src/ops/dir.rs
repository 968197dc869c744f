//! Listing directories.
//!
//! A *cookie* is a position in a listing: 0 before ".", 1 before "..", then the directory's own
//! cookies plus 2. Cookies stay valid while the directory changes. A listing that continues at a
//! cookie returns each entry that exists throughout exactly once.

use forebay_pool::Cookie;

use crate::attrs::Dirent;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::inodes::InodeRef;
use crate::stats::{FsCounters, Op};
use crate::types::{Attr, FileKind, Handle, Ino};

/// Entries read at once.
const BATCH: usize = 128;
/// First cookie of the directory's own entries.
const FIRST_COOKIE: u64 = 2;

/// An entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: Ino,
    /// File type.
    pub kind: FileKind,
    /// Cookie of the next entry.
    pub next: u64,
}

/// Takes an entry. Returns whether it was taken; if so, the next one follows. For entries other
/// than "." and ".." it also gets the inode number and the directory's
/// [`removals`](crate::inode::Inode::removals) before the entry was read.
type EntryCallback<'a> = &'a mut dyn FnMut(DirEntry<'_>, Option<(u64, u64)>) -> Result<bool>;

impl FileSystem {
    /// Opens a directory. It stays until the handle is released.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), [`Stale`](ErrorKind::Stale).
    pub fn opendir(&self, ino: Ino) -> Result<Handle> {
        self.run(Op::Opendir, || Ok(self.add_open(&self.directory_of(ino)?)))
    }

    /// Closes a handle, as [`release`](Self::release) does.
    pub fn releasedir(&self, handle: Handle) {
        self.release(handle);
    }

    /// Passes entries from `cookie` on to `each`, including "." and "..", until `each` returns
    /// false. Skips and counts corrupt entries; [`audit`](Self::audit) reports them.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), or a read error.
    pub fn readdir(
        &self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let _ = handle;
        self.run(Op::Readdir, || {
            let inode = self.directory_of(ino)?;
            let mut taken = false;
            let listed = self.list(&inode, cookie, &mut |entry, _| {
                let takes = each(entry);
                taken |= takes;
                Ok(takes)
            });
            // A caller that has entries continues after them.
            listed.map_err(|error| if taken { error.without_wait() } else { error })?;
            self.touch_atime(&inode);
            Ok(())
        })
    }

    /// As [`readdir`](Self::readdir), with the attributes of each inode. Each entry taken adds one
    /// to its inode's lookup count, except "." and "..", which have no attributes.
    ///
    /// # Errors
    /// As [`readdir`](Self::readdir). If an inode cannot be read, or would block, the listing ends
    /// before it. It fails only if that is the first entry.
    pub fn readdirplus(
        &self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let _ = handle;
        self.run(Op::Readdir, || self.list_with_attributes(ino, cookie, each))
    }

    fn list_with_attributes(
        &self,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
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
                // Removed meanwhile.
                Ok(None) => return Ok(true),
                // List the name anyway, so that it can be seen and repaired.
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

    /// Returns the inode of an entry that was read when the directory had this count of removals.
    fn entry_inode(
        &self,
        parent: &Inode,
        entry: &DirEntry<'_>,
        number: u64,
        removals: u64,
    ) -> Result<Option<InodeRef<'_>>> {
        let child = self.inode(number);
        // A name was removed: the number may have been reused, or the name may refer to another
        // inode.
        if parent.removals() != removals {
            drop(child);
            return self.resolve(parent, entry.name);
        }
        match child {
            Ok(child) if child.kind != entry.kind => {
                Err(Error::corrupt("the inode has another type than the directory entry"))
            }
            Ok(child) => Ok(Some(child)),
            Err(error) if error.kind() == ErrorKind::Stale => {
                Err(Error::corrupt("the inode of a directory entry does not exist"))
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
        let directory = inode.directory(self.dataset(), self.wait)?;
        let mut from = Cookie::from_raw(cookie.saturating_sub(FIRST_COOKIE));
        while !from.is_end() {
            let removals = inode.removals();
            let entries = directory.with_wait(self.wait).entries(from, BATCH)?;
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
