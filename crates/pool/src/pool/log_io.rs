//! What the intent log needs of the pool: its devices, and the newest content of what is to be made durable.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_io::Priority;

use crate::block_cache::BlockCache;
use crate::blocking;
use crate::dataset;
use crate::devices::Devices;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;
use crate::log::{Committed, Fetch, LogStorage};

use super::PoolInner;

/// The devices, as the intent log's medium.
pub(super) struct LogDevices {
    pub(super) devices: Arc<Devices>,
    pub(super) cache: Arc<BlockCache>,
}

impl LogStorage for LogDevices {
    fn sector_bytes(&self) -> u64 {
        self.devices.sector_bytes()
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.cache.alloc(bytes)
    }

    fn read(&self, dva: Dva, buffer: Buffer) -> Result<Buffer> {
        self.devices.read(dva, buffer, Priority::SyncRead)
    }

    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()> {
        self.devices.write_all(writes, Priority::SyncWrite)
    }

    fn flush(&self) -> Result<()> {
        self.devices.flush_all()
    }
}

impl Fetch for PoolInner {
    fn at_rest(&self, f: &mut dyn FnMut()) -> Result<()> {
        self.txgs.at_rest(f)
    }

    fn content(&self, dataset: u64, object: u64, offset: u64, out: &mut [u8]) -> Result<()> {
        let node = self.dataset_of_guid(dataset)?.objset.open(object)?;
        let there = node.read(offset, out)?;
        out[there..].fill(0);
        Ok(())
    }
}

impl PoolInner {
    /// The open dataset of that guid.
    pub(super) fn dataset_of_guid(&self, guid: u64) -> Result<Arc<dataset::DatasetInner>> {
        let datasets = self.datasets.lock();
        let found = datasets.values().find(|dataset| dataset.guid == guid);
        found.cloned().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no dataset {guid:016x}"))
        })
    }

    /// Makes changes durable: those of names and of objects' existence, and those of one object.
    pub(crate) fn fsync(&self, dataset: &dataset::DatasetInner, number: u64) -> Result<()> {
        self.check_writable()?;
        self.txgs.check_running()?;
        blocking::check("what is to be durable")?;
        if dataset.logs()
            && self.log.commit(Some((dataset.guid, number)), self) == Committed::Durable
        {
            return Ok(());
        }
        self.txgs.sync_now().map(|_| ())
    }
}
