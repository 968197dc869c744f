//! Looks for the records of the log on a device that comes back: an older copy of it lacks what was
//! fsynced since, and records that are written later would follow a hole.
//!
//! It reads the chain of blocks from the head of the newest durable root to the end of the newest
//! durable batch, as a replay would. Each block states its own size, so none can be skipped.
//!
//! Locking: `log-ring`, for a look. For a pool that is suspended, so that no root becomes durable
//! meanwhile.

use forebay_base::arena::Buffer;

use super::IntentLog;
use super::ring::Span;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LOG_BLOCK_MAGIC, LOG_BLOCK_MAX_BYTES, LogBlockPhys};

/// Reads so many bytes of a device from an offset on.
pub(crate) type ReadDevice<'a> = &'a dyn Fn(u64, usize) -> Result<Buffer>;

impl IntentLog {
    /// Whether a device has all records on a vdev that were fsynced since the newest durable root.
    /// `read` reads the device; other vdevs are read as always.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if a batch is being written there, or a device cannot be read;
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn is_on(&self, vdev: u16, read: ReadDevice<'_>) -> Result<bool> {
        let needed = {
            let ring = self.ring.lock();
            if ring.writes_to(vdev) {
                let text = "an fsync is being written there; try again";
                return Err(Error::new(ErrorKind::Device, text));
            }
            ring.needed_on(vdev)
        };
        let Some(mut needed) = needed else { return Ok(true) };
        while needed.offset < needed.end {
            let block = self.read_block(&needed, vdev, read)?;
            let Some(head) = sound_head(&block, &needed, self.guid) else { return Ok(false) };
            needed.offset += u64::from(head.block_bytes.get());
        }
        Ok(needed.offset == needed.end)
    }

    /// Reads the first block of a part of the log, and bytes after it.
    fn read_block(&self, from: &Span, vdev: u16, read: ReadDevice<'_>) -> Result<Vec<u8>> {
        let len = (from.end - from.offset).min(LOG_BLOCK_MAX_BYTES as u64);
        let mut block = Vec::with_capacity(len as usize);
        for (dva, bytes) in from.extents.places(from.offset, len) {
            let bytes = bytes as usize;
            let part = match dva.device == vdev {
                true => read(dva.offset, bytes)?,
                false => self.storage.read(dva, 0, self.storage.alloc(bytes)?)?,
            };
            block.extend_from_slice(&part[..bytes]);
        }
        Ok(block)
    }
}

/// The header of the block at the start of `bytes`, if it is the first one of a part of the log.
fn sound_head(bytes: &[u8], part: &Span, guid: u64) -> Option<LogBlockPhys> {
    let head = LogBlockPhys::read(bytes)?;
    let is_it = head.magic.get() == LOG_BLOCK_MAGIC
        && head.guid.get() == guid
        && head.generation.get() == part.generation
        && head.offset.get() == part.offset
        && head.block_bytes.get() > 0;
    (is_it && head.is_sound(bytes)).then_some(head)
}
