//! Readers and those who wait for them.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, thread};
use forebay_io::fault::{Fault, Rule};
use forebay_io::{Op, Priority};

use super::{Fixture, fixture, props};
use crate::format::{BlockPtrPhys, Compression};
use crate::store::counters::StoreCounters;
use crate::store::readers::Readers;
use crate::store::{Allocate, WriteProps};

#[test]
fn synchronize_waits_for_earlier_readers() {
    let readers = Arc::new(Readers::new());
    readers.synchronize();
    let reading = readers.enter();
    let (other, done) = (Arc::clone(&readers), Arc::new(AtomicU64::new(0)));
    let done_in_thread = Arc::clone(&done);
    let waiter = thread::spawn_named("synchronize", move || {
        other.synchronize();
        done_in_thread.store(1, Ordering::SeqCst);
    });
    for _ in 0..1000 {
        // Who comes later is not waited for.
        drop(readers.enter());
        thread::yield_now();
        assert_eq!(done.load(Ordering::SeqCst), 0);
    }
    drop(reading);
    waiter.unwrap().join().unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

#[test]
fn nothing_is_used_again_under_a_reader() {
    // What the pointer leads to is the number of its generation, until it is used again.
    let readers = Arc::new(Readers::new());
    let pointer = Arc::new(AtomicU64::new(0));
    let places = Arc::new([const { AtomicU64::new(0) }; 4]);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (readers, pointer) = (Arc::clone(&readers), Arc::clone(&pointer));
            let places = Arc::clone(&places);
            let read = move || {
                loop {
                    let _reading = readers.enter();
                    let at = pointer.load(Ordering::SeqCst);
                    if at == u64::MAX {
                        return;
                    }
                    thread::yield_now();
                    assert_eq!(places[(at % 4) as usize].load(Ordering::SeqCst), at);
                }
            };
            thread::spawn_named("reader", read).unwrap()
        })
        .collect();
    for at in 1..2000 {
        places[(at % 4) as usize].store(at, Ordering::SeqCst);
        pointer.store(at, Ordering::SeqCst);
        readers.synchronize();
    }
    pointer.store(u64::MAX, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Places are used again and again while readers meet rot and heal: what they heal is never a newer
/// block.
#[test]
fn healing_never_writes_over_what_came_after() {
    let mut fixture = fixture(2);
    let places = [0, 1].map(|_| fixture.space.allocate(16 << 10, 2).unwrap());
    let props = |txg| WriteProps { txg, cache: None, ..props(2, Compression::Off) };
    let newest = Arc::new(Mutex::named("test", None::<(BlockPtrPhys, Vec<u8>)>));
    let ended = Arc::new(AtomicU64::new(0));
    for device in &fixture.faults {
        // Healing can last as long as several txgs.
        let delay = |micros| Fault::Delay(std::time::Duration::from_micros(micros));
        device.add(Rule::new(delay(1000)).on(Op::Write).at(Priority::SyncWrite));
        device.add(Rule::new(delay(100)).on(Op::Flush));
        device.add(Rule::new(Fault::Rot { bits: 1 }).on(Op::Read).with_probability(0.3));
    }
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (store, newest, ended) =
                (fixture.store.clone(), Arc::clone(&newest), Arc::clone(&ended));
            let read = move || {
                while ended.load(Ordering::SeqCst) == 0 {
                    let reading = store.readers().enter();
                    let Some((bp, content)) = newest.lock().clone() else { continue };
                    // If not, rot met both copies on their way.
                    if let Ok(found) = store.read_uncached(&bp) {
                        assert_eq!(found[..], content);
                    }
                    drop(reading);
                }
            };
            thread::spawn_named("reader", read).unwrap()
        })
        .collect();
    let mut written: Vec<(BlockPtrPhys, Vec<u8>)> = Vec::new();
    let intact = |fixture: &Fixture, (bp, content): &(BlockPtrPhys, Vec<u8>)| {
        bp.dvas().all(|dva| fixture.raw(dva, content.len() as u64)[..] == content[..])
    };
    for txg in 1..200 {
        if let Some(older) = written.len().checked_sub(2) {
            assert!(intact(&fixture, &written[older]), "before txg {txg}");
        }
        let content = fixture.content(16 << 10);
        let bytes = content.to_vec();
        let place = places[txg as usize % 2];
        let bp = fixture.store.write_at(place, content, &props(txg)).unwrap();
        fixture.store.wait_and_flush().unwrap();
        *newest.lock() = Some((bp, bytes.clone()));
        // From here on nobody takes the older pointer, and nobody has it when this returns.
        fixture.store.readers().synchronize();
        written.push((bp, bytes));
    }
    ended.store(1, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    fixture.faults.iter().for_each(|device| device.clear());
    assert!(fixture.counted(StoreCounters::HEALED) > 0);
    assert!(written[written.len() - 2..].iter().all(|block| intact(&fixture, block)));
    fixture.audit();
}
