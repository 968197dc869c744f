//! Memory of segments: runs of granules from type-stable chunks of 2 MiB.
//!
//! Invariants
//!
//! * A chunk holds only lines, and stays mapped while the index exists. A reader with an outdated
//!   segment reads lines, perhaps of another segment.
//! * Memory is counted and returned in whole pages of the system, which are larger than a granule.
//!
//! Locking: `index-memory`, a leaf lock.

use std::ops::Range;
use std::ptr::NonNull;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::vm::{self, PageSize, StableChunk};

use super::line::Line;

/// Lines per granule, the unit of a segment's size.
pub(crate) const GRANULE_LINES: usize = if cfg!(forebay_model) { 1 } else { 16 };
const GRANULE_BYTES: usize = GRANULE_LINES * 64;
/// Granules per chunk: 2 MiB, the largest allocation of the index.
const CHUNK_GRANULES: usize = if cfg!(any(miri, forebay_model)) { 64 } else { 2048 };
const WORDS: usize = CHUNK_GRANULES / 64;
/// Idle memory allowed in an index of any size.
const IDLE_BYTES: u64 = 256 << 10;
/// Additional idle memory allowed, as a part of the used memory: one in this many bytes.
const IDLE_SHARE: u64 = 8;
/// Idle memory of a huge page that is never returned. Less than the share above, so that it alone
/// does not trigger another search.
const SPARED_BYTES: usize = CHUNK_GRANULES * GRANULE_BYTES / 16;

pub(crate) struct Memory {
    page: PageSize,
    chunks: Mutex<Vec<Chunk>>,
    /// Bytes of granules in use.
    used: AtomicU64,
    /// Bytes of pages with a granule that was touched since the page was last returned.
    touched: AtomicU64,
}

struct Chunk {
    /// Granules per page.
    per_page: usize,
    lines: StableChunk<Line>,
    used: [u64; WORDS],
    touched: [u64; WORDS],
    used_count: usize,
    /// A search found no run of this many free granules. Reset when granules are returned. A large
    /// index has many chunks with few scattered free granules, which should not be searched each
    /// time.
    none_of: usize,
    /// The chunk is one huge page, so all of it is resident.
    huge: bool,
}

fn get(bits: &[u64; WORDS], at: usize) -> bool {
    bits[at / 64] & (1 << (at % 64)) != 0
}
fn set(bits: &mut [u64; WORDS], at: usize, value: bool) {
    let bit = 1 << (at % 64);
    if value { bits[at / 64] |= bit } else { bits[at / 64] &= !bit }
}

impl Memory {
    pub(crate) fn new(page: PageSize) -> Self {
        Self {
            page,
            chunks: Mutex::named("index-memory", Vec::new()),
            used: AtomicU64::new(0),
            touched: AtomicU64::new(0),
        }
    }

    /// Takes a run of `granules` zeroed granules.
    ///
    /// # Errors
    ///
    /// The system has no more memory to map.
    pub(crate) fn take(&self, granules: usize) -> Result<NonNull<Line>, vm::Error> {
        let mut chunks = self.chunks.lock();
        let mut all = chunks.iter_mut().enumerate();
        let found = all.find_map(|(i, c)| Some((i, c.find_run(granules)?)));
        let (at, first) = match found {
            Some(found) => found,
            None => {
                // Aligned so that a granule's address has ten zero bits, see `Entry`.
                let lines = StableChunk::new(self.page, CHUNK_GRANULES * GRANULE_LINES, 2 << 20)?;
                // A small index stays small. Once it has filled a chunk, the next chunks are huge
                // pages.
                let huge = !chunks.is_empty();
                lines.advise_huge(huge);
                let resident = if huge { CHUNK_GRANULES * GRANULE_BYTES } else { 0 };
                self.touched.fetch_add(resident as u64, Ordering::Relaxed);
                let touched = [if huge { u64::MAX } else { 0 }; WORDS];
                let (used, none_of) = ([0; WORDS], usize::MAX);
                let per_page = self.page.bytes() / GRANULE_BYTES;
                chunks.push(Chunk { per_page, lines, used, touched, used_count: 0, none_of, huge });
                (chunks.len() - 1, 0)
            }
        };
        let chunk = &mut chunks[at];
        for granule in first..first + granules {
            set(&mut chunk.used, granule, true);
            if get(&chunk.touched, granule) {
                // SAFETY: the granule is free, so only outdated readers look at it.
                unsafe { chunk.lines.wipe(granule * GRANULE_LINES, GRANULE_LINES) };
            } else {
                // The first granule makes the page resident.
                let added =
                    if chunk.is_touched(granule / chunk.per_page) { 0 } else { chunk.page_bytes() };
                self.touched.fetch_add(added as u64, Ordering::Relaxed);
                set(&mut chunk.touched, granule, true);
            }
        }
        chunk.used_count += granules;
        self.used.fetch_add((granules * GRANULE_BYTES) as u64, Ordering::Relaxed);
        // SAFETY: within the chunk.
        Ok(unsafe { chunk.lines.as_ptr().add(first * GRANULE_LINES) })
    }

    /// Returns a run. Readers may still look at it.
    pub(crate) fn give(&self, run: NonNull<Line>, granules: usize) {
        let mut chunks = self.chunks.lock();
        let chunk = chunks.iter_mut().find_map(|c| {
            let offset = (run.addr().get()).checked_sub(c.lines.as_ptr().addr().get())?;
            let line = offset / size_of::<Line>();
            (line < CHUNK_GRANULES * GRANULE_LINES).then_some((c, line / GRANULE_LINES))
        });
        let Some((chunk, first)) = chunk else { unreachable!("a run of another index") };
        for granule in first..first + granules {
            debug_assert!(get(&chunk.used, granule));
            set(&mut chunk.used, granule, false);
        }
        chunk.used_count -= granules;
        chunk.none_of = usize::MAX;
        self.used.fetch_sub((granules * GRANULE_BYTES) as u64, Ordering::Relaxed);
        if chunk.used_count == 0 {
            chunk.release_free_pages(&self.touched);
        }
    }

    /// Returns all pages without a granule in use to the system, except locked ones.
    pub(crate) fn trim(&self) {
        let mut chunks = self.chunks.lock();
        for chunk in chunks.iter_mut() {
            chunk.release_free_pages(&self.touched);
        }
    }

    /// Keeps idle memory in proportion. Returns it if it exceeds its share of the used memory,
    /// except the few free pages of a huge page. Otherwise makes a chunk a huge page, if idle
    /// memory stays well below the share. Without that distance the two would undo each other again
    /// and again, with a TLB shootdown each time.
    pub(crate) fn balance(&self) {
        let (used, touched) = self.bytes();
        let allowed = (IDLE_BYTES + used / IDLE_SHARE) as usize;
        let mut chunks = self.chunks.lock();
        if touched.saturating_sub(used) as usize > allowed {
            let sparse = |chunk: &&mut Chunk| !(chunk.huge && chunk.free_bytes() <= SPARED_BYTES);
            chunks.iter_mut().filter(sparse).for_each(|c| c.release_free_pages(&self.touched));
            return;
        }
        let spare = (allowed / 2).saturating_sub(touched.saturating_sub(used) as usize);
        let wanted = |chunk: &&mut Chunk| !chunk.huge && chunk.untouched_bytes() <= spare;
        let half_full = chunks.iter_mut().filter(|c| c.used_count >= CHUNK_GRANULES / 2);
        let Some(chunk) = half_full.filter(wanted).max_by_key(|c| c.used_count) else { return };
        chunk.lines.collapse();
        // Also where the kernel cannot do it: there is no use in asking again.
        chunk.huge = true;
        let rest = chunk.untouched_bytes();
        chunk.touched = [u64::MAX; WORDS];
        self.touched.fetch_add(rest as u64, Ordering::Relaxed);
    }

    /// Bytes in use, and bytes that are or may be resident.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.used.load(Ordering::Relaxed), self.touched.load(Ordering::Relaxed))
    }
}

impl Chunk {
    fn free_bytes(&self) -> usize {
        (CHUNK_GRANULES - self.used_count) * GRANULE_BYTES
    }

    fn pages(&self) -> usize {
        CHUNK_GRANULES / self.per_page
    }

    fn page_bytes(&self) -> usize {
        self.per_page * GRANULE_BYTES
    }

    fn granules(&self, page: usize) -> Range<usize> {
        page * self.per_page..(page + 1) * self.per_page
    }

    /// Whether a page may be resident.
    fn is_touched(&self, page: usize) -> bool {
        self.granules(page).any(|granule| get(&self.touched, granule))
    }

    /// Whether no granule of a page is in use.
    fn is_free(&self, page: usize) -> bool {
        self.granules(page).all(|granule| !get(&self.used, granule))
    }

    fn untouched_bytes(&self) -> usize {
        (0..self.pages()).filter(|page| !self.is_touched(*page)).count() * self.page_bytes()
    }

    fn find_run(&mut self, granules: usize) -> Option<usize> {
        if CHUNK_GRANULES - self.used_count < granules || granules >= self.none_of {
            return None;
        }
        let (mut length, mut at) = (0, 0);
        while at < CHUNK_GRANULES {
            if length == 0 && self.used[at / 64] == u64::MAX {
                at = (at / 64 + 1) * 64;
                continue;
            }
            length = if get(&self.used, at) { 0 } else { length + 1 };
            at += 1;
            if length == granules {
                return Some(at - granules);
            }
        }
        self.none_of = granules;
        None
    }

    fn release_free_pages(&mut self, touched: &AtomicU64) {
        let mut page = 0;
        while page < self.pages() {
            let first = page;
            while page < self.pages() && self.is_free(page) {
                page += 1;
            }
            let run = first * self.per_page..page * self.per_page;
            let dirty = (first..page).filter(|page| self.is_touched(*page)).count();
            if dirty > 0 {
                if self.huge {
                    // Otherwise the kernel might make it a huge page again.
                    self.lines.advise_huge(false);
                    self.huge = false;
                }
                // SAFETY: the granules are free, so only outdated readers look at them.
                let released = unsafe {
                    self.lines.release(run.start * GRANULE_LINES, run.len() * GRANULE_LINES)
                };
                // Locked pages stay resident, and are wiped before their next use.
                if released {
                    run.for_each(|g| set(&mut self.touched, g, false));
                    touched.fetch_sub((dirty * self.page_bytes()) as u64, Ordering::Relaxed);
                }
            }
            page += 1;
        }
    }
}

#[cfg(all(test, not(any(miri, forebay_model))))]
mod tests {
    use std::ptr::NonNull;

    use forebay_base::sync::atomic::AtomicU64;
    use forebay_base::sync::atomic::Ordering::Relaxed;
    use forebay_base::vm::PageSize;

    use super::{CHUNK_GRANULES, GRANULE_BYTES, Line, Memory};

    fn first_slot(run: NonNull<Line>) -> &'static AtomicU64 {
        // SAFETY: tests look at runs only while their memory lives.
        unsafe { &run.as_ref().slots[0] }
    }

    /// A granule in use keeps its page, whatever else on that page is free.
    #[test]
    fn pages_of_any_size_go_back_only_when_all_their_granules_are_free() {
        for kib in [16, 64] {
            let memory = Memory::new(PageSize::of(kib << 10));
            let per_page = kib << 10 >> GRANULE_BYTES.ilog2();
            let taken: Vec<_> = (0..CHUNK_GRANULES).map(|_| memory.take(1).unwrap()).collect();
            taken.iter().for_each(|run| first_slot(*run).store(7, Relaxed));
            assert_eq!(memory.bytes(), (2 << 20, 2 << 20));
            // Keeps one granule of each page of the first half, and one of the second half.
            let kept = |i: &usize| {
                if *i < CHUNK_GRANULES / 2 { i % per_page == 5 } else { *i == CHUNK_GRANULES - 1 }
            };
            let (live, free): (Vec<_>, Vec<_>) = (0..CHUNK_GRANULES).partition(kept);
            free.iter().for_each(|i| memory.give(taken[*i], 1));
            memory.trim();
            assert!(live.iter().all(|i| first_slot(taken[*i]).load(Relaxed) == 7), "{kib} KiB");
            let used = (live.len() * GRANULE_BYTES) as u64;
            assert_eq!(memory.bytes(), (used, (1 << 20) + (kib << 10) as u64), "{kib} KiB");
            // Granules taken again are zero, on old and new pages.
            let again: Vec<_> = free.iter().map(|_| memory.take(1).unwrap()).collect();
            assert!(again.iter().all(|run| first_slot(*run).load(Relaxed) == 0));
            assert_eq!(memory.bytes(), (2 << 20, 2 << 20));
        }
    }

    #[test]
    fn a_granule_makes_its_whole_page_resident() {
        let memory = Memory::new(PageSize::of(64 << 10));
        memory.take(1).unwrap();
        assert_eq!(memory.bytes(), (GRANULE_BYTES as u64, 64 << 10));
        memory.take(63).unwrap();
        assert_eq!(memory.bytes(), (64 << 10, 64 << 10));
    }

    #[test]
    fn locked_granules_stay_counted_and_are_zero_when_taken_again() {
        let page = PageSize::system();
        let memory = Memory::new(page);
        let per_page = page.bytes() / GRANULE_BYTES;
        let taken: Vec<_> = (0..4 * per_page).map(|_| memory.take(1).unwrap()).collect();
        taken.iter().for_each(|run| first_slot(*run).store(7, Relaxed));
        let third = taken[2 * per_page].as_ptr().cast();
        // SAFETY: the page is this memory's.
        if unsafe { libc::mlock(third, page.bytes()) } != 0 {
            return forebay_base::testing::skip("memlock", "`ulimit -l` allows no locked page");
        }
        let all = 4 * page.bytes() as u64;
        taken.iter().for_each(|run| memory.give(*run, 1));
        memory.trim();
        assert_eq!(memory.bytes(), (0, all), "the system takes no locked page");
        let again: Vec<_> = taken.iter().map(|_| memory.take(1).unwrap()).collect();
        assert!(again.iter().all(|run| first_slot(*run).load(Relaxed) == 0));
        assert_eq!(memory.bytes(), (all, all));
        again.iter().for_each(|run| memory.give(*run, 1));
        // SAFETY: the page is this memory's.
        assert_eq!(unsafe { libc::munlock(third, page.bytes()) }, 0);
        memory.trim();
        assert_eq!(memory.bytes(), (0, 0));
    }

    /// Idle memory reaches its proportion and then stays as it is: no page is returned and then
    /// needed again.
    #[test]
    fn balancing_ends() {
        for percent in (10..=250).step_by(15) {
            let memory = Memory::new(PageSize::system());
            let runs = CHUNK_GRANULES / 16 * percent / 100;
            let taken: Vec<_> = (0..runs).map(|_| memory.take(16).unwrap()).collect();
            // Scattered holes.
            taken.iter().step_by(9).for_each(|run| memory.give(*run, 16));
            let seen = (0..16).map(|_| {
                memory.balance();
                let (used, touched) = memory.bytes();
                assert!(touched - used <= (256 << 10) + used / 8, "{percent}: {touched} of {used}");
                touched
            });
            let seen: Vec<u64> = seen.collect();
            // First pages are returned, then a chunk may become a huge page.
            assert!(seen[8..].iter().all(|touched| *touched == seen[8]), "{percent}: {seen:?}");
            assert_eq!(memory.bytes().0, ((runs - runs.div_ceil(9)) * 16 * GRANULE_BYTES) as u64);
        }
    }

    #[test]
    fn a_chunk_that_is_nearly_full_becomes_a_huge_page_and_stays_one() {
        let memory = Memory::new(PageSize::system());
        let taken: Vec<_> = (0..CHUNK_GRANULES / 16).map(|_| memory.take(16).unwrap()).collect();
        memory.balance();
        memory.give(taken[5], 16);
        memory.balance();
        assert!(memory.chunks.lock()[0].huge);
        taken[6..CHUNK_GRANULES / 32].iter().for_each(|run| memory.give(*run, 16));
        memory.balance();
        assert!(!memory.chunks.lock()[0].huge);
    }
}
