//! The two words through which readers reach a segment: the directory and its entries.

use std::ptr::NonNull;

use forebay_base::sync::atomic::{AtomicU64, Ordering};

use super::PARTITION_BITS;
use super::line::{COUNT_SHIFT, Line, Slot};
use super::memory::GRANULE_LINES;

/// Address and depth of a directory, in one word: a reader needs both at once.
#[derive(Clone, Copy)]
pub(super) struct Directory(u64);

/// Bits of a directory word that hold the depth; addresses are multiples of eight, and of
/// at most 48 bits.
const DEPTH_SHIFT: u32 = 48;
pub(super) const MAX_DEPTH: u32 = 30;

impl Directory {
    pub(super) fn new(cells: &[AtomicU64]) -> Self {
        debug_assert!(cells.len().is_power_of_two());
        let address = cells.as_ptr().expose_provenance() as u64;
        debug_assert_eq!(address >> DEPTH_SHIFT, 0);
        Self(address | (u64::from(cells.len().trailing_zeros()) << DEPTH_SHIFT))
    }
    #[inline]
    pub(super) fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }
    pub(super) fn word(self) -> u64 {
        self.0
    }
    #[inline]
    pub(super) fn depth(self) -> u32 {
        (self.0 >> DEPTH_SHIFT) as u32
    }
    pub(super) fn len(self) -> usize {
        1 << self.depth()
    }
    /// The number of the cell for `hash`.
    #[inline]
    pub(super) fn number(self, hash: u64) -> usize {
        // Two shifts, since shifting by 64 (depth 0) is not defined.
        (((hash << PARTITION_BITS) >> 1) >> (63 - self.depth())) as usize
    }
    /// # Safety
    /// The index that this directory belongs to lives, for as long as the answer is used.
    #[inline]
    pub(super) unsafe fn cell<'a>(self, hash: u64) -> &'a AtomicU64 {
        // SAFETY: by contract, and `number` is below the length.
        unsafe { self.nth(self.number(hash)) }
    }
    /// # Safety
    /// As for `cell`, and `number` is below `len`.
    #[inline]
    pub(super) unsafe fn nth<'a>(self, number: usize) -> &'a AtomicU64 {
        let address = (self.0 & ((1 << DEPTH_SHIFT) - 1)) as usize;
        let cells = std::ptr::with_exposed_provenance::<AtomicU64>(address);
        // SAFETY: by contract.
        unsafe { &*cells.add(number) }
    }
}

/// A directory's entry: where a segment is, how large, its depth, and a version.
///
/// | bits | |
/// |---|---|
/// | 0–37 | address / 1 KiB |
/// | 38–42 | granules |
/// | 43–47 | depth: how many hash bits all its entries share below the partition's |
/// | 48–63 | version: changes with every change of the segment |
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

const ADDRESS_ALIGN_SHIFT: u32 = 10;
const ADDRESS_BITS: u32 = 38;
const GRANULES_SHIFT: u32 = 38;
const SEGMENT_DEPTH_SHIFT: u32 = 43;
const VERSION_SHIFT: u32 = 48;

impl Entry {
    pub(super) fn new(segment: NonNull<Line>, granules: usize, depth: u32, version: u64) -> Self {
        let address = segment.as_ptr().expose_provenance() as u64;
        debug_assert_eq!(address & ((1 << ADDRESS_ALIGN_SHIFT) - 1), 0);
        debug_assert!((1..32).contains(&granules) && depth <= MAX_DEPTH);
        Self(
            (address >> ADDRESS_ALIGN_SHIFT)
                | ((granules as u64) << GRANULES_SHIFT)
                | (u64::from(depth) << SEGMENT_DEPTH_SHIFT)
                | (version << VERSION_SHIFT),
        )
    }
    #[inline]
    pub(super) fn segment(self) -> NonNull<Line> {
        let address = (self.0 & ((1 << ADDRESS_BITS) - 1)) << ADDRESS_ALIGN_SHIFT;
        let lines = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: an entry is made from a segment's address, which is not null.
        unsafe { NonNull::new_unchecked(lines) }
    }
    #[inline]
    pub(super) fn granules(self) -> usize {
        ((self.0 >> GRANULES_SHIFT) & 31) as usize
    }
    #[inline]
    pub(super) fn lines(self) -> usize {
        self.granules() * GRANULE_LINES
    }
    pub(super) fn depth(self) -> u32 {
        ((self.0 >> SEGMENT_DEPTH_SHIFT) & 31) as u32
    }
    pub(super) fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT
    }

    pub(super) fn all_lines<'a>(self) -> impl Iterator<Item = &'a Line> {
        // SAFETY: within the segment, whose memory is lines for ever.
        (0..self.lines()).map(move |i| unsafe { self.segment().add(i).as_ref() })
    }
    /// The slots that are not empty, each with the number of its line.
    pub(super) fn slots(self) -> impl Iterator<Item = (usize, Slot)> {
        self.all_lines().enumerate().flat_map(|(i, line)| {
            line.slots
                .iter()
                .map(move |cell| (i, Slot(cell.load(Ordering::Relaxed))))
                .filter(|(_, slot)| !slot.is_empty())
        })
    }
    /// Entries in the segment.
    pub(super) fn count(self) -> usize {
        // SAFETY: a segment has at least one line.
        let first = unsafe { self.segment().as_ref() };
        (first.meta.load(Ordering::Relaxed) >> COUNT_SHIFT) as usize
    }
    /// Adds to the number of entries. Writers only, one at a time.
    pub(super) fn add_count(self, change: i64) {
        // SAFETY: a segment has at least one line.
        let first = unsafe { self.segment().as_ref() };
        let meta = first.meta.load(Ordering::Relaxed) as i64;
        first.meta.store((meta + (change << COUNT_SHIFT)) as u64, Ordering::Release);
    }
}
