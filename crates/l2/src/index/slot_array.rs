//! Memory of a partition: an array of slots that grows and shrinks in place.
//!
//! A small array is on the heap. A large one has pages of its own, which the system moves by their
//! tables when the array grows: so growth copies nothing, leaves no holes in the heap, and what
//! [`SlotArray::bytes`] says is what is resident, but for pages that were never touched.

use forebay_base::vm::{self, PageSize, Region};

use super::slot::Slot;

/// An array of this many pages and more has pages of its own: what it cannot use of the last one is
/// little then.
const MIN_REGION_PAGES: usize = if cfg!(any(miri, forebay_model)) { 8 } else { 16 };

/// There is no memory for the index.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoMemory {
    /// The heap has none.
    #[error("no memory for {bytes} bytes of the second level's index")]
    Heap { bytes: usize },
    /// The system has none.
    #[error(transparent)]
    Pages(#[from] vm::Error),
}

#[derive(Debug)]
pub(super) enum SlotArray {
    Heap(Vec<Slot>),
    Pages(Region),
}

impl SlotArray {
    pub(super) const fn none() -> Self {
        Self::Heap(Vec::new())
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Heap(slots) => slots.len(),
            Self::Pages(region) => region.len() / size_of::<Slot>(),
        }
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Heap(slots) => slots.capacity() * size_of::<Slot>(),
            Self::Pages(region) => region.len(),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[Slot] {
        match self {
            Self::Heap(slots) => slots,
            Self::Pages(region) => {
                let slots = region.base().as_ptr().cast();
                // SAFETY: the region is this array's own, page-aligned, as long as `len` says, and zero or
                // written through `as_mut_slice`: every bit pattern is a slot.
                unsafe { std::slice::from_raw_parts(slots, region.len() / size_of::<Slot>()) }
            }
        }
    }

    #[inline]
    pub(super) fn as_mut_slice(&mut self) -> &mut [Slot] {
        match self {
            Self::Heap(slots) => slots,
            Self::Pages(region) => {
                let slots = region.base().as_ptr().cast();
                // SAFETY: as in `as_slice`, and `self` is borrowed mutably.
                unsafe { std::slice::from_raw_parts_mut(slots, region.len() / size_of::<Slot>()) }
            }
        }
    }

    /// Makes room for `wanted` slots or, where a page has room for them, a few more. What is there stays;
    /// what is new is empty. What a smaller array no longer has must have been empty.
    ///
    /// # Errors
    /// When there is no memory; then nothing has changed.
    pub(super) fn resize(&mut self, wanted: usize) -> Result<(), NoMemory> {
        self.resize_by_pages(PageSize::system(), wanted)
    }

    fn resize_by_pages(&mut self, page: PageSize, wanted: usize) -> Result<(), NoMemory> {
        let min_region_bytes = MIN_REGION_PAGES * page.bytes();
        let bytes = wanted * size_of::<Slot>();
        match self {
            Self::Heap(slots) if bytes < min_region_bytes => {
                if let Some(more) = wanted.checked_sub(slots.len()) {
                    slots.try_reserve_exact(more).map_err(|_| NoMemory::Heap { bytes })?;
                }
                slots.resize(wanted, Slot::EMPTY);
                slots.shrink_to_fit();
            }
            Self::Heap(slots) => {
                let region = Region::with_pages(page, bytes, align_of::<Slot>())?;
                let mut pages = Self::Pages(region);
                pages.as_mut_slice()[..slots.len()].copy_from_slice(slots);
                *self = pages;
            }
            // The same array does not go to and fro between heap and pages.
            Self::Pages(_) if bytes < min_region_bytes / 2 => {
                let mut slots = Vec::new();
                slots.try_reserve_exact(wanted).map_err(|_| NoMemory::Heap { bytes })?;
                slots.extend_from_slice(&self.as_slice()[..wanted]);
                *self = Self::Heap(slots);
            }
            Self::Pages(region) => region.resize(bytes)?,
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(miri, forebay_model))))]
mod tests {
    use super::{MIN_REGION_PAGES, PageSize, Slot, SlotArray};

    #[test]
    fn large_arrays_use_whole_pages_for_every_page_size() {
        for kib in [16, 64] {
            let page = PageSize::of(kib << 10);
            let own = MIN_REGION_PAGES * page.bytes() / size_of::<Slot>();
            let mut slots = SlotArray::none();
            slots.resize_by_pages(page, own - 1).unwrap();
            assert!(matches!(slots, SlotArray::Heap(_)), "{kib} KiB");
            for wanted in [own, own + 1, 3 * own + 5, own, own / 2 + 1] {
                slots.resize_by_pages(page, wanted).unwrap();
                assert!(matches!(slots, SlotArray::Pages(_)), "{kib} KiB");
                assert!(slots.len() >= wanted && page.divides(slots.bytes()), "{kib} KiB");
                assert!(slots.as_slice().iter().all(|slot| slot.is_empty()));
            }
            slots.resize_by_pages(page, own / 2 - 1).unwrap();
            assert!(matches!(slots, SlotArray::Heap(_)), "{kib} KiB");
        }
    }
}
