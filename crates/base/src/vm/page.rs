//! The size of a page of memory.
//!
//! Purpose: the one place that asks the system for it. It is 4 KiB on most machines, and 16 or 64
//! KiB on some with ARM or POWER processors. A sector of a device, a page of the on-disk format and
//! a size class of the arena are none of its business.

/// Steps in which memory is made resident and given back: the system's pages, or more of them at a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    shift: u32,
}

impl PageSize {
    /// The size of the system's pages.
    pub fn system() -> Self {
        // The model checker and Miri take memory from the heap, which has no pages.
        #[cfg(any(miri, forebay_model))]
        let bytes: usize = 4096;
        // `sysconf(_SC_PAGESIZE)`, which rustix asks for once.
        #[cfg(not(any(miri, forebay_model)))]
        let bytes = rustix::param::page_size();
        Self { shift: bytes.ilog2() }
    }

    /// Steps of `bytes`: what is right on a system with such pages is right on one with smaller
    /// ones.
    ///
    /// # Panics
    /// If `bytes` is not a power of two, or is less than a page of this system.
    pub fn of(bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "a page of {bytes} bytes is not a power of two");
        let least = Self::system().bytes();
        assert!(bytes >= least, "a page of {bytes} bytes is less than the system's {least}");
        Self { shift: bytes.ilog2() }
    }

    /// Bytes of a page.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// The page that a byte at `offset` lies in.
    #[inline]
    pub const fn number_of(self, offset: usize) -> usize {
        offset >> self.shift
    }

    /// Pages that hold `len` bytes from the start of a page on.
    #[inline]
    pub const fn count(self, len: usize) -> usize {
        len.div_ceil(self.bytes())
    }

    /// `len` up to whole pages.
    #[inline]
    pub const fn round_up(self, len: usize) -> usize {
        len.next_multiple_of(self.bytes())
    }

    /// `len` down to whole pages.
    #[inline]
    pub const fn round_down(self, len: usize) -> usize {
        len & !(self.bytes() - 1)
    }

    /// Whether `len` is whole pages.
    #[inline]
    pub const fn divides(self, len: usize) -> bool {
        len.is_multiple_of(self.bytes())
    }
}
