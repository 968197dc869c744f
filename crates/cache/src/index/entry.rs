//! The two words by which readers reach a segment: the directory word, and an entry of the
//! directory.
//!
//! Locking: readers load both without a lock; the holder of `index-partition` stores them.

use std::ptr::NonNull;

use forebay_base::sync::atomic::{AtomicU64, Ordering};

use super::PARTITION_BITS;
use super::line::{COUNT_SHIFT, Line, Slot};
use super::memory::GRANULE_LINES;

/// Address and depth of a directory, in one word, because a reader needs both at once. A reader
/// shifts hash bits by the low part, and gets the address with one shift.
///
/// | bits | |
/// |---|---|
/// | 0–15 | [`NUMBER_BITS`] minus the depth |
/// | 16–63 | address |
#[derive(Clone, Copy)]
pub(super) struct Directory(u64);

const DIRECTORY_ADDRESS_SHIFT: u32 = 16;
/// Hash bits below the partition's from which a cell number is taken: the top ones of these.
const NUMBER_BITS: u32 = 32;
pub(super) const MAX_DEPTH: u32 = 30;

impl Directory {
    pub(super) fn new(cells: &[AtomicU64]) -> Self {
        debug_assert!(cells.len().is_power_of_two());
        let address = cells.as_ptr().expose_provenance() as u64;
        debug_assert_eq!(address >> (u64::BITS - DIRECTORY_ADDRESS_SHIFT), 0, "48 bits of address");
        let shift = NUMBER_BITS - cells.len().trailing_zeros();
        Self((address << DIRECTORY_ADDRESS_SHIFT) | u64::from(shift))
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
        NUMBER_BITS - (self.0 & 63) as u32
    }
    pub(super) fn len(self) -> usize {
        1 << self.depth()
    }
    /// The number of the cell of `hash`.
    #[inline]
    pub(super) fn number(self, hash: u64) -> usize {
        let bits = (hash >> (u64::BITS - PARTITION_BITS - NUMBER_BITS)) as u32;
        (u64::from(bits) >> (self.0 & 63)) as usize
    }
    /// The cell of `hash`.
    ///
    /// # Safety
    ///
    /// The index of this directory lives as long as the result is used.
    #[inline]
    pub(super) unsafe fn cell<'a>(self, hash: u64) -> &'a AtomicU64 {
        // SAFETY: by contract, and `number` is below the length.
        unsafe { self.nth(self.number(hash)) }
    }
    /// The cell of that number.
    ///
    /// # Safety
    ///
    /// As for `cell`, and `number` is below `len`.
    #[inline]
    pub(super) unsafe fn nth<'a>(self, number: usize) -> &'a AtomicU64 {
        let address = (self.0 >> DIRECTORY_ADDRESS_SHIFT) as usize;
        let cells = std::ptr::with_exposed_provenance::<AtomicU64>(address);
        // SAFETY: `number` is below the length, and the cells live as long as the index, which the
        // caller keeps alive.
        unsafe { &*cells.add(number) }
    }
}

/// An entry of a directory: address, size, depth and version of a segment.
///
/// | bits | |
/// |---|---|
/// | 0–4 | granules |
/// | 5–9 | depth: the number of hash bits below the partition's that all entries share |
/// | 10–25 | version: changes with every change of the segment |
/// | 26–63 | address / 1 KiB |
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

const ADDRESS_ALIGN_SHIFT: u32 = 10;
const GRANULES: u64 = 31;
const SEGMENT_DEPTH_SHIFT: u32 = 5;
const VERSION_SHIFT: u32 = 10;
const VERSION_BITS: u32 = 16;
const ADDRESS_SHIFT: u32 = 16;

const _: () = assert!(VERSION_SHIFT + VERSION_BITS == ADDRESS_SHIFT + ADDRESS_ALIGN_SHIFT);

impl Entry {
    pub(super) fn new(segment: NonNull<Line>, granules: usize, depth: u32, version: u64) -> Self {
        let address = segment.as_ptr().expose_provenance() as u64;
        debug_assert_eq!(address & ((1 << ADDRESS_ALIGN_SHIFT) - 1), 0);
        debug_assert_eq!(address >> (u64::BITS - ADDRESS_SHIFT), 0, "48 bits of address");
        debug_assert!((1..32).contains(&granules) && depth <= MAX_DEPTH);
        Self(
            (address << ADDRESS_SHIFT)
                | ((version & ((1 << VERSION_BITS) - 1)) << VERSION_SHIFT)
                | (u64::from(depth) << SEGMENT_DEPTH_SHIFT)
                | (granules as u64),
        )
    }
    #[inline]
    pub(super) fn segment(self) -> NonNull<Line> {
        let address = (self.0 >> ADDRESS_SHIFT) & !((1 << ADDRESS_ALIGN_SHIFT) - 1);
        let lines = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: an entry is made from a segment's address, which is not null.
        unsafe { NonNull::new_unchecked(lines) }
    }
    #[inline]
    pub(super) fn granules(self) -> usize {
        (self.0 & GRANULES) as usize
    }
    #[inline]
    pub(super) fn lines(self) -> usize {
        self.granules() * GRANULE_LINES
    }
    pub(super) fn depth(self) -> u32 {
        ((self.0 >> SEGMENT_DEPTH_SHIFT) & 31) as u32
    }
    pub(super) fn version(self) -> u64 {
        (self.0 >> VERSION_SHIFT) & ((1 << VERSION_BITS) - 1)
    }

    pub(super) fn all_lines<'a>(self) -> impl Iterator<Item = &'a Line> {
        // SAFETY: within the segment, whose memory holds lines for ever.
        (0..self.lines()).map(move |i| unsafe { self.segment().add(i).as_ref() })
    }
    /// The used slots, each with the number of its line.
    pub(super) fn slots(self) -> impl Iterator<Item = (usize, Slot)> {
        self.all_lines().enumerate().flat_map(|(i, line)| {
            line.slots
                .iter()
                .map(move |cell| (i, Slot(cell.load(Ordering::Relaxed))))
                .filter(|(_, slot)| !slot.is_empty())
        })
    }
    /// Line and number of the first used slot for which `wanted` is true.
    pub(super) fn place_of(self, wanted: impl Fn(Slot) -> bool) -> Option<(NonNull<Line>, usize)> {
        let is_wanted = |cell: &AtomicU64| {
            let slot = Slot(cell.load(Ordering::Relaxed));
            !slot.is_empty() && wanted(slot)
        };
        self.all_lines().find_map(|line| {
            let slot = line.slots.iter().position(is_wanted)?;
            Some((NonNull::from(line), slot))
        })
    }
    /// Entries in the segment.
    pub(super) fn count(self) -> usize {
        // SAFETY: a segment has at least one line.
        let first = unsafe { self.segment().as_ref() };
        (first.meta.load(Ordering::Relaxed) >> COUNT_SHIFT) as usize
    }
    /// Adds to the number of entries. For writers only, one at a time.
    pub(super) fn add_count(self, change: i64) {
        // SAFETY: a segment has at least one line.
        let first = unsafe { self.segment().as_ref() };
        let meta = first.meta.load(Ordering::Relaxed) as i64;
        first.meta.store((meta + (change << COUNT_SHIFT)) as u64, Ordering::Release);
    }
}
