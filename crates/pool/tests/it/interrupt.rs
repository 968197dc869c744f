//! Interrupted checks and scrubs.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_io::Op;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_pool::{CheckProgress, Pool};

use crate::common::{MIB, cache, check, create, dataset, import, memory};

/// Number of records: several times the blocks between two calls of `progress`.
const RECORDS: usize = 1000;
const RECORD: usize = 8192;

fn write(pool: &Pool) -> u64 {
    let data = dataset(pool);
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    object.write(&tx, 0, &vec![1; RECORDS * RECORD]).expect("space");
    number
}

/// Interrupts at the third call, and collects the progress.
fn third(seen: &mut Vec<CheckProgress>, progress: &CheckProgress) -> ControlFlow<()> {
    seen.push(*progress);
    if seen.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

#[test]
fn an_interrupted_check_reports_it_and_changes_nothing() {
    let pool = create(&memory(64 * MIB), &cache(32 * MIB));
    write(&pool);
    let mut seen = Vec::new();
    let report = pool.check(&mut |progress| third(&mut seen, progress)).expect("it runs");
    assert_eq!(seen.len(), 3);
    assert!(seen.windows(2).all(|pair| pair[0].blocks < pair[1].blocks));
    assert!(!report.complete && !report.is_clean());
    assert!(!report.has_problems(), "blocks not visited do not count as leaked: {report}");
    assert_eq!(report.blocks, seen[2].blocks);
    assert!(report.blocks < RECORDS as u64);
    assert!(report.to_string().contains("interrupted"), "{report}");
    check(&pool);
}

#[test]
fn an_interrupted_scrub_keeps_its_repairs() {
    let device = memory(64 * MIB);
    let pool = create(&device, &cache(32 * MIB));
    let number = write(&pool);
    pool.export().expect("exported");

    // One copy of the first block read is bad.
    let faulty = Arc::new(FaultDevice::new(device, 1));
    let dynamic: Arc<dyn forebay_io::Device> = faulty.clone();
    let pool = import(&dynamic, &cache(32 * MIB));
    pool.sync().expect("a txg");
    faulty.add(Rule::new(Fault::Rot { bits: 64 }).on(Op::Read).times(1));
    let mut seen = Vec::new();
    let report = pool.scrub(&mut |progress| third(&mut seen, progress)).expect("it runs");
    assert!(!report.complete);
    assert_eq!((report.healed, report.lost_count), (1, 0), "{:?}", report.lost);
    let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs");
    assert!(report.complete);
    assert_eq!((report.healed, report.lost_count), (1, 0), "it went on: {:?}", report.lost);
    let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs");
    assert_eq!((report.healed, report.lost_count), (0, 0), "{:?}", report.lost);
    let data = pool.dataset("data").expect("the dataset");
    assert_eq!(data.object(number).expect("it").size(), (RECORDS * RECORD) as u64);
    drop(data);
    check(&pool);
}
