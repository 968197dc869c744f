//! Opens files and block devices by path and locks them. Also identifies this host.
//!
//! A device lock ([`FileLock`]) works between processes of one host. The label protects against
//! other hosts.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, FileLock, Locking, OpenError, OpenOptions, SectorProbe};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::FromBytes;

use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{LABEL_BYTES, LABEL_MAGIC, LabelPhys, MIN_DEVICE_BYTES, SLOT_BYTES};

/// Locks held until drop.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Dropped first: the device is closed under its locks.
    closers: Vec<Closer>,
    file: Option<Arc<FileLock>>,
    kept: Vec<FileLock>,
}

impl Locks {
    /// Releases the lock of the file, and keeps the others.
    pub(crate) fn release_file(&mut self) {
        drop(self.file.take());
    }

    /// Whether `path` leads to the locked file. `None` if nothing is locked, or nothing is there.
    pub(crate) fn is_at(&self, path: &Path) -> Option<bool> {
        self.file.as_ref()?.is_at(path).ok()
    }

    /// Takes over what was kept with the lock of the same device, opened before.
    pub(crate) fn inherit(&mut self, before: Self) {
        self.closers.extend(before.closers);
        self.kept.extend(before.kept);
    }
}

/// Closes a device when it is dropped.
struct Closer(Arc<dyn Device>);

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closer({})", self.0.info().name)
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A device opened for a pool.
pub struct Opened {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) lock: Option<Locks>,
    /// Whether another host may have opened it too.
    pub(crate) shared: bool,
    /// Whether the owner before has ended, whatever the device says of it.
    pub(crate) owner_has_ended: bool,
    /// How to open it again; `None` if it was not opened by a path.
    pub(crate) path: Option<OpenedPath>,
}

/// How a device was opened by a path, to open it again.
#[derive(Clone)]
pub(crate) struct OpenedPath {
    path: PathBuf,
    options: OpenOptions,
}

impl OpenedPath {
    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same for another path.
    pub(crate) fn at(&self, path: &Path) -> Self {
        Self { path: path.to_owned(), options: self.options.clone() }
    }

    /// Opens and locks what is at the path now.
    ///
    /// # Errors
    /// As [`open_path`].
    pub(crate) fn open(&self) -> Result<Opened> {
        open_path(&self.path, &self.options)
    }

    /// Opens what is at the path now, to look at it while somebody may use it.
    ///
    /// # Errors
    /// As [`open_path`].
    pub(crate) fn open_to_look(&self) -> Result<Opened> {
        let (read_only, locking) = (true, Locking::None);
        open_path(&self.path, &OpenOptions { read_only, locking, ..self.options.clone() })
    }
}

impl Opened {
    fn new(device: Arc<dyn Device>, lock: Option<Locks>, shared: bool) -> Self {
        Self { device, lock, shared, owner_has_ended: false, path: None }
    }

    /// Returns the lock of the file if [`open_path`] created the file. The file stays locked while
    /// this is held. To remove it after a failure, call [`FileLock::remove_file`]: no other process
    /// can have begun to use it.
    pub fn lock_of_created(&self) -> Option<Arc<FileLock>> {
        self.lock.as_ref()?.file.as_ref().filter(|lock| lock.created()).map(Arc::clone)
    }

    /// A device that another host may have opened too: a pool on it has a heartbeat.
    pub fn shared(device: Arc<dyn Device>) -> Self {
        Self::new(device, None, true)
    }

    /// An object store whose owner before is a process that has ended, for sure: an import does not
    /// wait until that gives up its log device.
    #[must_use]
    pub fn after_ended_owner(mut self) -> Self {
        self.owner_has_ended = true;
        self
    }

    /// Closes the device once the pool is closed: it has something to write then.
    #[must_use]
    pub fn close_with_pool(mut self) -> Self {
        let closer = Closer(Arc::clone(&self.device));
        self.lock.get_or_insert_default().closers.push(closer);
        self
    }

    /// The owner that locks this device.
    pub(crate) fn owner(&self) -> Owner {
        let file = self.lock.as_ref().and_then(|lock| lock.file.as_ref());
        let identity = file.and_then(|lock| lock.identity().ok());
        let lock = identity.map_or(0, |identity| xxh3_64(&identity.to_le_bytes()).max(1));
        Owner { boot: boot(), lock }
    }

    /// Keeps `lock` until the device's own lock is released, which is when the pool is closed.
    #[must_use]
    pub fn keep(mut self, lock: FileLock) -> Self {
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
    /// A device that no other process can open.
    fn from(device: Arc<dyn Device>) -> Self {
        Self::new(device, None, false)
    }
}

/// Opens and locks the file or block device at `path`. With `read_only`, other readers are allowed.
/// If it holds a pool whose sectors are smaller than its own, I/O is buffered.
///
/// # Errors
/// [`ErrorKind::InUse`] if another process has locked it, [`ErrorKind::NotFound`] if the path does
/// not exist, [`ErrorKind::Invalid`] if it is not a usable device, [`ErrorKind::Device`] for other
/// failures.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<Opened> {
    open(path, options, Some(pool_sector))
}

/// As [`open_path`], for a device that gets new content, or does not hold a pool: the sectors of a
/// pool that is on it do not matter.
///
/// # Errors
/// As [`open_path`].
pub fn open_new_path(path: &Path, options: &OpenOptions) -> Result<Opened> {
    open(path, options, None)
}

fn open(path: &Path, options: &OpenOptions, sector_probe: Option<SectorProbe>) -> Result<Opened> {
    let options = OpenOptions { min_bytes: MIN_DEVICE_BYTES, sector_probe, ..options.clone() };
    let device = FileDevice::open(path, &options).map_err(refused)?;
    // Opened again, it exists.
    let again = OpenOptions { create_bytes: None, ..options.clone() };
    let opened_path = Some(OpenedPath { path: path.to_owned(), options: again });
    // The pool releases the lock when it is exported, even if the device object is still
    // referenced.
    let file = device.take_lock().map(Arc::new);
    let lock = Some(Locks { file, ..Locks::default() });
    let device: Arc<dyn Device> = Arc::new(device);
    #[cfg(feature = "testing")]
    let device = if options.read_only { device } else { crate::power_cut::before(device)? };
    Ok(Opened { path: opened_path, ..Opened::new(device, lock, true) })
}

/// Whether a file or block device has the first bytes of a label at either end, of any version.
/// Takes no lock.
///
/// # Errors
/// If it cannot be read.
pub fn has_label(path: &Path) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    if end < MIN_DEVICE_BYTES {
        return Ok(false);
    }
    for offset in [0, end / LABEL_BYTES * LABEL_BYTES - LABEL_BYTES] {
        let mut magic = [0; 8];
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut magic)?;
        if u64::from_le_bytes(magic) == LABEL_MAGIC {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the sector size of the pool on a medium, for [`OpenOptions::sector_probe`].
pub(crate) fn pool_sector(
    size_bytes: u64,
    read: &mut dyn FnMut(u64) -> Option<[u8; SLOT_BYTES]>,
) -> Option<u32> {
    let back = (size_bytes / LABEL_BYTES * LABEL_BYTES).checked_sub(LABEL_BYTES);
    std::iter::once(0).chain(back).find_map(|offset| {
        let page = read(offset)?;
        let label = LabelPhys::ref_from_bytes(&page).ok()?;
        label.is_sound().then(|| label.sector_bytes.get())
    })
}

/// Converts an error of opening a device.
pub(crate) fn refused(error: OpenError) -> Error {
    let kind = match &error {
        OpenError::Missing { .. } | OpenError::MissingFolder { .. } => ErrorKind::NotFound,
        OpenError::Busy { .. } | OpenError::InUse { .. } => ErrorKind::InUse,
        OpenError::ReadOnlyMedium { .. } => ErrorKind::ReadOnly,
        OpenError::System { .. } | OpenError::Permission { .. } => ErrorKind::Device,
        _ => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string()).because(error)
}

/// Who has a device locked, as stored in heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Identifies a boot of a kernel; 0 if unknown.
    pub(crate) boot: u64,
    /// Identifies the locked file on that host; 0 if it is not locked.
    pub(crate) lock: u64,
}

impl Owner {
    /// Nobody, who is never found to be gone.
    pub(crate) const NONE: Self = Self { boot: 0, lock: 0 };

    /// Whether this owner is gone, because `now` has the same lock of the same kernel.
    pub(crate) fn is_gone(&self, now: &Self) -> bool {
        self == now && self.boot != 0 && self.lock != 0
    }
}

/// Identifies this boot of the kernel; 0 if unknown.
fn boot() -> u64 {
    match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(id) if !id.trim().is_empty() => xxh3_64(id.trim().as_bytes()).max(1),
        _ => 0,
    }
}

/// Identity of a host, as stored in labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostId {
    /// Identifier of the host; 0 if unknown.
    pub id: u64,
    /// Host name for messages.
    pub name: String,
}

impl HostId {
    /// Returns the identity of this host, from `/etc/machine-id` and the kernel's host name.
    pub fn of_this_host() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let name = text("/proc/sys/kernel/hostname");
        let machine = text("/etc/machine-id");
        // Without a machine id, the host name has to identify the host.
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
