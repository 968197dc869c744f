//! Operations that need a block of a mirror whose sides are both gone, or of a vdev that is gone.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forebay_fs::{
    Client, ErrorKind, FileSystem, FsOptions, Handle, Ino, Owner, RenameMode, SetAttr, Write,
};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::format::label::LABEL_BYTES;
use forebay_pool::format::{Compression, FailMode};
use forebay_pool::{CreateOptions, DatasetSettings, ImportOptions, NewVdev, Opened, Pool};

use crate::common::{
    Killer, ME, MIB, NAME, ROOT, cache, counter, file, host, list, memory, mkdir, read, unmount,
    write,
};

const SIZE: u64 = 96 * MIB;
const ENODEV: i32 = 19;
const EIO: i32 = 5;
/// Bytes of a file.
const LEN: usize = 100_000;
/// Names in the directory: more than fit into its dnode.
const NAMES: usize = 500;

/// A file system on a mirror, or on two devices, of which hardly anything is in memory.
struct Mirror {
    sides: [Arc<FaultDevice>; 2],
    fs: FileSystem,
    directory: Ino,
}

fn name(at: usize) -> Vec<u8> {
    format!("name {at:04}").into_bytes()
}

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at % 251) as u8).collect()
}

impl Mirror {
    fn new(fail_mode: FailMode, options: &FsOptions) -> Self {
        Self::imported(fail_mode, options, false)
    }

    fn imported(fail_mode: FailMode, options: &FsOptions, read_only: bool) -> Self {
        let mirror = |sides: [Opened; 2]| vec![NewVdev::Mirror(sides.into())];
        Self::over(mirror, fail_mode, options, read_only)
    }

    /// Two vdevs of one device each. Metadata is on both.
    fn striped() -> Self {
        let stripe = |devices: [Opened; 2]| devices.map(NewVdev::Device).into();
        Self::over(stripe, FailMode::Wait, &FsOptions::default(), false)
    }

    fn over(
        vdevs: impl FnOnce([Opened; 2]) -> Vec<NewVdev>,
        fail_mode: FailMode,
        options: &FsOptions,
        read_only: bool,
    ) -> Self {
        let media = [memory(SIZE), memory(SIZE)];
        Self::fill(vdevs(media.each_ref().map(|medium| Arc::clone(medium).into())), fail_mode);
        let sides = media.map(|medium| Arc::new(FaultDevice::new(medium, 5)));
        let import = ImportOptions::new(cache());
        let import = ImportOptions { host: host(), seed: Some(7), read_only, ..import };
        let opened = sides.iter().map(|side| (Arc::clone(side) as Arc<dyn Device>).into());
        let pool = Pool::import(opened.collect(), &import).expect("the pool");
        let fs = FileSystem::open_in(Arc::new(pool), NAME, options).expect("the file system");
        let directory = fs.lookup(ROOT, b"directory").expect("a directory").attr.ino;
        Self { sides, fs, directory }
    }

    fn fill(vdevs: Vec<NewVdev>, fail_mode: FailMode) {
        let create =
            CreateOptions { host: host(), seed: Some(7), ..CreateOptions::new("tank", cache()) };
        let pool = Pool::create_tree(vdevs, &create).expect("a pool");
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: 8192,
            fail_mode,
            ..DatasetSettings::default()
        };
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, NAME, &settings, owner).expect("a file system");
        let fs = FileSystem::open_in(Arc::new(pool), NAME, &FsOptions::default());
        let fs = fs.expect("the file system");
        for name in ["one", "two", "three", "four"] {
            write(&fs, file(&fs, ROOT, name.as_bytes()).0, 0, &content());
        }
        let directory = mkdir(&fs, ROOT, b"directory");
        for at in 0..NAMES {
            file(&fs, directory, &name(at));
        }
        unmount(fs);
    }

    fn ino(&self, name: &str) -> Ino {
        self.fs.lookup(ROOT, name.as_bytes()).expect("a name").attr.ino
    }

    fn pull(&self) {
        self.fail(|| Rule::new(Fault::Error(ENODEV)));
    }

    fn fail(&self, rule: impl Fn() -> Rule) {
        for side in &self.sides {
            side.add(rule());
        }
    }

    fn plug_in(&self) {
        self.sides.iter().for_each(|side| side.clear());
    }

    fn clear(&self) {
        self.plug_in();
        self.fs.pool().clear().expect("the devices are back");
    }

    fn wait_for_waiters(&self, count: u64) {
        while counter(&self.fs, "suspension_waits") < count {
            std::thread::yield_now();
        }
    }

    fn wait_for_suspension(&self) {
        while self.fs.pool().suspension().is_none() {
            std::thread::yield_now();
        }
    }

    fn end(self) {
        let fs = self.fs;
        fs.set_client(None);
        unmount(fs);
    }
}

fn kind<T>(result: Result<T, forebay_fs::Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn reads(fs: &FileSystem, ino: Ino) -> Result<Vec<u8>, forebay_fs::Error> {
    let mut out = Vec::new();
    let read = fs.read(ino, Handle(ino.0), 50_000, 100, &mut |bytes| out = bytes.to_vec());
    read.map(|()| out)
}

fn writes(fs: &FileSystem, ino: Ino, offset: u64, data: &[u8]) -> Option<ErrorKind> {
    kind(fs.write(ino, Handle(ino.0), offset, data, Write::default()))
}

fn resize(fs: &FileSystem, ino: Ino, size: u64) -> Option<ErrorKind> {
    kind(fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }, ME))
}

/// Whether the pool is suspended already, or only the reads notice that the sides are gone.
#[test]
fn operations_wait_for_devices_that_are_gone() {
    for is_suspended in [true, false] {
        let mirror = Mirror::new(FailMode::Wait, &FsOptions::default());
        let (fs, directory) = (&mirror.fs, mirror.directory);
        let [one, two, three, four] = ["one", "two", "three", "four"].map(|name| mirror.ino(name));
        if is_suspended {
            // All of a block, so that nothing is read.
            write(fs, four, 0, &[7; 8192]);
        }
        mirror.pull();
        if is_suspended {
            fs.pool().sync().expect_err("no device is there");
        }
        assert_eq!(kind(reads(&fs.non_blocking(), one)), Some(ErrorKind::WouldBlock));
        assert_eq!(writes(&fs.non_blocking(), two, 9_000, b"!"), Some(ErrorKind::WouldBlock));
        let (done, later) = mpsc::channel();
        let reply = move |read: Result<&[u8], forebay_fs::Error>| {
            done.send(read.map(<[u8]>::to_vec).map_err(|error| error.kind())).expect("a test");
        };
        fs.read_async(three, Handle(three.0), 20_000, 10, Box::new(reply));
        std::thread::scope(|scope| {
            let read = scope.spawn(|| reads(fs, one));
            let listing = scope.spawn(|| list(fs, directory));
            let changes = [
                scope.spawn(|| writes(fs, two, 9_000, b"changed")),
                scope.spawn(|| resize(fs, three, 60_000)),
                scope.spawn(|| kind(fs.create(directory, b"new", 0o644, ME))),
                scope.spawn(|| kind(fs.lookup(directory, &name(10)))),
                scope.spawn(|| kind(fs.unlink(directory, &name(20)))),
                scope.spawn(|| {
                    kind(fs.rename(directory, &name(30), ROOT, b"renamed", RenameMode::Replace))
                }),
            ];
            mirror.wait_for_waiters(changes.len() as u64 + 3);
            mirror.wait_for_suspension();
            let suspension = fs.pool().suspension().expect("it is suspended");
            assert!(suspension.resumable && suspension.device.is_some(), "{suspension}");
            fs.pool().clear().expect_err("they are not back");
            assert!(changes.iter().all(|change| !change.is_finished()));
            assert!(!read.is_finished() && !listing.is_finished());
            mirror.clear();
            assert_eq!(
                read.join().expect("no panic").expect("it reads"),
                content()[50_000..50_100]
            );
            let names = listing.join().expect("no panic").len();
            assert!((NAMES - 2..=NAMES + 1).contains(&names), "{names} names");
            for change in changes {
                assert_eq!(change.join().expect("no panic"), None);
            }
        });
        assert_eq!(later.recv().expect("a reply").expect("it reads"), content()[20_000..20_010]);
        let mut changed = content();
        changed[9_000..9_007].copy_from_slice(b"changed");
        assert!(read(fs, two, 0, LEN) == changed, "suspended before: {is_suspended}");
        assert!(read(fs, three, 0, LEN) == content()[..60_000]);
        assert_eq!(list(fs, directory).len(), NAMES - 1);
        for (parent, name) in [(directory, &b"new"[..]), (ROOT, b"renamed")] {
            fs.lookup(parent, name).expect("a name");
        }
        mirror.end();
    }
}

#[test]
fn operations_fail_at_once_if_the_dataset_says_so() {
    let mirror = Mirror::new(FailMode::Continue, &FsOptions::default());
    let (fs, one, directory) = (&mirror.fs, mirror.ino("one"), mirror.directory);
    mirror.pull();
    for fs in [fs, &fs.failing_if_suspended()] {
        let expected = match std::ptr::eq(fs, &mirror.fs) {
            true => Some(ErrorKind::Io),
            // Who asks for that repeats it with a handle that may wait.
            false => Some(ErrorKind::Suspended),
        };
        assert_eq!(kind(reads(fs, one)), expected);
        assert_eq!(writes(fs, one, 9_000, b"changed"), expected);
        assert_eq!(kind(fs.create(directory, b"new", 0o644, ME)), expected);
        assert_eq!(kind(fs.readdir(directory, Handle(0), 2, &mut |_| true)), expected);
    }
    assert_eq!(counter(fs, "suspension_waits"), 0);
    assert!(fs.pool().suspension().is_none(), "nothing was written");
    mirror.plug_in();
    assert_eq!(reads(fs, one).expect("it reads"), content()[50_000..50_100]);
    mirror.end();
}

/// Nothing would tell when they can be repeated: such a pool commits nothing.
#[test]
fn reads_of_a_pool_that_is_imported_read_only_fail_at_once() {
    let mirror = Mirror::imported(FailMode::Wait, &FsOptions::default(), true);
    let (fs, one) = (&mirror.fs, mirror.ino("one"));
    mirror.pull();
    assert_eq!(kind(reads(fs, one)), Some(ErrorKind::Io));
    assert_eq!(counter(fs, "suspension_waits"), 0);
    mirror.plug_in();
    assert_eq!(reads(fs, one).expect("it reads"), content()[50_000..50_100]);
    mirror.end();
}

/// Of a file system that is read-only, the pool may still commit.
#[test]
fn reads_of_a_read_only_file_system_wait() {
    let options = FsOptions { read_only: true, ..FsOptions::default() };
    let mirror = Mirror::new(FailMode::Wait, &options);
    let (fs, one) = (&mirror.fs, mirror.ino("one"));
    mirror.pull();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reads(fs, one));
        mirror.wait_for_waiters(1);
        mirror.wait_for_suspension();
        mirror.clear();
        assert_eq!(read.join().expect("no panic").expect("it reads"), content()[50_000..50_100]);
    });
    mirror.end();
}

/// No wait would end damage or a bad sector.
#[test]
fn damage_is_an_error_at_once() {
    let mirror = Mirror::new(FailMode::Wait, &FsOptions::default());
    let (fs, one) = (&mirror.fs, mirror.ino("one"));
    mirror.fail(|| Rule::new(Fault::Rot { bits: 3 }).on(Op::Read));
    assert_eq!(kind(reads(fs, one)), Some(ErrorKind::Corrupt));
    mirror.plug_in();
    // A label can be read, or both.
    for blocks in [0..SIZE - LABEL_BYTES, LABEL_BYTES..SIZE - LABEL_BYTES] {
        mirror.plug_in();
        mirror.fail(|| Rule::new(Fault::Error(EIO)).on(Op::Read).within(blocks.clone()));
        assert_eq!(kind(reads(fs, one)), Some(ErrorKind::Io));
    }
    assert_eq!(writes(fs, one, 9_000, b"changed"), Some(ErrorKind::Io));
    assert_eq!(counter(fs, "suspension_waits"), 0);
    mirror.plug_in();
    assert_eq!(reads(fs, one).expect("it reads"), content()[50_000..50_100]);
    mirror.end();
}

/// A caller that has got entries would get them twice.
#[test]
fn a_listing_with_entries_is_not_repeated() {
    let mirror = Mirror::new(FailMode::Wait, &FsOptions::default());
    let (fs, directory) = (&mirror.fs, mirror.directory);
    mirror.pull();
    let mut taken = 0;
    let listed = fs.readdir(directory, Handle(0), 0, &mut |_| {
        taken += 1;
        true
    });
    assert_eq!((kind(listed), taken), (Some(ErrorKind::Io), 2), "the dots need no device");
    let mut taken = 0;
    let listed = fs.readdirplus(directory, Handle(0), 0, &mut |_, _| {
        taken += 1;
        true
    });
    assert_eq!((kind(listed), taken), (None, 2));
    assert_eq!(counter(fs, "suspension_waits"), 0);
    mirror.plug_in();
    mirror.end();
}

#[test]
fn a_killed_process_waits_no_longer_for_a_read() {
    let mirror = Mirror::new(FailMode::Wait, &FsOptions::default());
    let killer = Arc::new(Killer::default());
    mirror.fs.set_client(Some(Arc::clone(&killer) as Arc<dyn Client>));
    let (one, two) = (mirror.ino("one"), mirror.ino("two"));
    mirror.pull();
    std::thread::scope(|scope| {
        let (first, second) = (mirror.fs.for_process(7), mirror.fs.for_process(8));
        let killed = scope.spawn(move || kind(reads(&first, one)));
        let patient = scope.spawn(move || kind(reads(&second, two)));
        mirror.wait_for_waiters(2);
        killer.killed.store(7, Ordering::Relaxed);
        assert_eq!(killed.join().expect("no panic"), Some(ErrorKind::Interrupted));
        assert!(!patient.is_finished());
        mirror.wait_for_suspension();
        mirror.clear();
        assert_eq!(patient.join().expect("no panic"), None);
    });
    mirror.end();
}

/// More reads wait than there are worker threads.
#[test]
fn waiting_reads_leave_threads_to_others() {
    let options = FsOptions { workers: 2, ..FsOptions::default() };
    let mirror = Mirror::new(FailMode::Wait, &options);
    let [one, two] = ["one", "two"].map(|name| mirror.ino(name));
    let in_memory = reads(&mirror.fs, two).expect("it reads");
    mirror.pull();
    let (done, waiting) = mpsc::channel();
    for _ in 0..12 {
        let done = done.clone();
        mirror.fs.spawn(Box::new(move |fs| done.send(reads(fs, one)).expect("a receiver")));
    }
    mirror.wait_for_waiters(12);
    let (done, others) = mpsc::channel();
    mirror.fs.spawn(Box::new(move |fs| done.send(reads(fs, two)).expect("a receiver")));
    assert_eq!(others.recv().expect("a reply").expect("it is in memory"), in_memory);
    assert!(waiting.try_recv().is_err());
    mirror.wait_for_suspension();
    mirror.clear();
    for _ in 0..12 {
        let read = waiting.recv().expect("a reply").expect("it reads");
        assert_eq!(read, content()[50_000..50_100]);
    }
    mirror.end();
}

/// An unmount, a close and an export end every wait.
#[test]
fn no_read_waits_for_a_pool_that_is_given_up() {
    for how in ["unmount", "close", "export"] {
        let mirror = Mirror::new(FailMode::Wait, &FsOptions::default());
        let (fs, one, two) = (&mirror.fs, mirror.ino("one"), mirror.ino("two"));
        mirror.pull();
        let ended = std::thread::scope(|scope| {
            let read = scope.spawn(|| kind(reads(fs, one)));
            let change = scope.spawn(|| writes(fs, two, 9_000, b"never"));
            mirror.wait_for_waiters(2);
            mirror.wait_for_suspension();
            match how {
                "unmount" => fs.end_waits(),
                "close" => assert_eq!(kind(fs.close()), Some(ErrorKind::Suspended)),
                _ => drop(fs.pool().close().expect_err("a group is lost")),
            }
            [read, change].map(|thread| thread.join().expect("no panic"))
        });
        let is_refusal = |kind: Option<ErrorKind>| {
            matches!(kind, Some(ErrorKind::Io | ErrorKind::Suspended | ErrorKind::Closed))
        };
        assert!(ended.into_iter().all(is_refusal), "{how}: {ended:?}");
        let _ = fs.close();
    }
}

/// How devices fail that all flushes succeed on: one of two vdevs, or only the reads of a mirror.
fn silence(how: &str) -> Mirror {
    let gone = match how {
        "vdev" => Mirror::striped(),
        _ => Mirror::new(FailMode::Wait, &FsOptions::default()),
    };
    // What a commit reads is in memory then.
    write(&gone.fs, gone.ino("four"), 0, &[7; 8192]);
    gone.fs.pool().sync().expect("a commit");
    match how {
        "vdev" => {
            for op in [Op::Read, Op::Write] {
                gone.sides[1].add(Rule::new(Fault::Error(EIO)).on(op));
            }
        }
        _ => gone.fail(|| Rule::new(Fault::Error(ENODEV)).on(Op::Read)),
    }
    gone
}

impl Mirror {
    fn synced_txg(&self) -> u64 {
        self.fs.pool().stats().synced_txg
    }

    /// Waits until a later group is durable, and the devices were asked again after it; or until
    /// it is over.
    fn wait_for_questions(&self, synced: u64, is_over: impl Fn() -> bool) {
        let questions = || {
            let injected = self.sides[1].injected();
            injected.iter().filter(|one| one.op == Op::Read && one.offset == 0).count()
        };
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() && !is_over() {
                std::thread::yield_now();
            }
        };
        wait_until(&|| counter(&self.fs, "suspension_waits") > 0);
        wait_until(&|| self.synced_txg() > synced);
        let before = questions();
        wait_until(&|| questions() > before + 1);
    }
}

/// Groups are durable without it, so nothing is suspended and `clear` is not needed.
#[test]
fn a_vdev_that_does_not_answer_is_waited_for_though_groups_are_durable() {
    for how in ["vdev", "reads"] {
        let gone = silence(how);
        let (fs, one, synced) = (&gone.fs, gone.ino("one"), gone.synced_txg());
        std::thread::scope(|scope| {
            let whole = scope.spawn(|| {
                let mut out = Vec::new();
                let read = fs.read(one, Handle(one.0), 0, LEN, &mut |bytes| out = bytes.to_vec());
                read.map(|()| out)
            });
            gone.wait_for_questions(synced, || whole.is_finished());
            assert!(!whole.is_finished(), "{how}: {:?}", whole.join());
            assert!(fs.pool().suspension().is_none(), "{how}");
            gone.plug_in();
            let whole = whole.join().expect("no panic").expect("it reads");
            assert!(whole == content(), "{how}");
        });
        assert_eq!(counter(fs, "suspension_waits"), 1, "{how}: one wait, with one commit");
        match how {
            // Some of its copies are bad.
            "vdev" => fs.close().expect("closes"),
            _ => gone.end(),
        }
    }
}

#[test]
fn no_read_waits_for_a_vdev_of_a_pool_that_is_given_up() {
    for end in ["kill", "unmount", "export"] {
        let gone = silence("vdev");
        let killer = Arc::new(Killer::default());
        gone.fs.set_client(Some(Arc::clone(&killer) as Arc<dyn Client>));
        let (fs, one, synced) = (gone.fs.for_process(7), gone.ino("one"), gone.synced_txg());
        std::thread::scope(|scope| {
            let read = scope.spawn(|| kind(fs.read(one, Handle(one.0), 0, LEN, &mut |_| ())));
            gone.wait_for_questions(synced, || read.is_finished());
            assert!(!read.is_finished(), "{end}");
            match end {
                "kill" => killer.killed.store(7, Ordering::Relaxed),
                "unmount" => gone.fs.end_waits(),
                _ => drop(gone.fs.pool().close()),
            }
            let ended = read.join().expect("no panic");
            match end {
                "kill" => assert_eq!(ended, Some(ErrorKind::Interrupted)),
                "unmount" => assert_eq!(ended, Some(ErrorKind::Io)),
                _ => assert!(matches!(ended, Some(ErrorKind::Closed | ErrorKind::Suspended))),
            }
        });
        gone.plug_in();
        gone.fs.set_client(None);
        drop(fs);
        let _ = gone.fs.close();
    }
}

/// Nothing tells when the block can be read: the devices answer, and the pool takes all changes.
#[test]
fn devices_that_answer_without_the_block_are_an_error_in_the_end() {
    let mirror = Mirror::new(FailMode::Wait, &FsOptions::default());
    let (fs, one, four) = (&mirror.fs, mirror.ino("one"), mirror.ino("four"));
    // What a commit reads is in memory then.
    write(fs, four, 0, &[7; 8192]);
    fs.pool().sync().expect("a commit");
    let blocks = LABEL_BYTES..SIZE - LABEL_BYTES;
    mirror.fail(|| Rule::new(Fault::Error(ENODEV)).on(Op::Read).within(blocks.clone()));
    assert_eq!(kind(reads(fs, one)), Some(ErrorKind::Io));
    assert!(counter(fs, "suspension_waits") > 1, "it was repeated");
    assert!(fs.pool().suspension().is_none());
    mirror.plug_in();
    assert_eq!(reads(fs, one).expect("it reads"), content()[50_000..50_100]);
    mirror.end();
}
