//! What the log needs of devices.

use forebay_base::arena::Buffer;

use crate::error::Result;
use crate::format::Dva;

/// The devices below the log. All calls wait for their end.
pub(crate) trait LogStorage: Send + Sync {
    /// Blocks begin at multiples of this.
    fn sector_bytes(&self) -> u64;

    /// Memory for I/O; its content is unspecified.
    ///
    /// # Errors
    /// `NoMemory`.
    fn alloc(&self, bytes: usize) -> Result<Buffer>;

    /// Fills `buffer` from `dva`.
    ///
    /// # Errors
    /// The device's, or `Corrupt` if there is no such place.
    fn read(&self, dva: Dva, buffer: Buffer) -> Result<Buffer>;

    /// Writes all of these, in any order.
    ///
    /// # Errors
    /// The first of the devices'.
    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()>;

    /// Makes durable what was written before.
    ///
    /// # Errors
    /// The devices'.
    fn flush(&self) -> Result<()>;
}
