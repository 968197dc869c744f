//! The mount table of this process's namespace, from `/proc/self/mountinfo`.
//!
//! Paths and names are unescaped (the kernel writes a space as `\040`). The kernel gives the lowest
//! free number to the next mount, as its id and as the device number of its file system.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, StatxFlags};

use super::DeviceNumber;

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// An entry of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Unique among mounts, also of one file system.
    pub(super) id: u64,
    /// Id of the mount that has its mount point.
    pub(super) parent: u64,
    /// Major and minor device number. Unique among mounted file systems.
    pub(super) device: DeviceNumber,
    /// What is mounted: a path in its file system.
    pub(super) root: PathBuf,
    pub(super) path: PathBuf,
    /// Mount options, separated by commas.
    pub(super) flags: String,
    /// File system type, such as `fuse.forebay`.
    pub(super) fs_type: String,
    pub(super) source: String,
}

/// All mounts, oldest first.
pub(super) fn entries() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read(MOUNTINFO)?))
}

/// The topmost mount at `path`.
pub(super) fn at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(entries()?.into_iter().rev().find(|entry| entry.path == path))
}

/// What identifies a mount.
pub(super) struct MountId {
    /// That of its entry. After its end, another mount may have it.
    pub(super) id: u64,
    /// No other mount ever has it. Since Linux 6.8.
    pub(super) unique: Option<u64>,
}

/// The mount that a system call on `path` reaches: the topmost one there. If another mount hides
/// the path, the one that hides it. `path` is absolute and without links.
pub(super) fn reached_at(path: &Path) -> io::Result<MountId> {
    for place in path.ancestors() {
        let mut options = OpenOptions::new();
        // With `O_PATH`, the file system of the mount is not asked.
        options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC);
        match options.open(place) {
            Ok(opened) => return id_of(&opened),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::NotFound.into())
}

/// The mount that an open file is on.
fn id_of(opened: &File) -> io::Result<MountId> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    let id = id
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "/proc names no mount of the path"));
    Ok(MountId { id: id?, unique: unique_id_of(opened) })
}

/// Does not ask the file system of the mount.
fn unique_id_of(opened: &File) -> Option<u64> {
    /// `STATX_MNT_ID_UNIQUE`.
    const UNIQUE_ID: u32 = 0x4000;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = fs::statx(opened, "", flags, StatxFlags::from_bits_retain(UNIQUE_ID)).ok()?;
    (stat.stx_mask & UNIQUE_ID != 0).then_some(stat.stx_mnt_id)
}

/// Index of the mount that contains `path`: the deepest, and of several at one path the topmost.
/// `path` is absolute and without links.
pub(super) fn containing(entries: &[MountEntry], path: &Path) -> Option<usize> {
    let holds = |(_, entry): &(usize, &MountEntry)| path.starts_with(&entry.path);
    let deepest = entries.iter().enumerate().filter(holds);
    deepest.max_by_key(|(at, entry)| (entry.path.components().count(), *at)).map(|(at, _)| at)
}

/// Skips malformed lines.
pub(super) fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = |word| PathBuf::from(OsString::from_vec(unescape(word)));
    let (root, path) = (path(fields.next()?), path(fields.next()?));
    let flags = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|word| *word != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(MountEntry { id, parent, device, root, path, flags, fs_type, source })
}

/// Decodes octal escapes.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match octal {
            Some(digits) if first == b'\\' => {
                let value =
                    digits.iter().fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                plain.push((value & 0xff) as u8);
                rest = &tail[3..];
            }
            _ => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_topmost_mount_contains_a_path() {
        let entries = parse(
            b"1 0 0:1 / / rw - ext4 x\n2 1 0:1 / /a rw - xfs x\n\
              3 2 0:1 / /a/b rw - ext4 x\n4 2 0:1 / /a rw - fuse.x x\n",
        );
        let fs_type =
            |path: &str| entries[containing(&entries, Path::new(path)).unwrap()].fs_type.as_str();
        assert_eq!(
            [fs_type("/c"), fs_type("/ab"), fs_type("/a/c"), fs_type("/a/b/c")],
            ["ext4", "ext4", "fuse.x", "ext4"]
        );
    }

    #[test]
    fn entries_are_parsed() {
        let text = b"22 28 0:21 /pro\\040c /proc rw,nosuid shared:12 - proc proc rw\n\
            90 28 0:55 / /mnt/a\\040b\\134c rw shared:4 master:7 - fuse.forebay pool/main rw,user_id=0\n\
            nonsense\n91 28 0:56 / /x rw - ext4\n";
        let entries = parse(text);
        assert_eq!(entries.len(), 2);
        let entry = &entries[1];
        assert_eq!((entry.device, entry.path.to_str()), ((0, 55), Some("/mnt/a b\\c")));
        assert_eq!((entry.id, entry.parent, entries[0].root.to_str()), (90, 28, Some("/pro c")));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_str()), ("fuse.forebay", "pool/main"));
        assert_eq!((entries[0].flags.as_str(), entry.flags.as_str()), ("rw,nosuid", "rw"));
    }

    #[test]
    fn a_path_leads_to_the_mount_in_the_table() {
        for path in ["/proc", "/proc/self/no such file", "/"] {
            let entries = entries().expect("the table of mounts");
            let found = containing(&entries, Path::new(path)).expect("a mount");
            let reached = reached_at(Path::new(path)).expect("its id");
            assert_eq!(reached.id, entries[found].id, "{path}");
        }
    }

    #[test]
    fn this_machine_has_proc() {
        assert!(
            entries().expect("the table of mounts").iter().any(|entry| entry.fs_type == "proc")
        );
    }
}
