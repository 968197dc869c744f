//! Mirrors that have just joined a pool, and a side of them that fails or is torn before it has an
//! uberblock: it was used by nobody else, and comes back.

use std::sync::Arc;

use forebay_io::fault::{Fault, Rule};
use forebay_io::{Device, Op, Request};
use forebay_pool::format::label::{LABEL_BYTES, RING_OFFSET, RING_SLOTS, SLOT_BYTES};
use forebay_pool::{LeafState, NewVdev, Pool};

use crate::common::{MIB, arena, cache, check, create, memory};
use crate::mirrors::{SIZE, Sides, fill, import, overwrite, states, verify};

const EIO: i32 = 5;

/// A pool on a plain device whose labels know a durable group.
fn plain() -> (Arc<dyn Device>, Pool, u64) {
    let first = memory(SIZE);
    let pool = create(&first, &cache(32 * MIB));
    let number = fill(&pool, 100);
    pool.export().expect("exported");
    let pool = import(&[&first]).expect("the pool");
    (first, pool, number)
}

fn add(pool: &Pool, sides: &Sides) {
    let mirror = NewVdev::Mirror(sides.devices().into_iter().map(Into::into).collect());
    pool.add_vdev(mirror, false, None).expect("one side is whole");
}

/// All devices are there again: the pool has everything on each side.
fn comes_back(pool: &Pool, number: u64, salt: u8) {
    let side = format!("{:x}", pool.devices()[2].guid);
    pool.online_device(&side).expect("it was used by nobody else");
    let status = pool.wait_resilver();
    assert_eq!(states(pool), [LeafState::Online; 3], "{status:?}");
    verify(pool, number, 100, salt);
    check(pool);
}

#[test]
fn a_side_of_a_new_mirror_that_fails_at_once_comes_back() {
    for imports in [false, true] {
        let (first, pool, number) = plain();
        let sides = Sides::new();
        // Those of its first labels work.
        sides.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Flush).after(2));
        add(&pool, &sides);
        let faulted = [LeafState::Online, LeafState::Online, LeafState::Faulted];
        assert_eq!(states(&pool), faulted);
        overwrite(&pool, number, 100, 1);
        sides.faults[1].clear();
        let pool = match imports {
            false => pool,
            true => {
                pool.export().expect("exported");
                let [a, b] = &sides.media;
                import(&[&first, a, b]).expect("no two sides were used apart")
            }
        };
        comes_back(&pool, number, 1);
        pool.export().expect("exported");
    }
}

#[test]
fn a_side_of_a_new_mirror_whose_uberblock_is_torn_comes_back() {
    let (first, pool, number) = plain();
    let sides = Sides::new();
    add(&pool, &sides);
    pool.abandon();
    let ring_bytes = RING_SLOTS * SLOT_BYTES as u64;
    for label in [0, SIZE - LABEL_BYTES] {
        let mut zeros = arena().alloc(ring_bytes as usize).expect("memory");
        zeros.fill(0);
        sides.media[1].run(Request::write(label + RING_OFFSET, zeros)).result.expect("written");
        // At the import, it takes no label.
        let head = label..label + 4096;
        sides.faults[1].add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(head));
    }
    let devices = sides.devices();
    let pool = import(&[&first, &devices[0], &devices[1]]).expect("one side is whole");
    overwrite(&pool, number, 100, 1);
    assert_eq!(states(&pool), [LeafState::Online, LeafState::Online, LeafState::Faulted]);
    pool.export().expect("exported");
    sides.faults[1].clear();
    let pool = import(&[&first, &devices[0], &devices[1]]).expect("no two sides were used apart");
    comes_back(&pool, number, 1);
    pool.export().expect("exported");
}
