//! The setting `failmode`: what changes and fsyncs do while the pool is suspended.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forebay_base::clock::ManualWallClock;
use forebay_fs::{Client, ErrorKind, FileSystem, FsOptions, Handle, Ino, Write};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::DatasetSettings;
use forebay_pool::format::FailMode;

use crate::common::{
    Fixture, Killer, ME, MIB, ROOT, counter, file, memory, mkdir, read, symlink, unmount, write,
};

/// A file system with one file, whose device can fail.
struct Failing {
    device: Arc<dyn Device>,
    faults: Arc<FaultDevice>,
    fs: FileSystem,
    ino: Ino,
}

impl Failing {
    fn new(fail_mode: FailMode, options: &FsOptions) -> Self {
        let device = memory(96 * MIB);
        let faults = Arc::new(FaultDevice::new(Arc::clone(&device), 5));
        let fs = Fixture::on(Arc::clone(&faults) as Arc<dyn Device>).mount_with(options);
        let dataset = fs.pool().dataset(fs.name()).expect("the dataset");
        let settings = dataset.settings().expect("settings");
        assert_eq!(settings.fail_mode, FailMode::Continue);
        dataset.set_settings(&DatasetSettings { fail_mode, ..settings }).expect("a commit");
        let (ino, _) = file(&fs, ROOT, b"name");
        write(&fs, ino, 0, b"content");
        fs.fsync(ino, false).expect("durable");
        Self { device, faults, fs, ino }
    }

    /// Suspends the pool.
    fn fail(&self) {
        write(&self.fs, self.ino, 0, b"CONTENT");
        self.refuse();
    }

    /// Suspends the pool, which has changes.
    fn refuse(&self) {
        self.faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
        self.fs.pool().sync().expect_err("a device that takes no writes");
        assert!(self.fs.pool().suspension().is_some_and(|suspension| suspension.resumable));
    }

    fn clear(&self) {
        self.faults.clear();
        self.fs.pool().clear().expect("the device works");
    }

    /// Waits until `count` operations wait for the end of the suspension.
    fn wait_for_waiters(&self, count: u64) {
        while counter(&self.fs, "suspension_waits") < count {
            std::thread::yield_now();
        }
    }
}

fn kind<T>(result: Result<T, forebay_fs::Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn writes(fs: &FileSystem, ino: Ino, offset: u64, data: &[u8]) -> Option<ErrorKind> {
    kind(fs.write(ino, Handle(ino.0), offset, data, Write::default()))
}

#[test]
fn changes_wait_for_a_suspended_pool_and_reads_go_on() {
    let failing = Failing::new(FailMode::Wait, &FsOptions::default());
    let (fs, ino) = (&failing.fs, failing.ino);
    failing.fail();
    // A thread that must not wait is told so, and has changed nothing.
    assert_eq!(writes(&fs.non_blocking(), ino, 3, b"!"), Some(ErrorKind::WouldBlock));
    std::thread::scope(|scope| {
        let changes = [
            scope.spawn(|| writes(fs, ino, 7, b" and more")),
            scope.spawn(|| kind(fs.fsync(ino, false))),
            scope.spawn(|| kind(fs.create(ROOT, b"new", 0o644, ME))),
        ];
        failing.wait_for_waiters(changes.len() as u64);
        assert_eq!(read(fs, ino, 0, 100), b"CONTENT");
        assert_eq!(fs.lookup(ROOT, b"name").expect("a name").attr.size, 7);
        // The waiting thread still waits.
        fs.pool().clear().expect_err("the device fails");
        assert!(changes.iter().all(|change| !change.is_finished()));
        failing.clear();
        for change in changes {
            assert_eq!(change.join().expect("no panic"), None);
        }
    });
    assert_eq!(read(fs, ino, 0, 100), b"CONTENT and more");
    fs.lookup(ROOT, b"new").expect("it was created");
    unmount(failing.fs);
}

/// What an fsync that waited has promised.
#[test]
fn an_fsync_that_waited_is_durable_when_it_returns() {
    let failing = Failing::new(FailMode::Wait, &FsOptions::default());
    failing.fail();
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| kind(failing.fs.fsync(failing.ino, true)));
        failing.wait_for_waiters(1);
        failing.clear();
        assert_eq!(synced.join().expect("no panic"), None);
    });
    // As a crash.
    failing.faults.crash(forebay_io::fault::Crash::LoseAll).expect("a crash");
    let _ = failing.fs.close();
    let fs = Fixture::of(failing.device).mount();
    let ino = fs.lookup(ROOT, b"name").expect("a name").attr.ino;
    assert_eq!(read(&fs, ino, 0, 100), b"CONTENT");
    unmount(fs);
}

#[test]
fn changes_fail_at_once_if_the_dataset_says_so() {
    let failing = Failing::new(FailMode::Continue, &FsOptions::default());
    let (fs, ino) = (&failing.fs, failing.ino);
    failing.fail();
    for fs in [fs, &fs.non_blocking()] {
        assert_eq!(writes(fs, ino, 0, b"more"), Some(ErrorKind::Suspended));
        assert_eq!(kind(fs.create(ROOT, b"new", 0o644, ME)), Some(ErrorKind::Suspended));
    }
    assert_eq!(kind(fs.fsync(ino, false)), Some(ErrorKind::Suspended));
    assert_eq!(read(fs, ino, 0, 100), b"CONTENT");
    assert_eq!(counter(fs, "suspension_waits"), 0);
    failing.clear();
    assert_eq!(writes(fs, ino, 0, b"more"), None);
    assert_eq!(kind(fs.fsync(ino, false)), None);
    unmount(failing.fs);
}

/// More changes wait than there are worker threads.
#[test]
fn waiting_changes_leave_threads_to_others() {
    let options = FsOptions { workers: 2, ..FsOptions::default() };
    let failing = Failing::new(FailMode::Wait, &options);
    failing.fail();
    let (done, changes) = mpsc::channel();
    for n in 0..12 {
        let (done, ino) = (done.clone(), failing.ino);
        failing.fs.spawn(Box::new(move |fs| {
            done.send(writes(fs, ino, n * 8192, b"change")).expect("a receiver");
        }));
    }
    failing.wait_for_waiters(12);
    let (done, reads) = mpsc::channel();
    let ino = failing.ino;
    failing.fs.spawn(Box::new(move |fs| done.send(read(fs, ino, 0, 7)).expect("a receiver")));
    assert_eq!(reads.recv().expect("a read"), b"CONTENT");
    assert!(changes.try_recv().is_err());
    failing.clear();
    for _ in 0..12 {
        assert_eq!(changes.recv().expect("a change"), None);
    }
    unmount(failing.fs);
}

#[test]
fn a_killed_process_waits_no_longer() {
    let failing = Failing::new(FailMode::Wait, &FsOptions::default());
    let killer = Arc::new(Killer::default());
    failing.fs.set_client(Some(Arc::clone(&killer) as Arc<dyn Client>));
    failing.fail();
    let ino = failing.ino;
    std::thread::scope(|scope| {
        let of = |process| failing.fs.for_process(process);
        let (first, second, unknown) = (of(7), of(8), of(0));
        let write = scope.spawn(move || writes(&first, ino, 0, b"1"));
        let sync = scope.spawn(move || kind(second.fsync(ino, false)));
        let other = scope.spawn(move || writes(&unknown, ino, 1, b"2"));
        failing.wait_for_waiters(3);
        killer.killed.store(7, Ordering::Relaxed);
        assert_eq!(write.join().expect("no panic"), Some(ErrorKind::Interrupted));
        assert!(!sync.is_finished() && !other.is_finished());
        killer.killed.store(8, Ordering::Relaxed);
        assert_eq!(sync.join().expect("no panic"), Some(ErrorKind::Interrupted));
        assert!(!other.is_finished());
        failing.clear();
        assert_eq!(other.join().expect("no panic"), None);
    });
    assert_eq!(read(&failing.fs, ino, 0, 100), b"C2NTENT");
    failing.fs.set_client(None);
    unmount(failing.fs);
}

/// Who asks not to wait still has the data, and writes it later: nothing is lost. Otherwise more
/// lost ranges than are told apart would leave gaps that nobody writes.
#[test]
fn a_write_back_that_is_refused_only_for_now_is_not_lost() {
    const RANGES: u64 = 100;
    let failing = Failing::new(FailMode::Wait, &FsOptions::default());
    let (fs, ino) = (&failing.fs, failing.ino);
    let write_back = |fs: &FileSystem, at: u64| {
        let offset = at * at * 4096;
        kind(fs.write_back(ino, Handle(ino.0), offset, &[1; 4096], Write::default()))
    };
    failing.fail();
    for at in 0..RANGES {
        assert_eq!(write_back(&fs.failing_if_suspended(), at), Some(ErrorKind::Suspended));
    }
    failing.clear();
    for at in 0..RANGES {
        assert_eq!(write_back(fs, at), None);
    }
    assert_eq!(kind(fs.fsync(ino, false)), None);
    unmount(failing.fs);
}

/// An unmount, a close and an export end every wait.
#[test]
fn nothing_waits_for_a_pool_that_is_given_up() {
    for how in ["unmount", "close", "export"] {
        let failing = Failing::new(FailMode::Wait, &FsOptions::default());
        failing.fail();
        let (fs, ino) = (&failing.fs, failing.ino);
        let ended = std::thread::scope(|scope| {
            let change = scope.spawn(|| writes(fs, ino, 0, b"never"));
            let sync = scope.spawn(|| kind(fs.fsync(ino, false)));
            failing.wait_for_waiters(2);
            match how {
                "unmount" => fs.end_waits(),
                "close" => assert_eq!(kind(fs.close()), Some(ErrorKind::Suspended)),
                _ => drop(fs.pool().close().expect_err("a group is lost")),
            }
            [change, sync].map(|thread| thread.join().expect("no panic"))
        });
        let is_refusal = |kind: Option<ErrorKind>| {
            matches!(kind, Some(ErrorKind::Suspended | ErrorKind::Closed))
        };
        assert!(ended.into_iter().all(is_refusal), "{how}: {ended:?}");
        let _ = fs.close();
    }
}

/// Background work that a suspended pool refused is done once the pool goes on.
#[test]
fn orphans_are_destroyed_after_a_suspension() {
    for fail_mode in [FailMode::Wait, FailMode::Continue] {
        let failing = Failing::new(fail_mode, &FsOptions::default());
        let fs = &failing.fs;
        let directory = mkdir(fs, ROOT, b"directory");
        let inodes: Vec<Ino> = (0..3)
            .map(|n| symlink(fs, directory, format!("{n}").as_bytes(), &[b'a'; 300]))
            .collect();
        let (open, _) = file(fs, ROOT, b"open");
        write(fs, open, 0, &[1; 100_000]);
        fs.pool().sync().expect("a commit");
        fs.unlink(ROOT, b"open").expect("a name");
        for n in 0..3 {
            fs.unlink(directory, format!("{n}").as_bytes()).expect("a name");
        }
        failing.fail();
        assert_eq!(fs.stats().orphans, 4);
        // The kernel forgets them meanwhile: now they can be destroyed.
        fs.release(Handle(open.0));
        inodes.iter().chain([&open]).for_each(|ino| fs.forget(*ino, 1));
        fs.wait_for_reclaim();
        assert_eq!(fs.stats().orphans, 4, "{fail_mode:?}");
        assert!(counter(fs, "orphans_failed") > 0);
        failing.clear();
        // Tries again what has failed.
        fs.wait_for_reclaim();
        assert_eq!(fs.stats().orphans, 0, "{fail_mode:?}");
        unmount(failing.fs);
    }
}

/// The times of a file that was written twice in a transaction group are not in its object yet.
#[test]
fn a_close_that_was_refused_is_complete_when_it_is_repeated() {
    let clock = Arc::new(ManualWallClock::new(1_000));
    let options = FsOptions { clock: clock.clone(), ..FsOptions::default() };
    let failing = Failing::new(FailMode::Continue, &options);
    let (fs, ino) = (&failing.fs, failing.ino);
    let (other, _) = file(fs, ROOT, b"other");
    for _ in 0..2 {
        clock.advance(10_000_000_000);
        [ino, other].iter().for_each(|ino| write(fs, *ino, 0, b"Content"));
    }
    let times =
        |fs: &FileSystem| [ino, other].map(|ino| fs.getattr(ino).expect("attributes").mtime);
    let expected = times(fs);
    failing.refuse();
    for _ in 0..2 {
        assert_eq!(kind(fs.close()), Some(ErrorKind::Suspended));
    }
    failing.clear();
    assert_eq!(kind(fs.close()), None);
    let Failing { device, fs, .. } = failing;
    let pool = Arc::clone(fs.pool());
    drop(fs);
    Arc::into_inner(pool).expect("the last reference").export().expect("an export");
    let fs = Fixture::of(device).mount();
    for name in [&b"name"[..], b"other"] {
        fs.lookup(ROOT, name).expect("a name");
    }
    assert_eq!(times(&fs), expected);
    unmount(fs);
}
