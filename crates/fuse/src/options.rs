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
    /// Refuses changes in the kernel already.
    pub read_only: bool,
    /// Other users than the one who mounts may come in. Root has it by default; others need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Honours set-user-id bits and device nodes, as a system's own file system does. Root's default; nobody else is permitted to.
    pub trusted: bool,
    /// Shown as `noatime` in the table of mounts. That the times of accesses are not kept is an option of the file system.
    pub no_atime: bool,
    /// What the table of mounts shows as source: `pool/dataset`.
    pub fs_name: String,
    /// Bytes of the largest write in one request, and of the largest read: 4 KiB to 1 MiB.
    pub max_write_bytes: u32,
    /// Bytes the kernel may read ahead in files, with [`kernel_cache`](Self::kernel_cache). More than the kernel's own 128 KiB takes effect for root only.
    pub read_ahead_bytes: u32,
    /// Requests of the background (reading ahead, writing back, asynchronous direct I/O) that the kernel lets wait at a time.
    pub max_background: u16,
}

impl Default for MountOptions {
    fn default() -> Self {
        let root = nix::unistd::geteuid().is_root();
        let threads = std::thread::available_parallelism().map_or(2, NonZero::get);
        Self {
            threads: threads.clamp(2, MAX_THREADS),
            kernel_cache: false,
            read_only: false,
            allow_other: root,
            trusted: root,
            no_atime: false,
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
