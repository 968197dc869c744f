//! Tests that need internals: races at their worst moment, and orphan directories that no operation
//! leaves behind.

use std::cell::RefCell;
use std::sync::mpsc::channel;
use std::thread::{scope, yield_now};
use std::time::Duration;

use forebay_base::clock::ManualWallClock;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::{Arc, thread_local};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op as IoOp};
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Directory, Pool, Transaction,
    Wait,
};

use crate::attrs::Dirent;
use crate::extras::Extras;
use crate::fs::FileSystem;
use crate::options::FsOptions;
use crate::read_buffers::{ReadBuffers, Reader};
use crate::reclaim::{ReclaimTask, orphan_name};
use crate::types::{
    Caller, FallocateMode, FileKind, Handle, Ino, NewNode, Owner, SetAttr, XattrMode,
};
use crate::workers::Dispatch;

const ME: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const MIB: u64 = 1 << 20;

/// Runs at a given point of another operation.
type Event = Box<dyn FnOnce()>;

thread_local! {
    static AFTER_LOAD: RefCell<Option<Event>> = const { RefCell::new(None) };
}

/// Called when this thread has loaded an inode, before it enters the table.
pub(crate) fn after_load() {
    if let Some(event) = AFTER_LOAD.take() {
        event();
    }
}

fn next_load_then(event: impl FnOnce() + 'static) {
    AFTER_LOAD.set(Some(Box::new(event)));
}

struct Fixture {
    faults: Arc<FaultDevice>,
    cache: Arc<BlockCache>,
    fs: FileSystem,
}

impl Fixture {
    fn new() -> Self {
        let memory = MemoryDevice::new("memory", 64 * MIB, &MemoryOptions::default()).unwrap();
        let faults = Arc::new(FaultDevice::new(Arc::new(memory), 1));
        let cache = BlockCacheOptions { bytes: 32 * MIB, ..Default::default() };
        let cache = BlockCache::new(cache).unwrap();
        let options = CreateOptions { seed: Some(7), ..CreateOptions::new("tank", cache.clone()) };
        let device = Arc::clone(&faults) as Arc<dyn Device>;
        let pool = Pool::create(vec![device.into()], &options).unwrap();
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "files", &DatasetSettings::default(), owner).unwrap();
        let fs = FileSystem::open_in(Arc::new(pool), "files", &FsOptions::default()).unwrap();
        fs.wait_for_reclaim();
        Self { faults, cache, fs }
    }

    /// Closes the file system and opens it again on the same pool.
    fn reopen(&mut self) {
        self.fs.close().unwrap();
        let pool = Arc::clone(self.fs.pool());
        self.fs = FileSystem::open_in(pool, "files", &FsOptions::default()).unwrap();
        self.fs.wait_for_reclaim();
    }

    fn counter(&self, name: &str) -> u64 {
        self.fs.stats().counters.iter().find(|row| row.0 == name).unwrap().2
    }

    fn audit(&self) {
        let report = self.fs.audit().unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

/// Creates a file that nobody has open or looked up.
fn file(fs: &FileSystem, name: &[u8]) -> Ino {
    let (entry, handle) = fs.create(Ino::ROOT, name, 0o644, ME).unwrap();
    let ino = entry.attr.ino;
    assert_eq!(fs.write(ino, handle, 0, b"content", Default::default()).unwrap(), 7);
    fs.release(handle);
    fs.forget(ino, 1);
    fs.wait_for_reclaim();
    ino
}

/// The background thread has taken tasks from its queue, and runs them when the file system is
/// already closed.
#[test]
fn times_that_the_background_thread_was_about_to_write_are_written_by_a_close() {
    let mut fixture = Fixture::new();
    fixture.fs.close().unwrap();
    let clock = Arc::new(ManualWallClock::new(1_000));
    let options = FsOptions { clock: clock.clone(), ..FsOptions::default() };
    let fs = FileSystem::open_in(Arc::clone(fixture.fs.pool()), "files", &options).unwrap();
    fixture.fs = fs.clone();
    let ino = file(&fs, b"f");
    fs.lookup(Ino::ROOT, b"f").unwrap();
    let handle = fs.open(ino, None).unwrap();
    // The second write of a transaction group leaves the times pending.
    for _ in 0..2 {
        clock.advance(10_000_000_000);
        fs.write(ino, handle, 0, b"Content", Default::default()).unwrap();
    }
    let expected = fs.getattr(ino).unwrap().mtime;
    fs.reclaim().stop();
    fs.release(handle);
    fs.forget(ino, 1);
    fs.shared.closed.store(true, Ordering::Release);
    fs.run_tasks(fs.reclaim(), &[ReclaimTask::FlushTimes(fs.number(ino).unwrap())]);
    fixture.reopen();
    assert_eq!(fixture.fs.lookup(Ino::ROOT, b"f").unwrap().attr.mtime, expected);
}

fn change(fs: &FileSystem, change: impl FnOnce(&Transaction<'_>, &Directory)) {
    let tx = fs.begin().unwrap();
    change(&tx, fs.orphans());
}

#[test]
fn an_inode_that_changed_and_left_while_it_was_read_is_read_again() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    let retries = fixture.counter("retries");
    let fs = fixture.fs.clone();
    next_load_then(move || {
        let found = fs.lookup(Ino::ROOT, b"f").unwrap().attr.ino;
        fs.link(found, Ino::ROOT, b"g").unwrap();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        fs.setattr(found, &set, ME).unwrap();
        fs.forget(found, 2);
        fs.wait_for_reclaim();
    });
    let found = fixture.fs.lookup(Ino::ROOT, b"f").unwrap().attr;
    assert_eq!((found.nlink, found.mode), (2, 0o600));
    assert_eq!(fixture.counter("retries"), retries + 1);
    fixture.fs.unlink(Ino::ROOT, b"f").unwrap();
    fixture.fs.forget(ino, 1);
    fixture.fs.wait_for_reclaim();
    let left = fixture.fs.lookup(Ino::ROOT, b"g").unwrap().attr;
    assert_eq!(left.nlink, 1);
    let read = |bytes: &[u8]| assert_eq!(bytes, b"content");
    fixture.fs.read(left.ino, Handle(left.ino.0), 0, 100, &mut { read }).unwrap();
    fixture.audit();
}

#[test]
fn a_concurrently_loaded_inode_is_shared() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    let fs = fixture.fs.clone();
    next_load_then(move || {
        let found = fs.lookup(Ino::ROOT, b"f").unwrap().attr.ino;
        fs.link(found, Ino::ROOT, b"g").unwrap();
    });
    assert_eq!(fixture.fs.lookup(Ino::ROOT, b"f").unwrap().attr.nlink, 2);
    fixture.fs.forget(ino, 3);
    fixture.audit();
}

#[test]
fn an_inode_that_was_destroyed_while_it_was_read_is_gone() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    let fs = fixture.fs.clone();
    next_load_then(move || {
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.wait_for_reclaim();
        // Takes the same number if numbers are reused at once.
        file(&fs, b"other");
    });
    let found = fixture.fs.lookup(Ino::ROOT, b"f").unwrap_err();
    assert_eq!(found.kind(), crate::ErrorKind::NotFound);
    let after = fixture.fs.getattr(ino).map(|attr| attr.nlink);
    assert!(after.is_err() || fixture.fs.lookup(Ino::ROOT, b"other").unwrap().attr.ino == ino);
    fixture.fs.wait_for_reclaim();
    assert_eq!(fixture.fs.stats().orphans, 0);
    fixture.audit();
}

#[test]
fn stale_names_in_the_orphan_directory_are_removed() {
    let mut fixture = Fixture::new();
    let alive = file(&fixture.fs, b"alive");
    let number = fixture.fs.number(alive).unwrap();
    change(&fixture.fs, |tx, orphans| {
        orphans.insert(tx, orphan_name(number).as_bytes(), &[1]).unwrap();
        orphans.insert(tx, orphan_name(number + 1000).as_bytes(), &[1]).unwrap();
    });
    fixture.reopen();
    assert_eq!(fixture.fs.stats().orphans, 0);
    assert_eq!(fixture.counter("orphan_names_removed"), 2);
    assert_eq!(fixture.fs.lookup(Ino::ROOT, b"alive").unwrap().attr.nlink, 1);
    fixture.fs.forget(alive, 1);
    fixture.audit();
    change(&fixture.fs, |tx, orphans| {
        orphans.insert(tx, orphan_name(number).as_bytes(), &[1]).unwrap();
    });
    fixture.fs.unlink(Ino::ROOT, b"alive").unwrap();
    fixture.fs.wait_for_reclaim();
    assert_eq!(fixture.fs.stats().orphans, 0);
    fixture.audit();
}

#[test]
fn an_orphan_without_its_extras_is_destroyed() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    fixture.fs.setxattr(ino, b"user.x", &[7; 5000], XattrMode::Either).unwrap();
    let extras = fixture.fs.inode_of(ino).unwrap().meta().extras;
    let Extras::Spilled { object, .. } = extras else { panic!("they fit") };
    change(&fixture.fs, |tx, _| fixture.fs.dataset().destroy(tx, object).unwrap());
    fixture.fs.unlink(Ino::ROOT, b"f").unwrap();
    fixture.fs.wait_for_reclaim();
    assert_eq!((fixture.fs.stats().orphans, fixture.counter("orphans_failed")), (0, 0));
    fixture.audit();
}

#[test]
fn a_failed_destroy_blocks_no_other_and_is_retried() {
    let fixture = Fixture::new();
    let names: Vec<Vec<u8>> = (0..100).map(|n| format!("f{n}").into_bytes()).collect();
    let inos: Vec<Ino> = names.iter().map(|name| file(&fixture.fs, name)).collect();
    let handles: Vec<_> = inos.iter().map(|ino| fixture.fs.open(*ino, None).unwrap()).collect();
    names.iter().for_each(|name| fixture.fs.unlink(Ino::ROOT, name).unwrap());
    fixture.fs.wait_for_reclaim();
    assert_eq!(fixture.fs.stats().orphans, 100);
    // Not in memory, and not readable.
    fixture.fs.pool().sync().unwrap();
    fixture.fs.pool().sync().unwrap();
    fixture.cache.cache().clear();
    fixture.faults.add(Rule::new(Fault::Error(5)).on(IoOp::Read));
    handles.into_iter().for_each(|handle| fixture.fs.release(handle));
    fixture.fs.wait_for_reclaim();
    let failed = fixture.fs.stats().orphans;
    assert!(failed > 0, "nothing had to be read");
    assert!(fixture.counter("orphans_failed") >= failed);
    assert_eq!(fixture.fs.stats().background_tasks, failed);
    fixture.faults.clear();
    fixture.fs.wait_for_reclaim();
    assert_eq!((fixture.fs.stats().orphans, fixture.fs.stats().background_tasks), (0, 0));
    assert_eq!(fixture.counter("orphans_destroyed"), 100);
    fixture.audit();
}

#[test]
fn a_non_blocking_operation_waits_for_no_inode_lock() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    fixture.fs.lookup(Ino::ROOT, b"f").unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let inode = fixture.fs.inode_of(ino).unwrap();
    let tx = fixture.fs.begin().unwrap();
    let lock = inode.lock(&tx).unwrap();
    let fs = &fixture.fs.non_blocking();
    let refused = |f: &(dyn Fn() -> Result<(), crate::Error> + Sync)| {
        let tried = scope(|scope| scope.spawn(f).join().unwrap());
        assert_eq!(tried.unwrap_err().kind(), crate::ErrorKind::WouldBlock);
    };
    refused(&|| fs.setattr(ino, &set, ME).map(drop));
    refused(&|| fs.write(ino, Handle(ino.0), 0, b"x", Default::default()).map(drop));
    refused(&|| fs.unlink(Ino::ROOT, b"f"));
    refused(&|| fs.rename(Ino::ROOT, b"f", Ino::ROOT, b"g", crate::RenameMode::Replace));
    drop((lock, tx));
    let zero = FallocateMode::Zero { keep_size: true };
    refused(&|| fs.fallocate(ino, Handle(ino.0), 0, 3, zero, ME));
    drop(inode);
    let attr = fs.getattr(ino).unwrap();
    assert_eq!((attr.mode, attr.size), (0o644, 7));
    fs.read(ino, Handle(ino.0), 0, 7, &mut |bytes| assert_eq!(bytes, b"content")).unwrap();
    fs.forget(ino, 1);
    fixture.audit();
}

#[test]
fn jobs_of_callbacks_are_cancelled_after_close() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    fixture.fs.lookup(Ino::ROOT, b"f").unwrap();
    fixture.fs.close().unwrap();
    let (send, receive) = channel();
    let done = send.clone();
    fixture.fs.spawn_from_callback(Box::new(move |fs, dispatch| {
        done.send((dispatch == Dispatch::Cancelled, fs.no_worker_error().kind())).unwrap();
    }));
    assert_eq!(receive.recv().unwrap(), (true, crate::ErrorKind::Closed));
    let done = move |read: Result<&[u8], crate::Error>| {
        send.send((true, read.unwrap_err().kind())).unwrap();
    };
    fixture.fs.read_async(ino, Handle(ino.0), 0, 7, Box::new(done));
    assert_eq!(receive.recv().unwrap(), (true, crate::ErrorKind::Closed));
}

/// The load of a large read ends on a thread that may not wait for the only buffer, which another
/// file system with the same options uses. A worker waits for it, and all others go on.
#[test]
fn a_loaded_read_without_a_buffer_is_completed_by_a_worker() {
    const LEN: usize = 256 << 10;
    let mut fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    let content: Vec<u8> = (0..LEN).map(|at| (at / 1000) as u8).collect();
    let written = fixture.fs.write(ino, Handle(ino.0), 0, &content, Default::default()).unwrap();
    assert_eq!(written, LEN);
    fixture.fs.close().unwrap();
    let buffers = Arc::new(ReadBuffers::new(0));
    let options = FsOptions { read_buffers: Arc::clone(&buffers), ..FsOptions::default() };
    let pool = Arc::clone(fixture.fs.pool());
    fixture.fs = FileSystem::open_in(pool, "files", &options).unwrap();
    fixture.fs.lookup(Ino::ROOT, b"f").unwrap();
    fixture.fs.read(ino, Handle(ino.0), 0, 1, &mut |_| ()).unwrap();
    fixture.cache.cache().clear();
    // Reads are delayed until the rule is removed.
    let delay = Fault::Delay(Duration::from_secs(3600));
    fixture.faults.add(Rule::new(delay).on(IoOp::Read));
    let (send, receive) = channel();
    buffers.with(LEN, Reader::Blocking, |_| {
        let done = move |read: Result<&[u8], crate::Error>| {
            send.send(read.map(<[u8]>::to_vec)).unwrap();
        };
        fixture.fs.read_async(ino, Handle(ino.0), 0, LEN, Box::new(done));
        assert!(fixture.counter("reads_fetched") > 0, "it is cached");
        fixture.faults.clear();
        while fixture.counter("reads_offloaded") == 0 {
            yield_now();
        }
        assert!(receive.try_recv().is_err(), "it has no buffer");
        fixture.fs.lookup(Ino::ROOT, b"f").unwrap();
    });
    assert!(receive.recv().unwrap().unwrap() == content);
}

#[test]
fn corrupt_entries_are_skipped_in_listings() {
    let fixture = Fixture::new();
    let names = [&b"a"[..], b"b", b"c"];
    for name in names {
        file(&fixture.fs, name);
    }
    let corrupt_entry = |number: u64| Dirent { number, kind: FileKind::File }.encode();
    let root = fixture.fs.inode_of(Ino::ROOT).unwrap();
    let root = root.directory(fixture.fs.dataset(), Wait::Allowed).unwrap();
    change(&fixture.fs, |tx, _| {
        for (at, number) in [0, u64::MAX, u64::MAX - 1].into_iter().enumerate() {
            root.insert(tx, format!("x{at}").as_bytes(), &corrupt_entry(number)).unwrap();
        }
    });
    for plus in [false, true] {
        let mut found = Vec::new();
        let root = (Ino::ROOT, Handle(1));
        match plus {
            false => fixture.fs.readdir(root.0, root.1, 2, &mut |entry| {
                found.push(entry.name.to_vec());
                true
            }),
            true => fixture.fs.readdirplus(root.0, root.1, 2, &mut |entry, attr| {
                assert_eq!(attr.unwrap().ino, entry.ino);
                found.push(entry.name.to_vec());
                true
            }),
        }
        .unwrap();
        found.sort();
        assert_eq!(found, names);
    }
    assert_eq!(fixture.counter("entries_skipped"), 6);
}

#[test]
fn a_listing_follows_concurrent_renames() {
    let fixture = Fixture::new();
    let ino = file(&fixture.fs, b"f");
    let fs = fixture.fs.clone();
    next_load_then(move || {
        fs.unlink(Ino::ROOT, b"f").unwrap();
        let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
        fs.make(Ino::ROOT, b"f", &node, ME).unwrap();
        fs.wait_for_reclaim();
    });
    let mut found = Vec::new();
    fixture
        .fs
        .readdirplus(Ino::ROOT, Handle(1), 2, &mut |entry, attr| {
            let attr = attr.unwrap();
            assert_eq!((entry.kind, entry.ino), (attr.kind, attr.ino));
            found.push((entry.name.to_vec(), attr.kind, attr.ino != ino));
            true
        })
        .unwrap();
    assert_eq!(found[0].1, FileKind::Directory);
    assert_eq!((found.len(), &found[0].0[..]), (1, &b"f"[..]));
    fixture.audit();
}
