//! What can be chosen for a mount.

use std::num::NonZero;

/// Bytes of the largest write that the kernel may send in one request.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;
/// More threads than this do not help: most of them never wait.
const MAX_THREADS: usize = 32;

/// What can be chosen for a mount. [`Default`] is right for most: a thread a processor, no kernel cache, writable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Threads that take requests from the kernel; each has a queue of its own there. At least 1.
    pub threads: usize,
    /// Lets the kernel keep content of files, and write it back later. Without it, every read and write comes here (`mmap` still works), and
    /// memory is used once, by the pool's cache.
    pub kernel_cache: bool,
    /// What the kernel is to do with the mount.
    pub flags: MountFlags,
    /// Other users than the one who mounts may come in. Root has it by default; others need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Honours set-user-id bits and device nodes, as a system's own file system does. Root's default; nobody else is permitted to.
    pub trusted: bool,
    /// What the table of mounts shows as source: `pool/dataset`.
    pub fs_name: String,
    /// Bytes of the largest write in one request, and of the largest read: 4 KiB to 1 MiB.
    pub max_write_bytes: u32,
    /// Bytes the kernel may read ahead in files, with [`kernel_cache`](Self::kernel_cache). More than the kernel's own 128 KiB takes effect for root only.
    pub read_ahead_bytes: u32,
    /// Requests of the background (reading ahead, writing back, asynchronous direct I/O) that the kernel lets wait at a time.
    pub max_background: u16,
}

/// Flags of a mount that the kernel honours, or shows in the table of mounts. They can be changed while it
/// is mounted: see [`Mount::remount`](crate::Mount::remount).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountFlags {
    /// Refuses changes in the kernel already.
    pub read_only: bool,
    /// Ignores set-user-id and set-group-id bits and file capabilities.
    pub no_suid: bool,
    /// Refuses to open device nodes.
    pub no_dev: bool,
    /// Refuses to execute files.
    pub no_exec: bool,
    /// Shown in the table of mounts. Times of access are kept by the file system, whose option this is.
    pub atime: Atime,
    /// The same for times of access of directories.
    pub no_dir_atime: bool,
    /// Shown in the table of mounts. The file system always writes times that only reading changed later.
    pub lazy_time: bool,
}

impl MountFlags {
    /// Those that the table of mounts shows so.
    pub(crate) fn shown_as(text: &str) -> Self {
        let has = |name: &str| text.split(',').any(|word| word == name);
        Self {
            read_only: has("ro"),
            no_suid: has("nosuid"),
            no_dev: has("nodev"),
            no_exec: has("noexec"),
            atime: match (has("noatime"), has("relatime")) {
                (true, _) => Atime::Off,
                (_, true) => Atime::Relative,
                (false, false) => Atime::Strict,
            },
            no_dir_atime: has("nodiratime"),
            // Shown with the file system, not with the mount.
            lazy_time: false,
        }
    }
}

/// When reading changes times of access, as the table of mounts shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`.
    #[default]
    Relative,
    /// `strictatime`, which the table does not name.
    Strict,
    /// `noatime`.
    Off,
}

impl Default for MountOptions {
    fn default() -> Self {
        let root = nix::unistd::geteuid().is_root();
        let threads = std::thread::available_parallelism().map_or(2, NonZero::get);
        Self {
            threads: threads.clamp(2, MAX_THREADS),
            kernel_cache: false,
            flags: MountFlags::default(),
            allow_other: root,
            trusted: root,
            fs_name: "forebay".to_owned(),
            max_write_bytes: MAX_WRITE_BYTES,
            read_ahead_bytes: 1 << 20,
            max_background: 512,
        }
    }
}

impl MountOptions {
    /// The same, with every number within its bounds.
    pub(crate) fn clamped(&self) -> Self {
        let mut options = self.clone();
        options.threads = self.threads.clamp(1, 256);
        options.max_write_bytes = self.max_write_bytes.clamp(4096, MAX_WRITE_BYTES);
        options.read_ahead_bytes = self.read_ahead_bytes.clamp(4096, 16 << 20);
        options.max_background = self.max_background.max(1);
        options
    }
}
