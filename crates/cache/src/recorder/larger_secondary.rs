//! Whether the secondary cache is too small, and what a larger one would serve.
//!
//! The evidence are the misses whose blocks were simulated in secondary caches of several sizes
//! (`secondary_sizes`). A secondary cache that is too small declines most blocks, to keep what it
//! has, so what it dropped says little. One that declines blocks for another reason is not too
//! small: a ring of its size would have served them.
//!
//! Locking: none.

use super::explanation::{Groups, MissGroup, Remedy};
use super::secondary_sizes::{Needed, SIZES, TODAY, scaled};
use super::{Miss, SecondaryFate};
use crate::attributes::Class;

/// If a secondary cache dropped at least this part of the blocks that it declined, both have the
/// same reason.
const DROPPED_SHARE: u64 = 32;
/// With fewer misses of blocks that were simulated, nothing is known of larger secondary caches.
const SIMULATED_MIN: usize = 16;
/// The share of the misses that a larger secondary cache must serve, to be proposed.
const SECONDARY_SHARE_MIN: f64 = 0.1;
/// The proposed size serves at least this part of what the largest one would.
const SECONDARY_ENOUGH: f64 = 0.9;

/// What secondary caches of several sizes would have served of some misses, as parts of them.
struct Simulated {
    /// How many of the misses were simulated.
    known: usize,
    /// The part that each size would have served.
    rings: [f64; SIZES.len()],
    /// The part that the real one served.
    real: f64,
    /// The part that each size would have served, and the real one did not.
    gained: [f64; SIZES.len()],
}

impl Simulated {
    fn of<'a>(misses: impl Iterator<Item = &'a (f64, Miss)>) -> Self {
        let mut all = 0.0;
        let mut sums =
            Self { known: 0, rings: [0.0; SIZES.len()], real: 0.0, gained: [0.0; SIZES.len()] };
        for (weight, miss) in misses.filter(|(_, miss)| is_known(miss)) {
            let is_served = miss.secondary == SecondaryFate::Served;
            sums.known += 1;
            all += weight;
            sums.real += if is_served { *weight } else { 0.0 };
            if let Needed::Size(smallest) = miss.needed {
                let served = usize::from(smallest)..SIZES.len();
                sums.rings[served.clone()].iter_mut().for_each(|sum| *sum += weight);
                let gained = if is_served { 0.0 } else { *weight };
                sums.gained[served].iter_mut().for_each(|sum| *sum += gained);
            }
        }
        let scale = |sum: &mut f64| *sum /= f64::max(all, 1.0);
        sums.rings.iter_mut().chain(&mut sums.gained).for_each(scale);
        scale(&mut sums.real);
        sums
    }
}

/// Whether it is known which sizes would have served a miss.
fn is_known(miss: &Miss) -> bool {
    miss.needed != Needed::Unknown && miss.secondary != SecondaryFate::Excluded
}

/// A larger secondary cache for the blocks of a class.
struct LargerSecondary {
    bytes: u64,
    /// The index of its size.
    size: usize,
    /// Of the misses that it would have served and today's did not, the part that is due to its
    /// size. Today's would have served the others if it had taken their blocks.
    part: f64,
}

impl LargerSecondary {
    /// The smallest size that serves about as much as the largest, if that is worth it.
    fn of(simulated: &Simulated, secondary: u64) -> Option<Self> {
        // A ring of today's size may be better than the real one, or worse.
        let today = simulated.real.max(simulated.rings[TODAY]);
        let more = |n: usize| simulated.rings[n] - today;
        let best = more(SIZES.len() - 1);
        let is_worth_it = best >= SECONDARY_SHARE_MIN * (1.0 - simulated.real);
        let mut larger = TODAY + 1..SIZES.len();
        let size = larger.find(|n| is_worth_it && more(*n) >= SECONDARY_ENOUGH * best)?;
        let part = (more(size) / simulated.gained[size].max(f64::MIN_POSITIVE)).min(1.0);
        Some(Self { bytes: scaled(secondary, SIZES[size]), size, part })
    }

    /// What it would have served of the misses of a group.
    fn remedy(&self, of: &Simulated, misses: u64, secondary: u64) -> Option<Remedy> {
        let share = self.part * of.gained[self.size];
        (share >= SECONDARY_SHARE_MIN).then(|| Remedy::LargerSecondary {
            misses: (share * misses as f64).round() as u64,
            size: Some([secondary, self.bytes]),
        })
    }
}

/// Proposes a larger secondary cache for blocks that it lost, or did not take, if a larger one
/// would have served them: by simulation, if there are enough simulated misses. Otherwise one that
/// has lost blocks before they were missed is too small for them. Then it also declines blocks, to
/// keep those that it has.
pub(super) fn add_larger_secondary(causes: &mut [MissGroup], misses: &Groups, secondary: u64) {
    let misses_of = |class, fate| -> u64 {
        let found = causes.iter().filter(|group| (group.class, group.secondary) == (class, fate));
        found.map(|group| group.misses).sum()
    };
    let is_small = Class::ALL.map(|class| {
        let dropped = misses_of(class, SecondaryFate::Dropped);
        dropped > 0 && dropped >= misses_of(class, SecondaryFate::Declined) / DROPPED_SHARE
    });
    let simulated = Class::ALL.map(|class| {
        let of_class = misses.iter().filter(|((.., of), _)| *of == class);
        Simulated::of(of_class.flat_map(|(_, misses)| misses))
    });
    for group in causes {
        if matches!(group.secondary, SecondaryFate::Served | SecondaryFate::Excluded) {
            continue;
        }
        let n = group.class as usize;
        if secondary > 0 && simulated[n].known >= SIMULATED_MIN {
            let samples = &misses[&(group.cause, group.secondary, group.class)];
            let larger = LargerSecondary::of(&simulated[n], secondary);
            let remedy = larger.and_then(|larger| {
                larger.remedy(&Simulated::of(samples.iter()), group.misses, secondary)
            });
            group.remedies.extend(remedy);
            continue;
        }
        let is_proposed = match group.secondary {
            SecondaryFate::Dropped => true,
            SecondaryFate::Declined => is_small[n],
            _ => false,
        };
        if is_proposed {
            group.remedies.push(Remedy::LargerSecondary { misses: group.misses, size: None });
        }
    }
}
