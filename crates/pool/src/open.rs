//! Opening files and block devices by path, with their locks, and the identity of this host.
//!
//! The lock of a device ([`FileLock`]) excludes other processes of this host only. Use by other
//! hosts is recorded in the label.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, FileLock, OpenError, OpenOptions};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, ErrorKind, Result};
use crate::format::label::MIN_DEVICE_BYTES;

/// Locks that are held until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    _file: Option<FileLock>,
    kept: Vec<OwnedFd>,
}

/// A device that was opened for a pool.
pub struct Opened {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) lock: Option<Locks>,
}

impl Opened {
    /// Keeps `lock`, any lock of the caller, until the device's own lock is released, when the pool
    /// is closed.
    #[must_use]
    pub fn keep(mut self, lock: OwnedFd) -> Self {
        self.lock.get_or_insert_default().kept.push(lock);
        self
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.device.info();
        f.debug_struct("Opened").field("info", info).field("locked", &self.lock.is_some()).finish()
    }
}

impl From<Arc<dyn Device>> for Opened {
    /// A device that nobody else can open.
    fn from(device: Arc<dyn Device>) -> Self {
        Self { device, lock: None }
    }
}

/// Opens and locks the file or block device at `path`. With `read_only`, the lock is shared with
/// other readers.
///
/// # Errors
/// [`ErrorKind::InUse`] if another process has it open, [`ErrorKind::NotFound`] if it does not
/// exist, [`ErrorKind::Invalid`] if it is not suitable as a device, [`ErrorKind::Device`]
/// otherwise.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<Opened> {
    let options = OpenOptions { min_bytes: MIN_DEVICE_BYTES, ..options.clone() };
    let device = FileDevice::open(path, &options).map_err(refused)?;
    // The pool releases the lock at export, even if the device is still referenced.
    let lock = Some(Locks { _file: device.take_lock(), kept: Vec::new() });
    Ok(Opened { device: Arc::new(device), lock })
}

/// Maps the cause of a failed open to an error of the pool.
pub(crate) fn refused(error: OpenError) -> Error {
    let kind = match &error {
        OpenError::Missing { .. } => ErrorKind::NotFound,
        OpenError::Busy { .. } | OpenError::InUse { .. } => ErrorKind::InUse,
        OpenError::ReadOnlyMedium { .. } => ErrorKind::ReadOnly,
        OpenError::System { .. } | OpenError::Permission { .. } => ErrorKind::Device,
        _ => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string()).because(error)
}

/// Identity of a host, as stored in labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostId {
    /// Identifies the host; 0 if unknown.
    pub id: u64,
    /// Name for messages.
    pub name: String,
}

impl HostId {
    /// This host, by `/etc/machine-id` and the host name of the kernel.
    pub fn of_this_host() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let name = text("/proc/sys/kernel/hostname");
        let machine = text("/etc/machine-id");
        // Without a machine id, use the host name.
        let identity = if machine.is_empty() { &name } else { &machine };
        let id = if identity.is_empty() { 0 } else { xxh3_64(identity.as_bytes()).max(1) };
        Self { id, name }
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:#x})", self.name, self.id)
    }
}
