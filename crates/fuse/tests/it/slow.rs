//! The log of slow operations, on a device that is slow on request.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use forebay_fs::{FileSystem, FsOptions, Owner};
use forebay_fuse::Mount;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};
use forebay_pool::format::SyncMode;
use forebay_pool::{BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Pool};
use tempfile::TempDir;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::{HANG, options, permitted};

/// The fields of an event as text.
type Fields = HashMap<&'static str, String>;

/// Events of all tests of this process.
static EVENTS: Mutex<Vec<Fields>> = Mutex::new(Vec::new());

/// Keeps events.
struct Keeper;

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        EVENTS.lock().expect("no panic").push(fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A mounted pool whose device can be slow.
struct Mounted {
    name: String,
    at: TempDir,
    faults: Arc<FaultDevice>,
    cache: Arc<BlockCache>,
    fs: FileSystem,
    mount: Mount,
}

impl Mounted {
    fn new(sync: SyncMode) -> Self {
        static ONCE: Once = Once::new();
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        ONCE.call_once(|| tracing::subscriber::set_global_default(Keeper).expect("the first"));
        let name = format!("slow{}/main", NUMBER.fetch_add(1, Ordering::Relaxed));
        let memory = MemoryDevice::new("memory", 64 << 20, &MemoryOptions::default());
        let faults = Arc::new(FaultDevice::new(Arc::new(memory.expect("memory")), 1));
        let cache = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
        let cache = BlockCache::new(cache).expect("a cache");
        let device = Arc::clone(&faults) as Arc<dyn Device>;
        let create = CreateOptions::new("test", cache.clone());
        let pool = Pool::create(vec![device.into()], &create).expect("a pool");
        let settings = DatasetSettings { sync, ..DatasetSettings::default() };
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "main", &settings, owner).expect("files");
        let fs = FileSystem::open_in(Arc::new(pool), "main", &FsOptions::default());
        let (fs, at) = (fs.expect("files"), tempfile::tempdir().expect("a directory"));
        let mut options = options(false);
        options.fs_name.clone_from(&name);
        let mount = forebay_fuse::mount(fs.clone(), at.path(), &options).expect("a mount");
        let mounted = Self { name, at, faults, cache, fs, mount };
        mounted.set_limit(20);
        mounted
    }

    fn set_limit(&self, ms: u32) {
        self.fs.pool().set_tunable("slow_op_ms", &ms.to_string()).expect("it is a tunable");
    }

    fn slow_down(&self, op: Op) {
        self.faults.add(Rule::new(Fault::Delay(Duration::from_millis(200))).on(op));
    }

    /// Slow operations of that type that were logged, oldest first. An operation is logged after it
    /// is answered.
    fn logged(&self, operation: &str) -> Vec<Fields> {
        let events = EVENTS.lock().expect("no panic");
        let is_it = |event: &&Fields| {
            let has = |field: &str, value: &str| event.get(field).is_some_and(|is| is == value);
            has("message", "slow operation") && has("fs", &self.name) && has("operation", operation)
        };
        events.iter().filter(is_it).cloned().collect()
    }

    /// The first slow operation of that type, once it is logged.
    fn first_logged(&self, operation: &str) -> Fields {
        let end = Instant::now() + HANG;
        loop {
            if let Some(first) = self.logged(operation).into_iter().next() {
                return first;
            }
            assert!(Instant::now() < end, "no slow {operation} is logged");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(self) {
        self.faults.clear();
        self.mount.unmount().expect("it unmounts");
        let pool = self.fs.pool().clone();
        drop(self.mount);
        self.fs.close().expect("it is closed");
        drop(self.fs);
        Arc::into_inner(pool).expect("the last reference").export().expect("it is exported");
    }
}

#[track_caller]
fn ms(event: &Fields, field: &str) -> u64 {
    event[field].parse().unwrap_or_else(|_| panic!("{field} in {event:?}"))
}

#[test]
fn a_read_waits_for_its_device() {
    if !permitted() {
        return;
    }
    let mounted = Mounted::new(SyncMode::Log);
    let path = mounted.at.path().join("file");
    fs::write(&path, [7; 100_000]).expect("a file");
    mounted.fs.pool().sync().expect("a commit");
    mounted.cache.cache().clear();
    mounted.slow_down(Op::Read);
    // Without a limit nothing is logged.
    mounted.set_limit(0);
    assert_eq!(fs::read(&path).expect("it reads").len(), 100_000);
    assert!(mounted.logged("read").is_empty());
    mounted.set_limit(20);
    mounted.cache.cache().clear();
    assert_eq!(fs::read(&path).expect("it reads").len(), 100_000);
    let read = &mounted.first_logged("read");
    assert!(ms(read, "device_ms") > 0, "{read:?}");
    assert!(ms(read, "took_ms") >= 20 && ms(read, "device_ms") <= ms(read, "took_ms"), "{read:?}");
    // On a busy machine, the holder of a lock may have to wait for a CPU.
    assert!(ms(read, "lock_ms") < ms(read, "device_ms"), "{read:?}");
    assert_eq!(ms(read, "transaction_ms"), 0, "{read:?}");
    mounted.end();
}

#[test]
fn an_fsync_waits_for_the_log_or_for_its_group() {
    if !permitted() {
        return;
    }
    for (sync, waits, waits_not) in [
        (SyncMode::Log, "device_ms", "transaction_ms"),
        (SyncMode::Txg, "transaction_ms", "device_ms"),
    ] {
        let mounted = Mounted::new(sync);
        let mut file = File::create(mounted.at.path().join("file")).expect("a file");
        // The log needs a group that has its place.
        mounted.fs.pool().sync().expect("a commit");
        file.write_all(&[7; 10_000]).expect("it writes");
        mounted.slow_down(Op::Write);
        file.sync_all().expect("it syncs");
        let fsync = &mounted.first_logged("fsync");
        assert!(ms(fsync, waits) > ms(fsync, waits_not), "{fsync:?}");
        let parts = ["lock_ms", "transaction_ms", "device_ms", "queue_ms", "cpu_ms"];
        let sum: u64 = parts.iter().map(|part| ms(fsync, part)).sum();
        assert!(sum <= ms(fsync, "took_ms"), "{fsync:?}");
        drop(file);
        mounted.end();
    }
}
