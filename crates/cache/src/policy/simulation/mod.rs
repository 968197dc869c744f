//! Miniature simulations: find the rule that does best, on a sample of the blocks.
//!
//! For each class and rule there is a small cache of keys ([`miniature`]). It applies the policy
//! under that rule to the sampled blocks, with the sample's share of the capacity (Waldspurger et
//! al., "Cache Modeling and Optimization using Miniature Simulations", ATC 2017). Blocks are
//! sampled by hash. A cache of up to [`MAX_BLOCKS`] blocks is sampled whole. Whenever a miniature
//! outgrows that, the sample is halved. So the memory is bounded, and with many blocks the time is
//! negligible.
//!
//! The simulations see inserted blocks and hits on sampled blocks. The header of a sampled block
//! has a flag in its state word, so other hits pay nothing. Nor are hits noted that would change
//! nothing ([`marked_keys`]). Accesses pass through the
//! [`access_buffer`]. A thread that inserts a sampled block, or finds half a batch in its ring,
//! replays a batch, unless another thread does. The reclaimer replays the rest now and then.
//!
//! The simulated sizes of the miss-ratio curve (`curve`) see the same accesses, of samples of their
//! own. Headers are flagged, and accesses noted, for the largest of all samples of the class. A
//! block that a program has just made enters them too, but is no miss of the curve.
//!
//! A removed block leaves them too. They do not see removals of many blocks at once, refused
//! blocks, pins, and blocks hinted `once` or `again`. All rules see the same accesses.
//!
//! Locking: `simulations`, a leaf lock. Inserters only try it; `clear` and the sum of memory wait
//! for it.

pub(crate) mod access_buffer;
mod choice;
pub(crate) mod marked_keys;
mod miniature;
pub(crate) mod miniatures;
mod slots;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::sync::{Arc, Mutex};

use crate::attributes::Class;
#[cfg(feature = "insight")]
use crate::curve::{Curves, Totals, report::Curve};
use crate::insight_budget::InsightBudget;
use crate::policy::MIN_GHOSTS;
use crate::policy::admission::{FIRST_RULE, RULES};
use crate::sample::{Sample, sample_key};
use access_buffer::{Access, AccessBuffer, AccessKind, Batch};
use choice::Choice;
use marked_keys::MarkedKeys;
use miniatures::{Bounds, Miniatures};

/// Blocks in a miniature above which the sample is halved.
const MAX_BLOCKS: u64 = if cfg!(forebay_model) { 4 } else { 512 };
/// The sizes of the simulations that choose the rule.
const BOUNDS: Bounds = Bounds {
    blocks: MAX_BLOCKS,
    sparse_blocks: MAX_BLOCKS,
    dense: 1,
    keys: 8 * MAX_BLOCKS as usize,
    min_ghosts: MIN_GHOSTS,
};

pub(crate) struct Simulations {
    /// By class.
    samples: [Sample; 2],
    access_buffer: AccessBuffer,
    /// By class.
    marked: [Arc<MarkedKeys>; 2],
    replayed: Mutex<Replayed>,
}

/// What the accesses are replayed in.
struct Replayed {
    of_class: [Simulation; 2],
    #[cfg(feature = "insight")]
    curves: Curves,
}

/// Capacities today, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacities {
    /// Of the cache.
    #[cfg(feature = "insight")]
    pub(crate) total: u64,
    /// The hard bound, of which `total` is what the overhead leaves; or the same as `total`.
    #[cfg(feature = "insight")]
    pub(crate) configured: u64,
    /// What each class could fill.
    pub(crate) of_class: [u64; 2],
    /// Memory that the curves may take.
    #[cfg(feature = "insight")]
    pub(crate) budget: InsightBudget,
}

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplayOutcome {
    /// Accesses by class.
    pub(crate) accesses: [u64; 2],
    /// Changes of the chosen rule, by class.
    pub(crate) changes: [u64; 2],
    /// The chosen rules, by class.
    pub(crate) chosen: [usize; 2],
    /// Whether more accesses wait.
    left: bool,
}

impl Simulations {
    /// `plain_lru` says that the cache never follows the chosen rules. `budget` is the memory that
    /// the curves may take.
    pub(crate) fn new(shards: usize, plain_lru: bool, budget: InsightBudget) -> Self {
        #[cfg(feature = "insight")]
        let fixed_rule = plain_lru.then_some(RULES.len() - 1);
        #[cfg(not(feature = "insight"))]
        let _ = plain_lru;
        let marked: [Arc<MarkedKeys>; 2] = Default::default();
        let access_buffer = AccessBuffer::new(shards, budget.access_buffer(), budget.batches());
        let replayed = Replayed {
            of_class: marked.clone().map(|marked| Simulation::new(BOUNDS, marked)),
            #[cfg(feature = "insight")]
            curves: {
                let budget = budget.curve(access_buffer.memory_bytes());
                Curves::new(fixed_rule, budget, marked.clone())
            },
        };
        Self {
            samples: [Sample::default(), Sample::default()],
            access_buffer,
            marked,
            replayed: Mutex::named("simulations", replayed),
        }
    }

    /// Whether blocks of that hash are sampled now.
    #[inline]
    pub(crate) fn samples(&self, hash: u64, class: Class) -> bool {
        self.samples[class as usize].has(sample_key(hash))
    }

    /// Notes a hit on a sampled block. Takes no lock.
    pub(crate) fn note_hit(&self, hash: u64, class: Class, weight: u32) {
        let key = sample_key(hash);
        // The header was sampled when the sample was larger, perhaps.
        if self.samples[class as usize].has(key) && !self.marked[class as usize].has(key) {
            self.access_buffer.note(Access { key, class, weight, kind: AccessKind::Use });
        }
    }

    /// Notes the removal of a block, cached or not, and of either class. Takes no lock.
    pub(crate) fn note_removal(&self, hash: u64) {
        let key = sample_key(hash);
        for class in Class::ALL {
            if self.samples[class as usize].has(key) {
                let kind = AccessKind::Removal;
                self.access_buffer.note(Access { key, class, weight: 1, kind });
            }
        }
    }

    /// Whether accesses should be replayed even though no sampled block was inserted, because the
    /// ring is about to drop some.
    #[inline]
    pub(crate) fn should_replay(&self) -> bool {
        self.access_buffer.has_half_a_batch()
    }

    /// Notes an insertion, with the block if it is sampled, and replays all accesses unless another
    /// thread does.
    pub(crate) fn note_insert(
        &self,
        access: Option<Access>,
        capacities: impl FnOnce() -> Capacities,
    ) -> Option<ReplayOutcome> {
        let Some(mut replayed) = self.replayed.try_lock() else {
            access.into_iter().for_each(|access| self.access_buffer.note(access));
            return None;
        };
        Some(self.replay(&mut replayed, access, capacities()))
    }

    /// Replays a batch of the accesses since the last time, then `last`.
    fn replay(
        &self,
        replayed: &mut Replayed,
        last: Option<Access>,
        capacities: Capacities,
    ) -> ReplayOutcome {
        let mut outcome = ReplayOutcome::default();
        let batch = self.access_buffer.take(|access| {
            self.replay_access(replayed, access, capacities, &mut outcome);
        });
        replayed.end_batch(batch);
        outcome.left = batch.left;
        match last {
            // In order.
            Some(last) if batch.left => self.access_buffer.note(last),
            Some(last) => {
                self.replay_access(replayed, last, capacities, &mut outcome);
                replayed.end_batch(Batch { taken: 1, ..Batch::default() });
            }
            None => {}
        }
        for class in Class::ALL {
            self.samples[class as usize].set_mask(replayed.mask(class));
        }
        outcome.chosen = [replayed.of_class[0].chosen(), replayed.of_class[1].chosen()];
        outcome
    }

    fn replay_access(
        &self,
        replayed: &mut Replayed,
        access: Access,
        capacities: Capacities,
        outcome: &mut ReplayOutcome,
    ) {
        if access.kind == AccessKind::Removal {
            replayed.remove(access);
            self.marked[access.class as usize].remove(access.key);
        } else if replayed.access(access, capacities, outcome) {
            self.marked[access.class as usize].add(access.key);
        }
    }

    /// Replays as many accesses as the access buffer can have.
    #[cfg(feature = "insight")]
    fn replay_all(&self, replayed: &mut Replayed, capacities: Capacities) {
        let mut batches = access_buffer::MAX_BATCHES;
        while self.replay(replayed, None, capacities).left && batches > 0 {
            batches -= 1;
        }
    }

    /// Now and then, replays the accesses since the last time, and adds to the curves what the
    /// counters say.
    #[cfg(feature = "insight")]
    pub(crate) fn advance(
        &self,
        now_ns: u64,
        totals: impl FnOnce() -> Totals,
        capacities: impl FnOnce() -> Capacities,
    ) {
        let Some(mut replayed) = self.replayed.try_lock() else { return };
        let capacities = capacities();
        self.keep_to(&mut replayed, capacities);
        if !replayed.curves.is_due(now_ns) {
            return;
        }
        self.replay_all(&mut replayed, capacities);
        replayed.curves.advance(totals(), capacities.configured);
    }

    #[cfg(feature = "insight")]
    fn keep_to(&self, replayed: &mut Replayed, capacities: Capacities) {
        replayed.curves.keep_to(capacities.budget.curve(self.access_buffer.memory_bytes()));
    }

    /// The miss-ratio curve, up to now.
    #[cfg(feature = "insight")]
    pub(crate) fn curve(&self, totals: impl FnOnce() -> Totals, capacities: Capacities) -> Curve {
        let mut replayed = self.replayed.lock();
        self.keep_to(&mut replayed, capacities);
        self.replay_all(&mut replayed, capacities);
        replayed.curves.advance(totals(), capacities.configured);
        replayed.curves.curve(capacities.total)
    }

    /// Restarts the simulations. The chosen rules stay.
    pub(crate) fn clear(&self) {
        let mut replayed = self.replayed.lock();
        // Other threads may add more meanwhile.
        for _ in 0..access_buffer::MAX_BATCHES {
            if !self.access_buffer.take(|_| {}).left {
                break;
            }
        }
        for class in Class::ALL.map(|class| class as usize) {
            let simulation = &mut replayed.of_class[class];
            let chosen = simulation.choice.chosen();
            *simulation = Simulation::new(BOUNDS, self.marked[class].clone());
            simulation.choice = Choice::new(chosen);
            self.samples[class].set_mask(0);
            self.marked[class].clear();
        }
        #[cfg(feature = "insight")]
        replayed.curves.clear();
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let replayed = self.replayed.lock();
        let bytes = replayed.of_class.iter().map(Simulation::memory_bytes).sum::<u64>();
        #[cfg(feature = "insight")]
        let bytes = bytes + replayed.curves.memory_bytes();
        bytes + self.access_buffer.memory_bytes() + size_of::<[MarkedKeys; 2]>() as u64
    }
}

impl Replayed {
    /// True if the access hit in all miniatures that sample its block. So it is marked in all.
    fn access(
        &mut self,
        access: Access,
        capacities: Capacities,
        outcome: &mut ReplayOutcome,
    ) -> bool {
        let class = access.class as usize;
        let simulation = &mut self.of_class[class];
        let mut hits_all = true;
        if simulation.samples(access.key) {
            let outcome_of_class = simulation.access(access, capacities.of_class[class]);
            hits_all = outcome_of_class.hits_all;
            outcome.accesses[class] += 1;
            outcome.changes[class] += u64::from(outcome_of_class.changes_rule);
        }
        #[cfg(feature = "insight")]
        let hits_all = self.curves.access(access, simulation.chosen(), capacities) && hits_all;
        hits_all
    }

    /// Replays a removal.
    fn remove(&mut self, access: Access) {
        self.of_class[access.class as usize].remove(access.key);
        #[cfg(feature = "insight")]
        self.curves.remove(access);
    }

    /// The accesses since the last batch stand for those that were lost.
    fn end_batch(&mut self, batch: Batch) {
        #[cfg(feature = "insight")]
        self.curves.end_batch(batch);
        #[cfg(not(feature = "insight"))]
        let _ = (batch.taken, batch.lost);
    }

    /// The mask of the largest sample of a class. The others are parts of it.
    fn mask(&self, class: Class) -> u64 {
        let mask = self.of_class[class as usize].mask();
        #[cfg(feature = "insight")]
        let mask = mask.min(self.curves.mask(class));
        mask
    }
}

/// What an access does to the miniatures of all rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessOutcome {
    /// Whether the chosen rule changes.
    pub(crate) changes_rule: bool,
    /// Whether it hits under all rules.
    pub(crate) hits_all: bool,
}

/// The miniatures of all rules, and the choice among them.
pub(crate) struct Simulation {
    miniatures: Miniatures,
    choice: Choice,
}

impl Simulation {
    pub(crate) fn new(bounds: Bounds, marked: Arc<MarkedKeys>) -> Self {
        let miniatures = Miniatures::new(&RULES, bounds, marked);
        Self { miniatures, choice: Choice::new(FIRST_RULE) }
    }

    /// The number of the chosen rule.
    pub(crate) fn chosen(&self) -> usize {
        self.choice.chosen()
    }

    pub(crate) fn samples(&self, key: u64) -> bool {
        self.miniatures.samples(key)
    }

    pub(crate) fn mask(&self) -> u64 {
        self.miniatures.mask()
    }

    /// Replays an access in a class that could fill `capacity` bytes.
    pub(crate) fn access(&mut self, access: Access, capacity: u64) -> AccessOutcome {
        let hits = self.miniatures.access(access, capacity);
        let changes_rule = self.choice.note(hits, || self.miniatures.blocks());
        AccessOutcome { changes_rule, hits_all: hits.count_ones() as usize == RULES.len() }
    }

    /// Replays a removal.
    pub(crate) fn remove(&mut self, key: u64) {
        self.miniatures.remove(key);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.miniatures.memory_bytes()
    }

    /// Bytes that simulations within these bounds take, at most.
    #[cfg(feature = "insight")]
    pub(crate) const fn most_bytes(bounds: &Bounds) -> u64 {
        Miniatures::most_bytes(bounds, RULES.len())
    }
}
