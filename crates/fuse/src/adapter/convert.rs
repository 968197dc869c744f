//! Conversions between the types of the file system and of the transport.

use forebay_fs::{
    Attr, Caller, FallocateMode, FileKind, FsUsage, SetAttr, SetTime, Time, XattrMode,
};

use crate::transport;
use crate::transport::{Attributes, Kind, SetAttributes, Usage};

pub(super) fn caller(caller: transport::Caller) -> Caller {
    Caller { uid: caller.uid, gid: caller.gid, pid: caller.pid }
}

pub(crate) fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::File => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
        FileKind::CharDevice => Kind::CharDevice,
        FileKind::BlockDevice => Kind::BlockDevice,
    }
}

pub(super) fn file_kind(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
        Kind::CharDevice => FileKind::CharDevice,
        Kind::BlockDevice => FileKind::BlockDevice,
    }
}

fn time(time: Time) -> transport::Time {
    transport::Time { seconds: time.seconds, nanos: time.nanos }
}

fn to_fs_time(time: transport::Time) -> Time {
    Time { seconds: time.seconds, nanos: time.nanos }
}

pub(crate) fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        ino: attr.ino.0,
        kind: kind(attr.kind),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        valid: match attr.blocks_estimated {
            true => transport::VALID_ESTIMATE,
            false => transport::VALID,
        },
        block_bytes: attr.block_bytes,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        generation: attr.generation,
    }
}

pub(super) fn set(set: &SetAttributes) -> SetAttr {
    let set_time = |time| match time {
        transport::SetTime::Now => SetTime::Now,
        transport::SetTime::At(time) => SetTime::At(to_fs_time(time)),
    };
    SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(set_time),
        mtime: set.mtime.map(set_time),
        ctime: set.ctime.map(to_fs_time),
    }
}

pub(crate) fn usage(usage: &FsUsage) -> Usage {
    Usage {
        block_bytes: usage.block_bytes,
        blocks: usage.blocks,
        free: usage.free,
        available: usage.available,
        files: usage.files,
        files_free: usage.files_free,
        name_max: usage.name_max,
    }
}

/// Returns `None` for unsupported modes.
pub(super) fn fallocate(mode: i32) -> Option<FallocateMode> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(FallocateMode::Allocate { keep_size }),
        // The system call requires both flags together.
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(FallocateMode::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Some(FallocateMode::Zero { keep_size }),
        _ => None,
    }
}

/// Returns `None` for invalid flags.
pub(super) fn xattr(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Either),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_types_convert_in_both_directions() {
        for one in FileKind::ALL {
            assert_eq!(file_kind(kind(one)), one);
        }
    }

    #[test]
    fn modes_of_fallocate_are_those_of_the_system() {
        let (keep, punch) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
        assert_eq!(fallocate(0), Some(FallocateMode::Allocate { keep_size: false }));
        assert_eq!(fallocate(keep | punch), Some(FallocateMode::Punch));
        assert_eq!(fallocate(punch), None);
        assert_eq!(fallocate(libc::FALLOC_FL_COLLAPSE_RANGE), None);
        let zero = fallocate(libc::FALLOC_FL_ZERO_RANGE | keep);
        assert_eq!(zero, Some(FallocateMode::Zero { keep_size: true }));
        assert_eq!(xattr(3), None);
    }
}
