//! Inode attributes in memory, and their encoding.
//!
//! Decoding checks all values from disk before other code sees them.

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::format::{
    DirentPhys, EXTRAS_MAX, INLINE_MAX, InodePhys, RESERVED_BYTES, TimePhys, VERSION,
};
use crate::types::{FileKind, Time};

/// Set-user-id bit.
pub(crate) const SUID: u16 = 0o4000;
/// Set-group-id bit.
pub(crate) const SGID: u16 = 0o2000;
/// Execute bit of the group.
const GROUP_EXEC: u16 = 0o010;
/// All permission bits.
pub(crate) const MODE_BITS: u16 = 0o7777;

/// Largest inode number. Object numbers of a pool are far smaller. [`Ino`](crate::Ino) values are
/// slightly larger.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// Location of an inode's extras.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extras {
    /// In memory, behind the inode.
    Inline(Box<[u8]>),
    /// In a separate object.
    Spilled { object: u64, bytes: u32 },
}

impl Default for Extras {
    fn default() -> Self {
        Self::Inline(Box::default())
    }
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) kind: FileKind,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u32,
    pub(crate) parent: u64,
    pub(crate) orphans: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    /// For features that this code does not know. Kept as read.
    pub(crate) reserved: [u8; RESERVED_BYTES],
    pub(crate) extras: Extras,
}

impl Meta {
    /// Attributes of a new inode: one link, or an empty directory.
    pub(crate) fn new(kind: FileKind, mode: u16, (uid, gid): (u32, u32), now: Time) -> Self {
        Self {
            kind,
            mode: mode & MODE_BITS,
            uid,
            gid,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            rdev: 0,
            parent: 0,
            orphans: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            reserved: [0; RESERVED_BYTES],
            extras: Extras::default(),
        }
    }

    /// Encodes the attributes of the object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (spill, extras_bytes) = match &self.extras {
            Extras::Inline(bytes) => (0, bytes.len() as u32),
            Extras::Spilled { object, bytes } => (*object, *bytes),
        };
        let phys = InodePhys {
            version: VERSION,
            kind: self.kind as u8,
            mode: self.mode.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            nlink: self.nlink.into(),
            rdev: self.rdev.into(),
            extras_bytes: extras_bytes.into(),
            spill: spill.into(),
            parent: self.parent.into(),
            orphans: self.orphans.into(),
            atime: time_phys(self.atime),
            mtime: time_phys(self.mtime),
            ctime: time_phys(self.ctime),
            btime: time_phys(self.btime),
            reserved: self.reserved,
        };
        let mut bytes = phys.as_bytes().to_vec();
        if let Extras::Inline(extras) = &self.extras {
            bytes.extend_from_slice(extras);
        }
        bytes
    }

    /// Decodes the attributes of the object.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if they are invalid.
    pub(crate) fn decode(attributes: &[u8]) -> Result<Self> {
        let (phys, rest) = InodePhys::read_from_prefix(attributes)
            .map_err(|_| Error::corrupt("the object has no inode attributes"))?;
        if phys.version != VERSION {
            let text = format!("unknown inode version {}", phys.version);
            return Err(Error::corrupt(text));
        }
        let kind = FileKind::from_raw(phys.kind)
            .ok_or_else(|| Error::corrupt(format!("{} is not a file type", phys.kind)))?;
        let extras_bytes = phys.extras_bytes.get() as usize;
        let extras = match phys.spill.get() {
            0 if extras_bytes == rest.len() && extras_bytes <= INLINE_MAX => {
                Extras::Inline(rest.into())
            }
            object
                if object != 0 && rest.is_empty() && (1..=EXTRAS_MAX).contains(&extras_bytes) =>
            {
                Extras::Spilled { object, bytes: extras_bytes as u32 }
            }
            _ => return Err(Error::corrupt("the extras have another length than recorded")),
        };
        if phys.mode.get() & !MODE_BITS != 0 {
            return Err(Error::corrupt(format!("invalid mode {:o}", phys.mode.get())));
        }
        if phys.parent.get() > NUMBER_MAX {
            return Err(Error::corrupt("invalid parent directory"));
        }
        Ok(Self {
            kind,
            mode: phys.mode.get(),
            uid: phys.uid.get(),
            gid: phys.gid.get(),
            nlink: phys.nlink.get(),
            rdev: phys.rdev.get(),
            parent: phys.parent.get(),
            orphans: phys.orphans.get(),
            atime: time(&phys.atime)?,
            mtime: time(&phys.mtime)?,
            ctime: time(&phys.ctime)?,
            btime: time(&phys.btime)?,
            reserved: phys.reserved,
            extras,
        })
    }

    /// Clears the set-user-id and set-group-id bits. Without group execute permission, the
    /// set-group-id bit marks a file for mandatory locking; a member of the group keeps it.
    pub(crate) fn clear_set_id(&mut self, member: bool) {
        self.mode &= !SUID;
        if self.mode & GROUP_EXEC != 0 || !member {
            self.mode &= !SGID;
        }
    }

    /// Whether [`clear_set_id`](Self::clear_set_id) depends on group membership.
    pub(crate) fn has_sgid_without_exec(&self) -> bool {
        self.mode & SGID != 0 && self.mode & GROUP_EXEC == 0
    }

    /// Sets the times of a content change.
    pub(crate) fn changed(&mut self, now: Time) {
        self.mtime = now;
        self.ctime = now;
    }
}

/// The mode of a new inode. A creator outside the group loses set-group-id on a group-executable
/// file.
pub(crate) fn new_mode(mode: u16, foreign_group: bool) -> u16 {
    match foreign_group && mode & (SGID | GROUP_EXEC) == SGID | GROUP_EXEC {
        true => mode & !SGID,
        false => mode,
    }
}

fn time_phys(time: Time) -> TimePhys {
    TimePhys { seconds: time.seconds.into(), nanos: time.nanos.into() }
}

fn time(phys: &TimePhys) -> Result<Time> {
    let nanos = phys.nanos.get();
    match nanos < 1_000_000_000 {
        true => Ok(Time { seconds: phys.seconds.get(), nanos }),
        false => Err(Error::corrupt(format!("invalid timestamp with {nanos} nanoseconds"))),
    }
}

/// The value of a directory entry: inode number and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dirent {
    pub(crate) number: u64,
    pub(crate) kind: FileKind,
}

impl Dirent {
    pub(crate) fn encode(self) -> [u8; size_of::<DirentPhys>()] {
        let phys = DirentPhys { number: self.number.into(), kind: self.kind as u8 };
        zerocopy::transmute!(phys)
    }

    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt).
    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let phys = DirentPhys::read_from_bytes(value).ok();
        let dirent = phys.and_then(|phys| {
            let kind = FileKind::from_raw(phys.kind)?;
            let number = phys.number.get();
            (1..=NUMBER_MAX).contains(&number).then_some(Self { number, kind })
        });
        dirent.ok_or_else(|| Error::corrupt("invalid directory entry"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn meta() -> Meta {
        let now = Time { seconds: -5, nanos: 999_999_999 };
        let mut meta = Meta::new(FileKind::Symlink, 0o777, (7, 8), now);
        meta.extras = Extras::Inline(vec![1, 2, 3].into());
        meta
    }

    #[test]
    fn attributes_come_back_as_they_were() {
        let mut meta = meta();
        assert_eq!(Meta::decode(&meta.encode()).unwrap(), meta);
        meta.extras = Extras::Spilled { object: 9, bytes: 1000 };
        assert_eq!(Meta::decode(&meta.encode()).unwrap(), meta);
        let dirent = Dirent { number: 1 << 40, kind: FileKind::Fifo };
        assert_eq!(Dirent::decode(&dirent.encode()).unwrap(), dirent);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for number in [0, NUMBER_MAX + 1, u64::MAX - 2, u64::MAX] {
            let dirent = Dirent { number, kind: FileKind::File };
            assert_eq!(Dirent::decode(&dirent.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let meta = Meta { parent: u64::MAX - 1, ..meta() };
        assert_eq!(Meta::decode(&meta.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn damage_is_an_error_or_makes_sense(
            at in 0usize..115,
            byte in any::<u8>(),
            len in 0usize..136,
        ) {
            let mut bytes = meta().encode();
            bytes[at] = byte;
            bytes.resize(len, 7);
            match Meta::decode(&bytes) {
                Ok(meta) => prop_assert_eq!(meta.encode(), bytes),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
            }
        }

        #[test]
        fn any_bytes_are_an_error_or_an_inode(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(meta) = Meta::decode(&bytes) {
                prop_assert_eq!(meta.encode(), bytes);
            }
        }
    }
}
