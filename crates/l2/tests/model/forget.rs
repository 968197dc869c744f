//! Forgetting against everything else: assembly of batches, their ends, loads, the rebuild, the warm-up, and each other.
//!
//! Each insert has a version of its own. Once an insert or removal has returned, versions whose inserts had returned before it began are
//! *gone*. Whoever looks sees no version that was gone before it began; nor does a level that is opened on what the
//! device held at some moment, which is what a crash would leave, see one that was gone by then.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::clock::ManualClock;
use forebay_base::sync::Mutex;
use forebay_cache::{Attributes, Begin, Cache, LoadError, Reclaim, SecondLevel};
use forebay_io::Device;
use forebay_l2::{Codec, Level, LevelOptions};

use crate::harness::{Pages, Plain};
use forebay_base::model::check;

const BYTES: u64 = 4 << 20;
const KEYS: u64 = 2;

struct Versions;

impl Codec<u64, u64> for Versions {
    fn key_bytes(&self) -> usize {
        8
    }

    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        out.copy_from_slice(&key.to_le_bytes());
    }

    fn decodes_keys(&self) -> bool {
        true
    }

    fn decode_key(&self, key: &[u8], _note: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(key.try_into().ok()?))
    }

    fn encoded_len(&self, _value: &u64) -> usize {
        8
    }

    fn encode(&self, value: &u64, out: &mut [u8]) {
        out.copy_from_slice(&value.to_le_bytes());
    }

    fn decode(&self, _key: &u64, bytes: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

fn options(segment_bytes: u64) -> LevelOptions {
    let config = ArenaConfig { limit_bytes: 16 << 20, huge_pages: HugePages::Never };
    let mut options = LevelOptions::new([1; 16], Arena::new(config).unwrap());
    options.clock = shuttle::sync::Arc::new(ManualClock::new());
    options.seed = 5;
    options.segment_bytes = Some(segment_bytes);
    for (name, value) in [
        ("admit_all", "true"),
        ("linger_ms", "0"),
        ("batch_bytes", "64K"),
        ("rebuild_threads", "1"),
        ("warm_up_threads", "1"),
    ] {
        options.tunables.set(name, value).unwrap();
    }
    options
}

type Versioned = Level<u64, u64>;

struct World {
    device: shuttle::sync::Arc<Plain>,
    level: shuttle::sync::Arc<Versioned>,
    cache: Cache<u64, u64>,
    known: Mutex<Known>,
}

/// What is known of versions: each is of one key.
#[derive(Clone, Default)]
struct Known {
    last: u64,
    /// Whose inserts have returned, by key.
    inserted: [BTreeSet<u64>; KEYS as usize],
    gone: BTreeSet<u64>,
}

fn open(device: shuttle::sync::Arc<Plain>, fresh: bool, segment_bytes: u64) -> World {
    let seen: shuttle::sync::Arc<dyn Device> = device.clone();
    let codec = shuttle::sync::Arc::new(Versions);
    let level = match fresh {
        true => Level::create(seen, codec, &options(segment_bytes)).unwrap(),
        false => Level::open(seen, codec, &options(segment_bytes)).unwrap(),
    };
    let cache = Cache::builder()
        .capacity(1 << 20)
        .seed(3)
        .reclaim(Reclaim::Inline)
        .second_level(level.clone())
        .build()
        .unwrap();
    if !fresh {
        level.warm_up(cache.spare_room());
    }
    World { device, level, cache, known: Mutex::named("known", Known::default()) }
}

impl World {
    fn insert(&self, key: u64) {
        let (version, before) = {
            let mut known = self.known.lock();
            known.last += 1;
            (known.last, known.inserted[key as usize].clone())
        };
        let _ = self.cache.insert(key, version);
        let mut known = self.known.lock();
        known.inserted[key as usize].insert(version);
        known.gone.extend(before);
    }

    fn remove(&self, key: u64) {
        let before = self.known.lock().inserted[key as usize].clone();
        self.cache.remove(&key);
        self.known.lock().gone.extend(before);
    }

    fn offer(&self) {
        self.cache.offer_all(4, |candidates| self.level.offer(candidates));
    }

    fn get(&self, key: u64) {
        let gone = self.known.lock().gone.clone();
        let seen = |version: u64| {
            assert!(!gone.contains(&version), "version {version} of {key} is gone");
        };
        match self.cache.begin(key, 1, Attributes::DATA).unwrap() {
            Begin::Hit(version) => seen(*version),
            Begin::InFlight(flight) => match flight.wait() {
                Ok(version) => seen(*version),
                Err(LoadError::Abandoned) => {}
                Err(error) => panic!("{error}"),
            },
            Begin::Vacant(filler) => filler.withdraw(),
        }
    }

    /// What a crash now would leave does not bring anything old back.
    fn crash(&self) -> (Pages, Known) {
        // In this order: what is gone is so on the device.
        let known = self.known.lock().clone();
        (self.device.pages.lock().clone(), known)
    }
}

/// Opens what a crash has left and looks at it.
fn after((pages, known): (Pages, Known), segment_bytes: u64) {
    let device = shuttle::sync::Arc::new(Plain::new(BYTES, pages));
    let world = open(device, false, segment_bytes);
    *world.known.lock() = known;
    // While the rebuild runs, and after it.
    (0..KEYS).for_each(|key| world.get(key));
    assert!(world.level.wait_rebuilt());
    world.cache.flush();
    (0..KEYS).for_each(|key| world.get(key));
    end(world);
}

fn end(world: World) {
    world.level.close();
    assert!(matches!(world.level.health(), forebay_l2::Health::Closed));
    world.cache.close();
    world.cache.audit();
}

fn go(f: impl FnOnce() + Send + 'static) -> shuttle::thread::JoinHandle<()> {
    shuttle::thread::spawn(f)
}

/// One thread writes and offers, another overwrites and removes, a third looks; then it crashes.
#[test]
fn nothing_old_is_seen_or_comes_back() {
    check(400, || {
        let device = shuttle::sync::Arc::new(Plain::new(BYTES, Pages::new()));
        let world = Arc::new(open(device, true, 512 << 10));
        let writer = {
            let world = world.clone();
            go(move || {
                for _ in 0..2 {
                    world.insert(0);
                    world.offer();
                    world.insert(1);
                    world.offer();
                }
            })
        };
        let remover = {
            let world = world.clone();
            go(move || {
                world.remove(0);
                world.offer();
                world.insert(0);
                world.cache.flush();
                world.remove(1);
            })
        };
        let looker = {
            let world = world.clone();
            go(move || {
                for key in [0, 1, 0] {
                    world.get(key);
                }
            })
        };
        looker.join().unwrap();
        let crashed = world.crash();
        remover.join().unwrap();
        writer.join().unwrap();
        let later = world.crash();
        let world = Arc::into_inner(world).expect("all threads have ended");
        end(world);
        after(crashed, 512 << 10);
        after(later, 512 << 10);
    });
}

/// Two threads forget one key at once: neither returns before a tombstone is there.
#[test]
fn two_that_forget_one_key_both_wait() {
    check(400, || {
        let device = shuttle::sync::Arc::new(Plain::new(BYTES, Pages::new()));
        let world = Arc::new(open(device, true, 512 << 10));
        world.insert(0);
        world.offer();
        world.level.flush().unwrap();
        let threads = [0, 1].map(|_| {
            let world = world.clone();
            go(move || {
                world.remove(0);
                let crashed = world.crash();
                after(crashed, 512 << 10);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        end(Arc::into_inner(world).expect("all threads have ended"));
    });
}

/// Keys are forgotten and written while the rebuild runs.
#[test]
fn what_is_forgotten_during_the_rebuild_stays_so() {
    check(200, || {
        let device = shuttle::sync::Arc::new(Plain::new(BYTES, Pages::new()));
        let first = open(device, true, 64 << 10);
        for _ in 0..2 {
            (0..KEYS).for_each(|key| first.insert(key));
            first.offer();
            first.level.flush().unwrap();
        }
        let (pages, known) = first.crash();
        end(first);
        let device = shuttle::sync::Arc::new(Plain::new(BYTES, pages));
        let world = Arc::new(open(device, false, 64 << 10));
        *world.known.lock() = known;
        let remover = {
            let world = world.clone();
            go(move || {
                world.remove(0);
                world.insert(1);
                world.offer();
            })
        };
        let looker = {
            let world = world.clone();
            go(move || [0, 1, 0].into_iter().for_each(|key| world.get(key)))
        };
        remover.join().unwrap();
        let crashed = world.crash();
        looker.join().unwrap();
        assert!(world.level.wait_rebuilt());
        (0..KEYS).for_each(|key| world.get(key));
        end(Arc::into_inner(world).expect("all threads have ended"));
        after(crashed, 64 << 10);
    });
}

/// Keys are overwritten and removed while the level puts blocks back into memory, and while its ring comes round under it.
#[test]
fn what_is_forgotten_during_the_warm_up_stays_so() {
    check(300, || {
        let device = shuttle::sync::Arc::new(Plain::new(BYTES, Pages::new()));
        let first = open(device, true, 64 << 10);
        (0..KEYS).for_each(|key| first.insert(key));
        first.offer();
        first.level.flush().unwrap();
        let (pages, known) = first.crash();
        end(first);
        let device = shuttle::sync::Arc::new(Plain::new(BYTES, pages));
        let world = Arc::new(open(device, false, 64 << 10));
        *world.known.lock() = known;
        let remover = {
            let world = world.clone();
            go(move || {
                world.remove(0);
                world.insert(1);
                world.remove(1);
            })
        };
        let looker = {
            let world = world.clone();
            go(move || [0, 1, 0, 1].into_iter().for_each(|key| world.get(key)))
        };
        remover.join().unwrap();
        looker.join().unwrap();
        let warmth = world.level.wait_warm();
        assert!(matches!(warmth, forebay_l2::WarmUp::Ended(_)), "{warmth:?}");
        (0..KEYS).for_each(|key| world.get(key));
        end(Arc::into_inner(world).expect("all threads have ended"));
    });
}

/// A level is closed, in the end or while it finds out what it has, beside one that forgets: what was forgotten stays so, whoever
/// comes too late hears of it, and the device keeps the rest.
#[test]
fn a_close_beside_one_that_forgets_leaves_the_level_as_it_was() {
    for reopened in [false, true] {
        check(200, move || close_beside_one_that_forgets(reopened));
    }
}

fn close_beside_one_that_forgets(reopened: bool) {
    let device = shuttle::sync::Arc::new(Plain::new(BYTES, Pages::new()));
    let mut world = open(device.clone(), true, 64 << 10);
    (0..KEYS).for_each(|key| world.insert(key));
    world.offer();
    world.level.flush().unwrap();
    world.cache.flush();
    if reopened {
        // Their segment is not the newest, which is known before the level forgets anything.
        end(world);
        world = open(device.clone(), false, 64 << 10);
        assert!(world.level.wait_rebuilt());
        world.cache.insert(KEYS, 0).unwrap();
        world.offer();
        world.level.flush().unwrap();
        end(world);
        world = open(device.clone(), false, 64 << 10);
    }
    let level = world.level.clone();
    let forgetter = shuttle::thread::spawn(move || {
        let forgotten = level.forget_checked(&0);
        let closed = |error: forebay_l2::Error| {
            assert_eq!(error.kind(), forebay_l2::ErrorKind::Closed, "{error}");
        };
        forgotten.map_err(closed).is_ok()
    });
    world.level.close();
    let forgotten = forgetter.join().unwrap();
    end(world);
    let world = open(device, false, 64 << 10);
    assert!(world.level.wait_rebuilt(), "the label is void");
    let has = |key: u64| match world.cache.begin(key, 1, Attributes::DATA).unwrap() {
        Begin::Hit(_) => true,
        Begin::InFlight(flight) => flight.wait().is_ok(),
        Begin::Vacant(filler) => {
            filler.withdraw();
            false
        }
    };
    assert!(has(1), "what nobody has forgotten is gone");
    assert!(!forgotten || !has(0), "what was forgotten is back");
    end(world);
}
