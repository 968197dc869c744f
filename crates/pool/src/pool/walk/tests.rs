//! Walks under want of memory.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};

use super::{BlockLocation, Bookmark, SPACE_MAPS, SliceEnd, Step, VisitedBlock, Visitor, Walk};
use crate::error::{Error, ErrorKind};
use crate::format::Compression;
use crate::{
    BlockCache, BlockCacheOptions, CreateOptions, Dataset, DatasetSettings, ImportOptions, Pool,
};

const RECORD: usize = 4096;

fn device(bytes: u64) -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new("walk", bytes, &options).expect("a device"))
}

fn cache() -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
    BlockCache::new(options).expect("a cache")
}

fn dataset(pool: &Pool) -> Dataset {
    let settings = DatasetSettings {
        record_bytes: RECORD as u32,
        metadata_compression: Compression::Off,
        ..DatasetSettings::default()
    };
    pool.create_dataset("data", &settings).expect("a dataset")
}

/// Uses all memory once a block was visited, until it is told to release it.
struct Hog {
    cache: Arc<BlockCache>,
    held: Vec<Buffer>,
    damaged: Vec<String>,
}

impl Hog {
    fn take_all(&mut self) {
        self.cache.cache().flush();
        let mut bytes = 1 << 20;
        while bytes >= 512 {
            match self.cache.try_alloc(bytes) {
                Ok(buffer) => self.held.push(buffer),
                Err(_) => bytes /= 2,
            }
        }
    }
}

impl Visitor for Hog {
    fn proceed(&mut self, _: &Bookmark) -> Step {
        Ok(())
    }

    fn block(&mut self, _: VisitedBlock<'_>) -> Step {
        self.take_all();
        Ok(())
    }

    fn damaged(&mut self, location: &BlockLocation, error: Error) {
        self.damaged.push(format!("{location}: {error}"));
    }
}

#[test]
fn a_damaged_base_is_reported_although_the_walk_ran_out_of_memory() {
    let (device, first) = (device(64 << 20), cache());
    let pool = Pool::create(vec![Arc::clone(&device).into()], &CreateOptions::new("tank", first));
    let pool = pool.expect("a pool");
    let data = dataset(&pool);
    for _ in 0..20 {
        let tx = pool.begin().expect("space");
        data.create_object(&tx, &[]).expect("an object");
        drop(tx);
        pool.sync().expect("a txg");
    }
    drop(data);
    pool.export().expect("exported");

    let cache = cache();
    let faulty = Arc::new(FaultDevice::new(device, 1));
    let dynamic: Arc<dyn Device> = faulty.clone();
    let options = ImportOptions { read_only: true, ..ImportOptions::new(Arc::clone(&cache)) };
    let pool = Pool::import(vec![dynamic.into()], &options).expect("the pool");
    let mut hog = Hog { cache, held: Vec::new(), damaged: Vec::new() };
    let at = Bookmark { block: 0, ..Bookmark::dataset(SPACE_MAPS) };
    let mut walk = Walk::new(&pool.inner, u64::MAX, at, &mut hog);
    walk.blocks_left = u32::MAX;
    // It visits the root block. Then there is no memory to load a base.
    match walk.slice() {
        Err(SliceEnd::Failed(error)) => assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}"),
        ended => panic!("{ended:?}"),
    }
    let at = walk.at;
    assert!(hog.damaged.is_empty(), "{:?}", hog.damaged);
    hog.held.clear();
    let all = Rule::new(Fault::Error(5));
    faulty.add(all.on(Op::Read));
    let mut walk = Walk::new(&pool.inner, u64::MAX, at, &mut hog);
    walk.blocks_left = u32::MAX;
    let _ = walk.slice();
    assert!(!hog.damaged.is_empty(), "the bases are unreadable");
}
