//! Limits and use of memory and processors of this process.
//!
//! Each call asks the system, because limits can change while the process runs (a control group
//! that is resized). A call reads a few small files, so it is for start-up and occasional checks.
//!
//! It does not follow memory pressure (`memory.pressure`, `memory.high`), and does not subtract the
//! memory of other processes of the machine or the group.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// What limits the memory of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The memory of the machine.
    pub machine: u64,
    /// The lowest hard limit of the control groups (version 1 or 2) of the process and their
    /// parents, if it is below the memory of the machine.
    pub group: Option<u64>,
}

impl MemoryLimits {
    /// The limits of this process.
    ///
    /// A limit that cannot be read is ignored. If `/proc` or the control groups are hidden, only
    /// the memory of the machine is known.
    pub fn of_this_process() -> Self {
        let machine = machine_bytes();
        Self { machine, group: group_limit(Path::new("/")).filter(|group| *group < machine) }
    }

    /// The bytes that this process may use.
    pub fn bytes(&self) -> u64 {
        self.group.unwrap_or(self.machine)
    }
}

/// The bytes of memory that this process may use; see [`MemoryLimits`].
pub fn limit_bytes() -> u64 {
    MemoryLimits::of_this_process().bytes()
}

fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // The fields are `u64` on 64-bit systems, but not on 32-bit systems.
    #[allow(clippy::useless_conversion)]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

/// Asks the C allocator to release its free memory to the system, with glibc. It takes long if
/// there is much free memory.
pub fn return_free_memory() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `malloc_trim` may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the C allocator release allocations of at least 1 MiB when they are freed, with glibc.
/// Call it when the program starts.
///
/// By default glibc raises this threshold to the size of each freed allocation, up to 32 MiB.
/// Larger allocations then come from the heaps of threads, and zeroed ones are cleared, so that
/// large and hardly used buffers become resident.
pub fn return_large_allocations() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `mallopt` may be called at any time; it takes numbers only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// The resident bytes of this process with shared pages, or `None` if `/proc` cannot be read. The
/// kernel sums counts per processor, so the error may be some dozens of pages per processor.
pub fn rss_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    // The fields are pages: total, resident, and others.
    let resident: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(resident * crate::vm::PageSize::system().bytes() as u64)
}

/// The number of processors that this process may use, at least 1. It takes affinity and the quota
/// of control groups into account.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get())
}

/// The version of a hierarchy of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    /// One hierarchy per controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

impl CgroupVersion {
    fn limit_file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }
}

/// A mounted hierarchy of control groups that can limit memory.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount<'a> {
    version: CgroupVersion,
    /// The control group at the root of the mount.
    group: &'a str,
    /// The mount point.
    point: &'a str,
}

impl<'a> CgroupMount<'a> {
    /// Parses a line of `/proc/self/mountinfo` (see proc(5)). `None` for other mounts. It does not
    /// decode escapes in paths, because mount points of control groups have none.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount_fields, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup2" => CgroupVersion::Two,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => {
                CgroupVersion::One
            }
            _ => return None,
        };
        let mut mount_fields = mount_fields.split(' ').skip(3);
        Some(Self { version, group: mount_fields.next()?, point: mount_fields.next()? })
    }

    /// The directory of `group`, or the mount point if `group` is not below the mounted group, for
    /// example in a namespace.
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

/// The memory group of the process in hierarchies of `version`. A line of `/proc/self/cgroup` is
/// `number:controllers:group`, with number 0 and no controllers for version 2.
fn group_in(groups: &str, version: CgroupVersion) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let of_version = match version {
            CgroupVersion::Two => number == "0" && controllers.is_empty(),
            CgroupVersion::One => controllers.split(',').any(|controller| controller == "memory"),
        };
        of_version.then_some(group)
    })
}

/// The lowest limit of the control groups of the process, if one can be read. `root` is the root of
/// the file system.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let limit_of = |mount: CgroupMount<'_>| {
        let group = group_in(&groups, mount.version)?;
        let point = mount.directory(root, mount.group);
        let own = mount.directory(root, group);
        // A limit applies to all groups below it, so read all parents up to the mount point.
        own.ancestors()
            .take_while(|directory| directory.starts_with(&point))
            .filter_map(|directory| read_limit(&directory.join(mount.version.limit_file())))
            .min()
    };
    mounts.lines().filter_map(CgroupMount::parse).filter_map(limit_of).min()
}

/// The number in the file of a limit. `None` if the file does not exist or contains `max`.
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

    /// Creates files of a system: the groups of the process, and limits.
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
    fn the_lowest_limit_along_the_path_applies() {
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
    fn version_one_paths_are_relative_to_the_mounted_group() {
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
    fn without_files_there_is_no_limit() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(group_limit(empty.path()), None);
    }

    #[test]
    fn other_lines_are_ignored() {
        for line in ["", "nonsense", "1 2 3 - cgroup2", "- - -", "1 2 3:4 / /x rw - cgroup c"] {
            assert_eq!(CgroupMount::parse(line), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_within_its_limits() {
        const GROWN: usize = 32 << 20;
        let before = rss_bytes().unwrap();
        let touched = black_box(vec![1u8; GROWN]);
        let after = rss_bytes().unwrap();
        drop(touched);
        // Other tests may free memory meanwhile.
        assert!(after > before + GROWN as u64 / 2, "{before} {after}");
        assert!(after < limit_bytes());
        assert!(cpus() >= 1);
    }
}
