//! Options of a mount.

use std::num::NonZero;

/// Largest write request in bytes.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Largest default number of threads. More do not help, because most never block.
const MAX_THREADS: usize = 32;

/// Options of a mount. The [`Default`] has one thread per processor, no kernel cache, and write
/// access.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Number of threads that receive requests, at least 1. Each has its own queue in the kernel.
    pub threads: usize,
    /// Lets the kernel cache file content and write it back later. Without it, every read and write
    /// is sent to the server (`mmap` still works), and content uses memory once, in the pool's
    /// cache. Before Linux 6.6 the kernel caches content in any case, so that shared mappings work;
    /// writes are sent to the server at once.
    pub kernel_cache: bool,
    /// Mount flags.
    pub flags: MountFlags,
    /// Allows access by other users. Default for root; others need `user_allow_other` in
    /// `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Honours set-user-id bits and device nodes. Default for root, and permitted to root only.
    pub trusted: bool,
    /// Source shown in the mount table: `pool/dataset`.
    pub fs_name: String,
    /// Largest read or write request in bytes, from 4 KiB to 1 MiB.
    pub max_write_bytes: u32,
    /// Largest read-ahead of the kernel in bytes, with [`kernel_cache`](Self::kernel_cache). Only
    /// root can raise it above the kernel's default of 128 KiB.
    pub read_ahead_bytes: u32,
    /// Largest number of background requests (read-ahead, write-back, asynchronous direct I/O) in
    /// flight.
    pub max_background: u16,
    /// Largest total in bytes of the data of writes that wait for a worker thread, at least
    /// [`max_write_bytes`](Self::max_write_bytes). Beyond it, a write waits on the thread that
    /// received it.
    pub max_waiting_bytes: usize,
    /// The same, for writes that wait until the pool is not suspended any more, at least
    /// [`max_waiting_bytes`](Self::max_waiting_bytes). Beyond it, reads may wait too.
    pub max_suspended_bytes: usize,
    /// Features of the kernel to leave unused, as bits of the flags of `FUSE_INIT`. The mount then
    /// behaves as on a kernel without them.
    pub ignored_features: u64,
}

/// Mount flags. [`Mount::remount`](crate::Mount::remount) changes them on a live mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountFlags {
    /// Refuses changes in the kernel.
    pub read_only: bool,
    /// Ignores set-user-id and set-group-id bits and file capabilities.
    pub no_suid: bool,
    /// Refuses to open device nodes.
    pub no_dev: bool,
    /// Refuses to execute files.
    pub no_exec: bool,
    /// Shown in the mount table. The file system has its own option for the actual behaviour.
    pub atime: Atime,
    /// Shown in the mount table: directories have no access times.
    pub no_dir_atime: bool,
    /// Shown in the mount table. The file system always delays changes of times by reads.
    pub lazy_time: bool,
}

impl MountFlags {
    /// Parses the options of a mount in the mount table.
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
            // An option of the file system, not of the mount.
            lazy_time: false,
        }
    }
}

/// When reads update access times, as the mount table shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`.
    #[default]
    Relative,
    /// `strictatime`, shown as the absence of the others.
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
            max_waiting_bytes: 16 * MAX_WRITE_BYTES as usize,
            max_suspended_bytes: 256 * MAX_WRITE_BYTES as usize,
            ignored_features: 0,
        }
    }
}

impl MountOptions {
    /// Returns the options with all numbers in range.
    pub(crate) fn clamped(&self) -> Self {
        let mut options = self.clone();
        options.threads = self.threads.clamp(1, 256);
        options.max_write_bytes = self.max_write_bytes.clamp(4096, MAX_WRITE_BYTES);
        options.read_ahead_bytes = self.read_ahead_bytes.clamp(4096, 16 << 20);
        options.max_background = self.max_background.max(1);
        options.max_waiting_bytes = self.max_waiting_bytes.max(options.max_write_bytes as usize);
        options
    }
}
