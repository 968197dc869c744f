//! Reads and writes the blocks of space maps through the store.

use forebay_base::sync::Weak;
use forebay_cache::Attributes;

use crate::error::{Error, Result};
use crate::format::{BlockKind, BlockPtrPhys, Compression, DvaPhys};
use crate::space::{SpaceRead, SpaceWrite};
use crate::store::barrier::Pause;
use crate::store::{Store, WriteProps};

use super::PoolInner;

impl SpaceRead for Store {
    fn read(&self, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
        Ok(self.read_uncached(pointer)?.to_vec())
    }

    fn read_many(&self, pointers: &[BlockPtrPhys]) -> Result<Vec<Vec<u8>>> {
        let read = self.read_many_uncached(pointers)?;
        Ok(read.iter().map(|content| content.to_vec()).collect())
    }
}

/// Reads the space maps of an imported pool. A read of a commit that fails is a step of the commit
/// that fails: it is repeated once the device is back or the pool was cleared.
pub(super) struct SpaceReader {
    pub(super) store: Store,
    pub(super) pool: Weak<PoolInner>,
}

impl SpaceRead for SpaceReader {
    fn read(&self, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
        SpaceRead::read(&self.store, pointer)
    }

    fn read_many(&self, pointers: &[BlockPtrPhys]) -> Result<Vec<Vec<u8>>> {
        SpaceRead::read_many(&self.store, pointers)
    }

    fn wait_after(&self, error: Error) -> Result<()> {
        match self.pool.upgrade() {
            Some(pool) => pool.pause_commit(error),
            None => Err(error),
        }
    }
}

/// Writes space-map blocks and root blocks to preallocated addresses. It bypasses the cache: only
/// an import reads these blocks.
pub(super) struct UncachedWriter<'a> {
    pub(super) store: &'a Store,
    pub(super) pause: &'a dyn Pause,
}

impl UncachedWriter<'_> {
    pub(super) fn write(
        &self,
        kind: BlockKind,
        places: [DvaPhys; 2],
        content: &[u8],
        txg: u64,
    ) -> Result<BlockPtrPhys> {
        let alloc = || self.store.cache().alloc(content.len());
        let mut buffer = self.store.repeat(self.pause, alloc)?;
        buffer.copy_from_slice(content);
        let props = WriteProps {
            kind,
            level: 0,
            compression: Compression::Off,
            copies: places.iter().filter(|place| **place != DvaPhys::NONE).count(),
            txg,
            fill: 1,
            cache: None::<Attributes>,
        };
        self.pause.before_write()?;
        self.store.write_at(places, buffer, &props)
    }
}

impl SpaceWrite for UncachedWriter<'_> {
    fn write_at(&mut self, places: [DvaPhys; 2], content: &[u8], txg: u64) -> Result<BlockPtrPhys> {
        self.write(BlockKind::Space, places, content, txg)
    }
}
