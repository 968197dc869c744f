//! Values that memory gets elsewhere, because the L2 cannot serve its own, beside offers, evictions
//! and lookups: once memory has had such a value, no lookup in this process returns an older one.
//! Nor does a restart, if the newer one was flushed: it finds that one. A block with the only value
//! is never given up.

use std::sync::Arc;

use forebay_base::model::check;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::{Attributes, Begin, LoadError};

use crate::forget::{BYTES, Fixture, check_after_crash, end, open, spawn};
use crate::harness::{PageMapDevice, Pages};

const KEY: u64 = 0;

/// The newest version that memory has had.
type Newest = Mutex<u64>;

fn check_seen(newest: u64, seen: u64) {
    assert!(seen >= newest, "version {seen} was found after version {newest}");
}

/// Looks the key up. With a version, publishes that if nobody has the value, and returns whether
/// memory has it.
fn look_up(fixture: &Fixture, newest: &Newest, version: Option<u64>) -> bool {
    for _ in 0..3 {
        let before = *newest.lock();
        match fixture.cache.begin(KEY, 1, Attributes::DATA).unwrap() {
            Begin::Hit(seen) => check_seen(before, *seen),
            Begin::InFlight(flight) => match flight.wait() {
                Ok(seen) => check_seen(before, *seen),
                Err(LoadError::Abandoned) => continue,
                Err(error) => panic!("{error}"),
            },
            Begin::Vacant(guard) => {
                let Some(version) = version else {
                    guard.withdraw();
                    continue;
                };
                let published = guard.publish(version);
                if published.is_cached() {
                    *newest.lock() = version;
                    return true;
                }
            }
        }
        return false;
    }
    false
}

/// Offers what memory has, between two evictions of all.
fn spawn_evictor(fixture: &Arc<Fixture>) -> shuttle::thread::JoinHandle<()> {
    let fixture = fixture.clone();
    spawn(move || {
        fixture.cache.clear();
        fixture.offer();
        fixture.cache.clear();
    })
}

#[test]
fn no_older_value_is_found_after_one_that_memory_got_elsewhere() {
    check(400, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        let newest = Arc::new(Newest::named("known", 1));
        fixture.insert(KEY);
        fixture.offer();
        fixture.l2.flush().unwrap();
        fixture.cache.clear();
        let loader = {
            let (fixture, newest) = (fixture.clone(), newest.clone());
            spawn(move || {
                fixture.codec.fails.store(true, Ordering::SeqCst);
                let is_newer = look_up(&fixture, &newest, Some(2));
                fixture.codec.fails.store(false, Ordering::SeqCst);
                if is_newer {
                    look_up(&fixture, &newest, None);
                }
            })
        };
        let evictor = spawn_evictor(&fixture);
        look_up(&fixture, &newest, None);
        loader.join().unwrap();
        evictor.join().unwrap();
        look_up(&fixture, &newest, None);
        write_all(&fixture);
        if fixture.cache.contains(&KEY) && *newest.lock() == 2 {
            // A restart must not find the first version.
            fixture.known.lock().forget_before(2);
        }
        let flushed = fixture.crash();
        fixture.cache.clear();
        look_up(&fixture, &newest, None);
        end(Arc::into_inner(fixture).expect("all threads have ended"));
        check_after_crash(flushed, 512 << 10);
    });
}

/// Memory gets a value and writes it while the older one is being written.
#[test]
fn a_value_is_written_over_one_whose_write_is_in_flight() {
    check(1200, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        let newest = Arc::new(Newest::named("known", 1));
        fixture.insert(KEY);
        fixture.offer();
        let loader = {
            let (fixture, newest) = (fixture.clone(), newest.clone());
            spawn(move || {
                fixture.cache.clear();
                if look_up(&fixture, &newest, Some(2)) {
                    write_all(&fixture);
                    fixture.known.lock().forget_before(2);
                }
            })
        };
        look_up(&fixture, &newest, None);
        loader.join().unwrap();
        let flushed = fixture.crash();
        fixture.cache.clear();
        look_up(&fixture, &newest, None);
        end(Arc::into_inner(fixture).expect("all threads have ended"));
        check_after_crash(flushed, 512 << 10);
    });
}

/// Opens a crash image, which must have this version of the first keys.
fn assert_after_crash(pages: Pages, keys: u64, version: u64) {
    let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, pages));
    let fixture = open(device, false, 512 << 10);
    assert!(fixture.l2.wait_rebuilt());
    for key in 0..keys {
        let found = match fixture.cache.begin(key, 1, Attributes::DATA).unwrap() {
            Begin::Hit(found) => Some(*found),
            Begin::InFlight(flight) => flight.wait().ok().map(|found| *found),
            Begin::Vacant(guard) => {
                guard.withdraw();
                None
            }
        };
        assert_eq!(found, Some(version), "what was flushed of key {key} before the crash");
    }
    end(fixture);
}

/// Writes what memory has, without regard to the policy, and flushes it.
fn write_all(fixture: &Fixture) {
    fixture.cache.offer_all(4, |candidates| fixture.l2.write_all(candidates).unwrap());
    fixture.l2.flush().unwrap();
}

/// Several keys, so that the writer takes as many blocks into a batch, one after the other.
const BATCH_KEYS: u64 = 6;

/// Inserts replace values while the writer takes those into a batch.
#[test]
fn inserted_values_are_written_after_those_whose_writes_begin() {
    check(1200, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = open(device, true, 512 << 10);
        (0..BATCH_KEYS).for_each(|key| fixture.cache.insert(key, 1).unwrap());
        fixture.offer();
        (0..BATCH_KEYS).for_each(|key| fixture.cache.insert(key, 2).unwrap());
        write_all(&fixture);
        let (flushed, _) = fixture.crash();
        end(fixture);
        assert_after_crash(flushed, BATCH_KEYS, 2);
    });
}

/// Memory evicts the block in several threads, whose reports come late, while another loads it.
#[test]
fn a_block_with_the_right_value_is_never_bad() {
    check(400, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        let newest = Newest::named("known", 1);
        fixture.insert(KEY);
        fixture.offer();
        fixture.l2.flush().unwrap();
        let evictors = [0, 1].map(|_| {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.cache.clear();
                fixture.offer();
                fixture.cache.clear();
            })
        });
        (0..3).for_each(|_| _ = look_up(&fixture, &newest, None));
        evictors.into_iter().for_each(|evictor| evictor.join().unwrap());
        fixture.cache.clear();
        look_up(&fixture, &newest, None);
        assert!(fixture.cache.contains(&KEY), "the block is on the device");
        let stats = fixture.l2.stats();
        assert_eq!((stats.count("misses_bad"), stats.count("stored")), (0, 1));
        end(Arc::into_inner(fixture).expect("all threads have ended"));
    });
}

/// Memory gets a value while the rebuild has not found the older one.
#[test]
fn no_older_value_is_found_by_the_rebuild() {
    check(400, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let first = open(device, true, 64 << 10);
        first.insert(KEY);
        first.offer();
        first.l2.flush().unwrap();
        let (pages, _) = first.crash();
        end(first);
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, pages));
        let fixture = Arc::new(open(device, false, 64 << 10));
        let newest = Arc::new(Newest::named("known", 1));
        let loader = {
            let (fixture, newest) = (fixture.clone(), newest.clone());
            spawn(move || {
                if look_up(&fixture, &newest, Some(2)) {
                    fixture.cache.clear();
                    look_up(&fixture, &newest, None);
                }
            })
        };
        let evictor = spawn_evictor(&fixture);
        look_up(&fixture, &newest, None);
        loader.join().unwrap();
        evictor.join().unwrap();
        assert!(fixture.l2.wait_rebuilt());
        fixture.cache.clear();
        look_up(&fixture, &newest, None);
        end(Arc::into_inner(fixture).expect("all threads have ended"));
    });
}
