//! Chooses the rule whose simulation has the most hits.
//!
//! Each rule has a *lead*: the hits by which it exceeds the chosen rule, counted from the moment
//! when it was last behind. So an improvement shows at once, however bad the rule was before. This
//! is CUSUM, the fastest test for a change in a series (Page, "Continuous Inspection Schemes",
//! Biometrika 1954).
//!
//! The rule with the longest lead replaces the chosen one when the lead exceeds both chance and a
//! part of a simulation's blocks. Only *discordant* accesses, which hit under one of the two rules,
//! are informative. The difference of `n` such accesses varies by about the root of `n` (McNemar's
//! test). It is tested after each access and the best moment counts, so the threshold is higher
//! than for a single test. So equally good rules do not alternate.
//!
//! Locking: `simulations`.

use crate::policy::admission::RULES;

/// Decay time of discordant accesses, as a multiple of the blocks in a simulation.
const HORIZON: f64 = 16.0;
/// Minimum number of blocks for the decay time.
const MIN_BLOCKS: u64 = 16;
/// A lead must exceed this multiple of its standard deviation.
const THRESHOLD: f64 = 5.0;

/// A lead must exceed this part of the blocks in a simulation. At first, two rules differ in how
/// soon they evict the oldest blocks, and changing the rule costs hits.
const MIN_LEAD_PART: f64 = 8.0;

pub(super) struct Choice {
    leads: [f64; RULES.len()],
    /// Discordant accesses between a rule and the chosen one, with exponential decay.
    discordant: [f64; RULES.len()],
    chosen: usize,
}

impl Choice {
    pub(super) fn new(chosen: usize) -> Self {
        Self { leads: [0.0; RULES.len()], discordant: [0.0; RULES.len()], chosen }
    }

    pub(super) fn chosen(&self) -> usize {
        self.chosen
    }

    /// Notes an access. Bit `n` of `hits` says whether it hit under rule `n`. `blocks` returns
    /// the number of blocks in a simulation. True if the chosen rule changes.
    pub(super) fn note(&mut self, hits: u32, blocks: impl FnOnce() -> u64) -> bool {
        if hits == 0 || hits == (1 << RULES.len()) - 1 {
            // An access that hits under all rules or under none is not informative.
            return false;
        }
        let blocks = blocks();
        let keep = 1.0 - 1.0 / (HORIZON * blocks.max(MIN_BLOCKS) as f64);
        let hit = |rule: usize| f64::from(hits >> rule & 1);
        let of_chosen = hit(self.chosen);
        let mut best = self.chosen;
        for rule in 0..RULES.len() {
            let ahead = hit(rule) - of_chosen;
            self.leads[rule] = (self.leads[rule] + ahead).max(0.0);
            self.discordant[rule] = self.discordant[rule] * keep + ahead.abs();
            if self.leads[rule] > self.leads[best] {
                best = rule;
            }
        }
        let lead = self.leads[best];
        let chance = THRESHOLD * (self.discordant[best] + 1.0).sqrt();
        if best == self.chosen || lead <= chance.max(blocks as f64 / MIN_LEAD_PART) {
            return false;
        }
        self.chosen = best;
        // Discordant accesses were counted against the old rule. At least the differences of the
        // leads are known.
        for rule in 0..RULES.len() {
            self.discordant[rule] = (self.leads[rule] - lead).abs();
            self.leads[rule] = 0.0;
        }
        true
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::rng::SmallRng;

    use super::Choice;

    #[test]
    fn a_better_rule_is_chosen_and_an_equal_one_is_not() {
        let mut choice = Choice::new(1);
        let mut rng = SmallRng::from_seed(3);
        // All rules hit half of the time, independently. One may lead by chance, but rarely by
        // enough to be chosen.
        let changes = (0..20_000).filter(|_| choice.note(rng.below(32) as u32, || 100)).count();
        println!("{changes} changes between equals in 20000 accesses");
        assert!(changes < 100, "{changes}");
        // Rule 4 hits more often by a tenth.
        for _ in 0..5000 {
            let chance = rng.below(10) == 0;
            choice.note(rng.below(32) as u32 | if chance { 16 } else { 0 }, || 100);
        }
        assert_eq!(choice.chosen(), 4);
        // Now it never hits.
        (0..2000).for_each(|_| {
            choice.note(rng.below(16) as u32, || 100);
        });
        assert_ne!(choice.chosen(), 4);
    }
}
