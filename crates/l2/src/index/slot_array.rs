//! The memory of a partition: an array of slots that grows and shrinks in place.
//!
//! A small array is on the heap. A large one is a memory region, which the system grows by
//! remapping its pages. So growth copies nothing and leaves no holes in the heap.
//! [`SlotArray::bytes`] is the resident size, except for pages that were never touched.

use forebay_base::vm::{self, PageSize, Region};

use super::slot::Slot;

/// Arrays of at least this many pages use a region. The unused part of its last page is then small.
const MIN_REGION_PAGES: usize = if cfg!(any(miri, forebay_model)) { 8 } else { 16 };

/// No memory for the index.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoMemory {
    /// The heap is exhausted.
    #[error("no memory for {bytes} bytes of the L2's index")]
    Heap { bytes: usize },
    /// The system refused the pages.
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

    /// Bytes in use.
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
                // SAFETY: the array owns the region. It is page-aligned, as long as `len` says, and
                // zero or written through `as_mut_slice`. Every bit pattern is a slot.
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
                // SAFETY: the array owns the page-aligned region, which has so many slots, zero or
                // written through such a slice; every bit pattern is a slot, and `self` is borrowed
                // mutably.
                unsafe { std::slice::from_raw_parts_mut(slots, region.len() / size_of::<Slot>()) }
            }
        }
    }

    /// Resizes the array to `wanted` slots, or slightly more if a page has space. Existing slots
    /// stay, and new slots are empty. Slots that are cut off must be empty.
    ///
    /// # Errors
    /// If memory is exhausted. The array is then unchanged.
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
            // Hysteresis: the array does not oscillate between heap and region.
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
