//! Notes of objects against a naive model.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::objects::{CommitLookup, Objects, Touch};

const MAX_BYTES: u64 = 5000;

/// One object as the model has it: bytes written, by txg.
#[derive(Default)]
struct Model {
    written: [BTreeSet<u64>; 2],
    others: [Vec<Touch>; 2],
}

fn any_touch() -> impl Strategy<Value = Touch> {
    prop_oneof![
        6 => (0u64..300, 1u64..40).prop_map(|(offset, len)| Touch::Write { offset, len }),
        1 => (0u64..300).prop_map(|size| Touch::Truncate { size }),
        1 => (0u64..300, 1u64..40).prop_map(|(offset, len)| Touch::Punch { offset, len }),
    ]
}

proptest! {
    /// Whatever is merged, all that was written is in the list, in order with what else happened,
    /// and nothing else.
    #[test]
    fn all_that_was_written_is_taken(
        steps in prop::collection::vec((0u64..3, 10u64..12, any_touch()), 1..60),
        drops in any::<bool>(),
    ) {
        let objects = Objects::new();
        let mut models: [Model; 3] = Default::default();
        let mut serial = 0;
        for (object, txg, touch) in steps {
            objects.note((txg, 1, object), touch, MAX_BYTES, || {
                serial += 1;
                serial
            });
            let model = &mut models[object as usize];
            let slot = (txg & 1) as usize;
            match touch {
                Touch::Write { offset, len } => model.written[slot].extend(offset..offset + len),
                other => model.others[slot].push(other),
            }
        }
        if drops {
            objects.drop_txg(10);
        }
        for (object, model) in models.iter().enumerate() {
            let object = object as u64;
            let CommitLookup::Bytes(bytes) = objects.lookup_changes(1, object) else { panic!("nothing was lost") };
            let taken = objects.take(1, object);
            let mut sum = 0;
            for txg in [10, 11u64] {
                let of_txg = || taken.touched.iter().filter(|touched| touched.txg == txg);
                let slot = (txg & 1) as usize;
                if drops && txg == 10 {
                    prop_assert_eq!(of_txg().count(), 0);
                    continue;
                }
                let mut written = BTreeSet::new();
                let mut others = Vec::new();
                for touched in of_txg() {
                    match touched.touch {
                        Touch::Write { offset, len } => {
                            sum += len;
                            written.extend(offset..offset + len);
                        }
                        other => others.push(other),
                    }
                }
                prop_assert_eq!(&written, &model.written[slot]);
                prop_assert_eq!(&others, &model.others[slot]);
                prop_assert!(of_txg().map(|touched| touched.serial).is_sorted());
            }
            prop_assert_eq!(bytes, sum);
            prop_assert_eq!(objects.lookup_changes(1, object), CommitLookup::Bytes(0));
        }
    }
}

#[test]
fn what_is_too_much_is_lost_until_its_txg_is_durable() {
    let objects = Objects::new();
    let note = |txg, offset, len| {
        objects.note((txg, 1, 1), Touch::Write { offset, len }, MAX_BYTES, || offset);
    };
    note(10, 0, 4000);
    note(11, 0, 10);
    note(10, 9000, 4000);
    note(10, 99_000, 4000);
    assert_eq!(objects.lookup_changes(1, 1), CommitLookup::Lost(10));
    assert_eq!(objects.lookup_changes(1, 2), CommitLookup::Bytes(0));
    let taken = objects.take(1, 1);
    assert_eq!((taken.touched.len(), taken.lost_txg), (1, 10), "who takes the rest learns of it");
    assert_eq!(objects.lookup_changes(1, 1), CommitLookup::Lost(10), "and whoever comes next");
    note(11, 0, 10);
    objects.drop_txg(10);
    assert_eq!(objects.lookup_changes(1, 1), CommitLookup::Bytes(10));
    // Many small ones are too much as well.
    (0..5000).for_each(|n| note(12, n * 10, 1));
    assert_eq!(objects.lookup_changes(1, 1), CommitLookup::Lost(12));
    objects.forget(1, 1);
    assert_eq!(objects.lookup_changes(1, 1), CommitLookup::Bytes(0));
}

#[test]
fn the_newest_attributes_of_each_txg_are_taken_unless_others_know_newer_ones() {
    let objects = Objects::new();
    let taken = || {
        let attributes = objects.take(1, 1).attributes;
        attributes.into_iter().map(|one| (one.txg, one.serial, one.bytes)).collect::<Vec<_>>()
    };
    objects.note_attributes((10, 1, 1), b"old", || 1);
    objects.note_attributes((10, 1, 1), b"", || 2);
    objects.note_attributes((11, 1, 1), b"new", || 3);
    assert_eq!(taken(), [(10, 2, b"".to_vec()), (11, 3, b"new".to_vec())]);
    assert_eq!(taken(), []);
    objects.note_attributes((10, 1, 1), b"old", || 4);
    objects.note_attributes((11, 1, 1), b"new", || 5);
    objects.forget_attributes(1, 1);
    assert_eq!(taken(), []);
}
