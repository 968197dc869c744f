//! Resilvers under want of memory, and beside a group that cannot be written.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, MemoryDevice, MemoryOptions, Op, Request};

use super::Conditions;
use crate::format::Compression;
use crate::{
    AttachOptions, BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ErrorKind,
    ImportOptions, NewVdev, Pool,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 128 * MIB;
const RECORD: usize = 4096;
/// More than a batch.
const RECORDS: u64 = 20_000;
/// Written records after which memory runs out, in the midst of a batch.
const STARVED_AT: u64 = 500;

fn memory(name: &str) -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new(name, SIZE, &options).expect("a device"))
}

fn cache() -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
    BlockCache::new(options).expect("a cache")
}

/// Counts the writes between the labels. The one that memory runs out at waits for that.
struct Gate {
    inner: Arc<dyn Device>,
    writes: AtomicU64,
    opened: AtomicU64,
}

impl Decorator for Gate {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() == Op::Write && (MIB..SIZE - MIB).contains(&request.offset()) {
            let before = self.writes.fetch_add(1, Ordering::SeqCst);
            while before == STARVED_AT && self.opened.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
        }
        Some(request)
    }
}

/// Takes the memory that is left.
fn take_all(cache: &BlockCache, held: &mut Vec<Buffer>) {
    let mut bytes = 64 << 10;
    while bytes >= 512 {
        match cache.try_alloc(bytes) {
            Ok(buffer) => held.push(buffer),
            Err(_) => bytes /= 2,
        }
    }
}

fn reads(pool: &Pool) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().filter(|(name, ..)| *name == "reads").map(|(.., value)| value).sum()
}

#[test]
fn no_block_is_left_out_once_memory_runs_out() {
    let (old, new, memory_of_pool) = (memory("old"), memory("new"), cache());
    let mut options = CreateOptions::new("tank", Arc::clone(&memory_of_pool));
    options.tunables = vec![("txg_timeout_ms".to_owned(), "100000".to_owned())];
    let pool = Pool::create(vec![Arc::clone(&old).into()], &options).expect("a pool");
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        ..DatasetSettings::default()
    };
    let data = pool.create_dataset("data", &settings).expect("a dataset");
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, &[]).expect("an object");
    drop(tx);
    let object = data.object(number).expect("it");
    let content = |record: u64| [record as u8 | 1; RECORD];
    for record in 0..RECORDS {
        let tx = pool.begin().expect("space");
        object.write(&tx, record * RECORD as u64, &content(record)).expect("space");
    }
    pool.sync().expect("a txg");
    let inner = Arc::clone(&new);
    let gate = Arc::new(Gate { inner, writes: AtomicU64::new(0), opened: AtomicU64::new(0) });
    let attached: Arc<dyn Device> = gate.clone();
    pool.attach_device("old", attached.into(), AttachOptions::default()).expect("it suits");
    while gate.writes.load(Ordering::SeqCst) <= STARVED_AT {
        std::thread::yield_now();
    }
    let arena = memory_of_pool.arena();
    let limit_bytes = arena.limit_bytes();
    arena.set_limit(0);
    let mut held = Vec::new();
    memory_of_pool.cache().clear();
    take_all(&memory_of_pool, &mut held);
    gate.opened.store(1, Ordering::SeqCst);
    // A read is counted before there is memory for it. After many without a write there was none
    // for any thread, several times.
    let mut last_write = (u64::MAX, 0);
    while pool.resilver_status().is_active {
        take_all(&memory_of_pool, &mut held);
        let (writes, reads) = (gate.writes.load(Ordering::SeqCst), reads(&pool));
        if writes != last_write.0 {
            last_write = (writes, reads);
        }
        if reads >= last_write.1 + 50 {
            break;
        }
    }
    assert!(gate.writes.load(Ordering::SeqCst) < RECORDS, "memory did not run out");
    arena.set_limit(limit_bytes);
    held.clear();
    let status = pool.wait_resilver();
    assert_eq!(status.lost, 0, "{status:?}");
    assert!(pool.inner.devices.missed_from().is_none(), "it has ended: {status:?}");
    drop((object, data));
    pool.export().expect("exported");

    let options = ImportOptions { read_only: true, ..ImportOptions::new(cache()) };
    let pool = Pool::import(vec![new.into()], &options).expect("a whole side");
    let object = pool.dataset("data").and_then(|data| data.object(number)).expect("it");
    let mut found = [0; RECORD];
    for record in 0..RECORDS {
        object.read(record * RECORD as u64, &mut found).expect("it reads");
        assert!(found == content(record), "record {record}");
    }
    drop(object);
    pool.export().expect("exported");
}

/// Its last visits may have left out what that group frees, and a crash may undo the group.
#[test]
fn no_device_is_whole_while_a_group_that_was_closed_is_not_durable() {
    let (old, back, cache) = (memory("old"), memory("back"), cache());
    let mirror = NewVdev::Mirror(vec![Arc::clone(&old).into(), Arc::clone(&back).into()]);
    let options = CreateOptions::new("tank", Arc::clone(&cache));
    let pool = Pool::create_tree(vec![mirror], &options).expect("a pool");
    pool.create_dataset("data", &DatasetSettings::default()).expect("a dataset");
    pool.export().expect("exported");
    // A group without the other side, which is back then.
    let options = ImportOptions::new(cache);
    let pool = Pool::import(vec![Arc::clone(&old).into()], &options).expect("a whole side");
    pool.sync().expect("a group");
    pool.export().expect("exported");
    let fault = Arc::new(FaultDevice::new(old, 7));
    let sides = vec![(Arc::clone(&fault) as Arc<dyn Device>).into(), back.into()];
    let pool = Pool::import(sides, &options).expect("both");
    let inner = &pool.inner;
    inner.txgs.sync_now().expect("what the side misses ends with this group");
    let (until, began) = (inner.txgs.synced_txg(), Conditions::now(&inner.devices));
    fault.add(Rule::new(Fault::Error(5)).on(Op::Write).within(MIB / 4..SIZE - MIB / 4));
    let error = inner.txgs.sync_now().expect_err("it cannot be written");
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    let error = inner.caught_up(until, began).expect_err("the group is not durable");
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    assert!(inner.devices.missed_from().is_some(), "the side counts as whole");
    fault.clear();
    pool.clear().expect("the device works");
    // A clear distrusts what was flushed before.
    let began = Conditions::now(&inner.devices);
    inner.caught_up(until, began).expect("the group is durable");
    assert!(inner.devices.missed_from().is_none(), "the side misses nothing any more");
    pool.export().expect("exported");
}
