//! The index: maps hashes to headers and ghosts. Lookups take no lock, and it grows and shrinks in
//! small steps.
//!
//! The top bits of a hash choose a *partition*. Each partition is an extendible hash table: a
//! directory of *segments* of 1 to 16 granules (1 KiB each). A segment is an open-addressed table
//! of lines (`line`). A full segment is replaced by one that is a quarter larger, and splits in two
//! at 16 granules. An emptied one is replaced by a smaller one, and two small neighbours merge. So
//! no size is guessed, no step moves more than `MAX_GRANULES * GRANULE_LINES * SLOTS` entries, and
//! no allocation exceeds 2 MiB. (Fagin et al., "Extendible Hashing", 1979. There, all segments of a
//! uniform hash would split at the same time and then be half empty.)
//!
//! Invariants
//!
//! * A key's entry lies in the segment that its hash selects, at or after its home line.
//! * A resident slot is cleared before its header is freed (rule 4 of `header`).
//! * Entries never move within a segment. The memory of a replaced segment holds lines for ever.
//!
//! Locking: writers hold `index-partition`, and take `index-memory` under it. Readers take no lock.
//! They load the directory word and the directory's entry, scan, and on a miss check that both
//! words are unchanged. Every change of a segment changes its entry's version, so a reader that
//! overlaps one starts again.
//!
//! Not here: pins and keys. Callers pin headers and compare keys.

mod entry;
mod grow;
pub(crate) mod line;
mod memory;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Mutex, MutexGuard, count, hint};
use forebay_base::vm;

use entry::{Directory, Entry};
use line::{GHOST_SPLIT_BITS, Line, Slot};
use memory::Memory;

/// Hash bits that choose the partition.
const PARTITION_BITS: u32 = if cfg!(any(miri, forebay_model)) { 1 } else { 6 };
pub(crate) const PARTITIONS: usize = 1 << PARTITION_BITS;
/// Lines after its home line in which an entry may lie.
const MAX_DISTANCE: usize = 8;

/// A visitor's verdict on a resident slot with the right tag.
pub(crate) enum Visit<R> {
    /// The header was found.
    Found(R),
    /// The header has another key or is not valid: free, loading or retired. Two equal numbers mean
    /// that this was so at every instant in between.
    Missed(u64),
}

/// The result of a probe of a hash's home line.
#[derive(Clone, Copy)]
pub(crate) enum Probe {
    /// Address of the header of a resident slot with the right tag. Other slots may have the same
    /// tag.
    At(usize),
    /// There is no such entry.
    Nothing,
    /// A [scan](Index::find) is needed: an entry may lie in another line, or a writer is active.
    Unclear,
}

pub(crate) struct Index {
    partitions: Box<[CachePadded<Partition>; PARTITIONS]>,
    memory: Memory,
}

struct Partition {
    /// A `Directory` word. Zero until the partition's first entry.
    directory: AtomicU64,
    lock: Mutex<Writer>,
    entries: AtomicU64,
    displaced: AtomicU64,
    segments: AtomicU64,
    steps: AtomicU64,
}

/// State that only a partition's writer uses.
struct Writer {
    /// All directories that this partition has had. A reader may look at an old one at any time, so
    /// they are kept. Each is half the next, so all of them are less than twice the last.
    directories: Vec<Box<[AtomicU64]>>,
}

/// Size and quality of the index; see [`Stats`](crate::Stats).
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexStats {
    /// Residents and ghosts.
    pub entries: u64,
    /// Entries outside of their home line.
    pub collisions: u64,
    /// The most lines of 64 bytes that a lookup visits.
    pub longest_chain: u64,
    /// Segments.
    pub segments: u64,
    /// Replacements, splits and merges of segments.
    pub resize_steps: u64,
    /// Bytes of segments and directories in use.
    pub used_bytes: u64,
    /// Bytes that may be resident, including free granules.
    pub resident_bytes: u64,
}

/// The partition of a hash. Changes within one partition can share a lock.
#[inline]
pub(crate) fn partition_of(hash: u64) -> usize {
    (hash >> (u64::BITS - PARTITION_BITS)) as usize
}

/// The hash bits below the partition's. The directory uses the top `depth` of them, and ghosts
/// store the top [`GHOST_SPLIT_BITS`].
fn split_bits(hash: u64) -> u64 {
    (hash << PARTITION_BITS) >> (u64::BITS - GHOST_SPLIT_BITS)
}

impl Index {
    pub(crate) fn new() -> Self {
        let partition = || Partition {
            directory: AtomicU64::new(0),
            lock: Mutex::named("index-partition", Writer { directories: Vec::new() }),
            entries: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            segments: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        };
        Self {
            partitions: Box::new(std::array::from_fn(|_| CachePadded::new(partition()))),
            memory: Memory::new(vm::PageSize::system()),
        }
    }

    /// Looks for a resident entry in the home line, where most entries lie. Takes no lock. Has few
    /// instructions: a processor that waits for memory executes ahead, but only for a limited
    /// number of instructions.
    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64) -> Probe {
        let partition = &self.partitions[partition_of(hash)];
        let word = partition.directory.load(Ordering::Acquire);
        let Some(directory) = Directory::from_word(word) else { return Probe::Nothing };
        // SAFETY: directories live as long as the index.
        let cell = unsafe { directory.cell(hash) };
        let entry = Entry(cell.load(Ordering::Acquire));
        let tag = line::tag(hash);
        // SAFETY: within the segment, whose memory holds lines for ever.
        let home = unsafe { entry.segment().add(line::home(tag, entry.lines())).as_ref() };
        if let Some(cell) =
            home.with_top(line::resident_top(tag)).next().and_then(|n| home.slots.get(n))
        {
            let slot = Slot(cell.load(Ordering::Acquire));
            return slot.resident_at(tag).map_or(Probe::Unclear, Probe::At);
        }
        if home.farthest() == 0
            && cell.load(Ordering::Acquire) == entry.0
            && partition.directory.load(Ordering::Acquire) == word
        {
            return Probe::Nothing;
        }
        Probe::Unclear
    }

    /// Finds a resident entry without a lock. Calls `visit` with the address of each header whose
    /// slot has the tag of `hash`.
    #[inline]
    pub(crate) fn find<R>(&self, hash: u64, mut visit: impl FnMut(usize) -> Visit<R>) -> Option<R> {
        let partition = &self.partitions[partition_of(hash)];
        loop {
            let word = partition.directory.load(Ordering::Acquire);
            let directory = Directory::from_word(word)?;
            // SAFETY: directories live as long as the index.
            let cell = unsafe { directory.cell(hash) };
            let entry = Entry(cell.load(Ordering::Acquire));
            match Self::scan(entry, hash, &mut visit) {
                Scan::Found(found) => return Some(found),
                Scan::Again => count::retry(),
                Scan::Nothing => {
                    if partition.directory.load(Ordering::Acquire) == word
                        && cell.load(Ordering::Acquire) == entry.0
                    {
                        return None;
                    }
                    count::retry();
                }
            }
        }
    }

    #[inline]
    fn scan<R>(entry: Entry, hash: u64, visit: &mut impl FnMut(usize) -> Visit<R>) -> Scan<R> {
        let lines = entry.lines();
        let home = line::home(line::tag(hash), lines);
        let (mut at, mut distance, mut farthest) = (home, 0, 0);
        loop {
            // SAFETY: `at` is within the segment, and segments' memory holds lines for ever.
            let line = unsafe { entry.segment().add(at).as_ref() };
            if distance == 0 {
                farthest = line.farthest().min(MAX_DISTANCE);
            }
            for n in line.with_top(line::resident_top(line::tag(hash))) {
                let cell = &line.slots[n];
                let slot = Slot(cell.load(Ordering::Acquire));
                if !slot.resident_matches(hash) {
                    continue;
                }
                let seen = match visit(slot.address()) {
                    Visit::Found(found) => return Scan::Found(found),
                    Visit::Missed(seen) => seen,
                };
                // The slot may have another header by now: an overwrite stores the new header
                // before it retires the old one. Even if the slot has the same header, that may
                // have been freed, reused and stored again. The second visit tells.
                if cell.load(Ordering::Acquire) != slot.0 {
                    return Scan::Again;
                }
                match visit(slot.address()) {
                    Visit::Found(found) => return Scan::Found(found),
                    Visit::Missed(again) if again != seen => return Scan::Again,
                    Visit::Missed(_) => {}
                }
            }
            if distance == farthest {
                return Scan::Nothing;
            }
            distance += 1;
            at = if at + 1 == lines { 0 } else { at + 1 };
        }
    }

    /// Prefetches the home line of `hash`.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let word = self.partitions[partition_of(hash)].directory.load(Ordering::Acquire);
        if let Some(directory) = Directory::from_word(word) {
            // SAFETY: directories live as long as the index.
            let entry = Entry(unsafe { directory.cell(hash) }.load(Ordering::Acquire));
            let home = line::home(line::tag(hash), entry.lines());
            // SAFETY: within the segment.
            hint::prefetch(unsafe { entry.segment().add(home) }.as_ptr());
        }
    }

    /// Locks the partition of `hash` for changes.
    pub(crate) fn lock(&self, hash: u64) -> Locked<'_> {
        let partition = &self.partitions[partition_of(hash)];
        Locked { index: self, partition, writer: partition.lock.lock(), hash }
    }

    /// Waits until all changes in progress have finished.
    pub(crate) fn barrier(&self) {
        for partition in self.partitions.iter() {
            drop(partition.lock.lock());
        }
    }

    /// Keeps memory in proportion, and makes that of a large index huge pages.
    pub(crate) fn balance(&self) {
        self.memory.balance();
    }

    /// Returns unused memory to the system.
    pub(crate) fn trim(&self) {
        self.memory.trim();
    }

    /// Bytes of segments and partitions. Cheap.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.memory.bytes().0 + self.fixed_bytes()
    }

    /// Bytes that may be resident but are in no segment. Cheap.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let (used, touched) = self.memory.bytes();
        touched.saturating_sub(used)
    }

    fn fixed_bytes(&self) -> u64 {
        size_of_val(&*self.partitions) as u64
    }

    /// Walks the whole index, a partition at a time.
    pub(crate) fn stats(&self) -> IndexStats {
        let mut stats = IndexStats::default();
        let mut directories = 0;
        for partition in self.partitions.iter() {
            let writer = partition.lock.lock();
            stats.entries += partition.entries.load(Ordering::Relaxed);
            stats.collisions += partition.displaced.load(Ordering::Relaxed);
            stats.segments += partition.segments.load(Ordering::Relaxed);
            stats.resize_steps += partition.steps.load(Ordering::Relaxed);
            directories += writer.directories.iter().map(|d| size_of_val(&**d)).sum::<usize>();
            for (entry, _) in partition.distinct_segments() {
                let farthest = entry.all_lines().map(|line| line.farthest()).max();
                let chain = 1 + farthest.unwrap_or(0) as u64;
                stats.longest_chain = stats.longest_chain.max(chain);
            }
        }
        let fixed = self.fixed_bytes() + directories as u64;
        let (used, touched) = self.memory.bytes();
        stats.used_bytes = used + fixed;
        stats.resident_bytes = touched + fixed;
        stats
    }

    /// Calls `f` with each used slot, one partition at a time under its lock.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn for_each_slot(&self, mut f: impl FnMut(Slot)) {
        for partition in self.partitions.iter() {
            let _writer = partition.lock.lock();
            for (entry, _) in partition.distinct_segments() {
                entry.slots().for_each(|(_, slot)| f(slot));
            }
        }
    }
}

enum Scan<R> {
    Found(R),
    Nothing,
    Again,
}

impl Partition {
    /// Each segment once, with the number of its first directory cell.
    fn distinct_segments(&self) -> impl Iterator<Item = (Entry, usize)> {
        let directory = Directory::from_word(self.directory.load(Ordering::Acquire));
        let mut next = 0;
        std::iter::from_fn(move || {
            let directory = directory?;
            if next >= directory.len() {
                return None;
            }
            // SAFETY: directories live as long as the index, and `next` is within this one.
            let entry = Entry(unsafe { directory.nth(next) }.load(Ordering::Acquire));
            let first = next;
            next += 1 << (directory.depth() - entry.depth());
            Some((entry, first))
        })
    }
}

/// A partition locked for changes to the entries of one hash.
pub(crate) struct Locked<'a> {
    index: &'a Index,
    partition: &'a Partition,
    writer: MutexGuard<'a, Writer>,
    hash: u64,
}

/// The place of an entry while its partition stays locked.
#[derive(Clone, Copy)]
pub(crate) struct SlotRef {
    line: NonNull<Line>,
    slot: usize,
}

/// The entry of a key.
pub(crate) enum Known {
    /// Slot and address of a header.
    Resident(SlotRef, usize),
    /// Slot of a ghost, and its content: list, and when and how often the block was used.
    Ghost(SlotRef, Slot),
    Nothing,
}

impl Known {
    /// Whether it is the header at that address.
    pub(crate) fn is_resident_at(&self, address: usize) -> bool {
        matches!(self, Self::Resident(_, at) if *at == address)
    }
}

impl Locked<'_> {
    /// Continues with another hash of the same partition.
    pub(crate) fn set_hash(&mut self, hash: u64) {
        debug_assert_eq!(partition_of(hash), partition_of(self.hash));
        self.hash = hash;
    }

    fn entry(&self) -> Option<Entry> {
        let directory = Directory::from_word(self.partition.directory.load(Ordering::Relaxed))?;
        // SAFETY: directories live as long as the index.
        Some(Entry(unsafe { directory.cell(self.hash) }.load(Ordering::Relaxed)))
    }

    /// Passes the lines that can hold an entry of this hash to `look`, until it returns a result.
    #[inline]
    fn find_line<R>(&self, mut look: impl FnMut(NonNull<Line>, &Line) -> Option<R>) -> Option<R> {
        let entry = self.entry()?;
        let lines = entry.lines();
        let home = line::home(line::tag(self.hash), lines);
        let (mut distance, mut farthest) = (0, 0);
        loop {
            // SAFETY: within the segment.
            let line = unsafe { entry.segment().add(line::at(home, distance, lines)) };
            // SAFETY: segments' memory holds lines for ever.
            let here = unsafe { line.as_ref() };
            if distance == 0 {
                farthest = here.farthest();
            }
            let found = look(line, here);
            if found.is_some() || distance == farthest {
                return found;
            }
            distance += 1;
        }
    }

    /// The first slot with these top bits for which `wanted` is true.
    #[inline]
    fn find_slot(&self, top: u64, wanted: impl Fn(Slot) -> bool) -> Option<SlotRef> {
        self.find_line(|line, here| SlotRef::first(line, here, top, &wanted))
    }

    /// The entry of a key: the resident slot for which `is_it` is true, as for
    /// [`find_resident`](Self::find_resident), or else its ghost. Visits each line once.
    pub(crate) fn find_known(&self, is_it: impl Fn(usize) -> bool) -> Known {
        let tag = line::tag(self.hash);
        let bits = split_bits(self.hash);
        let resident = |slot: Slot| slot.resident_matches(self.hash) && is_it(slot.address());
        let mut ghost = None;
        let slot_ref = self.find_line(|line, here| {
            let is_ghost = |slot: Slot| slot.ghost_matches(self.hash, bits);
            ghost = ghost.or_else(|| SlotRef::first(line, here, line::ghost_top(tag), is_ghost));
            SlotRef::first(line, here, line::resident_top(tag), resident)
        });
        match (slot_ref, ghost) {
            (Some(slot_ref), _) => Known::Resident(slot_ref, slot_ref.get().address()),
            (None, Some(slot_ref)) => Known::Ghost(slot_ref, slot_ref.get()),
            (None, None) => Known::Nothing,
        }
    }

    /// The resident slot for which `is_it` is true. `is_it` gets the address of each header with
    /// the right tag, and may read its key (rule 4 of `header`).
    pub(crate) fn find_resident(&self, is_it: impl Fn(usize) -> bool) -> Option<(SlotRef, usize)> {
        let wanted = |slot: Slot| slot.resident_matches(self.hash) && is_it(slot.address());
        let slot_ref = self.find_slot(line::resident_top(line::tag(self.hash)), wanted)?;
        Some((slot_ref, slot_ref.get().address()))
    }

    /// Whether there is a ghost of this hash.
    pub(crate) fn has_ghost(&self) -> bool {
        let bits = split_bits(self.hash);
        let top = line::ghost_top(line::tag(self.hash));
        self.find_slot(top, |slot| slot.ghost_matches(self.hash, bits)).is_some()
    }

    /// The ghost of this hash at exactly this position of that list.
    pub(crate) fn find_ghost_at(&self, list: usize, position: u64) -> Option<SlotRef> {
        let wanted = Slot::ghost(self.hash, split_bits(self.hash), list, position);
        let top = line::ghost_top(line::tag(self.hash));
        self.find_slot(top, |slot| slot.without_uses() == wanted)
    }

    /// A slot for a ghost of this hash.
    pub(crate) fn ghost_slot(&self, list: usize, position: u64) -> Slot {
        Slot::ghost(self.hash, split_bits(self.hash), list, position)
    }

    /// Replaces a slot by one of the same hash.
    pub(crate) fn replace(&mut self, slot_ref: SlotRef, slot: Slot) {
        debug_assert_eq!(slot.tag(), line::tag(self.hash));
        slot_ref.cell().store(slot.0, Ordering::Release);
    }
}

impl SlotRef {
    /// The first slot of a line with these top bits for which `wanted` is true.
    #[inline]
    fn first(
        line: NonNull<Line>,
        here: &Line,
        top: u64,
        wanted: impl Fn(Slot) -> bool,
    ) -> Option<Self> {
        let mut slot_refs = here.with_top(top).map(|slot| Self { line, slot });
        slot_refs.find(|slot_ref| wanted(slot_ref.get()))
    }
    fn cell(&self) -> &AtomicU64 {
        // SAFETY: made from a segment of a locked partition, whose memory holds lines for ever.
        unsafe { &self.line.as_ref().slots[self.slot] }
    }
    fn get(&self) -> Slot {
        Slot(self.cell().load(Ordering::Acquire))
    }
}

/// Why an entry could not be added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Full {
    #[error(transparent)]
    Memory(#[from] vm::Error),
    #[error("too many keys have the same hash; improve the key's `Hash`")]
    Collisions,
}
