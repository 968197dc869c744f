//! Reads of the rebuild, which wait for memory.
//!
//! An exhausted arena says nothing about the device. A read waits for memory for a bounded time.
//! Then the rebuild ends: the L2 fails, its label and its log stay as they are, and the next open
//! finds all blocks. A forget meanwhile voids the label.

use std::cell::Cell;

use forebay_base::arena::{Buffer, MAX_LEN};
use forebay_cache::Key;

use crate::counters::L2Counters;
use crate::device_io::{IoError, MEMORY_WAITS};
use crate::shared::L2Shared;

/// Why a rebuild ended early.
pub(super) enum RebuildError {
    /// The log cannot be used.
    Failed(String),
    /// No memory was free. The log is intact.
    NoMemory(String),
}

impl From<IoError> for RebuildError {
    fn from(error: IoError) -> Self {
        match error {
            IoError::NoMemory(why) => Self::NoMemory(why),
            IoError::Device(_) | IoError::Stalled(_) => Self::Failed(error.to_string()),
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Reads bytes; see [`read_for_rebuild`](Self::read_for_rebuild).
    pub(super) fn read_one_for_rebuild(
        &self,
        at: u64,
        bytes: u64,
    ) -> Result<Option<Buffer>, RebuildError> {
        let mut read = None;
        self.read_for_rebuild(1, |_| (at, bytes), |_, buffer| read = buffer)?;
        Ok(read)
    }

    /// Reads the ranges `0..count` concurrently. `each` receives the bytes of each with its number,
    /// or `None` if the device fails to read them or they are longer than any batch. Waits while no
    /// memory is free, for a bounded time.
    pub(super) fn read_for_rebuild(
        &self,
        count: usize,
        range: impl Fn(usize) -> (u64, u64),
        mut each: impl FnMut(usize, Option<Buffer>),
    ) -> Result<(), RebuildError> {
        let (mut first, mut waits, mut stalled) = (0, 0, None);
        loop {
            // The first range for which no memory was free. The round ends there.
            let missed = Cell::new(None);
            let numbers = (first..count).take_while(|_| missed.get().is_none());
            let mut why = String::new();
            self.io.read_ranges(numbers.map(&range), |nth, read| match read {
                Ok(buffer) => each(first + nth, Some(buffer)),
                Err(error @ IoError::Stalled(_)) => stalled = Some(error),
                Err(IoError::NoMemory(error)) if range(first + nth).1 <= MAX_LEN as u64 => {
                    missed.set(Some(first + nth));
                    why = error;
                }
                Err(_) => {
                    self.counters.add(L2Counters::READ_ERRORS, 0, 1);
                    each(first + nth, None);
                }
            });
            if let Some(error) = stalled {
                return Err(error.into());
            }
            let Some(missed) = missed.get() else { return Ok(()) };
            // The reads before it have returned their memory.
            if missed > first {
                (first, waits) = (missed, 0);
                continue;
            }
            if waits == MEMORY_WAITS || self.rebuild.was_incomplete() {
                return Err(RebuildError::NoMemory(why));
            }
            waits += 1;
            self.io.wait_for_memory();
        }
    }
}
