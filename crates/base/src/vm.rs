//! Reserved address space whose pages can be released to the system and used again.
//!
//! The memory is *type-stable*. Pages of a [`Region`] may be released and reused while other
//! threads have addresses into it. These threads read zeros or newer content of the same type, and
//! never fault. A [`StableChunk`] is an array of such `T`, where zero bytes are a valid `T`.
//!
//! Invariants: pages are zero on first access and after [`Region::release`]. `release` releases
//! whole pages within the range only. Nothing is unmapped before the region is dropped, or resized
//! by its only owner.
//!
//! Locked memory: the system does not take locked pages back. So a process that locks all new
//! mappings (`mlockall` with `MCL_FUTURE`) cannot reserve a region ([`Error::Locked`]). If the
//! process locks pages later, `release` returns false, and its caller still counts them.
//!
//! The model build, whose atomics are not plain memory, and Miri construct and wipe each element.

mod page;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::ptr::NonNull;

pub use page::PageSize;

/// Memory cannot be reserved or resized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused address space.
    #[error(
        "cannot {doing} {bytes} bytes of memory: {source}; check `ulimit -v`, cgroup limits and vm.overcommit_memory"
    )]
    Refused {
        /// The operation.
        doing: &'static str,
        /// Number of bytes.
        bytes: usize,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The process locks all new mappings, so the memory could not be released.
    #[error(
        "cannot {doing} {bytes} bytes of memory: the process locks all new mappings (mlockall with \
         MCL_FUTURE), so this memory could not be released; call munlockall before, and mlock the \
         memory that must be locked"
    )]
    Locked {
        /// The operation.
        doing: &'static str,
        /// Number of bytes.
        bytes: usize,
    },
}

impl Error {
    fn new(doing: &'static str, bytes: usize, source: std::io::Error) -> Self {
        // For an anonymous mapping this error means that it must be locked and exceeds `ulimit -l`.
        if source.kind() == std::io::ErrorKind::WouldBlock {
            return Self::Locked { doing, bytes };
        }
        Self::Refused { doing, bytes, source }
    }
}

/// An aligned range of private, zero-filled memory. Pages become resident on first access.
#[derive(Debug)]
pub struct Region {
    mapping: NonNull<u8>,
    mapping_len: usize,
    base: NonNull<u8>,
    len: usize,
    page: PageSize,
}

// SAFETY: a region is plain memory. Code that makes references from its addresses is responsible
// for their use by several threads.
unsafe impl Send for Region {}
// SAFETY: the methods only call the kernel, which locks for itself, and code that dereferences an
// address is responsible for its use by several threads.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len` bytes, rounded up to pages, at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// If the system refuses address space, or the process locks all new mappings.
    ///
    /// # Panics
    /// If `len` is zero or `align` is not a power of two.
    pub fn reserve(len: usize, align: usize) -> Result<Self, Error> {
        Self::with_pages(PageSize::system(), len, align)
    }

    /// As [`reserve`](Self::reserve), with the page size `page`.
    ///
    /// # Errors
    /// As `reserve`.
    ///
    /// # Panics
    /// As `reserve`.
    pub fn with_pages(page: PageSize, len: usize, align: usize) -> Result<Self, Error> {
        assert!(len > 0, "an empty region");
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        let least = PageSize::system().bytes();
        let align = align.max(least);
        let len = page.round_up(len);
        // Reserve more to find an aligned start. The unused edges cost address space only.
        let mapping_len = if align == least { len } else { len + align };
        let refused = |source| Error::new("reserve", mapping_len, source);
        // Test with one page, because the system would make the whole mapping resident to lock it.
        if !os::can_release().map_err(refused)? {
            return Err(Error::Locked { doing: "reserve", bytes: mapping_len });
        }
        let mapping = os::map(mapping_len).map_err(refused)?;
        let skip = mapping.as_ptr().align_offset(align);
        // SAFETY: `skip < align`, so `skip + len` is within the mapping.
        let base = unsafe { mapping.add(skip) };
        Ok(Self { mapping, mapping_len, base, len, page })
    }

    /// The address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The unit in which it releases memory.
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// Number of reserved bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Sets the length to `len` bytes, rounded up to pages. Keeps the content up to the shorter
    /// length; new bytes are zero. The region may move, which invalidates addresses into it. The
    /// system moves page table entries and copies no bytes.
    ///
    /// # Errors
    /// If the system refuses address space. Nothing has changed then.
    ///
    /// # Panics
    /// If `len` is zero, or the alignment of the region is greater than a page.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        assert!(len > 0, "an empty region");
        assert!(self.mapping_len == self.len, "an aligned region does not move");
        let len = self.page.round_up(len);
        if len == self.len {
            return Ok(());
        }
        // SAFETY: this region owns the mapping, and addresses into it are not used any more, as
        // when it is dropped.
        let moved = unsafe { os::remap(self.mapping, self.mapping_len, len) };
        self.mapping = moved.map_err(|source| Error::new("resize to", len, source))?;
        (self.base, self.mapping_len, self.len) = (self.mapping, len, len);
        Ok(())
    }

    /// Releases the pages of `[offset, offset + len)` to the system. They read as zero afterwards.
    /// Both numbers are multiples of a page.
    ///
    /// Returns false if the system does not take all pages, because some are locked. Then each page
    /// may be resident, with its old content or zeros.
    ///
    /// # Safety
    /// No code relies on the content of the range, and no reference into it requires that the bytes
    /// do not change.
    ///
    /// # Panics
    /// If the range is not a range of whole pages, or not within the region.
    #[must_use]
    pub unsafe fn release(&self, offset: usize, len: usize) -> bool {
        let start = self.range(offset, len);
        // SAFETY: the range is within the mapping, and by contract its content is not needed.
        unsafe { os::release(start, len) }
    }

    /// Advises the system to use huge pages in `[offset, offset + len)`, or not to. A kernel
    /// without huge pages ignores it.
    ///
    /// # Panics
    /// If the range is not a range of whole pages, or not within the region.
    pub fn advise_huge(&self, wanted: bool, offset: usize, len: usize) {
        os::advise_huge(self.range(offset, len), len, wanted);
    }

    /// Collapses resident pages into huge pages at once (Linux 6.1 and later). Returns false if the
    /// kernel does not do that; then nothing has changed.
    pub fn collapse(&self) -> bool {
        os::advise_huge(self.base, self.len, true);
        os::collapse(self.base, self.len)
    }

    fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(self.page.divides(offset) && self.page.divides(len), "not a range of whole pages");
        assert!(offset <= self.len && len <= self.len - offset, "outside the region");
        // SAFETY: `offset` is within the region.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this region owns the mapping, and by contract no address into it outlives the
        // region.
        unsafe { os::unmap(self.mapping, self.mapping_len) };
    }
}

#[cfg(not(miri))]
mod os {
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{
        Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
    };

    pub(super) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        // SAFETY: a new anonymous private mapping, at an address that the kernel selects, has no
        // alias.
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

    /// # Safety
    /// `map` or `remap` returned `start` for `len` bytes, and no code uses them at this address any
    /// more.
    pub(super) unsafe fn remap(
        start: NonNull<u8>,
        len: usize,
        wanted: usize,
    ) -> std::io::Result<NonNull<u8>> {
        // SAFETY: by contract this is a whole mapping, and no code uses its old address any more.
        let moved = unsafe { mremap(start.as_ptr().cast(), len, wanted, MremapFlags::MAYMOVE) }?;
        NonNull::new(moved.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))
    }

    /// # Safety
    /// `map` or `remap` returned `start` for `len` bytes, and no code uses them any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: by contract this is a whole mapping, and no code uses it any more.
        let result = unsafe { munmap(start.as_ptr().cast(), len) };
        debug_assert!(result.is_ok(), "munmap of an owned mapping: {result:?}");
    }

    /// Whether new mappings of this process can be released.
    pub(super) fn can_release() -> std::io::Result<bool> {
        let len = super::PageSize::system().bytes();
        let page = map(len)?;
        // SAFETY: the page was just mapped, and no other code has its address.
        let taken = unsafe { release(page, len) };
        // SAFETY: the page was mapped above, and nothing uses it any more.
        unsafe { unmap(page, len) };
        Ok(taken)
    }

    /// # Safety
    /// The range lies within a mapping that `map` or `remap` returned, and no code relies on its
    /// content, or needs it to stay as it is.
    pub(super) unsafe fn release(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: by contract no code relies on the content of the range.
        len == 0 || unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) }.is_ok()
    }

    pub(super) fn advise_huge(start: NonNull<u8>, len: usize, wanted: bool) {
        if len == 0 {
            return;
        }
        let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the advice does not change the content of the range. A kernel without huge pages
        // returns an error, which is ignored.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, advice) };
    }

    pub(super) fn collapse(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: collapsing changes the physical pages, not their content.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_COLLAPSE) == 0 }
    }
}

#[cfg(miri)]
mod os {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, super::PageSize::system().bytes())
            .expect("the size of a region is valid")
    }

    pub(super) fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        // SAFETY: `len` is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(len)) })
            .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// `map` or `remap` returned `start` for `len` bytes, and no code uses them at this address any
    /// more.
    pub(super) unsafe fn remap(
        start: NonNull<u8>,
        len: usize,
        wanted: usize,
    ) -> std::io::Result<NonNull<u8>> {
        let moved = map(wanted)?;
        // SAFETY: both are at least that long, and no other code has the new one.
        unsafe { moved.as_ptr().copy_from_nonoverlapping(start.as_ptr(), len.min(wanted)) };
        // SAFETY: by contract no code uses the old one.
        unsafe { unmap(start, len) };
        Ok(moved)
    }

    /// # Safety
    /// `map` or `remap` returned `start` for `len` bytes, and no code uses them any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: allocated by `map` with the same layout.
        unsafe { dealloc(start.as_ptr(), layout(len)) };
    }

    pub(super) fn can_release() -> std::io::Result<bool> {
        Ok(true)
    }

    /// # Safety
    /// The range lies within a mapping that `map` or `remap` returned, and no code relies on its
    /// content, or needs it to stay as it is.
    pub(super) unsafe fn release(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: by contract the range is mapped, thus writable, and its content is not needed.
        unsafe { start.as_ptr().write_bytes(0, len) };
        true
    }

    pub(super) fn advise_huge(_: NonNull<u8>, _: usize, _: bool) {}

    pub(super) fn collapse(_: NonNull<u8>, _: usize) -> bool {
        false
    }
}

/// A type with a valid all-zero value, to which it can be reset in place while other threads read
/// it.
///
/// # Safety
/// An all-zero `Self` must be valid and must not need `drop`. Every part that a thread may read
/// without ownership must be atomic.
pub unsafe trait ZeroInit: Sized {
    /// The all-zero value.
    fn zero() -> Self;
    /// Resets `self` to [`zero`](Self::zero) with atomic stores.
    fn wipe(&self);
}

/// A type-stable array of `T`. Addresses stay valid until it is dropped, and its memory can be
/// released before.
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

// SAFETY: the chunk returns addresses, and code that dereferences them is responsible. Parts that
// threads read without ownership are atomic by `ZeroInit`.
unsafe impl<T: ZeroInit> Send for StableChunk<T> {}
// SAFETY: shared methods touch elements only as atomics, by `ZeroInit`, or by a contract that their
// caller owns the elements.
unsafe impl<T: ZeroInit> Sync for StableChunk<T> {}

#[cfg(not(any(miri, forebay_model)))]
impl<T: ZeroInit> StableChunk<T> {
    /// Creates an array of `count` zero values, aligned to at least `align` bytes.
    ///
    /// # Errors
    /// If the system refuses address space, or the process locks all new mappings.
    ///
    /// # Panics
    /// If `count` or the size of `T` is zero.
    pub fn new(page: PageSize, count: usize, align: usize) -> Result<Self, Error> {
        let align = align.max(align_of::<T>());
        let region = Region::with_pages(page, count * size_of::<T>(), align)?;
        Ok(Self { region, count, _of: std::marker::PhantomData })
    }

    /// The address of the first element.
    pub fn as_ptr(&self) -> NonNull<T> {
        self.region.base().cast()
    }

    /// Releases the pages that contain only elements `[first, first + count)`, and zeroes all these
    /// elements.
    ///
    /// Returns false if the system does not take the pages, because they are locked. Then they may
    /// be resident, and the caller must zero the elements with [`wipe`](Self::wipe).
    ///
    /// # Safety
    /// No code owns any of these elements or has a reference to a part that is not atomic.
    #[must_use]
    pub unsafe fn release(&self, first: usize, count: usize) -> bool {
        assert!(first <= self.count && count <= self.count - first, "outside the chunk");
        let (size, page) = (size_of::<T>(), self.region.page());
        let (start, end) = (first * size, (first + count) * size);
        let page_start = page.round_up(start).min(end);
        // The last page has nothing after the last element.
        let last = first + count == self.count;
        let page_end = if last { self.region.len() } else { page.round_down(end) };
        let page_end = page_end.max(page_start);
        if page.divides(page_start) {
            // SAFETY: the caller owns every element in the range.
            if !unsafe { self.region.release(page_start, page_end - page_start) } {
                return false;
            }
        }
        // Elements at both edges, on pages with other elements.
        let head = first..page_start.div_ceil(size).min(first + count);
        let tail = (page_end / size).max(head.end)..first + count;
        for i in head.chain(tail) {
            // SAFETY: forwarded from the caller.
            unsafe { self.wipe(i, 1) };
        }
        true
    }

    /// Zeroes elements `[first, first + count)` in place.
    ///
    /// # Safety
    /// As [`release`](Self::release).
    pub unsafe fn wipe(&self, first: usize, count: usize) {
        assert!(first <= self.count && count <= self.count - first, "outside the chunk");
        for i in first..first + count {
            // SAFETY: `i` is within the chunk, and zero bytes are a valid `T`.
            unsafe { self.as_ptr().add(i).as_ref() }.wipe();
        }
    }

    /// Advises the system to use huge pages, or not to.
    pub fn advise_huge(&self, wanted: bool) {
        self.region.advise_huge(wanted, 0, self.region.len());
    }

    /// Collapses resident pages into huge pages, as [`Region::collapse`].
    pub fn collapse(&self) -> bool {
        self.region.collapse()
    }
}

#[cfg(any(miri, forebay_model))]
impl<T: ZeroInit> StableChunk<T> {
    /// Creates an array of `count` zero values, aligned to `align` bytes or to a page, if that is
    /// less.
    ///
    /// # Errors
    /// Never, in this build.
    ///
    /// # Panics
    /// If `count` or the size of `T` is zero.
    pub fn new(page: PageSize, count: usize, align: usize) -> Result<Self, Error> {
        let layout = std::alloc::Layout::array::<T>(count)
            .and_then(|layout| layout.align_to(align.min(page.bytes())))
            .expect("a small chunk");
        assert!(layout.size() > 0, "an empty chunk");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }.cast::<T>())
            .expect("memory for a small chunk");
        for i in 0..count {
            // SAFETY: within the allocation, which no other code has yet.
            unsafe { start.add(i).write(T::zero()) };
        }
        Ok(Self { start, layout, count, _of: std::marker::PhantomData })
    }

    /// The address of the first element.
    pub fn as_ptr(&self) -> NonNull<T> {
        self.start
    }

    /// Zeroes elements `[first, first + count)` and returns true.
    ///
    /// # Safety
    /// No code owns any of these elements or has a reference to a part that is not atomic.
    #[must_use]
    pub unsafe fn release(&self, first: usize, count: usize) -> bool {
        // SAFETY: forwarded from the caller.
        unsafe { self.wipe(first, count) };
        true
    }

    /// Zeroes elements `[first, first + count)`.
    ///
    /// # Safety
    /// As [`release`](Self::release).
    pub unsafe fn wipe(&self, first: usize, count: usize) {
        assert!(first <= self.count && count <= self.count - first, "outside the chunk");
        for i in first..first + count {
            // SAFETY: `i` is within the chunk.
            unsafe { self.start.add(i).as_ref() }.wipe();
        }
    }

    /// Does nothing in this build.
    pub fn advise_huge(&self, _wanted: bool) {}

    /// Returns false in this build.
    pub fn collapse(&self) -> bool {
        false
    }
}

#[cfg(any(miri, forebay_model))]
impl<T: ZeroInit> Drop for StableChunk<T> {
    fn drop(&mut self) {
        for i in 0..self.count {
            // SAFETY: `new` wrote every element, and the chunk is being dropped.
            unsafe { self.start.add(i).drop_in_place() };
        }
        // SAFETY: allocated by `new` with the same layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}
