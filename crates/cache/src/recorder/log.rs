//! The content of the flight recorder: the lives of sampled blocks, and what their misses came
//! from.
//!
//! A recorded block is *loading*, *abandoned*, *resident* or *gone*. A miss of a block that is gone
//! is explained by the way in which it left. If a load ends without a block, its miss waits for the
//! load that is begun again. The table holds about [`LIVES`] blocks. If more than [`RESIDENT`] of
//! them are resident, the sample is halved, so that most of the table remembers blocks that are
//! gone: [`GONE_SHARE`] for each resident one, if there are so many. The oldest are forgotten. Of
//! one in [`NOTED`] of them a note stays, so that a loop much larger than the cache is recognised.
//! If few have been resident for long ([`SPARSE`]), the sample is doubled. No load is recorded
//! while there are [`LIVES`] and [`RESIDENT`] blocks, most of them loading.
//!
//! When the sample is doubled, the lives of its new half are unknown. So their misses are not
//! *told* (counted) until as many blocks were inserted as the table holds. A recorded byte then
//! stands for half as many bytes, so all sums of weights are doubled.
//!
//! The *evictor* of a block is the block whose insert pushed it out. All blocks that were inserted
//! after it, within the last turnover of the cache, have a part in that. One of them is drawn with
//! probability proportional to its weight, so that the shares of many evictions are right.
//!
//! Events of one block may arrive late or not at all, since other threads change it meanwhile. An
//! event that does not fit the recorded life is ignored, or begins a new one.
//!
//! Locking: none; the content of `recorder`.

use std::collections::{HashMap, VecDeque};

use forebay_base::rng::SmallRng;

use super::departed::Departed;
use super::forgotten::Forgotten;
use super::secondary_sizes::{Needed, SecondarySizes};
use super::windows::Windows;
use super::{Miss, MissCause, RecordedBlock, SecondaryFate};
use crate::header::List;

/// Recorded blocks, resident or gone.
const LIVES: usize = if cfg!(forebay_model) { 8 } else { 4096 };
/// Resident ones above which the sample is halved.
const RESIDENT: usize = LIVES / 4;

/// Resident ones up to which the sample is doubled, after [`RESIDENT`] inserts.
const SPARSE: usize = RESIDENT / 4;

/// Blocks that are gone, for each resident one, after which the oldest is forgotten.
const GONE_SHARE: usize = 16;
/// At least this many blocks that are gone are remembered.
const GONE_MIN: usize = 64;
/// One in so many of the recorded blocks is noted when it is forgotten.
const NOTED: u64 = if cfg!(forebay_model) { 1 } else { 16 };

pub(crate) struct Log {
    /// The sample is one block in two to this power.
    shift: u32,
    /// The same of the blocks whose misses are told.
    told_shift: u32,
    /// Inserts since the sample was doubled, while some misses are not told.
    learned: usize,
    /// Inserts since more than [`SPARSE`] blocks were resident.
    sparse_inserts: usize,
    lives: HashMap<u64, Life, foldhash::fast::FixedState>,
    resident: usize,
    /// The most that were resident since the sample was halved.
    peak_resident: usize,
    departed: Departed,
    forgotten: Forgotten,
    inserts: Inserts,
    passes: ClockPasses,
    pub(super) windows: Windows,
    pub(super) secondary: SecondarySizes,
    rng: SmallRng,
}

pub(super) struct Life {
    pub(super) block: RecordedBlock,
    pub(super) weight: u32,
    /// Whether the block was used again after its insert.
    pub(super) reused: bool,
    phase: Phase,
}

impl Life {
    /// Whether the block is not in the cache any more.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Gone(_))
    }

    /// Whether its first load has not ended with a block.
    fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Loading { .. } | Phase::Abandoned { .. })
    }
}

enum Phase {
    Loading {
        began_ns: u64,
        miss: Miss,
    },
    /// The load ended without a block. The miss has the time waited so far.
    Abandoned {
        miss: Miss,
        /// In the order of departures, with weight zero.
        position: usize,
    },
    /// The weight of all recorded inserts up to this block's.
    Resident {
        inserted: u64,
    },
    Gone(Departure),
}

/// How a block left.
struct Departure {
    exit: Exit,
    evictor: Option<RecordedBlock>,
    /// Position and weight in the order of departures.
    position: usize,
    weight: u64,
}

/// A block that leaves the cache or does not enter it.
#[derive(Clone, Copy)]
pub(super) struct Exit {
    pub(super) cause: MissCause,
    /// The list that it was evicted from.
    pub(super) list: Option<List>,
    pub(super) now_ns: u64,
    /// Whether the secondary cache has the block.
    pub(super) stored: bool,
    /// Whether it was used again after its insert.
    pub(super) reused: bool,
    /// Whether it was requeued before it was evicted.
    pub(super) passed_often: bool,
    /// The cache's target, if the list is a CLOCK.
    pub(super) clock_bytes: Option<u64>,
}

impl Exit {
    /// Of a block that leaves for another reason than capacity.
    pub(super) fn uncached(cause: MissCause, now_ns: u64) -> Self {
        Self {
            cause,
            list: None,
            now_ns,
            stored: false,
            reused: false,
            passed_often: false,
            clock_bytes: None,
        }
    }
}

/// What the cache knows when a load begins.
pub(super) struct AtMiss {
    pub(super) now_ns: u64,
    /// Whether the cache was not full yet.
    pub(super) filling: bool,
    pub(super) target: u64,
    /// Whether a secondary cache will be asked.
    pub(super) asks_secondary: bool,
    /// The size of it that would serve the miss.
    pub(super) needed: Needed,
}

/// How much is inserted while the hand of a CLOCK passes over the whole list. It also passes blocks
/// that it requeues, so that is less than the list holds, and a larger list gains less time.
#[derive(Default)]
struct ClockPasses {
    /// Bytes of the list, and bytes inserted, summed over blocks that left after one pass.
    list: f64,
    inserted: f64,
}

/// Recently inserted blocks, each with the sum of weights up to its own.
struct Inserts {
    recent: VecDeque<(u64, RecordedBlock)>,
    /// The sum up to the last one that was dropped.
    dropped: u64,
    total: u64,
}

impl Log {
    pub(super) fn new(windows: Windows, secondary: SecondarySizes, seed: u64) -> Self {
        let hasher = foldhash::fast::FixedState::with_seed(seed);
        Self {
            shift: 0,
            told_shift: 0,
            learned: 0,
            sparse_inserts: 0,
            lives: HashMap::with_hasher(hasher.clone()),
            resident: 0,
            peak_resident: 0,
            departed: Departed::new(),
            forgotten: Forgotten::new(hasher),
            inserts: Inserts::new(),
            passes: ClockPasses::default(),
            windows,
            secondary,
            rng: SmallRng::from_seed(seed),
        }
    }

    pub(super) fn mask(&self) -> u64 {
        (1 << self.shift) - 1
    }

    /// Whether the lives of the block with that key are recorded.
    pub(super) fn records(&self, key: u64) -> bool {
        key & self.mask() == 0
    }

    /// Blocks of the cache for each one that is recorded.
    fn scale(&self) -> u64 {
        1 << self.shift
    }

    /// Blocks of the cache for each one whose misses are told.
    pub(super) fn told_scale(&self) -> u64 {
        1 << self.told_shift
    }

    /// Whether the misses of a recorded block are told.
    fn is_told(&self, key: u64) -> bool {
        key & (self.told_scale() - 1) == 0
    }

    /// The blocks whose misses are told.
    pub(super) fn lives(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(|(key, _)| self.is_told(**key)).map(|(_, life)| life)
    }

    fn tell(&mut self, key: u64, miss: Miss) {
        if self.is_told(key) {
            self.windows.add(miss);
        }
    }

    /// A load begins because the block is not in memory.
    pub(super) fn miss(&mut self, key: u64, block: RecordedBlock, weight: u32, at: &AtMiss) {
        let life = self.take(key);
        if life.is_none() && self.lives.len() >= LIVES + RESIDENT {
            return;
        }
        let reused = life.as_ref().is_some_and(|life| life.reused || !life.is_loading());
        let phase = match life {
            // A load that was withdrawn and begun again is one miss.
            Some(Life { phase: phase @ Phase::Loading { .. }, .. }) => phase,
            Some(Life { phase: Phase::Abandoned { miss, .. }, .. }) => {
                Phase::Loading { began_ns: at.now_ns.saturating_sub(miss.waited_ns), miss }
            }
            life => {
                let miss = self.explain(key, life.as_ref(), block, weight, at);
                Phase::Loading { began_ns: at.now_ns, miss }
            }
        };
        self.put(key, Life { block, weight, reused, phase });
    }

    /// A load ends without a block. Another one may follow.
    pub(super) fn abandon(&mut self, key: u64, now_ns: u64) {
        let Some(life) = self.lives.get(&key) else { return };
        let Phase::Loading { began_ns, mut miss } = life.phase else { return };
        miss.waited_ns = now_ns.saturating_sub(began_ns);
        let Some(life) = self.take(key) else { return };
        let position = self.depart(key, 0);
        self.put(key, Life { phase: Phase::Abandoned { miss, position }, ..life });
        self.forget_oldest();
    }

    /// Why a block is missed, by its life before.
    fn explain(
        &self,
        key: u64,
        life: Option<&Life>,
        block: RecordedBlock,
        weight: u32,
        at: &AtMiss,
    ) -> Miss {
        let secondary =
            if at.asks_secondary { SecondaryFate::Served } else { SecondaryFate::Absent };
        let mut miss = Miss {
            block,
            cause: if at.filling { MissCause::Filling } else { MissCause::NeverSeen },
            list: None,
            secondary,
            stored: false,
            evictor: None,
            lacking: 0,
            gone_ns: 0,
            waited_ns: 0,
            at_ns: at.now_ns,
            scale: self.told_scale(),
            is_noted: false,
            needed: at.needed,
        };
        let gone = match life {
            None => {
                miss.is_noted = self.is_noted(key);
                if let Some(inserted) = self.forgotten.inserted(key) {
                    let since = self.inserts.total.saturating_sub(inserted);
                    miss.lacking = since * self.scale() + u64::from(weight);
                }
                return miss;
            }
            Some(Life { phase: Phase::Gone(gone), .. }) => gone,
            Some(_) => {
                // Another thread is about to record that it left.
                (miss.cause, miss.lacking) = (MissCause::Evicted, u64::from(weight));
                return miss;
            }
        };
        miss.cause = gone.exit.cause;
        miss.list = gone.exit.list;
        miss.stored = gone.exit.stored;
        miss.evictor = gone.evictor;
        miss.gone_ns = at.now_ns.saturating_sub(gone.exit.now_ns);
        if miss.cause == MissCause::Evicted {
            miss.lacking = gone.weight * self.scale() + u64::from(weight);
            if gone.exit.clock_bytes.is_some() {
                miss.lacking = self.passes.bytes_for(miss.lacking);
            }
            let peak = self.windows.peak_target();
            let shrunk_by = peak.saturating_sub(at.target);
            // The overhead that a hard bound includes changes a little all the time.
            if miss.lacking <= shrunk_by && shrunk_by > peak / 16 {
                miss.cause = MissCause::MemoryPressure;
            }
        }
        miss
    }

    /// The secondary cache did not have a block that is loading.
    /// `fate` says why, unless it had the block before.
    pub(super) fn not_in_secondary(&mut self, key: u64, fate: SecondaryFate) {
        let Some(life) = self.lives.get_mut(&key) else { return };
        let Phase::Loading { miss, .. } = &mut life.phase else { return };
        miss.secondary = if miss.stored { SecondaryFate::Dropped } else { fate };
    }

    /// A block enters the cache; after a load, its miss is over. A block of `weight` zero is handed
    /// out uncached.
    pub(super) fn enter(&mut self, key: u64, block: RecordedBlock, weight: u32, now_ns: u64) {
        let reused = match self.take(key) {
            None => false,
            Some(Life { phase: Phase::Loading { began_ns, mut miss }, reused, .. }) => {
                miss.waited_ns = now_ns.saturating_sub(began_ns);
                self.tell(key, miss);
                reused
            }
            Some(_) => true,
        };
        let inserted = self.inserts.add(block, weight);
        self.put(key, Life { block, weight, reused, phase: Phase::Resident { inserted } });
        self.fit_sample();
    }

    /// Halves the sample if too many blocks are resident, and doubles it if few have been for long.
    fn fit_sample(&mut self) {
        if self.told_shift > self.shift {
            self.learned += 1;
            if self.learned >= LIVES {
                self.told_shift = self.shift;
            }
        }
        self.sparse_inserts = if self.resident > SPARSE { 0 } else { self.sparse_inserts + 1 };
        let all_told = self.told_shift == self.shift;
        if self.resident > RESIDENT {
            self.halve();
        } else if self.sparse_inserts > RESIDENT && self.shift > 0 && all_told {
            self.double();
        }
    }

    /// A block leaves the cache, or was loaded and does not enter it.
    pub(super) fn leave(&mut self, key: u64, block: RecordedBlock, weight: u32, exit: Exit) {
        let (mut reused, mut inserted, mut named) = (exit.reused, 0, block);
        match self.lives.get(&key).map(|life| &life.phase) {
            // The block of another thread's load, or one that left since; this departure is older.
            Some(Phase::Gone(_) | Phase::Abandoned { .. }) => return,
            Some(Phase::Loading { .. }) if exit.list.is_some() => return,
            _ => {}
        }
        match self.take(key) {
            Some(Life {
                phase: Phase::Resident { inserted: at }, reused: before, block, ..
            }) => {
                (inserted, named) = (at, block);
                reused |= before;
                if let Some(list) = exit.clock_bytes.filter(|_| !exit.passed_often) {
                    self.passes.add(list, (self.inserts.total - at) * self.scale());
                }
            }
            Some(Life { phase: Phase::Loading { began_ns, mut miss }, block, .. }) => {
                named = block;
                miss.waited_ns = exit.now_ns.saturating_sub(began_ns);
                self.tell(key, miss);
            }
            _ => {}
        }
        let evicted = exit.cause == MissCause::Evicted;
        let counted = if evicted { u64::from(weight) } else { 0 };
        let evictor = evicted.then(|| self.inserts.draw(&mut self.rng, inserted, self.resident));
        let position = self.depart(key, counted);
        let departure = Departure { exit, evictor: evictor.flatten(), position, weight: counted };
        self.put(key, Life { block: named, weight, reused, phase: Phase::Gone(departure) });
        self.forget_oldest();
    }

    /// Adds a block to the order of departures. Returns its position.
    fn depart(&mut self, key: u64, weight: u64) -> usize {
        if self.departed.is_full() {
            self.renumber();
        }
        self.departed.push(key, weight)
    }

    /// Forgets the blocks that left first, if there are too many.
    fn forget_oldest(&mut self) {
        let most = LIVES.min(self.peak_resident * (GONE_SHARE + 1) + GONE_MIN);
        while self.lives.len() > most
            && let Some(oldest) = self.departed.oldest()
        {
            if let Some(Life { phase: Phase::Gone(gone), .. }) = self.take(oldest)
                && gone.exit.cause == MissCause::Evicted
                && self.is_noted(oldest)
            {
                // As much left after it as was inserted since.
                self.forgotten.note(oldest, self.inserts.total.saturating_sub(gone.weight));
            }
        }
    }

    /// Whether a recorded block is noted when it is forgotten.
    fn is_noted(&self, key: u64) -> bool {
        (key >> self.shift).is_multiple_of(NOTED)
    }

    /// Removes a life from the table. If the block is gone, the departure's weight becomes the
    /// weight that left after it.
    fn take(&mut self, key: u64) -> Option<Life> {
        let mut life = self.lives.remove(&key)?;
        match &mut life.phase {
            Phase::Loading { .. } => {}
            Phase::Abandoned { position, .. } => self.departed.remove(*position, 0),
            Phase::Resident { .. } => self.resident -= 1,
            Phase::Gone(gone) => {
                let after = self.departed.weight_after(gone.position);
                self.departed.remove(gone.position, gone.weight);
                gone.weight = after;
            }
        }
        Some(life)
    }

    fn put(&mut self, key: u64, life: Life) {
        self.resident += usize::from(matches!(life.phase, Phase::Resident { .. }));
        self.peak_resident = self.peak_resident.max(self.resident);
        self.lives.insert(key, life);
    }

    /// Halves the sample.
    fn halve(&mut self) {
        self.shift += 1;
        self.told_shift = self.told_shift.max(self.shift);
        let mask = self.mask();
        self.lives.retain(|key, _| key & mask == 0);
        let resident = |life: &&Life| matches!(life.phase, Phase::Resident { .. });
        self.resident = self.lives.values().filter(resident).count();
        self.peak_resident = self.resident;
        // The sums in the notes were of the larger sample.
        self.forgotten.clear();
        self.renumber();
    }

    /// Doubles the sample.
    fn double(&mut self) {
        self.shift -= 1;
        (self.learned, self.sparse_inserts) = (0, 0);
        for life in self.lives.values_mut() {
            match &mut life.phase {
                Phase::Resident { inserted } => *inserted *= 2,
                Phase::Gone(gone) => gone.weight *= 2,
                Phase::Loading { .. } | Phase::Abandoned { .. } => {}
            }
        }
        self.inserts.double();
        self.forgotten.double();
        self.renumber();
    }

    /// Packs the order of departures, without blocks that are no longer in the table.
    fn renumber(&mut self) {
        for key in self.departed.take() {
            match self.lives.get_mut(&key).map(|life| &mut life.phase) {
                Some(Phase::Gone(gone)) => {
                    gone.position = self.departed.push(key, gone.weight);
                }
                Some(Phase::Abandoned { position, .. }) => *position = self.departed.push(key, 0),
                _ => {}
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // An entry of a table and its control byte.
        let entry = size_of::<(u64, Life)>() + 1;
        (self.lives.capacity() * 8 / 7 * entry
            + self.inserts.recent.capacity() * size_of::<(u64, RecordedBlock)>()) as u64
            + self.departed.memory_bytes()
            + self.forgotten.memory_bytes()
            + self.secondary.memory_bytes()
            + self.windows.memory_bytes()
    }
}

impl ClockPasses {
    fn add(&mut self, list: u64, inserted: u64) {
        // Earlier ones count less and less.
        self.list = self.list * 0.99 + list as f64;
        self.inserted = self.inserted * 0.99 + inserted as f64;
    }

    /// The bytes that a list must be larger by, so that it keeps a block while `inserted` more
    /// bytes are inserted.
    fn bytes_for(&self, inserted: u64) -> u64 {
        let factor = if self.inserted > 0.0 { self.list / self.inserted } else { 1.0 };
        (inserted as f64 * factor.clamp(1.0, 4.0)) as u64
    }
}

impl Inserts {
    fn new() -> Self {
        Self { recent: VecDeque::with_capacity(RESIDENT), dropped: 0, total: 0 }
    }

    /// Notes an insert. Returns the sum of weights up to it.
    fn add(&mut self, block: RecordedBlock, weight: u32) -> u64 {
        if self.recent.len() == RESIDENT
            && let Some((sum, _)) = self.recent.pop_front()
        {
            self.dropped = sum;
        }
        self.total += u64::from(weight);
        self.recent.push_back((self.total, block));
        self.total
    }

    /// Doubles all weights.
    fn double(&mut self) {
        self.recent.iter_mut().for_each(|(sum, _)| *sum *= 2);
        self.dropped *= 2;
        self.total *= 2;
    }

    /// Draws one of the last `most` inserts that came after the sum was `inserted`.
    fn draw(&self, rng: &mut SmallRng, inserted: u64, most: usize) -> Option<RecordedBlock> {
        let recent = &self.recent;
        let last_before = recent.len().checked_sub(most.max(1) + 1);
        let before = last_before.map_or(self.dropped, |at| recent[at].0).max(inserted);
        let weight = self.total.checked_sub(before).filter(|weight| *weight > 0)?;
        let drawn = before + rng.below(weight);
        recent.get(recent.partition_point(|(sum, _)| *sum <= drawn)).map(|(_, block)| *block)
    }
}
