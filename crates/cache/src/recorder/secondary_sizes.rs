//! The secondary cache at several sizes: how many misses of memory each would have served.
//!
//! Memory stays as it is. So the blocks that leave it, and the misses that come back, are those of
//! the real cache, and only the secondary cache is simulated. At each of [`SIZES`] it is a ring of
//! [`SEGMENTS`] segments that takes every block that leaves memory and that it does not have. When
//! the ring is full, its oldest segment is overwritten. A real one that chooses what it writes, and
//! keeps what is used, does better at the same size.
//!
//! A sampled block has one entry, with the place of its copy in each ring: the number of its
//! segment, counted from the first one ever written. The sample is halved when there are too many
//! entries. Misses are corrected as those of the curve of memory are (`curve::estimate`): today's
//! size has the misses that the cache counted.
//!
//! It does not see removals of blocks that only the secondary cache has, and what that cache held
//! before the recorder was opened.
//!
//! Locking: none; a part of the [`Log`](super::log::Log).

#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::collections::HashMap;

use super::RecordedBlock;
use crate::attributes::Class;
use crate::curve::estimate::{self, Measured, Sampled};
use crate::curve::report::{CurvePoint, OwnerCurve, SecondaryCurve};
use crate::curve::{BUSY_S, HALF_LIFE_S};
use crate::key::OwnerId;
use crate::key_numbers::KeyNumbers;
use crate::sample::Sample;

/// The simulated sizes, in percent of today's.
pub(super) const SIZES: [u64; 8] = [25, 50, 75, 100, 150, 200, 300, 400];
/// The index of today's size.
pub(super) const TODAY: usize = 3;
/// Segments of a ring, unless there are fewer bytes.
const SEGMENTS: u64 = 64;
/// Most entries, with enough memory.
const MOST: usize = if cfg!(forebay_model) { 8 } else { 14_000 };
/// With memory for fewer entries than this, nothing is simulated.
const LEAST: usize = if cfg!(forebay_model) { 1 } else { 500 };
/// A sample with fewer live entries than one in this many of the most is too coarse.
const SPARSE: usize = 16;
/// Groups of blocks that are counted apart. Others are counted together.
const GROUPS: usize = 64;
/// The real cache misses at most so many times what a ring of its size does, or it is another kind
/// of cache, and a ring tells little of it.
const MAX_FACTOR: f64 = 2.0;
/// A place in no ring.
const NOWHERE: u32 = u32::MAX;
/// Bytes of an entry, and those that halving the sample takes for it meanwhile.
const ENTRY_BYTES: u64 = (size_of::<Tracked>() + size_of::<(u32, u16)>()) as u64;
/// Bytes of a group in its table, whose size is a power of two.
const GROUP_BYTES: u64 = size_of::<((OwnerId, Class), GroupSums)>() as u64 + 1;
/// Bytes of all groups, also where others were before.
const ALL_GROUPS_BYTES: u64 = 4 * GROUPS as u64 * GROUP_BYTES;

/// The smallest simulated size that would have served a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Needed {
    /// The block is not sampled, or no secondary cache was asked.
    #[default]
    Unknown,
    /// The index of the size.
    Size(u8),
    /// None of them would have.
    More,
}

/// What the cache's counters say, by class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SecondaryTotals {
    pub(super) now_ns: u64,
    /// Hits in memory.
    pub(super) hits: [u64; 2],
    /// Misses in memory.
    pub(super) misses: [u64; 2],
    /// Those that the secondary cache served.
    pub(super) served: [u64; 2],
}

pub(super) struct SecondarySizes {
    /// Bytes of blocks that the secondary cache can hold; 0 without one.
    capacity: u64,
    /// Entries above which the sample is halved.
    most: usize,
    /// The sample is one block in two to this power.
    shift: u32,
    entries: Vec<Tracked>,
    /// The entries by key.
    numbers: KeyNumbers,
    /// Since dead entries were dropped.
    evictions: usize,
    rings: [Ring; SIZES.len()],
    sums: Sums,
    last: Option<SecondaryTotals>,
}

#[derive(Clone, Copy)]
struct Tracked {
    key: u64,
    /// By size, the segment of the ring that has the block.
    places: [u32; SIZES.len()],
    weight: u32,
}

/// Sums over the last minutes, with decay.
#[derive(Default)]
struct Sums {
    /// Of the counters, by class.
    hits: [f64; 2],
    misses: [f64; 2],
    served: [f64; 2],
    seconds: f64,
    busy_seconds: f64,
    /// Of sampled misses.
    groups: HashMap<(OwnerId, Class), GroupSums>,
}

/// Each sampled miss counts as many as it stands for.
#[derive(Clone, Copy, Default)]
struct GroupSums {
    asked: f64,
    missed: [f64; SIZES.len()],
    variance: [f64; SIZES.len()],
}

/// A ring of segments at one size.
#[derive(Clone, Copy, Default)]
struct Ring {
    segment_bytes: u64,
    segments: u64,
    /// Bytes ever written.
    written: u64,
}

impl Ring {
    fn of(capacity: u64) -> Self {
        let segment_bytes = (capacity / SEGMENTS).max(1);
        Self { segment_bytes, segments: (capacity / segment_bytes).max(1), written: 0 }
    }

    /// The segment of a block that is written next.
    fn place(&self) -> u32 {
        // The entries begin anew long before there are so many.
        (self.written / self.segment_bytes).min(u64::from(NOWHERE - 1)) as u32
    }

    fn holds(&self, place: u32) -> bool {
        let last = self.written.saturating_sub(1) / self.segment_bytes;
        place != NOWHERE && last.saturating_sub(u64::from(place)) < self.segments
    }

    fn is_full(&self) -> bool {
        self.written / self.segment_bytes >= self.segments
    }
}

impl SecondarySizes {
    /// `budget` is the memory that this may take, in bytes.
    pub(super) fn new(budget: u64) -> Self {
        Self {
            capacity: 0,
            most: most_entries(budget),
            shift: 0,
            entries: Vec::new(),
            numbers: KeyNumbers::default(),
            evictions: 0,
            rings: [Ring::default(); SIZES.len()],
            sums: Sums::default(),
            last: None,
        }
    }

    /// Bits of a sampled key that are zero.
    pub(super) fn mask(&self) -> u64 {
        if self.capacity == 0 { Sample::NONE } else { (1 << self.shift) - 1 }
    }

    fn samples(&self, key: u64) -> bool {
        self.capacity > 0 && key & self.mask() == 0
    }

    /// Blocks of the cache for each sampled one.
    fn scale(&self) -> u64 {
        1 << self.shift
    }

    /// Sets the size of the secondary cache in bytes; 0 if there is none. A change by more than an
    /// eighth starts anew.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        let capacity = if self.most < LEAST { 0 } else { capacity };
        if self.capacity.abs_diff(capacity) > self.capacity / 8 {
            self.capacity = capacity;
            self.start_anew(0);
        }
    }

    /// Keeps to that many bytes of memory from now on. With less than before, the sample is halved
    /// if it has to be; with far too little, the next [`set_capacity`](Self::set_capacity) drops
    /// everything.
    pub(super) fn keep_to(&mut self, budget: u64) {
        let most = most_entries(budget);
        if most < self.most && most >= LEAST {
            while self.entries.len() > most {
                self.halve();
            }
            self.entries.shrink_to(most + 1);
            self.rebuild_numbers();
        }
        self.most = most;
    }

    fn start_anew(&mut self, shift: u32) {
        self.shift = shift;
        (self.entries, self.numbers) = (Vec::new(), KeyNumbers::default());
        self.evictions = 0;
        self.rings = SIZES.map(|percent| Ring::of(scaled(self.capacity, percent)));
        self.sums = Sums::default();
    }

    /// A miss in memory of a block whose secondary cache is asked.
    pub(super) fn miss(&mut self, key: u64, block: RecordedBlock) -> Needed {
        if !self.samples(key) {
            return Needed::Unknown;
        }
        let stands_for = self.scale() as f64;
        let places = self.number(key).map(|n| self.entries[n as usize].places);
        let held = |n: usize| places.is_some_and(|places| self.rings[n].holds(places[n]));
        let held: [bool; SIZES.len()] = std::array::from_fn(held);
        let sums = self.sums.of(block.owner, block.class);
        sums.asked += stands_for;
        for (n, _) in held.iter().enumerate().filter(|(_, held)| !**held) {
            sums.missed[n] += stands_for;
            sums.variance[n] += stands_for * (stands_for - 1.0);
        }
        let smallest = held.iter().position(|held| *held);
        smallest.map_or(Needed::More, |n| Needed::Size(n as u8))
    }

    /// A block leaves memory, and the secondary cache may take it.
    pub(super) fn evicted(&mut self, key: u64, weight: u32) {
        if !self.samples(key) {
            return;
        }
        let bytes = u64::from(weight) * self.scale();
        let n = self.number(key).unwrap_or_else(|| self.add(key));
        let entry = &mut self.entries[n as usize];
        entry.weight = weight;
        for (ring, place) in self.rings.iter_mut().zip(&mut entry.places) {
            if !ring.holds(*place) {
                *place = ring.place();
                ring.written += bytes;
            }
        }
        self.evictions += 1;
        if self.entries.len() > self.most || self.evictions > self.most {
            self.purge();
        }
    }

    /// The content of a block is outdated.
    pub(super) fn removed(&mut self, key: u64) {
        let key_of = |n: u16| self.entries[n as usize].key;
        let Some(n) = self.numbers.remove(key, key_of) else { return };
        // The last entry takes its place.
        let last = self.entries.len() - 1;
        if n as usize != last {
            self.numbers.renumber(key_of(last as u16), n, key_of);
        }
        self.entries.swap_remove(n as usize);
    }

    fn number(&self, key: u64) -> Option<u16> {
        self.numbers.get(key, |n| self.entries[n as usize].key)
    }

    /// Adds an entry that no ring has, and returns its number.
    fn add(&mut self, key: u64) -> u16 {
        let n = self.entries.len();
        if n == self.entries.capacity() {
            // Doubled, but never beyond the most.
            let room = (self.most + 1).saturating_sub(n).max(1);
            self.entries.reserve_exact(n.max(LEAST).min(room));
        }
        self.entries.push(Tracked { key, places: [NOWHERE; SIZES.len()], weight: 0 });
        self.numbers.insert(key, n as u16, |n| self.entries[n as usize].key);
        n as u16
    }

    fn rebuild_numbers(&mut self) {
        self.numbers.rebuild(self.entries.len(), |n| self.entries[n as usize].key);
    }

    /// Drops the entries that no ring holds. Halves the sample if too many are left, and doubles it
    /// if few are: then all starts anew, because nothing is known of the new half.
    fn purge(&mut self) {
        let is_over = self.entries.len() > self.most;
        self.evictions = 0;
        let rings = &self.rings;
        if rings.iter().any(|ring| ring.place() > NOWHERE / 2) {
            return self.start_anew(self.shift);
        }
        self.entries
            .retain(|entry| rings.iter().zip(entry.places).any(|(ring, place)| ring.holds(place)));
        self.rebuild_numbers();
        if is_over && self.entries.len() > self.most / 8 * 7 {
            self.halve();
        } else if self.entries.len() < self.most / SPARSE && self.shift > 0 {
            self.start_anew(self.shift - 1);
        }
    }

    /// Halves the sample. Each block that stays stands for two, so all places change.
    fn halve(&mut self) {
        self.shift += 1;
        let (mask, scale) = (self.mask(), self.scale());
        self.entries.retain(|entry| entry.key & mask == 0);
        self.rebuild_numbers();
        let mut held: Vec<(u32, u16)> = Vec::with_capacity(self.entries.len());
        for n in 0..SIZES.len() {
            let ring = &mut self.rings[n];
            held.clear();
            for (number, entry) in self.entries.iter_mut().enumerate() {
                match ring.holds(entry.places[n]) {
                    true => held.push((entry.places[n], number as u16)),
                    false => entry.places[n] = NOWHERE,
                }
            }
            held.sort_unstable();
            let first = held
                .first()
                .map_or(ring.written, |(place, _)| u64::from(*place) * ring.segment_bytes);
            // The ring stays as full as it was.
            let full = if ring.is_full() { ring.segments * ring.segment_bytes } else { 0 };
            ring.written = full.max(first);
            for (_, number) in &held {
                let entry = &mut self.entries[*number as usize];
                entry.places[n] = ring.place();
                ring.written += u64::from(entry.weight) * scale;
            }
        }
    }

    /// Adds to the sums what the counters say, and lets them decay.
    pub(super) fn advance(&mut self, totals: SecondaryTotals) {
        let Some(last) = self.last.replace(totals) else { return };
        let seconds = totals.now_ns.saturating_sub(last.now_ns) as f64 / 1e9;
        let kept = (-seconds / HALF_LIFE_S).exp2();
        let sums = &mut self.sums;
        for (sum, now, last) in [
            (&mut sums.hits, totals.hits, last.hits),
            (&mut sums.misses, totals.misses, last.misses),
            (&mut sums.served, totals.served, last.served),
        ] {
            for n in 0..2 {
                sum[n] = (sum[n] + now[n].saturating_sub(last[n]) as f64) * kept;
            }
        }
        let is_busy = totals.misses != last.misses || totals.hits != last.hits;
        sums.seconds = (sums.seconds + seconds) * kept;
        let busy = if is_busy { seconds.min(BUSY_S) } else { 0.0 };
        sums.busy_seconds = (sums.busy_seconds + busy) * kept;
        for group in sums.groups.values_mut() {
            group.asked *= kept;
            group.missed.iter_mut().for_each(|sum| *sum *= kept);
            group.variance.iter_mut().for_each(|sum| *sum *= kept);
        }
        sums.groups.retain(|_, group| group.asked > 0.5);
    }

    /// The curve over the last minutes. `None` without a secondary cache.
    /// [`advance`](Self::advance) first.
    pub(super) fn curve(&self) -> Option<SecondaryCurve> {
        if self.capacity == 0 {
            return None;
        }
        let sums = &self.sums;
        let by_class = Class::ALL.map(|class| {
            let n = class as usize;
            let (accesses, served) = (sums.misses[n], sums.served[n].min(sums.misses[n]));
            let measured = Measured { accesses, misses: accesses - served };
            self.points(&sums.of_class(class), measured)
        });
        let points = by_class[0].iter().zip(&by_class[1]).map(|(a, b)| a.plus(b)).collect();
        let by_owner = sums.groups.iter().map(|((owner, class), group)| {
            // What each class was calibrated by holds for its owners.
            let all = sums.of_class(*class);
            let factor = |n: usize| by_class[*class as usize][n].misses / all.missed[n].max(1.0);
            let point = |n: usize| CurvePoint {
                accesses: group.asked,
                misses: (group.missed[n] * factor(n)).min(group.asked),
                error: group.variance[n].sqrt() * factor(n),
                ..by_class[*class as usize][n]
            };
            let points = (0..SIZES.len()).map(point).collect();
            OwnerCurve { owner: *owner, class: *class, points }
        });
        Some(SecondaryCurve {
            capacity: self.capacity,
            seconds: sums.seconds,
            busy_seconds: sums.busy_seconds,
            memory_hits: sums.hits,
            by_owner: by_owner.collect(),
            points,
            by_class,
        })
    }

    fn points(&self, sums: &GroupSums, measured: Measured) -> Vec<CurvePoint> {
        let one_in = self.scale() as f64;
        let sampled: Vec<Sampled> = (0..SIZES.len())
            .map(|n| Sampled { misses: sums.missed[n], variance: sums.variance[n], one_in })
            .collect();
        let misses = estimate::misses(measured, &sampled, TODAY);
        let today = misses[TODAY].0;
        // The real cache may serve less than a ring of its size. A larger one gains only what a
        // larger ring serves and that one does not, and a smaller one loses as much.
        let ring_of_today = sampled[TODAY].misses;
        let factor = today / ring_of_today.max(1.0);
        let scale = factor.clamp(1.0 / MAX_FACTOR, MAX_FACTOR);
        let of_larger = |n: usize| {
            let gain = (ring_of_today - sampled[n].misses).max(0.0) * scale;
            (today - gain).max(0.0)
        };
        let of_smaller = |n: usize| {
            let loss = (sampled[n].misses - ring_of_today).max(0.0) * scale;
            // One that declines most of what a ring takes would decline more with less space.
            let part = if factor > MAX_FACTOR { SIZES[n] as f64 / 100.0 } else { 1.0 };
            let most_served = (measured.accesses - today) * part;
            (today + loss).max(measured.accesses - most_served).min(measured.accesses)
        };
        let point = |(n, (misses, error)): (usize, (f64, f64))| CurvePoint {
            percent: SIZES[n],
            capacity: scaled(self.capacity, SIZES[n]),
            accesses: measured.accesses,
            // A smaller one is not better.
            misses: if n < TODAY { misses.max(of_smaller(n)) } else { of_larger(n) },
            error,
            full: self.rings[n].is_full(),
        };
        misses.into_iter().enumerate().map(point).collect()
    }

    /// Bytes of the secondary cache; 0 without one.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let entries = (self.entries.capacity() * size_of::<Tracked>()) as u64;
        let groups = (self.sums.groups.capacity() * 8 / 7) as u64 * GROUP_BYTES;
        entries + self.numbers.memory_bytes() + groups
    }
}

/// Entries that `budget` bytes of memory are enough for.
fn most_entries(budget: u64) -> usize {
    let budget = budget.saturating_sub(ALL_GROUPS_BYTES);
    let most = MOST + 1;
    if most as u64 * ENTRY_BYTES + KeyNumbers::most_bytes(most) <= budget {
        return MOST;
    }
    // At most four numbers of the table for each.
    MOST.min((budget / (ENTRY_BYTES + 4 * size_of::<u16>() as u64)) as usize)
}

impl Sums {
    fn of(&mut self, owner: OwnerId, class: Class) -> &mut GroupSums {
        let is_known = self.groups.contains_key(&(owner, class));
        let owner = if is_known || self.groups.len() < GROUPS - 2 { owner } else { OwnerId::NONE };
        self.groups.entry((owner, class)).or_default()
    }

    fn of_class(&self, class: Class) -> GroupSums {
        let mut all = GroupSums::default();
        for (_, group) in self.groups.iter().filter(|((_, of), _)| *of == class) {
            all.asked += group.asked;
            for n in 0..SIZES.len() {
                all.missed[n] += group.missed[n];
                all.variance[n] += group.variance[n];
            }
        }
        all
    }
}

/// The bytes of a simulated size.
pub(super) fn scaled(capacity: u64, percent: u64) -> u64 {
    (u128::from(capacity) * u128::from(percent) / 100) as u64
}
