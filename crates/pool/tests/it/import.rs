//! Choice of the root at import, unreadable roots, and a panic of the sync thread.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{CreateOptions, ErrorKind, ImportOptions, Pool};

use crate::common::{
    MIB, cache, check, create, create_options, dataset, import, import_options, memory,
};

const ROOT_BYTES: u64 = 4096;
/// Reads of labels at the beginning of an import.
const LABEL_READS: usize = 4;

fn faulty(device: &Arc<dyn Device>) -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let faulty = Arc::new(FaultDevice::new(Arc::clone(device), 1));
    (Arc::clone(&faulty), faulty)
}

fn add_bad(device: &FaultDevice, fault: Fault, bad: &[Range<u64>]) {
    for range in bad {
        device.add(Rule::new(fault).on(Op::Read).within(range.clone()));
    }
}

/// A pool that was changed in two txgs and then left as after a crash. The object's content was
/// written in the second txg.
fn two_txgs(device: &Arc<dyn Device>) -> u64 {
    let pool = create(device, &cache(32 * MIB));
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let tx = pool.begin().unwrap();
    data.object(number).unwrap().write(&tx, 0, b"durable").unwrap();
    drop(tx);
    pool.sync().unwrap();
    drop(data);
    pool.abandon();
    number
}

/// Locations of the two copies of the newest root block: the first reads after the labels.
fn root_copies(device: &Arc<dyn Device>) -> Vec<Range<u64>> {
    let (faulty, dynamic) = faulty(device);
    let mut copies = Vec::new();
    for _ in 0..2 {
        faulty.clear();
        add_bad(&faulty, Fault::Error(5), &copies);
        faulty.add(Rule::new(Fault::Delay(Duration::ZERO)).on(Op::Read));
        let before = faulty.injected().len();
        let options = ImportOptions { read_only: true, ..import_options(&cache(32 * MIB)) };
        Pool::import(vec![dynamic.clone().into()], &options).unwrap().abandon();
        let injected = faulty.injected();
        let behind = injected[before..].iter().skip(LABEL_READS);
        let read = behind.filter(|read| matches!(read.fault, Fault::Delay(_)));
        let mut roots = read.filter(|read| read.len == ROOT_BYTES && read.offset > 0);
        let at = roots.find(|read| copies.iter().all(|bad| !bad.contains(&read.offset)));
        let at = at.expect("a copy").offset;
        copies.push(at..at + ROOT_BYTES);
    }
    copies
}

#[test]
fn an_import_does_not_rewind_past_an_unreadable_root() {
    let device = memory(64 * MIB);
    let number = two_txgs(&device);
    let copies = root_copies(&device);
    for rewind in [false, true] {
        // A transient failure.
        let (faulty, dynamic) = faulty(&device);
        add_bad(&faulty, Fault::Error(5), &copies);
        let options = ImportOptions { rewind, ..import_options(&cache(32 * MIB)) };
        let failed = Pool::import(vec![dynamic.into()], &options).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Device, "{failed}");
    }
    let pool = import(&device, &cache(32 * MIB));
    let mut out = [0; 7];
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object(number).unwrap().read(0, &mut out).unwrap(), 7);
    assert_eq!(&out, b"durable");
}

#[test]
fn an_import_rewinds_past_a_damaged_root_only_on_request() {
    let device = memory(64 * MIB);
    let number = two_txgs(&device);
    let copies = root_copies(&device);
    let (faulty, dynamic) = faulty(&device);
    add_bad(&faulty, Fault::Rot { bits: 64 }, &copies);
    let options = import_options(&cache(32 * MIB));
    let failed = Pool::import(vec![dynamic.clone().into()], &options).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Corrupt, "{failed}");
    let options = ImportOptions { rewind: true, ..import_options(&cache(32 * MIB)) };
    let pool = Pool::import(vec![dynamic.into()], &options).unwrap();
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object(number).unwrap().size(), 0);
    drop(data);
    faulty.clear();
    check(&pool);
}

#[test]
fn a_discarded_log_is_not_replayed() {
    let device = memory(64 * MIB);
    let pool = create(&device, &cache(32 * MIB));
    let data = dataset(&pool);
    pool.sync().unwrap();
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, b"fsynced").unwrap();
    drop(tx);
    data.fsync(number).unwrap();
    drop(data);
    pool.abandon();
    let options = ImportOptions { discard_log: true, ..import_options(&cache(32 * MIB)) };
    let pool = Pool::import(vec![Arc::clone(&device).into()], &options).unwrap();
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object_info(number).unwrap_err().kind(), ErrorKind::NotFound);
    // The intent log works again.
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, b"after").unwrap();
    drop(tx);
    data.fsync(number).unwrap();
    drop(data);
    pool.abandon();
    let pool = import(&device, &cache(32 * MIB));
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object_info(number).unwrap().attributes, b"after");
    drop(data);
    check(&pool);
}

/// A clock that panics, once armed, when the sync thread reads it.
struct PanicClock {
    clock: SystemClock,
    armed: AtomicBool,
}

impl Clock for PanicClock {
    fn now_ns(&self) -> u64 {
        let on_sync = std::thread::current().name() == Some("forebay-sync");
        assert!(!(on_sync && self.armed.load(Ordering::SeqCst)), "injected panic");
        self.clock.now_ns()
    }
}

#[test]
fn a_panic_of_the_sync_thread_suspends_the_pool() {
    let device = memory(64 * MIB);
    let panic_clock =
        Arc::new(PanicClock { clock: SystemClock::new(), armed: AtomicBool::new(false) });
    let clock: Arc<dyn Clock> = panic_clock.clone();
    let options = CreateOptions { clock: Some(clock), ..create_options(&cache(32 * MIB)) };
    let pool = Pool::create(vec![device.into()], &options).unwrap();
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    panic_clock.armed.store(true, Ordering::SeqCst);
    drop(tx);
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    assert_eq!(data.fsync(number).unwrap_err().kind(), ErrorKind::Suspended);
    assert_eq!(pool.begin().unwrap_err().kind(), ErrorKind::Suspended);
    drop(data);
    assert_eq!(pool.export().unwrap_err().kind(), ErrorKind::Suspended);
}
