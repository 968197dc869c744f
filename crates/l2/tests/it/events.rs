//! The events that the L2 logs.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::testing::{events, record_events};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op, Request};
use forebay_l2::{L2Options, RebuildStats};

use crate::support::{Fixture, arena, options};

const DEVICE: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Offset of the first segment.
const SEGMENTS: u64 = 64 << 10;

fn small_segments() -> L2Options {
    L2Options { segment_bytes: Some(SEGMENT), ..options() }
}

/// Opens and closes the L2 of a device. Returns the event at the end of its rebuild.
fn reopen(device: &Arc<dyn Device>, wait: bool) -> (String, RebuildStats) {
    let ended = || events(&["device=\"logged\"", "message=ended L2 rebuild"]);
    let before = ended().len();
    let fixture = Fixture::open(device, &small_segments());
    if wait {
        fixture.l2.wait_rebuilt();
    }
    let l2 = fixture.l2.clone();
    // Joins the thread that logs.
    fixture.close();
    let mut ended = ended().split_off(before);
    assert_eq!(ended.len(), 1, "{ended:?}");
    (ended.remove(0), l2.rebuild())
}

fn assert_ended(event: &str, level: &str, outcome: &str, stats: RebuildStats) {
    let RebuildStats { records, damaged, .. } = stats;
    let expected = format!(
        "{level} message=ended L2 rebuild device=\"logged\" outcome=\"{outcome}\" \
         records={records} damaged={damaged}"
    );
    assert_eq!(event, expected);
}

#[test]
fn the_end_of_a_rebuild_is_logged_with_its_outcome() {
    record_events();
    let options = MemoryOptions { sector_bytes: PAGE as u32, ..MemoryOptions::default() };
    let memory = Arc::new(MemoryDevice::new("logged", DEVICE, &options).unwrap());
    let faults = Arc::new(FaultDevice::new(memory, 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    for batch in 0..50 {
        (0..20).for_each(|n| fixture.insert(20 * batch + n, 1, 1000));
        fixture.spill();
    }
    fixture.close();

    let (event, stats) = reopen(&device, true);
    assert!(stats.done && stats.records == 1000, "{stats:?}");
    assert_ended(&event, "INFO", "complete", stats);

    let slow = faults.add(Rule::new(Fault::Delay(Duration::from_millis(100))).on(Op::Read));
    // Until the close comes before the end of the rebuild.
    let (event, stats) = std::iter::repeat_with(|| reopen(&device, false))
        .find(|(_, stats)| !stats.done)
        .expect("an endless iterator");
    assert_ended(&event, "INFO", "stopped", stats);
    faults.remove(slow);

    // Two segments before the newest are lost.
    let mut zeros = arena().alloc(2 * SEGMENT as usize).unwrap();
    zeros.fill(0);
    device.run(Request::write(SEGMENTS + 3 * SEGMENT, zeros)).result.unwrap();
    let (event, stats) = reopen(&device, true);
    assert!(stats.done && stats.damaged > 0, "{stats:?}");
    assert_ended(&event, "WARN", "damaged", stats);

    // An empty log, and a segment of which it is unknown whether it was used.
    Fixture::create(&device, &small_segments()).close();
    let header = SEGMENTS..SEGMENTS + PAGE;
    faults.add(Rule::new(Fault::Error(5)).on(Op::Read).within(header));
    let (event, stats) = reopen(&device, true);
    assert!(!stats.done, "{stats:?}");
    assert_ended(&event, "WARN", "failed", stats);
}
