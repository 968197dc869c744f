//! Read-ahead of streams.

use forebay_pool::Pool;

use crate::common::{MIB, cache, create, dataset, import, memory};

const BLOCKS: u64 = 1024;
const RECORD: u64 = 8192;

fn counter(pool: &Pool, name: &str) -> u64 {
    pool.stats().counters.iter().filter(|(n, ..)| *n == name).map(|(.., value)| value).sum()
}

/// Reads blocks of a cold object in the given order, and flushes the cache before each pass.
/// Returns the misses of the last pass and the blocks prefetched in it.
fn read_cold<I: Iterator<Item = u64>>(passes: impl IntoIterator<Item = I>) -> (u64, u64) {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    let object = data.object(number).unwrap();
    for block in 0..BLOCKS {
        object.write(&tx, block * RECORD, &block.to_le_bytes()).unwrap();
    }
    drop((tx, object, data));
    pool.export().unwrap();
    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    let object = data.object(number).unwrap();
    let mut out = [0; RECORD as usize];
    let counts = || (counter(&pool, "misses"), counter(&pool, "issued"));
    let mut before = counts();
    for blocks in passes {
        cache.cache().clear();
        before = counts();
        for block in blocks {
            object.read(block * RECORD, &mut out).unwrap();
            assert_eq!(out[..8], block.to_le_bytes());
        }
    }
    let (misses, issued) = counts();
    (misses - before.0, issued - before.1)
}

#[test]
fn a_sequential_reader_is_read_ahead() {
    let (misses, issued) = read_cold(std::iter::once(0..BLOCKS));
    assert!(misses < 20, "{misses} misses");
    assert!((BLOCKS / 2..=BLOCKS + BLOCKS / 8).contains(&issued), "{issued} blocks prefetched");
}

/// In the second pass, slot hints exist and are stale.
#[test]
fn a_sequential_reader_with_stale_slot_hints_is_read_ahead() {
    let (misses, issued) = read_cold([0..BLOCKS, 0..BLOCKS]);
    assert!(misses < 20, "{misses} misses");
    assert!((BLOCKS / 2..=BLOCKS + BLOCKS / 8).contains(&issued), "{issued} blocks prefetched");
}

#[test]
fn a_strided_reader_is_read_ahead() {
    let (misses, issued) = read_cold(std::iter::once((0..BLOCKS).step_by(17)));
    assert!(misses < 20, "{misses} misses");
    assert!((30..=BLOCKS / 17).contains(&issued), "{issued} blocks prefetched");
}

#[test]
fn a_random_reader_prefetches_few_blocks() {
    let mut rng = forebay_base::rng::SmallRng::from_seed(3);
    let (_, issued) = read_cold(std::iter::once((0..300).map(|_| rng.below(BLOCKS))));
    assert!(issued < 60, "{issued} blocks prefetched for random reads");
}

/// With a long distance a plan needs the pointers of several indirect blocks. What it leaves out
/// would count as read ahead, and be lost.
#[test]
fn a_plan_across_indirect_blocks_is_read_as_a_whole() {
    let (device, cache) = (memory(128 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    let object = data.object(number).unwrap();
    let blocks = 6 * 512;
    for block in 0..blocks {
        object.write(&tx, block * RECORD, &block.to_le_bytes()).unwrap();
    }
    drop((tx, object, data));
    pool.export().unwrap();
    let pool = import(&device, &cache);
    for name in ["prefetch_max_bytes", "prefetch_ramp_bytes"] {
        pool.set_tunable(name, "64MiB").unwrap();
    }
    cache.cache().clear();
    let object = pool.dataset("data").unwrap().object(number).unwrap();
    let mut out = [0; RECORD as usize];
    for block in 0..blocks {
        object.read(block * RECORD, &mut out).unwrap();
        assert_eq!(out[..8], block.to_le_bytes());
    }
    assert_eq!(counter(&pool, "lost"), 0, "planned, and not read ahead");
}
