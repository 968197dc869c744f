//! The index against a naive model. White-box: checks structure, counts and memory too.

use std::cell::Cell;
use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::thread::spawn_named;
use forebay_base::vm::ZeroInit;
use proptest::prelude::*;

use super::grow::MAX_ENTRIES_MOVED;
use super::line::{self, Slot};
use super::{Full, Index, MAX_DISTANCE, Probe, Visit};
use crate::frequency::{Frequency, TICKS};

/// Hashes a key. Distinct keys have distinct hashes.
fn mix(key: u64) -> u64 {
    let mut h = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// The address of a key's header.
fn address_of(key: u64) -> usize {
    (key as usize + 1) * 64
}

fn key_at(address: usize) -> u64 {
    (address / 64 - 1) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Resident,
    Ghost(usize, u64),
}

struct IndexModel {
    index: Index,
    hash: fn(u64) -> u64,
    entries: HashMap<u64, EntryKind>,
    /// The keys of `entries`.
    keys: Vec<u64>,
    position: u64,
}

impl IndexModel {
    fn new(hash: fn(u64) -> u64) -> Self {
        Self { index: Index::new(), hash, entries: HashMap::new(), keys: Vec::new(), position: 0 }
    }

    fn slot(&self, key: u64, kind: EntryKind) -> Slot {
        let hash = (self.hash)(key);
        match kind {
            EntryKind::Resident => Slot::resident(hash, address_of(key)),
            EntryKind::Ghost(list, position) => self.index.lock(hash).ghost_slot(list, position),
        }
    }

    fn some_ghost(&mut self) -> EntryKind {
        self.position += 1;
        EntryKind::Ghost((self.position % 4) as usize, self.position * 3)
    }

    /// Returns how many entries were examined to grow.
    fn insert(&mut self, key: u64, kind: EntryKind) -> Result<usize, Full> {
        let slot = self.slot(key, kind);
        let moved = Cell::new(0);
        let hash_of = |address| {
            moved.set(moved.get() + 1);
            (self.hash)(key_at(address))
        };
        self.index.lock((self.hash)(key)).insert(slot, &hash_of)?;
        assert_eq!(self.entries.insert(key, kind), None);
        self.keys.push(key);
        Ok(moved.get())
    }

    fn replace(&mut self, at: usize, kind: EntryKind) {
        let key = self.keys[at];
        let slot = self.slot(key, kind);
        let mut locked = self.index.lock((self.hash)(key));
        let slot_ref = match self.entries[&key] {
            EntryKind::Resident => locked.find_resident(|a| a == address_of(key)).map(|f| f.0),
            EntryKind::Ghost(list, position) => locked.find_ghost_at(list, position),
        };
        locked.replace(slot_ref.expect("it is there"), slot);
        self.entries.insert(key, kind);
    }

    fn remove(&mut self, at: usize) {
        let key = self.keys.swap_remove(at);
        let mut locked = self.index.lock((self.hash)(key));
        let slot_ref = match self.entries.remove(&key).expect("it is there") {
            EntryKind::Resident => locked.find_resident(|a| a == address_of(key)).map(|f| f.0),
            EntryKind::Ghost(list, position) => locked.find_ghost_at(list, position),
        };
        locked.remove(slot_ref.expect("it is there"));
    }

    /// Checks one key, by each kind of lookup.
    fn check(&self, key: u64) {
        let hash = (self.hash)(key);
        let mut visited = Vec::new();
        let found = self.index.find(hash, |address| {
            visited.push(address);
            if address == address_of(key) { Visit::Found(()) } else { Visit::Missed(0) }
        });
        match self.index.probe(hash) {
            // No other thread changes the index, so `find` visits all entries.
            Probe::At(address) => {
                let other = key_at(address);
                assert_eq!(line::tag((self.hash)(other)), line::tag(hash));
                assert!(matches!(self.entries.get(&other), Some(EntryKind::Resident)), "{other}");
            }
            Probe::Nothing => assert!(found.is_none(), "{key} was overlooked"),
            Probe::Unclear => {}
        }
        let locked = self.index.lock(hash);
        let resident = locked.find_resident(|a| a == address_of(key)).is_some();
        assert_eq!(found.is_some(), resident);
        match self.entries.get(&key) {
            Some(EntryKind::Resident) => assert!(resident, "{key} is lost"),
            Some(EntryKind::Ghost(list, position)) => {
                assert!(!resident);
                assert!(locked.find_ghost_at(*list, *position).is_some(), "ghost of {key} is lost");
                assert!(locked.has_ghost());
            }
            None => assert!(!resident, "{key} was removed"),
        }
    }

    /// Residents that a probe finds first.
    fn probed(&self) -> usize {
        let at_once = |key: &&u64| {
            let seen = self.index.probe((self.hash)(**key));
            matches!(seen, Probe::At(address) if address == address_of(**key))
        };
        self.keys.iter().filter(at_once).count()
    }

    /// Checks each entry, the structure and the counts.
    fn audit(&self) {
        self.keys.iter().for_each(|key| self.check(*key));
        let (mut slots, mut displaced, mut segments, mut chain, mut granules) = (0, 0, 0, 0, 0);
        for partition in self.index.partitions.iter() {
            let _writer = partition.lock.lock();
            for (entry, first) in partition.distinct_segments() {
                segments += 1;
                granules += entry.granules();
                let lines = entry.lines();
                let mut away = vec![0u64; lines];
                let mut count = 0;
                for (at, slot) in entry.slots() {
                    let home = line::home(slot.tag(), lines);
                    let distance = (at + lines - home) % lines;
                    assert!(distance <= MAX_DISTANCE);
                    away[home] += u64::from(distance > 0);
                    chain = chain.max(1 + distance as u64);
                    count += 1;
                    let hash = match slot.is_ghost() {
                        true => None,
                        false => Some((self.hash)(key_at(slot.address()))),
                    };
                    // The segment is the one that the hash selects.
                    if let Some(hash) = hash {
                        let word = partition.directory.load(Ordering::Relaxed);
                        let directory = super::Directory::from_word(word).expect("it has one");
                        let span = 1usize << (directory.depth() - entry.depth());
                        assert_eq!(directory.number(hash) / span * span, first);
                    }
                }
                assert_eq!(entry.count(), count, "a segment's count");
                for (line, away) in entry.all_lines().zip(&away) {
                    assert_eq!(line.meta.load(Ordering::Relaxed) & 0xffff, *away);
                    assert_eq!(line.farthest() > 0, *away > 0);
                }
                slots += count as u64;
                displaced += away.iter().sum::<u64>();
            }
        }
        let stats = self.index.stats();
        assert_eq!((stats.entries, slots), (self.entries.len() as u64, self.entries.len() as u64));
        assert_eq!((stats.collisions, stats.segments), (displaced, segments));
        assert!(stats.longest_chain >= chain && stats.longest_chain <= 1 + MAX_DISTANCE as u64);
        let (used, touched) = self.index.memory.bytes();
        assert_eq!(used, (granules * super::memory::GRANULE_LINES * 64) as u64);
        assert!(used <= touched && stats.used_bytes <= stats.resident_bytes);
        let mut listed = 0;
        self.index.for_each_slot(|slot| listed += u64::from(!slot.is_empty()));
        assert_eq!(listed, slots);
    }
}

const MOST: u64 = if cfg!(miri) { 600 } else { 100_000 };

/// Grows to `MOST` entries and shrinks to none, with residents becoming ghosts and back on the way.
fn up_and_down(seed: u64) {
    let mut model = IndexModel::new(mix);
    let mut rng = SmallRng::from_seed(seed);
    let (mut next, mut worst) = (0u64, 0);
    let mut growing = true;
    let mut audit_at = 10;
    while growing || !model.keys.is_empty() {
        let len = model.keys.len() as u64;
        // Two steps forward and one back, or the reverse.
        let inserts = rng.below(3) < if growing { 2 } else { 1 };
        if len == 0 || inserts {
            let ghost = rng.below(3) == 0;
            let kind = if ghost { model.some_ghost() } else { EntryKind::Resident };
            worst = worst.max(model.insert(next, kind).expect("there is memory"));
            next += 1;
        } else {
            model.remove(rng.below(len) as usize);
        }
        if let Some(len @ 1..) = Some(model.keys.len() as u64) {
            let at = rng.below(len) as usize;
            let other = match model.entries[&model.keys[at]] {
                EntryKind::Resident => model.some_ghost(),
                EntryKind::Ghost(..) => EntryKind::Resident,
            };
            model.replace(at, other);
            model.check(model.keys[rng.below(len) as usize]);
        }
        model.check(rng.below(next + 1));
        let len = model.keys.len() as u64;
        if growing && len >= audit_at || !growing && len <= audit_at {
            model.audit();
            audit_at = if growing { audit_at * 10 } else { audit_at / 10 };
        }
        if growing && len == MOST {
            growing = false;
            audit_at = MOST / 10;
        }
    }
    model.audit();
    assert!(worst > 0 && worst <= MAX_ENTRIES_MOVED, "{worst} entries moved by one insert");
    model.index.trim();
    let stats = model.index.stats();
    assert_eq!((stats.entries, stats.collisions), (0, 0));
    // Each partition keeps one granule, at worst each in its own page, and the directories.
    let partitions = model.index.partitions.len() as u64;
    assert!(model.index.memory.bytes().0 <= partitions << 10, "{stats:?}");
    assert!(model.index.stats().resident_bytes <= partitions * (4096 + 1024), "{stats:?}");
}

#[test]
fn every_entry_is_findable_while_it_grows_and_shrinks() {
    up_and_down(1);
}

#[test]
fn growth_alone_costs_sixteen_bytes_an_entry() {
    let mut model = IndexModel::new(mix);
    let most = if cfg!(miri) { 500 } else { 200_000 };
    let mut worst = 0.0f64;
    for key in 0..most {
        model.insert(key, EntryKind::Resident).unwrap();
        if key >= most / 8 && key % (most / 64) == 0 {
            worst = worst.max(model.index.stats().used_bytes as f64 / (key + 1) as f64);
        }
    }
    model.audit();
    println!("at worst {worst:.2} bytes an entry; {:?}", model.index.stats());
    assert!(cfg!(miri) || worst <= 16.0, "{worst} bytes an entry");
    let probed = model.probed() as f64 / most as f64;
    assert!(probed > 0.8, "a probe shows {probed} of the entries");
}

#[test]
fn a_useless_hash_is_refused_and_harms_few() {
    // Every fourth key has the same hash.
    let mut model = IndexModel::new(|key| if key % 4 == 0 { 42 } else { mix(key) });
    let (mut refused, mut good_refused) = (0, 0);
    for key in 0..if cfg!(miri) { 300 } else { 20_000 } {
        match model.insert(key, EntryKind::Resident) {
            Ok(_) => {}
            Err(Full::Collisions) => {
                // Also a good hash, if the bad ones have filled its home line.
                refused += u64::from(key % 4 == 0);
                good_refused += u64::from(key % 4 != 0);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0 && good_refused * 100 <= refused, "{refused}, {good_refused} good");
    model.audit();
    while !model.keys.is_empty() {
        model.remove(model.keys.len() / 2);
    }
    model.audit();
}

/// A hash that becomes constant when a segment is full, so that each split moves all to one side.
#[test]
fn a_hash_that_changes_does_not_double_the_directory_for_ever() {
    let index = Index::new();
    // All in the first partition.
    let hash = |key: u64, varies: bool| if varies { mix(key) >> 6 } else { 0 };
    let mut key = 0;
    let refused = loop {
        let varies = key < 700;
        let hash_of = |address| hash(key_at(address), varies);
        let slot = Slot::resident(hash(key, varies), address_of(key));
        match index.lock(hash(key, varies)).insert(slot, &hash_of) {
            Ok(()) => key += 1,
            Err(full) => break full,
        }
    };
    assert!(matches!(refused, Full::Collisions), "{refused:?} after {key}");
    let used = index.stats().used_bytes;
    assert!(used < 1 << 20, "{used} bytes for {key} entries");
}

#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn readers_find_what_stays_while_writers_come_and_go() {
    const STAY: u64 = 500;
    let index = Arc::new(Index::new());
    let hash_of = |address: usize| mix(key_at(address));
    for key in 0..STAY {
        let slot = Slot::resident(mix(key), address_of(key));
        index.lock(mix(key)).insert(slot, &hash_of).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (index, stop) = (index.clone(), stop.clone());
        move || {
            let mut rng = SmallRng::from_seed(7);
            let mut reads = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let key = rng.below(STAY);
                let found = index.find(mix(key), |address| match address == address_of(key) {
                    true => Visit::Found(()),
                    false => Visit::Missed(0),
                });
                assert!(found.is_some(), "{key} was there all the time");
                reads += 1;
            }
            reads
        }
    };
    let readers: Vec<_> = (0..2).map(|_| spawn_named("reader", reader.clone()).unwrap()).collect();
    for round in 1..4 {
        // Grows by splits, shrinks by merges.
        let keys = STAY..STAY + 30_000 * round;
        for key in keys.clone() {
            let slot = Slot::resident(mix(key), address_of(key));
            index.lock(mix(key)).insert(slot, &hash_of).unwrap();
        }
        for key in keys {
            let mut locked = index.lock(mix(key));
            let (slot_ref, _) = locked.find_resident(|a| a == address_of(key)).unwrap();
            locked.remove(slot_ref);
        }
        index.trim();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(readers.into_iter().map(|r| r.join().unwrap()).sum::<u64>() > 0);
    assert_eq!(index.stats().entries, STAY);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
    /// Short sequences with a hash that fills few lines, so that each kind of step happens early.
    #[test]
    fn behaves_as_its_model(
        ops in prop::collection::vec((0..5u8, any::<u32>()), 1..3000),
        with_tags in any::<bool>(),
    ) {
        // Tags close together, or all zero as in empty slots: long chains.
        let mut model = IndexModel::new(match with_tags {
            true => |key| (mix(key) & !0x1f_ffff) | (mix(key) & 0x1_ffff),
            false => |key| mix(key) & !0x1f_ffff,
        });
        let mut next = 0;
        for (op, n) in ops {
            let at = n as usize % model.keys.len().max(1);
            match op {
                0 | 1 => {
                    let ghost = n % 3 == 0;
                    let kind = if ghost { model.some_ghost() } else { EntryKind::Resident };
                    if model.insert(next, kind).is_ok() {
                        model.check(next);
                    }
                    next += 1;
                }
                2 if !model.keys.is_empty() => {
                    let key = model.keys[at];
                    model.remove(at);
                    model.check(key);
                }
                3 if !model.keys.is_empty() => {
                    let kind = model.some_ghost();
                    model.replace(at, kind);
                }
                4 if !model.keys.is_empty() => model.replace(at, EntryKind::Resident),
                _ => {}
            }
        }
        model.audit();
    }
}

/// All slots of a line are compared at once. The model compares one after the other.
#[test]
fn a_line_has_the_slots_that_a_naive_search_finds() {
    let mut rng = SmallRng::from_seed(1);
    let tags = [0, 1, 2, 0x10_0000, 0x1f_fffe, 0x1f_ffff];
    let tops = tags.map(|tag| [line::resident_top(tag), line::ghost_top(tag)]).concat();
    for _ in 0..2_000 {
        let line = line::Line::zero();
        // The first word is no slot, whatever its bits are.
        let word = |rng: &mut SmallRng| {
            let hash = tags[rng.below(tags.len() as u64) as usize];
            match rng.below(3) {
                0 => Slot::EMPTY,
                1 => Slot::resident(hash, (rng.below((1 << 42) - 1) as usize + 1) * 64),
                _ => {
                    Slot::ghost(hash, rng.below(1 << 10), rng.below(4) as usize, rng.below(1 << 17))
                }
            }
        };
        line.meta.store(word(&mut rng).0, Ordering::Relaxed);
        line.slots.iter().for_each(|slot| slot.store(word(&mut rng).0, Ordering::Relaxed));
        for top in &tops {
            let naive = |n: &usize| line.slots[*n].load(Ordering::Relaxed) >> 42 == *top;
            let model: Vec<usize> = (0..line::SLOTS).filter(naive).collect();
            assert_eq!(line.with_top(*top).collect::<Vec<_>>(), model, "{top:x}");
        }
        for slot in line.slots.iter().map(|slot| Slot(slot.load(Ordering::Relaxed))) {
            for tag in tags {
                let is_one = !slot.is_empty() && !slot.is_ghost() && slot.tag() == tag;
                assert_eq!(slot.resident_at(tag), is_one.then(|| slot.address()));
            }
        }
    }
}

/// A ghost's slot stores at most the true count, at least two thirds of it, and half for each epoch
/// since. It stores the tick of the last use unless that is long ago.
#[test]
fn a_ghosts_slot_keeps_its_count_and_ages() {
    let ghost = Slot::ghost(0x1234_5678_9abc_def0, 5, 2, 77);
    for last in [0, 1, TICKS - 1, TICKS, 3 * TICKS, 1001, u32::MAX - TICKS] {
        for count in 1..16 {
            let (used, now) = (Frequency::of(count, last), last.wrapping_add(40));
            let slot = ghost.with_uses(used, now);
            assert_eq!(slot.ghost_uses(now).age(now), 40);
            let kept = slot.ghost_uses(last).count(last);
            assert!(kept <= count && 3 * kept >= 2 * count, "{count}: {kept}");
            let later = last.wrapping_add(2 * TICKS);
            assert_eq!(slot.ghost_uses(later).count(later), kept / 4);
            assert_eq!(slot.without_uses(), ghost);
            let (long_after, most) = (last.wrapping_add(5 * TICKS), used.count(last) / 16);
            let old = ghost.with_uses(used, long_after).ghost_uses(long_after);
            assert_eq!(old.age(long_after), 3 * TICKS);
            assert!(old.count(long_after) <= most, "{count}");
            assert_eq!(
                (slot.tag(), slot.ghost_list(), slot.ghost_split_bits()),
                (ghost.tag(), 2, 5)
            );
        }
    }
}
