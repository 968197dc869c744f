//! Scrubs and checks beside commits, changes, pauses and restarts.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::clock::{Clock, ManualClock};
use forebay_base::rng::SmallRng;
use forebay_base::testing;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, Op, Priority, Request};
use forebay_pool::format::Compression;
use forebay_pool::format::{DamageKind, ScrubState};
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{
    CheckReport, CreateOptions, Dataset, DatasetSettings, ErrorKind, Pool, ScrubReport,
};

use crate::common::{MIB, cache, check, copy_of, create, create_options, import, memory};

const RECORD: u64 = 4096;
const DATA: ObjsetName<'_> = ObjsetName::Dataset("data");
/// A commit that takes this long waits for a read that never ends.
const DEADLOCK: Duration = Duration::from_secs(60);
const GARBAGE: u8 = 0xa5;

/// A device that notes the reads of scrubs and checks, and can hold one of them.
struct Watched {
    inner: Arc<dyn Device>,
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchState {
    /// Number of scrub reads by offset.
    reads: HashMap<u64, u64>,
    /// Scrub reads until one is held.
    hold_after: Option<u64>,
    held: Vec<Request>,
}

impl Watched {
    fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Holds the scrub read after `n` further ones, and all later ones.
    fn hold_after(&self, n: u64) {
        self.state.lock().unwrap().hold_after = Some(n);
    }

    /// Waits until a read is held.
    fn wait_held(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.held.is_empty()).unwrap());
    }

    /// Lets all reads go.
    fn open(&self) {
        let held = {
            let mut state = self.state.lock().unwrap();
            state.hold_after = None;
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|request| self.inner.submit(request));
    }

    fn take_reads(&self) -> HashMap<u64, u64> {
        std::mem::take(&mut self.state.lock().unwrap().reads)
    }
}

impl Decorator for Watched {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() == Op::Read && request.priority() == Priority::Scrub {
            let mut state = self.state.lock().unwrap();
            *state.reads.entry(request.offset()).or_default() += 1;
            match &mut state.hold_after {
                Some(0) => {
                    state.held.push(request);
                    self.changed.notify_all();
                    return None;
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
        Some(request)
    }
}

fn dataset(pool: &Pool) -> Dataset {
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        data_copies: 2,
        ..Default::default()
    };
    pool.create_dataset("data", &settings).expect("a dataset")
}

/// A byte of a record: not zero, which would be a hole, and no garbage.
fn byte(n: u64) -> u8 {
    1 + (n % 100) as u8
}

/// An object whose records have the bytes that `content` says.
fn object(pool: &Pool, data: &Dataset, records: u64, content: impl Fn(u64) -> u8) -> u64 {
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    let bytes: Vec<u8> = (0..records * RECORD).map(|at| content(at / RECORD)).collect();
    object.write(&tx, 0, &bytes).expect("space");
    number
}

fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().filter(|(found, ..)| *found == name).map(|(.., value)| value).sum()
}

fn scrub(pool: &Pool) -> ScrubReport {
    pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs")
}

/// Waits for the end of a scrub in the background.
fn wait(pool: &Pool) -> forebay_pool::Result<ScrubReport> {
    pool.wait_scrub(&mut |_| ControlFlow::Continue(()))
}

/// Offsets of both copies of a record.
fn copies(inspector: &Inspector, object: u64, record: u64) -> Vec<u64> {
    copies_at(inspector, object, (record, 0))
}

/// Offsets of both copies of the block at a level above a record.
fn copies_at(inspector: &Inspector, object: u64, at: (u64, u8)) -> Vec<u64> {
    let found = inspector.block(DATA, BlockOwner::Object(object), at, None);
    found.expect("it").found.pointer.copies.iter().map(|copy| copy.offset).collect()
}

fn arena() -> Arc<Arena> {
    let config = ArenaConfig { limit_bytes: 8 << 20, huge_pages: HugePages::Auto };
    Arena::new(config).expect("memory")
}

fn run_on(device: &Arc<dyn Device>, request: Request) {
    device.run(request).result.expect("memory");
}

fn overwrite(device: &Arc<dyn Device>, offset: u64) {
    let mut buffer = arena().alloc(RECORD as usize).expect("memory");
    buffer.fill(GARBAGE);
    run_on(device, Request::write(offset, buffer));
}

/// Waits for a commit in another thread.
fn committed(done: &Receiver<()>) -> bool {
    done.recv_timeout(DEADLOCK).is_ok()
}

/// Runs `job` while one of its reads is held, and commits several txgs meanwhile.
fn commits_beside(job: impl Fn(&Pool) + Send + Sync) {
    let watched = Watched::new(memory(64 * MIB));
    let device: Arc<dyn Device> = watched.clone();
    let pool = create(&device, &cache(32 * MIB));
    let data = dataset(&pool);
    let number = object(&pool, &data, 600, byte);
    pool.sync().expect("a txg");
    watched.hold_after(100);
    let (done, commits) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| job(&pool));
        watched.wait_held();
        scope.spawn(|| {
            let object = data.object(number).expect("it");
            for round in 0..8 {
                let tx = pool.begin().expect("space");
                object.write(&tx, round * RECORD, &[1; 100]).expect("space");
                drop(tx);
                pool.sync().expect("a txg");
            }
            done.send(()).expect("it is awaited");
        });
        let in_time = committed(&commits);
        watched.open();
        assert!(in_time, "a commit waits for the read");
    });
    assert_eq!(counter(&pool, "commits_waited_for_scrub"), 0);
    drop(data);
    check(&pool);
}

#[test]
fn commits_go_on_while_a_scrub_reads() {
    commits_beside(|pool| {
        let report = scrub(pool);
        assert!(report.complete && report.lost_count == 0, "{report:?}");
    });
}

#[test]
fn commits_go_on_while_a_check_reads() {
    commits_beside(|pool| {
        let report = pool.check(&mut |_| ControlFlow::Continue(())).expect("it runs");
        assert!(report.is_clean(), "{report}");
    });
}

/// A pool that changes while it is scrubbed or checked, and what must be in it.
struct Changing {
    device: Arc<dyn Device>,
    watched: Arc<Watched>,
    pool: Arc<Pool>,
    rng: SmallRng,
    /// The bytes of each record.
    objects: BTreeMap<u64, Vec<u8>>,
    /// Records that were not changed since the scrub began, with the offsets of their copies.
    old: BTreeMap<(u64, u64), Vec<u64>>,
}

impl Changing {
    const OBJECTS: usize = 5;
    const RECORDS: u64 = 600;
    const DEVICE_BYTES: u64 = 64 * MIB;

    fn new(seed: u64, slice_blocks: &str) -> Self {
        let watched = Watched::new(memory(Self::DEVICE_BYTES));
        let device: Arc<dyn Device> = watched.clone();
        let pool = create(&device, &cache(32 * MIB));
        pool.set_tunable("scrub_slice_blocks", slice_blocks).expect("a tunable");
        let data = dataset(&pool);
        let mut objects = BTreeMap::new();
        for n in 0..Self::OBJECTS {
            let bytes: Vec<u8> = (0..Self::RECORDS).map(|record| byte(record + n as u64)).collect();
            let number = object(&pool, &data, Self::RECORDS, |record| bytes[record as usize]);
            objects.insert(number, bytes);
        }
        drop(data);
        pool.sync().expect("a txg");
        let inspector = Inspector::new(vec![Arc::clone(&device)]).expect("memory");
        let records = objects.keys().flat_map(|n| (0..Self::RECORDS).map(|record| (*n, record)));
        let old = records.map(|at| (at, copies(&inspector, at.0, at.1))).collect();
        let rng = SmallRng::from_seed(seed);
        Self { device, watched, pool: Arc::new(pool), rng, objects, old }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Changes some records, an object now and then, and commits often enough for space to be
    /// reused.
    fn change(&mut self) {
        let data = self.pool.dataset("data").expect("it");
        for _ in 0..=self.below(3) {
            let numbers: Vec<u64> = self.objects.keys().copied().collect();
            let number = numbers[self.below(numbers.len() as u64) as usize];
            if self.below(12) == 0 {
                let tx = self.pool.begin().expect("space");
                data.destroy(&tx, number).expect("it");
                drop(tx);
                self.objects.remove(&number);
                self.old.retain(|(object, _), _| *object != number);
                let byte = byte(self.below(100));
                let new = object(&self.pool, &data, Self::RECORDS, |_| byte);
                self.objects.insert(new, vec![byte; Self::RECORDS as usize]);
            } else {
                let (first, count) = (self.below(Self::RECORDS - 40), 1 + self.below(40));
                let byte = byte(self.below(100));
                let tx = self.pool.begin().expect("space");
                let object = data.object(number).expect("it");
                let bytes = vec![byte; (count * RECORD) as usize];
                object.write(&tx, first * RECORD, &bytes).expect("space");
                for record in first..first + count {
                    self.objects.get_mut(&number).expect("it")[record as usize] = byte;
                    self.old.remove(&(number, record));
                }
            }
            self.pool.sync().expect("a txg");
        }
    }

    /// Reads everything through an empty cache. `lost` are records without a good copy.
    fn verify(self, lost: &[(u64, u64)]) {
        self.pool.close().expect("exported");
        let pool = import(&self.device, &cache(32 * MIB));
        let data = pool.dataset("data").expect("it");
        for (number, bytes) in &self.objects {
            let object = data.object(*number).expect("it");
            for (record, byte) in bytes.iter().enumerate() {
                let mut found = vec![0; RECORD as usize];
                let read = object.read(record as u64 * RECORD, &mut found);
                if lost.contains(&(*number, record as u64)) {
                    assert_eq!(read.expect_err("it is lost").kind(), ErrorKind::Corrupt);
                    let tx = pool.begin().expect("space");
                    object.write(&tx, record as u64 * RECORD, &found).expect("space");
                } else {
                    read.expect("it is good");
                    assert!(found.iter().all(|found| found == byte), "{number}, {record}");
                }
            }
        }
        drop(data);
        check(&pool);
    }
}

fn scrub_a_changing_pool(seed: u64, slice_blocks: &str) -> u64 {
    let mut changing = Changing::new(seed, slice_blocks);
    // One bad copy of some records, and both of others.
    let all: Vec<(u64, u64)> = changing.old.keys().copied().collect();
    let (mut bad, mut lost) = (Vec::new(), Vec::new());
    for at in all {
        let offsets = changing.old[&at].clone();
        match changing.below(40) {
            0 => {
                let copy = changing.below(2) as usize;
                overwrite(&changing.device, offsets[copy]);
                bad.push((at, offsets));
            }
            1 => {
                offsets.iter().for_each(|offset| overwrite(&changing.device, *offset));
                lost.push(at);
            }
            _ => {}
        }
    }
    changing.watched.take_reads();
    let pool = Arc::clone(&changing.pool);
    let report = pool.scrub(&mut |_| {
        changing.change();
        ControlFlow::Continue(())
    });
    let report = report.expect("it runs");
    assert!(report.complete);
    let reads = changing.watched.take_reads();
    bad.retain(|(at, _)| changing.old.contains_key(at));
    lost.retain(|at| changing.old.contains_key(at));
    for (at, offsets) in &changing.old {
        let is_bad = lost.contains(at) || bad.iter().any(|(bad, _)| bad == at);
        let counts: Vec<_> = offsets.iter().map(|offset| reads.get(offset)).collect();
        // Healing reads the copies again.
        let exact = is_bad || counts.iter().all(|count| *count == Some(&1));
        assert!(exact, "record {at:?} was read {counts:?} times");
    }
    for (object, record) in &lost {
        let text = format!("dataset data, object {object}, block {record}:");
        let found = report.lost.iter().filter(|found| found.to_string().starts_with(&text)).count();
        let listed = report.lost_count > report.lost.len() as u64;
        assert!(found == 1 || (found == 0 && listed), "{text} found {found} times");
    }
    assert!(report.lost_count >= lost.len() as u64);
    assert!(report.healed >= bad.len() as u64);
    let overtaken = counter(&changing.pool, "scrub_slices_overtaken");
    assert_eq!(counter(&changing.pool, "commits_waited_for_scrub"), 0);
    changing.verify(&lost);
    overtaken
}

#[test]
fn a_scrub_of_a_changing_pool_misses_and_doubles_nothing() {
    let first = testing::seed(1);
    let rounds = if testing::full() { 40 } else { 3 };
    let mut overtaken = 0;
    for seed in first..first + rounds {
        for slice_blocks in ["7", "500", "100000"] {
            overtaken += scrub_a_changing_pool(seed, slice_blocks);
        }
    }
    assert!(overtaken > 0, "no block was freed and reused under the scrub");
}

fn check_a_changing_pool(seed: u64, slice_blocks: &str) -> CheckReport {
    let mut changing = Changing::new(seed, slice_blocks);
    let pool = Arc::clone(&changing.pool);
    let report = pool.check(&mut |_| {
        changing.change();
        ControlFlow::Continue(())
    });
    changing.verify(&[]);
    report.expect("it runs")
}

#[test]
fn a_check_of_a_changing_pool_finds_no_problems() {
    let first = testing::seed(1);
    let rounds = if testing::full() { 40 } else { 3 };
    for seed in first..first + rounds {
        for slice_blocks in ["7", "100000"] {
            let report = check_a_changing_pool(seed, slice_blocks);
            assert!(report.is_clean(), "seed {seed}: {report}");
        }
    }
}

/// Offsets of the records of an object, and of their second copies.
fn offsets(device: &Arc<dyn Device>, object: u64, records: u64) -> Vec<u64> {
    let inspector = Inspector::new(vec![Arc::clone(device)]).expect("memory");
    (0..records).flat_map(|record| copies(&inspector, object, record)).collect()
}

#[test]
fn a_copy_is_healed_only_after_its_pointer_was_found() {
    const RECORD_NUMBER: u64 = 100;
    let device = memory(64 * MIB);
    let pool = create(&device, &cache(32 * MIB));
    let number = object(&pool, &dataset(&pool), 200, byte);
    pool.export().expect("exported");
    let inspector = Inspector::new(vec![Arc::clone(&device)]).expect("memory");
    let bad = copies(&inspector, number, RECORD_NUMBER)[1];
    let above = copies_at(&inspector, number, (RECORD_NUMBER, 1));
    overwrite(&device, bad);

    // The walk reads both copies of the indirect block. All later reads of it fail.
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&device), 1));
    for at in above {
        let rule = Rule::new(Fault::Error(5)).on(Op::Read).within(at..at + 512);
        faulty.add(rule.at(Priority::Scrub).after(1));
    }
    let dynamic: Arc<dyn Device> = faulty.clone();
    let pool = import(&dynamic, &cache(32 * MIB));
    let report = scrub(&pool);
    assert!(!faulty.injected().is_empty(), "the lookup reads the indirect block");
    assert_eq!((report.complete, report.healed, report.lost_count), (true, 0, 1), "{report:?}");
    let text = format!("dataset data, object {number}, block {RECORD_NUMBER}: ");
    assert!(report.lost[0].to_string().starts_with(&text), "{:?}", report.lost);
    assert_eq!(report.lost[0].kind, DamageKind::BadCopy, "{:?}", report.lost);
    let read = device.run(Request::read(bad, arena().alloc(RECORD as usize).expect("memory")));
    let content = read.into_buffer().expect("memory");
    assert!(content.iter().all(|byte| *byte == GARBAGE), "the copy was left as it is");

    faulty.clear();
    let report = scrub(&pool);
    assert_eq!((report.complete, report.healed, report.lost_count), (true, 1, 0), "{report:?}");
    check(&pool);
}

#[test]
fn a_scrub_goes_on_after_a_crash() {
    const BYTES: u64 = 64 * MIB;
    const RECORDS: u64 = 600;
    let watched = Watched::new(memory(BYTES));
    let device: Arc<dyn Device> = watched.clone();
    let pool = create(&device, &cache(32 * MIB));
    let data = dataset(&pool);
    let number = object(&pool, &data, RECORDS, byte);
    drop(data);
    pool.sync().expect("a txg");
    let offsets = offsets(&device, number, RECORDS);
    // One in the part before the crash, one in the part after it.
    [offsets[3], offsets[offsets.len() - 3]].iter().for_each(|at| overwrite(&device, *at));
    watched.take_reads();
    let mut crashed = None;
    let report = pool.scrub(&mut |progress| {
        if progress.blocks > 300 && crashed.is_none() {
            // The commit stores the bookmark.
            pool.sync().expect("a txg");
            crashed = Some((copy_of(&device), watched.take_reads(), *progress));
        }
        ControlFlow::Continue(())
    });
    assert!(report.expect("it runs").complete);
    let (copy, before, progress) = crashed.expect("the scrub has come so far");

    let watched = Watched::new(copy);
    let device: Arc<dyn Device> = watched.clone();
    let pool = import(&device, &cache(32 * MIB));
    let status = pool.scrub_status();
    assert_eq!((status.state, status.is_active), (ScrubState::Running, false));
    assert_eq!((status.blocks, status.bytes), (progress.blocks, progress.bytes));
    assert_eq!(status.healed, 1);
    assert!(pool.resume_scrub().expect("it starts"));
    let report = wait(&pool).expect("it ends");
    assert!(report.complete);
    assert_eq!((report.healed, report.lost_count), (2, 0), "{:?}", report.lost);
    let after = watched.take_reads();
    for (n, at) in offsets.iter().enumerate() {
        let reads = before.get(at).unwrap_or(&0) + after.get(at).unwrap_or(&0);
        // A heal reads the other copy again.
        let healed = [2, 3].contains(&n) || n + 4 >= offsets.len();
        assert!(reads == 1 || (healed && reads >= 1), "copy {n} was read {reads} times");
    }
    assert!(!pool.resume_scrub().expect("it is over"));
    check(&pool);
}

#[test]
fn a_scrub_is_paused_resumed_and_stopped() {
    let watched = Watched::new(memory(64 * MIB));
    let device: Arc<dyn Device> = watched.clone();
    let pool = create(&device, &cache(32 * MIB));
    object(&pool, &dataset(&pool), 600, byte);
    assert_eq!(pool.pause_scrub().expect_err("there is none").kind(), ErrorKind::Invalid);
    watched.hold_after(50);
    pool.start_scrub().expect("it starts");
    pool.start_scrub().expect("it runs already");
    watched.wait_held();
    let error = pool.scrub(&mut |_| ControlFlow::Continue(())).expect_err("it runs already");
    assert_eq!(error.kind(), ErrorKind::InUse);
    thread::scope(|scope| {
        let paused = scope.spawn(|| pool.pause_scrub());
        // At this rate it waits after the block that it reads, until it has the request.
        pool.set_tunable("scrub_rate_bytes", "1").expect("a tunable");
        watched.open();
        paused.join().expect("no panic").expect("it is paused");
    });
    let paused = pool.scrub_status();
    assert_eq!((paused.state, paused.is_active), (ScrubState::Paused, false));
    assert!(!pool.resume_scrub().expect("a pause lasts"));

    pool.export().expect("exported");
    let pool = import(&device, &cache(32 * MIB));
    assert_eq!(pool.scrub_status(), paused, "it is durable");
    watched.hold_after(20);
    pool.start_scrub().expect("it goes on");
    watched.wait_held();
    assert_eq!(pool.scrub_status().txg, paused.txg);
    assert!(pool.scrub_status().blocks >= paused.blocks);
    watched.open();
    let report = wait(&pool).expect("it ends");
    assert!(report.complete, "{report:?}");
    assert_eq!(pool.scrub_status().state, ScrubState::Finished);

    watched.hold_after(20);
    pool.start_scrub().expect("a new one");
    watched.wait_held();
    assert!(pool.scrub_status().txg > paused.txg);
    thread::scope(|scope| {
        let stopped = scope.spawn(|| pool.stop_scrub());
        pool.set_tunable("scrub_rate_bytes", "1").expect("a tunable");
        watched.open();
        stopped.join().expect("no panic").expect("it is stopped");
    });
    assert_eq!(pool.scrub_status().state, ScrubState::Stopped);
    check(&pool);
}

#[test]
fn a_scrub_fails_if_the_commit_of_its_end_fails() {
    let faulty = Arc::new(FaultDevice::new(memory(64 * MIB), 1));
    let watched = Watched::new(faulty.clone());
    let device: Arc<dyn Device> = watched.clone();
    let pool = create(&device, &cache(32 * MIB));
    object(&pool, &dataset(&pool), 100, byte);
    watched.hold_after(20);
    pool.start_scrub().expect("it starts");
    watched.wait_held();
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
    watched.open();
    let error = wait(&pool).expect_err("its end is not durable");
    assert!([ErrorKind::Device, ErrorKind::Suspended].contains(&error.kind()), "{error}");
    assert!(wait(&pool).is_err(), "the result stays until the next scrub");
    faulty.clear();
    pool.abandon();
    let pool = import(&device, &cache(32 * MIB));
    assert_ne!(pool.scrub_status().state, ScrubState::Finished);
    assert!(scrub(&pool).complete);
}

#[test]
fn an_export_interrupts_a_scrub_and_a_check() {
    let watched = Watched::new(memory(64 * MIB));
    let device: Arc<dyn Device> = watched.clone();
    let pool = create(&device, &cache(32 * MIB));
    object(&pool, &dataset(&pool), 600, byte);
    watched.hold_after(200);
    pool.start_scrub().expect("it starts");
    watched.wait_held();
    let (begun, begins) = mpsc::channel();
    thread::scope(|scope| {
        let checked = scope.spawn(|| {
            begun.send(()).expect("it is awaited");
            pool.check(&mut |_| ControlFlow::Continue(()))
        });
        begins.recv().expect("it begins");
        let closed = scope.spawn(|| pool.close());
        watched.open();
        closed.join().expect("no panic").expect("exported");
        match checked.join().expect("no panic") {
            Ok(report) => assert!(!report.has_problems(), "{report}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
        }
    });
    drop(pool);
    let pool = import(&device, &cache(32 * MIB));
    let status = pool.scrub_status();
    assert!([ScrubState::Running, ScrubState::Finished].contains(&status.state));
    pool.resume_scrub().expect("it goes on");
    let report = wait(&pool).expect("it ends");
    assert!(report.complete && report.lost_count == 0, "{report:?}");
}

#[test]
fn a_scrub_keeps_its_rate() {
    const RATE: u64 = 1 << 20;
    const STEP_NS: u64 = 20_000_000;
    let clock = Arc::new(ManualClock::new());
    let cache = cache(32 * MIB);
    let dynamic: Arc<dyn Clock> = clock.clone();
    let options = CreateOptions { clock: Some(dynamic), ..create_options(&cache) };
    let pool = Pool::create(vec![memory(64 * MIB).into()], &options).expect("a pool");
    object(&pool, &dataset(&pool), 200, byte);
    pool.set_tunable("scrub_rate_bytes", &RATE.to_string()).expect("a tunable");
    pool.sync().expect("a txg");
    let began_ns = clock.now_ns();
    // It may be ahead by 10 ms and the largest block, two copies of 128 KiB.
    let slack = RATE / 100 + 256 * 1024;
    let mut calls = 0;
    let report = pool.scrub(&mut |progress| {
        calls += 1;
        let passed_ns = u128::from(clock.now_ns() - began_ns);
        let allowed = (passed_ns * u128::from(RATE) / 1_000_000_000) as u64 + slack;
        assert!(progress.bytes <= allowed, "{} of {allowed} bytes", progress.bytes);
        clock.advance(STEP_NS);
        ControlFlow::Continue(())
    });
    let report = report.expect("it runs");
    assert!(report.complete);
    let passed_ns = clock.now_ns() - began_ns;
    assert!(passed_ns / 1_000_000 >= (report.bytes - slack) * 1000 / RATE, "{passed_ns} ns");
    let status = pool.scrub_status();
    assert!(status.bytes_per_second() <= RATE + RATE / 4, "{status:?}");
}
