//! A shadow against a naive twin, and the sample's proportions.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::mini::{Mini, remembered};
use super::{MOST, MOST_KEYS, Shadow, Shadows, Slots, sample_key};
use crate::attributes::Class;
use crate::frequency::{Frequency, TICKS};
use crate::policy::{EPOCH_CAPACITIES, FEWEST_GHOSTS, FLOW, RULES, Rule, flows, spare};
use crate::shadow::tap::Access;

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
    flowing: bool,
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
            flowing: false,
        }
    }

    fn bytes(&self, keys: &[u64]) -> u64 {
        keys.iter().map(|key| self.weights[key]).sum()
    }

    fn count_use(&mut self, key: u64, room: u64) {
        self.used += self.weights[&key] * u64::from(TICKS);
        while self.used >= room * EPOCH_CAPACITIES {
            (self.used, self.now) = (self.used - room * EPOCH_CAPACITIES, self.now + 1);
        }
        let frequency = self.frequency.entry(key).or_default();
        *frequency = frequency.used(self.now);
    }

    fn unmark(&mut self, key: u64, room: u64) -> bool {
        let marked = self.marked.contains(&key);
        self.marked.retain(|k| *k != key);
        if marked {
            self.count_use(key, room);
        }
        marked
    }

    fn bury(&mut self, key: u64) {
        self.ghosts.push(key);
        let frequency = self.frequency.get_mut(&key).expect("it was asked for");
        *frequency = remembered(*frequency, self.now);
    }

    fn count(&self, key: u64) -> u32 {
        self.frequency[&key].count(self.now)
    }

    fn access(&mut self, key: u64, weight: u64, room: u64) -> bool {
        if self.mru.contains(&key) || self.mfu.contains(&key) {
            if !self.marked.contains(&key) {
                self.marked.push(key);
            }
            return true;
        }
        let ghost = self.ghosts.contains(&key);
        let weight = if ghost { self.weights[&key] } else { weight };
        if weight > room {
            return false;
        }
        if ghost {
            self.ghosts.retain(|k| *k != key);
        } else {
            self.frequency.remove(&key);
        }
        self.weights.insert(key, weight);
        self.count_use(key, room);
        let mut flowed = 0;
        while self.bytes(&self.mru) + self.bytes(&self.mfu) + weight > room {
            let meant = self.rule.share(room);
            let from_mfu =
                !self.mfu.is_empty() && !self.rule.takes_from_mru(self.bytes(&self.mru), room);
            if from_mfu || !self.rule.contest {
                // A clock.
                let victim = if from_mfu { self.mfu.remove(0) } else { self.mru.remove(0) };
                match self.unmark(victim, room) {
                    true if from_mfu => self.mfu.push(victim),
                    true => self.mru.push(victim),
                    false => self.bury(victim),
                }
                continue;
            }
            let mru_bytes = self.bytes(&self.mru);
            let newcomer = self.mru.remove(0);
            self.unmark(newcomer, room);
            self.flowing = flows(self.flowing, mru_bytes, meant, room);
            let fits = self.weights[&newcomer] <= spare(mru_bytes, meant);
            if self.flowing && flowed < FLOW && fits {
                flowed += 1;
                self.mfu.push(newcomer);
                continue;
            }
            flowed = 0;
            let count = self.count(newcomer);
            if self.mfu.is_empty() || count <= 1 {
                self.bury(newcomer);
                continue;
            }
            let mut rival = self.mfu.remove(0);
            if self.unmark(rival, room) {
                self.mfu.push(rival);
                rival = self.mfu.remove(0);
                self.unmark(rival, room);
            }
            let wins =
                self.rule.prefers(self.frequency[&newcomer], self.frequency[&rival], self.now);
            let (stays, goes) = if wins { (newcomer, rival) } else { (rival, newcomer) };
            self.mfu.push(stays);
            self.bury(goes);
        }
        self.mru.push(key);
        while self.ghosts.len() as u64 > FEWEST_GHOSTS && self.bytes(&self.ghosts) > 2 * room {
            self.ghosts.remove(0);
        }
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]
    #[test]
    fn a_shadow_does_what_its_naive_twin_does(
        rule in 0..RULES.len(),
        seed in any::<u64>(),
        keys in 20..2000u64,
        room in 10..300u64,
        heaviest in 1..12u64,
    ) {
        let (mut mini, mut naive) = (Mini::new(RULES[rule]), Naive::new(RULES[rule]));
        let (mut slots, mut rng) = (Slots::default(), SmallRng::from_seed(seed));
        let mut room = room;
        for step in 0..3000u64 {
            // Some keys often, some in a loop.
            let key = if rng.below(2) == 0 { rng.below(keys / 10 + 1) } else { step % keys };
            let weight = 1 + key % heaviest;
            let slot = slots.find_or_add(key, weight as u32);
            let hit = mini.access(slot, room, &slots);
            prop_assert_eq!(hit, naive.access(key, weight, room), "at {}", step);
            // Slots of this test stay, so that their keys may be compared.
            drop(mini.forgotten());
            if step % 500 == 499 {
                let known = mini.audit(&slots);
                prop_assert_eq!(known, naive.mru.len() + naive.mfu.len() + naive.ghosts.len());
                room = 10 + rng.below(300);
            }
        }
    }
}

fn data(hash: u64) -> Access {
    Access { key: sample_key(hash), class: Class::Data, weight: 1 }
}

/// The sample is thinned out as the cache grows, and becomes denser again when it shrinks; memory is bounded, and no
/// slot is lost.
#[test]
fn the_sample_stays_in_proportion() {
    let (mut shadow, mut rng) = (Shadow::new(), SmallRng::from_seed(5));
    let audit = |shadow: &Shadow| {
        let known: usize = shadow.minis.iter().map(|mini| mini.audit(&shadow.slots)).sum();
        let knowers: usize =
            shadow.slots.all().iter().map(|s| shadow.slots.knowers[*s as usize] as usize).sum();
        assert_eq!(known, knowers);
        assert_eq!(shadow.slots.len() + shadow.slots.free.len(), shadow.slots.keys.len());
        assert!(shadow.slots.len() <= MOST_KEYS);
    };
    let mut play = |shadow: &mut Shadow, keys: u64, accesses: u64, room: u64| {
        for _ in 0..accesses {
            let access = data(rng.below(keys).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            if access.key & shadow.mask == 0 {
                shadow.access(access, room);
            }
        }
    };
    play(&mut shadow, 300, 5000, 1000);
    assert_eq!(shadow.mask, 0, "a small cache is sampled whole");
    audit(&shadow);
    play(&mut shadow, 400_000, 1_000_000, 200_000);
    let blocks = shadow.minis[0].blocks();
    println!(
        "200000 blocks: one of {}, {blocks} blocks, {} bytes",
        shadow.mask + 1,
        shadow.memory_bytes()
    );
    assert!((FEWEST_BLOCKS..=MOST).contains(&blocks), "{blocks}");
    assert!(shadow.memory_bytes() < 1 << 20, "{}", shadow.memory_bytes());
    audit(&shadow);
    play(&mut shadow, 400_000, 1_000_000, 2000);
    println!("2000 blocks: one of {}, {} blocks", shadow.mask + 1, shadow.minis[0].blocks());
    assert!((FEWEST_BLOCKS..=MOST).contains(&shadow.minis[0].blocks()));
    audit(&shadow);
}

/// Above the bound at which the sample is doubled.
const FEWEST_BLOCKS: u64 = super::FEWEST / 2;

#[test]
fn a_loop_and_a_drift_lead_to_opposite_rules() {
    let shadows = Shadows::new(1);
    let room = |_: Class| 100;
    let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chosen = usize::MAX;
    for i in 0..20_000u64 {
        let played = shadows
            .note_miss(Some((hash(i % 130), Class::Data, 1)), room)
            .expect("nobody else is at it");
        chosen = played.chosen[Class::Data as usize];
    }
    assert_eq!(chosen, 0, "a loop that does not fit");
    let mut rng = SmallRng::from_seed(1);
    for i in 0..20_000u64 {
        let key = (1 << 30) + i / 5 - rng.below(80).min(rng.below(80));
        shadows.note_hit(hash(key), Class::Data, 1);
        let played = shadows
            .note_miss(Some((hash(key), Class::Data, 1)), room)
            .expect("nobody else is at it");
        assert_eq!(played.accesses, [0, 2], "the hit is played before the miss");
        chosen = played.chosen[Class::Data as usize];
    }
    assert_eq!(chosen, RULES.len() - 1, "nothing but recency counts");
    shadows.clear();
    let played =
        shadows.note_miss(Some((1, Class::Metadata, 1)), room).expect("nobody else is at it");
    assert_eq!((played.chosen[Class::Data as usize], played.accesses), (chosen, [1, 0]));
}
