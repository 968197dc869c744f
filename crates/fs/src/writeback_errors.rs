//! Write-back errors: data that the kernel accepted from a writer and failed to write back later.
//!
//! When a write-back fails, the kernel drops the pages, reports the error to one `fsync`, and lets
//! the next `fsync` succeed. The file system therefore records the lost range with the inode.
//! `fsync` fails until all of the lost data was written again, truncated or punched, or the inode
//! is destroyed. The record is in memory only: a new mount starts without errors.
//!
//! # Invariants
//!
//! - Memory is bounded. An inode has at most [`RANGES_MAX`] lost ranges. Beyond that, the two
//!   nearest are merged, together with the gap between them. Beyond [`MARKS_MAX`] inodes, `fsync`
//!   fails for every inode until the file system is opened again.
//!
//! # Locking
//!
//! `fs-writeback-errors` is a leaf lock. Without errors no operation takes it.

use std::collections::HashMap;
use std::ops::Range;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::types::{Handle, Ino, Write};

/// Largest number of inodes with lost ranges.
const MARKS_MAX: usize = if cfg!(test) { 4 } else { 16_384 };

/// Largest number of lost ranges per inode.
const RANGES_MAX: usize = if cfg!(test) { 3 } else { 64 };

/// The write-back errors of a file system.
pub(crate) struct WritebackErrors {
    marks: Mutex<Marks>,
    /// Whether there are any errors. Changed under the lock.
    any: AtomicBool,
}

#[derive(Default)]
struct Marks {
    /// By inode number.
    lost: HashMap<u64, Ranges>,
    /// More than [`MARKS_MAX`] inodes have had errors.
    overflowed: bool,
}

/// The lost ranges of an inode, sorted and separated by gaps.
#[derive(Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, lost: Range<u64>) {
        let first = self.0.partition_point(|range| range.end < lost.start);
        let behind = self.0.partition_point(|range| range.start <= lost.end);
        let touched = &self.0[first..behind];
        let start = touched.first().map_or(lost.start, |range| range.start.min(lost.start));
        let end = touched.last().map_or(lost.end, |range| range.end.max(lost.end));
        self.0.splice(first..behind, std::iter::once(start..end));
        self.bound();
    }

    fn remove(&mut self, by: &Range<u64>) {
        let left = |range: &Range<u64>| {
            [range.start..range.end.min(by.start), range.start.max(by.end)..range.end]
        };
        self.0 = self.0.iter().flat_map(left).filter(|range| !range.is_empty()).collect();
        self.bound();
    }

    /// Merges the nearest ranges while there are too many.
    fn bound(&mut self) {
        while self.0.len() > RANGES_MAX {
            let gap = |at: &usize| self.0[at + 1].start - self.0[*at].end;
            let Some(at) = (0..self.0.len() - 1).min_by_key(gap) else { return };
            self.0[at].end = self.0.remove(at + 1).end;
        }
    }
}

impl WritebackErrors {
    pub(crate) fn new() -> Self {
        let marks = Mutex::named("fs-writeback-errors", Marks::default());
        Self { marks, any: AtomicBool::new(false) }
    }

    fn change(&self, change: impl FnOnce(&mut Marks)) {
        let mut marks = self.marks.lock();
        change(&mut marks);
        let any = marks.overflowed || !marks.lost.is_empty();
        self.any.store(any, Ordering::Release);
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Records a lost range.
    fn record(&self, number: u64, lost: Range<u64>) {
        self.change(|marks| {
            match marks.lost.len() >= MARKS_MAX && !marks.lost.contains_key(&number) {
                true => marks.overflowed = true,
                false => marks.lost.entry(number).or_default().add(lost),
            }
        });
    }

    /// Clears a range that was written, truncated or punched.
    #[inline]
    pub(crate) fn clear(&self, number: u64, by: Range<u64>) {
        if self.any() {
            self.shrink(number, &by);
        }
    }

    #[cold]
    fn shrink(&self, number: u64, by: &Range<u64>) {
        self.change(|marks| {
            let Some(ranges) = marks.lost.get_mut(&number) else { return };
            ranges.remove(by);
            if ranges.0.is_empty() {
                marks.lost.remove(&number);
            }
        });
    }

    /// # Errors
    /// [`Io`](ErrorKind::Io) if the inode has lost a write.
    #[inline]
    pub(crate) fn check(&self, number: u64) -> Result<()> {
        match self.any() {
            false => Ok(()),
            true => self.check_marks(number),
        }
    }

    #[cold]
    fn check_marks(&self, number: u64) -> Result<()> {
        let marks = self.marks.lock();
        let text = match marks.lost.get(&number).map(|ranges| ranges.0.as_slice()) {
            Some([Range { start, .. }, .., Range { end, .. }] | [Range { start, end }]) => format!(
                "inode {number} lost writes between bytes {start} and {end}: write them again, \
                 truncate the file, or remove it"
            ),
            _ if marks.overflowed => format!(
                "inode {number} may have lost writes: more than {MARKS_MAX} inodes have; check what \
                 they hold, and mount again"
            ),
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Io, text))
    }
}

impl FileSystem {
    /// Writes back data whose writer was already told that the write succeeded. If part of it
    /// fails, `fsync` of the inode fails until that range is written again, truncated or punched.
    ///
    /// # Errors
    /// As [`write`](Self::write). Nothing is recorded as lost, and the whole call must be repeated,
    /// after [`WouldBlock`](ErrorKind::WouldBlock), and after [`Suspended`](ErrorKind::Suspended)
    /// from a handle that is [`failing_if_suspended`](Self::failing_if_suspended).
    pub fn write_back(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: Write,
    ) -> Result<usize> {
        let mut done = 0;
        let failed = loop {
            match self.write(ino, handle, offset.saturating_add(done as u64), &data[done..], how) {
                Ok(0) if done < data.len() => {
                    break Error::new(ErrorKind::Io, "a write returned without writing data");
                }
                Ok(written) => done += written,
                Err(error) if self.is_repeated_after(error.kind()) => return Err(error),
                Err(error) => break error,
            }
            if done == data.len() {
                return Ok(done);
            }
        };
        let end = offset.saturating_add(data.len() as u64);
        tracing::error!(inode = ino.0, offset, done, end, error = %failed, "lost write");
        self.writeback_errors().record(self.number(ino)?, offset.saturating_add(done as u64)..end);
        Err(failed)
    }

    /// Whether the caller keeps the data after such an error, and writes it with another handle.
    fn is_repeated_after(&self, error: ErrorKind) -> bool {
        match error {
            ErrorKind::WouldBlock => true,
            ErrorKind::Suspended => self.process.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_clears_when_all_lost_data_is_replaced() {
        let lost = WritebackErrors::new();
        lost.check(1).unwrap();
        lost.record(1, 100..200);
        lost.record(1, 300..400);
        assert!(lost.check(1).is_err());
        lost.check(2).unwrap();
        // Overlapping, and adjacent.
        lost.clear(1, 150..390);
        lost.clear(1, 0..100);
        lost.clear(1, 400..500);
        lost.clear(2, 0..500);
        assert!(lost.check(1).unwrap_err().to_string().contains("100 and 400"));
        lost.clear(1, 50..120);
        lost.clear(1, 390..u64::MAX);
        assert!(lost.check(1).unwrap_err().to_string().contains("120 and 150"));
        lost.clear(1, 120..150);
        lost.check(1).unwrap();
        assert!(!lost.any());
    }

    #[test]
    fn ranges_can_be_replaced_in_any_order() {
        let lost = WritebackErrors::new();
        for start in [500, 100, 300] {
            lost.record(1, start..start + 100);
        }
        for start in [300, 500] {
            lost.clear(1, start..start + 100);
            assert!(lost.check(1).is_err());
        }
        lost.clear(1, 100..200);
        lost.check(1).unwrap();
        // From the middle. Then a range that touches both remaining parts.
        lost.record(1, 0..30);
        lost.clear(1, 10..20);
        lost.record(1, 5..12);
        lost.clear(1, 20..30);
        assert!(lost.check(1).unwrap_err().to_string().contains("0 and 12"));
        lost.clear(1, 0..12);
        lost.check(1).unwrap();
    }

    #[test]
    fn past_the_limit_the_nearest_ranges_are_merged() {
        let lost = WritebackErrors::new();
        for start in [0, 100, 130, 300] {
            lost.record(1, start..start + 10);
        }
        for start in [0, 100, 130, 300] {
            lost.clear(1, start..start + 10);
        }
        // The gap between merged ranges counts as lost.
        assert!(lost.check(1).unwrap_err().to_string().contains("110 and 130"));
        lost.clear(1, 110..130);
        lost.check(1).unwrap();
    }

    #[test]
    fn past_the_limit_no_fsync_succeeds() {
        let lost = WritebackErrors::new();
        (0..4).for_each(|number| lost.record(number, 0..1));
        lost.check(9).unwrap();
        lost.record(4, 0..1);
        (0..4).for_each(|number| lost.clear(number, 0..1));
        assert!(lost.check(4).is_err());
        assert!(lost.check(9).is_err());
    }
}
