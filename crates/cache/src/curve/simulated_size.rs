//! A class at one simulated size: a miniature for the hits, and smaller ones that choose its rule.
//!
//! Locking: `simulations`.

use forebay_base::sync::Arc;

use super::estimate::Sampled;
use crate::policy::MIN_GHOSTS;
use crate::policy::admission::{FIRST_RULE, RULES};
use crate::policy::simulation::Simulation;
use crate::policy::simulation::access_buffer::{Access, AccessKind};
use crate::policy::simulation::marked_keys::MarkedKeys;
use crate::policy::simulation::miniatures::{Bounds, Miniatures};

/// Of the miniature. With the bounds of choosers, this bounds the memory.
const BOUNDS: Bounds =
    Bounds { blocks: 512, sparse_blocks: 256, dense: 4, keys: 2000, min_ghosts: MIN_GHOSTS };
/// Of the miniatures of sizes below today's. Most accesses of a sparse sample are theirs.
const SMALL_SPARSE_BLOCKS: u64 = 128;
/// Of the miniatures that choose the rule.
const CHOOSER_BOUNDS: Bounds =
    Bounds { blocks: 128, sparse_blocks: 64, dense: 16, keys: 1000, min_ghosts: 128 };

/// What an access does at a simulated size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeOutcome {
    /// Whether it hits in all miniatures that sample its block.
    pub(super) hits_all: bool,
    /// Whether it is a miss of the size.
    pub(super) misses: bool,
}

pub(super) struct SimulatedSize {
    percent: u64,
    miniature: Miniatures,
    /// If there is none, the miniature follows the rule in force.
    chooser: Option<Simulation>,
    sampled: Sampled,
    /// Of the accesses since the last batch.
    batch: Sampled,
}

impl SimulatedSize {
    /// `shift` says how many times the samples are halved.
    pub(super) fn new(percent: u64, chooses: bool, shift: u32, marked: &Arc<MarkedKeys>) -> Self {
        let sparse_blocks = if percent < 100 { SMALL_SPARSE_BLOCKS } else { BOUNDS.sparse_blocks };
        let bounds = Bounds { sparse_blocks, ..BOUNDS };
        Self {
            percent,
            miniature: Miniatures::new(
                &RULES[FIRST_RULE..=FIRST_RULE],
                smaller(&bounds, shift),
                marked.clone(),
            ),
            chooser: chooses
                .then(|| Simulation::new(smaller(&CHOOSER_BOUNDS, shift), marked.clone())),
            sampled: Sampled::default(),
            batch: Sampled::default(),
        }
    }

    /// Bytes of a size whose samples are halved so many times, at most.
    pub(super) const fn most_bytes(chooses: bool, shift: u32) -> u64 {
        let miniature = Miniatures::most_bytes(&smaller(&BOUNDS, shift), 1);
        if !chooses {
            return miniature;
        }
        miniature + Simulation::most_bytes(&smaller(&CHOOSER_BOUNDS, shift))
    }

    pub(super) fn percent(&self) -> u64 {
        self.percent
    }

    pub(super) fn mask(&self) -> u64 {
        let chooser = self.chooser.as_ref().map_or(u64::MAX, Simulation::mask);
        self.miniature.mask().min(chooser)
    }

    /// Whether a block of that key is in one of the samples.
    pub(super) fn samples(&self, key: u64) -> bool {
        key & self.mask() == 0
    }

    /// That many bytes, at this size.
    pub(super) fn scaled(&self, bytes: u64) -> u64 {
        // Exact, and without a division of 128 bits.
        (bytes / 100).saturating_mul(self.percent).saturating_add(bytes % 100 * self.percent / 100)
    }

    /// What this class leaves of a cache of `total` bytes at this size.
    pub(super) fn left_of(&self, total: u64) -> u64 {
        self.scaled(total).saturating_sub(self.resident_bytes())
    }

    /// Bytes of the blocks that the sampled ones stand for.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.miniature.resident_bytes().saturating_mul(self.miniature.mask() + 1)
    }

    /// Replays an access to a block of one of the samples.
    pub(super) fn access(&mut self, access: Access, rule: usize, capacity: u64) -> SizeOutcome {
        let (mut rule, mut hits_all) = (rule, true);
        if let Some(chooser) = &mut self.chooser {
            if chooser.samples(access.key) {
                hits_all = chooser.access(access, capacity).hits_all;
            }
            rule = chooser.chosen();
        }
        if !self.miniature.samples(access.key) {
            return SizeOutcome { hits_all, misses: false };
        }
        self.miniature.set_only_rule(RULES[rule]);
        let stands_for = (self.miniature.mask() + 1) as f64;
        let hits = self.miniature.access(access, capacity);
        let misses = hits == 0 && access.kind == AccessKind::Use;
        if misses {
            self.batch.misses += stands_for;
            self.batch.variance += stands_for * (stands_for - 1.0);
        }
        SizeOutcome { hits_all: hits_all && hits > 0, misses }
    }

    /// Replays a removal.
    pub(super) fn remove(&mut self, key: u64) {
        if let Some(chooser) = &mut self.chooser {
            chooser.remove(key);
        }
        self.miniature.remove(key);
    }

    /// Counts the misses of a batch. Each stands for that many.
    pub(super) fn end_batch(&mut self, stands_for: f64) {
        let Sampled { misses, variance, .. } = std::mem::take(&mut self.batch);
        self.sampled.misses += misses * stands_for;
        self.sampled.variance += variance * stands_for * stands_for;
    }

    pub(super) fn decay(&mut self, kept: f64) {
        self.sampled.misses *= kept;
        self.sampled.variance *= kept;
    }

    pub(super) fn sampled(&self) -> Sampled {
        Sampled { one_in: (self.miniature.mask() + 1) as f64, ..self.sampled }
    }

    /// Forgets the misses; the blocks stay.
    pub(super) fn reset_sums(&mut self) {
        (self.sampled, self.batch) = (Sampled::default(), Sampled::default());
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let chooser = self.chooser.as_ref().map_or(0, Simulation::memory_bytes);
        self.miniature.memory_bytes() + chooser
    }
}

/// The bounds of a sample that is halved so many times.
const fn smaller(bounds: &Bounds, shift: u32) -> Bounds {
    Bounds {
        blocks: bounds.blocks >> shift,
        sparse_blocks: bounds.sparse_blocks >> shift,
        dense: bounds.dense,
        keys: bounds.keys >> shift,
        min_ghosts: bounds.min_ghosts >> shift,
    }
}
