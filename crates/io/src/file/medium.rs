//! Opening a file or block device, and learning what it is.
//!
//! The type is asked for before opening, since opening alone does things to pipes and tapes, and
//! once more of what was opened.
//!
//! A block device is opened exclusively for writing: the kernel then refuses one that is mounted,
//! or part of another device, and refuses to mount it meanwhile. Files have no such thing, so that both are
//! locked as well ([`super::lock`]): first, so that who comes second is told who has it.
//!
//! # What it does not do
//!
//! No partitions.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use super::error::OpenError;
use super::lock::FileLock;
use super::options::{Direct, Locking, OpenOptions};

/// The smallest sector, and what a buffer's memory is aligned to at least.
const MIN_SECTOR_BYTES: u32 = 512;
/// The largest sector: buffers are aligned to no more.
const MAX_SECTOR_BYTES: u32 = 4096;

/// What was opened.
#[derive(Debug)]
pub(crate) struct Medium {
    /// Open for reading, and for writing unless `read_only`.
    pub(crate) fd: OwnedFd,
    /// In whole sectors.
    pub(crate) size_bytes: u64,
    pub(crate) sector_bytes: u32,
    pub(crate) read_only: bool,
    pub(crate) direct: bool,
    pub(crate) lock: Option<FileLock>,
}

impl Medium {
    /// Opens what is at `path` as `options` say.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        check_options(path, options)?;
        let kind = match stat_path(path) {
            Ok(stat) => kind_of(path, &stat)?,
            Err(errno) => match options.create_bytes {
                Some(bytes) if errno == Errno::NOENT => create(path, bytes)?,
                _ => return Err(refused(path, "stat", errno, Kind::File)),
            },
        };
        let lock = match options.locking {
            Locking::Auto => Some(FileLock::take(path, options.read_only, kind)?),
            Locking::None => None,
        };
        let wanted_direct = options.direct != Direct::Never;
        let mut medium = match open_as(path, options, kind, wanted_direct)? {
            Opened::Done(medium) => medium,
            Opened::NotDirect(error) if options.direct == Direct::Always => return Err(error),
            Opened::NotDirect(_) => match open_as(path, options, kind, false)? {
                Opened::Done(medium) => medium,
                Opened::NotDirect(error) => return Err(error),
            },
        };
        let is_of = |lock: &FileLock| lock.is_of(&medium.fd);
        let same = lock.as_ref().map_or(Ok(true), is_of).map_err(|e| system(path, "stat", e))?;
        if !same {
            return Err(system(path, REPLACED, Errno::STALE));
        }
        medium.lock = lock;
        Ok(medium)
    }
}

/// How many bytes a file or block device has now.
pub(crate) fn size_bytes_of(file: impl AsFd) -> Result<u64, Errno> {
    let stat = fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::SIZE)?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        // Nobody uses the position that this sets.
        FileType::BlockDevice => fs::seek(&file, SeekFrom::End(0)),
        _ => Ok(stat.stx_size),
    }
}

/// What was being done when something else was found at the path than a moment before.
const REPLACED: &str = "it was replaced while it was opened";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Block,
}

enum Opened {
    Done(Medium),
    // It would open, but not for direct I/O, and what to say if that was asked for.
    NotDirect(OpenError),
}

fn check_options(path: &Path, options: &OpenOptions) -> Result<(), OpenError> {
    let wrong = |what: String| Err(OpenError::Options { path: path.to_owned(), what });
    if let Some(sector) = options.sector_bytes {
        let range = MIN_SECTOR_BYTES..=MAX_SECTOR_BYTES;
        if !sector.is_power_of_two() || !range.contains(&sector) {
            let (least, most) = (MIN_SECTOR_BYTES, MAX_SECTOR_BYTES);
            return wrong(format!(
                "a sector of {sector} bytes cannot be; ask for a power of two from {least} to {most}"
            ));
        }
    }
    if let Some(bytes) = options.create_bytes {
        let sector = u64::from(options.sector_bytes.unwrap_or(MIN_SECTOR_BYTES));
        if options.read_only {
            return wrong("`create_bytes` and `read_only` contradict each other".to_owned());
        }
        if bytes == 0 || bytes % sector != 0 {
            return wrong(format!("`create_bytes` is {bytes}, not a multiple of {sector}"));
        }
        if bytes < options.min_bytes {
            let min = options.min_bytes;
            return wrong(format!("`create_bytes` is {bytes}, less than `min_bytes`, {min}"));
        }
    }
    Ok(())
}

fn stat_path(path: &Path) -> Result<Statx, Errno> {
    fs::statx(fs::CWD, path, AtFlags::empty(), StatxFlags::TYPE)
}

fn kind_of(path: &Path, stat: &Statx) -> Result<Kind, OpenError> {
    let what = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => return Ok(Kind::File),
        FileType::BlockDevice => return Ok(Kind::Block),
        FileType::Directory => return Err(OpenError::Directory { path: path.to_owned() }),
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "of an unknown type",
    };
    Err(OpenError::OtherType { path: path.to_owned(), what })
}

fn open_as(
    path: &Path,
    options: &OpenOptions,
    kind: Kind,
    direct: bool,
) -> Result<Opened, OpenError> {
    let not_direct = || Ok(Opened::NotDirect(OpenError::DirectRefused { path: path.to_owned() }));
    let fd = match open_plain(path, options, kind, direct) {
        Ok(fd) => fd,
        Err(OpenError::System { source, .. })
            if direct && source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) =>
        {
            return not_direct();
        }
        Err(error) => return Err(error),
    };
    let system = |doing, errno: Errno| system(path, doing, errno);
    let wanted = StatxFlags::TYPE | StatxFlags::DIOALIGN;
    let stat = fs::statx(&fd, "", AtFlags::EMPTY_PATH, wanted).map_err(|e| system("stat", e))?;
    if kind_of(path, &stat)? != kind {
        return Err(system(REPLACED, Errno::STALE));
    }
    if kind == Kind::Block && !options.read_only && is_read_only(&stat) {
        return Err(OpenError::ReadOnlyMedium { path: path.to_owned() });
    }
    let size_bytes = size_bytes_of(&fd).map_err(|e| system("ask for the size", e))?;
    let logical_bytes = match kind {
        Kind::File => MIN_SECTOR_BYTES,
        Kind::Block => {
            fs::ioctl_blksszget(&fd).map_err(|e| system("ask for the sector size", e))?
        }
    };
    let mut needed_bytes = logical_bytes.max(MIN_SECTOR_BYTES);
    if direct {
        match direct_needs(&stat, kind) {
            Some(bytes) => needed_bytes = needed_bytes.max(bytes),
            None => return not_direct(),
        }
    }
    let sector_bytes = options.sector_bytes.unwrap_or(needed_bytes);
    if sector_bytes < needed_bytes || sector_bytes > MAX_SECTOR_BYTES {
        let path = path.to_owned();
        let error = OpenError::SectorMismatch { path, asked_bytes: sector_bytes, needed_bytes };
        // Without direct I/O a file may do.
        return if direct { Ok(Opened::NotDirect(error)) } else { Err(error) };
    }
    let size_bytes = size_bytes - size_bytes % u64::from(sector_bytes);
    let min_bytes = options.min_bytes.max(u64::from(sector_bytes));
    if size_bytes < min_bytes {
        return Err(OpenError::TooSmall { path: path.to_owned(), size_bytes, min_bytes });
    }
    let (read_only, lock) = (options.read_only, None);
    Ok(Opened::Done(Medium { fd, size_bytes, sector_bytes, read_only, direct, lock }))
}

/// The sector size that direct I/O needs, or `None` if there is none with our buffers.
fn direct_needs(stat: &Statx, kind: Kind) -> Option<u32> {
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        // The kernel does not say (before Linux 6.1). A block device's sector is right; a page is
        // what every file system takes.
        return Some(if kind == Kind::Block { MIN_SECTOR_BYTES } else { MAX_SECTOR_BYTES });
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    if memory == 0 || offset == 0 || memory.max(offset) > MAX_SECTOR_BYTES {
        return None;
    }
    // A buffer that is shorter than a page is aligned to the smallest sector only.
    Some(if memory > MIN_SECTOR_BYTES { MAX_SECTOR_BYTES } else { offset })
}

fn open_plain(
    path: &Path,
    options: &OpenOptions,
    kind: Kind,
    direct: bool,
) -> Result<OwnedFd, OpenError> {
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if direct {
        flags |= OFlags::DIRECT;
    }
    if kind == Kind::Block && !options.read_only {
        flags |= OFlags::EXCL;
    }
    fs::open(path, flags, Mode::empty()).map_err(|errno| refused(path, "open", errno, kind))
}

/// Makes a file of `bytes` zeros. Apart from opening it for use, because an `open` that is refused
/// for its flags may leave an empty file behind.
fn create(path: &Path, bytes: u64) -> Result<Kind, OpenError> {
    let flags = OFlags::CLOEXEC | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let fd = fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| refused(path, "create", errno, Kind::File))?;
    fs::ftruncate(&fd, bytes).map_err(|errno| {
        // It is ours and empty, and the next attempt must not take it for a medium.
        let _ = fs::unlink(path);
        system(path, "give the new file its size", errno)
    })?;
    Ok(Kind::File)
}

pub(super) fn refused(path: &Path, doing: &'static str, errno: Errno, kind: Kind) -> OpenError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NOTDIR => OpenError::Missing { path },
        Errno::ISDIR => OpenError::Directory { path },
        Errno::ROFS => OpenError::ReadOnlyMedium { path },
        Errno::ACCESS | Errno::PERM => OpenError::Permission { path, source: errno.into() },
        Errno::BUSY if kind == Kind::Block => OpenError::Busy { path },
        _ => system(&path, doing, errno),
    }
}

/// Whether the block device was set read-only. The kernel opens it for writing all the same, and
/// refuses the writes.
fn is_read_only(stat: &Statx) -> bool {
    let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
    // Without sysfs nobody knows before the first write.
    std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))
        .is_ok_and(|text| text.trim() == "1")
}

pub(super) fn system(path: &Path, doing: &'static str, errno: Errno) -> OpenError {
    OpenError::System { path: path.to_owned(), doing, source: io::Error::from(errno) }
}
