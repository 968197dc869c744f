//! Files and block devices.
//!
//! Opening checks all that can be checked ([`OpenError`]) and starts an engine ([`crate::engine`]),
//! which does the rest.
//!
//! # Invariants
//!
//! - Size, sector size and whether I/O is direct are settled when a device is opened. A medium that
//!   shrinks or vanishes later gives errors ([`ErrorKind::Gone`](crate::ErrorKind::Gone)).
//! - Dropping the device closes it.
//!
//! # Locking
//!
//! None of its own.
//!
//! # What it does not do
//!
//! It makes no file larger: what is behind the size it had does not exist.

mod error;
mod medium;
mod options;

use std::fmt;
use std::path::Path;

use forebay_base::sync::Arc;

pub use error::OpenError;
use medium::Medium;
pub use options::{Direct, EngineChoice, OpenOptions};

use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::engine::{self, FileEngine, Setup};
use crate::request::Request;
use crate::waiter::Waiter;

/// A file or block device. [The crate's head](crate) has an example.
pub struct FileDevice {
    engine: FileEngine,
}

impl FileDevice {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    /// [`OpenError`] says which, what is wrong and the way out.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let medium = Medium::open(path, options)?;
        let info = DeviceInfo {
            name: path.to_string_lossy().into(),
            size_bytes: medium.size_bytes,
            sector_bytes: medium.sector_bytes,
            read_only: medium.read_only,
            direct: medium.direct,
            // Until the engine says what came of it.
            engine: Engine::IoUring,
        };
        let setup = Setup {
            choice: options.engine,
            lanes: options.lanes,
            threads: options.threads,
            tunables: Arc::clone(&options.tunables),
        };
        let engine = engine::start(medium.fd, info, &setup).map_err(|source| {
            let path = path.to_owned();
            match options.engine {
                EngineChoice::IoUring => OpenError::EngineRefused { path, why: source.to_string() },
                _ => OpenError::System { path, doing: "start the engine", source },
            }
        })?;
        Ok(Self { engine })
    }
}

impl Device for FileDevice {
    fn submit(&self, request: Request) {
        self.engine.submit(request);
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        self.engine.submit_all(requests);
    }

    fn info(&self) -> &DeviceInfo {
        self.engine.info()
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn stats(&self) -> DeviceStats {
        self.engine.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.engine.help(waiter);
    }

    fn close(&self) {
        self.engine.close();
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice").field("info", self.info()).finish_non_exhaustive()
    }
}
