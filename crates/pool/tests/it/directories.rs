//! Large directories: filters and the change buffer in real pools.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_io::Device;
use forebay_pool::{BlockCache, Directory, ErrorKind, ImportOptions, Pool};

use crate::common::{MIB, cache, check, create, dataset, import, import_options, memory};

const NAMES: u32 = 40_000;
/// A directory of so many has just as many leaves as make it large.
const LARGE_NAMES: u32 = 20_000;

fn counter(pool: &Pool, name: &str) -> u64 {
    pool.stats().counters.iter().filter(|(n, ..)| *n == name).map(|(.., value)| value).sum()
}

/// Reads that somebody waited for.
fn waited_reads(pool: &Pool) -> u64 {
    let counters = pool.stats().counters;
    let waited = counters.iter().filter(|(name, label, _)| (*name, *label) == ("reads", "miss"));
    waited.map(|(.., value)| value).sum()
}

/// Leaves that operations waited for.
fn leaf_waits(pool: &Pool) -> u64 {
    let counters = pool.stats().counters;
    let waits = counters.iter().filter(|c| (c.0, c.1) == ("directory_waits", "leaf"));
    waits.map(|(.., value)| value).sum()
}

fn name(number: u32) -> [u8; 24] {
    let mut name = [b'n'; 24];
    name[..10].copy_from_slice(format!("{number:0>10}").as_bytes());
    name
}

fn insert(pool: &Pool, directory: &Directory, number: u32) {
    let tx = pool.begin().expect("space");
    directory.insert(&tx, &name(number), &number.to_le_bytes()).expect("it is new");
}

/// A pool on a device, and its directory with [`NAMES`] names, just imported.
struct Cold {
    device: Arc<dyn Device>,
    cache: Arc<BlockCache>,
    pool: Pool,
    directory: Directory,
}

/// A pool with an empty directory.
fn fresh() -> Cold {
    let (device, cache) = (memory(256 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    pool.set_tunable("directory_buffer", "true").expect("a tunable");
    let data = dataset(&pool);
    let tx = pool.begin().expect("space");
    let number = data.create_directory(&tx, &[]).expect("a directory");
    drop(tx);
    let directory = data.directory(number).expect("it");
    Cold { device, cache, pool, directory }
}

fn cold() -> Cold {
    let new = fresh();
    for number in 0..NAMES {
        if number % 10_000 == 0 {
            // A leaf gets its filter with the first group that changes it in a large directory.
            new.pool.sync().expect("a txg");
        }
        insert(&new.pool, &new.directory, number);
    }
    new.again()
}

fn open(device: Arc<dyn Device>, cache: Arc<BlockCache>, number: u64) -> Cold {
    let pool = import(&device, &cache);
    pool.set_tunable("directory_buffer", "true").expect("a tunable");
    let directory = pool.dataset("data").expect("it").directory(number).expect("it");
    Cold { device, cache, pool, directory }
}

impl Cold {
    /// Exports and imports the pool with an empty cache.
    fn again(self) -> Self {
        let Self { device, cache, pool, directory } = self;
        let number = directory.number();
        drop(directory);
        pool.export().expect("an export");
        cache.cache().clear();
        open(device, cache, number)
    }

    /// Inserts names cold: the cache is emptied every now and then.
    fn insert_cold(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            if number % 500 == 0 {
                self.pool.sync().expect("a txg");
                self.cache.cache().clear();
            }
            insert(&self.pool, &self.directory, number);
        }
    }

    /// Asserts that the directory has exactly these names, found by a walk and by lookups.
    fn expect(&self, numbers: std::ops::Range<u32>) {
        let walked: BTreeSet<_> =
            self.directory.iter().map(|entry| entry.expect("it is valid").name).collect();
        let expected: BTreeSet<Box<[u8]>> = numbers.clone().map(|n| name(n).into()).collect();
        assert!(walked == expected, "{} of {} names", walked.len(), expected.len());
        assert_eq!(self.directory.len(), u64::from(numbers.end - numbers.start));
        for number in numbers.step_by(37) {
            let found = self.directory.lookup(&name(number)).expect("it is possible");
            assert_eq!(found.as_deref(), Some(&number.to_le_bytes()[..]));
        }
    }
}

#[test]
fn creates_in_a_cold_directory_read_few_leaves() {
    let cold = cold();
    let before = cold.directory.stats().expect("it is valid");
    assert!(before.leaves >= 128 && before.filters == before.leaves, "{before}");
    let cold = cold.again();
    // Names do not move to leaves beside the creates.
    cold.pool.set_tunable("directory_merge_reads", "0").expect("a tunable");
    let reads = waited_reads(&cold.pool);
    for number in NAMES..NAMES + 300 {
        assert!(cold.directory.lookup(&name(number)).expect("it is possible").is_none());
        insert(&cold.pool, &cold.directory, number);
    }
    // Indirect blocks, filter blocks, and leaves whose filter cannot tell. Others are read ahead.
    let reads = waited_reads(&cold.pool) - reads;
    assert!(reads < 60, "{reads} reads waited for by 300 lookups and creates");
    cold.insert_cold(NAMES + 300..NAMES + 4000);
    let buffered = counter(&cold.pool, "directory_names_buffered");
    let (merged, leaves) = (
        counter(&cold.pool, "directory_names_merged"),
        counter(&cold.pool, "directory_leaves_merged"),
    );
    // The cache has free memory for leaves, so some find their leaf.
    assert!(buffered > 2000, "{buffered} of 4000 names were buffered");
    assert!(merged > 4 * leaves, "{merged} names were moved to {leaves} leaves");
    cold.pool.sync().expect("a txg");
    cold.directory.audit().expect("it is valid");
    check(&cold.pool);
    let cold = cold.again();
    cold.expect(0..NAMES + 4000);
    // Moved all at once.
    while cold.directory.merge_buffered().expect("it is possible") > 0 {}
    cold.pool.sync().expect("a txg");
    let stats = cold.directory.audit().expect("it is valid");
    assert_eq!((stats.buffered, stats.filters), (0, stats.leaves));
    let cold = cold.again();
    cold.expect(0..NAMES + 4000);
    check(&cold.pool);
}

/// Leaves split in waves: the last leaf that splits makes the directory large, and no other splits
/// before the export. All of them were changed in the same group before.
#[test]
fn a_directory_that_becomes_large_in_the_last_group_has_filters() {
    let new = fresh();
    (0..LARGE_NAMES).for_each(|number| insert(&new.pool, &new.directory, number));
    let cold = new.again();
    let stats = cold.directory.stats().expect("it is valid");
    assert_eq!((stats.leaves, stats.filters), (64, 64), "{stats}");
    let cold = cold.again();
    for number in LARGE_NAMES..LARGE_NAMES + 200 {
        assert!(cold.directory.lookup(&name(number)).expect("it is possible").is_none());
        insert(&cold.pool, &cold.directory, number);
    }
    let waits = leaf_waits(&cold.pool);
    assert!(waits <= 8, "{waits} leaves were waited for");
    cold.pool.sync().expect("a txg");
    cold.directory.audit().expect("it is valid");
    check(&cold.pool);
    cold.again().expect(0..LARGE_NAMES + 200);
}

/// Leaves that earlier groups have written get filters, too, if they are in memory.
#[test]
fn a_directory_that_becomes_large_has_filters_of_stored_leaves() {
    let Cold { pool, directory, .. } = fresh();
    pool.set_tunable("directory_buffer", "false").expect("a tunable");
    let leaves = || directory.stats().expect("it is valid").leaves;
    let mut names = 0;
    let mut insert_next = || {
        insert(&pool, &directory, names);
        names += 1;
    };
    (0..LARGE_NAMES).for_each(|_| insert_next());
    while leaves() == 64 {
        (0..50).for_each(|_| insert_next());
    }
    pool.sync().expect("a txg");
    let before = directory.stats().expect("it is valid");
    assert_eq!(before.filters, 0);
    pool.set_tunable("directory_buffer", "true").expect("a tunable");
    // Leaves split in waves, so the next one does soon.
    while leaves() == before.leaves {
        pool.sync().expect("a txg");
        insert_next();
    }
    pool.sync().expect("a txg");
    let after = directory.audit().expect("it is valid");
    assert_eq!(after.filters, after.leaves, "{after}");
    check(&pool);
}

/// Inserts names into a cold directory until the pool has moved some in the background.
fn insert_until_moved(cold: &Cold) -> u32 {
    let moved = || counter(&cold.pool, "directory_names_merged");
    let (before, mut number) = (moved(), NAMES);
    while moved() == before {
        assert!(number < 10 * NAMES, "no name has moved");
        cold.insert_cold(number..number + 100);
        number += 100;
    }
    number
}

#[test]
fn names_move_in_the_background() {
    let cold = cold().again();
    let mut end = insert_until_moved(&cold);
    // Creates read leaves ahead too, so the thread does not have to read any at first.
    while counter(&cold.pool, "directory_merge_reads") == 0 {
        assert!(end < 10 * NAMES, "the thread has read no leaf");
        cold.insert_cold(end..end + 100);
        end += 100;
    }
    let leaves = counter(&cold.pool, "directory_leaves_merged");
    let merged = counter(&cold.pool, "directory_names_merged");
    assert!(merged > 3 * leaves, "{merged} names were moved to {leaves} leaves");
    cold.pool.sync().expect("a txg");
    cold.directory.audit().expect("it is valid");
    let cold = cold.again();
    cold.expect(0..end);
    cold.directory.audit().expect("it is valid");
    check(&cold.pool);
}

/// Lookups of names that do not exist must not pay for the buffer of a directory at rest.
#[test]
fn names_move_when_creates_pause() {
    let cold = cold().again();
    let mut end = NAMES;
    while cold.directory.stats().expect("it is valid").buffered == 0 {
        cold.insert_cold(end..end + 100);
        end += 100;
    }
    // Also after an import, when nothing is created.
    let cold = cold.again();
    while cold.directory.stats().expect("it is valid").buffered > 0 {
        for number in end..end + 100 {
            assert!(cold.directory.lookup(&name(number)).expect("it is possible").is_none());
        }
    }
    cold.pool.sync().expect("a txg");
    cold.directory.audit().expect("it is valid");
    cold.expect(0..end);
    check(&cold.pool);
}

#[test]
fn a_pool_is_exported_and_abandoned_while_names_move() {
    let mut cold = cold();
    let mut end = NAMES;
    for round in 0..4 {
        let moved = || counter(&cold.pool, "directory_names_merged");
        let before = moved();
        while moved() == before {
            cold.insert_cold(end..end + 100);
            end += 100;
        }
        cold.pool.sync().expect("a txg");
        let Cold { device, cache, pool, directory } = cold;
        let number = directory.number();
        drop(directory);
        match round % 2 {
            0 => pool.export().expect("an export"),
            _ => pool.abandon(),
        }
        cache.cache().clear();
        cold = open(device, cache, number);
        cold.directory.audit().expect("it is valid");
        check(&cold.pool);
    }
    cold.expect(0..end);
}

#[test]
fn a_directory_is_destroyed_while_names_move() {
    let cold = cold().again();
    insert_until_moved(&cold);
    let data = cold.pool.dataset("data").expect("it");
    let tx = cold.pool.begin_freeing().expect("space");
    data.destroy(&tx, cold.directory.number()).expect("it exists");
    // Another object may get its number at once.
    let next = data.create_directory(&tx, b"next").expect("a directory");
    drop(tx);
    cold.pool.sync().expect("a txg");
    cold.pool.sync().expect("a txg");
    let info = data.object_info(next).expect("it exists");
    assert_eq!(&*info.attributes, b"next");
    let next = data.directory(next).expect("it is valid");
    assert!(next.is_empty());
    insert(&cold.pool, &next, 1);
    next.audit().expect("it is valid");
    assert_eq!(data.allocated_bytes() / MIB, 0);
    check(&cold.pool);
}

#[test]
fn names_move_in_a_full_pool_as_far_as_there_is_space() {
    let cold = cold();
    cold.pool.set_tunable("directory_merge_reads", "0").expect("a tunable");
    cold.insert_cold(NAMES..NAMES + 1500);
    cold.pool.set_tunable("directory_merge_reads", "64").expect("a tunable");
    fill(&cold.pool);
    loop {
        match cold.directory.merge_buffered() {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                break;
            }
        }
    }
    cold.directory.audit().expect("it is valid");
    cold.pool.sync().expect("a txg");
    cold.expect(0..NAMES + 1500);
    check(&cold.pool);
}

#[test]
fn a_read_only_import_reads_buffered_names() {
    let cold = cold();
    cold.pool.set_tunable("directory_merge_reads", "0").expect("a tunable");
    cold.insert_cold(NAMES..NAMES + 1000);
    cold.pool.sync().expect("a txg");
    assert!(cold.directory.audit().expect("it is valid").buffered > 100);
    let (device, cache, number) = (cold.device, cold.cache, cold.directory.number());
    drop(cold.directory);
    cold.pool.export().expect("an export");
    cache.cache().clear();
    let options = ImportOptions { read_only: true, ..import_options(&cache) };
    let pool = Pool::import(vec![Arc::clone(&device).into()], &options).expect("the pool");
    let directory = pool.dataset("data").expect("it").directory(number).expect("it");
    assert!(directory.audit().expect("it is valid").buffered > 100);
    Cold { device, cache, pool, directory }.expect(0..NAMES + 1000);
}

/// Fills a pool.
fn fill(pool: &Pool) {
    let data = pool.dataset("data").expect("it");
    let tx = pool.begin().expect("space");
    let object = data.object(data.create_object(&tx, &[]).expect("an object")).expect("it");
    drop(tx);
    let mut at = 0;
    let full = loop {
        let written = pool.begin().and_then(|tx| object.write(&tx, at, &[at as u8 | 1; 65536]));
        match written {
            Ok(()) => at += 65536,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
}

#[test]
fn names_of_a_full_pool_can_be_removed_from_the_buffer() {
    let cold = cold();
    cold.pool.set_tunable("directory_merge_reads", "0").expect("a tunable");
    cold.insert_cold(NAMES..NAMES + 1000);
    fill(&cold.pool);
    for number in NAMES..NAMES + 1000 {
        let tx = cold.pool.begin_freeing().expect("the reserve");
        cold.directory.remove(&tx, &name(number)).expect("it exists");
    }
    cold.pool.sync().expect("a txg");
    cold.directory.audit().expect("it is valid");
    cold.expect(0..NAMES);
}

#[test]
fn a_destroyed_directory_frees_its_filters_and_pages() {
    let cold = cold();
    cold.pool.set_tunable("directory_merge_reads", "0").expect("a tunable");
    cold.insert_cold(NAMES..NAMES + 1000);
    cold.pool.sync().expect("a txg");
    let data = cold.pool.dataset("data").expect("it");
    let tx = cold.pool.begin_freeing().expect("space");
    data.destroy(&tx, cold.directory.number()).expect("it exists");
    drop(tx);
    cold.pool.sync().expect("a txg");
    assert_eq!(data.allocated_bytes() / MIB, 0);
    check(&cold.pool);
}

/// A group may open a filter block before the group before it has rewritten it.
#[test]
fn filters_stay_valid_while_groups_overlap() {
    let cold = cold();
    // Each name changes a leaf.
    cold.pool.set_tunable("directory_buffer", "false").expect("a tunable");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let syncs = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cold.pool.sync().expect("a txg");
            }
        });
        // About one name in each group, while the one before is being synced.
        for number in NAMES..NAMES + 600 {
            insert(&cold.pool, &cold.directory, number);
            let synced = cold.pool.stats().synced_txg;
            while cold.pool.stats().synced_txg == synced {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
        syncs.join().expect("it did not panic");
    });
    cold.pool.sync().expect("a txg");
    let stats = cold.directory.audit().expect("it is valid");
    assert_eq!(stats.filters, stats.leaves, "{stats}");
    cold.expect(0..NAMES + 600);
}

/// Leaves that have got their names are not used again soon. They take no memory from filters,
/// pages and other metadata.
#[test]
fn leaves_that_have_got_their_names_are_evicted_first() {
    let cold = cold().again();
    cold.pool.set_tunable("directory_merge_reads", "0").expect("a tunable");
    cold.insert_cold(NAMES..NAMES + 1000);
    let bytes = |wanted: &str| {
        let states = cold.cache.cache().stats().usage.states;
        states.iter().filter(|s| s.state == wanted).map(|s| s.bytes).sum::<u64>()
    };
    cold.pool.sync().expect("a txg");
    cold.cache.cache().clear();
    let leaves = counter(&cold.pool, "directory_leaves_merged");
    assert!(cold.directory.merge_buffered().expect("it is possible") > 0, "some names are left");
    let leaves = counter(&cold.pool, "directory_leaves_merged") - leaves;
    cold.pool.sync().expect("a txg");
    let (once, frequent) = (bytes("once"), bytes("mfu"));
    assert!(leaves > 30, "{leaves} leaves got names");
    // A leaf has 8 to 16 KiB.
    assert!(once > leaves * (8 << 10), "{once} bytes of {leaves} leaves are evicted first");
    assert!(frequent > 0, "filters and pages count as used before");
    // Leaves that something else changes are in use, though names are buffered.
    let tx = cold.pool.begin().expect("space");
    for number in (0..NAMES).step_by(10) {
        cold.directory.remove(&tx, &name(number)).expect("it exists");
    }
    drop(tx);
    cold.pool.sync().expect("a txg");
    assert_eq!(bytes("once"), 0, "all leaves were changed");
}

/// Works on names of its own, and asserts what each operation finds. Leaves every third name away.
fn change_names(cold: &Cold, numbers: std::ops::Range<u32>) {
    let Cold { pool, directory, .. } = cold;
    let expect = |number: u32, value: Option<&[u8]>| {
        let found = directory.lookup(&name(number)).expect("it is possible");
        assert_eq!(found.as_deref(), value, "{number}");
    };
    for number in numbers {
        expect(number, None);
        directory.warm(&name(number)).expect("it is possible");
        insert(pool, directory, number);
        expect(number, Some(&number.to_le_bytes()));
        let tx = pool.begin().expect("space");
        let exists = directory.insert(&tx, &name(number), b"again").expect_err("it exists");
        assert_eq!(exists.kind(), ErrorKind::Exists);
        if number.is_multiple_of(3) {
            let value = directory.remove(&tx, &name(number)).expect("it exists");
            expect(number, None);
            if number.is_multiple_of(6) {
                directory.restore(&tx, &name(number), &value).expect("it was there");
                expect(number, Some(&number.to_le_bytes()));
                directory.remove(&tx, &name(number)).expect("it exists");
            }
            directory.insert(&tx, &name(number), b"another").expect("it is new");
            expect(number, Some(b"another"));
            directory.remove(&tx, &name(number)).expect("it exists");
            drop(tx);
            expect(number, None);
        }
    }
}

/// Creates, removals, lookups and walks, beside moves of names, groups and evictions.
#[test]
fn each_name_is_seen_once_whatever_happens_beside() {
    const EACH: u32 = 1500;
    let cold = cold().again();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let disturb = || {
            while !ended.load(Ordering::Relaxed) {
                cold.pool.sync().expect("a txg");
                cold.cache.cache().clear();
            }
        };
        let walk = || {
            while !ended.load(Ordering::Relaxed) {
                let kept = cold.directory.iter().map(|entry| entry.expect("it is valid").name);
                let kept: Vec<_> = kept.filter(|found| **found < name(NAMES)[..]).collect();
                let distinct = kept.iter().collect::<BTreeSet<_>>().len();
                assert_eq!((kept.len(), distinct), (NAMES as usize, NAMES as usize));
            }
        };
        let others = [scope.spawn(disturb), scope.spawn(walk)];
        let cold = &cold;
        let work = |first: u32| scope.spawn(move || change_names(cold, first..first + EACH));
        let workers = [work(NAMES), work(NAMES + EACH)].map(|worker| worker.join());
        ended.store(true, Ordering::Relaxed);
        for thread in workers.into_iter().chain(others.map(|other| other.join())) {
            thread.expect("it did not panic");
        }
    });
    assert!(counter(&cold.pool, "directory_names_merged") > 0);
    cold.pool.sync().expect("a txg");
    cold.directory.audit().expect("it is valid");
    let end = NAMES + 2 * EACH;
    let kept = |number: &u32| *number < NAMES || !number.is_multiple_of(3);
    assert_eq!(cold.directory.len(), (0..end).filter(kept).count() as u64);
    let cold = cold.again();
    let found: BTreeSet<_> = cold.directory.iter().map(|e| e.expect("it is valid").name).collect();
    let expected: BTreeSet<Box<[u8]>> = (0..end).filter(kept).map(|n| name(n).into()).collect();
    assert!(found == expected, "{} of {} names", found.len(), expected.len());
    check(&cold.pool);
}
