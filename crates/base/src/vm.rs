//! Address space that is reserved once and gives memory back piecewise.
//!
//! Purpose: *type-stable* memory. What lies in a [`Region`] may be released to the
//! system and used again while other threads still hold addresses into it: they read
//! zeros or newer content of the same type, and never fault. A [`StableChunk`] is such
//! an array of `T`, where zero bytes are a valid `T`.
//!
//! Invariants: a region's pages are zero when first touched and once [`Region::release`] has given
//! them back; only whole pages of the range that the caller names are ever given back; nothing is
//! unmapped before the region is dropped or, by its only owner, resized.
//!
//! Locked memory. The system takes no locked page back. So nothing is reserved in a process that
//! locks what it maps (`mlockall` with `MCL_FUTURE`): [`Error::Locked`] says why. If memory is
//! locked later, `release` says that the pages stayed, and whoever called it goes on counting them.
//!
//! Under the model checker (whose atomics are not plain memory) and under Miri, chunks
//! are built and wiped element by element instead.

mod page;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::ptr::NonNull;

pub use page::PageSize;

/// The system does not give memory, or would not take it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address space or its accounting does not allow it.
    #[error(
        "cannot {doing} {bytes} bytes of memory: {source}; check `ulimit -v`, cgroup limits and vm.overcommit_memory"
    )]
    Refused {
        /// What was asked for.
        doing: &'static str,
        /// How much, in bytes.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The process locks what it maps: it could never give memory back.
    #[error(
        "cannot {doing} {bytes} bytes of memory: the process locks all memory that it maps (mlockall with \
         MCL_FUTURE), so that the system would take none of it back; call munlockall before, and lock with mlock \
         what has to stay in memory"
    )]
    Locked {
        /// What was asked for.
        doing: &'static str,
        /// How much, in bytes.
        bytes: usize,
    },
}

impl Error {
    fn new(doing: &'static str, bytes: usize, source: std::io::Error) -> Self {
        // Of a mapping without a file, the system says this only if it would have to be locked and
        // exceeds `ulimit -l`.
        if source.kind() == std::io::ErrorKind::WouldBlock {
            return Self::Locked { doing, bytes };
        }
        Self::Refused { doing, bytes, source }
    }
}

/// A range of private, zero-filled memory, aligned as asked, backed by pages on first touch.
#[derive(Debug)]
pub struct Region {
    mapping: NonNull<u8>,
    mapping_len: usize,
    base: NonNull<u8>,
    len: usize,
    page: PageSize,
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
    /// When the address space or its accounting does not allow it, or the process locks what it
    /// maps.
    ///
    /// # Panics
    /// If `len` is zero or `align` is not a power of two.
    pub fn reserve(len: usize, align: usize) -> Result<Self, Error> {
        Self::with_pages(PageSize::system(), len, align)
    }

    /// As [`reserve`](Self::reserve), in pages of `page`.
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
        // Over-reserve to find an aligned start; untouched edges cost address space only.
        let mapping_len = if align == least { len } else { len + align };
        let refused = |source| Error::new("reserve", mapping_len, source);
        // With a page, since the system would make all of a mapping resident to lock it.
        if !os::takes_back().map_err(refused)? {
            return Err(Error::Locked { doing: "reserve", bytes: mapping_len });
        }
        let mapping = os::map(mapping_len).map_err(refused)?;
        let skip = mapping.as_ptr().align_offset(align);
        // SAFETY: `skip < align`, so that `skip + len` is within the mapping.
        let base = unsafe { mapping.add(skip) };
        Ok(Self { mapping, mapping_len, base, len, page })
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The steps in which it gives memory back.
    pub fn page(&self) -> PageSize {
        self.page
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
        let len = self.page.round_up(len);
        if len == self.len {
            return Ok(());
        }
        // SAFETY: the mapping is this region's own, and whoever holds addresses into it gives them up, as when
        // it is dropped.
        let moved = unsafe { os::remap(self.mapping, self.mapping_len, len) };
        self.mapping = moved.map_err(|source| Error::new("resize to", len, source))?;
        (self.base, self.mapping_len, self.len) = (self.mapping, len, len);
        Ok(())
    }

    /// Gives the pages of `[offset, offset + len)` back to the system at once; they read as zero
    /// afterwards. Both numbers are multiples of a page.
    ///
    /// False if the system does not take them all (they are locked): then each of them may be
    /// resident, and holds what it held or zeros.
    ///
    /// # Safety
    /// Nobody relies on the content of the range, and no reference into it says that the
    /// bytes cannot change.
    ///
    /// # Panics
    /// If the range is not page-granular or not within the region.
    #[must_use]
    pub unsafe fn release(&self, offset: usize, len: usize) -> bool {
        let start = self.range(offset, len);
        // SAFETY: the range is within this region's mapping, and the caller has given it up.
        unsafe { os::release(start, len) }
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
        assert!(self.page.divides(offset) && self.page.divides(len), "not page-granular");
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

    /// Whether the system takes back what this process maps now.
    pub(super) fn takes_back() -> std::io::Result<bool> {
        let len = super::PageSize::system().bytes();
        let page = map(len)?;
        // SAFETY: the page was just mapped, and nobody else knows it.
        let taken = unsafe { release(page, len) };
        // SAFETY: as above.
        unsafe { unmap(page, len) };
        Ok(taken)
    }

    pub(super) unsafe fn release(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: by contract nobody relies on the content of the range.
        len == 0 || unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) }.is_ok()
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
        Layout::from_size_align(len, super::PageSize::system().bytes())
            .expect("a region's size is sane")
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

    pub(super) fn takes_back() -> std::io::Result<bool> {
        Ok(true)
    }

    pub(super) unsafe fn release(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the range is ours and writable; the caller has given its content up.
        unsafe { start.as_ptr().write_bytes(0, len) };
        true
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
    /// When the system does not give the address space, or the process locks what it maps.
    ///
    /// # Panics
    /// If `count` or the size of `T` is zero.
    pub fn new(page: PageSize, count: usize, align: usize) -> Result<Self, Error> {
        let align = align.max(align_of::<T>());
        let region = Region::with_pages(page, count * size_of::<T>(), align)?;
        Ok(Self { region, count, _of: std::marker::PhantomData })
    }

    /// The first element.
    pub fn as_ptr(&self) -> NonNull<T> {
        self.region.base().cast()
    }

    /// Gives the pages that elements `[first, first + count)` have to themselves back to the
    /// system, and makes all these elements zero.
    ///
    /// False if the system does not take the pages (they are locked): then they may be resident,
    /// and what the elements hold is up to [`wipe`](Self::wipe).
    ///
    /// # Safety
    /// Nobody owns any of these elements or holds a reference to a part that is not atomic.
    #[must_use]
    pub unsafe fn release(&self, first: usize, count: usize) -> bool {
        assert!(first <= self.count && count <= self.count - first, "outside the chunk");
        let (size, page) = (size_of::<T>(), self.region.page());
        let (start, end) = (first * size, (first + count) * size);
        let page_start = page.round_up(start).min(end);
        // Behind the last element nothing else lies on its page.
        let last = first + count == self.count;
        let page_end = if last { self.region.len() } else { page.round_down(end) };
        let page_end = page_end.max(page_start);
        if page.divides(page_start) {
            // SAFETY: the caller owns every element in the range.
            if !unsafe { self.region.release(page_start, page_end - page_start) } {
                return false;
            }
        }
        // The elements that lie on pages which hold others too, at either edge.
        let head = first..page_start.div_ceil(size).min(first + count);
        let tail = (page_end / size).max(head.end)..first + count;
        for i in head.chain(tail) {
            // SAFETY: forwarded from the caller.
            unsafe { self.wipe(i, 1) };
        }
        true
    }

    /// Makes elements `[first, first + count)` zero where they are.
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
    pub fn new(page: PageSize, count: usize, align: usize) -> Result<Self, Error> {
        let layout = std::alloc::Layout::array::<T>(count)
            .and_then(|layout| layout.align_to(align.min(page.bytes())))
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

    /// Makes elements `[first, first + count)` zero, and says that they were given back.
    ///
    /// # Safety
    /// Nobody owns any of these elements or holds a reference to a part that is not atomic.
    #[must_use]
    pub unsafe fn release(&self, first: usize, count: usize) -> bool {
        // SAFETY: forwarded from the caller.
        unsafe { self.wipe(first, count) };
        true
    }

    /// Makes elements `[first, first + count)` zero.
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
