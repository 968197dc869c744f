//! Full pools: `NoSpace`, space for deletions, and space that is freed again.

use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_pool::format::Compression;
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Pool, Result};
use forebay_sim::fixture::{self, MIB};

const ROUNDS: usize = 20;
/// Rounds of a slow test, unless `FOREBAY_FULL` is set.
const ROUNDS_SHORT: usize = 3;
/// Largest number of steps to fill a pool.
const STEPS_MAX: u64 = 200_000;
/// Bytes that a pool may keep from one round to the next: space records, free dnodes.
const KEPT_BYTES: u64 = MIB;

/// A small pool and its first dataset.
fn small(devices: u64) -> (Vec<Arc<dyn Device>>, Pool) {
    let each = 32 * MIB / devices;
    let names = ["a", "b"];
    let devices: Vec<_> =
        (0..devices as usize).map(|at| fixture::memory(names[at], each, 512)).collect();
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: 16 << 10,
        ..DatasetSettings::default()
    };
    let pool = fixture::create(&devices, &fixture::cache(24 * MIB), &settings).expect("a pool");
    (devices, pool)
}

fn assert_clean(pool: &Pool, what: &str) {
    fixture::check(pool).unwrap_or_else(|problems| panic!("{what}: {problems}"));
}

/// Repeats `step` until the pool is full. Returns the number of steps.
fn fill(pool: &Pool, mut step: impl FnMut(u64) -> Result<()>) -> u64 {
    for at in 0..STEPS_MAX {
        match step(at) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
                assert!(pool.stats().suspended.is_none(), "full, and not suspended");
                return at;
            }
        }
    }
    panic!("the pool was not full after {STEPS_MAX} steps");
}

/// Allocated bytes after all freed space has matured.
fn settled_bytes(pool: &Pool) -> u64 {
    for _ in 0..4 {
        pool.sync().expect("a commit");
    }
    let stats = pool.stats();
    stats.allocated_bytes + stats.deferred_bytes
}

/// Fills a pool with `fill_once`, empties it with `empty`, and repeats.
fn rounds(
    (devices, rounds): (u64, usize),
    mut fill_once: impl FnMut(&Pool, &Dataset, usize) -> u64,
    mut empty: impl FnMut(&Pool, &Dataset),
) {
    let (_devices, pool) = small(devices);
    let data = pool.dataset("one").expect("a dataset");
    let base = settled_bytes(&pool);
    let mut first = None;
    for round in 0..rounds {
        let steps = fill_once(&pool, &data, round);
        let filled = pool.stats();
        assert!(
            filled.allocated_bytes * 10 > filled.total_bytes * 6,
            "round {round}: full with {} of {} bytes in use",
            filled.allocated_bytes,
            filled.total_bytes
        );
        assert_clean(&pool, "full");
        empty(&pool, &data);
        let left = settled_bytes(&pool);
        assert_clean(&pool, "empty");
        assert!(left <= base + KEPT_BYTES, "round {round}: {left} bytes in use, {base} at first");
        let first = *first.get_or_insert(steps);
        assert!(steps * 10 >= first * 8, "round {round}: {steps} steps, {first} at first");
    }
}

#[test]
fn a_pool_full_of_objects_can_be_emptied_again_and_again() {
    for devices in [1, 2] {
        let mut numbers = Vec::new();
        let left = std::cell::RefCell::new(&mut numbers);
        rounds(
            (devices, ROUNDS),
            |pool, data, round| {
                let mut rng = SmallRng::from_seed(round as u64);
                let mut bytes = vec![0; 100_000];
                rng.fill(&mut bytes);
                fill(pool, |_| {
                    let tx = pool.begin()?;
                    let number = data.create_object(&tx, b"")?;
                    left.borrow_mut().push(number);
                    data.object(number)?.write(&tx, 0, &bytes)
                })
            },
            |pool, data| {
                for number in left.borrow_mut().drain(..) {
                    let tx = pool.begin_freeing().expect("deleting goes on");
                    data.destroy(&tx, number).expect("a destroy");
                }
            },
        );
    }
}

#[test]
fn a_pool_full_of_empty_objects_can_be_emptied() {
    let left = std::cell::RefCell::new(Vec::new());
    rounds(
        (1, ROUNDS),
        |pool, data, round| {
            let mut rng = SmallRng::from_seed(round as u64);
            fill(pool, |_| {
                let tx = pool.begin()?;
                for _ in 0..20 {
                    let mut attributes = [0; 224];
                    rng.fill(&mut attributes);
                    left.borrow_mut().push(data.create_object(&tx, &attributes)?);
                }
                Ok(())
            })
        },
        |pool, data| {
            for batch in left.borrow_mut().drain(..).collect::<Vec<_>>().chunks(20) {
                let tx = pool.begin_freeing().expect("deleting goes on");
                for number in batch {
                    data.destroy(&tx, *number).expect("a destroy");
                }
            }
        },
    );
}

#[test]
fn a_pool_full_of_names_can_be_emptied() {
    let left = std::cell::RefCell::new((0, Vec::new()));
    let count = if fixture::full() { ROUNDS } else { ROUNDS_SHORT };
    rounds(
        (1, count),
        |pool, data, round| {
            let mut rng = SmallRng::from_seed(round as u64);
            let tx = pool.begin().expect("a transaction");
            let number = data.create_directory(&tx, b"").expect("a directory");
            drop(tx);
            let directory = data.directory(number).expect("it");
            left.borrow_mut().0 = number;
            fill(pool, |_| {
                let tx = pool.begin()?;
                for _ in 0..5 {
                    let mut name = [0; 200];
                    rng.fill(&mut name);
                    directory.insert(&tx, &name, &[1; 32])?;
                    left.borrow_mut().1.push(name);
                }
                Ok(())
            })
        },
        |pool, data| {
            let (number, names) = std::mem::take(&mut *left.borrow_mut());
            let directory = data.directory(number).expect("it");
            // Removes name by name, or the whole directory.
            if names.len() % 2 == 0 {
                for batch in names.chunks(5) {
                    let tx = pool.begin_freeing().expect("deleting goes on");
                    for name in batch {
                        directory.remove(&tx, name).expect("a remove");
                    }
                }
            }
            let tx = pool.begin_freeing().expect("deleting goes on");
            data.destroy(&tx, number).expect("a destroy");
        },
    );
}

#[test]
fn overwriting_in_a_full_pool_ends_in_an_error_or_works() {
    let (devices, pool) = small(1);
    let data = pool.dataset("one").expect("a dataset");
    let mut rng = SmallRng::from_seed(1);
    let mut numbers = Vec::new();
    for _ in 0..ROUNDS {
        fill(&pool, |_| {
            let mut bytes = vec![0; 50_000];
            rng.fill(&mut bytes);
            let tx = pool.begin()?;
            let number = data.create_object(&tx, b"")?;
            data.object(number)?.write(&tx, 0, &bytes)?;
            numbers.push(number);
            Ok(())
        });
        for _ in 0..200 {
            let number = numbers[rng.below(numbers.len() as u64) as usize];
            let object = data.object(number).expect("it");
            match pool.begin() {
                Ok(tx) => object.write(&tx, rng.below(40_000), &[7; 9000]).expect("a write"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}"),
            }
        }
        assert_clean(&pool, "overwritten");
        for _ in 0..30 {
            let at = rng.below(numbers.len() as u64) as usize;
            let tx = pool.begin_freeing().expect("deleting goes on");
            data.destroy(&tx, numbers.swap_remove(at)).expect("a destroy");
        }
    }
    drop(data);
    pool.export().expect("an export");
    let pool =
        fixture::import(&devices, &fixture::import_options(&fixture::cache(24 * MIB))).expect("it");
    assert_clean(&pool, "imported");
}

#[test]
fn many_small_changes_in_a_full_pool_end_in_an_error_or_work() {
    let (_devices, pool) = small(1);
    let data = pool.dataset("one").expect("a dataset");
    let mut rng = SmallRng::from_seed(1);
    let mut numbers = Vec::new();
    fill(&pool, |_| {
        let tx = pool.begin()?;
        for _ in 0..20 {
            let mut attributes = [0; 200];
            rng.fill(&mut attributes);
            let number = data.create_object_with(&tx, 4096, &attributes)?;
            data.object(number)?.write(&tx, 0, &[1; 600])?;
            numbers.push(number);
        }
        Ok(())
    });
    for round in 0..5 {
        // One object of each dnode block, then the next one.
        for at in (0..32).flat_map(|first| (first..numbers.len()).step_by(32)) {
            let number = numbers[at];
            let mut attributes = [round; 224];
            rng.fill(&mut attributes[..200]);
            match pool.begin() {
                Ok(tx) => {
                    data.set_attributes(&tx, number, &attributes).expect("attributes");
                    data.object(number).expect("it").write(&tx, 9, &[round; 99]).expect("a write");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}"),
            }
        }
        assert_clean(&pool, "changed");
        for _ in 0..50 {
            let at = rng.below(numbers.len() as u64) as usize;
            let tx = pool.begin_freeing().expect("deleting goes on");
            data.destroy(&tx, numbers.swap_remove(at)).expect("a destroy");
        }
    }
}

#[test]
fn holes_punched_all_over_a_full_pool_free_it() {
    let (_devices, pool) = small(1);
    let data = pool.dataset("one").expect("a dataset");
    let mut rng = SmallRng::from_seed(1);
    let mut piece = vec![0; 64 << 10];
    let tx = pool.begin().expect("a transaction");
    let number = data.create_object_with(&tx, 4096, &[]).expect("an object");
    drop(tx);
    let object = data.object(number).expect("it");
    let pieces = fill(&pool, |at| {
        rng.fill(&mut piece);
        let tx = pool.begin()?;
        object.write(&tx, at * piece.len() as u64, &piece)
    });
    let records = pieces * (piece.len() as u64 / 4096);
    // Neighbours share an indirect block, so far ones first.
    for first in 0..64 {
        for record in (first..records).step_by(64) {
            let tx = pool.begin_freeing().expect("deleting goes on");
            object.punch(&tx, record * 4096, 4096).expect("a punch");
        }
    }
    assert_clean(&pool, "punched");
    assert!(settled_bytes(&pool) < 4 * MIB);
}
