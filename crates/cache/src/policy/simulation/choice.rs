//! Which rule's shadow does best.
//!
//! Each rule has a *lead*: by how many hits it is ahead of the chosen one, from the moment at which it was last
//! behind. So a rule that has become better is seen at once, however long it was worse before: that is the test by which a
//! change in a series is found earliest (Page, "Continuous Inspection Schemes", Biometrika 1954; CUSUM). The chosen rule is left for
//! the one with the longest lead, when that is more than chance would explain and
//! more than a part of a shadow's blocks. Only accesses that hit in one of the two and not in the other say anything, and
//! of `n` such accesses the difference strays by about the root of `n` (McNemar's test); since it is looked at
//! after each of them, and its best moment counts, the bar is higher than for a single look. So rules that do equally well are
//! not changed to and fro.

use crate::policy::admission::RULES;

/// Accesses in which two rules differ are remembered this long, about, as a multiple of the blocks in a shadow.
const HORIZON: f64 = 16.0;
/// Fewest blocks for which that is reckoned.
const MIN_BLOCKS: u64 = 16;
/// A lead is believed when it is more than so many times what chance would explain.
const THRESHOLD: f64 = 5.0;

/// And when it comes to this part of the blocks in a shadow: what differs at first is that one rule lets go of the
/// oldest blocks sooner than the other, and to follow another rule costs hits.
const MIN_LEAD_PART: f64 = 8.0;

pub(super) struct Choice {
    leads: [f64; RULES.len()],
    /// Accesses in which a rule and the chosen one differed, of which old ones count less and less.
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

    /// Notes in which shadows an access hit: a bit a rule. `blocks` are in a shadow. True if another rule is
    /// chosen now.
    pub(super) fn note(&mut self, hits: u32, blocks: u64) -> bool {
        if hits == 0 || hits == (1 << RULES.len()) - 1 {
            // A block that every shadow has, or none, says nothing, however often it is asked for.
            return false;
        }
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
        // What two rules differ in was counted against the old choice; at least the difference of their leads is known.
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
        // All hit half of the time, each by itself: now and then one is ahead by chance, but rarely
        // so far that it is believed.
        let changes = (0..20_000).filter(|_| choice.note(rng.below(32) as u32, 100)).count();
        println!("{changes} changes between equals in 20000 accesses");
        assert!(changes < 100, "{changes}");
        // Rule 4 hits a tenth more often.
        for _ in 0..5000 {
            let chance = rng.below(10) == 0;
            choice.note(rng.below(32) as u32 | if chance { 16 } else { 0 }, 100);
        }
        assert_eq!(choice.chosen(), 4);
        // Now it never hits.
        (0..2000).for_each(|_| {
            choice.note(rng.below(16) as u32, 100);
        });
        assert_ne!(choice.chosen(), 4);
    }
}
