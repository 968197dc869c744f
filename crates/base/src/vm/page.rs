//! The page size of the system.
//!
//! It is 4 KiB on most machines, and 16 or 64 KiB on some machines with ARM or POWER processors.
//! Sectors of devices, the on-disk format and the size classes of the arena do not depend on it.

/// The unit in which memory becomes resident and is released: a page of the system, or a multiple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    shift: u32,
}

impl PageSize {
    /// The page size of the system.
    pub fn system() -> Self {
        // Miri allocates from the heap, which has no pages.
        #[cfg(miri)]
        let bytes: usize = 4096;
        // `sysconf(_SC_PAGESIZE)`, which rustix caches.
        #[cfg(not(miri))]
        let bytes = rustix::param::page_size();
        Self { shift: bytes.ilog2() }
    }

    /// A page size of `bytes`. A multiple of the page size of the system is also correct.
    ///
    /// # Panics
    /// If `bytes` is not a power of two, or is less than the page size of the system.
    pub fn of(bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "a page of {bytes} bytes is not a power of two");
        let least = Self::system().bytes();
        assert!(
            bytes >= least,
            "a page of {bytes} bytes is less than a page of the system, {least} bytes"
        );
        Self { shift: bytes.ilog2() }
    }

    /// Size of a page in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// The number of the page that contains the byte at `offset`.
    #[inline]
    pub const fn number_of(self, offset: usize) -> usize {
        offset >> self.shift
    }

    /// Number of pages for `len` bytes.
    #[inline]
    pub const fn count(self, len: usize) -> usize {
        len.div_ceil(self.bytes())
    }

    /// `len` rounded up to whole pages.
    #[inline]
    pub const fn round_up(self, len: usize) -> usize {
        len.next_multiple_of(self.bytes())
    }

    /// `len` rounded down to whole pages.
    #[inline]
    pub const fn round_down(self, len: usize) -> usize {
        len & !(self.bytes() - 1)
    }

    /// Whether `len` is a multiple of the page size.
    #[inline]
    pub const fn divides(self, len: usize) -> bool {
        len.is_multiple_of(self.bytes())
    }
}
