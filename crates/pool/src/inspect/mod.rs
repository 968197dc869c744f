//! Inspects pools read-only: labels, uberblocks, txgs, datasets, objects, directories, blocks.
//!
//! An [`Inspector`] opens devices read-only and takes no lock, so it can inspect a pool that is
//! imported, and a damaged pool that cannot be imported. It returns plain values, each with one
//! printer ([`Display`](std::fmt::Display)).
//!
//! # Invariants
//!
//! - It writes to no device and takes no device lock.
//! - All data read is untrusted: damage yields an error or a damage record, never a panic, and
//!   never an allocation of unchecked size.
//! - An imported pool changes meanwhile, and space that a txg freed is reused a few txgs later. So
//!   each view is as of one txg. If it meets damage and there is a newer txg by then, it is
//!   repeated. Results name their txg.
//!
//! Locking: none of its own. An inspector serves one thread at a time.
//!
//! # What it does not do
//!
//! It sees only data on devices: neither dirty data of an imported pool, nor changes that only the
//! intent log has. It does not heal, and does not compare space:
//! [`Pool::check`](crate::Pool::check) does.

mod assemble;
mod block;
mod directory;
mod labels;
mod object;
mod pointer;
#[cfg(feature = "serde")]
mod serialize;
mod txg;
mod view;

use std::fmt;
use std::path::Path;

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, Locking, OpenOptions, SectorProbe};

use crate::block_cache::{BlockCache, BlockCacheOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::open::{pool_sector, refused};

pub use block::{BlockInfo, CopyInfo, DeviceBytes};
pub use directory::DirectoryInfo;
pub use labels::{
    DeviceLabelsInfo, LabelCopyInfo, LabelDeviceInfo, LabelFeatureInfo, LabelPositionInfo,
    LabelState, UberblockInfo, UberblocksInfo, UnsoundSlotInfo,
};
pub use object::{DnodeInfo, FirstBlockInfo, TreeLevelInfo};
pub use pointer::{BlockPtrInfo, Hexdump};
pub use txg::{
    DatasetInfo, LogExtentInfo, LogInfo, ObjsetInfo, SpaceInfo, TxgInfo, WritePropsInfo,
};

/// Size of the block cache for an inspection.
const CACHE_BYTES: u64 = 48 << 20;
/// Maximum number of damage records listed. Further ones are only counted.
const LISTED: usize = 64;

/// Inspects devices.
pub struct Inspector {
    devices: Vec<Arc<dyn Device>>,
    cache: Arc<BlockCache>,
}

/// A result, and the txg of which it is.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Inspected<T> {
    /// The txg of the result.
    #[cfg_attr(feature = "serde", serde(rename = "as_of_txg"))]
    pub txg: u64,
    /// Notices about the result: missing devices, an older txg, a pool that changed meanwhile.
    pub notices: Vec<String>,
    /// The result.
    pub found: T,
}

/// Selects an object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjsetName<'a> {
    /// The pool's own objects: datasets and their names.
    Own,
    /// The objects of a dataset.
    Dataset(&'a str),
}

/// Selects whose blocks to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOwner {
    /// The blocks of the object with this number.
    Object(u64),
    /// The dnode blocks of the set itself.
    Dnodes,
}

/// Unreadable or invalid parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Damage {
    /// The first records.
    pub listed: Vec<String>,
    /// Number of records.
    pub count: u64,
}

impl Inspector {
    /// Opens files and block devices read-only, in any order. Takes no lock: the pool may be
    /// imported.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without paths, or for an unusable device; [`ErrorKind::NotFound`];
    /// [`ErrorKind::Device`].
    pub fn open(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let locking = Locking::None;
        let options = OpenOptions {
            read_only: true,
            locking,
            submission_queues: 1,
            threads: 2,
            sector_probe: Some(pool_sector as SectorProbe),
            ..Default::default()
        };
        let open = |path| {
            let device = FileDevice::open(path, &options).map_err(refused)?;
            Ok(Arc::new(device) as Arc<dyn Device>)
        };
        Self::new(paths.iter().map(open).collect::<Result<_>>()?)
    }

    /// Creates an inspector for open devices.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are none, or one is given twice; [`ErrorKind::NoMemory`].
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "cannot inspect a pool: no devices were given",
            ));
        }
        for (at, device) in devices.iter().enumerate() {
            let name = &device.info().name;
            if devices[..at].iter().any(|other| other.info().name == *name) {
                return Err(Error::new(ErrorKind::Invalid, format!("{name}: is given twice")));
            }
        }
        let options = BlockCacheOptions { bytes: CACHE_BYTES, ..Default::default() };
        Ok(Self { devices, cache: BlockCache::new(options)? })
    }
}

impl Damage {
    fn note(&mut self, what: impl fmt::Display) {
        self.count += 1;
        if self.listed.len() < LISTED {
            self.listed.push(what.to_string());
        }
    }

    /// Whether there is no damage.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.listed {
            writeln!(f, "damaged: {one}")?;
        }
        match self.count - self.listed.len() as u64 {
            0 => Ok(()),
            more => writeln!(f, "damaged: {more} more"),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Inspected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "as of txg {}", self.txg)?;
        for notice in &self.notices {
            writeln!(f, "note: {notice}")?;
        }
        write!(f, "{}", self.found)
    }
}

impl fmt::Display for ObjsetName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the pool's own objects"),
            Self::Dataset(name) => write!(f, "dataset {name}"),
        }
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.devices.iter().map(|device| &device.info().name);
        f.debug_list().entries(names).finish()
    }
}
