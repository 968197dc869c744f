//! Two hosts that share a device: one of them gets the pool.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::clock::ManualClock;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, Op, OpenOptions, Priority, Request};
use forebay_pool::format::label::{HEARTBEAT_OFFSET, SLOT_BYTES};
use forebay_pool::inspect::ObjsetName;
use forebay_pool::{
    CreateOptions, DatasetSettings, ErrorKind, HostId, ImportOptions, LabelInfo, Opened, Pool,
    Result, open_path, read_label,
};

use crate::common::{MIB, cache, check, create_options, dataset, import_options, memory};
use crate::errors::damage;

pub(crate) const SIZE: u64 = 64 * MIB;
/// Looks at the block before and after a claim.
const WATCHES: u32 = 5;
const CLAIMS: u32 = 6;
/// The pool's own thread writes no heartbeat during a test.
pub(crate) const INTERVAL_MS: u64 = 60_000;
pub(crate) const NS_PER_MS: u64 = 1_000_000;

pub(crate) fn tunables() -> Vec<(String, String)> {
    vec![("heartbeat_ms".to_owned(), INTERVAL_MS.to_string())]
}

/// A host that has the pool imported.
struct Host {
    pool: Pool,
    clock: Arc<ManualClock>,
}

impl Host {
    fn create(device: &Arc<dyn Device>) -> Self {
        let clock = Arc::new(ManualClock::new());
        let options = CreateOptions {
            clock: Some(clock.clone()),
            tunables: tunables(),
            ..create_options(&cache(32 * MIB))
        };
        let pool = Pool::create(vec![Opened::shared(Arc::clone(device))], &options).unwrap();
        dataset(&pool);
        Self { pool, clock }
    }

    /// More time passes than a lease lasts.
    fn is_held_up(&self) {
        self.clock.advance(10 * INTERVAL_MS * NS_PER_MS);
    }
}

/// Imports the pool on a device that other hosts may have. `during` runs at each look at the
/// heartbeat, with its number. Returns the number of looks as well.
pub(crate) fn import_with(
    device: &Arc<dyn Device>,
    options: ImportOptions,
    during: impl Fn(u32) + Send + Sync + 'static,
) -> (Result<Pool>, u32) {
    let looks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&looks);
    let pause = move |time: Duration| {
        assert_eq!(time, Duration::from_millis(INTERVAL_MS));
        during(counted.fetch_add(1, Ordering::SeqCst));
    };
    let options = ImportOptions { pause: Some(Arc::new(pause)), tunables: tunables(), ..options };
    let imported = Pool::import(vec![Opened::shared(Arc::clone(device))], &options);
    (imported, looks.load(Ordering::SeqCst))
}

pub(crate) fn options() -> ImportOptions {
    import_options(&cache(32 * MIB))
}

pub(crate) fn suspended(pool: &Pool, why: &str) {
    let stats = pool.stats();
    let text = stats.suspended.expect("it is suspended").to_string();
    assert!(text.contains(why), "{text}");
    assert_eq!(pool.begin().unwrap_err().kind(), ErrorKind::Suspended);
}

#[test]
fn an_import_refuses_a_pool_whose_heartbeat_goes_on_whatever_the_host_ids_are() {
    let device = memory(SIZE);
    let host = Host::create(&device);
    let pool = Arc::new(host.pool);
    // The same id, as of a cloned machine; none; and another one with force.
    let ids = [(1, false), (0, true), (2, true), (1, true)];
    for (id, force) in ids {
        let beating = Arc::clone(&pool);
        let host = HostId { id, name: "other".to_owned() };
        let options = ImportOptions { host, force, ..options() };
        let (imported, looks) = import_with(&device, options, move |_| beating.heartbeat());
        let error = imported.unwrap_err();
        assert_eq!((error.kind(), looks), (ErrorKind::InUse, 1), "{error}");
        assert!(error.to_string().contains("host \"test\""), "{error}");
    }
    // It was not disturbed.
    assert_eq!(pool.stats().suspended, None);
    pool.sync().unwrap();
    check(&pool);
}

#[test]
fn a_pool_whose_owner_is_gone_is_taken_over_after_a_watch() {
    let device = memory(SIZE);
    Host::create(&device).pool.abandon();
    let (imported, looks) = import_with(&device, options(), |_| {});
    let pool = imported.unwrap();
    assert_eq!(looks, WATCHES + CLAIMS);
    assert_eq!(pool.datasets().unwrap(), ["data"]);
    check(&pool);
    pool.export().unwrap();
    // An exported pool needs no watch.
    let (imported, looks) = import_with(&device, options(), |_| {});
    imported.unwrap().export().unwrap();
    assert_eq!(looks, 0);
}

#[test]
fn a_process_that_was_held_up_writes_nothing_after_a_takeover() {
    for beats in [true, false] {
        let device = memory(SIZE);
        let late = Host::create(&device);
        let (imported, _) = import_with(&device, options(), |_| {});
        let pool = imported.unwrap();
        late.is_held_up();
        match beats {
            true => late.pool.heartbeat(),
            // Its own commit asks for the lease.
            false => assert_eq!(late.pool.sync().unwrap_err().kind(), ErrorKind::Suspended),
        }
        suspended(&late.pool, "has taken it over");
        late.pool.export().unwrap_err();
        pool.sync().unwrap();
        assert_eq!(pool.stats().suspended, None);
        check(&pool);
    }
}

#[test]
fn a_process_that_was_held_up_goes_on_if_nobody_came() {
    let device = memory(SIZE);
    let host = Host::create(&device);
    host.is_held_up();
    host.pool.sync().unwrap();
    host.is_held_up();
    host.pool.heartbeat();
    assert_eq!(host.pool.stats().suspended, None);
    check(&host.pool);
    host.pool.export().unwrap();
}

#[test]
fn a_process_that_was_held_up_notices_a_host_that_has_come_and_gone() {
    let device = memory(SIZE);
    let late = Host::create(&device);
    // The block as the late process wrote it comes back, as if its write had been under way.
    let block = read_block(&device);
    let (imported, _) = import_with(&device, options(), |_| {});
    imported.unwrap().export().unwrap();
    write_block(&device, &block);
    late.is_held_up();
    assert_eq!(late.pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    suspended(&late.pool, "another host has taken it over");
}

fn read_block(device: &Arc<dyn Device>) -> Vec<u8> {
    let cache = cache(8 * MIB);
    let buffer = cache.arena().alloc(SLOT_BYTES).unwrap();
    let read = device.run(Request::read(HEARTBEAT_OFFSET, buffer));
    read.into_buffer().unwrap().to_vec()
}

fn write_block(device: &Arc<dyn Device>, bytes: &[u8]) {
    let cache = cache(8 * MIB);
    let mut buffer = cache.arena().alloc(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    device.run(Request::write(HEARTBEAT_OFFSET, buffer)).result.unwrap();
}

#[test]
fn of_two_imports_at_once_one_gets_the_pool() {
    // The second import begins in the watch of the first, or in its claim.
    for at in [WATCHES - 1, WATCHES + CLAIMS - 1] {
        let device = memory(SIZE);
        Host::create(&device).pool.abandon();
        let other = Arc::clone(&device);
        let (imported, looks) = import_with(&device, options(), move |look| {
            if look == at {
                // It sees no change in its watch, because the first one waits for it.
                let (imported, _) = import_with(&other, options(), |_| {});
                imported.unwrap().export().unwrap();
            }
        });
        assert_eq!(imported.unwrap_err().kind(), ErrorKind::InUse);
        assert_eq!(looks, at + 1);
    }
}

/// A device on which a write to this offset is queued for long: so many others come first.
struct QueuedWrite {
    inner: Arc<dyn Device>,
    offset: u64,
    others: AtomicU32,
    meanwhile: Mutex<Option<During>>,
}

impl QueuedWrite {
    fn on(
        inner: &Arc<dyn Device>,
        offset: u64,
        others: u32,
        meanwhile: impl FnOnce() + Send + 'static,
    ) -> Arc<dyn Device> {
        let inner = Arc::clone(inner);
        let meanwhile = Mutex::new(Some(Box::new(meanwhile) as During));
        Arc::new(Self { inner, offset, others: AtomicU32::new(others), meanwhile })
    }
}

impl Decorator for QueuedWrite {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() == Op::Write && request.offset() == self.offset {
            let is_next = |left: u32| left.checked_sub(1);
            let others = self.others.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_next);
            let meanwhile = others.err().and_then(|_| self.meanwhile.lock().unwrap().take());
            meanwhile.into_iter().for_each(|meanwhile| meanwhile());
        }
        Some(request)
    }
}

/// The lease of the one that is held up goes on.
#[test]
fn of_two_imports_that_do_not_watch_at_most_one_gets_the_pool() {
    // Its claim, the heartbeat that confirms that, and its first label.
    for (offset, others) in [(HEARTBEAT_OFFSET, 0), (HEARTBEAT_OFFSET, 1), (0, 0)] {
        let memory = memory(SIZE);
        Host::create(&memory).pool.export().unwrap();
        let faster = Arc::new(Mutex::new(None));
        let (imported, shared) = (Arc::clone(&faster), Arc::clone(&memory));
        let meanwhile = move || {
            let (pool, looks) = import_with(&shared, options(), |_| {});
            assert_eq!(looks, 0, "it was exported");
            *imported.lock().unwrap() = Some(pool.expect("nobody has it"));
        };
        let device = QueuedWrite::on(&memory, offset, others, meanwhile);
        let (late, looks) = import_with(&device, options(), |_| {});
        let error = late.unwrap_err();
        assert_eq!((error.kind(), looks), (ErrorKind::InUse, 0), "{error}");
        assert!(error.to_string().contains("imports it at the same time"), "{error}");
        let pool = faster.lock().unwrap().take().expect("it was imported");
        let owner = read_block(&memory)[48..64].to_vec();
        if offset == 0 {
            assert_ne!(owner, [0; 16]);
            pool.heartbeat();
            pool.sync().unwrap();
            assert_eq!(pool.stats().suspended, None);
            check(&pool);
            pool.abandon();
        } else {
            // It takes the late claim for a takeover.
            pool.heartbeat();
            suspended(&pool, "has taken it over");
            // The lock of the late host proves nothing of this one.
            assert_eq!(owner, [0; 16]);
            pool.export().unwrap_err();
        }
        let (imported, looks) = import_with(&memory, options(), |_| {});
        assert_eq!(looks, WATCHES + CLAIMS);
        let pool = imported.unwrap();
        check(&pool);
        pool.export().unwrap();
    }
}

#[test]
fn an_import_that_fails_leaves_newer_labels_of_another_one() {
    let memory = memory(SIZE);
    Host::create(&memory).pool.export().unwrap();
    let newest = Arc::new(Mutex::new(None));
    let (written, shared) = (Arc::clone(&newest), Arc::clone(&memory));
    let meanwhile = move || {
        let (pool, looks) = import_with(&shared, options(), |_| {});
        assert_eq!(looks, 0, "it was exported");
        pool.expect("nobody has it").export().unwrap();
        *written.lock().unwrap() = Some(label(&shared));
    };
    let (late, _) = import_with(&QueuedWrite::on(&memory, 0, 0, meanwhile), options(), |_| {});
    let error = late.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let newest = newest.lock().unwrap().take().expect("it was imported");
    let left = label(&memory);
    assert_eq!((left.generation, left.active), (newest.generation, false));
    let (imported, looks) = import_with(&memory, options(), |_| {});
    assert_eq!(looks, 0, "it was exported");
    let pool = imported.unwrap();
    check(&pool);
    pool.export().unwrap();
}

fn label(device: &Arc<dyn Device>) -> LabelInfo {
    let opened = Opened::from(Arc::clone(device));
    read_label(&opened, &cache(32 * MIB)).unwrap().expect("a label")
}

#[test]
fn a_pool_whose_heartbeat_cannot_be_written_commits_nothing_after_the_lease() {
    let device = memory(SIZE);
    let faulty = Arc::new(FaultDevice::new(device, 1));
    let dynamic: Arc<dyn Device> = faulty.clone();
    let host = Host::create(&dynamic);
    let block = HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + SLOT_BYTES as u64;
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write).within(block));
    host.pool.heartbeat();
    assert_eq!(host.pool.stats().suspended, None, "one failure is not the end");
    host.is_held_up();
    host.pool.heartbeat();
    let written = faulty.injected().len();
    assert!(written >= 2, "the heartbeat was tried again");
    host.pool.sync().unwrap_err();
    suspended(&host.pool, "no heartbeat for 4 intervals");
    faulty.clear();
    host.pool.clear().unwrap();
    host.pool.sync().unwrap();
    assert_eq!(host.pool.stats().suspended, None);
}

/// A host that cannot write its heartbeat, and whose lease is over.
fn cut_off(device: &Arc<dyn Device>) -> (Host, Arc<FaultDevice>) {
    let faulty = Arc::new(FaultDevice::new(Arc::clone(device), 1));
    let dynamic: Arc<dyn Device> = faulty.clone();
    let host = Host::create(&dynamic);
    let block = HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + SLOT_BYTES as u64;
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write).within(block));
    host.is_held_up();
    (host, faulty)
}

/// The caller can wait for the end of a suspension, but not for that of a device error.
#[test]
fn an_fsync_without_a_lease_suspends_the_pool() {
    let (host, faulty) = cut_off(&memory(SIZE));
    let data = host.pool.dataset("data").unwrap();
    let tx = host.pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    assert_eq!(data.fsync(number).unwrap_err().kind(), ErrorKind::Suspended);
    suspended(&host.pool, "no heartbeat for 4 intervals");
    faulty.clear();
    host.pool.clear().unwrap();
    data.fsync(number).unwrap();
}

/// Neither does each one take stack of the pool's thread.
#[test]
fn clears_that_fail_leave_the_pool_as_it_was() {
    let (host, faulty) = cut_off(&memory(SIZE));
    host.pool.sync().unwrap_err();
    for _ in 0..10_000 {
        assert_eq!(host.pool.clear().unwrap_err().kind(), ErrorKind::Suspended);
    }
    faulty.clear();
    host.pool.clear().unwrap();
    host.pool.sync().unwrap();
}

#[test]
fn a_takeover_ends_a_suspension_for_good() {
    let device = memory(SIZE);
    let (late, faulty) = cut_off(&device);
    late.pool.sync().unwrap_err();
    assert!(late.pool.stats().suspended.unwrap().resumable);
    let (imported, _) = import_with(&device, options(), |_| {});
    let pool = imported.unwrap();
    faulty.clear();
    late.pool.heartbeat();
    assert!(!late.pool.stats().suspended.unwrap().resumable);
    // Nobody waits for a clear any more, and neither does the export.
    assert_eq!(late.pool.wait_resumed(&|| false).unwrap_err().kind(), ErrorKind::Suspended);
    late.pool.export().unwrap_err();
    pool.sync().unwrap();
    check(&pool);
}

/// A device during whose writes of a commit time passes.
struct SlowWrites {
    inner: Arc<dyn Device>,
    clock: Arc<ManualClock>,
    /// Writes of a commit until the host is held up; none if it is not.
    left: Mutex<Option<u64>>,
    /// Writes of commits since it was held up.
    late: AtomicU32,
    /// Whether the write during which it was held up was executed.
    executed: Arc<AtomicBool>,
}

impl SlowWrites {
    fn hold_up_after(&self, writes: u64) {
        *self.left.lock().unwrap() = Some(writes);
    }
}

impl Decorator for SlowWrites {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() != Op::Write || request.priority() != Priority::AsyncWrite {
            return Some(request);
        }
        let mut left = self.left.lock().unwrap();
        match &mut *left {
            None => {}
            Some(0) => drop(self.late.fetch_add(1, Ordering::SeqCst)),
            Some(1) => {
                *left = Some(0);
                self.clock.advance(10 * INTERVAL_MS * NS_PER_MS);
                // It was in the queue all the time.
                let executed = Arc::clone(&self.executed);
                return Some(request.layered(move |completion| {
                    executed.store(completion.result.is_ok(), Ordering::SeqCst);
                }));
            }
            Some(more) => *more -= 1,
        }
        Some(request)
    }
}

/// The commit was held up in its middle, and another host has come meanwhile, or not.
#[test]
fn a_commit_that_is_held_up_in_its_middle_writes_nothing_after_a_takeover() {
    for taken_over in [true, false] {
        let (memory, clock) = (memory(SIZE), Arc::new(ManualClock::new()));
        let slow = Arc::new(SlowWrites {
            inner: Arc::clone(&memory),
            clock: Arc::clone(&clock),
            left: Mutex::default(),
            late: AtomicU32::new(0),
            executed: Arc::new(AtomicBool::new(true)),
        });
        let device: Arc<dyn Device> = Arc::clone(&slow) as Arc<dyn Device>;
        let options = CreateOptions {
            clock: Some(clock),
            tunables: tunables(),
            ..create_options(&cache(32 * MIB))
        };
        let late = Pool::create(vec![Opened::shared(device)], &options).unwrap();
        let data = dataset(&late);
        let number = {
            let tx = late.begin().unwrap();
            let number = data.create_object(&tx, &[]).unwrap();
            data.object(number).unwrap().write(&tx, 0, &[7; 40 * 8192]).unwrap();
            number
        };
        let other = taken_over.then(|| import_with(&memory, self::options(), |_| {}).0.unwrap());
        slow.hold_up_after(3);
        let synced = late.sync();
        let late_writes = slow.late.load(Ordering::SeqCst);
        assert!(!slow.executed.load(Ordering::SeqCst), "it was issued after the lease");
        if let Some(pool) = other {
            assert_eq!(synced.unwrap_err().kind(), ErrorKind::Suspended);
            suspended(&late, "has taken it over");
            assert_eq!(late_writes, 0, "it wrote blocks that may be another host's");
            drop(data);
            late.export().unwrap_err();
            assert_eq!(slow.late.load(Ordering::SeqCst), 0);
            pool.sync().unwrap();
            check(&pool);
        } else {
            synced.unwrap();
            assert!(late_writes > 40, "it went on");
            let mut found = vec![0; 40 * 8192];
            data.object(number).unwrap().read(0, &mut found).unwrap();
            assert_eq!(found, [7; 40 * 8192]);
            check(&late);
        }
    }
}

type During = Box<dyn FnOnce() + Send>;

/// A device whose front labels take longer than a lease.
struct SlowLabels {
    inner: Arc<dyn Device>,
    clock: Arc<ManualClock>,
    /// What happens while the next one is queued. Without it, the flush takes the time.
    queued: Mutex<Option<During>>,
    flush_is_slow: AtomicBool,
}

impl SlowLabels {
    fn over(inner: &Arc<dyn Device>, clock: &Arc<ManualClock>) -> Arc<Self> {
        let (inner, clock) = (Arc::clone(inner), Arc::clone(clock));
        Arc::new(Self { inner, clock, queued: Mutex::default(), flush_is_slow: false.into() })
    }
}

impl Decorator for SlowLabels {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        let pass = || self.clock.advance(10 * INTERVAL_MS * NS_PER_MS);
        if request.op() == Op::Flush && self.flush_is_slow.swap(false, Ordering::SeqCst) {
            pass();
        }
        if request.op() == Op::Write && request.offset() == 0 {
            match self.queued.lock().unwrap().take() {
                Some(queued) => {
                    pass();
                    queued();
                }
                None => self.flush_is_slow.store(true, Ordering::SeqCst),
            }
        }
        Some(request)
    }
}

/// Each change of a label takes longer than a lease. Nobody else wants the pool.
#[test]
fn a_slow_disk_is_imported_grown_and_exported() {
    let memory = memory(SIZE);
    Host::create(&memory).pool.export().unwrap();
    let clock = Arc::new(ManualClock::new());
    let device = SlowLabels::over(&memory, &clock) as Arc<dyn Device>;
    let options = ImportOptions { clock: Some(clock), ..options() };
    let pool = import_with(&device, options, |_| {}).0.expect("it is healthy");
    let more = crate::common::memory(SIZE);
    pool.add_device(Opened::shared(more), false, None).expect("it is healthy");
    check(&pool);
    pool.export().expect("it is healthy");
}

/// What an export with a late lease does: it looks, and goes on if nobody came.
#[test]
fn an_export_writes_nothing_after_a_takeover() {
    for taken_over in [false, true] {
        let memory = memory(SIZE);
        let clock = Arc::new(ManualClock::new());
        let slow = SlowLabels::over(&memory, &clock);
        let device = Arc::clone(&slow) as Arc<dyn Device>;
        let options = CreateOptions {
            clock: Some(clock),
            tunables: tunables(),
            ..create_options(&cache(32 * MIB))
        };
        let late = Pool::create(vec![Opened::shared(device)], &options).unwrap();
        let other = Arc::new(Mutex::new(None));
        let (imported, shared) = (Arc::clone(&other), Arc::clone(&memory));
        let take_over = move || {
            if taken_over {
                let pool = import_with(&shared, self::options(), |_| {}).0.unwrap();
                *imported.lock().unwrap() = Some(pool);
            }
        };
        *slow.queued.lock().unwrap() = Some(Box::new(take_over));
        let exported = late.export();
        if !taken_over {
            exported.expect("nobody came");
            let (imported, looks) = import_with(&memory, self::options(), |_| {});
            imported.unwrap().export().unwrap();
            assert_eq!(looks, 0, "it was exported");
            continue;
        }
        assert_eq!(exported.unwrap_err().kind(), ErrorKind::InUse);
        let pool = other.lock().unwrap().take().unwrap();
        pool.sync().unwrap();
        pool.abandon();
        let (imported, looks) = import_with(&memory, self::options(), |_| {});
        imported.unwrap().export().unwrap();
        assert_eq!(looks, WATCHES + CLAIMS, "the labels were those of the other host");
    }
}

/// Another host may have reused the space of a copy that looks bad.
#[test]
fn readers_heal_no_copy_without_a_lease() {
    let device = memory(SIZE);
    let (clock, cache) = (Arc::new(ManualClock::new()), cache(32 * MIB));
    let options = CreateOptions {
        clock: Some(clock.clone()),
        tunables: tunables(),
        ..create_options(&cache)
    };
    let pool = Pool::create(vec![Opened::shared(Arc::clone(&device))], &options).unwrap();
    let host = Host { pool, clock };
    let settings = DatasetSettings { data_copies: 2, ..DatasetSettings::default() };
    let data = host.pool.create_dataset("twice", &settings).unwrap();
    let tx = host.pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    data.object(number).unwrap().write(&tx, 0, &[7; 4096]).unwrap();
    drop(tx);
    host.pool.sync().unwrap();
    damage(&device, ObjsetName::Dataset("twice"), number, (0, 0), 0);
    let healed_by_a_read = || {
        cache.cache().clear();
        let mut found = [0; 4096];
        data.object(number).unwrap().read(0, &mut found).unwrap();
        assert_eq!(found, [7; 4096]);
        let counters = host.pool.stats().counters;
        counters.iter().find(|(name, ..)| *name == "healed").unwrap().2
    };
    host.is_held_up();
    assert_eq!(healed_by_a_read(), 0);
    host.pool.heartbeat();
    assert_eq!(healed_by_a_read(), 1);
    drop(data);
    host.pool.export().unwrap();
}

#[test]
fn a_lock_of_this_kernel_proves_that_the_owner_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("device"), folder.path().join("copy"));
    let file = OpenOptions { create_bytes: Some(16 << 20), ..OpenOptions::default() };
    let options = CreateOptions { tunables: tunables(), ..create_options(&cache(32 * MIB)) };
    let pool = Pool::create(vec![open_path(&path, &file).unwrap()], &options).unwrap();
    pool.abandon();
    std::fs::copy(&path, &copy).unwrap();
    let import = |path: &std::path::Path| {
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        let pause = move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let options = ImportOptions {
            pause: Some(Arc::new(pause)),
            tunables: tunables(),
            ..import_options(&cache(32 * MIB))
        };
        let opened = open_path(path, &OpenOptions::default()).unwrap();
        let pool = Pool::import(vec![opened], &options).unwrap();
        check(&pool);
        pool.abandon();
        looks.load(Ordering::SeqCst)
    };
    assert_eq!(import(&path), 0);
    // The lock of another file proves nothing.
    assert_eq!(import(&copy), WATCHES + CLAIMS);
}

#[test]
fn without_heartbeats_nothing_is_watched_and_nothing_written() {
    let device = memory(SIZE);
    let off = vec![("heartbeat_ms".to_owned(), "0".to_owned())];
    let options = CreateOptions { tunables: off, ..create_options(&cache(32 * MIB)) };
    let pool = Pool::create(vec![Opened::shared(Arc::clone(&device))], &options).unwrap();
    let before = read_block(&device);
    pool.heartbeat();
    assert_eq!(read_block(&device), before);
    pool.abandon();
    let (imported, looks) = import_with(&device, self::options(), |_| {});
    check(&imported.unwrap());
    assert_eq!(looks, 0);
}
