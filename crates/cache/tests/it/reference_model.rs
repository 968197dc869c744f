//! Random operations on the cache and on a reference model. One thread, which evicts itself.
//!
//! The model keeps the last value of every key. The cache may forget a value, but never returns
//! another one. Sizes stay within the capacity, a block is there right after its insert, refusals
//! have their reason, and the audit passes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::{
    Attributes, Begin, Cache, Class, Hint, InFlight, Key, LoadError, LoadGuard, OwnedRef,
    OwnerCaching, OwnerId, Reclaim, Refusal,
};
use proptest::prelude::*;

use crate::support::Live;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlockKey {
    owner: u16,
    block: u8,
}

impl Key for BlockKey {
    fn owner(&self) -> OwnerId {
        OwnerId::from_raw(self.owner)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u8, u64, Attributes),
    Get(u8, u8),
    GetMany(u8, u8, u8),
    Pin(u8, u8),
    Unpin(usize),
    Contains(u8, u8),
    Remove(u8, u8),
    GetOrLoad(u8, u8, u64, bool, Attributes),
    Begin(u8, u8, u64, Attributes),
    Publish(usize, u64),
    Fail(usize),
    Abandon(usize),
    Clear,
    Peek(u8, u8),
    RemoveIf(u8, u8, bool),
    Retain(u8),
    SetWeight(u8, u8, u64),
    Modify(u8, u8, u64, Attributes),
    Iterate,
    Resize(u64),
    SetCaching(u8, u8),
    Reopen(u8),
    Tune(&'static str, u32),
    Trim,
    Audit,
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let hint = prop_oneof![8 => Just(Hint::Normal), 1 => Just(Hint::Once), 1 => Just(Hint::Again)];
    (any::<bool>(), hint).prop_map(|(metadata, hint)| Attributes {
        class: if metadata { Class::Metadata } else { Class::Data },
        hint,
        label: 0,
    })
}

/// Mostly small, sometimes heavier than the cache, rarely absurd.
fn weight() -> impl Strategy<Value = u64> {
    prop_oneof![40 => 1..8u64, 4 => 8..60u64, 1 => 100..300u64, 1 => any::<u64>()]
}

fn tune() -> impl Strategy<Value = Op> {
    let names = [
        ("ghost_percent", 200),
        ("overflow_shift", 20),
        ("evict_batch_limit", 8),
        ("metadata_floor_percent", 100),
        ("metadata_ceiling_percent", 100),
        ("data_floor_percent", 100),
        ("data_ceiling_percent", 100),
        ("correlated_window_permille", 900),
    ];
    (prop::sample::select(names.to_vec()), any::<u32>())
        .prop_map(|((name, most), value)| Op::Tune(name, 1 + value % most))
}

fn op() -> impl Strategy<Value = Op> {
    let owner = || 0..4u8;
    let block = || 0..60u8;
    prop_oneof![
        20 => (owner(), block(), weight(), attributes()).prop_map(|(o, b, w, a)| Op::Insert(o, b, w, a)),
        20 => (owner(), block()).prop_map(|(o, b)| Op::Get(o, b)),
        2 => (owner(), block(), 0..40u8).prop_map(|(o, b, n)| Op::GetMany(o, b, n)),
        4 => (owner(), block()).prop_map(|(o, b)| Op::Pin(o, b)),
        4 => any::<usize>().prop_map(Op::Unpin),
        3 => (owner(), block()).prop_map(|(o, b)| Op::Contains(o, b)),
        6 => (owner(), block()).prop_map(|(o, b)| Op::Remove(o, b)),
        12 => (owner(), block(), weight(), prop::bool::weighted(0.8), attributes())
            .prop_map(|(o, b, w, ok, a)| Op::GetOrLoad(o, b, w, ok, a)),
        8 => (owner(), block(), weight(), attributes()).prop_map(|(o, b, w, a)| Op::Begin(o, b, w, a)),
        8 => (any::<usize>(), weight()).prop_map(|(n, w)| Op::Publish(n, w)),
        2 => any::<usize>().prop_map(Op::Fail),
        2 => any::<usize>().prop_map(Op::Abandon),
        1 => Just(Op::Clear),
        1 => any::<u8>().prop_map(Op::Retain),
        1 => Just(Op::Iterate),
        6 => (owner(), block(), weight()).prop_map(|(o, b, w)| Op::SetWeight(o, b, w)),
        6 => (owner(), block(), weight(), attributes())
            .prop_map(|(o, b, w, a)| Op::Modify(o, b, w, a)),
        3 => (owner(), block()).prop_map(|(o, b)| Op::Peek(o, b)),
        4 => (owner(), block(), any::<bool>()).prop_map(|(o, b, yes)| Op::RemoveIf(o, b, yes)),
        2 => (20..200u64).prop_map(Op::Resize),
        1 => (owner(), 0..3u8).prop_map(|(o, m)| Op::SetCaching(o, m)),
        1 => owner().prop_map(Op::Reopen),
        2 => tune(),
        1 => Just(Op::Trim),
        8 => Just(Op::Audit),
    ]
}

#[derive(Debug)]
struct Value {
    key: BlockKey,
    version: u64,
    weight: AtomicU64,
    _counted: crate::support::Counted,
}

struct Load {
    guard: LoadGuard<BlockKey, Value>,
    waiters: Vec<InFlight<BlockKey, Value>>,
    /// The key has changed since the load began.
    outdated: bool,
}

struct ReferenceModel {
    cache: Cache<BlockKey, Value>,
    live: Live,
    version: u64,
    last: HashMap<BlockKey, u64>,
    pins: Vec<(OwnedRef<BlockKey, Value>, BlockKey, u64)>,
    loads: Vec<Load>,
    owners: [(OwnerId, OwnerCaching); 4],
    capacity: u64,
}

impl ReferenceModel {
    fn new(sublists: &str) -> Self {
        let cache = Cache::builder()
            .capacity(100)
            .weigher(|_, v: &Value| v.weight.load(Ordering::Relaxed))
            .reclaim(Reclaim::Inline)
            .seed(1)
            .tunable("sublists", sublists)
            .build()
            .unwrap();
        let open = |_| (cache.open_owner(OwnerCaching::All).unwrap().into_id(), OwnerCaching::All);
        let mut owners = std::array::from_fn(open);
        owners[0].0 = OwnerId::NONE;
        Self {
            live: Live::default(),
            version: 0,
            last: HashMap::new(),
            pins: Vec::new(),
            loads: Vec::new(),
            owners,
            capacity: 100,
            cache,
        }
    }

    fn key(&self, owner: u8, block: u8) -> BlockKey {
        BlockKey { owner: self.owners[owner as usize].0.get(), block }
    }

    fn value(&mut self, key: BlockKey, weight: u64) -> Value {
        self.version += 1;
        let weight = AtomicU64::new(weight);
        Value { key, version: self.version, weight, _counted: self.live.value(self.version) }
    }

    fn allows(&self, owner: u8, class: Class) -> bool {
        match self.owners[owner as usize].1 {
            OwnerCaching::All => true,
            OwnerCaching::Metadata => class == Class::Metadata,
            OwnerCaching::None => false,
        }
    }

    /// Whether all blocks could be evicted.
    fn is_loose(&self) -> bool {
        self.pins.is_empty() && self.loads.is_empty()
    }

    fn check_found(&self, key: BlockKey, found: &Value) {
        assert_eq!(found.key, key, "another key's value");
        assert_eq!(Some(&found.version), self.last.get(&key), "not the last value of {key:?}");
    }

    /// Loads of these keys that are in flight will not be cached.
    fn outdate(&mut self, wanted: impl Fn(&BlockKey) -> bool) {
        self.last.retain(|key, _| !wanted(key));
        for load in self.loads.iter_mut().filter(|l| wanted(l.guard.key())) {
            load.outdated = true;
        }
    }

    fn insert(&mut self, owner: u8, block: u8, weight: u64, attributes: Attributes) {
        let key = self.key(owner, block);
        let value = self.value(key, weight);
        let version = value.version;
        let here = self.cache.contains(&key);
        self.outdate(|k| *k == key);
        match self.cache.insert_with(key, value, attributes) {
            Ok(()) => {
                assert!(weight <= self.capacity && self.allows(owner, attributes.class));
                self.last.insert(key, version);
                assert!(self.cache.contains(&key), "it has just been inserted");
            }
            Err(refused) => {
                assert_eq!(refused.value.version, version);
                match refused.reason {
                    Refusal::ByOwner => assert!(!self.allows(owner, attributes.class)),
                    Refusal::TooHeavy { weight: its, most } => {
                        assert!(its == weight && weight > most && most <= self.capacity);
                    }
                    Refusal::NoCapacity => assert!(!self.is_loose(), "all could be evicted"),
                    other => panic!("{other}"),
                }
                assert!(here || !refused.removed); // it may have been evicted for the new one
                assert!(!self.cache.contains(&key), "an older value than the refused one");
            }
        }
    }

    fn get_or_load(&mut self, owner: u8, block: u8, weight: u64, ok: bool, attributes: Attributes) {
        let key = self.key(owner, block);
        if self.loads.iter().any(|l| !l.outdated && *l.guard.key() == key) {
            return; // it would wait for this very thread
        }
        let value = self.value(key, weight);
        let version = value.version;
        let mut loaded = false;
        let declared = if version.is_multiple_of(3) { 1 } else { weight };
        let outcome = self.cache.get_or_load_weighed(key, declared, attributes, || {
            loaded = true;
            if ok { Ok(value) } else { Err("no luck") }
        });
        let here = self.cache.contains(&key);
        match outcome {
            Ok(found) if loaded => {
                assert!(ok && found.version == version && found.key == key);
                drop(found);
                self.last.remove(&key);
                if here {
                    assert!(weight <= self.capacity && self.allows(owner, attributes.class));
                    self.last.insert(key, version);
                } else if self.is_loose() && self.allows(owner, attributes.class) {
                    assert!(weight.max(declared) > self.capacity, "refused for no reason");
                }
            }
            Ok(found) => {
                self.check_found(key, &found);
                assert!(here);
            }
            Err(LoadError::Failed(_)) => {
                assert!(loaded && !ok && !here);
                self.last.remove(&key);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn begin(&mut self, owner: u8, block: u8, weight: u64, attributes: Attributes) {
        let key = self.key(owner, block);
        let begun = self.cache.begin(key, weight, attributes).unwrap();
        match begun {
            Begin::Hit(found) => self.check_found(key, &found),
            Begin::InFlight(in_flight) => {
                let load = self.loads.iter_mut().find(|l| !l.outdated && *l.guard.key() == key);
                load.expect("it is being loaded").waiters.push(in_flight);
            }
            Begin::Vacant(guard) => {
                assert_eq!(*guard.key(), key);
                assert!(!self.loads.iter().any(|l| !l.outdated && *l.guard.key() == key));
                self.last.remove(&key);
                self.loads.push(Load { guard, waiters: Vec::new(), outdated: false });
            }
        }
    }

    fn publish(&mut self, n: usize, weight: u64) {
        if self.loads.is_empty() {
            return;
        }
        let load = self.loads.swap_remove(n % self.loads.len());
        let key = *load.guard.key();
        let refusal = load.guard.refusal();
        let value = self.value(key, weight);
        let version = value.version;
        let block = load.guard.publish(value);
        assert_eq!(block.version, version);
        for waiter in load.waiters {
            assert_eq!(waiter.wait().unwrap().version, version);
        }
        drop(block);
        let found = self.cache.get(&key).map(|v| v.version);
        if load.outdated {
            assert_ne!(found, Some(version), "outdated before it came");
        } else {
            assert!(found.is_none() || refusal.is_none() && found == Some(version));
            if found.is_some() {
                self.last.insert(key, version);
            }
        }
    }

    fn end(&mut self, n: usize, fail: bool) {
        if self.loads.is_empty() {
            return;
        }
        let load = self.loads.swap_remove(n % self.loads.len());
        if fail {
            load.guard.fail(LoadError::failed("no luck"));
        } else {
            drop(load.guard);
        }
        for waiter in load.waiters {
            match waiter.wait() {
                Err(LoadError::Failed(_)) => assert!(fail),
                Err(LoadError::Abandoned) => assert!(!fail),
                other => panic!("{other:?}"),
            }
        }
    }

    fn audit(&mut self) {
        self.pins.clear();
        while !self.loads.is_empty() {
            self.end(0, self.version.is_multiple_of(2));
        }
        self.cache.audit();
        let stats = self.cache.stats();
        assert_eq!(stats.capacity, self.capacity);
        assert_eq!(self.live.count() as u64, stats.resident_blocks(), "values that no block holds");
        let found = self.last.keys().filter(|key| self.cache.contains(key)).count();
        assert_eq!(found as u64, stats.resident_blocks(), "blocks that were never inserted");
        let bytes = self
            .last
            .keys()
            .filter_map(|key| self.cache.get(key))
            .map(|v| v.weight.load(Ordering::Relaxed).max(1));
        assert_eq!(bytes.sum::<u64>(), stats.resident_bytes());
        let still_resident = stats.counter("inserts") - stats.counter("left");
        assert_eq!(still_resident, stats.resident_blocks(), "{stats}");
    }

    fn reopen(&mut self, owner: u8) {
        if owner == 0 {
            assert!(!self.cache.close_owner(OwnerId::NONE));
            return;
        }
        // Closing waits for pins, and this is the only thread.
        self.audit();
        let id = self.owners[owner as usize].0;
        self.outdate(|key| key.owner() == id);
        assert!(self.cache.close_owner(id));
        assert!(!self.cache.close_owner(id), "it is closed");
        let key = self.key(owner, 1);
        let value = self.value(key, 1);
        assert_eq!(self.cache.insert(key, value).unwrap_err().reason, Refusal::Closed);
        assert!(matches!(self.cache.begin(key, 1, Attributes::DATA), Err(LoadError::Closed)));
        let fresh = self.cache.open_owner(OwnerCaching::All).unwrap().into_id();
        self.owners[owner as usize] = (fresh, OwnerCaching::All);
    }

    fn set_weight(&mut self, owner: u8, block: u8, weight: u64) {
        let key = self.key(owner, block);
        let here = self.cache.contains(&key);
        match self.cache.set_weight(&key, weight) {
            Ok(done) => {
                assert!(done == here && (!done || weight <= self.capacity));
                let found = self.cache.peek(&key);
                found.iter().for_each(|found| found.weight.store(weight, Ordering::Relaxed));
                assert!(found.is_some() || !here, "it is pinned while others are evicted");
            }
            Err(Refusal::TooHeavy { .. }) => assert!(here && weight > self.capacity),
            Err(Refusal::NoCapacity) => assert!(here && self.cache.contains(&key)),
            Err(other) => panic!("{other}"),
        }
    }

    fn modify(&mut self, owner: u8, block: u8, weight: u64, attributes: Attributes) {
        let key = self.key(owner, block);
        let (here, value) = (self.cache.contains(&key), self.value(key, weight));
        let (version, mut value) = (value.version, Some(value));
        let (cache, last) = (&self.cache, &self.last);
        let outcome = cache.entry(key).attributes(attributes).and_modify(|old| {
            assert_eq!(Some(&old.version), last.get(&key));
            value.take().expect("no other thread changes it")
        });
        assert_eq!(value.is_none(), here, "asked if it was cached, and only then");
        match outcome.map(drop) {
            Ok(()) if here => {
                assert!(self.cache.contains(&key) && weight <= self.capacity);
                self.last.insert(key, version);
            }
            Ok(()) => {}
            Err(refused) => {
                assert!(here && refused.removed && refused.value.version == version);
                assert!(!self.cache.contains(&key));
                self.last.remove(&key);
            }
        }
    }

    /// The value of a removed block can be taken out unless it is pinned; if so, it stays as it is.
    fn note_removed(&mut self, key: BlockKey, removed: Option<OwnedRef<BlockKey, Value>>) {
        assert!(!self.cache.contains(&key));
        let Some(removed) = removed else { return };
        self.check_found(key, &removed);
        let version = removed.version;
        let pinned = self.pins.iter().any(|(_, _, pinned)| *pinned == version);
        if version.is_multiple_of(3) {
            self.pins.push((removed, key, version));
            return;
        }
        match removed.try_into_value() {
            Ok(value) => assert!(!pinned && (value.key, value.version) == (key, version)),
            Err(removed) => {
                assert!(pinned);
                self.check_found(key, &removed);
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm per operation")]
    fn apply(&mut self, op: Op) {
        match op {
            Op::Insert(owner, block, weight, a) => self.insert(owner, block, weight, a),
            Op::Get(owner, block) => {
                let key = self.key(owner, block);
                self.cache.get(&key).inspect(|found| self.check_found(key, found));
            }
            Op::Pin(owner, block) => {
                let key = self.key(owner, block);
                let found = self.cache.get_owned(&key);
                self.pins.extend(found.map(|f| {
                    let version = f.version;
                    (f, key, version)
                }));
            }
            Op::Unpin(n) if !self.pins.is_empty() => {
                let (block, key, version) = self.pins.swap_remove(n % self.pins.len());
                assert_eq!((block.key, block.version), (key, version), "changed under a pin");
            }
            Op::Unpin(_) => {}
            Op::GetMany(owner, block, count) => {
                // Every third one comes twice.
                let number = |n: u8| block.wrapping_add(n - n / 3) % 60;
                let keys: Vec<_> = (0..count).map(|n| self.key(owner, number(n))).collect();
                let there: Vec<_> = keys.iter().map(|key| self.cache.contains(key)).collect();
                let mut found = Vec::new();
                self.cache.get_many(&keys, &mut found);
                let some: Vec<_> = found.iter().map(Option::is_some).collect();
                assert_eq!(some, there);
                for (key, block) in keys.iter().zip(&found) {
                    block.iter().for_each(|block| self.check_found(*key, block));
                }
            }
            Op::Contains(owner, block) => {
                let key = self.key(owner, block);
                assert!(!self.cache.contains(&key) || self.last.contains_key(&key));
            }
            Op::Remove(owner, block) => {
                let key = self.key(owner, block);
                let here = self.cache.contains(&key);
                let removed = self.cache.remove(&key);
                assert_eq!(removed.is_some(), here);
                self.note_removed(key, removed);
                self.outdate(|k| *k == key);
            }
            Op::RemoveIf(owner, block, yes) => {
                let key = self.key(owner, block);
                let here = self.cache.contains(&key);
                let removed = self.cache.remove_if(&key, |found| {
                    self.check_found(key, found);
                    yes
                });
                assert_eq!(removed.is_some(), here && yes);
                if removed.is_some() {
                    self.note_removed(key, removed);
                    self.last.remove(&key);
                } else {
                    assert_eq!(self.cache.contains(&key), here);
                }
            }
            Op::Peek(owner, block) => {
                let key = self.key(owner, block);
                let counts = |cache: &Cache<BlockKey, Value>| {
                    let stats = cache.stats();
                    (stats.hits(), stats.counter("lookups_missed"))
                };
                let before = counts(&self.cache);
                let found = self.cache.peek(&key).inspect(|found| self.check_found(key, found));
                assert_eq!(found.is_some(), self.cache.contains(&key));
                drop(found);
                assert_eq!(counts(&self.cache), before, "a peek counts as a use");
            }
            Op::SetWeight(owner, block, weight) => self.set_weight(owner, block, weight),
            Op::Modify(owner, block, weight, a) => self.modify(owner, block, weight, a),
            Op::Iterate => {
                let mut visited = HashMap::new();
                for block in &self.cache {
                    self.check_found(*block.key(), &block);
                    let other = visited.insert(*block.key(), block.version);
                    assert!(other.is_none(), "{:?} was visited twice", block.key());
                }
                assert_eq!(visited.len(), self.cache.len());
                assert_eq!(self.cache.is_empty(), visited.is_empty());
                assert_eq!(self.cache.len() as u64, self.cache.stats().resident_blocks());
            }
            Op::GetOrLoad(owner, block, weight, ok, a) => {
                self.get_or_load(owner, block, weight, ok, a);
            }
            Op::Begin(owner, block, weight, a) => self.begin(owner, block, weight, a),
            Op::Publish(n, weight) => self.publish(n, weight),
            Op::Fail(n) => self.end(n, true),
            Op::Abandon(n) => self.end(n, false),
            Op::Clear => {
                let here = self.cache.stats().resident_blocks();
                assert_eq!(self.cache.clear(), here);
                self.outdate(|_| true);
                let stats = self.cache.stats();
                assert_eq!((stats.resident_blocks(), stats.ghosts()), (0, 0));
            }
            Op::Retain(n) => {
                let keeps = |version: u64| version % 7 != u64::from(n % 7);
                let goes = |(key, version): &(&BlockKey, &u64)| {
                    !keeps(**version) && self.cache.contains(key)
                };
                let expected = self.last.iter().filter(goes).count() as u64;
                let removed = self.cache.retain(|key, found, _| {
                    self.check_found(*key, found);
                    keeps(found.version)
                });
                assert_eq!(removed, expected);
                // Blocks that are being loaded have no value that it could keep.
                self.loads.iter_mut().for_each(|load| load.outdated = true);
                self.last.retain(|_, version| keeps(*version));
            }
            Op::Resize(bytes) => {
                self.cache.resize(bytes);
                self.capacity = bytes;
            }
            Op::SetCaching(owner, mode) if owner > 0 => {
                let mode =
                    [OwnerCaching::All, OwnerCaching::Metadata, OwnerCaching::None][mode as usize];
                assert!(self.cache.set_owner_caching(self.owners[owner as usize].0, mode));
                self.owners[owner as usize].1 = mode;
            }
            Op::SetCaching(..) => {}
            Op::Reopen(owner) => self.reopen(owner),
            Op::Tune(name, value) => self.cache.set_tunable(name, &value.to_string()).unwrap(),
            Op::Trim => self.cache.trim(),
            Op::Audit => self.audit(),
        }
        if self.is_loose() {
            if self.cache.stats().resident_bytes() > self.capacity {
                // The cache shrank while something was pinned. The next insert would evict.
                self.cache.resize(self.capacity);
            }
            let stats = self.cache.stats();
            assert!(stats.resident_bytes() <= self.capacity, "{stats}");
        }
    }
}

fn play(ops: Vec<Op>, sublists: &str) {
    let mut model = ReferenceModel::new(sublists);
    for op in ops {
        model.apply(op);
    }
    model.audit();
    let live = model.live.clone();
    model.cache.close();
    model.cache.audit();
    assert_eq!(live.count(), 0, "values outlive a closed cache");
    drop(model);
    assert_eq!(live.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if crate::support::full() { 4000 } else { 150 }))]

    #[test]
    fn the_cache_agrees_with_the_reference_model(ops in prop::collection::vec(op(), 1..600)) {
        play(ops, "1");
    }

    #[test]
    fn nor_does_it_with_many_sublists(ops in prop::collection::vec(op(), 1..400)) {
        play(ops, "5");
    }
}
