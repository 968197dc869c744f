//! Type-stable memory for headers.
//!
//! Invariants
//!
//! * Chunks of 2 MiB of address space stay mapped while the cache exists. A lookup with an outdated
//!   slot reads some header, free or reused, and never an unmapped page.
//! * An empty chunk returns its pages at once. By rule 1 of `header` nothing writes to headers that
//!   are not in use, so it need not wait for readers.
//!
//! Each chunk has a list of free headers. Each shard has a magazine of a few, so that an insert
//! takes only its shard's lock. The lowest chunk with free headers is used first, so that high
//! chunks drain.
//!
//! Locking: `slab-magazine` and `slab-central`, never both, and no other lock under either.

use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Mutex, hint, thread_slot};
use forebay_base::vm::{self, PageSize, StableChunk, ZeroInit};

use crate::header::Header;

#[cfg(not(any(miri, forebay_model)))]
const CHUNK_BYTES: usize = 2 << 20;
#[cfg(any(miri, forebay_model))]
const CHUNK_BYTES: usize = 4 << 10;

/// Headers moved between a magazine and the chunks at once.
const BATCH: usize = if cfg!(any(miri, forebay_model)) { 4 } else { 32 };
/// End of a free list. Ids start at 1, so zeroed memory refers to no header.
const NONE: u32 = 0;
/// Maximum number of chunks. Ids have 32 bits; 2 MiB each is far beyond any machine's memory.
const MAX_CHUNKS: usize = if cfg!(any(miri, forebay_model)) { 64 } else { 1 << 17 };

/// The headers of one cache.
pub(crate) struct Slab<K, V> {
    magazines: Box<[CachePadded<Mutex<Vec<NonNull<Header<K, V>>>>>]>,
    central: Mutex<Central<K, V>>,
    /// First header of each chunk. Each is written once.
    starts: StableChunk<Start>,
    /// Headers carved out of chunks.
    carved: AtomicU64,
    /// Bytes of pages that may be resident, of all chunks.
    resident: AtomicU64,
    /// The size of a page.
    page: PageSize,
    /// The chunks up to this one could hold all headers in use. Free headers of later chunks bypass
    /// the magazines, so that those chunks drain.
    dense: AtomicUsize,
}

// SAFETY: the slab owns its headers' memory; only `K` and `V` cross threads through it.
unsafe impl<K: Send, V: Send> Send for Slab<K, V> {}
// SAFETY: shared access goes through the locks and the headers' state words, and may reach `K` and
// `V` from several threads, which the bounds allow.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Slab<K, V> {}

struct Start(AtomicUsize);

// SAFETY: one atomic, of which zero is a valid value.
unsafe impl ZeroInit for Start {
    fn zero() -> Self {
        Self(AtomicUsize::new(0))
    }
    fn wipe(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

struct Central<K, V> {
    chunks: Vec<Chunk<K, V>>,
    /// Chunks with free or uncarved headers.
    with_free: BTreeSet<usize>,
    /// A carved chunk whose headers are all free, kept for the next insert.
    spare: Option<usize>,
    /// Free headers of all chunks.
    free_count: usize,
}

struct Chunk<K, V> {
    memory: StableChunk<Header<K, V>>,
    /// First free header.
    free: u32,
    free_count: usize,
    /// Headers carved since the chunk was last empty. The rest is untouched memory.
    carved: usize,
    /// Bytes of whole pages from the start that were touched since they were last returned.
    resident: usize,
    /// The chunk is one huge page, so all of it is resident.
    huge: bool,
}

impl<K: Copy, V> Slab<K, V> {
    const PER_CHUNK: usize = CHUNK_BYTES / size_of::<Header<K, V>>();

    /// Bytes of a chunk that headers occupy.
    const CARVED_BYTES: usize = Self::PER_CHUNK * size_of::<Header<K, V>>();

    pub(crate) fn new(page: PageSize, shards: usize) -> Result<Self, vm::Error> {
        assert!(Self::PER_CHUNK > 0, "a header of more than {CHUNK_BYTES} bytes: box the value");
        let starts = StableChunk::new(page, MAX_CHUNKS, 64)?;
        let magazine = || Mutex::named("slab-magazine", Vec::with_capacity(2 * BATCH));
        Ok(Self {
            magazines: (0..shards).map(|_| CachePadded::new(magazine())).collect(),
            central: Mutex::named(
                "slab-central",
                Central {
                    chunks: Vec::new(),
                    with_free: BTreeSet::new(),
                    spare: None,
                    free_count: 0,
                },
            ),
            starts,
            carved: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            page,
            dense: AtomicUsize::new(0),
        })
    }

    /// Takes a free header, which the caller owns.
    ///
    /// # Errors
    ///
    /// The system has no more memory to map.
    pub(crate) fn take(&self) -> Result<NonNull<Header<K, V>>, vm::Error> {
        let magazine = &self.magazines[thread_slot().index(self.magazines.len())];
        {
            let mut magazine = magazine.lock();
            if let Some(header) = magazine.pop() {
                // An evictor used the next header last, perhaps on another processor.
                if let Some(next) = magazine.last() {
                    hint::prefetch(next.as_ptr());
                }
                return Ok(header);
            }
        }
        let mut batch = Vec::with_capacity(BATCH);
        self.refill(&mut batch)?;
        let header = batch.pop().expect("a refill brings headers or fails");
        let mut magazine = magazine.lock();
        let space = (2 * BATCH).saturating_sub(magazine.len()).min(batch.len());
        magazine.extend(batch.drain(..space));
        drop(magazine);
        self.give_back(&batch);
        Ok(header)
    }

    /// Returns a free header.
    pub(crate) fn give(&self, header: NonNull<Header<K, V>>) {
        let mut magazine = self.magazines[thread_slot().index(self.magazines.len())].lock();
        magazine.push(header);
        if magazine.len() < 2 * BATCH {
            return;
        }
        let surplus: Vec<_> = magazine.drain(..BATCH).collect();
        drop(magazine);
        self.give_back(&surplus);
    }

    /// Returns free headers and empties `headers`. As many as fit go to the magazine, because this
    /// thread may use them next.
    pub(crate) fn give_all(&self, headers: &mut Vec<NonNull<Header<K, V>>>) {
        let dense = self.dense.load(Ordering::Relaxed);
        let mut magazine = self.magazines[thread_slot().index(self.magazines.len())].lock();
        headers.retain(|header| {
            // SAFETY: headers are never unmapped while the slab lives.
            let at = (unsafe { header.as_ref() }.id() - 1) as usize / Self::PER_CHUNK;
            let keep = at <= dense && magazine.len() < 2 * BATCH;
            if keep {
                magazine.push(*header);
            }
            !keep
        });
        drop(magazine);
        self.give_back(headers);
        headers.clear();
    }

    /// Returns free headers to their chunks.
    pub(crate) fn give_back(&self, headers: &[NonNull<Header<K, V>>]) {
        if headers.is_empty() {
            return;
        }
        let mut central = self.central.lock();
        for header in headers {
            // SAFETY: headers are never unmapped while the slab lives.
            let header = unsafe { header.as_ref() };
            let at = (header.id() - 1) as usize / Self::PER_CHUNK;
            let chunk = &mut central.chunks[at];
            header.set_next_free(chunk.free);
            chunk.free = header.id();
            chunk.free_count += 1;
            central.free_count += 1;
            let chunk = &central.chunks[at];
            let (had_none, empty) = (chunk.free_count == 1, chunk.free_count == chunk.carved);
            if had_none {
                central.with_free.insert(at);
            }
            if empty {
                self.emptied(&mut central, at);
            }
        }
        self.note_density(&central);
    }

    /// Empties the calling thread's magazine, for a thread that will not take from it soon.
    pub(crate) fn empty_magazine(&self) {
        let magazine = &self.magazines[thread_slot().index(self.magazines.len())];
        let idle = std::mem::take(&mut *magazine.lock());
        self.give_back(&idle);
    }

    fn note_density(&self, central: &Central<K, V>) {
        let in_use = self.carved.load(Ordering::Relaxed) as usize - central.free_count;
        self.dense.store(in_use / Self::PER_CHUNK, Ordering::Relaxed);
    }

    /// Keeps one empty chunk, and returns the pages of any other.
    fn emptied(&self, central: &mut Central<K, V>, at: usize) {
        match central.spare {
            Some(spare) if spare == at => {}
            Some(spare) => {
                // Keep the lower one.
                let (keep, wipe) = (spare.min(at), spare.max(at));
                central.spare = Some(keep);
                self.wipe(central, wipe);
            }
            None => central.spare = Some(at),
        }
    }

    fn wipe(&self, central: &mut Central<K, V>, at: usize) {
        let chunk = &mut central.chunks[at];
        central.free_count -= chunk.free_count;
        debug_assert_eq!(chunk.free_count, chunk.carved);
        self.carved.fetch_sub(chunk.carved as u64, Ordering::Relaxed);
        chunk.memory.advise_huge(false);
        chunk.huge = false;
        // SAFETY: all headers of the chunk are free and in its own list, so no thread writes them.
        if unsafe { chunk.memory.release(0, Self::PER_CHUNK) } {
            self.resident.fetch_sub(chunk.resident as u64, Ordering::Relaxed);
            chunk.resident = 0;
        } else {
            // Its pages are locked, and stay resident.
            // SAFETY: all headers of the chunk are free and in its own list, so no thread writes
            // them.
            unsafe { chunk.memory.wipe(0, chunk.carved) };
        }
        (chunk.free, chunk.free_count, chunk.carved) = (NONE, 0, 0);
    }

    /// Returns all memory without headers in use, including that of the magazines.
    pub(crate) fn trim(&self) {
        for magazine in &self.magazines {
            let idle = std::mem::take(&mut *magazine.lock());
            self.give_back(&idle);
        }
        let mut central = self.central.lock();
        if let Some(spare) = central.spare.take()
            && central.chunks[spare].free_count == central.chunks[spare].carved
        {
            self.wipe(&mut central, spare);
        }
    }

    /// Makes the first chunk that is at least half full a huge page, to reduce address translations
    /// of lookups. Takes a moment, so the reclaimer calls it.
    pub(crate) fn collapse(&self) {
        let wanted = |c: &Chunk<K, V>| !c.huge && c.carved >= Self::PER_CHUNK / 2;
        let mut central = self.central.lock();
        let Some(chunk) = central.chunks.iter_mut().find(|c| wanted(c)) else { return };
        chunk.memory.collapse();
        self.touch(chunk, Self::CARVED_BYTES);
        // If the kernel cannot do it, do not ask again. The size of a huge page is counted all the
        // same.
        chunk.huge = true;
    }

    /// Counts the pages of the first `bytes` bytes of a chunk as resident.
    fn touch(&self, chunk: &mut Chunk<K, V>, bytes: usize) {
        let resident = self.page.round_up(bytes).max(chunk.resident);
        self.resident.fetch_add((resident - chunk.resident) as u64, Ordering::Relaxed);
        chunk.resident = resident;
    }

    fn refill(&self, batch: &mut Vec<NonNull<Header<K, V>>>) -> Result<(), vm::Error> {
        let mut central = self.central.lock();
        while batch.len() < BATCH {
            let Some(at) = central.with_free.first().copied() else {
                if batch.is_empty() {
                    self.add_chunk(&mut central)?;
                    continue;
                }
                break;
            };
            if central.spare == Some(at) {
                central.spare = None;
            }
            let first_id = (at * Self::PER_CHUNK) as u32 + 1;
            let chunk = &mut central.chunks[at];
            if chunk.free != NONE {
                let header = self.by_id(chunk.free).expect("a listed header's chunk exists");
                // SAFETY: headers are never unmapped while the slab lives.
                chunk.free = unsafe { header.as_ref() }.next_free();
                chunk.free_count -= 1;
                central.free_count -= 1;
                batch.push(header);
            } else if chunk.carved < Self::PER_CHUNK {
                // SAFETY: `carved` is within the chunk.
                let header = unsafe { chunk.memory.as_ptr().add(chunk.carved) };
                // SAFETY: the header lies within the chunk, whose zero bytes are a free header.
                unsafe { header.as_ref() }.set_id(first_id + chunk.carved as u32);
                chunk.carved += 1;
                self.carved.fetch_add(1, Ordering::Relaxed);
                self.touch(chunk, chunk.carved * size_of::<Header<K, V>>());
                batch.push(header);
            } else {
                central.with_free.remove(&at);
            }
        }
        self.note_density(&central);
        Ok(())
    }

    fn add_chunk(&self, central: &mut Central<K, V>) -> Result<(), vm::Error> {
        let at = central.chunks.len();
        assert!(at < MAX_CHUNKS, "more headers than ids");
        let align = CHUNK_BYTES.min(2 << 20);
        let memory = StableChunk::<Header<K, V>>::new(self.page, Self::PER_CHUNK, align)?;
        let start = memory.as_ptr().as_ptr().expose_provenance();
        // A small cache stays small. Once it has filled a chunk, the next chunks are huge pages.
        let huge = at > 0;
        memory.advise_huge(huge);
        let mut chunk = Chunk { memory, free: NONE, free_count: 0, carved: 0, resident: 0, huge };
        self.touch(&mut chunk, if huge { Self::CARVED_BYTES } else { 0 });
        central.chunks.push(chunk);
        central.with_free.insert(at);
        // SAFETY: `at` is within the array of starts.
        unsafe { self.starts.as_ptr().add(at).as_ref() }.0.store(start, Ordering::Release);
        Ok(())
    }

    /// The header of that id, or `None` if there is no such chunk. Accepts any id.
    #[inline]
    pub(crate) fn by_id(&self, id: u32) -> Option<NonNull<Header<K, V>>> {
        let at = id.checked_sub(1)? as usize;
        // The id may come from another cache, whose headers are smaller.
        if at / Self::PER_CHUNK >= MAX_CHUNKS {
            return None;
        }
        // SAFETY: within the array of starts, which has `MAX_CHUNKS` entries.
        let start = unsafe { self.starts.as_ptr().add(at / Self::PER_CHUNK).as_ref() };
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<Header<K, V>>(
            start.0.load(Ordering::Acquire),
        ))?;
        // SAFETY: within the chunk, by the remainder.
        Some(unsafe { start.add(at % Self::PER_CHUNK) })
    }

    /// Calls `f` with each header that may be in use. May miss headers whose use begins meanwhile.
    pub(crate) fn for_each(&self, mut f: impl FnMut(NonNull<Header<K, V>>)) {
        let mut at = 0;
        // The lock is not held while `f` runs; chunks are only ever added.
        while let Some(ids) = self.ids_of_chunk(at) {
            ids.filter_map(|id| self.by_id(id)).for_each(&mut f);
            at += 1;
        }
    }

    /// The ids of the headers that were carved out of a chunk. `None` after the last chunk.
    pub(crate) fn ids_of_chunk(&self, at: usize) -> Option<Range<u32>> {
        let carved = self.central.lock().chunks.get(at)?.carved;
        let first = (at * Self::PER_CHUNK) as u32 + 1;
        Some(first..first + carved as u32)
    }

    /// Bytes of headers carved since their chunks were last empty.
    pub(crate) fn bytes(&self) -> u64 {
        self.carved.load(Ordering::Relaxed) * size_of::<Header<K, V>>() as u64
    }

    /// Resident bytes beyond those: the rest of pages, including huge ones.
    pub(crate) fn slack_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed).saturating_sub(self.bytes())
    }

    /// Headers taken and not returned. Exact if nothing else runs.
    pub(crate) fn in_use(&self) -> u64 {
        let idle: usize = self.magazines.iter().map(|m| m.lock().len()).sum();
        let central = self.central.lock();
        let free: usize = central.chunks.iter().map(|c| c.free_count).sum();
        let carved: usize = central.chunks.iter().map(|c| c.carved).sum();
        (carved - free - idle) as u64
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::vm::PageSize;

    use super::Slab;
    use crate::attributes::Class;

    #[test]
    fn headers_are_distinct_found_by_id_and_their_memory_comes_back() {
        let slab = Slab::<u64, u64>::new(PageSize::system(), 2).unwrap();
        let count = if cfg!(miri) { 100 } else { 100_000 };
        let mut taken: Vec<_> = (0..count).map(|_| slab.take().unwrap()).collect();
        for header in &taken {
            // SAFETY: taken above, and the slab lives.
            assert_eq!(slab.by_id(unsafe { header.as_ref() }.id()), Some(*header));
        }
        assert_eq!(slab.in_use(), count);
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len() as u64, count);
        let full = slab.bytes();
        for header in taken {
            slab.give(header);
        }
        assert_eq!(slab.in_use(), 0);
        slab.trim();
        assert_eq!(slab.bytes(), 0, "{full} bytes at the most");
        slab.take().unwrap();
        assert_eq!(slab.in_use(), 1);
    }

    #[test]
    fn an_id_of_another_slab_finds_a_header_of_this_one_or_none() {
        // As few headers per chunk as possible, so that most ids are beyond the last chunk.
        let slab = Slab::<u64, [u8; super::CHUNK_BYTES / 2]>::new(PageSize::system(), 1).unwrap();
        let header = slab.take().unwrap();
        // SAFETY: taken above, and the slab lives.
        let id = unsafe { header.as_ref() }.id();
        for other in (0..32).map(|bit| 1 << bit).chain([0, u32::MAX - 1, u32::MAX]) {
            let found = slab.by_id(other);
            assert_eq!(found, (other == id).then_some(header), "id {other}");
        }
    }

    #[test]
    fn a_free_header_tells_whether_it_was_used() {
        let slab = Slab::<u64, u64>::new(PageSize::system(), 1).unwrap();
        let header = slab.take().unwrap();
        // SAFETY: taken above, and the slab lives.
        let h = unsafe { header.as_ref() };
        let mut lives = vec![h.state().life()];
        for _ in 0..3 {
            // SAFETY: the header is this thread's alone, and free.
            unsafe { h.occupy(7, 1, Some(7), (Class::Data, false)) };
            // SAFETY: never announced, and occupied with a value.
            unsafe { h.retract(true) };
            assert!(h.state().is_free());
            lives.push(h.state().life());
        }
        lives.dedup();
        // A lookup that found the same life twice would conclude that the block was absent in
        // between.
        assert_eq!(lives.len(), 4, "{lives:?}");
    }

    /// Bytes that the slab counts as resident.
    #[cfg(not(miri))]
    fn resident<K: Copy, V>(slab: &Slab<K, V>) -> u64 {
        slab.bytes() + slab.slack_bytes()
    }

    #[cfg(not(miri))]
    #[test]
    fn a_header_makes_its_whole_page_resident_whatever_the_size_of_a_page() {
        for kib in [16, 64] {
            let slab = Slab::<u64, u64>::new(PageSize::of(kib << 10), 1).unwrap();
            let header = slab.take().unwrap();
            assert_eq!(resident(&slab), (kib << 10) as u64);
            let taken: Vec<_> = (0..1000).map(|_| slab.take().unwrap()).collect();
            let whole = slab.bytes().next_multiple_of((kib << 10) as u64);
            assert_eq!(resident(&slab), whole);
            taken.into_iter().chain([header]).for_each(|header| slab.give(header));
            slab.trim();
            assert_eq!((slab.bytes(), resident(&slab)), (0, 0));
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn locked_headers_stay_counted_and_are_as_new_when_taken_again() {
        let slab = Slab::<u64, u64>::new(PageSize::system(), 1).unwrap();
        let taken: Vec<_> = (0..1000).map(|_| slab.take().unwrap()).collect();
        let (count, start) = (taken.len(), taken.iter().min().unwrap().as_ptr().cast());
        // SAFETY: the page is the slab's.
        if unsafe { libc::mlock(start, 1) } != 0 {
            return forebay_base::testing::skip("memlock", "`ulimit -l` allows no locked page");
        }
        let all = resident(&slab);
        taken.into_iter().for_each(|header| slab.give(header));
        slab.trim();
        assert_eq!((slab.bytes(), resident(&slab)), (0, all), "the system takes no locked page");
        let again: Vec<_> = (0..count).map(|_| slab.take().unwrap()).collect();
        for header in &again {
            // SAFETY: taken above, and the slab lives.
            assert!(unsafe { header.as_ref() }.state().is_free());
        }
        assert_eq!(resident(&slab), all);
        again.into_iter().for_each(|header| slab.give(header));
        // SAFETY: the page is the slab's.
        assert_eq!(unsafe { libc::munlock(start, 1) }, 0);
        slab.trim();
        assert_eq!((slab.bytes(), resident(&slab)), (0, 0));
    }
}
