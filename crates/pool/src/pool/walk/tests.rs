//! Walks under want of memory, and over gangs.

use std::ops::ControlFlow;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::sync::Arc;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op, Request};

use super::{BlockLocation, Bookmark, SPACE_MAPS, SliceEnd, Step, VisitedBlock, Visitor, Walk};
use crate::error::{Error, ErrorKind};
use crate::format::{BlockPtrPhys, Compression};
use crate::object::tree;
use crate::wait::Wait;
use crate::{
    BlockCache, BlockCacheOptions, CreateOptions, Dataset, DatasetSettings, ImportOptions, Pool,
};

const RECORD: usize = 4096;
/// Records beneath an indirect block.
const BENEATH: usize = 512;

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
        data_compression: Compression::Off,
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
        self.cache.cache().clear();
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

/// A pool whose free space is so fragmented that indirect blocks are gangs, and such a block with
/// the number of its first record.
struct Fragmented {
    device: Arc<dyn Device>,
    pool: Pool,
    object: u64,
    first: u64,
    gang: BlockPtrPhys,
}

impl Fragmented {
    fn new() -> Self {
        let device = device(32 << 20);
        let options = CreateOptions::new("tank", cache());
        let pool = Pool::create(vec![Arc::clone(&device).into()], &options).expect("a pool");
        let data = dataset(&pool);
        Self::fragment(&pool, &data);
        let tx = pool.begin().expect("space");
        let object = data.create_object(&tx, &[]).expect("an object");
        drop(tx);
        let written = data.object(object).expect("it");
        for n in 0.. {
            let first = n * BENEATH as u64;
            for part in 0..8 {
                let tx = pool.begin().expect("space");
                let at = first * RECORD as u64 + part * (BENEATH / 8 * RECORD) as u64;
                written.write(&tx, at, &[7; BENEATH / 8 * RECORD]).expect("space");
            }
            pool.sync().expect("a txg");
            let node = data.inner.objset.open(object, Wait::Allowed).expect("it");
            let (store, tree) = (&data.inner.objset.io.store, node.lock().tree);
            let gang = tree::descend(store, &tree, first, 1, Wait::Allowed).expect("it");
            if gang.is_gang() {
                drop((node, written, data));
                return Self { device, pool, object, first, gang };
            }
        }
        unreachable!("space ends before numbers do")
    }

    /// Fills the pool with an object and punches every second record.
    fn fragment(pool: &Pool, data: &Dataset) {
        let tx = pool.begin().expect("space");
        let number = data.create_object(&tx, &[]).expect("an object");
        drop(tx);
        let filler = data.object(number).expect("it");
        let mut records = 0;
        while let Ok(tx) = pool.begin() {
            let offset = records * RECORD as u64;
            if filler.write(&tx, offset, &[1; 16 * RECORD]).is_err() {
                break;
            }
            records += 16;
        }
        pool.sync().expect("a txg");
        for record in (0..records).step_by(2) {
            let tx = pool.begin_freeing().expect("space to free");
            filler.punch(&tx, record * RECORD as u64, RECORD as u64).expect("punched");
        }
        for _ in 0..5 {
            pool.sync().expect("a txg");
        }
    }

    fn overwrite(&self, offset: u64) {
        let config = ArenaConfig { limit_bytes: 8 << 20, huge_pages: HugePages::Auto };
        let mut buffer = Arena::new(config).expect("memory").alloc(512).expect("memory");
        buffer.fill(0xa5);
        self.device.run(Request::write(offset, buffer)).result.expect("memory");
    }
}

#[test]
fn a_scrub_goes_on_beneath_a_gang_that_it_healed_from_pieces_of_both_copies() {
    let fixture = Fragmented::new();
    let store = &fixture.pool.inner.store;
    let extents = store.extents(&fixture.gang).expect("its pieces");
    // Both copies of the gang block, then both copies of each piece.
    assert!(extents.len() >= 6, "{extents:?}");
    let record = {
        let content = store.read_copy(&fixture.gang, 0).expect("it is good");
        tree::children(&fixture.gang, &content).expect("pointers")[5]
    };
    let record = record.dvas().next().expect("a copy");
    [extents[2].0, extents[5].0, record].iter().for_each(|dva| fixture.overwrite(dva.offset));
    for copy in 0..2 {
        store.read_copy(&fixture.gang, copy).expect_err("each copy has a bad piece");
    }
    let report = fixture.pool.scrub(&mut |_| ControlFlow::Continue(())).expect("it runs");
    assert_eq!((report.complete, report.healed, report.lost_count), (true, 2, 1), "{report:?}");
    let text = format!("dataset data, object {}, block {}:", fixture.object, fixture.first + 5);
    assert!(report.lost[0].to_string().starts_with(&text), "{:?}", report.lost);
    store.read_copy(&fixture.gang, 0).expect("it is healed");
}
