//! Opening files and block devices by path, with their locks, and who this host is.
//!
//! A device's lock ([`FileLock`]) holds between processes of this host only. Against other hosts the label says who has
//! the pool.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, FileLock, OpenError, OpenOptions};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, ErrorKind, Result};
use crate::format::label::MIN_DEVICE_BYTES;

/// Locks that are held until it is dropped.
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
    /// Lets go of `lock`, any lock of the caller's, when the device's own lock is let go: when the pool is closed.
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
    /// A device that nobody else can have.
    fn from(device: Arc<dyn Device>) -> Self {
        Self { device, lock: None }
    }
}

/// Opens the file or block device at `path`, locked: with `read_only`, beside others that read.
///
/// # Errors
/// [`ErrorKind::InUse`] if another process has it, [`ErrorKind::NotFound`] if nothing is there,
/// [`ErrorKind::Invalid`] for what cannot be a device, [`ErrorKind::Device`] for the rest.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<Opened> {
    let options = OpenOptions { min_bytes: MIN_DEVICE_BYTES, ..options.clone() };
    let device = FileDevice::open(path, &options).map_err(refused)?;
    // The pool lets go of it when it is exported, even if somebody still has the device.
    let lock = Some(Locks { _file: device.take_lock(), kept: Vec::new() });
    Ok(Opened { device: Arc::new(device), lock })
}

/// Why opening was refused.
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

/// Who a host is, as labels say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostId {
    /// Names it; 0 if nobody knows.
    pub id: u64,
    /// For people.
    pub name: String,
}

impl HostId {
    /// This host, by `/etc/machine-id` and the kernel's host name.
    pub fn of_this_host() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let name = text("/proc/sys/kernel/hostname");
        let machine = text("/etc/machine-id");
        // Without a machine's name for itself, the one that people gave it.
        let named = if machine.is_empty() { &name } else { &machine };
        let id = if named.is_empty() { 0 } else { xxh3_64(named.as_bytes()).max(1) };
        Self { id, name }
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:#x})", self.name, self.id)
    }
}
