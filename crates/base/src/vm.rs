//! Address space that is reserved once and gives memory back piecewise.
//!
//! Purpose: *type-stable* memory. What lies in a [`Region`] may be released to the
//! system and used again while other threads still hold addresses into it: they read
//! zeros or newer content of the same type, and never fault. A [`StableChunk`] is such
//! an array of `T`, where zero bytes are a valid `T`.
//!
//! Invariants: a region's pages are zero when first touched and after
//! [`Region::release`]; nothing is unmapped before the region is dropped or, by its only owner, resized.
//!
//! Under the model checker (whose atomics are not plain memory) and under Miri, chunks
//! are built and wiped element by element instead.

use std::ptr::NonNull;

/// The system would not reserve, advise or release memory.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {doing} {bytes} bytes of memory: {source}; check `ulimit -v`, cgroup limits and vm.overcommit_memory"
)]
pub struct Error {
    doing: &'static str,
    bytes: usize,
    source: std::io::Error,
}

/// The system's page size on every machine that this crate supports.
pub const PAGE: usize = 4096;

/// A range of private, zero-filled memory, aligned as asked, backed by pages on first touch.
#[derive(Debug)]
pub struct Region {
    mapping: NonNull<u8>,
    mapping_len: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is plain memory; whoever turns its addresses into references answers
// for their use from several threads.
unsafe impl Send for Region {}
// SAFETY: as above; the methods only talk to the kernel.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len` bytes (rounded up to pages) at a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// When the address space or its accounting does not allow it.
    ///
    /// # Panics
    /// If `len` is zero or `align` is not a power of two.
    pub fn reserve(len: usize, align: usize) -> Result<Self, Error> {
        assert!(len > 0, "an empty region");
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        let align = align.max(PAGE);
        let len = len.next_multiple_of(PAGE);
        // Over-reserve to find an aligned start; untouched edges cost address space only.
        let mapping_len = if align == PAGE { len } else { len + align };
        let mapping = os::map(mapping_len).map_err(|source| Error {
            doing: "reserve",
            bytes: mapping_len,
            source,
        })?;
        let skip = mapping.as_ptr().align_offset(align);
        // SAFETY: `skip < align`, so that `skip + len` is within the mapping.
        let base = unsafe { mapping.add(skip) };
        Ok(Self { mapping, mapping_len, base, len })
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes reserved.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes the region `len` bytes long (rounded up to pages). What is in both lengths stays, what is new is
    /// zero. It may move: addresses into it are void. No bytes are copied, since the system moves the pages
    /// by their tables.
    ///
    /// # Errors
    /// When the address space or its accounting does not allow it; then nothing has changed.
    ///
    /// # Panics
    /// If `len` is zero, or the region was reserved at more than a page's alignment.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        assert!(len > 0, "an empty region");
        assert!(self.mapping_len == self.len, "an aligned region does not move");
        let len = len.next_multiple_of(PAGE);
        if len == self.len {
            return Ok(());
        }
        // SAFETY: the mapping is this region's own, and whoever holds addresses into it gives them up, as when
        // it is dropped.
        let moved = unsafe { os::remap(self.mapping, self.mapping_len, len) };
        self.mapping = moved.map_err(|source| Error { doing: "resize to", bytes: len, source })?;
        (self.base, self.mapping_len, self.len) = (self.mapping, len, len);
        Ok(())
    }

    /// Gives the pages of `[offset, offset + len)` back to the system at once; they read as zero
    /// afterwards. Both numbers are multiples of [`PAGE`].
    ///
    /// # Safety
    /// Nobody relies on the content of the range, and no reference into it says that the
    /// bytes cannot change.
    ///
    /// # Panics
    /// If the range is not page-granular or not within the region.
    pub unsafe fn release(&self, offset: usize, len: usize) {
        let start = self.range(offset, len);
        // SAFETY: the range is within this region's mapping, and the caller has given it up.
        unsafe { os::release(start, len) };
    }

    /// Asks for huge pages in `[offset, offset + len)`, or forbids them. Advice only: kernels
    /// without huge pages ignore it.
    ///
    /// # Panics
    /// If the range is not page-granular or not within the region.
    pub fn advise_huge(&self, wanted: bool, offset: usize, len: usize) {
        os::advise_huge(self.range(offset, len), len, wanted);
    }

    /// Makes huge pages of what is resident now, at once (Linux 6.1 and later). False where the kernel does
    /// not do that; then nothing has changed.
    pub fn collapse(&self) -> bool {
        os::advise_huge(self.base, self.len, true);
        os::collapse(self.base, self.len)
    }

    fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE), "not page-granular");
        assert!(offset <= self.len && len <= self.len - offset, "outside the region");
        // SAFETY: `offset` is within the region.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own, and whoever held addresses into it has
        // promised not to outlive it.
        unsafe { os::unmap(self.mapping, self.mapping_len) };
    }
}

#[cfg(not(any(miri, forebay_model)))]
mod os {
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{
        Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
    };

    pub(super) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))
    }

    pub(super) unsafe fn remap(
        start: NonNull<u8>,
        len: usize,
        wanted: usize,
    ) -> std::io::Result<NonNull<u8>> {
        // SAFETY: by contract the range is a mapping of ours that nobody uses meanwhile.
        let moved = unsafe { mremap(start.as_ptr().cast(), len, wanted, MremapFlags::MAYMOVE) }?;
        NonNull::new(moved.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))
    }

    pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: by contract the range is a mapping of ours that nobody uses any more.
        let result = unsafe { munmap(start.as_ptr().cast(), len) };
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
    }

    pub(super) unsafe fn release(start: NonNull<u8>, len: usize) {
        if len == 0 {
            return;
        }
        // SAFETY: by contract nobody relies on the content of the range.
        let result = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) };
        // Zeroing is part of the promise, so that a refusal (locked pages) is made good.
        if result.is_err() {
            // SAFETY: the range is ours and writable; the caller has given its content up.
            unsafe { start.as_ptr().write_bytes(0, len) };
        }
    }

    pub(super) fn advise_huge(start: NonNull<u8>, len: usize, wanted: bool) {
        if len == 0 {
            return;
        }
        let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: huge-page advice does not change what the range holds. A kernel without
        // huge pages refuses, which is fine.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, advice) };
    }

    pub(super) fn collapse(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: collapsing changes where the pages lie, not what they hold.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_COLLAPSE) == 0 }
    }
}

#[cfg(any(miri, forebay_model))]
mod os {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, super::PAGE).expect("a region's size is sane")
    }

    pub(super) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        // SAFETY: `len` is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(len)) })
            .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    pub(super) unsafe fn remap(
        start: NonNull<u8>,
        len: usize,
        wanted: usize,
    ) -> std::io::Result<NonNull<u8>> {
        let moved = map(wanted)?;
        // SAFETY: both are as long, and the new one is nobody else's.
        unsafe { moved.as_ptr().copy_from_nonoverlapping(start.as_ptr(), len.min(wanted)) };
        // SAFETY: by contract nobody uses the old one.
        unsafe { unmap(start, len) };
        Ok(moved)
    }

    pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: allocated by `map` with the same layout.
        unsafe { dealloc(start.as_ptr(), layout(len)) };
    }

    pub(super) unsafe fn release(start: NonNull<u8>, len: usize) {
        // SAFETY: the range is ours and writable; the caller has given its content up.
        unsafe { start.as_ptr().write_bytes(0, len) };
    }

    pub(super) fn advise_huge(_: NonNull<u8>, _: usize, _: bool) {}

    pub(super) fn collapse(_: NonNull<u8>, _: usize) -> bool {
        false
    }
}

/// A type of which zero bytes are a valid value, and which can be set back to it in place
/// while others read it.
///
/// # Safety
/// An all-zero `Self` must be valid and need no drop, and every part of it that another
/// thread may read without owning it must be atomic.
pub unsafe trait ZeroInit: Sized {
    /// The value that zero bytes mean.
    fn zero() -> Self;
    /// Makes `self` what [`zero`](Self::zero) is, with atomic stores.
    fn wipe(&self);
}

/// A type-stable array of `T`: addresses stay valid until it is dropped, while its memory
/// can be given back in between.
#[derive(Debug)]
pub struct StableChunk<T: ZeroInit> {
    #[cfg(not(any(miri, forebay_model)))]
    region: Region,
    #[cfg(any(miri, forebay_model))]
    start: NonNull<T>,
    #[cfg(any(miri, forebay_model))]
    layout: std::alloc::Layout,
    count: usize,
    _of: std::marker::PhantomData<T>,
}

// SAFETY: the chunk hands out addresses; whoever dereferences them answers for it. What may be
// shared without owning is atomic by `ZeroInit`.
unsafe impl<T: ZeroInit> Send for StableChunk<T> {}
// SAFETY: as above.
unsafe impl<T: ZeroInit> Sync for StableChunk<T> {}

#[cfg(not(any(miri, forebay_model)))]
impl<T: ZeroInit> StableChunk<T> {
    /// `count` zero values, at an address aligned to `align` bytes or more.
    ///
    /// # Errors
    /// When the system does not give the address space.
    ///
    /// # Panics
    /// If `count` or the size of `T` is zero.
    pub fn new(count: usize, align: usize) -> Result<Self, Error> {
        let region = Region::reserve(count * size_of::<T>(), align.max(align_of::<T>()))?;
        Ok(Self { region, count, _of: std::marker::PhantomData })
    }

    /// The first element.
    pub fn as_ptr(&self) -> NonNull<T> {
        self.region.base().cast()
    }

    /// Makes elements `[first, first + count)` zero. Whole pages among them go back to the system.
    ///
    /// # Safety
    /// Nobody owns any of these elements or holds a reference to a part that is not atomic.
    pub unsafe fn wipe(&self, first: usize, count: usize) {
        assert!(first <= self.count && count <= self.count - first, "outside the chunk");
        let size = size_of::<T>();
        let (start, end) = (first * size, (first + count) * size);
        let page_start = start.next_multiple_of(PAGE).min(end);
        let page_end = (end / PAGE * PAGE).max(page_start);
        if page_start < page_end {
            // SAFETY: the caller owns every element in the range.
            unsafe { self.region.release(page_start, page_end - page_start) };
        }
        // The elements that lie on pages which hold others too, at either edge.
        let head = first..page_start.div_ceil(size).min(first + count);
        let tail = (page_end / size).max(head.end)..first + count;
        for i in head.chain(tail) {
            // SAFETY: `i` is within the chunk, and zero bytes are a valid `T`.
            unsafe { self.as_ptr().add(i).as_ref() }.wipe();
        }
    }

    /// Asks for huge pages, or forbids them.
    pub fn advise_huge(&self, wanted: bool) {
        self.region.advise_huge(wanted, 0, self.region.len());
    }

    /// See [`Region::collapse`].
    pub fn collapse(&self) -> bool {
        self.region.collapse()
    }
}

#[cfg(any(miri, forebay_model))]
impl<T: ZeroInit> StableChunk<T> {
    /// `count` zero values; `align` is honoured up to a page.
    ///
    /// # Errors
    /// Never, in this build.
    ///
    /// # Panics
    /// If `count` or the size of `T` is zero.
    pub fn new(count: usize, align: usize) -> Result<Self, Error> {
        let layout = std::alloc::Layout::array::<T>(count)
            .and_then(|layout| layout.align_to(align.min(PAGE)))
            .expect("a small chunk");
        assert!(layout.size() > 0, "an empty chunk");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }.cast::<T>())
            .expect("memory for a small chunk");
        for i in 0..count {
            // SAFETY: within the allocation, which nobody else has yet.
            unsafe { start.add(i).write(T::zero()) };
        }
        Ok(Self { start, layout, count, _of: std::marker::PhantomData })
    }

    /// The first element.
    pub fn as_ptr(&self) -> NonNull<T> {
        self.start
    }

    /// Makes elements `[first, first + count)` zero.
    ///
    /// # Safety
    /// Nobody owns any of these elements or holds a reference to a part that is not atomic.
    pub unsafe fn wipe(&self, first: usize, count: usize) {
        assert!(first <= self.count && count <= self.count - first, "outside the chunk");
        for i in first..first + count {
            // SAFETY: `i` is within the chunk.
            unsafe { self.start.add(i).as_ref() }.wipe();
        }
    }

    /// Nothing, in this build.
    pub fn advise_huge(&self, _wanted: bool) {}

    /// Nothing, in this build.
    pub fn collapse(&self) -> bool {
        false
    }
}

#[cfg(any(miri, forebay_model))]
impl<T: ZeroInit> Drop for StableChunk<T> {
    fn drop(&mut self) {
        for i in 0..self.count {
            // SAFETY: every element was written by `new`, and the chunk is going away.
            unsafe { self.start.add(i).drop_in_place() };
        }
        // SAFETY: allocated by `new` with the same layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::{PAGE, Region, StableChunk, ZeroInit};

    #[test]
    fn a_region_is_aligned_zero_and_forgets_what_is_released() {
        let region = Region::reserve(3 * PAGE, 1 << 16).unwrap();
        let base = region.base().as_ptr();
        #[cfg(not(miri))]
        assert_eq!(base as usize % (1 << 16), 0);
        // SAFETY: both addresses are within the region, which this test alone uses.
        unsafe {
            assert_eq!(base.add(PAGE).read(), 0);
            base.write(1);
            base.add(PAGE).write(2);
            region.release(PAGE, PAGE);
            assert_eq!(base.read(), 1);
            assert_eq!(base.add(PAGE).read(), 0);
        }
    }

    #[test]
    fn a_region_that_changes_its_length_keeps_what_is_in_both() {
        let mut region = Region::reserve(2 * PAGE, PAGE).unwrap();
        // SAFETY: within the region, which this test alone uses.
        unsafe { region.base().as_ptr().add(2 * PAGE - 1).write(7) };
        // Something behind it, so that it may have to move.
        let other = Region::reserve(PAGE, PAGE).unwrap();
        region.resize(64 * PAGE - 1).unwrap();
        assert_eq!(region.len(), 64 * PAGE);
        let base = region.base().as_ptr();
        // SAFETY: as above, at its new place.
        unsafe {
            assert_eq!(base.add(2 * PAGE - 1).read(), 7);
            assert_eq!(base.add(2 * PAGE).read(), 0);
            base.add(64 * PAGE - 1).write(8);
        }
        region.resize(2 * PAGE).unwrap();
        region.resize(64 * PAGE).unwrap();
        let base = region.base().as_ptr();
        // SAFETY: as above.
        unsafe {
            assert_eq!(base.add(2 * PAGE - 1).read(), 7);
            assert_eq!(base.add(64 * PAGE - 1).read(), 0, "what was cut off is forgotten");
        }
        drop(other);
    }

    #[test]
    #[should_panic(expected = "does not move")]
    fn an_aligned_region_keeps_its_length() {
        let mut region = Region::reserve(PAGE, 1 << 16).unwrap();
        let _ = region.resize(2 * PAGE);
    }

    #[test]
    #[should_panic(expected = "outside the region")]
    fn releasing_beyond_the_end_is_refused() {
        let region = Region::reserve(PAGE, PAGE).unwrap();
        // SAFETY: nobody uses the region.
        unsafe { region.release(PAGE, PAGE) };
    }

    struct Cell(AtomicU64);

    // SAFETY: one atomic, of which zero is a valid value.
    unsafe impl ZeroInit for Cell {
        fn zero() -> Self {
            Self(AtomicU64::new(0))
        }
        fn wipe(&self) {
            self.0.store(0, Relaxed);
        }
    }

    #[test]
    fn wiping_clears_exactly_its_range() {
        let chunk = StableChunk::<Cell>::new(2048, 64).unwrap();
        // SAFETY: within the chunk.
        let at = |i: usize| unsafe { &chunk.as_ptr().add(i).as_ref().0 };
        (0..2048).for_each(|i| at(i).store(7, Relaxed));
        // SAFETY: nobody else has the elements.
        unsafe {
            chunk.wipe(512, 512);
            chunk.wipe(1, 2);
        }
        let left = (0..2048).filter(|i| at(*i).load(Relaxed) == 7).count();
        assert_eq!(left, 2048 - 512 - 2);
    }
}
