//! Notifications from the server to the kernel.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::INodeNo;

/// Sends notifications over the session's connection. Clones share the connection.
#[derive(Clone)]
pub(crate) struct KernelNotifier(fuser::Notifier);

impl KernelNotifier {
    pub(super) fn new(notifier: fuser::Notifier) -> Self {
        Self(notifier)
    }

    /// Drops a dentry from the kernel's cache, and its inode if nothing else uses it. Returns false
    /// if the connection is gone.
    ///
    /// May block until the kernel has received replies to other requests: never call this from a
    /// method of [`Server`](super::Server).
    pub(crate) fn invalidate_entry(&self, parent: u64, name: &[u8]) -> bool {
        match self.0.inval_entry(INodeNo(parent), OsStr::from_bytes(name)) {
            Ok(()) => true,
            // Other errors mean that the entry is in use or locked by a request in progress.
            Err(error) => {
                !matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::EBADF))
            }
        }
    }

    /// Drops the inode's attributes from the kernel's cache. Never blocks.
    pub(crate) fn invalidate_attributes(&self, ino: u64) {
        // A negative offset leaves the pages alone. An error means that the kernel does not know
        // the inode.
        let _ = self.0.inval_inode(INodeNo(ino), -1, 0);
    }

    /// Writes back the inode's dirty pages and waits for that.
    ///
    /// Blocks until the kernel has received the replies to the writes: never call this from a
    /// method of [`Server`](super::Server).
    pub(crate) fn flush_pages(&self, ino: u64) {
        // The kernel writes back dirty pages before it invalidates them. The next fsync reports a
        // failed write.
        let _ = self.0.inval_inode(INodeNo(ino), 0, 0);
    }
}
