//! Adds and removes entries, and grows, splits, shrinks and merges segments.
//!
//! Each step builds a new segment beside the old one and then changes the directory's cells.
//! Readers see one or the other.
//!
//! Locking: the partition's lock throughout, and `index-memory` under it.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Directory, Entry, MAX_DEPTH};
use super::line::{self, GHOST_SPLIT_BITS, SLOTS, Slot};
use super::memory::GRANULE_LINES;
use super::{Full, Index, Locked, MAX_DISTANCE, PARTITION_BITS, SlotRef};

/// Sizes of segments in granules, each about a quarter larger than the one before.
const SIZES: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16];
/// A segment of this size splits instead of growing.
const MAX_GRANULES: usize = if cfg!(any(miri, forebay_model)) { 2 } else { 16 };

/// Entries per granule at which a segment grows: 5.8 per line of seven slots.
const GROW_AT: usize = GRANULE_LINES * 58 / 10;
/// Entries per granule after a segment was made smaller.
const SHRINK_TO: usize = GRANULE_LINES * 47 / 10;
/// Entries per granule at which a segment is made smaller. Far enough below that growing and
/// shrinking do not alternate.
const SHRINK_AT: usize = GRANULE_LINES * 24 / 10;
/// Two neighbours merge if they have at most this many entries together.
const MERGE_AT: usize = MAX_GRANULES * SHRINK_AT;

/// Adds to a number that only the holder of the partition's lock writes.
fn tally(cell: &AtomicU64, change: i64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
}

/// The most entries that one step moves.
#[cfg(all(test, not(forebay_model)))]
pub(super) const MAX_ENTRIES_MOVED: usize = MAX_GRANULES * GRANULE_LINES * SLOTS;

fn size_for(entries: usize, per_granule: usize) -> usize {
    let wanted = entries.div_ceil(per_granule);
    SIZES.into_iter().find(|s| *s >= wanted).unwrap_or(MAX_GRANULES).min(MAX_GRANULES)
}

impl Index {
    /// Removes the slot of the header at that address, wherever it is: for a key whose hash has
    /// changed. Walks the whole index, a partition at a time under its lock. A slot stays in its
    /// partition, so it is not overlooked. False if there is none.
    pub(crate) fn remove_anywhere(&self, address: usize) -> bool {
        let is_it = |slot: Slot| !slot.is_ghost() && slot.address() == address;
        self.partitions.iter().enumerate().any(|(number, partition)| {
            let writer = partition.lock.lock();
            let found = partition.distinct_segments().find_map(|(entry, first)| {
                let place = entry.place_of(is_it)?;
                Some((SlotRef { line: place.0, slot: place.1 }, first))
            });
            let Some((slot_ref, first)) = found else { return false };
            let mut locked = Locked { index: self, partition, writer, hash: 0 };
            // A hash that selects the segment.
            let below = u64::BITS - PARTITION_BITS - locked.directory().depth();
            let partition_bits = (number as u64) << (u64::BITS - PARTITION_BITS);
            locked.hash = partition_bits | ((first as u64) << below);
            locked.remove(slot_ref);
            true
        })
    }
}

/// Computes the hash of a resident's key from its header's address, under the partition's lock.
pub(crate) type HashOf<'a> = &'a dyn Fn(usize) -> u64;

impl Locked<'_> {
    /// Adds an entry of this hash. Calls `hash_of` when a segment splits.
    ///
    /// # Errors
    ///
    /// There is no memory to grow, or too many keys have the same hash. The entry is not added.
    pub(crate) fn insert(&mut self, slot: Slot, hash_of: HashOf<'_>) -> Result<(), Full> {
        debug_assert_eq!(slot.tag(), line::tag(self.hash));
        loop {
            let entry = match self.entry() {
                Some(entry) => entry,
                None => self.first_segment()?,
            };
            let fits = entry.count() < entry.granules() * GROW_AT;
            if fits && self.try_store(entry, slot) {
                tally(&self.partition.entries, 1);
                return Ok(());
            }
            self.grow(entry, hash_of)?;
        }
    }

    /// Removes an entry of this hash.
    pub(crate) fn remove(&mut self, slot_ref: SlotRef) {
        let Some(entry) = self.entry() else { unreachable!("a place in an empty partition") };
        let slot = slot_ref.get();
        let lines = entry.lines();
        let home = line::home(slot.tag(), lines);
        slot_ref.cell().store(Slot::EMPTY.0, Ordering::Release);
        // SAFETY: `home` is within the segment.
        let home = unsafe { entry.segment().add(home) };
        if home != slot_ref.line {
            // SAFETY: segments' memory holds lines for ever.
            unsafe { home.as_ref() }.undisplace();
            tally(&self.partition.displaced, -1);
        }
        entry.add_count(-1);
        tally(&self.partition.entries, -1);
        self.shrink(entry);
    }

    /// Stores a slot in a segment. False if the lines around its home are full.
    fn try_store(&self, entry: Entry, slot: Slot) -> bool {
        let lines = entry.lines();
        let home = line::home(slot.tag(), lines);
        for distance in 0..=MAX_DISTANCE.min(lines - 1) {
            // SAFETY: within the segment.
            let line = unsafe { entry.segment().add(line::at(home, distance, lines)).as_ref() };
            let Some(cell) = line.empty().next().map(|free| &line.slots[free]) else {
                continue;
            };
            if distance > 0 {
                // SAFETY: `home` is within the segment, whose memory holds lines for ever.
                unsafe { entry.segment().add(home).as_ref() }.displace(distance);
                tally(&self.partition.displaced, 1);
            }
            entry.add_count(1);
            cell.store(slot.0, Ordering::Release);
            return true;
        }
        false
    }

    fn first_segment(&mut self) -> Result<Entry, Full> {
        let segment = self.index.memory.take(1)?;
        let entry = Entry::new(segment, 1, 0, 0);
        let cells: Box<[AtomicU64]> = Box::new([AtomicU64::new(entry.0)]);
        tally(&self.partition.segments, 1);
        self.adopt(cells);
        Ok(entry)
    }

    /// Makes `cells` the directory.
    fn adopt(&mut self, cells: Box<[AtomicU64]>) {
        let directory = Directory::new(&cells);
        self.writer.directories.push(cells);
        self.partition.directory.store(directory.word(), Ordering::Release);
    }

    fn directory(&self) -> Directory {
        let word = self.partition.directory.load(Ordering::Relaxed);
        Directory::from_word(word).expect("a segment has a directory")
    }

    /// Points all cells of the segment of `number`, at depth `depth`, to `entry`.
    fn publish(&self, number: usize, depth: u32, entry: Entry) {
        let directory = self.directory();
        let span = 1usize << (directory.depth() - depth);
        let first = number / span * span;
        for number in first..first + span {
            // SAFETY: directories live as long as the index; `number` is within this one.
            unsafe { directory.nth(number) }.store(entry.0, Ordering::Release);
        }
    }

    /// Builds a segment of the given slots, with more granules if they do not fit.
    fn build(
        &self,
        slots: &[Slot],
        granules: usize,
        depth: u32,
        version: u64,
    ) -> Result<Option<Entry>, Full> {
        for granules in SIZES.into_iter().filter(|s| (granules..=MAX_GRANULES).contains(s)) {
            let segment = self.index.memory.take(granules)?;
            let entry = Entry::new(segment, granules, depth, version);
            let displaced = self.partition.displaced.load(Ordering::Relaxed);
            if slots.iter().all(|slot| self.try_store(entry, *slot)) {
                return Ok(Some(entry));
            }
            self.partition.displaced.store(displaced, Ordering::Relaxed);
            self.index.memory.give(segment, granules);
        }
        Ok(None)
    }

    fn forget(&self, old: Entry) {
        let displaced: u64 =
            old.all_lines().map(|line| line.meta.load(Ordering::Relaxed) & 0xffff).sum();
        tally(&self.partition.displaced, -(displaced as i64));
        self.index.memory.give(old.segment(), old.granules());
        tally(&self.partition.steps, 1);
    }

    fn grow(&mut self, old: Entry, hash_of: HashOf<'_>) -> Result<(), Full> {
        let slots: Vec<Slot> = old.slots().map(|(_, slot)| slot).collect();
        if old.granules() < MAX_GRANULES {
            let next = SIZES.into_iter().find(|s| *s > old.granules()).unwrap_or(MAX_GRANULES);
            if let Some(new) = self.build(&slots, next, old.depth(), old.version() + 1)? {
                let number = self.directory().number(self.hash);
                self.publish(number, old.depth(), new);
                self.forget(old);
                return Ok(());
            }
        }
        self.split(old, &slots, hash_of)
    }

    fn split(&mut self, old: Entry, slots: &[Slot], hash_of: HashOf<'_>) -> Result<(), Full> {
        let depth = old.depth() + 1;
        // Too full around one line, but far from full. Splitting would not help. Nor if the splits
        // before have left more empty segments than there are entries: `hash_of` sends all to one.
        let entries = self.partition.entries.load(Ordering::Relaxed);
        let is_skewed = entries >> depth == 0;
        if depth > MAX_DEPTH || is_skewed || slots.len() < MAX_GRANULES * SHRINK_AT {
            return Err(Full::Collisions);
        }
        if self.directory().depth() < depth {
            self.double_directory();
        }
        // The hash bit that separates the two halves.
        let bit = u64::BITS - PARTITION_BITS - depth;
        let upper = |slot: &Slot| {
            if !slot.is_ghost() {
                return (hash_of(slot.address()) >> bit) & 1 == 1;
            }
            (slot.ghost_split_bits() >> (GHOST_SPLIT_BITS - depth)) & 1 == 1
        };
        // Ghosts store their next split bits. Beyond those, at some 10^8 entries, their half is
        // unknown and they are dropped.
        let known = |slot: &&Slot| !slot.is_ghost() || depth <= GHOST_SPLIT_BITS;
        let kept: Vec<Slot> = slots.iter().filter(known).copied().collect();
        let (high, low): (Vec<Slot>, Vec<Slot>) = kept.iter().partition(|slot| upper(slot));
        let version = old.version() + 1;
        let build = |half: &[Slot]| {
            let new = self.build(half, size_for(half.len(), SHRINK_TO), depth, version)?;
            new.ok_or(Full::Collisions)
        };
        let new_low = build(&low)?;
        let new_high = match build(&high) {
            Ok(new) => new,
            Err(full) => {
                self.discard(new_low);
                return Err(full);
            }
        };
        let directory = self.directory();
        let span = 1usize << (directory.depth() - depth);
        let low_number = directory.number(self.hash) / (2 * span) * (2 * span);
        self.publish(low_number, depth, new_low);
        self.publish(low_number + span, depth, new_high);
        tally(&self.partition.entries, kept.len() as i64 - slots.len() as i64);
        tally(&self.partition.segments, 1);
        self.forget(old);
        Ok(())
    }

    fn double_directory(&mut self) {
        let old = self.directory();
        let cell = |i: usize| {
            // SAFETY: directories live as long as the index; `i / 2` is within the old one.
            AtomicU64::new(unsafe { old.nth(i / 2) }.load(Ordering::Relaxed))
        };
        let cells = (0..2 * old.len()).map(cell).collect();
        self.adopt(cells);
    }

    fn shrink(&mut self, old: Entry) {
        let count = old.count();
        if old.granules() > 1 && count < old.granules() * SHRINK_AT {
            let wanted = size_for(count.max(1), SHRINK_TO);
            if wanted < old.granules() {
                let slots: Vec<Slot> = old.slots().map(|(_, slot)| slot).collect();
                // Without memory for the smaller segment, the larger one stays.
                if let Ok(Some(new)) = self.build(&slots, wanted, old.depth(), old.version() + 1) {
                    if new.granules() < old.granules() {
                        let number = self.directory().number(self.hash);
                        self.publish(number, old.depth(), new);
                        self.forget(old);
                    } else {
                        self.discard(new);
                    }
                }
            }
        }
        self.merge();
    }

    /// Frees a segment that was built and is not needed.
    fn discard(&self, new: Entry) {
        let steps = self.partition.steps.load(Ordering::Relaxed);
        self.forget(new);
        self.partition.steps.store(steps, Ordering::Relaxed);
    }

    /// Merges this hash's segment with its neighbour if both are small.
    fn merge(&mut self) {
        let Some(mine) = self.entry() else { return };
        if mine.depth() == 0 || mine.count() > MERGE_AT / 2 {
            return;
        }
        let directory = self.directory();
        let span = 1usize << (directory.depth() - mine.depth());
        let number = directory.number(self.hash) / span * span;
        // SAFETY: directories live as long as the index, and the neighbour is within this one.
        let neighbour = Entry(unsafe { directory.nth(number ^ span) }.load(Ordering::Relaxed));
        if neighbour.depth() != mine.depth() || neighbour.count() + mine.count() > MERGE_AT {
            return;
        }
        let both = [mine, neighbour];
        let slots: Vec<Slot> = both.iter().flat_map(|e| e.slots().map(|(_, s)| s)).collect();
        let granules = size_for(slots.len().max(1), SHRINK_TO);
        let version = mine.version().max(neighbour.version()) + 1;
        if let Ok(Some(new)) = self.build(&slots, granules, mine.depth() - 1, version) {
            self.publish(number, mine.depth() - 1, new);
            tally(&self.partition.segments, -1);
            self.forget(mine);
            self.forget(neighbour);
        }
    }
}

const _: () = assert!(SHRINK_TO < GROW_AT && SHRINK_AT < SHRINK_TO);
const _: () = assert!(SIZES[11] == 16 && SLOTS == 7);
