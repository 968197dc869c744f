//! Seeking against a naive model with one flag per block.

use forebay_base::rng::SmallRng;

use super::super::pending::DirtySlot;
use super::*;
use crate::format::BlockPtrPhys;

const BLOCKS: u64 = 48;

fn slot(rng: &mut SmallRng) -> (DirtySlot, bool) {
    // A null pointer stands for a written record of zeros. Any other pointer stands for data.
    let data = rng.below(3) > 0;
    let birth_txg = u64::from(data).into();
    let mut ptr = BlockPtrPhys { birth_txg, ..BlockPtrPhys::HOLE };
    if data {
        ptr.copies[0] = crate::format::DvaPhys::new(crate::format::Dva { device: 0, offset: 512 });
    }
    (DirtySlot::Written(ptr), data)
}

/// Random changes of a txg, and their effect on each block.
fn changes(rng: &mut SmallRng) -> (Pending, Vec<Option<bool>>) {
    let mut pending = Pending { txg: 1, ..Pending::default() };
    let mut model = vec![None; BLOCKS as usize];
    for _ in 0..rng.below(8) {
        let start = rng.below(BLOCKS);
        let end = (start + 1 + rng.below(12)).min(BLOCKS);
        pending.free(start..end, 1);
        model[start as usize..end as usize].fill(Some(false));
        for _ in 0..rng.below(6) {
            let block = rng.below(BLOCKS);
            let (slot, data) = slot(rng);
            pending.blocks.insert(block, slot);
            model[block as usize] = Some(data);
        }
    }
    (pending, model)
}

#[test]
fn changes_of_two_txgs_match_the_model() {
    let mut rng = SmallRng::from_seed(0x5eec);
    for round in 0..2000 {
        let (newer, newer_model) = changes(&mut rng);
        let (older, older_model) = changes(&mut rng);
        let from = rng.below(BLOCKS);
        let changes = [TxgChanges::of(&newer, from), TxgChanges::of(&older, from)];
        let snapshot = ObjectSnapshot { tree: Tree::EMPTY, size: 0, changes };
        for block in from..BLOCKS {
            let model = |at: u64| newer_model[at as usize].or(older_model[at as usize]);
            let (says, end) = snapshot.changed(block);
            assert_eq!(says, model(block), "round {round}, block {block}");
            assert!(end > block);
            for same in block..end.min(BLOCKS) {
                assert_eq!(model(same), says, "round {round}, block {same} as {block}");
            }
        }
    }
}
