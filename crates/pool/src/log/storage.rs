//! Interface of the intent log to the devices.

use forebay_base::arena::Buffer;

use crate::error::Result;
use crate::format::Dva;

/// The devices that hold the ring. All calls block until they are done.
pub(crate) trait LogStorage: Send + Sync {
    /// Allocates an I/O buffer with unspecified content.
    ///
    /// # Errors
    /// `NoMemory`.
    fn alloc(&self, bytes: usize) -> Result<Buffer>;

    /// The largest number of devices that hold the same part of the ring.
    fn sides(&self) -> usize {
        1
    }

    /// Whether that device misses nothing that was acknowledged.
    fn is_whole(&self, _dva: Dva, _side: usize) -> bool {
        true
    }

    /// Reads from `dva` into `buffer`, from one of the devices that hold it. Addresses and lengths
    /// are multiples of [`LOG_SECTOR_BYTES`](crate::format::LOG_SECTOR_BYTES).
    ///
    /// # Errors
    /// Device errors, or `Corrupt` for an invalid address.
    fn read(&self, dva: Dva, side: usize, buffer: Buffer) -> Result<Buffer>;

    /// Writes all buffers, in any order.
    ///
    /// # Errors
    /// The first device error.
    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()>;

    /// Makes completed writes durable, of the ring that has this address.
    ///
    /// # Errors
    /// Device errors.
    fn flush(&self, dva: Dva) -> Result<()>;

    /// Number of failed flushes of all callers. If it has changed since a write, a later
    /// flush proves nothing about that write.
    fn flush_failures(&self) -> u64;
}
