//! Regions and chunks: what is given back, and what is not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Error, PageSize, Region, StableChunk, ZeroInit};

fn page() -> usize {
    PageSize::system().bytes()
}

#[test]
fn a_region_is_aligned_zero_and_forgets_what_is_released() {
    let region = Region::reserve(3 * page(), 1 << 16).unwrap();
    let base = region.base().as_ptr();
    #[cfg(not(miri))]
    assert_eq!(base as usize % (1 << 16), 0);
    // SAFETY: both addresses are within the region, which this test alone uses.
    unsafe {
        assert_eq!(base.add(page()).read(), 0);
        base.write(1);
        base.add(page()).write(2);
        assert!(region.release(page(), page()));
        assert_eq!(base.read(), 1);
        assert_eq!(base.add(page()).read(), 0);
    }
}

#[test]
fn a_region_that_changes_its_length_keeps_what_is_in_both() {
    let mut region = Region::reserve(2 * page(), page()).unwrap();
    // SAFETY: within the region, which this test alone uses.
    unsafe { region.base().as_ptr().add(2 * page() - 1).write(7) };
    // Something behind it, so that it may have to move.
    let other = Region::reserve(page(), page()).unwrap();
    region.resize(64 * page() - 1).unwrap();
    assert_eq!(region.len(), 64 * page());
    let base = region.base().as_ptr();
    // SAFETY: as above, at its new place.
    unsafe {
        assert_eq!(base.add(2 * page() - 1).read(), 7);
        assert_eq!(base.add(2 * page()).read(), 0);
        base.add(64 * page() - 1).write(8);
    }
    region.resize(2 * page()).unwrap();
    region.resize(64 * page()).unwrap();
    let base = region.base().as_ptr();
    // SAFETY: as above.
    unsafe {
        assert_eq!(base.add(2 * page() - 1).read(), 7);
        assert_eq!(base.add(64 * page() - 1).read(), 0, "what was cut off is forgotten");
    }
    drop(other);
}

#[test]
#[should_panic(expected = "does not move")]
fn an_aligned_region_keeps_its_length() {
    let mut region = Region::reserve(page(), 1 << 16).unwrap();
    let _ = region.resize(2 * page());
}

#[test]
#[should_panic(expected = "outside the region")]
fn releasing_beyond_the_end_is_refused() {
    let region = Region::reserve(page(), page()).unwrap();
    // SAFETY: nobody uses the region.
    let _ = unsafe { region.release(page(), page()) };
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

/// Gives element ranges back, and looks at which ones are zero afterwards.
fn released(page: PageSize, count: usize, ranges: &[(usize, usize)]) -> Vec<usize> {
    let chunk = StableChunk::<Cell>::new(page, count, 64 << 10).unwrap();
    // SAFETY: within the chunk.
    let at = |i: usize| unsafe { &chunk.as_ptr().add(i).as_ref().0 };
    (0..count).for_each(|i| at(i).store(7, Relaxed));
    for (first, count) in ranges {
        // SAFETY: nobody else has the elements.
        assert!(unsafe { chunk.release(*first, *count) });
    }
    (0..count).filter(|i| at(*i).load(Relaxed) == 0).collect()
}

#[test]
fn releasing_elements_clears_exactly_them_whatever_the_size_of_a_page() {
    for kib in [4, 16, 64] {
        if kib << 10 < page() {
            continue;
        }
        let ranges = [(512, 512), (1, 2), (3000, 9000), (12_500, 20_000 - 12_500)];
        let expected: Vec<_> =
            [1..3, 512..1024, 3000..12_000, 12_500..20_000].into_iter().flatten().collect();
        assert_eq!(released(PageSize::of(kib << 10), 20_000, &ranges), expected, "{kib} KiB");
    }
}

#[test]
#[should_panic(expected = "not page-granular")]
fn part_of_a_page_is_never_given_back() {
    let region = Region::with_pages(PageSize::of(64 << 10), 1 << 20, 64 << 10).unwrap();
    // SAFETY: nobody uses the region.
    let _ = unsafe { region.release(16 << 10, 64 << 10) };
}

#[cfg(not(miri))]
#[test]
fn pages_are_what_the_system_says() {
    // SAFETY: a question about a number.
    let asked = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    assert_eq!(page() as i64, asked);
}

/// Pages of a region that are in memory.
#[cfg(not(miri))]
fn resident(region: &Region) -> usize {
    let mut pages = vec![0u8; region.len() / page()];
    let start = region.base().as_ptr().cast();
    // SAFETY: the region is mapped, and `pages` has a byte for each of its pages.
    let result = unsafe { libc::mincore(start, region.len(), pages.as_mut_ptr()) };
    assert_eq!(result, 0);
    pages.iter().filter(|page| *page & 1 == 1).count()
}

/// The last page holds elements to its middle only. Wiping these would make it resident again,
/// which nobody counts.
#[cfg(not(miri))]
#[test]
fn a_chunk_that_is_given_back_whole_leaves_no_page_behind() {
    let count = (4 * page() + page() / 2) / size_of::<Cell>();
    let chunk = StableChunk::<Cell>::new(PageSize::system(), count, 64).unwrap();
    chunk.advise_huge(false);
    // SAFETY: within the chunk.
    (0..count).for_each(|i| unsafe { chunk.as_ptr().add(i).as_ref() }.0.store(7, Relaxed));
    assert_eq!(resident(&chunk.region), 5);
    // SAFETY: nobody else has the elements.
    assert!(unsafe { chunk.release(0, count) });
    assert_eq!(resident(&chunk.region), 0);
}

#[cfg(not(miri))]
#[test]
fn locked_pages_are_said_to_stay_and_others_are_untouched() {
    let count = 8 * page() / size_of::<Cell>();
    let chunk = StableChunk::<Cell>::new(PageSize::system(), count, 64).unwrap();
    // SAFETY: within the chunk.
    let at = |i: usize| unsafe { &chunk.as_ptr().add(i).as_ref().0 };
    (0..count).for_each(|i| at(i).store(7, Relaxed));
    let sixth = chunk.as_ptr().as_ptr().wrapping_byte_add(5 * page()).cast();
    // SAFETY: the page is this chunk's.
    if unsafe { libc::mlock(sixth, page()) } != 0 {
        return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
    }
    let (from, some) = (4 * count / 8 + 1, 3 * count / 8);
    // SAFETY: nobody else has the elements.
    assert!(!unsafe { chunk.release(from, some) }, "a locked page is not taken");
    // SAFETY: as above.
    unsafe { chunk.wipe(from, some) };
    let zero: Vec<_> = (0..count).filter(|i| at(*i).load(Relaxed) == 0).collect();
    assert_eq!(zero, (from..from + some).collect::<Vec<_>>());
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::munlock(sixth, page()), 0);
        assert!(chunk.release(from, some));
    }
}

#[test]
fn errors_name_what_is_in_the_way() {
    let full = std::io::Error::from(std::io::ErrorKind::WouldBlock);
    let text = Error::new("reserve", 4096, full).to_string();
    assert!(text.contains("reserve 4096 bytes") && text.contains("munlockall"), "{text}");
    let other = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    assert!(Error::new("reserve", 4096, other).to_string().contains("ulimit -v"));
}

#[test]
fn wiping_clears_exactly_its_range() {
    let chunk = StableChunk::<Cell>::new(PageSize::system(), 2048, 64).unwrap();
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
