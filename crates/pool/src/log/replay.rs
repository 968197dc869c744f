//! Reads the log back.
//!
//! All data read is untrusted. A block is valid only if its position, sequence number, generation
//! and checksum are the expected ones. The first invalid block ends the log, so blocks of older
//! rounds are never replayed. A failed read is an error, not an end: the unreadable block may have
//! been fsynced.
//!
//! Blocks are written in batches, which hold whole transactions. All blocks of a batch are verified
//! before its first record is returned, so nothing of a torn batch is replayed. A batch of several
//! blocks is therefore read twice; only a window is kept in memory.

use forebay_base::sync::Arc;

use super::IntentLog;
use super::ring::{BlockPosition, Extents};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    LOG_BLOCK_HEAD_BYTES, LOG_BLOCK_MAGIC, LOG_BLOCK_MAX_BYTES, LOG_SECTOR_BYTES, LogBlockPhys,
    LogEntry, LogRootPhys,
};

/// Bytes per read: more than a block.
pub(super) const WINDOW_BYTES: usize = 2 * LOG_BLOCK_MAX_BYTES;

/// Returns the records of a replay, in order, batch by batch. The log stays closed until the caller
/// has reached the end.
pub(crate) struct Replay<'a> {
    log: &'a IntentLog,
    extents: Arc<Extents>,
    root: LogRootPhys,
    /// Position of the next expected block.
    next: BlockPosition,
    /// Bytes of the ring that may still be read: each once.
    left: u64,
    /// The bytes read last, and the offset of the first of them.
    window: Vec<u8>,
    window_offset: u64,
    /// The remaining records of the current block, as a range of the window.
    records: std::ops::Range<usize>,
    /// Number of blocks that follow in the current batch.
    following: u32,
    /// Number of records seen that are newer than the root.
    seen: u64,
    ended: bool,
}

impl<'a> Replay<'a> {
    pub(super) fn new(log: &'a IntentLog, root: &LogRootPhys) -> Self {
        let next =
            BlockPosition { offset: root.head_offset.get(), sequence: root.head_sequence.get() };
        let extents = log.ring.lock().extents();
        let behind = next.offset.saturating_sub(root.tail_offset.get());
        Self {
            log,
            root: *root,
            next,
            left: extents.bytes().saturating_sub(behind),
            extents,
            window: Vec::new(),
            window_offset: next.offset,
            records: 0..0,
            following: 0,
            seen: 0,
            ended: false,
        }
    }

    /// Skips to the next batch. Returns false after the last complete batch.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn next_batch(&mut self) -> Result<bool> {
        while self.next()?.is_some() {}
        if self.ended {
            return Ok(false);
        }
        if let Some((at, head)) = self.locate()?
            && self.is_whole(&head)?
        {
            // Verifying the batch may have replaced the window.
            let found = if head.following.get() == 0 { Some((at, head)) } else { self.locate()? };
            self.enter(found.ok_or_else(|| self.changed_on_reread())?);
            return Ok(true);
        }
        self.ended = true;
        self.log.ring.lock().replayed(self.next);
        Ok(false)
    }

    /// Returns the next record of the batch; `None` after its last record and before the first
    /// batch.
    ///
    /// # Errors
    /// `Corrupt` for an invalid record in a block with a correct checksum, and device errors. The
    /// replay cannot continue then; [`IntentLog::discard`] gives up the rest.
    pub(crate) fn next(&mut self) -> Result<Option<LogEntry<'_>>> {
        loop {
            if self.records.is_empty() {
                let Some(following) = self.following.checked_sub(1) else { return Ok(None) };
                let found = self.locate()?.filter(|(_, head)| head.following.get() == following);
                self.enter(found.ok_or_else(|| self.changed_on_reread())?);
                continue;
            }
            let range = self.records.clone();
            let mut rest = &self.window[range.clone()];
            let parsed = LogEntry::parse(&mut rest).map_err(|error| self.in_block(error))?;
            self.records.start = range.end - rest.len();
            let Some(entry) = parsed else { continue };
            if entry.txg <= self.root.txg.get() {
                continue;
            }
            self.seen += 1;
            if self.seen > self.root.replayed.get() {
                // Parsed twice: the borrow checker rejects returning the borrow from the loop.
                let mut bytes = &self.window[range];
                return LogEntry::parse(&mut bytes);
            }
        }
    }

    fn in_block(&self, error: Error) -> Error {
        error.doing(format_args!("replay of block {}", self.next.sequence.saturating_sub(1)))
    }

    fn changed_on_reread(&self) -> Error {
        let block = self.next.sequence;
        let text = format!("log: block {block} was valid, but not when it was read again");
        Error::new(ErrorKind::Corrupt, text)
    }

    /// Whether all blocks of the batch that begins with `first` are valid.
    fn is_whole(&mut self, first: &LogBlockPhys) -> Result<bool> {
        let (next, left) = (self.next, self.left);
        let mut whole = true;
        self.pass(first);
        for following in (0..first.following.get()).rev() {
            match self.locate()? {
                Some((_, head)) if head.following.get() == following => self.pass(&head),
                _ => {
                    whole = false;
                    break;
                }
            }
        }
        (self.next, self.left) = (next, left);
        Ok(whole)
    }

    /// Starts with the records of the next block, which is at this position of the window.
    fn enter(&mut self, (at, head): (usize, LogBlockPhys)) {
        let start = at + LOG_BLOCK_HEAD_BYTES;
        self.records = start..start + head.payload_bytes.get() as usize;
        self.following = head.following.get();
        self.pass(&head);
    }

    fn pass(&mut self, head: &LogBlockPhys) {
        let block_bytes = u64::from(head.block_bytes.get());
        self.left -= block_bytes;
        self.next.offset += block_bytes;
        self.next.sequence += 1;
    }

    /// Returns the next block, if it is valid: its position in the window and its header.
    fn locate(&mut self) -> Result<Option<(usize, LogBlockPhys)>> {
        let whole = |window: &[u8], at: usize| {
            let head = LogBlockPhys::read(window.get(at..)?)?;
            Some(at + head.block_bytes.get() as usize <= window.len())
        };
        let at = self.next.offset.checked_sub(self.window_offset).map(|at| at as usize);
        let at = match at.filter(|at| whole(&self.window, *at) == Some(true)) {
            Some(at) => at,
            None => return self.locate_on_sides(),
        };
        match self.expected(at) {
            Some(head) => Ok(Some((at, head))),
            None => self.locate_on_sides(),
        }
    }

    /// Reads the next block from one side of a mirror after the other until it is valid. The log
    /// has ended if no side has it, and one that misses nothing could be read. Without such a side,
    /// nobody knows.
    fn locate_on_sides(&mut self) -> Result<Option<(usize, LogBlockPhys)>> {
        let mut has_ended = false;
        let mut failed = Ok(());
        for side in 0..self.log.storage.sides() {
            match self.fill(side) {
                Ok(is_whole) => has_ended |= is_whole,
                Err(error) => {
                    failed = failed.and(Err(error));
                    continue;
                }
            }
            if let Some(head) = self.expected(0) {
                return Ok(Some((0, head)));
            }
        }
        if has_ended {
            return Ok(None);
        }
        failed.and_then(|()| {
            let block = self.next.sequence;
            let text = format!(
                "log: block {block} is on no side of a mirror, and no side has all blocks; discard the log to import without it"
            );
            Err(Error::new(ErrorKind::Corrupt, text))
        })
    }

    /// Reads from the next block's position on. Returns whether the side misses nothing.
    fn fill(&mut self, side: usize) -> Result<bool> {
        self.window.clear();
        self.window_offset = self.next.offset;
        let len = self.left.min(WINDOW_BYTES as u64) / LOG_SECTOR_BYTES * LOG_SECTOR_BYTES;
        let mut is_whole = true;
        for (dva, bytes) in self.extents.places(self.next.offset, len) {
            let storage = &self.log.storage;
            is_whole &= storage.is_whole(dva, side);
            let buffer = storage.alloc(bytes as usize)?;
            let buffer = storage
                .read(dva, side, buffer)
                .map_err(|error| error.doing(format_args!("reading the intent log at {dva}")))?;
            self.window.extend_from_slice(&buffer[..bytes as usize]);
        }
        Ok(is_whole)
    }

    /// Returns the header of the block at `at` in the window, if it is the expected one.
    fn expected(&self, at: usize) -> Option<LogBlockPhys> {
        let bytes = self.window.get(at..)?;
        let head = LogBlockPhys::read(bytes)?;
        let block_bytes = head.block_bytes.get() as usize;
        let used = LOG_BLOCK_HEAD_BYTES.checked_add(head.payload_bytes.get() as usize)?;
        let fits = used <= block_bytes
            && block_bytes.is_multiple_of(LOG_SECTOR_BYTES as usize)
            && block_bytes <= LOG_BLOCK_MAX_BYTES
            && block_bytes <= bytes.len()
            && block_bytes as u64 <= self.left;
        let expected = fits
            && head.magic.get() == LOG_BLOCK_MAGIC
            && head.guid == self.root.guid
            && head.generation == self.root.generation
            && head.sequence.get() == self.next.sequence
            && head.offset.get() == self.next.offset
            && head.needs_txg.get() <= self.root.txg.get();
        (expected && head.is_sound(bytes)).then_some(head)
    }
}
