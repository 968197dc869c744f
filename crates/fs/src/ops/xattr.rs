//! Extended attributes.

use forebay_pool::{Transaction, Wait};

use crate::error::{Error, ErrorKind, Result};
use crate::extras::{self, Item};
use crate::format::{NAME_MAX, NAMES_MAX, VALUE_MAX};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::stats::Op;
use crate::types::{Ino, XattrMode};

use super::rolled_back;

/// Prefix of names that only privileged processes see.
const TRUSTED: &[u8] = b"trusted.";
/// Prefixes of valid names.
const NAMESPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];

impl FileSystem {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`NoAttribute`](ErrorKind::NoAttribute), or [`NotSupported`](ErrorKind::NotSupported) for an
    /// unknown namespace, such as that of ACLs.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let items = self.run(Op::Getxattr, || {
            let inode = self.inode_of(ino)?;
            check_xattr_name(name)?;
            self.extras(&inode, self.wait)
        })?;
        let item = items.into_iter().find(|item| item.is_xattr() && item.name == name);
        item.map(|item| item.value).ok_or_else(no_attribute)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists) or [`NoAttribute`](ErrorKind::NoAttribute), depending on
    /// `mode`; [`TooBig`](ErrorKind::TooBig); [`NoSpace`](ErrorKind::NoSpace) if the inode has too
    /// many; those of [`getxattr`](Self::getxattr).
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.run(Op::Setxattr, || self.setxattr_once(ino, name, value, mode))
    }

    fn setxattr_once(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let inode = self.inode_of(ino)?;
        check_xattr_name(name)?;
        if value.len() > VALUE_MAX {
            let text = format!("value of {} bytes is too large: at most {VALUE_MAX}", value.len());
            return Err(Error::new(ErrorKind::TooBig, text));
        }
        self.edit(&inode, Self::begin, |items| {
            let known = items.iter_mut().find(|item| item.is_xattr() && item.name == name);
            match (known, mode) {
                (Some(_), XattrMode::Create) => {
                    return Err(Error::new(
                        ErrorKind::Exists,
                        "the extended attribute exists already",
                    ));
                }
                (None, XattrMode::Replace) => return Err(no_attribute()),
                (Some(item), _) => item.value = value.to_vec(),
                (None, _) => items.push(Item::xattr(name, value)),
            }
            match items.iter().filter(|item| item.is_xattr()).map(|item| item.name.len() + 1).sum()
            {
                0..=NAMES_MAX => Ok(()),
                _ => Err(Error::new(ErrorKind::NoSpace, "too many extended attributes")),
            }
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`getxattr`](Self::getxattr).
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.run(Op::Removexattr, || {
            let inode = self.inode_of(ino)?;
            check_xattr_name(name)?;
            self.edit(&inode, Self::begin_update, |items| {
                let before = items.len();
                items.retain(|item| !(item.is_xattr() && item.name == name));
                if items.len() == before { Err(no_attribute()) } else { Ok(()) }
            })
        })
    }

    /// Returns the names of the extended attributes that a caller may see. `sees_trusted` says
    /// whether the caller has `CAP_SYS_ADMIN`, without which `trusted.*` is hidden. It is asked at
    /// most once, and only if there is such a name.
    ///
    /// # Errors
    /// A read error.
    pub fn listxattr(&self, ino: Ino, sees_trusted: impl FnOnce() -> bool) -> Result<Vec<Vec<u8>>> {
        let items = self.run(Op::Listxattr, || self.extras(&*self.inode_of(ino)?, self.wait))?;
        let mut names: Vec<_> =
            items.into_iter().filter(Item::is_xattr).map(|item| item.name).collect();
        let is_trusted = |name: &Vec<u8>| name.starts_with(TRUSTED);
        if names.iter().any(is_trusted) && !sees_trusted() {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names)
    }

    /// Reads all extras of an inode.
    fn extras(&self, inode: &Inode, wait: Wait) -> Result<Vec<Item>> {
        for _ in 0..super::RETRIES_MAX {
            let before = inode.meta().extras;
            let items = extras::read(self.dataset(), &before, wait);
            // If another thread has replaced the spill, its object may be gone or reused.
            if items.is_ok() && matches!(before, extras::Extras::Inline(_))
                || inode.state().meta.extras == before
            {
                return items.map_err(|error| error.doing(format_args!("inode {}", inode.number)));
            }
        }
        Err(super::retries_exhausted())
    }

    fn edit(
        &self,
        inode: &Inode,
        begin: for<'a> fn(&'a Self) -> Result<Transaction<'a>>,
        mut edit: impl FnMut(&mut Vec<Item>) -> Result<()>,
    ) -> Result<()> {
        // Fail before the transaction begins.
        edit(&mut self.extras(inode, self.wait)?)?;
        self.warm(inode)?;
        let tx = begin(self)?;
        let _lock = inode.lock(&tx)?;
        let mut items = self.extras(inode, tx.wait())?;
        edit(&mut items)?;
        tx.allow_wait();
        self.store_extras(&tx, inode, &items)
    }

    /// Edits the extras within a transaction. The caller holds the inode lock.
    pub(super) fn replace_extras(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        edit: impl FnOnce(&mut Vec<Item>) -> Result<()>,
    ) -> Result<()> {
        let mut items = self.extras(inode, tx.wait())?;
        edit(&mut items)?;
        self.store_extras(tx, inode, &items)
    }

    fn store_extras(&self, tx: &Transaction<'_>, inode: &Inode, items: &[Item]) -> Result<()> {
        let before = inode.meta().extras;
        let stored = extras::store(self.dataset(), tx, extras::encode(items)?)?;
        let now = self.now();
        let changed = self.change(tx, inode, |meta| {
            meta.extras = stored.clone();
            meta.ctime = now;
        });
        inode.state().capability = None;
        match changed {
            // The change is made. A second one may be refused.
            Ok(()) => rolled_back(extras::discard(self.dataset(), tx, &before)),
            Err(error) => rolled_back(extras::discard(self.dataset(), tx, &stored)).and(Err(error)),
        }
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        let text = format!("attribute name of {} bytes: 1 to {NAME_MAX} are allowed", name.len());
        return Err(Error::new(ErrorKind::Range, text));
    }
    let known = NAMESPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len());
    match known {
        true => Ok(()),
        false => {
            let text = format!(
                "attribute name {:?} is not supported: use user.*, trusted.* or security.*",
                String::from_utf8_lossy(name)
            );
            Err(Error::new(ErrorKind::NotSupported, text))
        }
    }
}

#[cold]
fn no_attribute() -> Error {
    Error::new(ErrorKind::NoAttribute, "the extended attribute does not exist")
}
