mod crash;
mod cuts;
mod find;
mod hostile;
mod objects;

use std::cell::Cell;
use std::collections::BTreeMap;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_io::{Device, MemoryDevice, MemoryOptions, Request};

use super::*;
use zerocopy::FromBytes;

use crate::format::label::LOG_VDEV;
use crate::format::{
    Dva, LOG_RECORD_MAX_BYTES, LOG_SECTOR_BYTES, LogBlockPhys, LogEntry, ObjectKind,
};

const DATASET: u64 = 77;
const DEVICE_BYTES: u64 = 4 << 20;

/// The log's view of one device.
struct OneDevice {
    device: Arc<dyn Device>,
    arena: Arc<Arena>,
    /// The next write or flush fails.
    fails: AtomicBool,
    /// During the next write, a flush of others fails.
    fails_beside: AtomicBool,
    flush_failures: AtomicU64,
}

impl OneDevice {
    fn new(device: Arc<dyn Device>, arena: &Arc<Arena>) -> Self {
        let (fails, fails_beside) = (AtomicBool::new(false), AtomicBool::new(false));
        let flush_failures = AtomicU64::new(0);
        Self { device, arena: arena.clone(), fails, fails_beside, flush_failures }
    }

    fn fail(&self) -> Result<()> {
        match self.fails.swap(false, Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Device, "it was to fail")),
            false => Ok(()),
        }
    }
}

impl LogStorage for OneDevice {
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.arena
            .alloc(bytes)
            .map_err(|error| Error::new(ErrorKind::NoMemory, "no memory").because(error))
    }

    fn read(&self, dva: Dva, _side: usize, buffer: Buffer) -> Result<Buffer> {
        Ok(self.device.run(Request::read(dva.offset, buffer)).into_buffer()?)
    }

    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()> {
        let beside = self.fails_beside.swap(false, Ordering::SeqCst);
        self.flush_failures.fetch_add(u64::from(beside), Ordering::SeqCst);
        for (dva, buffer) in writes {
            self.fail()?;
            self.device.run(Request::write(dva.offset, buffer)).result?;
        }
        Ok(())
    }

    fn flush(&self, _dva: Dva) -> Result<()> {
        self.fail()?;
        Ok(self.device.run(Request::flush()).result?)
    }

    fn flush_failures(&self) -> u64 {
        self.flush_failures.load(Ordering::SeqCst)
    }
}

fn arena() -> Arc<Arena> {
    let config = ArenaConfig { limit_bytes: 256 << 20, huge_pages: HugePages::Auto };
    Arena::new(config).unwrap()
}

/// Content that says of which version of which object it is.
#[derive(Default)]
struct Versions(Mutex2<BTreeMap<u64, u8>>);

type Mutex2<T> = std::cell::RefCell<T>;

impl Fetch for Versions {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        f();
        Ok(())
    }

    fn content(&self, _: u64, object: u64, _: u64, out: &mut [u8]) -> Result<()> {
        match self.0.borrow().get(&object) {
            Some(version) => out.fill(*version),
            None => return Err(Error::new(ErrorKind::NotFound, "gone")),
        }
        Ok(())
    }
}

fn extents() -> Vec<Extent> {
    let extent = |offset, bytes| Extent { place: DvaPhys::new(Dva { device: 0, offset }), bytes };
    // The first ends where no block would.
    vec![extent(1 << 20, 260 * 1024), extent(4096, 4096), extent(2 << 20, 248 * 1024)]
}

fn create(storage: &Arc<OneDevice>, extents: &[Extent]) -> IntentLog {
    let tunables = Arc::new(LogTunables::default());
    IntentLog::create(extents, 0xfeed, 1, storage.clone() as Arc<dyn LogStorage>, tunables).unwrap()
}

/// A device in memory that tears eight sectors at once.
fn medium(name: &str) -> MemoryDevice {
    let physical_bytes = 4096;
    let options = MemoryOptions { physical_bytes, ..MemoryOptions::default() };
    MemoryDevice::new(name, DEVICE_BYTES, &options).unwrap()
}

fn memory() -> Arc<OneDevice> {
    let device = medium("log");
    Arc::new(OneDevice::new(Arc::new(device), &arena()))
}

/// A record as the tests compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReplayedEntry {
    txg: u64,
    object: u64,
    text: String,
}

fn seen(entry: &LogEntry<'_>) -> ReplayedEntry {
    let text = match entry.record {
        LogRecord::Write { offset, bytes } => {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "mixed content");
            format!("write {offset}+{} {}", bytes.len(), bytes[0])
        }
        other => format!("{other:?}"),
    };
    ReplayedEntry { txg: entry.txg, object: entry.object, text }
}

fn replay_all(log: &IntentLog, root: &LogRootPhys) -> Vec<ReplayedEntry> {
    let mut replay = log.replay(root);
    let mut all = Vec::new();
    assert!(replay.next().unwrap().is_none(), "no batch is begun");
    while replay.next_batch().unwrap() {
        while let Some(entry) = replay.next().unwrap() {
            assert_eq!(entry.dataset, DATASET);
            all.push(seen(&entry));
        }
    }
    all
}

fn open(storage: &Arc<OneDevice>, root: &LogRootPhys) -> IntentLog {
    let tunables = Arc::new(LogTunables::default());
    let storage = storage.clone() as Arc<dyn LogStorage>;
    IntentLog::open(root, root.txg.get(), storage, tunables).unwrap()
}

fn sync(log: &IntentLog, txg: u64) -> LogRootPhys {
    let root = log.root_for(txg);
    log.synced(txg);
    root
}

#[test]
fn names_take_the_content_that_they_are_bound_to_along() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    versions.0.borrow_mut().extend([(5, 50), (6, 60), (7, 70), (8, 80)]);
    let root = sync(&log, 1);
    let name = Change::ZapUpdate { name: b"n", value: b"v" };
    for object in 5..9 {
        log.append(2, DATASET, object, Change::Write { offset: 0, len: 10 });
    }
    log.append(2, DATASET, 5, Change::Bind);
    log.append(2, DATASET, 5, Change::Bind);
    log.append(2, DATASET, 1, name);
    // Another object's commit: with what is bound, without the rest.
    assert_eq!(log.commit(Some((DATASET, 6)), &versions), Committed::Durable);
    assert_eq!(log.counters().total(LogCounters::BOUND), 1);
    let texts = |root| -> Vec<String> {
        replay_all(&open(&storage, root), root).into_iter().map(|seen| seen.text).collect()
    };
    let first = ["write 0+10 50", "write 0+10 60", "ZapUpdate { name: [110], value: [118] }"];
    assert_eq!(texts(&root), first);
    // It was written already: binding it again costs nothing.
    log.append(2, DATASET, 5, Change::Bind);
    log.append(2, DATASET, 1, name);
    assert_eq!(log.commit(Some((DATASET, 6)), &versions), Committed::Durable);
    assert_eq!(log.counters().total(LogCounters::BOUND), 1);
    log.append(2, DATASET, 0, Change::BindAll);
    log.append(2, DATASET, 1, name);
    assert_eq!(log.commit(Some((DATASET, 6)), &versions), Committed::Durable);
    let all = texts(&root);
    assert!(all.contains(&"write 0+10 70".to_owned()), "{all:?}");
    assert!(all.contains(&"write 0+10 80".to_owned()), "{all:?}");
}

#[test]
fn names_bound_to_what_the_log_cannot_take_wait_for_the_txg() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    versions.0.borrow_mut().extend([(5, 50), (6, 60)]);
    let root = sync(&log, 1);
    log.append(2, DATASET, 5, Change::Write { offset: 0, len: 1 << 40 });
    log.append(2, DATASET, 5, Change::Bind);
    log.append(2, DATASET, 1, Change::ZapRemove { name: b"n" });
    log.append(2, DATASET, 6, Change::Write { offset: 0, len: 10 });
    for _ in 0..2 {
        assert_eq!(log.commit(Some((DATASET, 6)), &versions), Committed::WaitForTxg);
    }
    assert_eq!(replay_all(&open(&storage, &root), &root), []);
    sync(&log, 2);
    log.append(3, DATASET, 6, Change::Write { offset: 0, len: 10 });
    assert_eq!(log.commit(Some((DATASET, 6)), &versions), Committed::Durable);
    // What a durable txg has is bound no more, what a later one has is.
    log.append(3, DATASET, 5, Change::Write { offset: 0, len: 10 });
    log.append(3, DATASET, 5, Change::Bind);
    log.append(4, DATASET, 6, Change::Write { offset: 0, len: 10 });
    log.append(4, DATASET, 6, Change::Bind);
    sync(&log, 3);
    let before = log.counters().total(LogCounters::BOUND);
    assert_eq!(log.commit(None, &versions), Committed::Durable);
    assert_eq!(log.counters().total(LogCounters::BOUND) - before, 1);
}

#[test]
fn what_is_committed_is_replayed_in_order() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    versions.0.borrow_mut().insert(5, 9);
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg, "no root says where the log is");
    let root = sync(&log, 1);
    log.append(
        2,
        DATASET,
        5,
        Change::Create { kind: ObjectKind::Data, record_shift: 17, attributes: b"a" },
    );
    log.append(2, DATASET, 5, Change::Write { offset: 0, len: 10 });
    log.append(2, DATASET, 5, Change::Write { offset: 10, len: 800_000 });
    log.append(2, DATASET, 6, Change::Write { offset: 0, len: 10 });
    log.append(2, DATASET, 1, Change::ZapInsert { name: b"n", value: b"v" });
    log.append(2, DATASET, 5, Change::Truncate { size: 7 });
    log.append(2, DATASET, 5, Change::TouchAttributes { attributes: &[8] });
    assert_eq!(
        log.commit(Some((DATASET, 5)), &versions),
        Committed::WaitForTxg,
        "larger than the ring"
    );
    let root_2 = sync(&log, 2);
    assert_eq!(root.head_offset, root_2.head_offset);
    log.append(3, DATASET, 5, Change::Write { offset: 0, len: 10 });
    log.append(3, DATASET, 5, Change::Write { offset: 10, len: 20_000 });
    log.append(3, DATASET, 1, Change::ZapInsert { name: b"n", value: b"v" });
    log.append(3, DATASET, 5, Change::Punch { offset: 7, len: 8 });
    log.append(3, DATASET, 5, Change::TouchAttributes { attributes: &[9] });
    log.append(3, DATASET, 6, Change::Truncate { size: 7 });
    assert_eq!(log.commit(Some((DATASET, 5)), &versions), Committed::Durable);
    assert_eq!(log.commit(Some((DATASET, 5)), &versions), Committed::Durable);
    assert_eq!(log.counters().total(LogCounters::BATCHES), 1);
    let texts = |root| -> Vec<String> {
        replay_all(&open(&storage, root), root).into_iter().map(|seen| seen.text).collect()
    };
    assert_eq!(
        texts(&root_2),
        [
            "write 0+20010 9",
            "ZapInsert { name: [110], value: [118] }",
            "Punch { offset: 7, len: 8 }",
            "SetAttributes { attributes: [9] }"
        ]
    );
    assert_eq!(texts(&root), [""; 0], "txg 2 is missing before this");
    let root_3 = sync(&log, 3);
    assert_eq!(texts(&root_3), [""; 0]);
}

#[test]
fn after_a_failed_write_commits_wait_for_the_txg_until_a_root_says_where_to_go_on() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    let insert = |txg, name: &str| {
        let change = Change::ZapInsert { name: name.as_bytes(), value: b"v" };
        log.append(txg, DATASET, 1, change);
    };
    let commit = || log.commit(None, &versions);
    sync(&log, 1);
    insert(3, "a");
    assert_eq!(commit(), Committed::Durable);
    insert(3, "b");
    storage.fails.store(true, Ordering::SeqCst);
    assert_eq!(commit(), Committed::WaitForTxg);
    assert_eq!(commit(), Committed::WaitForTxg, "what was lost is not durable yet");
    // The root of txg 2 still needs the block with "a": it cannot begin a generation.
    let root = sync(&log, 2);
    assert_eq!((root.generation.get(), replay_all(&open(&storage, &root), &root).len()), (1, 1));
    insert(3, "c");
    assert_eq!(commit(), Committed::WaitForTxg);
    let root = sync(&log, 3);
    assert_eq!(root.generation.get(), 2);
    insert(4, "d");
    assert_eq!(commit(), Committed::Durable);
    let found = replay_all(&open(&storage, &root), &root);
    assert_eq!((found.len(), found[0].txg), (1, 4));
}

#[test]
fn a_flush_proves_nothing_if_another_one_failed_since_the_write() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    let insert = |txg| log.append(txg, DATASET, 1, Change::ZapRemove { name: b"n" });
    sync(&log, 1);
    insert(3);
    storage.fails_beside.store(true, Ordering::SeqCst);
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg);
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg, "the log is closed");
    sync(&log, 2);
    sync(&log, 3);
    insert(4);
    assert_eq!(log.commit(None, &versions), Committed::Durable);
}

#[test]
fn a_write_that_fails_while_a_root_is_on_its_way_is_not_forgotten_by_that_root() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    let insert = |txg| log.append(txg, DATASET, 1, Change::ZapRemove { name: b"n" });
    sync(&log, 1);
    insert(2);
    storage.fails.store(true, Ordering::SeqCst);
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg);
    // Of txg 2, which opens the log again; the log stays closed until it is durable.
    let root = log.root_for(2);
    insert(3);
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg);
    log.synced(2);
    assert_eq!(log.commit(None, &versions), Committed::Durable);
    assert_eq!(replay_all(&open(&storage, &root), &root).len(), 1);
}

#[test]
fn too_many_changes_wait_for_the_txg_and_take_no_more_memory() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    sync(&log, 1);
    log.tunables.set_log_commit_max_bytes(64 << 10).unwrap();
    let name = [7; 200];
    for _ in 0..2000 {
        log.append(2, DATASET, 1, Change::ZapRemove { name: &name });
    }
    assert!(log.counters().total(LogCounters::DROPPED) > 1000);
    log.append(3, DATASET, 1, Change::ZapRemove { name: b"kept" });
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg);
    let root = sync(&log, 2);
    assert_eq!(log.commit(None, &versions), Committed::Durable);
    assert_eq!(replay_all(&open(&storage, &root), &root).len(), 1);
}

/// A transaction that is under way when a commit begins, and ends with these changes before all is
/// at rest.
struct OpenTransaction<'a> {
    log: &'a IntentLog,
    changes: Cell<&'a [(u64, Change<'a>)]>,
}

impl Fetch for OpenTransaction<'_> {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        for (txg, change) in self.changes.take() {
            self.log.append(*txg, DATASET, 7, *change);
        }
        f();
        Ok(())
    }

    fn content(&self, _: u64, _: u64, _: u64, out: &mut [u8]) -> Result<()> {
        out.fill(7);
        Ok(())
    }
}

#[test]
fn an_object_that_gets_too_many_changes_while_a_commit_waits_for_rest_waits_for_the_txg() {
    let storage = memory();
    let log = create(&storage, &extents());
    sync(&log, 1);
    let write = |offset, len| Change::Write { offset, len };
    let large = [(2, write(1 << 20, 64 << 20))];
    let many: Vec<_> = (0..5000).map(|n| (3, write(n * 10, 1))).collect();
    for (txg, changes) in [(2, &large[..]), (3, &many[..])] {
        let meanwhile = OpenTransaction { log: &log, changes: Cell::new(changes) };
        log.append(txg, DATASET, 1, Change::ZapInsert { name: b"n", value: b"v" });
        log.append(txg, DATASET, 7, write(0, 100));
        assert_eq!(log.commit(Some((DATASET, 7)), &meanwhile), Committed::WaitForTxg);
        // The name was taken with it, and is not written: others have to wait for the txg too.
        assert_eq!(log.commit(None, &meanwhile), Committed::WaitForTxg);
        let root = sync(&log, txg);
        log.append(txg + 1, DATASET, 7, write(0, 100));
        assert_eq!(log.commit(Some((DATASET, 7)), &meanwhile), Committed::Durable);
        assert_eq!(replay_all(&open(&storage, &root), &root).len(), 1);
    }
}

#[test]
fn what_is_destroyed_is_left_out() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    let root = sync(&log, 1);
    // Gone from memory, but for the note.
    log.append(2, DATASET, 3, Change::Write { offset: 0, len: 100 });
    log.append(2, DATASET, 3, Change::TouchAttributes { attributes: &[3] });
    log.append(2, DATASET, 3, Change::Truncate { size: 1 });
    assert_eq!(log.commit(Some((DATASET, 3)), &versions), Committed::Durable);
    log.append(2, DATASET, 4, Change::Write { offset: 0, len: 100 });
    log.append(2, DATASET, 4, Change::Destroy);
    assert_eq!(log.commit(Some((DATASET, 4)), &versions), Committed::Durable);
    let texts: Vec<_> = replay_all(&open(&storage, &root), &root);
    let texts: Vec<_> = texts.into_iter().map(|seen| seen.text).collect();
    // But for what is written as it was noted.
    assert_eq!(texts, ["SetAttributes { attributes: [3] }", "Truncate { size: 1 }", "Destroy"]);
}

#[test]
fn a_torn_batch_is_not_replayed_at_all() {
    let storage = memory();
    let extents = [Extent { place: DvaPhys::new(Dva { device: 0, offset: 4096 }), bytes: 3 << 20 }];
    let log = create(&storage, &extents);
    let versions = Versions::default();
    versions.0.borrow_mut().extend((3..6).map(|object| (object, 9)));
    let root = sync(&log, 1);
    // Three batches: of one block, of several, and of one again.
    for (object, len) in [(3, 10), (4, 900_000), (5, 10)] {
        log.append(2, DATASET, 1, Change::ZapRemove { name: b"from" });
        log.append(2, DATASET, object, Change::Write { offset: 0, len });
        log.append(2, DATASET, 2, Change::ZapInsert { name: b"to", value: b"v" });
        assert_eq!(log.commit(Some((DATASET, object)), &versions), Committed::Durable);
    }
    let blocks = log.counters().total(LogCounters::BLOCKS);
    assert!(blocks >= 6, "{blocks} blocks");
    let records = |end: u64| {
        let all = replay_all(&open(&storage, &root), &root);
        assert!(all.iter().all(|seen| seen.object != end), "{all:?}");
        all.len()
    };
    let whole = records(0);
    assert_eq!(whole, 3 + (2 + 900_000usize.div_ceil(LOG_RECORD_MAX_BYTES)) + 3);
    let mut offset = 4096;
    for block in 0..blocks {
        let buffer =
            storage.read(Dva { device: 0, offset }, 0, arena().alloc(512).unwrap()).unwrap();
        let (head, _) = LogBlockPhys::read_from_prefix(&buffer).unwrap();
        let following = (blocks - 2).checked_sub(block).filter(|_| block > 0).unwrap_or(0);
        assert_eq!(u64::from(head.following.get()), following);
        // One bit of its records, or one of its head.
        for at in [size_of::<LogBlockPhys>() + 60, 93] {
            let flip = || {
                let mut buffer = storage
                    .read(Dva { device: 0, offset }, 0, arena().alloc(512).unwrap())
                    .unwrap();
                buffer[at] ^= 1;
                storage.device.run(Request::write(offset, buffer)).result.unwrap();
            };
            flip();
            let left = match block {
                0 => records(3),
                _ if block + 1 < blocks => records(4),
                _ => records(5),
            };
            let expected = match block {
                0 => 0,
                _ if block + 1 < blocks => 3,
                _ => whole - 3,
            };
            assert_eq!(left, expected, "block {block} of {blocks} is damaged");
            flip();
        }
        offset += u64::from(head.block_bytes.get());
    }
    assert_eq!(records(0), whole);
}

/// Group 2 is given up while the log has a record of group 4 after it: group 3 was not durable yet.
#[test]
fn records_after_a_group_that_was_given_up_are_not_replayed() {
    let storage = memory();
    let versions = Versions::default();
    let first = sync(&create(&storage, &extents()), 1);
    let log = open(&storage, &first);
    assert_eq!(replay_all(&log, &first), []);
    let second = sync(&log, 2);
    log.append(4, DATASET, 1, Change::Destroy);
    assert_eq!(log.commit(Some((DATASET, 1)), &versions), Committed::Durable);
    assert_eq!(replay_all(&open(&storage, &second), &second).len(), 1);

    let log = open(&storage, &first);
    log.give_up_groups(1);
    assert_eq!(replay_all(&log, &first), []);
    let third = sync(&log, 3);
    assert_eq!(replay_all(&open(&storage, &third), &third), []);
}

#[test]
fn without_a_ring_every_commit_waits_for_the_txg() {
    let storage = memory();
    let log = create(&storage, &[]);
    let versions = Versions::default();
    sync(&log, 1);
    log.append(2, DATASET, 1, Change::Destroy);
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg);
    let root = sync(&log, 2);
    assert_eq!(replay_all(&open(&storage, &root), &root), []);
}

/// Content for threads: no object is ever gone.
struct Zeros;

impl Fetch for Zeros {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        f();
        Ok(())
    }

    fn content(&self, _: u64, _: u64, _: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "plain threads for a test")]
fn threads_commit_together() {
    const THREADS: u64 = 4;
    const COMMITS: u64 = 50;
    let storage = memory();
    let place = DvaPhys::new(Dva { device: 0, offset: 1 << 20 });
    let log = create(&storage, &[Extent { place, bytes: THREADS * COMMITS * LOG_SECTOR_BYTES }]);
    let root = sync(&log, 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = &log;
            scope.spawn(move || {
                for n in 0..COMMITS {
                    let name = format!("{thread} {n}");
                    log.append(2, DATASET, 1, Change::ZapRemove { name: name.as_bytes() });
                    log.append(2, DATASET, thread, Change::Write { offset: n * 99, len: 7 });
                    let outcome = log.commit(Some((DATASET, thread)), &Zeros);
                    assert_eq!(outcome, Committed::Durable);
                }
            });
        }
    });
    let counters = log.counters();
    let (batches, joined) =
        (counters.total(LogCounters::BATCHES), counters.total(LogCounters::JOINED));
    let empty = counters.total(LogCounters::EMPTY);
    assert_eq!(batches + joined + empty, THREADS * COMMITS);
    let found = replay_all(&open(&storage, &root), &root);
    assert_eq!(found.len() as u64, 2 * THREADS * COMMITS);
}

#[test]
fn a_root_moves_the_ring_to_a_log_vdev_only_if_that_is_stamped() {
    let storage = memory();
    let log = create(&storage, &extents());
    sync(&log, 1);
    let number = LOG_VDEV | 5;
    let place = DvaPhys::new(Dva { device: number, offset: 1 << 20 });
    log.move_to(Some(Extent { place, bytes: 1 << 20 })).unwrap();
    let is_away = |root: &LogRootPhys| root.extents[0].start.get().unwrap().device == number;
    // Moved beside a commit that has passed the stamp, or has stamped another one.
    log.stamped(LOG_VDEV | 6, 2);
    let root = sync(&log, 2);
    assert!(!is_away(&root) && log.is_moving() && !log.has_left_log_vdev());
    log.stamped(number, 3);
    let root = sync(&log, 3);
    assert!(is_away(&root) && !log.is_moving());
    assert_eq!(root.stamp.get(), 3);
    // It goes on there without a stamp, and trusts the last one.
    assert_eq!(sync(&log, 4).stamp.get(), 3);
    log.stamped(number, 5);
    assert_eq!(sync(&log, 5).stamp.get(), 5);
    log.move_to(None).unwrap();
    let root = sync(&log, 6);
    assert!(!is_away(&root) && !log.has_left_log_vdev());
    assert_eq!(root.stamp.get(), 0);
    sync(&log, 7);
    assert!(log.has_left_log_vdev());
}

#[test]
fn a_ring_that_shall_move_is_not_opened_in_its_place_by_a_root_on_its_way() {
    let storage = memory();
    let log = create(&storage, &extents());
    let versions = Versions::default();
    // This root opens the new log, in the place that it shall leave meanwhile.
    log.root_for(1);
    let number = LOG_VDEV | 5;
    let place = DvaPhys::new(Dva { device: number, offset: 1 << 20 });
    log.move_to(Some(Extent { place, bytes: 1 << 20 })).unwrap();
    log.synced(1);
    log.append(2, DATASET, 1, Change::ZapRemove { name: b"n" });
    assert_eq!(log.commit(None, &versions), Committed::WaitForTxg);
    log.stamped(number, 2);
    sync(&log, 2);
    assert!(log.is_away());
}
