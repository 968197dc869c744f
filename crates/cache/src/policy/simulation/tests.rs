//! A miniature against a naive model, and the proportions of the sample.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use proptest::prelude::*;

use super::miniature::{Miniature, remembered};
use super::slots::Slots;
use super::{BOUNDS, Capacities, Simulation, Simulations, sample_key};
use crate::attributes::Class;
use crate::frequency::{Frequency, TICKS};
use crate::insight_budget::InsightBudget;
use crate::policy::admission::{MOVES_PER_CANDIDATE, RULES, Rule, rebalances, surplus};
use crate::policy::simulation::access_buffer::{Access, AccessKind};
use crate::policy::{EPOCH_CAPACITIES, MIN_GHOSTS};

/// The same rules over plain vectors of keys, coldest first.
struct Naive {
    rule: Rule,
    weights: HashMap<u64, u64>,
    mru: Vec<u64>,
    mfu: Vec<u64>,
    ghosts: Vec<u64>,
    marked: Vec<u64>,
    frequency: HashMap<u64, Frequency>,
    now: u32,
    /// In parts of a tick.
    used: u64,
    rebalancing: bool,
}

impl Naive {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            weights: HashMap::new(),
            mru: Vec::new(),
            mfu: Vec::new(),
            ghosts: Vec::new(),
            marked: Vec::new(),
            frequency: HashMap::new(),
            now: 0,
            used: 0,
            rebalancing: false,
        }
    }

    fn forget(&mut self, key: u64) {
        [&mut self.mru, &mut self.mfu, &mut self.ghosts, &mut self.marked]
            .into_iter()
            .for_each(|keys| keys.retain(|other| *other != key));
        self.frequency.remove(&key);
    }

    fn bytes(&self, keys: &[u64]) -> u64 {
        keys.iter().map(|key| self.weights[key]).sum()
    }

    fn count_use(&mut self, key: u64, capacity: u64) {
        self.used += self.weights[&key] * u64::from(TICKS);
        while self.used >= capacity * EPOCH_CAPACITIES {
            (self.used, self.now) = (self.used - capacity * EPOCH_CAPACITIES, self.now + 1);
        }
        let frequency = self.frequency.entry(key).or_default();
        *frequency = frequency.used(self.now);
    }

    fn unmark(&mut self, key: u64, capacity: u64) -> bool {
        let marked = self.marked.contains(&key);
        self.marked.retain(|k| *k != key);
        if marked {
            self.count_use(key, capacity);
        }
        marked
    }

    fn demote(&mut self, key: u64) {
        self.ghosts.push(key);
        let frequency = self.frequency.get_mut(&key).expect("it was asked for");
        *frequency = remembered(*frequency, self.now);
    }

    fn count(&self, key: u64) -> u32 {
        self.frequency[&key].count(self.now)
    }

    fn access(&mut self, key: u64, weight: u64, capacity: u64) -> bool {
        if self.mru.contains(&key) || self.mfu.contains(&key) {
            if !self.marked.contains(&key) {
                self.marked.push(key);
            }
            return true;
        }
        let ghost = self.ghosts.contains(&key);
        let weight = if ghost { self.weights[&key] } else { weight };
        if weight > capacity {
            return false;
        }
        if ghost {
            self.ghosts.retain(|k| *k != key);
        } else {
            self.frequency.remove(&key);
        }
        self.weights.insert(key, weight);
        self.count_use(key, capacity);
        let mut rebalanced = 0;
        while self.bytes(&self.mru) + self.bytes(&self.mfu) + weight > capacity {
            let mru_target = self.rule.share(capacity);
            let from_mfu =
                !self.mfu.is_empty() && !self.rule.takes_from_mru(self.bytes(&self.mru), capacity);
            if from_mfu || !self.rule.admission {
                // CLOCK.
                let victim = if from_mfu { self.mfu.remove(0) } else { self.mru.remove(0) };
                match self.unmark(victim, capacity) {
                    true if from_mfu => self.mfu.push(victim),
                    true => self.mru.push(victim),
                    false => self.demote(victim),
                }
                continue;
            }
            let mru_bytes = self.bytes(&self.mru);
            let candidate = self.mru.remove(0);
            self.unmark(candidate, capacity);
            self.rebalancing = rebalances(self.rebalancing, mru_bytes, mru_target, capacity);
            let fits = self.weights[&candidate] <= surplus(mru_bytes, mru_target);
            if self.rebalancing && rebalanced < MOVES_PER_CANDIDATE && fits {
                rebalanced += 1;
                self.mfu.push(candidate);
                continue;
            }
            rebalanced = 0;
            let count = self.count(candidate);
            if self.mfu.is_empty() || count <= 1 {
                self.demote(candidate);
                continue;
            }
            let mut victim = self.mfu.remove(0);
            if self.unmark(victim, capacity) {
                self.mfu.push(victim);
                victim = self.mfu.remove(0);
                self.unmark(victim, capacity);
            }
            let wins =
                self.rule.prefers(self.frequency[&candidate], self.frequency[&victim], self.now);
            let (stays, goes) = if wins { (candidate, victim) } else { (victim, candidate) };
            self.mfu.push(stays);
            self.demote(goes);
        }
        self.mru.push(key);
        while self.ghosts.len() as u64 > MIN_GHOSTS && self.bytes(&self.ghosts) > 2 * capacity {
            self.ghosts.remove(0);
        }
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]
    #[test]
    fn a_miniature_agrees_with_its_naive_model(
        rule in 0..RULES.len(),
        seed in any::<u64>(),
        keys in 20..2000u64,
        capacity in 10..300u64,
        heaviest in 1..12u64,
    ) {
        let (mut miniature, mut naive) = (Miniature::new(RULES[rule], MIN_GHOSTS), Naive::new(RULES[rule]));
        let (mut slots, mut rng) = (Slots::default(), SmallRng::from_seed(seed));
        let mut capacity = capacity;
        for step in 0..3000u64 {
            // Some keys often, some in a loop.
            let key = if rng.below(2) == 0 { rng.below(keys / 10 + 1) } else { step % keys };
            let weight = 1 + key % heaviest;
            let slot = slots.find_or_add(key, weight as u32);
            let hit = miniature.access(slot, capacity, &slots);
            prop_assert_eq!(hit, naive.access(key, weight, capacity), "at {}", step);
            if rng.below(20) == 0 {
                let key = step.saturating_sub(rng.below(keys)) % keys;
                miniature.forget(slots.find_or_add(key, 1 + (key % heaviest) as u32), &slots);
                naive.forget(key);
            }
            // This test keeps its slots, so keys may be compared.
            drop(miniature.forgotten());
            if step % 500 == 499 {
                let known = miniature.audit(&slots);
                prop_assert_eq!(known, naive.mru.len() + naive.mfu.len() + naive.ghosts.len());
                capacity = 10 + rng.below(300);
            }
        }
    }
}

/// Some keys often, some in a loop.
#[cfg(feature = "insight")]
fn skewed(rng: &mut SmallRng, step: u64, keys: u64) -> u64 {
    let key = match rng.below(3) {
        0 => step % keys,
        1 => rng.below(keys / 4 + 1),
        _ => rng.below(keys / 50 + 1),
    };
    hash(key)
}

#[cfg(feature = "insight")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 24 }))]
    /// The simulations are the same, whether hits on marked keys are replayed or left out.
    #[test]
    fn hits_on_marked_keys_change_nothing(seed in any::<u64>(), keys in 400..6000u64) {
        let [all, others] = [(); 2].map(|()| Simulations::new(1, false, InsightBudget::FULL));
        let mut rng = SmallRng::from_seed(seed);
        let (mut total, mut left_out) = (keys, 0);
        for step in 0..20_000u64 {
            if step % 4000 == 0 {
                // A smaller capacity lets the samples grow.
                total = 10 + rng.below(if step % 8000 == 0 { keys } else { keys / 20 });
            }
            let capacities = of_total(total);
            let access = data(skewed(&mut rng, step, keys));
            let outcome = &mut super::ReplayOutcome::default();
            let hits_all = all.replayed.lock().access(access, capacities, outcome);
            if others.marked[Class::Data as usize].has(access.key) {
                prop_assert!(hits_all, "at {}", step);
                // What no miniature samples is not left out.
                let mask = all.replayed.lock().mask(Class::Data);
                left_out += u32::from(access.key & mask == 0);
            } else {
                others.replay_access(&mut others.replayed.lock(), access, capacities, outcome);
            }
            if rng.below(10) == 0 {
                let removal = Access {
                    kind: AccessKind::Removal,
                    ..data(skewed(&mut rng, step, keys))
                };
                [&all, &others].iter().for_each(|each| {
                    each.replay_access(&mut each.replayed.lock(), removal, capacities, outcome);
                });
            }
            if step % 100 == 99 {
                let batch = super::Batch { taken: 100, ..Default::default() };
                [&all, &others].iter().for_each(|each| each.replayed.lock().end_batch(batch));
            }
        }
        prop_assert!(left_out > 0);
        let found = [&all, &others].map(|each| {
            let mut replayed = each.replayed.lock();
            let totals = crate::curve::Totals { misses: [0, 20_000], ..Default::default() };
            replayed.curves.advance(totals, total);
            let points = replayed.curves.curve(total).points;
            let misses: Vec<f64> = points.iter().map(|point| point.misses).collect();
            (replayed.of_class[1].chosen(), replayed.mask(Class::Data), misses)
        });
        prop_assert_eq!(&found[0], &found[1]);
    }
}

#[test]
fn hits_on_blocks_that_are_marked_everywhere_are_not_noted() {
    let simulations = Simulations::new(1, false, InsightBudget::FULL);
    let replay = |access| simulations.note_insert(access, capacities).expect("one thread");
    // They fit into a quarter of the capacity.
    (0..20).for_each(|key| _ = replay(Some(data(hash(key)))));
    let mut accesses = 0;
    for _ in 0..10 {
        (0..20).for_each(|key| simulations.note_hit(hash(key), Class::Data, 1));
        accesses += replay(None).accesses[Class::Data as usize];
    }
    // The first hits, and some more if two keys share an entry.
    assert!((20..100).contains(&accesses), "{accesses} of 200");
}

#[test]
fn removed_blocks_take_no_place_in_the_simulations() {
    let simulations = Simulations::new(1, false, InsightBudget::FULL);
    let blocks = || simulations.replayed.lock().of_class[Class::Data as usize].miniatures.blocks();
    let mut hits = 0;
    for round in 0..100 {
        // A block that is kept, and ten with a new key in each round, as of a pool that writes to
        // new places.
        simulations.note_hit(hash(0), Class::Data, 1);
        for n in 1..=10 {
            let key = hash(round * 10 + n);
            assert!(simulations.note_insert(Some(data(key)), capacities).is_some());
            simulations.note_removal(key);
        }
        hits += u64::from(blocks() <= 2);
    }
    assert_eq!(hits, 100, "rounds in which two blocks were left");
    // It is a miss when it comes again.
    simulations.note_removal(hash(0));
    simulations.note_insert(None, capacities).expect("one thread");
    assert_eq!(blocks(), 0);
}

/// Of a cache of 100 blocks.
fn capacities() -> Capacities {
    of_total(100)
}

fn of_total(total: u64) -> Capacities {
    Capacities {
        #[cfg(feature = "insight")]
        total,
        #[cfg(feature = "insight")]
        configured: total,
        of_class: [total; 2],
        #[cfg(feature = "insight")]
        budget: InsightBudget::FULL,
    }
}

fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn data(hash: u64) -> Access {
    Access { key: sample_key(hash), class: Class::Data, weight: 1, kind: AccessKind::Use }
}

/// The sample shrinks as the cache grows, and grows again when it shrinks. Memory is bounded, and
/// no slot is lost.
#[test]
fn the_sample_stays_in_proportion() {
    let (mut simulation, mut rng) =
        (Simulation::new(BOUNDS, Arc::default()), SmallRng::from_seed(5));
    let audit = |simulation: &Simulation| {
        let known: usize = simulation
            .miniatures
            .miniatures
            .iter()
            .map(|miniature| miniature.audit(&simulation.miniatures.slots))
            .sum();
        let trackers: usize = simulation
            .miniatures
            .slots
            .all()
            .iter()
            .map(|s| simulation.miniatures.slots.trackers[*s as usize] as usize)
            .sum();
        assert_eq!(known, trackers);
        assert_eq!(
            simulation.miniatures.slots.len() + simulation.miniatures.slots.free.len(),
            simulation.miniatures.slots.keys.len()
        );
        assert!(simulation.miniatures.slots.len() <= BOUNDS.keys);
    };
    let mut replay = |simulation: &mut Simulation, keys: u64, accesses: u64, capacity: u64| {
        for _ in 0..accesses {
            if rng.below(100) == 0 {
                simulation.remove(data(hash(rng.below(keys))).key);
            }
            let access = data(hash(rng.below(keys)));
            if access.key & simulation.mask() == 0 {
                simulation.access(access, capacity);
            }
        }
    };
    replay(&mut simulation, 300, 5000, 1000);
    assert_eq!(simulation.mask(), 0, "a small cache is sampled whole");
    audit(&simulation);
    replay(&mut simulation, 400_000, 1_000_000, 200_000);
    let blocks = simulation.miniatures.miniatures[0].blocks();
    println!(
        "200000 blocks: one of {}, {blocks} blocks, {} bytes",
        simulation.mask() + 1,
        simulation.memory_bytes()
    );
    assert!((MIN_DENSE_BLOCKS..=BOUNDS.blocks).contains(&blocks), "{blocks}");
    assert!(simulation.memory_bytes() < 1 << 20, "{}", simulation.memory_bytes());
    audit(&simulation);
    replay(&mut simulation, 400_000, 1_000_000, 2000);
    println!(
        "2000 blocks: one of {}, {} blocks",
        simulation.mask() + 1,
        simulation.miniatures.miniatures[0].blocks()
    );
    assert!(
        (MIN_DENSE_BLOCKS..=BOUNDS.blocks).contains(&simulation.miniatures.miniatures[0].blocks())
    );
    audit(&simulation);
}

/// Above the bound below which the sample is doubled.
const MIN_DENSE_BLOCKS: u64 = BOUNDS.blocks / 16;

#[test]
fn a_loop_and_a_drift_lead_to_opposite_rules() {
    let simulations = Simulations::new(1, false, InsightBudget::FULL);
    let mut chosen = usize::MAX;
    for i in 0..20_000u64 {
        let replayed = simulations
            .note_insert(Some(data(hash(i % 130))), capacities)
            .expect("no other thread replays");
        chosen = replayed.chosen[Class::Data as usize];
    }
    assert_eq!(chosen, 0, "a loop that does not fit");
    let mut rng = SmallRng::from_seed(1);
    for i in 0..20_000u64 {
        let key = (1 << 30) + i / 5 - rng.below(80).min(rng.below(80));
        let is_marked = simulations.marked[Class::Data as usize].has(sample_key(hash(key)));
        simulations.note_hit(hash(key), Class::Data, 1);
        let replayed = simulations
            .note_insert(Some(data(hash(key))), capacities)
            .expect("no other thread replays");
        let accesses = if is_marked { 1 } else { 2 };
        assert_eq!(replayed.accesses, [0, accesses], "the hit is played before the miss");
        chosen = replayed.chosen[Class::Data as usize];
    }
    assert_eq!(chosen, RULES.len() - 1, "nothing but recency counts");
    simulations.clear();
    let replayed = simulations
        .note_insert(Some(Access { class: Class::Metadata, ..data(1) }), capacities)
        .expect("no other thread replays");
    assert_eq!((replayed.chosen[Class::Data as usize], replayed.accesses), (chosen, [1, 0]));
}

/// Ghosts that weigh little, behind blocks that weigh much, fill the samples up to their limit of
/// keys. Blocks of a hundredth of the capacity and less are hot, of one simulated size after the
/// other.
#[test]
#[cfg(feature = "insight")]
fn the_curve_and_its_access_buffer_keep_to_their_budget_with_any_weights() {
    let budget = InsightBudget::FULL;
    // As many threads as a large machine has.
    let simulations = Simulations::new(128, false, budget);
    let share = budget.curve(0);
    let total = 1 << 30;
    let capacities = of_total(total);
    let mut rng = SmallRng::from_seed(9);
    let mut most = 0;
    for step in 0..600_000u64 {
        let percent = [25, 50, 75, 100, 150, 200, 300, 400][(step / 5000 % 8) as usize];
        let blocks = 1 << (6 + step / 40_000 % 3);
        let heavy = total / 100 * percent / blocks;
        let class = Class::ALL[rng.below(2) as usize];
        let (number, weight) = match rng.below(2) {
            0 => (percent << 32 | rng.below(blocks), heavy),
            _ => (1 << 40 | step, heavy / 64),
        };
        let key = sample_key(hash(number));
        let access = Access { key, class, weight: weight as u32, kind: AccessKind::Use };
        let mut replayed = simulations.replayed.lock();
        let outcome = &mut super::ReplayOutcome::default();
        simulations.replay_access(&mut replayed, access, capacities, outcome);
        if step % 1000 == 0 {
            most = most.max(replayed.curves.memory_bytes());
        }
    }
    let buffer = simulations.access_buffer.memory_bytes();
    println!("{most} bytes and {buffer} of {share}");
    assert!(most + buffer <= share, "{most} and {buffer} of {share}");
    // It is a hostile load indeed.
    assert!(most > share / 2, "{most} of {share}");
}
