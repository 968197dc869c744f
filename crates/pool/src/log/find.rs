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
use super::replay::WINDOW_BYTES;
use super::ring::Span;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LOG_BLOCK_MAGIC, LogBlockPhys};

/// Reads so many bytes of a device from an offset on.
pub(crate) type ReadDevice<'a> = &'a dyn Fn(u64, usize) -> Result<Buffer>;

impl IntentLog {
    /// Whether a device has all records on a vdev that were fsynced since the newest durable root.
    /// `read` reads the device; of other vdevs, any side may have them.
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
        let Some(rest) = needed else { return Ok(true) };
        Search { log: self, vdev, read, rest, window: Vec::new(), at: 0 }.finds_all()
    }
}

/// Goes through the blocks of a part of the log.
struct Search<'a> {
    log: &'a IntentLog,
    vdev: u16,
    read: ReadDevice<'a>,
    /// The part from the next block on.
    rest: Span,
    /// The bytes read last.
    window: Vec<u8>,
    /// The position of the next block in the window.
    at: usize,
}

impl Search<'_> {
    fn finds_all(mut self) -> Result<bool> {
        while self.rest.offset < self.rest.end {
            let Some(head) = self.next_head()? else { return Ok(false) };
            self.at += head.block_bytes.get() as usize;
            self.rest.offset += u64::from(head.block_bytes.get());
        }
        Ok(self.rest.offset == self.rest.end)
    }

    /// The header of the next block. If the window does not have it, one side of the other vdevs
    /// after the other is read until it is there: a side that comes back may still lack it.
    fn next_head(&mut self) -> Result<Option<LogBlockPhys>> {
        let read = self.window.get(self.at..);
        if let Some(head) = read.and_then(|bytes| self.sound_head(bytes)) {
            return Ok(Some(head));
        }
        let mut failed = Ok(());
        for side in 0..self.log.storage.sides() {
            match self.fill(side) {
                Ok(has_others) => {
                    let head = self.sound_head(&self.window);
                    if head.is_some() || !has_others {
                        return Ok(head);
                    }
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.map(|()| None)
    }

    fn sound_head(&self, bytes: &[u8]) -> Option<LogBlockPhys> {
        sound_head(bytes, &self.rest, self.log.guid)
    }

    /// Reads from the next block on. Returns whether some of that is on another vdev.
    fn fill(&mut self, side: usize) -> Result<bool> {
        self.window.clear();
        self.at = 0;
        let len = (self.rest.end - self.rest.offset).min(WINDOW_BYTES as u64);
        let mut has_others = false;
        for (dva, bytes) in self.rest.extents.places(self.rest.offset, len) {
            let bytes = bytes as usize;
            let is_other = dva.device != self.vdev;
            has_others |= is_other;
            let storage = &self.log.storage;
            let part = match is_other {
                true => storage.read(dva, side, storage.alloc(bytes)?)?,
                false => (self.read)(dva.offset, bytes)?,
            };
            self.window.extend_from_slice(&part[..bytes]);
        }
        Ok(has_others)
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
