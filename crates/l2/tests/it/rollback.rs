//! Rollbacks: blocks newer than the user knows are never returned.

use std::sync::Arc;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_l2::{Codec, L2, L2Options};

use crate::support::{Fixture, NumberCodec, Value, arena, memory, options};

const KEYS: u64 = 600;
const SEGMENT: u64 = 128 << 10;
const SEGMENTS_AT: u64 = 64 << 10;
const BYTES: u64 = 8 << 20;

/// The stamp of a key is the key.
struct StampCodec;

impl Codec<u64, Value> for StampCodec {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        NumberCodec.encode_key(key, out);
    }
    fn stamp(&self, key: &u64) -> u64 {
        *key
    }
    fn encoded_len(&self, value: &Value) -> usize {
        NumberCodec.encoded_len(value)
    }
    fn encode(&self, value: &Value, out: &mut [u8]) {
        NumberCodec.encode(value, out);
    }
    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        NumberCodec.decode(key, bytes)
    }
}

fn until(max_stamp: u64) -> L2Options {
    let options = L2Options { immutable_keys: true, max_stamp, ..options() };
    L2Options { segment_bytes: Some(SEGMENT), ..options }
}

/// A device with all keys, written in order.
fn written() -> Arc<dyn Device> {
    let device = memory(BYTES);
    let l2 = L2::create(device.clone(), Arc::new(StampCodec), &until(KEYS)).unwrap();
    let fixture = Fixture::over(l2);
    for batch in 0..KEYS / 50 {
        (batch * 50..(batch + 1) * 50).for_each(|key| fixture.insert(key, 1, 2000));
        fixture.spill();
    }
    fixture.close();
    device
}

fn opened(device: &Arc<dyn Device>, max_stamp: u64) -> Fixture {
    let l2 = L2::open(device.clone(), Arc::new(StampCodec), &until(max_stamp)).unwrap();
    assert!(l2.wait_rebuilt());
    Fixture::over(l2)
}

fn found(fixture: &Fixture) -> usize {
    (0..KEYS).filter(|key| fixture.get(*key).is_some()).count()
}

/// Offset of the newest segment's header, the one with the largest sequence number.
fn newest_header(device: &Arc<dyn Device>) -> u64 {
    let seq_at = |at: &u64| {
        let page = arena().alloc(4096).unwrap();
        let page = device.run(Request::read(*at, page)).into_buffer().unwrap();
        match page.starts_with(b"forelseg") {
            true => u64::from_le_bytes(page[32..40].try_into().unwrap()),
            false => 0,
        }
    };
    let segments = (BYTES - SEGMENTS_AT) / SEGMENT;
    let offsets = (0..segments).map(|segment| SEGMENTS_AT + segment * SEGMENT);
    offsets.max_by_key(seq_at).unwrap()
}

#[test]
fn an_l2_with_stamps_newer_than_its_user_is_emptied() {
    let device = written();
    let fixture = opened(&device, KEYS);
    assert_eq!((found(&fixture), fixture.l2.stats().count("rollbacks")), (KEYS as usize, 0));
    fixture.close();
    let fixture = opened(&device, 100);
    assert_eq!((found(&fixture), fixture.l2.stats().count("rollbacks")), (0, 1));
    fixture.close();
    // Permanently.
    let fixture = opened(&device, KEYS);
    assert_eq!((found(&fixture), fixture.l2.stats().count("rollbacks")), (0, 0));
    fixture.close();
}

#[test]
fn an_l2_that_cannot_be_emptied_serves_nothing_and_is_emptied_by_the_next_open() {
    let written = written();
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&written), 1));
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    let device: Arc<dyn Device> = faulty.clone();
    let l2 = L2::open(device, Arc::new(StampCodec), &until(100)).unwrap();
    assert!(!l2.wait_rebuilt(), "its label cannot be written");
    let fixture = Fixture::over(l2);
    assert_eq!((found(&fixture), fixture.l2.stats().count("rollbacks")), (0, 1));
    fixture.close();
    // The label and the log are as before.
    let fixture = opened(&written, 100);
    assert_eq!((found(&fixture), fixture.l2.stats().count("rollbacks")), (0, 1));
    fixture.close();
}

#[test]
fn an_l2_is_emptied_if_the_header_with_the_newest_stamp_is_lost() {
    let device = written();
    let mut zeros = arena().alloc(4096).unwrap();
    zeros.zero();
    device.run(Request::write(newest_header(&device), zeros)).result.unwrap();
    // All remaining headers are older than the user's stamp. The blocks behind them may be newer.
    let fixture = opened(&device, KEYS - 60);
    assert_eq!((found(&fixture), fixture.l2.stats().count("rollbacks")), (0, 1));
    fixture.close();
}
