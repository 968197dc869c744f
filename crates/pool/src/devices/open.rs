//! Opening files and block devices by path, with a lock against other processes, and who this host
//! is.
//!
//! The lock is the kernel's (`flock`), on a descriptor of its own: it ends with the process,
//! however that ends, and holds between processes of this host only. Against other hosts the label
//! says who has the pool.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, OpenError, OpenOptions};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, ErrorKind, Result};
use crate::format::label::MIN_DEVICE_BYTES;

/// A lock on a file, held until it is dropped.
#[derive(Debug)]
pub(crate) struct FileLock {
    _fds: Vec<OwnedFd>,
}

impl FileLock {
    /// Locks what is at `path`: for this process alone, or, `shared`, with others that read.
    fn take(path: &Path, shared: bool) -> Result<Self> {
        let failed = |doing: &str, errno: Errno| {
            let text = format!("{}: cannot {doing} it: {errno}", path.display());
            let kind = match errno {
                Errno::NOENT => ErrorKind::NotFound,
                _ => ErrorKind::Device,
            };
            Error::new(kind, text)
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed("open", e))?;
        let operation = match shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match flock(&fd, operation) {
            Ok(()) => Ok(Self { _fds: vec![fd] }),
            Err(Errno::WOULDBLOCK) => {
                let text = format!(
                    "{}: another process has it open; end that one, or have it export the pool",
                    path.display()
                );
                Err(Error::new(ErrorKind::InUse, text))
            }
            Err(errno) => Err(failed("lock", errno)),
        }
    }
}

/// A device that was opened for a pool.
pub struct Opened {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) lock: Option<FileLock>,
}

impl Opened {
    /// Lets go of `lock`, any lock of the caller's, when the device's own lock is let go: when the pool is closed.
    #[must_use]
    pub fn keep(mut self, lock: OwnedFd) -> Self {
        self.lock.get_or_insert_with(|| FileLock { _fds: Vec::new() })._fds.push(lock);
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
    // What is not there yet is made first, so that there is something to lock.
    let made = match options.create_bytes {
        Some(_) if !path.exists() => Some(FileDevice::open(path, &options).map_err(refused)?),
        _ => None,
    };
    let lock = Some(FileLock::take(path, options.read_only)?);
    let device = match made {
        Some(device) => device,
        None => FileDevice::open(path, &options).map_err(refused)?,
    };
    Ok(Opened { device: Arc::new(device), lock })
}

/// Why opening was refused.
pub(crate) fn refused(error: OpenError) -> Error {
    let kind = match &error {
        OpenError::Missing { .. } => ErrorKind::NotFound,
        OpenError::Busy { .. } => ErrorKind::InUse,
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
