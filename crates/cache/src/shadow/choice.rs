//! Which rule's shadow does best.
//!
//! Each rule has a score: the accesses that hit in its shadow, of which old ones count less and less. The
//! chosen rule is left for the best one when the two scores differ by more than chance would explain:
//! only accesses that hit in one of the two and not in the other say anything, and of `n` such
//! accesses the difference strays by about the root of `n` (McNemar's test). So rules that do equally well
//! are not changed to and fro.

use crate::policy::RULES;

/// Accesses that a score remembers, about, as a multiple of the blocks in a shadow.
const HORIZON: f64 = 16.0;
/// Fewest blocks for which that is reckoned.
const FEWEST: u64 = 16;
/// A difference is believed when it is more than so many times what chance would explain.
const BELIEF: f64 = 2.5;

/// And when it comes to this part of the blocks in a shadow: what differs at first is that one rule lets go of the
/// oldest blocks sooner than the other.
const PART: f64 = 8.0;

pub(super) struct Choice {
    scores: [f64; RULES.len()],
    /// Accesses in which a rule and the chosen one differed, aged as the scores are.
    apart: [f64; RULES.len()],
    chosen: usize,
}

impl Choice {
    pub(super) fn new(chosen: usize) -> Self {
        Self { scores: [0.0; RULES.len()], apart: [0.0; RULES.len()], chosen }
    }

    pub(super) fn chosen(&self) -> usize {
        self.chosen
    }

    /// Notes in which shadows an access hit: a bit a rule. `blocks` are in a shadow. True if another rule is
    /// chosen now.
    pub(super) fn note(&mut self, hits: u32, blocks: u64) -> bool {
        if hits == (1 << RULES.len()) - 1 {
            // A block that every shadow has says nothing, however often it is asked for.
            return false;
        }
        let keep = 1.0 - 1.0 / (HORIZON * blocks.max(FEWEST) as f64);
        let hit = |rule: usize| hits >> rule & 1;
        for rule in 0..RULES.len() {
            self.scores[rule] = self.scores[rule] * keep + f64::from(hit(rule));
            let differs = hit(rule) ^ hit(self.chosen);
            self.apart[rule] = self.apart[rule] * keep + f64::from(differs);
        }
        let mut best = self.chosen;
        for rule in 0..RULES.len() {
            if self.scores[rule] > self.scores[best] {
                best = rule;
            }
        }
        let ahead = self.scores[best] - self.scores[self.chosen];
        let chance = BELIEF * (self.apart[best] + 1.0).sqrt();
        if best == self.chosen || ahead <= chance.max(blocks as f64 / PART) {
            return false;
        }
        self.chosen = best;
        // What two rules differ in was counted against the old choice; at least their scores' difference is known.
        for rule in 0..RULES.len() {
            self.apart[rule] = (self.scores[rule] - self.scores[best]).abs();
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
