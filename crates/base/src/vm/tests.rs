//! Tests of regions and chunks: released and kept pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Error, PageSize, Region, StableChunk, ZeroInit};

fn page() -> usize {
    PageSize::system().bytes()
}

#[test]
fn a_region_is_aligned_and_zero_also_after_release() {
    let region = Region::reserve(3 * page(), 1 << 16).unwrap();
    let base = region.base().as_ptr();
    #[cfg(not(miri))]
    assert_eq!(base as usize % (1 << 16), 0);
    // SAFETY: both addresses are within the region, which only this test uses.
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
fn a_resized_region_keeps_the_content_of_both_lengths() {
    let mut region = Region::reserve(2 * page(), page()).unwrap();
    // SAFETY: within the region, which only this test uses.
    unsafe { region.base().as_ptr().add(2 * page() - 1).write(7) };
    // Another mapping after it, so that it may have to move.
    let other = Region::reserve(page(), page()).unwrap();
    region.resize(64 * page() - 1).unwrap();
    assert_eq!(region.len(), 64 * page());
    let base = region.base().as_ptr();
    // SAFETY: the offsets are within the resized region, and `base` is its new address.
    unsafe {
        assert_eq!(base.add(2 * page() - 1).read(), 7);
        assert_eq!(base.add(2 * page()).read(), 0);
        base.add(64 * page() - 1).write(8);
    }
    region.resize(2 * page()).unwrap();
    region.resize(64 * page()).unwrap();
    let base = region.base().as_ptr();
    // SAFETY: the offsets are within the resized region, and `base` is its new address.
    unsafe {
        assert_eq!(base.add(2 * page() - 1).read(), 7);
        assert_eq!(base.add(64 * page() - 1).read(), 0, "bytes beyond the shorter length are zero");
    }
    drop(other);
}

#[test]
#[should_panic(expected = "does not move")]
fn an_aligned_region_cannot_be_resized() {
    let mut region = Region::reserve(page(), 1 << 16).unwrap();
    let _ = region.resize(2 * page());
}

#[test]
#[should_panic(expected = "outside the region")]
fn releasing_beyond_the_end_is_refused() {
    let region = Region::reserve(page(), page()).unwrap();
    // SAFETY: no code uses the region.
    let _ = unsafe { region.release(page(), page()) };
}

struct Cell(AtomicU64);

// SAFETY: one atomic, for which zero is a valid value.
unsafe impl ZeroInit for Cell {
    fn zero() -> Self {
        Self(AtomicU64::new(0))
    }
    fn wipe(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Releases ranges of elements, and returns the elements that are zero afterwards.
fn released(page: PageSize, count: usize, ranges: &[(usize, usize)]) -> Vec<usize> {
    let chunk = StableChunk::<Cell>::new(page, count, 64 << 10).unwrap();
    // SAFETY: within the chunk.
    let at = |i: usize| unsafe { &chunk.as_ptr().add(i).as_ref().0 };
    (0..count).for_each(|i| at(i).store(7, Relaxed));
    for (first, count) in ranges {
        // SAFETY: no other code has the elements.
        assert!(unsafe { chunk.release(*first, *count) });
    }
    (0..count).filter(|i| at(*i).load(Relaxed) == 0).collect()
}

#[test]
fn releasing_zeroes_exactly_its_elements_with_any_page_size() {
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
#[should_panic(expected = "not a range of whole pages")]
fn a_part_of_a_page_is_not_released() {
    let region = Region::with_pages(PageSize::of(64 << 10), 1 << 20, 64 << 10).unwrap();
    // SAFETY: no code uses the region.
    let _ = unsafe { region.release(16 << 10, 64 << 10) };
}

#[cfg(not(miri))]
#[test]
fn the_page_size_is_that_of_the_system() {
    // SAFETY: `sysconf` only returns a number.
    let asked = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    assert_eq!(page() as i64, asked);
}

/// Number of resident pages of a region.
#[cfg(not(miri))]
fn resident(region: &Region) -> usize {
    let mut pages = vec![0u8; region.len() / page()];
    let start = region.base().as_ptr().cast();
    // SAFETY: the region is mapped, and `pages` has a byte for each of its pages.
    let result = unsafe { libc::mincore(start, region.len(), pages.as_mut_ptr()) };
    assert_eq!(result, 0);
    pages.iter().filter(|page| *page & 1 == 1).count()
}

/// Elements fill the last page to its middle. Wiping them would make the page resident again, which
/// no counter includes.
#[cfg(not(miri))]
#[test]
fn a_fully_released_chunk_has_no_resident_page() {
    let count = (4 * page() + page() / 2) / size_of::<Cell>();
    let chunk = StableChunk::<Cell>::new(PageSize::system(), count, 64).unwrap();
    chunk.advise_huge(false);
    // SAFETY: within the chunk.
    (0..count).for_each(|i| unsafe { chunk.as_ptr().add(i).as_ref() }.0.store(7, Relaxed));
    assert_eq!(resident(&chunk.region), 5);
    // SAFETY: no other code has the elements.
    assert!(unsafe { chunk.release(0, count) });
    assert_eq!(resident(&chunk.region), 0);
}

#[cfg(not(miri))]
#[test]
fn release_reports_locked_pages_and_keeps_other_elements() {
    let count = 8 * page() / size_of::<Cell>();
    let chunk = StableChunk::<Cell>::new(PageSize::system(), count, 64).unwrap();
    // SAFETY: within the chunk.
    let at = |i: usize| unsafe { &chunk.as_ptr().add(i).as_ref().0 };
    (0..count).for_each(|i| at(i).store(7, Relaxed));
    let sixth = chunk.as_ptr().as_ptr().wrapping_byte_add(5 * page()).cast();
    // SAFETY: the chunk owns the page.
    if unsafe { libc::mlock(sixth, page()) } != 0 {
        return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
    }
    let (from, some) = (4 * count / 8 + 1, 3 * count / 8);
    // SAFETY: no other code has the elements.
    assert!(!unsafe { chunk.release(from, some) }, "a locked page is not released");
    // SAFETY: no other code has the elements.
    unsafe { chunk.wipe(from, some) };
    let zero: Vec<_> = (0..count).filter(|i| at(*i).load(Relaxed) == 0).collect();
    assert_eq!(zero, (from..from + some).collect::<Vec<_>>());
    // SAFETY: the chunk owns the page, and no other code has the elements.
    unsafe {
        assert_eq!(libc::munlock(sixth, page()), 0);
        assert!(chunk.release(from, some));
    }
}

#[test]
fn errors_name_their_cause() {
    let full = std::io::Error::from(std::io::ErrorKind::WouldBlock);
    let text = Error::new("reserve", 4096, full).to_string();
    assert!(text.contains("reserve 4096 bytes") && text.contains("munlockall"), "{text}");
    let other = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    assert!(Error::new("reserve", 4096, other).to_string().contains("ulimit -v"));
}

#[test]
fn wiping_zeroes_exactly_its_range() {
    let chunk = StableChunk::<Cell>::new(PageSize::system(), 2048, 64).unwrap();
    // SAFETY: within the chunk.
    let at = |i: usize| unsafe { &chunk.as_ptr().add(i).as_ref().0 };
    (0..2048).for_each(|i| at(i).store(7, Relaxed));
    // SAFETY: no other code has the elements.
    unsafe {
        chunk.wipe(512, 512);
        chunk.wipe(1, 2);
    }
    let left = (0..2048).filter(|i| at(*i).load(Relaxed) == 7).count();
    assert_eq!(left, 2048 - 512 - 2);
}
