//! A directory behaves like a map, through splits, merges, packing, eviction and reopening.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::super::change::ChangeRequest;
use super::super::entry::{HashedName, home_of};
use super::super::memory::MemoryStore;
use super::super::{Change, Cookie, DirectoryForm, NameChange, Zap};
use super::{is_micro, new};
use crate::wait::Wait;
use crate::{Error, ErrorKind};

/// Whether an error is the expected one or an injected one.
fn failed(error: &Error, kind: ErrorKind, expected: bool) -> bool {
    error.kind() == ErrorKind::NoMemory || (error.kind() == kind && expected)
}

struct Pair {
    zap: Zap<MemoryStore>,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    rng: SmallRng,
    /// Padding of names: with long names, few entries fill a leaf.
    pad: usize,
    walk: Walk,
}

/// A walk over the directory while it changes.
#[derive(Default)]
struct Walk {
    from: Cookie,
    seen: BTreeSet<Vec<u8>>,
    /// The names that have existed since it began.
    kept: BTreeSet<Vec<u8>>,
}

impl Pair {
    fn step(&mut self, names: u64, removes: u64) {
        let name = format!("{:0>1$}", self.rng.below(names), self.pad).into_bytes();
        let mut value = vec![0; 1 + self.rng.below(32) as usize];
        self.rng.fill(&mut value);
        let old = self.model.get(&name).cloned();
        let (zap, model) = (&self.zap, &mut self.model);
        match self.rng.below(10) {
            n if n < removes => match zap.remove(&(), &name) {
                Ok(was) => {
                    assert_eq!(Some(&*was), model.remove(&name).as_deref());
                    self.walk.kept.remove(&name);
                    if self.rng.below(4) == 0 {
                        match zap.restore(&(), &name, &was) {
                            Ok(()) => assert!(model.insert(name, was.to_vec()).is_none()),
                            // An empty directory has no leaf for a long name.
                            Err(error) => assert!(model.is_empty(), "{error}"),
                        }
                    }
                }
                Err(error) => assert!(failed(&error, ErrorKind::NotFound, old.is_none())),
            },
            9 => match zap.replace(&(), &name, &value) {
                Ok(was) => assert_eq!(Some(&*was), model.insert(name, value).as_deref()),
                Err(error) => assert!(failed(&error, ErrorKind::NotFound, old.is_none())),
            },
            8 => match zap.upsert(&(), &name, &value) {
                Ok(was) => assert_eq!(was.as_deref(), model.insert(name, value).as_deref()),
                Err(error) => assert!(failed(&error, ErrorKind::NoMemory, true)),
            },
            7 => {
                let found = zap.lookup(&name, Wait::Allowed).expect("it is possible");
                assert_eq!(found.as_deref(), old.as_deref());
            }
            _ => match zap.insert(&(), &name, &value) {
                Ok(()) => assert!(model.insert(name, value).is_none()),
                Err(error) => assert!(failed(&error, ErrorKind::Exists, old.is_some())),
            },
        }
    }

    /// Moves names, goes on with the walk, and so on, now and then.
    fn disturb(&mut self) {
        if self.rng.below(100) == 0
            && let Err(error) = self.zap.merge_some()
        {
            assert_eq!(error.kind(), ErrorKind::NoMemory);
        }
        if self.rng.below(100) == 0 {
            self.zap.store().open_next_txg();
        }
        if self.rng.below(300) == 0 {
            self.end_txg();
        }
        if self.rng.below(8) == 0 {
            self.walk_on();
        }
    }

    fn walk_on(&mut self) {
        let (most, walk) = (1 + self.rng.below(20) as usize, &mut self.walk);
        let (entries, next) =
            self.zap.batch(walk.from, most, Wait::Allowed).expect("it is possible");
        for entry in entries {
            let name = entry.name.to_vec();
            let is_kept = walk.kept.contains(&name);
            assert!(walk.seen.insert(name) || !is_kept, "a name appears once");
        }
        walk.from = next;
        if next.is_end() {
            assert!(walk.kept.is_subset(&walk.seen), "each name that was kept appears");
            let kept = self.model.keys().cloned().collect();
            *walk = Walk { kept, ..Walk::default() };
        }
    }

    fn check(&self) {
        self.zap.audit().expect("it is valid");
        assert_eq!(self.zap.len(), self.model.len() as u64);
        let mut seen = BTreeMap::new();
        let mut before = Cookie::START;
        for entry in self.zap.cursor(Cookie::START, Wait::Allowed) {
            let entry = entry.expect("it is valid");
            assert!(entry.next > before, "a walk advances");
            before = entry.next;
            assert!(seen.insert(entry.name.to_vec(), entry.value.to_vec()).is_none());
        }
        assert_eq!(seen, self.model);
    }

    fn end_txg(&mut self) {
        let store = self.zap.store().clone();
        store.commit();
        match self.rng.below(3) {
            0 => store.evict(&mut self.rng, 2),
            1 => store.evict(&mut self.rng, 1),
            _ => {}
        }
        if self.rng.below(4) == 0 {
            self.zap = Zap::open(store, Wait::Allowed).expect("it is valid");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn matches_a_map_model(
        seed in any::<u64>(),
        pad in prop_oneof![Just(1usize), Just(60), Just(255)],
        names in prop_oneof![1..40u64, 100..4000u64],
        uncached in any::<bool>(),
        failures in any::<bool>(),
    ) {
        let (model, rng) = (BTreeMap::new(), SmallRng::from_seed(seed));
        let mut pair = Pair { zap: new(seed), model, rng, pad, walk: Walk::default() };
        if uncached {
            pair.zap.store().without_cache();
        }
        if failures {
            pair.zap.store().fail(seed);
        }
        for phase in 0..6 {
            let removes = [1, 5, 7][phase % 3];
            for _ in 0..names.min(1500) {
                pair.step(names, removes);
                pair.disturb();
            }
            pair.end_txg();
            pair.check();
        }
        let all: Vec<_> = pair.model.keys().cloned().collect();
        for name in all {
            while pair.zap.remove(&(), &name).is_err() {}
        }
        prop_assert!(pair.zap.is_empty());
        if !failures {
            prop_assert!(is_micro(&pair.zap));
            prop_assert_eq!(pair.zap.store().leaf_count(), 0);
        }
    }
}

#[test]
fn names_with_equal_hashes_coexist() {
    let zap = new(1);
    let mut by_hash: HashMap<u32, String> = HashMap::new();
    let mut models = Vec::new();
    for number in 0..300_000 {
        let name = number.to_string();
        if let Some(other) =
            by_hash.insert((home_of(1, name.as_bytes()) >> 16) as u32, name.clone())
        {
            models.push((other, name));
        }
    }
    assert!(!models.is_empty());
    for (one, other) in &models {
        zap.insert(&(), one.as_bytes(), b"one").expect("it is new");
        zap.insert(&(), other.as_bytes(), b"other").expect("it is new");
    }
    for number in 0..2000 {
        let _ = zap.upsert(&(), format!("more {number}").as_bytes(), b"v");
    }
    assert_eq!(zap.audit().expect("it is valid").collisions, models.len() as u64);
    for (one, other) in &models {
        assert_eq!(&*zap.remove(&(), one.as_bytes()).expect("it is there"), b"one");
        let found = zap.lookup(other.as_bytes(), Wait::Allowed).expect("it is possible");
        assert_eq!(found.as_deref(), Some(&b"other"[..]));
    }
}

#[test]
fn a_leaf_that_cannot_split_is_full() {
    // The filter of the leaf is made from its names, not from these hashes.
    let store = MemoryStore::with_seed(1).unaided();
    let zap = Zap::open(store, Wait::Allowed).expect("nothing fails in memory");
    for number in 0..100 {
        zap.insert(&(), format!("{number:0>50}").as_bytes(), b"v").expect("there is space");
    }
    let insert = |hash: u32, name: &[u8]| {
        let name = HashedName { name, home: u64::from(hash) << 16 };
        let request = ChangeRequest { kind: NameChange::Insert, name, value: b"v" };
        zap.run(None, Wait::Allowed, |state, access| match &mut state.form {
            DirectoryForm::Fat(fat) => fat.change(access, &(), &request),
            DirectoryForm::Micro(_) => unreachable!("it is fat"),
        })
    };
    // These hashes share more bits than a leaf can be selected by.
    let mut count = 0;
    let error = loop {
        let name = format!("{count:0>200}");
        match insert(0xdead_be00 | count & 0xff, name.as_bytes()) {
            Ok(changed) => assert_eq!(changed.change, Change::Done(None)),
            Err(error) => break error,
        }
        count += 1;
        assert!(count < 1000);
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let leaves = zap.store().leaf_count();
    assert!(leaves < 30, "{leaves}");
    assert!(insert(0xdead_be00, &[b'x'; 210]).is_err());
    assert_eq!(zap.store().leaf_count(), leaves, "no leaf is split without need");
    insert(0x1234_5678, b"elsewhere").expect("other leaves still have space");
    let alike = zap.stats().expect("it is valid");
    assert_eq!(alike.entries, u64::from(count) + 101);
}

#[test]
fn invalid_names_and_values_are_rejected() {
    let zap = new(1);
    let invalid = |result: crate::Result<()>| {
        assert_eq!(result.expect_err("it is impossible").kind(), ErrorKind::Invalid);
    };
    invalid(zap.insert(&(), b"", b"v"));
    invalid(zap.insert(&(), &[b'n'; 256], b"v"));
    invalid(zap.insert(&(), b"n", b""));
    invalid(zap.insert(&(), b"n", &[1; 33]));
    invalid(zap.lookup(b"", Wait::Allowed).map(|_| ()));
    zap.insert(&(), &[b'n'; 255], &[1; 32]).expect("the longest are possible");
}

#[test]
fn a_smaller_inline_capacity_converts_to_fat() {
    let zap = new(1);
    for number in 0..14 {
        zap.insert(&(), number.to_string().as_bytes(), b"12345678").expect("there is space");
    }
    zap.limit_inline(&(), 200).expect("it is possible");
    assert!(is_micro(&zap));
    zap.limit_inline(&(), 140).expect("it is possible");
    assert!(!is_micro(&zap));
    assert_eq!(zap.audit().expect("it is valid").entries, 14);
}
