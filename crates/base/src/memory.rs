//! What this process may use of the machine, and what it uses: memory and processors.
//!
//! The limits are asked of the system at each call, since they may change under a running
//! process (a control group that is resized). Reads a few small files: for start-up and
//! occasional checks.
//!
//! # What it does not do
//!
//! It does not follow pressure (`memory.pressure`, `memory.high`), and does not subtract what
//! other processes of the machine or the group use.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The bytes of memory that this process may use: the machine's, or less if a control group
/// (version 1 or 2) that it is in, at whatever height, has a lower hard limit.
///
/// What cannot be read limits nothing: where `/proc` or the control groups are hidden, it is
/// the machine's memory.
pub fn limit_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // On 64 bits the fields are `u64` already; on 32 bits they are not.
    #[allow(clippy::useless_conversion)]
    let machine = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    group_limit(Path::new("/")).map_or(machine, |group| group.min(machine))
}

/// Asks the C allocator to give the free memory that it keeps back to the system, where it can
/// (glibc). Takes a while in a process with much of it.
pub fn return_free_memory() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `malloc_trim` may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the C allocator give large allocations (1 MiB and more) back to the system whenever they are freed, where it can (glibc).
/// By default it raises that size with each one that is freed, up to 32 MiB, keeps the next ones in the heaps of its threads, and
/// clears all of it where zeros are asked for: buffers that are large and hardly used become memory that is. To be
/// called when a program begins.
pub fn return_large_allocations() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `mallopt` may be called at any time; it takes numbers only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// The bytes of memory that this process has in RAM, shared pages included, or nothing if
/// `/proc` cannot be read. The kernel gathers it from per-processor counts: it may be off by
/// some dozens of pages a processor.
pub fn rss_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    // Pages: total, resident, and others.
    let resident: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(resident * crate::vm::PageSize::system().bytes() as u64)
}

/// The processors that this process may use at once, at least 1: the machine's, or less by
/// affinity or by the quota of a control group.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get())
}

/// The two ways in which the kernel shows control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// A tree a controller.
    One,
    /// One tree.
    Two,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }
}

/// A mounted tree of control groups that can limit memory.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    version: Version,
    /// The group that is mounted.
    group: &'a str,
    /// Where it is mounted.
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// Reads a line of `/proc/self/mountinfo` (see proc(5)); nothing if it is no such tree.
    /// Escapes in paths are not undone: control groups are not mounted under odd names.
    fn parse(line: &'a str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        let mut place = place.split(' ').skip(3);
        Some(Self { version, group: place.next()?, point: place.next()? })
    }

    /// The directory of `group`, or of the mounted group if `group` is not below it (as seen
    /// from inside a namespace, say).
    fn directory(&self, root: &Path, group: &str) -> PathBuf {
        let point = root.join(self.point.trim_start_matches('/'));
        match Path::new(group).strip_prefix(self.group) {
            Ok(below) if below.components().all(|c| matches!(c, Component::Normal(_))) => {
                point.join(below)
            }
            _ => point,
        }
    }
}

/// The group of the process in trees of `version`: a line of `/proc/self/cgroup` reads
/// `number:controllers:group`, with number 0 and no controllers for version 2.
fn group_in(groups: &str, version: Version) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let of_version = match version {
            Version::Two => number == "0" && controllers.is_empty(),
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
        };
        of_version.then_some(group)
    })
}

/// The lowest limit of the groups that the process is in, if any can be read. `root` is where
/// the system's files are.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let limit_of = |mount: Mount<'_>| {
        let group = group_in(&groups, mount.version)?;
        let point = mount.directory(root, mount.group);
        let own = mount.directory(root, group);
        // A limit holds for all groups below: look at every height up to the mount.
        own.ancestors()
            .take_while(|directory| directory.starts_with(&point))
            .filter_map(|directory| read_limit(&directory.join(mount.version.limit_file())))
            .min()
    };
    mounts.lines().filter_map(Mount::parse).filter_map(limit_of).min()
}

/// The number in a limit's file; nothing if there is no file, or it says `max`.
fn read_limit(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    u64::from_str(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
31 22 0:27 /box /sys/fs/v1/cpu rw shared:5 - cgroup cgroup rw,cpu
32 22 0:28 /box /sys/fs/v1/memory rw - cgroup cgroup rw,memory
";

    /// A system's files: the groups of the process, and limits.
    fn system(groups: &str, limits: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let files = [("proc/self/cgroup", groups), ("proc/self/mountinfo", MOUNTS)];
        for (file, text) in files.iter().chain(limits) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_lowest_limit_along_the_path_holds() {
        let limits = [
            ("sys/fs/cgroup/a/memory.max", "5000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "9000\n"),
            ("sys/fs/cgroup/other/memory.max", "1\n"),
        ];
        let limit = |groups| group_limit(system(groups, &limits).path());
        assert_eq!(limit("0::/a/b/c\n"), Some(5000));
        assert_eq!(limit("0::/a/b\n"), Some(5000));
        assert_eq!(limit("0::/\n"), None);
        assert_eq!(limit("4:cpu:/a\n"), None);
    }

    #[test]
    fn version_one_counts_from_what_is_mounted() {
        let limits = [
            ("sys/fs/v1/memory/memory.limit_in_bytes", "800\n"),
            ("sys/fs/v1/memory/x/memory.limit_in_bytes", "700\n"),
            ("sys/fs/cgroup/memory.max", "750\n"),
        ];
        let limit = |groups| group_limit(system(groups, &limits).path());
        assert_eq!(limit("5:cpu,memory:/box/x\n"), Some(700));
        assert_eq!(limit("5:memory:/elsewhere\n"), Some(800));
        assert_eq!(limit("5:memory:/box/../x\n"), Some(800));
        assert_eq!(limit("5:memory:/box\n0::/\n"), Some(750));
    }

    #[test]
    fn no_files_no_limit() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(group_limit(empty.path()), None);
    }

    #[test]
    fn lines_that_are_no_mounts_are_passed_over() {
        for line in ["", "nonsense", "1 2 3 - cgroup2", "- - -", "1 2 3:4 / /x rw - cgroup c"] {
            assert_eq!(Mount::parse(line), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_within_its_limits() {
        const GROWN: usize = 32 << 20;
        let before = rss_bytes().unwrap();
        let touched = black_box(vec![1u8; GROWN]);
        let after = rss_bytes().unwrap();
        drop(touched);
        // Other tests may free some meanwhile.
        assert!(after > before + GROWN as u64 / 2, "{before} {after}");
        assert!(after < limit_bytes());
        assert!(cpus() >= 1);
    }
}
