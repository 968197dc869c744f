//! Pools on an object store that is away for a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Away, Decorator, Device, DeviceStats, Op, Priority, Request};
use forebay_pool::{Dataset, DevicesWait, ErrorKind, HealthState, Pool};

use crate::common::{MIB, check, dataset};
use crate::object_store::{Store, assert_content, destroy, disk, new_object, noise, write};

/// A device whose writes and flushes wait while it is away.
pub(crate) struct Absent {
    inner: Arc<dyn Device>,
    held: Mutex<Option<Vec<Request>>>,
    /// For how long it says that it is away.
    since_ms: AtomicU64,
    /// Whether it says that it is away, and yet takes writes.
    says_away: AtomicBool,
    /// How often it was asked whether it is away.
    looks: AtomicU64,
    closed: AtomicBool,
}

impl Absent {
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            held: Mutex::new(None),
            since_ms: AtomicU64::new(60_000),
            says_away: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn leave(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    pub(crate) fn come_back(&self) {
        let held = self.held.lock().unwrap().take();
        held.into_iter().flatten().for_each(|request| self.inner.submit(request));
    }

    /// Whether a request waits.
    fn holds(&self, op: Op) -> bool {
        let held = self.held.lock().unwrap();
        held.iter().flatten().any(|request| request.op() == op)
    }

    fn fail(request: Request) {
        let range = (request.offset(), request.len());
        let kind = forebay_io::ErrorKind::Closed;
        let error = forebay_io::Error::new(kind, request.op(), &"store".into(), range, "closed");
        request.finish(Err(error));
    }
}

impl Decorator for Absent {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() == Op::Read {
            return Some(request);
        }
        let mut held = self.held.lock().unwrap();
        if self.closed.load(Ordering::SeqCst) {
            drop(held);
            Self::fail(request);
            return None;
        }
        match &mut *held {
            Some(held) => held.push(request),
            None => return Some(request),
        }
        None
    }

    fn own_stats(&self) -> DeviceStats {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let held = self.held.lock().unwrap().is_some();
        let is_away = held || self.says_away.load(Ordering::SeqCst);
        let since_ms = self.since_ms.load(Ordering::SeqCst);
        let away = Away { since_ms, error: "connection refused".to_owned() };
        self.inner.stats().with_away(is_away.then_some(away))
    }

    /// What waits fails. The content can still be read, as after a crash.
    fn own_close(&self) {
        let held = {
            let mut held = self.held.lock().unwrap();
            self.closed.store(true, Ordering::SeqCst);
            held.as_mut().map(std::mem::take)
        };
        held.into_iter().flatten().for_each(Self::fail);
    }
}

/// A store that can be away.
pub(crate) fn absent_store() -> (Arc<Absent>, Store) {
    let absent = Absent::new(disk());
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    (absent, store)
}

#[test]
fn a_pool_whose_store_is_away_goes_on_by_itself() {
    let (absent, store) = absent_store();
    let (pool, data, object) = store.create_with_object();
    pool.set_tunable("dirty_max_bytes", "4M").unwrap();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    assert!(pool.health().reasons.is_empty());
    absent.leave();
    // Within the bound.
    write(&pool, &object, 2, MIB);
    assert_content(&object, 2, MIB);
    let health = pool.health();
    assert!(health.reasons[0].contains("connection refused"), "{health:?}");
    assert_eq!(health.state, HealthState::Degraded);
    // An fsync and a write past the bound are told, so that their callers can wait.
    let refused = data.fsync(object.number()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    let piece = noise(3, MIB);
    let mut offsets = (2..).map(|at| at * MIB);
    let refused = loop {
        match pool.begin() {
            Ok(tx) => object.write(&tx, offsets.next().expect("one more"), &piece).unwrap(),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    assert!(!pool.wait_resumed(&|| true).unwrap(), "it gives up");
    assert!(pool.suspension().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.wait_resumed(&|| false).unwrap());
        absent.come_back();
        assert!(waiter.join().unwrap());
    });
    data.fsync(object.number()).unwrap();
    write(&pool, &object, 4, 2 * MIB);
    pool.sync().unwrap();
    assert_content(&object, 4, 2 * MIB);
    assert!(pool.health().reasons.is_empty());
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
}

/// A read fails once the store has been away for its budget. Its caller waits for the store alone.
#[test]
fn a_reader_waits_for_a_store_that_is_away() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let absent = Absent::new(Arc::clone(&faults) as Arc<dyn Device>);
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let (pool, data, object) = store.create_with_object();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();
    let store = store.reopen();
    let pool = store.import();
    let object = pool.dataset("data").unwrap().object(number).unwrap();
    let broken = || faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let reads = broken();
    absent.leave();
    let failed = object.read(0, &mut [0; 100]).unwrap_err();
    assert!(failed.is_gone() && pool.damage().damage.is_empty(), "{failed}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.wait_for_devices(&|| false).unwrap());
        while !absent.holds(Op::Write) {
            std::thread::yield_now();
        }
        assert_eq!(pool.wait_for_devices(&|| true).unwrap(), DevicesWait::GaveUp);
        assert!(pool.suspension().is_none() && !waiter.is_finished());
        faults.remove(reads);
        absent.come_back();
        assert_eq!(waiter.join().unwrap(), DevicesWait::Back);
    });
    assert_content(&object, 1, 100_000);
    // A store that answers has lost the block, or cannot find it now.
    let reads = broken();
    let failed = object.read(MIB - 100, &mut [0; 100]).unwrap_err();
    assert!(!failed.is_gone(), "{failed}");
    faults.remove(reads);
    check(&pool);
    drop(object);
    pool.export().unwrap();
    drop(store);
}

/// Writes small objects and frees some of them, so that the space maps are written.
fn write_space_maps(pool: &Pool, data: &Dataset) {
    let mut before = None;
    for seed in 0..40 {
        let object = new_object(pool, data);
        write(pool, &object, seed, 64 << 10);
        pool.sync().unwrap();
        if let Some(last) = before.replace(object).filter(|_| seed % 2 == 0) {
            destroy(pool, data, last);
        }
    }
}

/// A pool on an object store that was just imported. Its next commits have to read space maps.
fn imported_again(faults: &Arc<FaultDevice>) -> (Store, Arc<Absent>, Pool) {
    let absent = Absent::new(Arc::clone(faults) as Arc<dyn Device>);
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    write_space_maps(&pool, &data);
    drop(data);
    pool.export().unwrap();
    let store = store.reopen();
    let pool = store.import();
    (store, absent, pool)
}

#[test]
fn a_commit_that_reads_a_space_map_in_an_outage_waits_for_the_store() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, absent, pool) = imported_again(&faults);
    let data = pool.dataset("data").unwrap();
    let object = new_object(&pool, &data);
    // Gets fail once the store has been away for their budget.
    absent.says_away.store(true, Ordering::SeqCst);
    let reads = faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let mut seed = 0;
    loop {
        write(&pool, &object, seed, 64 << 10);
        let synced = pool.sync();
        if !faults.injected().is_empty() {
            break;
        }
        synced.unwrap();
        seed += 1;
        assert!(seed < 200, "no commit has read a space map");
    }
    // It is in the middle of a commit that does not end.
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    assert!(pool.suspension().is_none(), "{:?}", pool.suspension());
    assert!(faults.remove(reads).is_some());
    absent.says_away.store(false, Ordering::SeqCst);
    pool.sync().unwrap();
    assert_content(&object, seed, 64 << 10);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
    drop(store);
}

#[test]
fn a_commit_that_cannot_read_a_space_map_goes_on_once_the_pool_is_cleared() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, _, pool) = imported_again(&faults);
    let data = pool.dataset("data").unwrap();
    let object = new_object(&pool, &data);
    let reads = faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let mut seed = 0;
    loop {
        write(&pool, &object, seed, 64 << 10);
        match pool.sync() {
            Ok(()) => seed += 1,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::Suspended, "{error}"),
        }
        assert!(seed < 200, "no commit has read a space map");
    }
    let suspension = pool.suspension().expect("it is suspended");
    assert!(suspension.resumable, "{suspension}");
    assert!(faults.remove(reads).is_some_and(|times| times > 0));
    pool.clear().unwrap();
    pool.sync().unwrap();
    assert_content(&object, seed, 64 << 10);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
    drop(store);
}

#[test]
fn an_export_while_the_store_is_away_waits_for_it_and_loses_nothing() {
    let (absent, store) = absent_store();
    let (pool, data, object) = store.create_with_object();
    let number = object.number();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    absent.leave();
    // One group is being committed, and the next one is dirty.
    write(&pool, &object, 2, MIB);
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    write(&pool, &object, 3, MIB);
    drop((object, data));
    std::thread::scope(|scope| {
        let before = absent.looks.load(Ordering::SeqCst);
        let export = scope.spawn(|| pool.export());
        // The wait for the txg looks once, and ends. The wait for the store looks again and again.
        while absent.looks.load(Ordering::SeqCst) < before + 3 && !export.is_finished() {
            std::thread::yield_now();
        }
        assert!(!export.is_finished(), "it does not wait for the store");
        absent.come_back();
        export.join().unwrap().unwrap();
    });
    let pool = store.import();
    let object = pool.dataset("data").and_then(|data| data.object(number)).unwrap();
    assert_content(&object, 3, MIB);
    drop(object);
    pool.export().unwrap();
}

#[test]
fn an_fsync_that_began_before_the_outage_was_known_stops_to_wait_for_the_log() {
    let (absent, store) = absent_store();
    let (pool, data, object) = store.create_with_object();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    absent.since_ms.store(0, Ordering::SeqCst);
    absent.leave();
    write(&pool, &object, 2, 64 << 10);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(|| {
            let (data, object) = (&data, &object);
            tell.send(data.fsync(object.number())).unwrap();
            drop(tell);
        });
        while !absent.holds(Op::Flush) && !absent.holds(Op::Write) {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err(), "it waits for the log");
        absent.since_ms.store(60_000, Ordering::SeqCst);
        let ended = told.recv_timeout(Duration::from_secs(60));
        // Whatever has happened, so that all ends.
        absent.come_back();
        let refused = ended.expect("it waits for the store").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    });
    data.fsync(object.number()).unwrap();
    let number = object.number();
    drop((object, data));
    // A copy beside a commit would have its parts from different moments.
    pool.abandon();
    let crashed = store.crash();
    let again = crashed.import();
    let object = again.dataset("data").unwrap().object(number).unwrap();
    let mut found = vec![0; 64 << 10];
    object.read(0, &mut found).unwrap();
    assert!(found == noise(2, 64 << 10), "the fsync is lost");
    drop(object);
    again.export().unwrap();
}

#[test]
fn an_export_that_gives_up_a_store_loses_only_what_is_not_durable() {
    let (absent, store) = absent_store();
    let (pool, data, object) = store.create_with_object();
    let number = object.number();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    absent.leave();
    write(&pool, &object, 2, MIB);
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    drop((object, data));
    let lost = pool.close_with_devices(Some(Arc::new(|| true))).unwrap_err();
    let text = lost.to_string();
    assert!(text.contains("has not answered") && text.contains("are lost"), "{text}");
    let crashed = store.crash();
    let again = crashed.import();
    let object = again.dataset("data").and_then(|data| data.object(number)).unwrap();
    assert_content(&object, 1, MIB);
    drop(object);
    again.export().unwrap();
}

#[test]
fn an_outage_is_no_damage() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, absent, pool) = imported_again(&faults);
    absent.says_away.store(true, Ordering::SeqCst);
    let reads = faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    pool.scrub(&mut |_| ControlFlow::Continue(())).unwrap_err();
    pool.check(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(faults.remove(reads).is_some_and(|times| times > 0));
    absent.says_away.store(false, Ordering::SeqCst);
    assert!(pool.damage().damage.is_empty(), "{:?}", pool.damage());
    check(&pool);
    pool.export().unwrap();
    drop(store);
}

/// Reads that fail at the end of an outage, of which nothing is to be seen any more.
#[test]
fn a_walk_counts_no_read_that_failed_in_an_outage_that_has_just_ended() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, _absent, pool) = imported_again(&faults);
    let scrub = || pool.scrub(&mut |_| ControlFlow::Continue(())).unwrap();
    let whole = scrub();
    // Of blocks with two copies, both fail: those that lead to datasets.
    for count in [1, 2] {
        for n in 0.. {
            let rule = Rule::new(Fault::Error(5)).on(Op::Read).at(Priority::Scrub);
            let rule = faults.add(rule.after(n).times(count));
            let report = scrub();
            assert!(report.complete && report.blocks * 10 >= whole.blocks * 9, "{n}: {report:?}");
            if count == 1 {
                assert_eq!((report.healed, report.lost_count), (0, 0), "{n}: {report:?}");
            }
            if faults.remove(rule) != Some(count) {
                assert!(n > whole.blocks / 2, "not all reads were tried");
                break;
            }
        }
    }
    drop(store);
    pool.export().unwrap();
}
