//! Log vdevs: fsyncs go there and nowhere else, and their loss loses nothing that a durable group
//! has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::clock::ManualClock;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{
    CreateOptions, Error, ErrorKind, EventKind, HealthState, ImportOptions, LeafState, NewVdev,
    Object, Opened, Pool,
};

use crate::common::{
    MIB, cache, check, copy, copy_of, create_options, dataset, import_options, memory,
};

const RECORD: usize = 8192;
const EIO: i32 = 5;

/// A pool on one device with a log on others, all of which can fail.
pub(crate) struct Parts {
    pub(crate) data: Arc<FaultDevice>,
    pub(crate) logs: Vec<Arc<FaultDevice>>,
}

pub(crate) fn failing(device: Arc<dyn Device>) -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(device, 7))
}

impl Parts {
    pub(crate) fn new(logs: usize) -> Self {
        let logs = (0..logs).map(|_| failing(memory(16 * MIB))).collect();
        Self { data: failing(memory(64 * MIB)), logs }
    }

    /// Creates the pool, and an object in it. No group is committed unasked.
    pub(crate) fn create(&self) -> (Pool, u64) {
        let pool = self.create_with(&create_options(&cache(32 * MIB)));
        pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
        let data = dataset(&pool);
        let tx = pool.begin().expect("space");
        let number = data.create_object(&tx, &[]).expect("an object");
        drop(tx);
        pool.sync().expect("durable");
        drop(data);
        (pool, number)
    }

    fn create_with(&self, options: &CreateOptions) -> Pool {
        let opened = |one: &Arc<FaultDevice>| (Arc::clone(one) as Arc<dyn Device>).into();
        let log = NewVdev::Log(self.logs.iter().map(opened).collect());
        let tree = vec![NewVdev::Device(opened(&self.data)), log];
        Pool::create_tree(tree, options).expect("a pool")
    }

    /// Checks that fsyncs go to the log device, at the latest after a commit; writes 9.
    pub(crate) fn log_takes_fsyncs(pool: &Pool, number: u64) {
        Self::log_takes_fsync_of(pool, number, 9);
    }

    /// As [`log_takes_fsyncs`](Self::log_takes_fsyncs), with another value.
    pub(crate) fn log_takes_fsync_of(pool: &Pool, number: u64, value: u8) {
        write(pool, number, 7);
        pool.sync().expect("durable");
        let before = log_writes(pool);
        let batches = counter(pool, "batches");
        fsync(pool, number, value);
        assert_eq!(counter(pool, "batches"), batches + 1);
        let after = log_writes(pool);
        assert!(before.iter().zip(&after).all(|(before, after)| after > before), "elsewhere");
    }

    /// Checks that copies of the data device and of each side of the log are the whole pool.
    fn each_side_holds(&self, number: u64, value: u8) {
        for one in 0..self.logs.len() {
            let devices = [copy_of(&self.data()), copy_of(&self.log(one))];
            let pool = import(&devices).expect("each side has all");
            assert_eq!(content(&pool, number), value, "side {one}");
        }
    }

    pub(crate) fn data(&self) -> Arc<dyn Device> {
        Arc::clone(&self.data) as _
    }

    pub(crate) fn log(&self, at: usize) -> Arc<dyn Device> {
        Arc::clone(&self.logs[at]) as _
    }
}

pub(crate) fn import_with(
    devices: &[Arc<dyn Device>],
    change: impl FnOnce(&mut ImportOptions),
) -> Result<Pool, Error> {
    let mut options = import_options(&cache(32 * MIB));
    change(&mut options);
    Pool::import(devices.iter().map(|one| Arc::clone(one).into()).collect(), &options)
}

pub(crate) fn import(devices: &[Arc<dyn Device>]) -> Result<Pool, Error> {
    import_with(devices, |_| {})
}

fn object(pool: &Pool, number: u64) -> Object {
    pool.dataset("data").and_then(|data| data.object(number)).expect("the object")
}

pub(crate) fn write(pool: &Pool, number: u64, value: u8) {
    let tx = pool.begin().expect("space");
    object(pool, number).write(&tx, 0, &[value; RECORD]).expect("space");
}

pub(crate) fn fsync(pool: &Pool, number: u64, value: u8) {
    write(pool, number, value);
    object(pool, number).fsync().expect("no error reaches a program");
}

pub(crate) fn content(pool: &Pool, number: u64) -> u8 {
    let mut out = vec![0; RECORD];
    object(pool, number).read(0, &mut out).expect("it reads");
    assert!(out.iter().all(|byte| *byte == out[0]), "a mixture");
    out[0]
}

pub(crate) fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().filter(|(known, ..)| *known == name).map(|(.., value)| value).sum()
}

pub(crate) fn events(pool: &Pool, kind: EventKind) -> usize {
    pool.events().after(0).iter().filter(|event| event.kind == kind).count()
}

/// Copies of the devices, as after a crash now, are a pool with this content.
pub(crate) fn crash_holds(devices: &[&Arc<dyn Device>], number: u64, value: u8) {
    let copies: Vec<_> = devices.iter().map(|one| copy_of(one)).collect();
    let pool = import(&copies).expect("the pool");
    assert_eq!(content(&pool, number), value);
    check(&pool);
    pool.abandon();
}

/// The states of the devices of the log.
pub(crate) fn states(pool: &Pool) -> Vec<LeafState> {
    pool.devices().iter().filter(|one| one.log).map(|one| one.state).collect()
}

#[test]
fn an_fsync_asks_only_the_log_device_and_survives_a_crash() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    assert_eq!(pool.vdevs().iter().map(|vdev| vdev.log).collect::<Vec<_>>(), [false, true]);
    for op in [Op::Write, Op::Flush] {
        parts.data.add(Rule::new(Fault::Error(EIO)).on(op));
    }
    for value in 1..=100 {
        fsync(&pool, number, value);
    }
    assert!(parts.data.injected().is_empty(), "an fsync asked the data device");
    assert_eq!(counter(&pool, "batches"), 100);
    pool.abandon();
    parts.data.clear();
    // In another order than they were created.
    let pool = import(&[parts.log(0), parts.data()]).expect("the pool");
    assert_eq!(content(&pool, number), 100);
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
    check(&pool);
    // The ring is on the log device again, with a new generation.
    fsync(&pool, number, 101);
    fsync(&pool, number, 102);
    pool.abandon();
    let pool = import(&[parts.data(), parts.log(0)]).expect("the pool");
    assert_eq!(content(&pool, number), 102);
    pool.export().expect("exported");
}

#[test]
fn a_missing_log_device_is_named_and_given_up_only_on_demand() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    write(&pool, number, 1);
    pool.sync().expect("durable");
    let txg = pool.stats().synced_txg;
    fsync(&pool, number, 2);
    let name = pool.devices()[1].guid;
    pool.abandon();
    let error = import(&[parts.data()]).map(drop).expect_err("fsynced changes would be lost");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("{name:#x}")) && text.contains("discard_log"), "{text}");
    assert!(text.contains(&format!("fsynced after txg {txg}")), "{text}");
    // Nothing was written: with the device all is there.
    let data = copy_of(&parts.data());
    let pool = import(&[copy_of(&parts.data()), copy_of(&parts.log(0))]).expect("all is there");
    assert_eq!(content(&pool, number), 2);
    pool.abandon();
    let read_only = import_with(&[parts.data()], |options| options.read_only = true);
    let read_only = read_only.expect("it reads the durable group");
    assert_eq!(content(&read_only, number), 1);
    assert!(read_only.import_notes().iter().any(|note| note.contains("may be on it alone")));
    drop(read_only);

    let pool = import_with(&[Arc::clone(&data)], |options| options.discard_log = true);
    let pool = pool.expect("without the log");
    assert_eq!(content(&pool, number), 1);
    let notes = pool.import_notes().join("\n");
    assert!(notes.contains(&format!("fsynced after txg {txg}")), "{notes}");
    assert_eq!(states(&pool), [LeafState::Missing]);
    assert_eq!(pool.health().state, HealthState::Degraded);
    fsync(&pool, number, 3);
    fsync(&pool, number, 4);
    pool.abandon();
    // The log is in the space of the pool: the device is not needed any more.
    let pool = import(&[Arc::clone(&data)]).expect("nothing is on the log device");
    assert_eq!(content(&pool, number), 4);
    check(&pool);
    pool.abandon();
    // It comes back with what was given up, which is not replayed.
    let pool = import(&[Arc::clone(&data), parts.log(0)]).expect("it is back");
    assert_eq!(content(&pool, number), 4);
    pool.sync().expect("durable");
    assert_eq!(states(&pool), [LeafState::Online]);
    Parts::log_takes_fsyncs(&pool, number);
    pool.abandon();
    let pool = import(&[data, parts.log(0)]).expect("the pool");
    assert_eq!(content(&pool, number), 9);
}

/// Writes to each device of the log since the import.
fn log_writes(pool: &Pool) -> Vec<u64> {
    let of = |one: &forebay_pool::PoolDevice| {
        let rows = one.io.rows().iter().filter(|row| row.op == Op::Write);
        rows.map(|row| row.bytes).sum()
    };
    pool.devices().iter().filter(|one| one.log).map(of).collect()
}

#[test]
fn a_log_device_that_is_lost_after_an_export_loses_nothing() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 5);
    pool.export().expect("exported");
    let pool = import(&[parts.data()]).expect("the log was empty");
    assert!(pool.import_notes().iter().any(|note| note.contains("nothing is lost")));
    assert_eq!(content(&pool, number), 5);
    fsync(&pool, number, 6);
    pool.abandon();
    let pool = import(&[parts.data()]).expect("it needs no log device");
    assert_eq!(content(&pool, number), 6);
    check(&pool);
}

#[test]
fn log_devices_of_other_pools_and_older_copies_are_refused() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    let other = Parts::new(1);
    // With other GUIDs.
    let options = CreateOptions { seed: Some(8), ..create_options(&cache(32 * MIB)) };
    let other_pool = other.create_with(&options);
    other_pool.abandon();
    fsync(&pool, number, 1);
    let older = copy_of(&parts.log(0));
    // Rolled back within a group: its log ends earlier, as if it had never been written.
    fsync(&pool, number, 2);
    write(&pool, number, 3);
    pool.sync().expect("durable");
    fsync(&pool, number, 4);
    pool.abandon();
    let error = import(&[parts.data(), other.log(0)]).map(drop).expect_err("of another pool");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert!(error.to_string().contains("of another one"), "{error}");
    let error = import(&[parts.data(), Arc::clone(&older)]).map(drop).expect_err("an older copy");
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert!(error.to_string().contains("lacks what came after txg"), "{error}");
    let data = copy_of(&parts.data());
    let pool = import_with(&[data, older], |options| options.discard_log = true);
    let pool = pool.expect("without the log");
    assert_eq!(content(&pool, number), 3);
    assert!(pool.import_notes().iter().any(|note| note.contains("an older copy of itself")));
    drop(pool);
    let pool = import(&[parts.data(), parts.log(0)]).expect("the pool");
    assert_eq!(content(&pool, number), 4);
}

#[test]
fn a_log_device_that_fails_beside_fsyncs_is_no_error_to_anybody() {
    for op in [Op::Write, Op::Flush] {
        let parts = Parts::new(1);
        let (pool, number) = parts.create();
        fsync(&pool, number, 1);
        let log = &parts.logs[0];
        let rule = log.add(Rule::new(Fault::Error(EIO)).on(op));
        for value in 2..20 {
            fsync(&pool, number, value);
        }
        assert_eq!(states(&pool), [LeafState::Faulted], "{op:?}");
        assert_eq!(events(&pool, EventKind::DeviceFaulted), 1, "{op:?}");
        let health = pool.health();
        assert_eq!(health.state, HealthState::Degraded);
        assert!(health.reasons.join("\n").contains("without its log device"), "{health:?}");
        assert!(pool.suspension().is_none());
        // The log is in the space of the pool, and takes fsyncs again.
        let batches = counter(&pool, "batches");
        fsync(&pool, number, 20);
        assert_eq!(counter(&pool, "batches"), batches + 1, "{op:?}");
        let (data, stale) = (copy_of(&parts.data()), copy_of(&parts.log(0)));
        let imported = import(&[data]).expect("nothing is on the failed device");
        assert_eq!(content(&imported, number), 20);
        check(&imported);
        drop(imported);
        let imported = import(&[copy_of(&parts.data()), stale]).expect("it is not believed");
        assert_eq!(content(&imported, number), 20);
        drop(imported);
        // It works again.
        log.remove(rule);
        pool.clear_errors().expect("cleared");
        assert_eq!(states(&pool), [LeafState::Online]);
        Parts::log_takes_fsyncs(&pool, number);
        pool.abandon();
        let pool = import(&[parts.data(), parts.log(0)]).expect("the pool");
        assert_eq!(content(&pool, number), 9, "{op:?}");
        check(&pool);
    }
}

#[test]
fn a_mirror_of_logs_goes_on_with_either_side() {
    for lost in 0..2 {
        let parts = Parts::new(2);
        let (pool, number) = parts.create();
        fsync(&pool, number, 1);
        parts.logs[lost].add(Rule::new(Fault::Error(EIO)).on(Op::Flush));
        for value in 2..20 {
            fsync(&pool, number, value);
        }
        let kept = 1 - lost;
        assert_eq!(states(&pool)[lost], LeafState::Faulted);
        assert_eq!(states(&pool)[kept], LeafState::Online);
        pool.sync().expect("durable");
        fsync(&pool, number, 20);
        pool.abandon();
        parts.logs[lost].clear();
        // The side that failed does not pass for the log.
        let error = import(&[parts.data(), parts.log(lost)]).map(drop).expect_err("it lacks 20");
        assert!(error.to_string().contains("lacks what came after txg"), "{error}");
        let alone = import(&[copy_of(&parts.data()), copy_of(&parts.log(kept))]);
        let alone = alone.expect("this side has all");
        assert_eq!(content(&alone, number), 20);
        drop(alone);
        let pool = import(&[parts.data(), parts.log(0), parts.log(1)]).expect("both");
        assert_eq!(content(&pool, number), 20);
        // After two commits both have all that counts.
        pool.sync().expect("durable");
        write(&pool, number, 21);
        pool.sync().expect("durable");
        assert_eq!(states(&pool), [LeafState::Online; 2]);
        Parts::log_takes_fsyncs(&pool, number);
        pool.abandon();
        parts.each_side_holds(number, 9);
    }
}

#[test]
fn copies_of_all_devices_are_the_pool() {
    // All bytes that count are on the devices: copies of them are the pool.
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    pool.abandon();
    let (data, log) = (memory(64 * MIB), memory(16 * MIB));
    copy(&*parts.data(), &*data);
    copy(&*parts.log(0), &*log);
    let pool = import(&[data, log]).expect("the copies");
    assert_eq!(content(&pool, number), 1);
}

#[test]
fn a_log_device_is_added_and_removed_beside_fsyncs() {
    let data = memory(64 * MIB);
    let parts = Parts { data: failing(Arc::clone(&data)), logs: vec![failing(memory(16 * MIB))] };
    let opened = || vec![parts.log(0).into()];
    let pool = crate::common::create(&parts.data(), &cache(32 * MIB));
    let number = {
        let dataset = dataset(&pool);
        let tx = pool.begin().expect("space");
        dataset.create_object(&tx, &[]).expect("an object")
    };
    pool.sync().expect("durable");
    let error = pool.remove_log().expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // Each time the device is empty again.
    for round in 0..3 {
        std::thread::scope(|scope| {
            let added = scope.spawn(|| pool.add_vdev(NewVdev::Log(opened()), false, None));
            for value in 0..50 {
                fsync(&pool, number, value);
            }
            added.join().expect("no panic").expect("added");
        });
        let error = pool.add_vdev(NewVdev::Log(opened()), true, None).expect_err("one is enough");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(states(&pool), [LeafState::Online]);
        Parts::log_takes_fsyncs(&pool, number);
        // A crash now.
        let crashed = import(&[copy_of(&parts.data()), copy_of(&parts.log(0))]).expect("a pool");
        assert_eq!(content(&crashed, number), 9);
        crashed.abandon();
        import(&[copy_of(&parts.data())]).map(drop).expect_err("it is needed");
        std::thread::scope(|scope| {
            let removed = scope.spawn(|| pool.remove_log());
            for value in 0..50 {
                fsync(&pool, number, value);
            }
            removed.join().expect("no panic").expect("removed");
        });
        assert!(states(&pool).is_empty());
        fsync(&pool, number, 100 + round);
        let crashed = import(&[copy_of(&parts.data())]).expect("it is not needed any more");
        assert_eq!(content(&crashed, number), 100 + round);
        check(&crashed);
        crashed.abandon();
    }
    pool.export().expect("exported");
    let pool = import(&[parts.data()]).expect("the pool");
    assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
    assert_eq!(content(&pool, number), 102);
}

#[test]
fn an_fsync_of_a_pool_on_an_object_store_asks_only_the_log_device() {
    let store = crate::object_store::Store::new();
    let log = memory(16 * MIB);
    let vdevs =
        vec![NewVdev::ObjectStore(store.opened()), NewVdev::Log(vec![Arc::clone(&log).into()])];
    let pool = Pool::create_tree(vdevs, &create_options(&cache(32 * MIB))).expect("a pool");
    pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let number = {
        let dataset = dataset(&pool);
        let tx = pool.begin().expect("space");
        dataset.create_object(&tx, &[]).expect("an object")
    };
    pool.sync().expect("durable");
    let written = |pool: &Pool| -> u64 {
        pool.devices()[0].io.rows().iter().map(|row| row.latency_ns.count).sum()
    };
    let before = written(&pool);
    for value in 1..=100 {
        fsync(&pool, number, value);
    }
    assert_eq!(written(&pool), before, "an fsync asked the store");
    pool.abandon();
    let after = store.crash();
    let opened = || vec![after.opened(), Arc::clone(&log).into()];
    let options = import_options(&cache(32 * MIB));
    let error = Pool::import(vec![after.opened()], &options).map(drop).expect_err("a log is lost");
    assert!(error.to_string().contains("discard_log"), "{error}");
    let pool = Pool::import(opened(), &options).expect("the pool");
    assert_eq!(content(&pool, number), 100);
    check(&pool);
    pool.export().expect("exported");
}

#[test]
fn a_new_pool_whose_devices_are_shared_has_its_log_from_the_first_group_on() {
    let (data, log) = (memory(64 * MIB), memory(16 * MIB));
    let shared = |device: &Arc<dyn Device>| Opened::shared(Arc::clone(device));
    let vdevs = vec![NewVdev::Device(shared(&data)), NewVdev::Log(vec![shared(&log)])];
    let pool = Pool::create_tree(vdevs, &create_options(&cache(32 * MIB))).expect("a pool");
    // A crash behind the first group. It names the log device, which has its stamp.
    let (data, log) = (copy_of(&data), copy_of(&log));
    pool.abandon();
    import(&[Arc::clone(&data)]).map(drop).expect_err("the log device is needed");
    let pool = import(&[data, log]).expect("all is there");
    pool.export().expect("exported");
}

#[test]
fn a_log_device_that_came_back_is_believed_after_one_group() {
    for mirrored in [false, true] {
        let parts = Parts::new(1 + usize::from(mirrored));
        let (pool, number) = parts.create();
        fsync(&pool, number, 1);
        pool.abandon();
        // Without the log, and once more with it.
        let alone = import_with(&[parts.data()], |options| options.discard_log = true);
        let alone = alone.expect("without the log");
        write(&alone, number, 2);
        alone.sync().expect("durable");
        alone.abandon();
        let devices = || {
            let logs = (0..parts.logs.len()).map(|at| parts.log(at));
            [parts.data()].into_iter().chain(logs).collect::<Vec<_>>()
        };
        let pool = import(&devices()).expect("it is back");
        pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
        pool.sync().expect("durable");
        let batches = counter(&pool, "batches");
        fsync(&pool, number, 3);
        assert_eq!(counter(&pool, "batches"), batches + 1);
        pool.abandon();
        let pool = import(&devices()).expect("nothing is missing");
        assert_eq!(content(&pool, number), 3);
        assert!(pool.import_notes().is_empty(), "{:?}", pool.import_notes());
        check(&pool);
    }
}

#[test]
fn sides_of_a_log_mirror_that_fail_together_have_the_same() {
    let parts = Parts::new(2);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    for log in &parts.logs {
        log.add(Rule::new(Fault::Error(EIO)).on(Op::Write));
    }
    pool.sync().expect("it needs no log device");
    assert_eq!(states(&pool), [LeafState::Faulted; 2]);
    parts.logs.iter().for_each(|log| log.clear());
    pool.clear_errors().expect("cleared");
    Parts::log_takes_fsyncs(&pool, number);
    assert_eq!(states(&pool), [LeafState::Online; 2]);
    pool.abandon();
    parts.each_side_holds(number, 9);
}

/// A pool on a store with a log device, at a clock that stands still, and an object of it.
pub(crate) fn create_in_front_of(
    store: &crate::object_store::Store,
) -> (Pool, u64, Arc<dyn Device>, Arc<ManualClock>) {
    let log = memory(16 * MIB);
    let clock = Arc::new(ManualClock::new());
    let vdevs =
        vec![NewVdev::ObjectStore(store.opened()), NewVdev::Log(vec![Arc::clone(&log).into()])];
    let mut options = create_options(&cache(32 * MIB));
    options.clock = Some(Arc::clone(&clock) as _);
    let pool = Pool::create_tree(vdevs, &options).expect("a pool");
    let number = {
        let dataset = dataset(&pool);
        let tx = pool.begin().expect("space");
        dataset.create_object(&tx, &[]).expect("an object")
    };
    pool.sync().expect("durable");
    (pool, number, log, clock)
}

#[test]
fn an_fsync_in_front_of_a_store_needs_that_the_store_has_confirmed_the_owner() {
    let store = crate::object_store::Store::new();
    let (pool, number, log, clock) = create_in_front_of(&store);
    let batches = || counter(&pool, "batches");
    let before = batches();
    fsync(&pool, number, 1);
    assert_eq!(batches(), before + 1);
    let synced = || pool.stats().synced_txg;
    let txg = synced();
    clock.advance(15_000_000_000);
    fsync(&pool, number, 2);
    assert_eq!((batches(), synced()), (before + 1, txg + 1), "the log alone was relied on");
    // The group has confirmed it again.
    fsync(&pool, number, 3);
    assert_eq!((batches(), synced()), (before + 2, txg + 1));
    pool.abandon();
    // A takeover waits until that has ended.
    let after = store.crash();
    let opened = || vec![after.opened(), Arc::clone(&log).into()];
    let waited = Arc::new(AtomicU64::new(0));
    let paused = Arc::clone(&waited);
    let mut options = import_options(&cache(32 * MIB));
    options.pause = Some(Arc::new(move |time| {
        paused.fetch_add(time.as_secs(), Ordering::Relaxed);
    }));
    let pool = Pool::import(opened(), &options).expect("the pool");
    assert_eq!(content(&pool, number), 3);
    assert_eq!(waited.load(Ordering::Relaxed), 0, "this host is the owner");
    pool.abandon();
    options.force = true;
    options.host.id += 1;
    let pool = Pool::import(opened(), &options).expect("a takeover");
    assert!(waited.load(Ordering::Relaxed) > 15, "too soon");
    assert_eq!(content(&pool, number), 3);
    pool.export().expect("exported");
}

/// An import that gives up the log, but fails before a group is durable.
fn interrupted_discard(parts: &Parts, devices: &[Arc<dyn Device>]) {
    let rule = Rule::new(Fault::Error(EIO)).on(Op::Write).within(MIB..63 * MIB);
    let rule = parts.data.add(rule);
    let failed = import_with(devices, |options| options.discard_log = true).map(drop);
    failed.expect_err("no group is durable");
    assert!(!parts.data.injected().is_empty(), "it failed too soon");
    parts.data.remove(rule);
}

#[test]
fn an_interrupted_import_without_the_log_takes_nothing_from_it() {
    // Both devices were away.
    let parts = Parts::new(2);
    let (pool, number) = parts.create();
    fsync(&pool, number, 1);
    pool.abandon();
    interrupted_discard(&parts, &[parts.data()]);
    for side in 0..2 {
        crash_holds(&[&parts.data(), &parts.log(side)], number, 1);
    }
    crash_holds(&[&parts.data(), &parts.log(0), &parts.log(1)], number, 1);
    // Once a group has given up the log, it stays given up.
    let pool = import_with(&[parts.data()], |options| options.discard_log = true);
    pool.expect("without the log").abandon();
    crash_holds(&[&parts.data(), &parts.log(0), &parts.log(1)], number, 0);
}

#[test]
fn an_interrupted_import_with_the_older_log_device_leaves_the_newer_one_as_it_is() {
    let parts = Parts::new(2);
    let (pool, number) = parts.create();
    write(&pool, number, 1);
    pool.sync().expect("durable");
    parts.logs[1].add(Rule::new(Fault::Error(EIO)).on(Op::Flush));
    for value in 2..6 {
        fsync(&pool, number, value);
    }
    pool.abandon();
    parts.logs[1].clear();
    import(&[copy_of(&parts.data()), copy_of(&parts.log(1))]).map(drop).expect_err("it lacks 5");
    interrupted_discard(&parts, &[parts.data(), parts.log(1)]);
    crash_holds(&[&parts.data(), &parts.log(0), &parts.log(1)], number, 5);
    crash_holds(&[&parts.data(), &parts.log(0)], number, 5);
}

#[test]
fn an_fsync_goes_to_the_log_device_while_the_store_behind_it_is_away() {
    let (absent, store) = crate::store_outages::absent_store();
    let (pool, number, log, clock) = create_in_front_of(&store);
    let batches = counter(&pool, "batches");
    absent.leave();
    for value in 1..=20 {
        fsync(&pool, number, value);
    }
    assert_eq!(counter(&pool, "batches"), batches + 20);
    // A crash, with the store as it was when it went away.
    let after = store.crash();
    let opened = vec![after.opened(), copy_of(&log).into()];
    let crashed = Pool::import(opened, &import_options(&cache(32 * MIB))).expect("the pool");
    assert_eq!(content(&crashed, number), 20);
    check(&crashed);
    crashed.abandon();
    // Another host may have taken the store over by then.
    clock.advance(15_000_000_000);
    write(&pool, number, 21);
    let refused = object(&pool, number).fsync().expect_err("nobody knows whose the pool is");
    assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    absent.come_back();
    object(&pool, number).fsync().expect("it is back");
    assert_eq!(content(&pool, number), 21);
    pool.export().expect("exported");
}
