//! Conversions between the types of `fuser` and of this crate.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use crate::transport::{Attributes, Kind, SetTime, Time};

pub(super) fn time_of(time: SystemTime) -> Time {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Time {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        // For times before 1970, `fuser` adds the nanoseconds with the wrong sign. Splitting its
        // result gives back the values that the kernel sent.
        Err(before) => {
            let before = before.duration();
            Time {
                seconds: 0i64.saturating_sub_unsigned(before.as_secs()),
                nanos: before.subsec_nanos(),
            }
        }
    }
}

pub(super) fn system_time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let seconds =
        if time.seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    seconds.and_then(|seconds| seconds.checked_add(nanos)).unwrap_or(epoch)
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(time_of(time)),
    }
}

pub(super) fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The file type in the mode of `mknod`.
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Kind::File,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFBLK => Kind::BlockDevice,
        _ => return None,
    })
}

pub(super) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

pub(super) fn attributes_of(a: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind_of(a.kind),
        perm: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.block_bytes,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that `fuser` makes of the kernel's values.
    fn as_the_crate_reads(seconds: i64, nanos: u32) -> SystemTime {
        let whole = Duration::new(seconds.unsigned_abs(), nanos);
        if seconds >= 0 { SystemTime::UNIX_EPOCH + whole } else { SystemTime::UNIX_EPOCH - whole }
    }

    #[test]
    fn times_pass_through_in_both_directions() {
        for (seconds, nanos) in
            [(0, 0), (1, 5), (-1, 0), (-1, 1), (-2, 999_999_999), (1 << 40, 7), (-(1 << 40), 7)]
        {
            let time = Time { seconds, nanos };
            assert_eq!(time_of(as_the_crate_reads(seconds, nanos)), time);
            let out = system_time(time);
            let back = match out.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(after) => {
                    i128::from(after.as_secs()) * 1_000_000_000 + i128::from(after.subsec_nanos())
                }
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            assert_eq!(back, i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
        }
        // Extreme values are clamped or kept, without a panic.
        for seconds in [i64::MIN, i64::MAX] {
            let _ = system_time(Time { seconds, nanos: 999_999_999 });
        }
    }

    #[test]
    fn kinds_of_modes() {
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(libc::S_IFDIR | 0o700), None);
    }
}
