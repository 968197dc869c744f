//! Damaged labels: checks name them, scrubs rewrite them.

use std::ops::ControlFlow;

use forebay_io::Request;
use forebay_pool::LeafState;

use crate::common::{arena, check};
use crate::mirrors::{SIZE, Sides, fill, import, overwrite, scribble, scrub, states, verify};

/// What a check says of labels.
fn bad_labels(pool: &forebay_pool::Pool) -> Vec<String> {
    let report = pool.check(&mut |_| ControlFlow::Continue(())).expect("it runs");
    assert_eq!(report.labels.is_empty(), report.is_clean(), "{report}");
    report.labels
}

#[test]
fn a_scrub_rewrites_the_labels_of_a_side_that_was_overwritten() {
    let sides = Sides::new();
    let pool = sides.create();
    let number = fill(&pool, 100);
    overwrite(&pool, number, 100, 1);
    assert_eq!(bad_labels(&pool), [""; 0]);
    scribble(&sides.media[1], 0, SIZE);
    let report = scrub(&pool);
    assert!(report.healed > 0 && report.lost_count == 0, "{report:?}");
    assert_eq!(report.labels_healed, 2, "{report:?}");
    assert_eq!(scrub(&pool).labels_healed, 0, "they are sound");
    check(&pool);
    // As after a kill: nothing writes labels on the way out.
    pool.abandon();
    let pool = import(&[&sides.media[0], &sides.media[1]]).expect("both");
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    verify(&pool, number, 100, 1);
    pool.abandon();
    let pool = import(&[&sides.media[1]]).expect("a whole side");
    verify(&pool, number, 100, 1);
    pool.export().expect("exported");
}

#[test]
fn a_check_names_the_labels_that_are_damaged() {
    let sides = Sides::new();
    let pool = sides.create();
    fill(&pool, 10);
    let mut zeros = arena().alloc(4096).expect("memory");
    zeros.fill(0);
    sides.media[1].run(Request::write(0, zeros)).result.expect("written");
    let bad = bad_labels(&pool);
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0].contains("the front label is overwritten"), "{bad:?}");
    assert_eq!(scrub(&pool).labels_healed, 1);
    assert_eq!(bad_labels(&pool), [""; 0]);
    pool.export().expect("exported");
}
