//! Locks and atomic operations of a cached read and of an insert, counted by a build with
//! `--features counting`.

use std::sync::Arc;

use forebay_base::sync::count;
use forebay_io::{MemoryDevice, MemoryOptions};
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, BlockCacheOptions, CreateOptions, Dataset, DatasetSettings, Pool};

const BYTES: u64 = 64 << 20;

const RECORD: u64 = 8192;
const RECORDS: u64 = 2000;
const READS: u64 = 10_000;

/// A pool on a memory device, and a dataset with records of [`RECORD`] bytes.
fn pool() -> (Pool, Dataset) {
    let device = MemoryDevice::new("counted", BYTES, &MemoryOptions::default()).unwrap();
    let options = BlockCacheOptions { bytes: BYTES, ..BlockCacheOptions::default() };
    let cache = BlockCache::new(options).unwrap();
    let options = CreateOptions { seed: Some(7), ..CreateOptions::new("tank", cache) };
    let device: Arc<dyn forebay_io::Device> = Arc::new(device);
    let pool = Pool::create(vec![device.into()], &options).unwrap();
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        ..DatasetSettings::default()
    };
    let data = pool.create_dataset("data", &settings).unwrap();
    (pool, data)
}

#[test]
fn a_cached_read_takes_one_lock() {
    let (pool, data) = pool();
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    object.write(&tx, 0, &vec![3; (RECORD * RECORDS) as usize]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let mut rng = forebay_base::rng::SmallRng::from_seed(5);
    let mut out = [0; RECORD as usize];
    let mut read =
        |block: u64| assert_eq!(object.read(block * RECORD, &mut out).unwrap(), out.len());
    // Read-ahead takes the lock too, whenever random reads happen to look like a stream.
    pool.set_tunable("prefetch_max_bytes", "0").unwrap();
    // Pins the indirect blocks and sets the slot hints.
    (0..RECORDS).for_each(&mut read);
    let before = count::thread();
    (0..READS).for_each(|_| read(rng.below(RECORDS)));
    let after = count::thread();
    assert_eq!(after.locks - before.locks, READS);
    // Pin and unpin.
    assert_eq!(after.rmw - before.rmw, 2 * READS);
    assert_eq!(after.cas_failed - before.cas_failed, 0);
}

#[test]
fn an_insert_takes_locks_of_its_directory_and_its_thread_only() {
    const NAMES: u64 = 100;
    let (pool, data) = pool();
    let tx = pool.begin().unwrap();
    let directory = data.directory(data.create_directory(&tx, &[]).unwrap()).unwrap();
    let insert = |name: u64| directory.insert(&tx, &name.to_le_bytes(), &[1]).unwrap();
    // One leaf, with space for more names.
    (0..300).for_each(insert);
    let before = count::thread();
    (300..300 + NAMES).for_each(insert);
    let after = count::thread();
    // The directory's object lock and state, the object's state for the leaf and for the entry
    // count, and the thread's shard of the intent log. No shard of dnodes: neighbouring directories
    // would share it.
    assert_eq!(after.locks - before.locks, 5 * NAMES);
}
