//! Non-blocking mode on slow devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{BlockCache, Dataset, ErrorKind, Object, Pool, Result, Wait};

use crate::common::{MIB, cache, check, create, dataset, import, memory};

const RECORD: u64 = 8192;
/// More blocks than one indirect block points to.
const BLOCKS: u64 = 1200;

/// A pool on a device that can be made slow.
struct Fixture {
    faults: Arc<FaultDevice>,
    cache: Arc<BlockCache>,
    pool: Pool,
    data: Dataset,
    number: u64,
    directory: u64,
}

/// A pool with an object and a large directory, none of which is in memory.
fn cold() -> Fixture {
    let faults = Arc::new(FaultDevice::new(memory(128 * MIB), 1));
    let device: Arc<dyn Device> = Arc::clone(&faults) as Arc<dyn Device>;
    let cache = cache(32 * MIB);
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, b"some").unwrap();
    let object = data.object(number).unwrap();
    for block in 0..BLOCKS {
        object.write(&tx, block * RECORD, &(block + 1).to_le_bytes()).unwrap();
    }
    let directory = data.create_directory(&tx, &[]).unwrap();
    let names = data.directory(directory).unwrap();
    for name in 0..3000u32 {
        names.insert(&tx, format!("a name {name}").as_bytes(), &name.to_le_bytes()).unwrap();
    }
    drop((tx, object, names, data));
    pool.export().unwrap();
    let pool = import(&device, &cache);
    pool.set_tunable("prefetch_max_bytes", "0").unwrap();
    let data = pool.dataset("data").unwrap();
    cache.cache().clear();
    Fixture { faults, cache, pool, data, number, directory }
}

impl Fixture {
    fn object(&self) -> Object {
        self.data.object(self.number).unwrap()
    }

    /// Makes reads slow. An operation that returns `WouldBlock` has not waited for a read, or it
    /// would have succeeded.
    fn stall(&self) {
        self.faults.add(Rule::new(Fault::Delay(Duration::from_millis(500))).on(Op::Read));
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.pool.stats().counters;
        counters.iter().filter(|(n, ..)| *n == name).map(|(.., value)| value).sum()
    }
}

fn would_block<T>(result: Result<T>) {
    let error = result.map(drop).expect_err("it is not in memory");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
}

/// Receives a message when the fetch is done.
fn fetched(object: &Object, offset: u64, len: u64) -> Receiver<()> {
    let (send, receive) = channel();
    object.fetch(offset, len, Box::new(move || send.send(()).unwrap()));
    receive
}

fn read(object: &Object, block: u64) -> Result<u64> {
    read_with(object, block, Wait::Allowed)
}

/// Reads in non-blocking mode.
fn try_read(object: &Object, block: u64) -> Result<u64> {
    read_with(object, block, Wait::Refused)
}

fn read_with(object: &Object, block: u64, wait: Wait) -> Result<u64> {
    let mut out = [0; 8];
    object.with_wait(wait).read(block * RECORD, &mut out)?;
    Ok(u64::from_le_bytes(out))
}

#[test]
fn operations_that_need_a_device_return_would_block() {
    let fixture = cold();
    fixture.stall();
    let data = fixture.data.non_blocking();
    would_block(data.object(fixture.number));
    would_block(data.directory(fixture.directory));
    would_block(data.object_info(fixture.number));
    let tx = fixture.pool.non_blocking().begin().unwrap();
    would_block(fixture.data.set_attributes(&tx, fixture.number, b"other"));
    would_block(fixture.data.set_attributes_with_names(&tx, fixture.number, b"other"));
    would_block(fixture.data.destroy(&tx, fixture.number));
    would_block(fixture.data.set_root(&tx, fixture.number, 1));
    // A new object number needs no read.
    assert!(fixture.data.create_object(&tx, &[]).unwrap() > fixture.number);
    drop(tx);
    fixture.faults.clear();
}

/// What it copied would be copied again.
#[test]
fn a_read_of_several_blocks_that_would_block_copies_none() {
    let fixture = cold();
    let object = fixture.object();
    // All but the last of three.
    for block in [10, 11] {
        assert_eq!(read(&object, block).unwrap(), block + 1);
    }
    fixture.stall();
    let mut out = [0xAA; 3 * RECORD as usize];
    let (offset, len) = (10 * RECORD, 3 * RECORD);
    would_block(object.with_wait(Wait::Refused).read(offset, &mut out));
    assert!(out.iter().all(|byte| *byte == 0xAA));
    let fetched = fetched(&object, offset, len);
    fixture.faults.clear();
    fetched.recv().unwrap();
    assert_eq!(object.with_wait(Wait::Refused).read(offset, &mut out).unwrap(), out.len());
    for (block, content) in (10..).zip(out.chunks(RECORD as usize)) {
        let expected = [&u64::to_le_bytes(block + 1)[..], &[0; RECORD as usize - 8]].concat();
        assert!(content == expected, "block {block}");
    }
}

/// Of many blocks, only some are looked at first.
#[test]
fn a_read_of_many_blocks_would_block_whichever_is_missing() {
    const MANY: usize = 20;
    let fixture = cold();
    let object = fixture.object();
    for missing in 0..MANY as u64 {
        fixture.cache.cache().clear();
        for block in (0..MANY as u64).filter(|block| *block != missing) {
            read(&object, block).unwrap();
        }
        fixture.stall();
        let mut out = vec![0; MANY * RECORD as usize];
        would_block(object.with_wait(Wait::Refused).read(0, &mut out));
        let fetched = fetched(&object, 0, out.len() as u64);
        fixture.faults.clear();
        fetched.recv().unwrap();
        assert_eq!(object.with_wait(Wait::Refused).read(0, &mut out).unwrap(), out.len());
        let first = |content: &[u8]| u64::from_le_bytes(content[..8].try_into().unwrap());
        assert!(out.chunks(RECORD as usize).map(first).eq(1..=MANY as u64), "{missing}");
    }
}

#[test]
fn an_operation_that_would_block_changes_nothing() {
    let fixture = cold();
    let object = fixture.object();
    let names = fixture.data.directory(fixture.directory).unwrap();
    fixture.stall();
    let tx = fixture.pool.non_blocking().begin().unwrap();
    would_block(try_read(&object, 7));
    would_block(object.write(&tx, 3 * RECORD + 5, b"not whole"));
    // Whole records except for the last byte.
    would_block(object.write(&tx, 3 * RECORD, &vec![1; 5 * RECORD as usize + 1]));
    would_block(object.truncate(&tx, 5 * RECORD + 1));
    would_block(object.punch(&tx, RECORD + 1, 7 * RECORD));
    would_block(object.non_blocking().next_hole(0));
    would_block(names.non_blocking().lookup(b"a name 5"));
    would_block(names.insert(&tx, b"another name", b"1"));
    would_block(names.remove(&tx, b"a name 5"));
    would_block(names.update(&tx, b"a name 5", b"1"));
    would_block(names.non_blocking().entries(forebay_pool::Cookie::START, 10));
    assert_eq!(names.len(), 3000);
    drop(tx);
    fixture.faults.clear();
    assert_eq!(object.size(), (BLOCKS - 1) * RECORD + 8);
    for block in 0..BLOCKS {
        assert_eq!(read(&object, block).unwrap(), block + 1);
    }
    for name in 0..3000u32 {
        let value = names.lookup(format!("a name {name}").as_bytes()).unwrap();
        assert_eq!(*value.unwrap(), name.to_le_bytes());
    }
    assert!(names.lookup(b"another name").unwrap().is_none());
    fixture.pool.sync().unwrap();
    names.audit().unwrap();
    drop((object, names));
    check(&fixture.pool);
}

#[test]
fn operations_in_memory_succeed_without_blocking() {
    let fixture = cold();
    let object = fixture.object();
    let names = fixture.data.directory(fixture.directory).unwrap();
    for block in 0..BLOCKS {
        read(&object, block).unwrap();
    }
    assert_eq!(names.iter().count(), 3000);
    let reads = fixture.counter("reads");
    let tx = fixture.pool.non_blocking().begin().unwrap();
    assert_eq!(try_read(&object, 9).unwrap(), 10);
    object.write(&tx, 9 * RECORD, &77u64.to_le_bytes()).unwrap();
    assert_eq!(try_read(&object, 9).unwrap(), 77);
    object.punch(&tx, 11 * RECORD + 1, 5 * RECORD).unwrap();
    object.truncate(&tx, 700 * RECORD + 1).unwrap();
    names.insert(&tx, b"another name", b"1").unwrap();
    names.remove(&tx, b"a name 5").unwrap();
    assert_eq!(names.len(), 3000);
    assert_eq!(names.non_blocking().iter().count(), 3000);
    fixture.data.destroy(&tx, fixture.number).unwrap();
    drop(tx);
    assert_eq!(fixture.counter("reads"), reads);
}

#[test]
fn a_transaction_waits_once_it_may() {
    let fixture = cold();
    let object = fixture.object();
    read(&object, 3).unwrap();
    fixture.stall();
    let tx = fixture.pool.non_blocking().begin().unwrap();
    assert_eq!(tx.wait(), Wait::Refused);
    would_block(object.write(&tx, 5 * RECORD + 8, b"not whole"));
    tx.allow_wait();
    assert_eq!(tx.wait(), Wait::Allowed);
    object.write(&tx, 7 * RECORD + 8, b"not whole").unwrap();
    drop(tx);
    fixture.faults.clear();
    assert_eq!(read(&object, 7).unwrap(), 8);
}

#[test]
fn a_fetch_loads_the_blocks_that_a_read_needs() {
    let fixture = cold();
    let object = fixture.object();
    let fetch = |block, blocks| fetched(&object, block * RECORD, blocks * RECORD).recv().unwrap();
    // The first fetches load indirect blocks, the last one the data.
    for _ in 0..3 {
        fetch(600, 4);
    }
    for block in 600..604 {
        assert_eq!(try_read(&object, block).unwrap(), block + 1);
    }
    // Nothing to read: the fetch is done before the call returns.
    for (offset, len) in [(600 * RECORD, RECORD), (u64::MAX, 1), (0, 0)] {
        assert!(fetched(&object, offset, len).try_recv().is_ok());
    }
}

#[test]
fn a_fetch_does_not_block_and_ends_after_its_last_read() {
    let fixture = cold();
    let object = fixture.object();
    read(&object, 3).unwrap();
    // Reads are delayed until the rule is removed.
    fixture.faults.add(Rule::new(Fault::Delay(Duration::from_secs(3600))).on(Op::Read));
    let reads = fixture.counter("reads");
    let fetches: Vec<_> = (0..4).map(|_| fetched(&object, 0, 8 * RECORD)).collect();
    assert!(fetches.iter().all(|fetch| fetch.try_recv().is_err()), "no read has ended");
    fixture.faults.clear();
    fetches.iter().for_each(|fetch| fetch.recv().unwrap());
    (0..8).for_each(|block| assert_eq!(try_read(&object, block).unwrap(), block + 1));
    // Each missing block is read once, however many fetches need it.
    assert_eq!(fixture.counter("reads") - reads, 7);
}

#[test]
fn a_fetch_of_unreadable_blocks_ends_too() {
    let fixture = cold();
    let object = fixture.object();
    read(&object, 3).unwrap();
    fixture.faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    fetched(&object, 0, 8 * RECORD).recv().unwrap();
    would_block(try_read(&object, 5));
    assert_eq!(read(&object, 5).unwrap_err().kind(), ErrorKind::Device);
    fixture.faults.clear();
    assert_eq!(read(&object, 5).unwrap(), 6);
}

#[test]
fn retried_reads_are_reported_to_read_ahead_once() {
    let fixture = cold();
    fixture.pool.set_tunable("prefetch_max_bytes", "262144").unwrap();
    let object = fixture.object();
    let mut out = vec![0; RECORD as usize];
    let mut tries = 0;
    for block in 0..BLOCKS - 1 {
        // Like a server: try without blocking, fetch, try again, and block in the end.
        let at = block * RECORD;
        let mut read = object.non_blocking().read(at, &mut out);
        for _ in 0..3 {
            if read.is_ok() {
                break;
            }
            tries += 1;
            fetched(&object, at, RECORD).recv().unwrap();
            read = object.non_blocking().read(at, &mut out);
        }
        assert_eq!(read.unwrap(), out.len());
        assert_eq!(out[..8], (block + 1).to_le_bytes());
    }
    let (misses, issued) = (fixture.counter("misses"), fixture.counter("issued"));
    assert!(tries < 100, "{tries} tries");
    assert!(misses < 20, "{misses} misses");
    assert!((BLOCKS / 2..=BLOCKS + BLOCKS / 8).contains(&issued), "{issued} blocks prefetched");
}

#[test]
fn many_non_blocking_threads_with_blocking_retries() {
    let fixture = cold();
    fixture.faults.add(Rule::new(Fault::Delay(Duration::from_millis(1))).on(Op::Read));
    let (object, retried) = (fixture.object(), AtomicU64::new(0));
    let seed = forebay_base::testing::seed(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (object, fixture, retried) = (&object, &fixture, &retried);
            scope.spawn(move || {
                let mut rng = forebay_base::rng::SmallRng::from_seed(seed ^ thread);
                for step in 0..300 {
                    let block = rng.below(BLOCKS);
                    let value = try_read(object, block).or_else(|error| {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        retried.fetch_add(1, Ordering::Relaxed);
                        read(object, block)
                    });
                    assert_eq!(value.unwrap(), block + 1);
                    if step % 100 == 99 {
                        fixture.cache.cache().clear();
                    }
                }
            });
        }
    });
    assert!(retried.load(Ordering::Relaxed) > 0);
    fixture.faults.clear();
}

#[test]
fn stats_do_not_wait_for_a_syncing_txg() {
    let fixture = cold();
    let before = fixture.pool.usage();
    assert!(before.available_bytes < before.free_bytes);
    assert_eq!(
        before.total_bytes,
        before.allocated_bytes + before.deferred_bytes + before.free_bytes
    );
    let tx = fixture.pool.begin().unwrap();
    fixture.object().write(&tx, 0, &vec![7; 4 * MIB as usize]).unwrap();
    drop(tx);
    // Dirty bytes are not available.
    assert!(fixture.pool.usage().available_bytes <= before.available_bytes - 4 * MIB);
    // Writes are delayed until the rule is removed.
    fixture.faults.add(Rule::new(Fault::Delay(Duration::from_secs(3600))).on(Op::Write));
    std::thread::scope(|scope| {
        let synced = fixture.pool.stats().synced_txg;
        let sync = scope.spawn(|| fixture.pool.sync().unwrap());
        while fixture.faults.injected().is_empty() {
            std::thread::yield_now();
        }
        let stats = fixture.pool.stats();
        assert_eq!((stats.synced_txg, stats.allocated_bytes), (synced, before.allocated_bytes));
        fixture.faults.clear();
        sync.join().unwrap();
    });
    assert!(fixture.pool.usage().allocated_bytes >= before.allocated_bytes + 3 * MIB);
}

/// Pointers come before their blocks are to be read ahead, and a plan that waits for them goes on
/// where it was.
#[test]
fn read_ahead_of_a_reader_that_never_blocks_passes_indirect_blocks() {
    let fixture = cold();
    fixture.pool.set_tunable("prefetch_max_bytes", "4MiB").unwrap();
    fixture.pool.set_tunable("prefetch_ramp_bytes", "2MiB").unwrap();
    fixture.faults.add(Rule::new(Fault::Delay(Duration::from_millis(2))).on(Op::Read));
    let object = fixture.object();
    for block in 0..BLOCKS {
        let found = loop {
            match try_read(&object, block) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    fetched(&object, block * RECORD, RECORD).recv().unwrap();
                }
                found => break found.unwrap(),
            }
        };
        assert_eq!(found, block + 1);
    }
    assert_eq!(fixture.counter("lost"), 0);
    // Each block is read ahead once, but for the first ones and those that a fetch overtakes.
    let needless = fixture.counter("prefetches_needless");
    assert!(needless < BLOCKS / 2, "{needless} of {BLOCKS} blocks were asked for again");
}
