//! Looking at pools without touching them: labels, uberblocks, txgs, datasets, objects, directories, blocks.
//!
//! An [`Inspector`] opens devices for reading and takes no lock, so that it can look at a pool that somebody has
//! imported, and at one that nobody can import any more. What it returns are plain values, each with its one printer ([`Display`](std::fmt::Display)).
//!
//! * `labels`: labels and rings of uberblocks, device by device, sound or not;
//! * `assemble`: from opened devices to the pool's, with what is missing left out;
//! * `view`: a pool as of one txg, and how to find objects in it;
//! * `txg`, `object`, `directory`, `block`: what is shown of each;
//! * `pointer`: block pointers and bytes, to be read by people.
//!
//! # Invariants
//!
//! - Nothing is written, to no device, and no lock is taken.
//! - What devices return is hostile: an error or a note of what is damaged, never a panic, nor memory sized by what was not checked.
//! - A pool in use goes on while it is looked at, and what a txg freed is used again a few txgs later. So each look is as
//!   of one txg; one that meets damage is repeated if there is a newer txg by then, and what is told says as of which txg it is.
//!
//! # Locking
//!
//! None of its own. An inspector serves one thread at a time.
//!
//! # What it does not do
//!
//! It sees what is on devices: not what is in the memory of who has the pool imported, nor what only the intent log has. It heals
//! nothing, and does not compare space: that is [`Pool::check`](crate::Pool::check).

mod assemble;
mod block;
mod directory;
mod labels;
mod object;
mod pointer;
mod txg;
mod view;

use std::fmt;
use std::path::Path;

use forebay_base::sync::Arc;
use forebay_io::{Device, FileDevice, Locking, OpenOptions};

use crate::block_cache::{BlockCache, BlockCacheOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::open::refused;

pub use block::{BlockInfo, CopyInfo, DeviceBytes};
pub use directory::DirectoryInfo;
pub use labels::{
    DeviceLabelsInfo, LabelCopyInfo, LabelState, UberblockInfo, UberblocksInfo, UnsoundSlotInfo,
};
pub use object::{DnodeInfo, TreeLevelInfo};
pub use pointer::{BlockPtrInfo, Hexdump};
pub use txg::{DatasetInfo, LogInfo, ObjsetInfo, SpaceInfo, TxgInfo};

/// Memory for blocks that are looked at.
const CACHE_BYTES: u64 = 48 << 20;
/// What is damaged is listed up to this many times; more is only counted.
const LISTED: usize = 64;

/// Devices that are looked at.
pub struct Inspector {
    devices: Vec<Arc<dyn Device>>,
    cache: Arc<BlockCache>,
}

/// What was found, and as of when.
#[derive(Clone, Debug)]
pub struct Inspected<T> {
    /// The transaction group as of which it is.
    pub txg: u64,
    /// What one should know of it: devices that are missing, an older txg, a pool that changed meanwhile.
    pub notices: Vec<String>,
    /// What was found.
    pub found: T,
}

/// Which set of objects is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjsetName<'a> {
    /// The pool's own: datasets and their names.
    Own,
    /// A dataset's.
    Dataset(&'a str),
}

/// Which objects' blocks are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOwner {
    /// Those of the object of this number.
    Object(u64),
    /// Those of the set itself: blocks of dnodes.
    Dnodes,
}

/// What could not be read or makes no sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The first of it.
    pub listed: Vec<String>,
    /// How much there is.
    pub count: u64,
}

impl Inspector {
    /// Opens files and block devices for reading, in any order. No lock is taken: somebody may have the pool imported.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without any path, or for what cannot be a device; [`ErrorKind::NotFound`]; [`ErrorKind::Device`].
    pub fn open(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let locking = Locking::None;
        let options = OpenOptions {
            read_only: true,
            locking,
            submission_queues: 1,
            threads: 2,
            ..Default::default()
        };
        let open = |path| {
            let device = FileDevice::open(path, &options).map_err(refused)?;
            Ok(Arc::new(device) as Arc<dyn Device>)
        };
        Self::new(paths.iter().map(open).collect::<Result<_>>()?)
    }

    /// Looks at devices that are open already.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are none, or one is given twice; [`ErrorKind::NoMemory`].
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no device to look at is given"));
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

    /// Whether there is none.
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
