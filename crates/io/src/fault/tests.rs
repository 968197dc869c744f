//! Rules, and the volatile cache against a reference model.

use std::time::Duration;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use proptest::prelude::*;

use super::rule::{Fault, Rule, Rules};
use super::volatile_cache::VolatileCache;
use crate::{Priority, Request};

fn read(arena: &Arena, offset: u64) -> Request {
    Request::read(offset, arena.alloc(512).unwrap())
}

fn arena() -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Never }).unwrap()
}

/// Returns which of `count` reads at `offset` the rules hit.
fn hits(rules: &mut Rules, offset: u64, count: usize) -> Vec<bool> {
    let arena = arena();
    (0..count).map(|_| rules.decide(&read(&arena, offset), 0).planned.is_some()).collect()
}

#[test]
fn a_rule_fires_when_it_says() {
    let mut rules = Rules::new(1);
    let nth = rules.add(Rule::new(Fault::Error(5)).nth(3));
    assert_eq!(hits(&mut rules, 0, 5), [false, false, true, false, false]);
    assert_eq!(rules.remove(nth), Some(1));
    assert_eq!(rules.remove(nth), None);
    rules.add(Rule::new(Fault::Error(5)).after(1).times(2).within(512..1024));
    assert_eq!(hits(&mut rules, 0, 3), [false; 3]);
    assert_eq!(hits(&mut rules, 512, 4), [false, true, true, false]);
    assert!(rules.decide(&Request::flush(), 0).planned.is_none());
    assert_eq!(rules.injected().len(), 3);
}

#[test]
fn a_rule_keeps_to_operations_and_priorities() {
    let arena = arena();
    let mut rules = Rules::new(1);
    rules.add(Rule::new(Fault::Lost));
    rules.add(Rule::new(Fault::Error(5)).at(Priority::Scrub));
    assert!(rules.decide(&read(&arena, 0), 0).planned.is_none());
    assert!(rules.decide(&read(&arena, 0).with_priority(Priority::Scrub), 0).planned.is_some());
    let write = Request::write(0, arena.alloc(512).unwrap());
    assert_eq!(rules.decide(&write, 0).planned.map(|planned| planned.fault), Some(Fault::Lost));
    assert!(rules.decide(&Request::discard(0, 512), 0).planned.is_none());
}

#[test]
fn delays_add_up_and_another_fault_follows() {
    let mut rules = Rules::new(1);
    rules.add(Rule::new(Fault::Delay(Duration::from_millis(2))));
    rules.add(Rule::new(Fault::Error(5)));
    rules.add(Rule::new(Fault::Delay(Duration::from_millis(3))));
    let decision = rules.decide(&Request::flush(), 0);
    // Rules after the fault do not see the request.
    assert_eq!(decision.delay, Duration::from_millis(2));
    assert_eq!(decision.planned.map(|planned| planned.fault), Some(Fault::Error(5)));
}

#[test]
fn delays_queue_at_a_rate() {
    let mut rules = Rules::new(1);
    let delay = Duration::from_millis(5);
    rules.add(Rule::new(Fault::Delay(delay)).at_most_per_s(1000));
    let mut ends_at_ms = |now_ms: u64| {
        let decision = rules.decide(&Request::flush(), now_ms * 1_000_000);
        now_ms + decision.delay.as_millis() as u64
    };
    assert_eq!([0, 0, 0].map(&mut ends_at_ms), [5, 6, 7]);
    // One of them has begun meanwhile.
    assert_eq!([2, 3, 10, 10].map(&mut ends_at_ms), [8, 9, 15, 16]);
}

#[test]
fn the_seed_decides_and_rules_do_not_disturb_each_other() {
    let unlikely = || Rule::new(Fault::Error(5)).with_probability(0.3);
    let mut alone = Rules::new(7);
    alone.add(unlikely());
    let expected = hits(&mut alone, 0, 200);
    let mut with_others = Rules::new(7);
    with_others.add(unlikely());
    with_others.add(Rule::new(Fault::Delay(Duration::ZERO)).with_probability(0.5));
    assert_eq!(hits(&mut with_others, 0, 200), expected);
    let fired = expected.iter().filter(|planned| **planned).count();
    assert!((30..90).contains(&fired), "{fired} of 200 at 0.3");
    let mut other = Rules::new(8);
    other.add(unlikely());
    assert_ne!(hits(&mut other, 0, 200), expected);
}

#[derive(Clone, Debug)]
enum Step {
    Store { first: u64, sectors: u64 },
    Begin,
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12u64, 1..4u64).prop_map(|(first, sectors)| Step::Store { first, sectors }),
        1 => Just(Step::Begin),
        1 => Just(Step::Forget),
    ]
}

proptest! {
    #[test]
    fn cache_and_medium_hold_the_last_stored_content(
        steps in prop::collection::vec(step(), 0..60),
        seed in any::<u64>(),
    ) {
        const SECTOR: usize = 512;
        const SECTORS: usize = 16;
        let mut volatile = VolatileCache::new(SECTOR as u32, 1 << 20);
        let mut medium = vec![0; SECTORS];
        let mut model = vec![0; SECTORS];
        let mut running = None;
        let mut rng = SmallRng::from_seed(seed);
        for step in steps {
            match step {
                Step::Store { first, sectors } => {
                    let fill = rng.next_u64() as u8;
                    volatile.store(first * SECTOR as u64, &vec![fill; sectors as usize * SECTOR]);
                    model[first as usize..(first + sectors) as usize].fill(fill);
                }
                Step::Begin => running = Some(volatile.runs()),
                Step::Forget => if let Some((runs, number)) = running.take() {
                    for run in runs {
                        for (at, sector) in run.sectors.iter().enumerate() {
                            medium[run.offset as usize / SECTOR + at] = sector[0];
                        }
                    }
                    volatile.forget(number);
                },
            }
            let mut seen = medium.clone();
            let all = 0..(SECTORS * SECTOR) as u64;
            for (offset, sector) in volatile.cached_sectors(&all) {
                prop_assert_eq!(sector.len(), SECTOR);
                seen[offset as usize / SECTOR] = sector[0];
            }
            prop_assert_eq!(&seen, &model);
            prop_assert_eq!(volatile.overlaps(&all), !volatile.is_empty());
        }
    }
}
