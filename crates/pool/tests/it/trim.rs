//! Freed space goes back to the devices.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::clock::ManualClock;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, DeviceStats, FileDevice, Op, OpenOptions, Request};
use forebay_pool::{
    CreateOptions, Dataset, ErrorKind, ImportOptions, Object, Opened, Pool, TrimReport, open_path,
};

use crate::common::{MIB, cache, check, create, create_options, dataset, import_options, memory};

const SIZE: u64 = 32 * MIB;

/// Writes an object, durably.
fn write(pool: &Pool, data: &Dataset, bytes: u64) -> Object {
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    drop(tx);
    let mut content = vec![0; MIB as usize];
    for at in (0..bytes).step_by(MIB as usize) {
        content.iter_mut().enumerate().for_each(|(n, byte)| *byte = (at as usize + n * 7) as u8);
        let tx = pool.begin().unwrap();
        object.write(&tx, at, &content).unwrap();
    }
    pool.sync().unwrap();
    object
}

/// Destroys an object, and commits until its space may be reused.
fn destroy(pool: &Pool, data: &Dataset, object: Object) {
    let number = object.number();
    drop(object);
    let tx = pool.begin_freeing().unwrap();
    data.destroy(&tx, number).unwrap();
    drop(tx);
    for _ in 0..4 {
        pool.sync().unwrap();
    }
}

fn trim(pool: &Pool) -> TrimReport {
    pool.trim(&mut |_| ControlFlow::Continue(())).expect("the trim runs")
}

fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().find(|(found, _, _)| *found == name).expect("a counter").2
}

/// Bytes that the file system keeps for a file.
fn kept(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Whether the file system of the tests punches holes.
fn punches(folder: &Path) -> bool {
    let path = folder.join("probe");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let device = FileDevice::open(&path, &OpenOptions::default()).unwrap();
    let before = kept(&path);
    let device: &dyn Device = &device;
    let works = device.run(Request::discard(0, 1 << 20)).result.is_ok() && kept(&path) < before;
    if !works {
        forebay_base::testing::skip("punch", "the file system does not punch holes");
    }
    works
}

#[test]
fn an_image_file_shrinks_after_a_deletion() {
    let folder = tempfile::tempdir().unwrap();
    if !punches(folder.path()) {
        return;
    }
    let path = folder.path().join("tank.img");
    let options = OpenOptions { create_bytes: Some(128 * MIB), ..OpenOptions::default() };
    let opened = vec![open_path(&path, &options).unwrap()];
    let cache = cache(16 * MIB);
    let pool = Pool::create(opened, &create_options(&cache)).unwrap();
    let data = dataset(&pool);
    let [first, second] = [0, 1].map(|_| write(&pool, &data, SIZE));
    let full = kept(&path);
    assert!(full > 2 * SIZE);
    // In the background.
    pool.set_tunable("trim_delay_ms", "0").unwrap();
    destroy(&pool, &data, first);
    while kept(&path) >= full - SIZE / 4 * 3 {
        std::thread::yield_now();
    }
    assert!(counter(&pool, "discarded_bytes") >= SIZE / 4 * 3);
    // On request only.
    pool.set_tunable("trim_files", "false").unwrap();
    pool.sync().unwrap();
    let before = (kept(&path), counter(&pool, "discarded_bytes"));
    destroy(&pool, &data, second);
    assert_eq!(counter(&pool, "discarded_bytes"), before.1);
    let report = trim(&pool);
    assert!(report.complete && report.errors == 0 && report.unsupported.is_empty(), "{report:?}");
    assert!(report.bytes >= SIZE, "{report:?}");
    assert!(kept(&path) < before.0 - SIZE / 4 * 3, "{} of {}", kept(&path), before.0);
    check(&pool);
    drop(data);
    pool.export().unwrap();
    let opened = vec![open_path(&path, &OpenOptions::default()).unwrap()];
    check(&Pool::import(opened, &import_options(&cache)).unwrap());
}

#[test]
fn space_that_is_used_again_soon_is_not_discarded() {
    const DELAY: Duration = Duration::from_secs(60);
    let clock = Arc::new(ManualClock::new());
    let (device, cache) = (memory(64 * MIB), cache(16 * MIB));
    let options = CreateOptions { clock: Some(clock.clone()), ..create_options(&cache) };
    let pool = Pool::create(vec![device.into()], &options).unwrap();
    pool.set_tunable("trim_delay_ms", &DELAY.as_millis().to_string()).unwrap();
    pool.set_tunable("trim_rate_bytes", "0").unwrap();
    let data = dataset(&pool);
    // More than the device holds, so that the space is used again.
    for _ in 0..16 {
        let object = write(&pool, &data, 8 * MIB);
        destroy(&pool, &data, object);
    }
    assert_eq!(counter(&pool, "discarded_bytes"), 0);
    // What is free at the end of the delay goes back. The thread may begin to wait late.
    while counter(&pool, "discarded_bytes") < 8 * MIB {
        clock.advance(DELAY.as_nanos() as u64);
        std::thread::yield_now();
    }
    check(&pool);
}

#[test]
fn failed_discards_are_counted_and_suspend_nothing() {
    let faults = Arc::new(FaultDevice::new(memory(64 * MIB), 7));
    let device: Arc<dyn Device> = faults.clone();
    let pool = create(&device, &cache(16 * MIB));
    let data = dataset(&pool);
    let rule = faults.add(Rule::new(Fault::Error(5)).on(Op::Discard));
    let object = write(&pool, &data, 8 * MIB);
    destroy(&pool, &data, object);
    let report = trim(&pool);
    assert!(report.complete && report.errors > 0 && report.bytes == 0, "{report:?}");
    assert!(report.first_error.is_some_and(|error| error.contains("discard")));
    assert!(counter(&pool, "discard_errors") >= report.errors);
    // The space is used all the same, and the device works again.
    let object = write(&pool, &data, 24 * MIB);
    assert!(faults.remove(rule).is_some_and(|times| times > 0));
    destroy(&pool, &data, object);
    let report = trim(&pool);
    assert!(report.errors == 0 && report.bytes > 24 * MIB, "{report:?}");
    check(&pool);
}

/// A device that ignores discards, as one on a file system without holes does.
struct Ignoring(Arc<dyn Device>, AtomicU64);

impl Decorator for Ignoring {
    fn inner(&self) -> &dyn Device {
        &*self.0
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() != Op::Discard {
            return Some(request);
        }
        self.1.fetch_add(1, Ordering::SeqCst);
        request.finish(Ok(()));
        None
    }

    fn own_stats(&self) -> DeviceStats {
        let ignored = self.1.load(Ordering::SeqCst);
        DeviceStats::new(self.0.info().engine.clone(), vec![("discards_ignored", "", ignored)])
    }
}

#[test]
fn a_device_without_discards_is_asked_once_and_named() {
    let ignoring = Arc::new(Ignoring(memory(64 * MIB), Default::default()));
    let device: Arc<dyn Device> = ignoring.clone();
    let pool = create(&device, &cache(16 * MIB));
    for _ in 0..2 {
        let report = trim(&pool);
        assert!(report.complete && report.bytes == 0 && report.errors == 0, "{report:?}");
        assert_eq!(report.unsupported, [device.info().name.to_string()]);
    }
    let data = dataset(&pool);
    let object = write(&pool, &data, 8 * MIB);
    destroy(&pool, &data, object);
    let asked = ignoring.1.load(Ordering::SeqCst);
    assert_eq!(asked, 1);
    assert_eq!(counter(&pool, "discarded_bytes"), 0);
}

/// A device that keeps a list of the discards.
struct Counting(Arc<dyn Device>, Mutex<Vec<(u64, u64)>>);

impl Decorator for Counting {
    fn inner(&self) -> &dyn Device {
        &*self.0
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() == Op::Discard {
            self.1.lock().unwrap().push((request.offset(), request.len()));
        }
        Some(request)
    }
}

#[test]
fn a_trim_is_refused_or_interrupted() {
    let cache = cache(16 * MIB);
    let counting = Arc::new(Counting(memory(256 * MIB), Default::default()));
    let device: Arc<dyn Device> = counting.clone();
    let pool = create(&device, &cache);
    let mut slices = 0;
    let report = pool.trim(&mut |progress| {
        slices += 1;
        assert!(progress.bytes > 0 && progress.bytes <= progress.total_bytes);
        ControlFlow::Break(())
    });
    let report = report.unwrap();
    assert!(!report.complete && report.bytes > 0 && slices == 1, "{report:?}");
    let discards = std::mem::take(&mut *counting.1.lock().unwrap());
    assert_eq!(discards.iter().map(|(_, bytes)| bytes).sum::<u64>(), report.bytes);
    // No file system has to rewrite a part of a block.
    assert!(discards.iter().all(|(at, bytes)| at % 4096 == 0 && bytes % 4096 == 0));
    pool.export().unwrap();
    let options = ImportOptions { read_only: true, ..import_options(&cache) };
    let pool = Pool::import(vec![Opened::from(Arc::clone(&device))], &options).unwrap();
    let refused = pool.trim(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert!(counting.1.lock().unwrap().is_empty());
    pool.export().unwrap();
}

/// An export in the middle of a trim ends it after its slice.
#[test]
fn an_export_ends_a_trim() {
    let device = memory(512 * MIB);
    let pool = Arc::new(create(&device, &cache(16 * MIB)));
    let (sender, began) = std::sync::mpsc::channel();
    let trimming = Arc::clone(&pool);
    let trim = std::thread::spawn(move || {
        trimming.trim(&mut |_| {
            let _ = sender.send(());
            // Until the export has begun.
            while trimming.begin().is_ok() {
                std::thread::yield_now();
            }
            ControlFlow::Continue(())
        })
    });
    began.recv().unwrap();
    pool.close().unwrap();
    let report = trim.join().unwrap().unwrap();
    assert!(!report.complete && report.bytes > 0, "{report:?}");
}
