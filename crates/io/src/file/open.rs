//! Opening a file or block device, and its properties.
//!
//! The type is checked before opening, since the mere opening affects pipes and tapes, and again
//! afterwards.
//!
//! A block device is opened exclusively for writing. The kernel then refuses a device that is
//! mounted or part of another device, and refuses to mount it meanwhile. Files have no such
//! protection, so both are also locked ([`super::lock`]). The lock comes first, so that a second
//! user is told the holder.
//!
//! Where direct I/O is impossible, requests go through the page cache ([`Buffered`]). If only the
//! sectors are too small for direct I/O, the file is opened with `O_DSYNC`: a completed write is on
//! the medium, and nothing is written after the device was closed. It is opened once more with
//! `O_DIRECT`, for reads that must see what another host has written.
//!
//! It does not support partitions within a device.

use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{self, Advice, AtFlags, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::{DupFlags, Errno, dup3};

use super::error::OpenError;
use super::lock::FileLock;
use super::options::{Direct, Locking, OpenOptions};
use crate::device::Buffered;

/// The smallest sector, and the least alignment of buffers.
const MIN_SECTOR_BYTES: u32 = 512;
/// The largest sector: buffers are aligned to no more.
const MAX_SECTOR_BYTES: u32 = 4096;

/// The physical sector of a file: the block of most file systems, and of most disks below.
const FILE_PHYSICAL_BYTES: u32 = 4096;

/// An opened file or block device.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    /// Open for reading, and for writing unless `read_only`.
    pub(crate) fd: OwnedFd,
    /// In whole sectors.
    pub(crate) size_bytes: u64,
    pub(crate) sector_bytes: u32,
    pub(crate) physical_bytes: u32,
    pub(crate) read_only: bool,
    pub(crate) buffered: Option<Buffered>,
    /// The same file, opened for direct reads, if only the sectors are too small for direct I/O.
    pub(crate) uncached: Option<OwnedFd>,
    /// Discards cover multiples of it.
    pub(crate) discard_bytes: u32,
    pub(crate) block_device: bool,
    pub(crate) lock: Option<FileLock>,
}

impl OpenedFile {
    /// Opens the file or block device at `path`.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        check_options(path, options)?;
        let (kind, new) = find_or_create(path, options)?;
        let lock = match (new, options.locking) {
            (Some(new), _) => Some(new),
            (None, Locking::Auto) => Some(FileLock::take(path, options.read_only, kind)?),
            (None, Locking::None) => None,
        };
        match open_locked(path, options, kind, lock.as_ref()) {
            Ok(opened) => Ok(Self { lock, ..opened }),
            Err(error) => {
                lock.inspect(|lock| lock.discard_new(path));
                Err(error)
            }
        }
    }
}

/// Returns the type of the file at `path`. Creates the file if it does not exist and the options
/// say so, and returns its lock if they ask for one.
fn find_or_create(
    path: &Path,
    options: &OpenOptions,
) -> Result<(FileKind, Option<FileLock>), OpenError> {
    let errno = match stat_path(path) {
        Ok(stat) => return Ok((kind_of(path, &stat)?, None)),
        Err(errno) => errno,
    };
    if let Some(bytes) = options.create_bytes.filter(|_| errno == Errno::NOENT) {
        match create(path, bytes, options.locking) {
            // Another process was faster.
            Err(OpenError::System { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists => {}
            created => return Ok((FileKind::File, created?)),
        }
    }
    match stat_path(path) {
        Ok(stat) => Ok((kind_of(path, &stat)?, None)),
        Err(errno) => Err(refused(path, "stat", errno, FileKind::File)),
    }
}

/// Opens the file at `path`, which must be the one that is locked, if one is.
fn open_locked(
    path: &Path,
    options: &OpenOptions,
    kind: FileKind,
    lock: Option<&FileLock>,
) -> Result<OpenedFile, OpenError> {
    let mut opened = open_directly_or_not(path, options, kind)?;
    if let Some(sector_bytes) = sector_of_content(&opened, options)? {
        // The kernel opens a block device exclusively only once.
        drop(opened);
        let options = OpenOptions { sector_bytes: Some(sector_bytes), ..options.clone() };
        opened = open_directly_or_not(path, &options, kind)?;
    }
    let is_of = |lock: &FileLock| lock.is_of(&opened.fd);
    let same = lock.map_or(Ok(true), is_of).map_err(|e| system(path, "stat", e))?;
    match same {
        true => Ok(opened),
        false => Err(system(path, REPLACED, Errno::STALE)),
    }
}

/// Opens the file at `path` for direct I/O, unless the options or the medium rule it out.
fn open_directly_or_not(
    path: &Path,
    options: &OpenOptions,
    kind: FileKind,
) -> Result<OpenedFile, OpenError> {
    let buffered = match options.direct {
        Direct::Never => Buffered::Requested,
        Direct::Auto | Direct::Always => match open_as(path, options, kind, None)? {
            Opened::Done(opened) => return Ok(opened),
            Opened::NotDirect(error) if options.direct == Direct::Always => return Err(error),
            Opened::NotDirect(OpenError::SectorMismatch { needed_bytes, .. }) => {
                Buffered::SmallSectors { medium_bytes: needed_bytes }
            }
            Opened::NotDirect(_) => Buffered::Unsupported,
        },
    };
    let mut opened = match open_as(path, options, kind, Some(buffered))? {
        Opened::Done(opened) => opened,
        Opened::NotDirect(error) => return Err(error),
    };
    if let Buffered::SmallSectors { .. } = buffered {
        opened.uncached = Some(open_uncached(path, kind, &opened.fd)?);
    }
    Ok(opened)
}

/// Opens the file at `path` once more, for direct reads. It must be the same as `first`.
fn open_uncached(path: &Path, kind: FileKind, first: &OwnedFd) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::CLOEXEC | OFlags::RDONLY | OFlags::DIRECT;
    let opened = fs::open(path, flags, Mode::empty());
    let opened = opened.map_err(|errno| refused(path, "open for direct reads", errno, kind))?;
    let identity = |file| fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino, stat.st_rdev));
    let same = identity(first).and_then(|one| identity(&opened).map(|other| one == other));
    match same.map_err(|errno| system(path, "stat", errno))? {
        true => Ok(opened),
        false => Err(system(path, REPLACED, Errno::STALE)),
    }
}

/// Returns the sector size of the content, if it is smaller than that of the opened file.
fn sector_of_content(opened: &OpenedFile, options: &OpenOptions) -> Result<Option<u32>, OpenError> {
    /// A page, aligned for direct I/O.
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);
    let Some(probe) = options.sector_probe else { return Ok(None) };
    if options.sector_bytes.is_some() || opened.sector_bytes <= MIN_SECTOR_BYTES {
        return Ok(None);
    }
    let mut read = |offset| {
        let mut page = Page([0; 4096]);
        // The user of the device reports the error, if there is one.
        let bytes = rustix::io::pread(&opened.fd, &mut page.0, offset).ok()?;
        (bytes == page.0.len()).then_some(page.0)
    };
    let found = probe(opened.size_bytes, &mut read);
    let is_valid = |bytes: &u32| bytes.is_power_of_two() && *bytes >= MIN_SECTOR_BYTES;
    Ok(found.filter(is_valid).filter(|bytes| *bytes < opened.sector_bytes))
}

/// Drops clean pages of a range from the page cache.
pub(super) fn forget_cached(file: &OwnedFd, offset: u64, len: u64) -> Result<(), Errno> {
    fs::fadvise(file, offset, NonZeroU64::new(len), Advice::DontNeed)
}

/// Closes the file behind a descriptor whose owner lives on. From then on the descriptor refers to
/// an event, with which no transfer works. Without a free descriptor the file stays open until the
/// owner is dropped.
pub(crate) fn close_early(file: &OwnedFd) {
    let Ok(event) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    // SAFETY: `file` owns the descriptor, and outlives `same`, which closes nothing. `dup3` leaves
    // the descriptor open.
    let mut same = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) });
    // It fails only if another thread opens a file at this moment. Then the drop closes the file.
    let _ = dup3(event, &mut same, DupFlags::CLOEXEC);
}

/// Returns the current size of a file or block device in bytes.
pub(crate) fn size_bytes_of(file: impl AsFd) -> Result<u64, Errno> {
    let stat = fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::SIZE)?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        // This moves the file position, which is not used.
        FileType::BlockDevice => fs::seek(&file, SeekFrom::End(0)),
        _ => Ok(stat.stx_size),
    }
}

/// The failed action if the path now leads to another file.
const REPLACED: &str = "open it, because it was replaced meanwhile";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    File,
    Block,
}

enum Opened {
    Done(OpenedFile),
    // It could be opened, but not for direct I/O. The error is for the case that direct I/O is
    // required.
    NotDirect(OpenError),
}

fn check_options(path: &Path, options: &OpenOptions) -> Result<(), OpenError> {
    let wrong = |what: String| Err(OpenError::Options { path: path.to_owned(), what });
    if let Some(sector) = options.sector_bytes {
        let range = MIN_SECTOR_BYTES..=MAX_SECTOR_BYTES;
        if !sector.is_power_of_two() || !range.contains(&sector) {
            let (least, most) = (MIN_SECTOR_BYTES, MAX_SECTOR_BYTES);
            return wrong(format!(
                "invalid sector size of {sector} bytes; use a power of two from {least} to {most}"
            ));
        }
    }
    if let Some(bytes) = options.create_bytes {
        let sector = u64::from(options.sector_bytes.unwrap_or(MIN_SECTOR_BYTES));
        if options.read_only {
            return wrong(
                "`create_bytes` and `read_only` contradict each other; set only one".to_owned(),
            );
        }
        if bytes == 0 || bytes % sector != 0 {
            return wrong(format!(
                "`create_bytes` is {bytes}; use a positive multiple of {sector}"
            ));
        }
        if bytes < options.min_bytes {
            let min = options.min_bytes;
            return wrong(format!("`create_bytes` is {bytes}; use at least `min_bytes`, {min}"));
        }
    }
    Ok(())
}

fn stat_path(path: &Path) -> Result<Statx, Errno> {
    fs::statx(fs::CWD, path, AtFlags::empty(), StatxFlags::TYPE)
}

fn kind_of(path: &Path, stat: &Statx) -> Result<FileKind, OpenError> {
    let what = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => return Ok(FileKind::File),
        FileType::BlockDevice => return Ok(FileKind::Block),
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
    kind: FileKind,
    buffered: Option<Buffered>,
) -> Result<Opened, OpenError> {
    let direct = buffered.is_none();
    let not_direct = || Ok(Opened::NotDirect(OpenError::DirectRefused { path: path.to_owned() }));
    let fd = match open_plain(path, options, kind, buffered) {
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
    if kind == FileKind::Block && !options.read_only && is_read_only(&stat) {
        return Err(OpenError::ReadOnlyMedium { path: path.to_owned() });
    }
    let size_bytes = size_bytes_of(&fd).map_err(|e| system("query the size", e))?;
    let (logical_bytes, physical_bytes) = match kind {
        FileKind::File => (MIN_SECTOR_BYTES, FILE_PHYSICAL_BYTES),
        FileKind::Block => {
            let query = |doing| move |errno| system(doing, errno);
            let logical = fs::ioctl_blksszget(&fd).map_err(query("query the sector size"))?;
            let physical = fs::ioctl_blkpbszget(&fd);
            (logical, physical.map_err(query("query the physical sector size"))?)
        }
    };
    check_medium(path, logical_bytes)?;
    let mut needed_bytes = logical_bytes.max(MIN_SECTOR_BYTES);
    if direct {
        match direct_needs(&stat, kind) {
            Some(bytes) => needed_bytes = needed_bytes.max(bytes),
            None => return not_direct(),
        }
    }
    let sector_bytes = options.sector_bytes.unwrap_or(needed_bytes);
    if direct && sector_bytes < needed_bytes || sector_bytes > MAX_SECTOR_BYTES {
        let path = path.to_owned();
        let error = OpenError::SectorMismatch { path, requested_bytes: sector_bytes, needed_bytes };
        // The page cache takes sectors of any size, but the caller's buffers do not.
        return if direct { Ok(Opened::NotDirect(error)) } else { Err(error) };
    }
    let min_bytes = options.min_bytes.max(u64::from(sector_bytes));
    if size_bytes - size_bytes % u64::from(sector_bytes) < min_bytes {
        let path = path.to_owned();
        return Err(OpenError::TooSmall { path, size_bytes, sector_bytes, min_bytes });
    }
    let size_bytes = size_bytes - size_bytes % u64::from(sector_bytes);
    let (read_only, block_device) = (options.read_only, kind == FileKind::Block);
    Ok(Opened::Done(OpenedFile {
        fd,
        size_bytes,
        sector_bytes,
        physical_bytes: physical_bytes.max(sector_bytes),
        read_only,
        buffered,
        uncached: None,
        discard_bytes: logical_bytes.max(sector_bytes),
        block_device,
        lock: None,
    }))
}

/// Refuses a medium whose sectors no buffer fits.
fn check_medium(path: &Path, sector_bytes: u32) -> Result<(), OpenError> {
    let max_bytes = MAX_SECTOR_BYTES;
    match sector_bytes > max_bytes {
        true => Err(OpenError::LargeSectors { path: path.to_owned(), sector_bytes, max_bytes }),
        false => Ok(()),
    }
}

/// Returns the sector size for direct I/O, or `None` if our buffers do not allow it.
fn direct_needs(stat: &Statx, kind: FileKind) -> Option<u32> {
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        // The kernel does not report it (before Linux 6.1). For a block device its sector size is
        // right. For a file, every file system accepts a page.
        return Some(if kind == FileKind::Block { MIN_SECTOR_BYTES } else { MAX_SECTOR_BYTES });
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    if memory == 0 || offset == 0 || memory.max(offset) > MAX_SECTOR_BYTES {
        return None;
    }
    // Buffers are aligned to a page if their length is a multiple of it, else to the smallest
    // sector only.
    Some(if memory > MIN_SECTOR_BYTES { MAX_SECTOR_BYTES } else { offset })
}

fn open_plain(
    path: &Path,
    options: &OpenOptions,
    kind: FileKind,
    buffered: Option<Buffered>,
) -> Result<OwnedFd, OpenError> {
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    match buffered {
        None => flags |= OFlags::DIRECT,
        // A completed write is on the medium: the kernel writes nothing later, when another host
        // may own the medium, and a failed write fails itself.
        Some(Buffered::SmallSectors { .. }) => flags |= OFlags::DSYNC,
        Some(_) => {}
    }
    if kind == FileKind::Block && !options.read_only {
        flags |= OFlags::EXCL;
    }
    fs::open(path, flags, Mode::empty()).map_err(|errno| refused(path, "open", errno, kind))
}

/// Creates a file of `bytes` zeros and locks it, if it is to be locked. Not combined with the open
/// for use, because an `open` that is refused for its flags may leave an empty file.
fn create(path: &Path, bytes: u64, locking: Locking) -> Result<Option<FileLock>, OpenError> {
    let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let fd = fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| refused(path, "create", errno, FileKind::File))?;
    let failed = |errno| {
        // The file is new and empty. The next attempt must not use it as a device.
        let _ = fs::unlink(path);
        system(path, "set the size of the new file", errno)
    };
    match locking {
        Locking::None => fs::ftruncate(&fd, bytes).map_err(failed).map(|()| None),
        Locking::Auto => {
            let lock = FileLock::of_new(fd, path)?;
            fs::ftruncate(&lock, bytes).map_err(failed)?;
            Ok(Some(lock))
        }
    }
}

pub(super) fn refused(path: &Path, doing: &'static str, errno: Errno, kind: FileKind) -> OpenError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NOTDIR => match missing_folder(&path) {
            Some(folder) => OpenError::MissingFolder { path, folder },
            None => OpenError::Missing { path },
        },
        Errno::ISDIR => OpenError::Directory { path },
        Errno::ROFS => OpenError::ReadOnlyMedium { path },
        Errno::ACCESS | Errno::PERM => OpenError::Permission { path, source: errno.into() },
        Errno::BUSY if kind == FileKind::Block => OpenError::Busy { path },
        _ => system(&path, doing, errno),
    }
}

/// The folder of the path, if there is none.
fn missing_folder(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    (!folder.is_dir()).then(|| folder.to_owned())
}

/// Returns whether the block device was set read-only. The kernel opens it for writing all the
/// same, and refuses the writes.
fn is_read_only(stat: &Statx) -> bool {
    let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
    // Without sysfs this shows only at the first write.
    std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))
        .is_ok_and(|text| text.trim() == "1")
}

pub(super) fn system(path: &Path, doing: &'static str, errno: Errno) -> OpenError {
    OpenError::System { path: path.to_owned(), doing, source: io::Error::from(errno) }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_medium_with_sectors_above_a_page_is_refused_by_name() {
        let path = Path::new("/dev/large");
        check_medium(path, MAX_SECTOR_BYTES).unwrap();
        let error = check_medium(path, 8192).unwrap_err().to_string();
        assert!(error.contains("/dev/large: has sectors of 8192 bytes"), "{error}");
        assert!(error.contains("at most 4096"), "{error}");
    }
}
