//! Filters of leaves.

use forebay_base::rng::SmallRng;
use forebay_base::testing;
use proptest::prelude::*;

use super::super::entry::{home_of, leaf_id, prefix_mask};
use super::super::filter::{self, Answer};
use super::super::leaf::{Builder, LeafMut, Record};
use super::super::{SlotChange, open_filter, rebuild_filter};
use crate::format::{ZAP_FILTER_LEAVES, ZAP_LEAF_BYTES};

const SEED: u64 = 11;

/// A leaf of this depth with names of this seed, their homes, and its number.
fn leaf_of(rng: &mut SmallRng, depth: u8, names: usize) -> (Vec<u8>, Vec<u64>, u64) {
    let prefix = rng.next_u64() as u32 & prefix_mask(depth);
    let mut bytes = vec![0; ZAP_LEAF_BYTES];
    Builder::new(&mut bytes, depth, prefix, 0).expect("no entries fit").finish();
    let mut homes = Vec::new();
    while homes.len() < names {
        let name = rng.next_u64().to_le_bytes();
        let home = home_of(SEED, &name);
        if (home >> 16) as u32 & prefix_mask(depth) != prefix {
            continue;
        }
        let mut leaf = LeafMut::open(&mut bytes).expect("a valid leaf");
        leaf.insert_at(home, Record { name: &name, value: b"12345678" }).expect("it is new");
        homes.push(home);
    }
    (bytes, homes, leaf_id(prefix, depth))
}

/// A block with one filter.
fn block_of(leaf: &[u8], id: u64, txg: u64) -> Vec<u8> {
    let mut block = vec![0; ZAP_LEAF_BYTES];
    open_filter(&mut block, SEED);
    rebuild_filter(&block, txg, |slot| match slot as u64 == id % ZAP_FILTER_LEAVES as u64 {
        true => SlotChange::Leaf(leaf.to_vec().into_boxed_slice()),
        false => SlotChange::Keep,
    })
}

#[test]
fn each_name_is_positive_and_few_others_are() {
    let mut rng = SmallRng::from_seed(testing::seed(5));
    let (mut asked, mut wrong, mut bytes, mut names) = (0u32, 0u32, 0, 0);
    for round in 0..60 {
        let depth = [0u8, 4, 9][round % 3];
        let count = rng.below(560) as usize;
        let (leaf, homes, id) = leaf_of(&mut rng, depth, count);
        let block = block_of(&leaf, id, 7);
        for home in &homes {
            assert_eq!(filter::find(&block, id, 7, *home), Answer::Maybe);
            assert_eq!(filter::find(&block, id, 6, *home), Answer::Maybe, "another version");
        }
        for _ in 0..2000 {
            let prefix = id.reverse_bits() >> 16;
            let home = prefix | rng.next_u64() >> 16 & ((1u64 << (48 - depth)) - 1);
            if !homes.contains(&home) {
                asked += 1;
                wrong += u32::from(filter::find(&block, id, 7, home) == Answer::Maybe);
            }
        }
        if count > 300 {
            // Without the header, which 16 filters share, and the rounding up of the block.
            bytes += (count * 10).div_ceil(8) + 17;
            assert!(block.len() <= (272 + (count * 10).div_ceil(8)).next_multiple_of(512));
            names += count;
        }
    }
    let share = f64::from(wrong) / f64::from(asked);
    assert!(share <= 0.005, "{share} of the names of no leaf are positive");
    assert!(bytes as f64 / (names as f64) < 1.4, "{bytes} bytes for {names} names");
}

#[test]
fn a_displaced_name_is_found_by_its_home_and_keeps_its_position_taken() {
    // A leaf that has two names at one home: the second lies behind it.
    let mut bytes = vec![0; ZAP_LEAF_BYTES];
    Builder::new(&mut bytes, 0, 0, 0).expect("no entries fit").finish();
    let home = home_of(SEED, b"name");
    let mut leaf = LeafMut::open(&mut bytes).expect("a valid leaf");
    leaf.insert_at(home + 1, Record { name: b"name", value: b"v" }).expect("a valid leaf");
    for other in 0..200u64 {
        let position = home_of(SEED, &other.to_le_bytes());
        let record = Record { name: &other.to_le_bytes(), value: b"v" };
        leaf.insert_at(position, record).expect("a valid leaf");
    }
    let block = block_of(&bytes, 0, 3);
    assert_eq!(filter::find(&block, 0, 3, home), Answer::Maybe);
    assert_eq!(filter::find(&block, 0, 3, home + 1), Answer::Maybe);
}

#[test]
fn slots_of_other_leaves_are_kept_until_their_leaf_is_freed() {
    let mut rng = SmallRng::from_seed(testing::seed(6));
    let leaves: Vec<_> = (0..ZAP_FILTER_LEAVES).map(|_| leaf_of(&mut rng, 0, 250)).collect();
    let mut block = vec![0; ZAP_LEAF_BYTES];
    open_filter(&mut block, SEED);
    for (txg, (leaf, ..)) in leaves.iter().enumerate() {
        block = rebuild_filter(&block, txg as u64 + 1, |slot| match slot == txg {
            true => SlotChange::Leaf(leaf.as_slice().to_vec()),
            false => SlotChange::Keep,
        });
        assert!(block.len().is_multiple_of(512));
        block.resize(ZAP_LEAF_BYTES, 0);
        open_filter(&mut block, SEED);
    }
    for (slot, (_, homes, _)) in leaves.iter().enumerate() {
        let txg = slot as u64 + 1;
        assert!(homes.iter().all(|h| filter::find(&block, slot as u64, txg, *h) == Answer::Maybe));
        assert_eq!(filter::find(&block, slot as u64, txg, homes[0] ^ 1 << 40), Answer::Absent(0));
    }
    let dropped = rebuild_filter(&block, 99, |slot| match slot {
        3 => SlotChange::Drop,
        _ => SlotChange::<Vec<u8>>::Keep,
    });
    assert!(dropped.len() < block.len());
    assert_eq!(filter::find(&dropped, 3, 4, leaves[4].1[0]), Answer::Maybe);
    assert!(filter::is_valid(&dropped, 4, 5) && !filter::is_valid(&dropped, 3, 4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hostile_blocks_never_panic(seed in any::<u64>(), flips in 0..40u32, len in 0..ZAP_LEAF_BYTES) {
        let mut rng = SmallRng::from_seed(seed);
        let (leaf, homes, id) = leaf_of(&mut rng, 3, 300);
        let mut block = block_of(&leaf, id, 7);
        for _ in 0..flips {
            let among = if rng.below(2) == 0 { 272 } else { block.len() as u64 };
            block[rng.below(among) as usize] ^= 1 << rng.below(8);
        }
        block.truncate(len);
        for home in homes.iter().take(20) {
            let _ = filter::find(&block, id, 7, *home);
        }
        let _ = filter::is_valid(&block, id, 7);
        let rebuilt = rebuild_filter(&block, 8, |_| SlotChange::<Vec<u8>>::Keep);
        prop_assert!(rebuilt.len() <= ZAP_LEAF_BYTES);
        block.resize(ZAP_LEAF_BYTES, 0);
        open_filter(&mut block, SEED);
        let _ = filter::find(&block, id, 7, homes[0]);
    }
}
