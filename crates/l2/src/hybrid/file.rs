//! The file or block device of a hybrid cache, opened by its path.

use std::path::{Path, PathBuf};

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, OpenError, OpenOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::format::PAGE_BYTES;
use crate::geometry::MIN_DEVICE_BYTES;

/// What keeps the values of a hybrid cache.
pub(super) enum Medium {
    Device(Arc<dyn Device>),
    /// A file of this many bytes, which may have to be created, or a block device.
    Path(PathBuf, u64),
}

impl Medium {
    /// The device, opened.
    pub(super) fn open(&self) -> Result<Arc<dyn Device>> {
        match self {
            Self::Device(device) => Ok(Arc::clone(device)),
            Self::Path(path, bytes) => open(path, *bytes),
        }
    }
}

fn open(path: &Path, bytes: u64) -> Result<Arc<dyn Device>> {
    let shown = path.display();
    if bytes < MIN_DEVICE_BYTES {
        let text = format!(
            "cannot open a hybrid cache at {shown}: {bytes} bytes were asked for, and at least {MIN_DEVICE_BYTES} are required; ask for more"
        );
        return Err(Error::new(ErrorKind::TooSmall, text));
    }
    let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
    let options = OpenOptions { create_bytes: Some(bytes), ..OpenOptions::default() };
    let device =
        FileDevice::open(path, &options).map_err(|error| open_error(path, bytes, error))?;
    let info = device.info();
    if info.block_device {
        if info.size_bytes < bytes {
            let text = format!(
                "cannot open a hybrid cache on {shown}: the device has {} bytes, but {bytes} were asked for; ask for less, or give a larger device",
                info.size_bytes
            );
            return Err(Error::new(ErrorKind::TooSmall, text));
        }
    } else if info.size_bytes != bytes {
        return Err(wrong_size(path, bytes, info.size_bytes));
    }
    Ok(Arc::new(device))
}

fn wrong_size(path: &Path, bytes: u64, whole_sectors_bytes: u64) -> Error {
    let has = std::fs::metadata(path).map_or(whole_sectors_bytes, |file| file.len());
    let text = format!(
        "cannot open a hybrid cache at {}: the file has {has} bytes, but {bytes} were asked for; ask for the size that it has, delete it to begin with an empty cache, or give another path",
        path.display()
    );
    Error::new(ErrorKind::Invalid, text)
}

/// Says in the first line what is wrong.
fn open_error(path: &Path, bytes: u64, error: OpenError) -> Error {
    let kind = match &error {
        // Smaller than a sector.
        OpenError::TooSmall { size_bytes, .. } => return wrong_size(path, bytes, *size_bytes),
        OpenError::MissingFolder { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Device,
    };
    Error::new(kind, format!("cannot open a hybrid cache at {error}")).because(error)
}
