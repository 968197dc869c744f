//! Closing a hybrid cache while other threads change it: late changes are refused, and the device
//! stays warm.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use forebay_cache::Refusal;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_l2::{Codec, ErrorKind, Health, HybridBuilder, HybridCache, InsertError, L2Key};

use crate::support::memory;

const KEYS: u64 = 2000;

type Hybrid = HybridCache<u64, Vec<u8>>;

fn open(device: &Arc<dyn Device>) -> Hybrid {
    let builder = HybridCache::builder(device.clone()).capacity(8 << 20);
    builder.l2_tunable("warm_up", "false").build().unwrap()
}

/// A device with a value of each key.
fn filled() -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let cache = open(&device);
    (0..KEYS).for_each(|key| cache.insert(key, vec![key as u8; 500]).unwrap());
    cache.close().unwrap();
    (faults, device)
}

/// After a reopen the device has all unchanged values.
fn assert_warm(device: &Arc<dyn Device>, changed: u64) {
    let cache = open(device);
    assert!(cache.l2().wait_rebuilt());
    let lost = (changed..KEYS).filter(|key| cache.get(key).is_none()).count();
    assert_eq!(lost, 0, "of {} values", KEYS - changed);
    cache.close().unwrap();
}

/// Overwrites key 0 until the insert is refused. Returns an error if it is refused for another
/// reason.
fn change(cache: &Hybrid, changing: &AtomicBool) -> Result<(), String> {
    loop {
        changing.store(true, Ordering::SeqCst);
        match cache.insert(0, vec![1; 500]) {
            Ok(()) => {}
            Err(InsertError::Refused(refused)) => {
                assert_eq!((refused.reason, refused.value), (Refusal::Closed, vec![1; 500]));
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        }
        std::thread::yield_now();
    }
}

#[test]
fn late_changes_are_refused_and_the_device_stays_warm() {
    let (_, device) = filled();
    let cache = open(&device);
    assert!(cache.l2().wait_rebuilt());
    // The cache cannot close while the value is held, so later changes are late.
    let held = cache.get(&1).unwrap();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| cache.close());
        change(&cache, &AtomicBool::new(false)).unwrap();
        for key in [1, KEYS - 1, KEYS] {
            let late = cache.remove(&key).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
            let late = cache.insert(key, vec![2; 500]).unwrap_err();
            assert!(matches!(late, InsertError::Refused(_)), "{late}");
        }
        assert_eq!(cache.flush_to_device().unwrap_err().kind(), ErrorKind::Closed);
        drop(held);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(cache.l2().health(), Health::Closed);
    assert_eq!(cache.remove(&5).unwrap_err().kind(), ErrorKind::Closed);
    assert!(cache.insert(5, vec![2; 500]).is_err());
    cache.close().unwrap();
    drop(cache);
    assert_warm(&device, 1);
}

#[test]
fn close_that_cancels_a_rebuild_keeps_the_device_intact() {
    let (faults, device) = filled();
    faults.add(Rule::new(Fault::Delay(Duration::from_millis(300))).on(Op::Read));
    let cache = open(&device);
    let changing = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| change(&cache, &changing));
        while !changing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // Inserted values may not have been written.
        let _ = cache.close();
        changes.join().unwrap().unwrap();
    });
    let late = cache.remove(&7).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
    assert_eq!(cache.l2().health(), Health::Closed);
    drop(cache);
    faults.clear();
    assert_warm(&device, 1);
}

/// A gate that threads pass once it is open.
#[derive(Default)]
struct Gate {
    /// Whether a thread has arrived, and whether the gate is open.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }

    fn wait_for_arrival(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| !state.0).unwrap());
    }

    fn has_arrival(&self) -> bool {
        self.state.lock().unwrap().0
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// A codec whose encoding passes a gate.
struct GatedCodec(Arc<Gate>);

impl Codec<u64, Vec<u8>> for GatedCodec {
    fn key_bytes(&self) -> usize {
        u64::BYTES
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        L2Key::encode(key, out);
    }
    fn encoded_len(&self, value: &Vec<u8>) -> usize {
        value.len()
    }
    fn encode(&self, value: &Vec<u8>, out: &mut [u8]) {
        self.0.pass();
        out.copy_from_slice(value);
    }
    fn decode(&self, _: &u64, bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

/// The length of the values that pass the gate of the weigher.
const GATED_BYTES: usize = 501;

/// A cache whose writes pass the first gate, and whose weigher passes the second one for values of
/// one length.
fn gated(device: &Arc<dyn Device>, writes: &Arc<Gate>, weighs: &Arc<Gate>) -> Hybrid {
    let weighs = Arc::clone(weighs);
    let weigh = move |_: &u64, value: &Vec<u8>| {
        if value.len() == GATED_BYTES {
            weighs.pass();
        }
        value.len() as u64
    };
    HybridBuilder::new(device.clone(), Arc::new(GatedCodec(Arc::clone(writes))), weigh)
        .capacity(8 << 20)
        .l2_tunable("queue_bytes", "64K")
        .l2_tunable("warm_up", "false")
        .build()
        .unwrap()
}

/// Waits until the closing thread has had every chance to arrive at the gate.
fn give_time_to_arrive(gate: &Gate) {
    (0..2000).take_while(|_| !gate.has_arrival()).for_each(|_| std::thread::yield_now());
}

#[test]
fn an_insert_that_began_before_the_close_is_written() {
    let device = memory(16 << 20);
    let (writes, weighs) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let cache = gated(&device, &writes, &weighs);
    assert!(cache.l2().wait_rebuilt());
    (1..10).for_each(|key| cache.insert(key, vec![key as u8; 500]).unwrap());
    std::thread::scope(|scope| {
        let insert = scope.spawn(|| cache.insert(0, vec![7; GATED_BYTES]));
        weighs.wait_for_arrival();
        let close = scope.spawn(|| cache.close());
        while cache.remove(&KEYS).map_err(|error| error.kind()) != Err(ErrorKind::Closed) {
            std::thread::yield_now();
        }
        // The values must not be written yet.
        give_time_to_arrive(&writes);
        weighs.open();
        insert.join().unwrap().unwrap();
        writes.open();
        close.join().unwrap().unwrap();
    });
    let cache = gated(&device, &writes, &weighs);
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(cache.get(&0).as_deref(), Some(&vec![7; GATED_BYTES]));
    cache.close().unwrap();
}

#[test]
fn a_concurrent_second_close_does_not_end_the_first() {
    let device = memory(16 << 20);
    let (writes, weighs) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let cache = gated(&device, &writes, &weighs);
    assert!(cache.l2().wait_rebuilt());
    (0..KEYS).for_each(|key| cache.insert(key, vec![key as u8; 500]).unwrap());
    let second_began = Gate::default();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| cache.close());
        writes.wait_for_arrival();
        let second = scope.spawn(|| {
            second_began.open();
            cache.close()
        });
        second_began.pass();
        give_time_to_arrive(&weighs);
        writes.open();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    drop(cache);
    let cache = gated(&device, &writes, &weighs);
    assert!(cache.l2().wait_rebuilt());
    let lost = (0..KEYS).filter(|key| cache.get(key).is_none()).count();
    assert_eq!(lost, 0, "of {KEYS} values");
    cache.close().unwrap();
}

#[test]
fn every_close_returns_the_result_of_the_first() {
    let (faults, device) = filled();
    let cache = open(&device);
    assert!(cache.l2().wait_rebuilt());
    cache.insert(KEYS, vec![1; 500]).unwrap();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    let first = cache.close().unwrap_err();
    let second = cache.close().unwrap_err();
    assert_eq!((first.kind(), first.to_string()), (second.kind(), second.to_string()));
}
