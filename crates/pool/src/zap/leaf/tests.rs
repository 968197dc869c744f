use std::collections::BTreeMap;

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::{Builder, Change, Leaf, LeafMut, Record, merged, pack};
use crate::format::{ZAP_LEAF_BYTES, ZAP_LEAF_STEP};
use crate::zap::entry::{HashedName, Value, first_position, prefix_mask};

type Model = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

fn empty(depth: u8, prefix: u32) -> Vec<u8> {
    let mut bytes = vec![0; ZAP_LEAF_BYTES];
    Builder::new(&mut bytes, depth, prefix, 0).expect("no entries fit").finish();
    bytes
}

fn some_bytes(rng: &mut SmallRng, max: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1 + rng.below(max) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// One of a few names, which share a few hashes.
fn some_name(rng: &mut SmallRng, prefix: u32, depth: u8, names: u64) -> (u32, Vec<u8>) {
    let number = rng.below(names);
    let mut named = SmallRng::from_seed(number);
    let hash = (named.next_u64() as u32 & !0xf0f & !prefix_mask(depth)) | prefix;
    let mut name = some_bytes(&mut named, 60);
    name.extend_from_slice(&number.to_le_bytes());
    (hash, name)
}

/// Few homes for each hash, some of them the last one.
fn at(hash: u32, name: &[u8]) -> HashedName<'_> {
    let collision = u64::from(0xfffeu16.wrapping_add(u16::from(name[0] & 3)));
    HashedName { name, home: first_position(hash) | collision }
}

fn check(bytes: &[u8], model: &Model) {
    let leaf = Leaf::read(bytes).expect("the header is right");
    leaf.validate().expect("all of it is right");
    assert_eq!(leaf.len(), model.len());
    let mut hashes = Vec::new();
    for entry in leaf.entries_from(0) {
        let (position, record) = entry.expect("a valid leaf");
        let hash = (position >> 16) as u32;
        assert_eq!(model[&(hash, record.name.to_vec())], record.value);
        hashes.push(hash);
    }
    assert!(hashes.iter().eq(model.keys().map(|(hash, _)| hash)), "hashes are in order");
    for ((hash, name), value) in model {
        let found = leaf.find(*hash, name).expect("a valid leaf").expect("it is there");
        assert_eq!(found.value, value);
    }
}

/// One change of the leaf and the model.
fn step(rng: &mut SmallRng, bytes: &mut [u8], model: &mut Model, key: (u32, Vec<u8>)) {
    let mut leaf = LeafMut::open(bytes).expect("a valid leaf");
    let value = some_bytes(rng, 32);
    let old = model.get(&key).map(|value| Value::new(value).expect("it has a length"));
    let (hash, name) = (key.0, key.1.clone());
    match rng.below(4) {
        0 | 1 => match leaf.insert(at(hash, &name), &value).expect("a valid leaf") {
            Change::Done(None) => assert!(model.insert(key, value).is_none()),
            Change::Exists(found) => assert_eq!(Some(found), old),
            other => assert!(other == Change::Full && old.is_none()),
        },
        2 => match leaf.replace(hash, &name, &value).expect("a valid leaf") {
            Change::Done(was) => {
                assert_eq!(was, old);
                model.insert(key, value);
            }
            Change::Missing => assert!(old.is_none()),
            other => assert!(other == Change::Full && old.is_some()),
        },
        _ => match leaf.remove(hash, &name).expect("a valid leaf") {
            Change::Done(was) => {
                assert_eq!(was, old);
                model.remove(&key);
            }
            other => assert!(other == Change::Missing && old.is_none()),
        },
    }
}

/// Packs the leaf and truncates it to its stored length.
fn store(bytes: &mut Vec<u8>) {
    let len = pack(bytes);
    assert!(len.is_multiple_of(ZAP_LEAF_STEP));
    let leaf = Leaf::read(bytes).expect("a valid leaf");
    assert_eq!(len, leaf.packed_bytes().next_multiple_of(ZAP_LEAF_STEP));
    assert!(leaf.used_bytes() <= len);
    bytes.truncate(len);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn matches_a_map_model(seed in any::<u64>(), names in 1..2000u64, depth in 0..=24u8, rounds in 0..3000u32) {
        let mut rng = SmallRng::from_seed(seed);
        let prefix = rng.next_u64() as u32 & prefix_mask(depth);
        let (mut bytes, mut model) = (empty(depth, prefix), Model::new());
        for _ in 0..rounds {
            let key = some_name(&mut rng, prefix, depth, names);
            step(&mut rng, &mut bytes, &mut model, key);
            if rng.below(100) == 0 {
                store(&mut bytes);
                check(&bytes, &model);
                bytes.resize(ZAP_LEAF_BYTES, 0);
            }
        }
        check(&bytes, &model);
    }

    #[test]
    fn splits_and_merges(seed in any::<u64>(), names in 1..2000u64, depth in 0..24u8) {
        let mut rng = SmallRng::from_seed(seed);
        let prefix = rng.next_u64() as u32 & prefix_mask(depth);
        let (mut bytes, mut model) = (empty(depth, prefix), Model::new());
        for _ in 0..1000 {
            let key = some_name(&mut rng, prefix, depth, names);
            step(&mut rng, &mut bytes, &mut model, key);
        }
        let (mut low, mut high) = (vec![0; ZAP_LEAF_BYTES], vec![0; ZAP_LEAF_BYTES]);
        let leaf = LeafMut::open(&mut bytes).expect("a valid leaf");
        leaf.halves(&mut low, &mut high).expect("a valid leaf");
        let middle = prefix | 1 << (31 - depth);
        let mut low_model = model.clone();
        let high_model = low_model.split_off(&(middle, Vec::new()));
        check(&low, &low_model);
        check(&high, &high_model);
        store(&mut high);
        let mut both = vec![0; ZAP_LEAF_BYTES];
        let (low, high) = (Leaf::read(&low).expect("valid"), Leaf::read(&high).expect("valid"));
        merged(&low, &high, &mut both).expect("they fitted before");
        check(&both, &model);
        prop_assert_eq!(Leaf::read(&both).expect("valid").depth(), depth);
        prop_assert!(merged(&high, &low, &mut both).is_err());
    }

    #[test]
    fn random_bytes_never_panic(seed in any::<u64>(), len in 0..=ZAP_LEAF_BYTES) {
        let mut rng = SmallRng::from_seed(seed);
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        let front = empty(0, 0);
        bytes[..len.min(6)].copy_from_slice(&front[..len.min(6)]);
        if len >= 24 {
            bytes[4..10].fill(0);
            bytes[9] = 1 + rng.below(2) as u8;
        }
        use_all(&mut rng, &bytes);
    }

    #[test]
    fn mutated_leaves_never_panic(seed in any::<u64>(), packed in any::<bool>(), flips in 1..20u32) {
        let mut rng = SmallRng::from_seed(seed);
        let (mut bytes, mut model) = (empty(0, 0), Model::new());
        for _ in 0..rng.below(1000) {
            let key = some_name(&mut rng, 0, 0, 300);
            step(&mut rng, &mut bytes, &mut model, key);
        }
        if packed {
            store(&mut bytes);
        }
        for _ in 0..20 {
            let mut bytes = bytes.clone();
            for _ in 0..flips {
                // Half of the flips hit the header.
                let among = if rng.below(2) == 0 { 24 } else { bytes.len() as u64 };
                bytes[rng.below(among) as usize] ^= 1 << rng.below(8);
            }
            use_all(&mut rng, &bytes);
        }
    }
}

/// Calls all functions. Only panics and endless loops are failures.
fn use_all(rng: &mut SmallRng, bytes: &[u8]) {
    let (hash, name) = some_name(rng, 0, 0, 300);
    if let Ok(leaf) = Leaf::read(bytes) {
        let _ = leaf.find(hash, &name);
        let _ = leaf.validate();
        let _ = leaf.entries_from(rng.next_u64() >> 16).filter(Result::is_ok).count();
        let _ = (leaf.used_bytes(), leaf.packed_bytes());
        let mut both = vec![0; ZAP_LEAF_BYTES];
        let _ = merged(&leaf, &leaf, &mut both);
    }
    let mut bytes = bytes.to_vec();
    bytes.resize(ZAP_LEAF_BYTES, 0);
    for _ in 0..10 {
        let (hash, name) = some_name(rng, 0, 0, 300);
        let value = some_bytes(rng, 32);
        let Ok(mut leaf) = LeafMut::open(&mut bytes) else {
            break;
        };
        let _ = match rng.below(3) {
            0 => leaf.insert(at(hash, &name), &value),
            1 => leaf.replace(hash, &name, &value),
            _ => leaf.remove(hash, &name),
        };
        let (mut low, mut high) = (vec![0; ZAP_LEAF_BYTES], vec![0; ZAP_LEAF_BYTES]);
        let _ = (leaf.can_split(hash), leaf.halves(&mut low, &mut high));
    }
    assert!(pack(&mut bytes) <= ZAP_LEAF_BYTES);
}

#[test]
fn an_invalid_stored_leaf_is_rejected() {
    let mut bytes = empty(0, 0);
    let mut leaf = LeafMut::open(&mut bytes).expect("a valid leaf");
    for number in 0..10u32 {
        let name = number.to_string();
        let change = leaf.insert(at(number << 20, name.as_bytes()), b"v").expect("a valid leaf");
        assert_eq!(change, Change::Done(None));
    }
    pack(&mut bytes);
    let slots_at = usize::from(Leaf::read(&bytes).expect("a valid leaf").head.slots_at.get());
    bytes[slots_at..slots_at + 80].reverse();
    assert!(LeafMut::open(&mut bytes).is_err());
}

#[test]
fn equal_hashes_get_the_first_free_collision_number() {
    let mut bytes = empty(0, 0);
    let mut leaf = LeafMut::open(&mut bytes).expect("a valid leaf");
    let at = |name, collision| HashedName { name, home: first_position(5) | collision };
    for name in [b"a", b"b", b"c"] {
        leaf.insert(at(name, 0xfffe), b"v").expect("a valid leaf");
    }
    leaf.remove(5, b"b").expect("a valid leaf");
    leaf.insert(at(b"d", 0xfffe), b"v").expect("a valid leaf");
    leaf.insert(at(b"e", 7), b"v").expect("a valid leaf");
    let leaf = leaf.leaf().expect("a valid leaf");
    let all: Vec<_> = leaf.entries_from(0).map(|e| e.expect("a valid leaf")).collect();
    let found: Vec<_> = all.iter().map(|(at, record)| (at & 0xffff, record.name)).collect();
    // After the last number comes the first.
    assert_eq!(found, [(0, &b"c"[..]), (7, b"e"), (0xfffe, b"a"), (0xffff, b"d")]);
}

#[test]
fn a_name_is_added_at_its_own_position_only_if_it_is_free() {
    let mut bytes = empty(0, 0);
    let mut leaf = LeafMut::open(&mut bytes).expect("a valid leaf");
    let record = |name| Record { name, value: b"v" };
    for (position, name) in [(9 << 16, b"a"), (9 << 16 | 5, b"b"), (3 << 16 | 1, b"c")] {
        let change = leaf.insert_at(position, record(name)).expect("a valid leaf");
        assert_eq!(change, Change::Done(None));
    }
    assert!(leaf.insert_at(9 << 16 | 5, record(b"d")).is_err(), "the position is taken");
    assert!(leaf.insert_at(9 << 16 | 6, record(b"a")).is_err(), "the name exists");
    let leaf = leaf.leaf().expect("a valid leaf");
    assert_eq!((leaf.count_hashes(0, 8), leaf.count_hashes(9, u32::MAX)), (1, 2));
    assert_eq!((leaf.count_hashes(3, 3), leaf.count_hashes(4, 8)), (1, 0));
    assert!(leaf.has_hash(9) && !leaf.has_hash(8));
    assert!(leaf.has_position(9 << 16 | 5) && !leaf.has_position(9 << 16 | 4));
}
