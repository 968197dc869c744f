//! Forgetting concurrent with all other operations: assembly and completion of batches, loads, the
//! rebuild, the warm-up, and other forgets.
//!
//! Each insert has its own version. When an insert or removal returns, all versions whose inserts
//! had returned before it began are *gone*. No lookup returns a version that was gone before the
//! lookup began. Nor does an L2 opened on the device's contents at some moment (a crash image)
//! return a version that was gone by then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::clock::ManualClock;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_cache::{Attributes, Begin, Cache, Cause, LoadError, Reclaim, SecondaryCache};
use forebay_io::Device;
use forebay_l2::{Codec, L2, L2Options};

use crate::harness::{PageMapDevice, Pages};
use forebay_base::model::check;

pub(crate) const BYTES: u64 = 4 << 20;
pub(crate) const KEYS: u64 = 2;

#[derive(Default)]
pub(crate) struct VersionCodec {
    /// Set while no value decodes.
    pub(crate) fails: AtomicBool,
}

impl Codec<u64, u64> for VersionCodec {
    fn key_bytes(&self) -> usize {
        8
    }

    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        out.copy_from_slice(&key.to_le_bytes());
    }

    fn stamp(&self, key: &u64) -> u64 {
        *key
    }

    fn decodes_keys(&self) -> bool {
        true
    }

    fn decode_key(&self, key: &[u8], _note: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(key.try_into().ok()?))
    }

    fn group(&self, _key: &u64) -> Option<u64> {
        Some(7)
    }

    fn encoded_len(&self, _value: &u64) -> usize {
        8
    }

    fn encode(&self, value: &u64, out: &mut [u8]) {
        out.copy_from_slice(&value.to_le_bytes());
    }

    fn decode(&self, _key: &u64, bytes: &[u8]) -> Option<u64> {
        if self.fails.load(Ordering::SeqCst) {
            return None;
        }
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

pub(crate) fn options(segment_bytes: u64) -> L2Options {
    let config = ArenaConfig { limit_bytes: 16 << 20, huge_pages: HugePages::Never };
    let mut options = L2Options::new([1; 16], Arena::new(config).unwrap());
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

type Versioned = L2<u64, u64>;

pub(crate) struct Fixture {
    device: shuttle::sync::Arc<PageMapDevice>,
    pub(crate) l2: shuttle::sync::Arc<Versioned>,
    pub(crate) codec: shuttle::sync::Arc<VersionCodec>,
    pub(crate) cache: Cache<u64, u64>,
    pub(crate) known: Mutex<KnownVersions>,
}

/// The known versions. Each belongs to one key.
#[derive(Clone, Default)]
pub(crate) struct KnownVersions {
    last: u64,
    /// Versions whose inserts have returned, by key.
    inserted: [BTreeSet<u64>; KEYS as usize],
    gone: BTreeSet<u64>,
}

pub(crate) fn open(
    device: shuttle::sync::Arc<PageMapDevice>,
    fresh: bool,
    segment_bytes: u64,
) -> Fixture {
    open_with(device, fresh, &options(segment_bytes))
}

pub(crate) fn open_with(
    device: shuttle::sync::Arc<PageMapDevice>,
    fresh: bool,
    options: &L2Options,
) -> Fixture {
    let seen: shuttle::sync::Arc<dyn Device> = device.clone();
    let codec = shuttle::sync::Arc::new(VersionCodec::default());
    let l2 = match fresh {
        true => L2::create(seen, codec.clone(), options).unwrap(),
        false => L2::open(seen, codec.clone(), options).unwrap(),
    };
    let cache = Cache::builder()
        .capacity(1 << 20)
        .weigher(|_, _| 8)
        .seed(3)
        .reclaim(Reclaim::Inline)
        .secondary_cache(l2.clone())
        .build()
        .unwrap();
    if !fresh {
        l2.warm_up(cache.warm_up());
    }
    Fixture { device, l2, codec, cache, known: Mutex::named("known", KnownVersions::default()) }
}

impl KnownVersions {
    /// All versions before this one are gone.
    pub(crate) fn forget_before(&mut self, version: u64) {
        self.gone.extend(1..version);
    }
}

impl Fixture {
    pub(crate) fn insert(&self, key: u64) {
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

    pub(crate) fn remove(&self, key: u64) {
        let before = self.known.lock().inserted[key as usize].clone();
        self.cache.remove(&key);
        self.known.lock().gone.extend(before);
    }

    /// Removes all keys at once.
    pub(crate) fn remove_group(&self) {
        let before = self.known.lock().inserted.iter().flatten().copied().collect::<Vec<_>>();
        let leave = |is_of: &dyn Fn(&u64) -> bool| _ = self.cache.remove_all_from_memory(is_of);
        self.l2.forget_group(7, leave).unwrap();
        self.known.lock().gone.extend(before);
    }

    /// As [`remove_group`](Self::remove_group), by a forget that no thread waits for in the L2.
    pub(crate) fn remove_group_async(&self) {
        let before = self.known.lock().inserted.iter().flatten().copied().collect::<Vec<_>>();
        let leave = |is_of: &dyn Fn(&u64) -> bool| _ = self.cache.remove_all_from_memory(is_of);
        block_on(self.l2.forget_group_async(7, leave)).unwrap();
        self.known.lock().gone.extend(before);
    }

    /// As [`remove`](Self::remove), by a forget that no thread waits for in the L2.
    fn remove_async(&self, key: u64) {
        let before = self.known.lock().inserted[key as usize].clone();
        let change = self.cache.begin_remove(&key, Cause::Removed).unwrap();
        block_on(self.l2.forget_async(&key)).unwrap();
        change.remove();
        self.known.lock().gone.extend(before);
    }

    /// As [`insert`](Self::insert), by a forget that no thread waits for in the L2.
    fn insert_async(&self, key: u64) {
        let (version, before) = {
            let mut known = self.known.lock();
            known.last += 1;
            (known.last, known.inserted[key as usize].clone())
        };
        let begun = self.cache.begin_insert(key, &version, Attributes::DATA, || Some(()));
        let (change, ()) = block_on(begun).unwrap();
        block_on(self.l2.forget_async(&key)).unwrap();
        change.publish(version);
        let mut known = self.known.lock();
        known.inserted[key as usize].insert(version);
        known.gone.extend(before);
    }

    pub(crate) fn offer(&self) {
        self.cache.offer_all(4, |candidates| self.l2.offer(candidates));
    }

    pub(crate) fn get(&self, key: u64) {
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
            Begin::Vacant(guard) => guard.withdraw(),
        }
    }

    /// The contents of the device, as a crash now would leave them.
    pub(crate) fn crash(&self) -> (Pages, KnownVersions) {
        // In this order: a version that is gone is gone on the device.
        let known = self.known.lock().clone();
        (self.device.pages.lock().clone(), known)
    }
}

/// Opens a crash image and checks its keys.
pub(crate) fn check_after_crash((pages, known): (Pages, KnownVersions), segment_bytes: u64) {
    let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, pages));
    let fixture = open(device, false, segment_bytes);
    *fixture.known.lock() = known;
    // During the rebuild and after it.
    (0..KEYS).for_each(|key| fixture.get(key));
    assert!(fixture.l2.wait_rebuilt());
    fixture.cache.clear();
    (0..KEYS).for_each(|key| fixture.get(key));
    end(fixture);
}

pub(crate) fn end(fixture: Fixture) {
    fixture.l2.close();
    assert!(matches!(fixture.l2.health(), forebay_l2::Health::Closed));
    fixture.cache.close();
    fixture.cache.audit();
}

/// Polls a future until it is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => shuttle::thread::yield_now(),
        }
    }
}

pub(crate) fn spawn(f: impl FnOnce() + Send + 'static) -> shuttle::thread::JoinHandle<()> {
    shuttle::thread::spawn(f)
}

/// One thread writes and offers, another overwrites and removes, a third reads. Then it crashes.
#[test]
fn concurrent_readers_and_crash_images_never_see_gone_versions() {
    check(400, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        let writer = {
            let fixture = fixture.clone();
            spawn(move || {
                for _ in 0..2 {
                    fixture.insert(0);
                    fixture.offer();
                    fixture.insert(1);
                    fixture.offer();
                }
            })
        };
        let remover = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.remove(0);
                fixture.offer();
                fixture.insert(0);
                fixture.cache.clear();
                fixture.remove(1);
            })
        };
        let reader = {
            let fixture = fixture.clone();
            spawn(move || {
                for key in [0, 1, 0] {
                    fixture.get(key);
                }
            })
        };
        reader.join().unwrap();
        let crashed = fixture.crash();
        remover.join().unwrap();
        writer.join().unwrap();
        let later = fixture.crash();
        let fixture = Arc::into_inner(fixture).expect("all threads have ended");
        end(fixture);
        check_after_crash(crashed, 512 << 10);
        check_after_crash(later, 512 << 10);
    });
}

/// Changes as futures beside changes that block, lookups and a crash.
#[test]
fn changes_as_futures_never_let_gone_versions_return() {
    check(400, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        fixture.insert(0);
        fixture.offer();
        fixture.l2.flush().unwrap();
        let first = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.insert_async(0);
                fixture.offer();
                fixture.remove_async(1);
            })
        };
        let second = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.insert(1);
                fixture.offer();
                fixture.remove_async(0);
                fixture.remove(1);
            })
        };
        (0..KEYS).for_each(|key| fixture.get(key));
        let crashed = fixture.crash();
        first.join().unwrap();
        second.join().unwrap();
        let later = fixture.crash();
        let fixture = Arc::into_inner(fixture).expect("all threads have ended");
        end(fixture);
        check_after_crash(crashed, 512 << 10);
        check_after_crash(later, 512 << 10);
    });
}

/// Two threads forget one key at once. Neither returns before a tombstone is durable.
#[test]
fn two_threads_that_forget_one_key_both_wait_for_the_tombstone() {
    check(400, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        fixture.insert(0);
        fixture.offer();
        fixture.l2.flush().unwrap();
        let threads = [0, 1].map(|_| {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.remove(0);
                let crashed = fixture.crash();
                check_after_crash(crashed, 512 << 10);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        end(Arc::into_inner(fixture).expect("all threads have ended"));
    });
}

/// Keys are forgotten and written while the rebuild runs.
#[test]
fn keys_forgotten_during_the_rebuild_stay_forgotten() {
    check(200, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let first = open(device, true, 64 << 10);
        for _ in 0..2 {
            (0..KEYS).for_each(|key| first.insert(key));
            first.offer();
            first.l2.flush().unwrap();
        }
        let (pages, known) = first.crash();
        end(first);
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, pages));
        let fixture = Arc::new(open(device, false, 64 << 10));
        *fixture.known.lock() = known;
        let remover = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.remove(0);
                fixture.insert(1);
                fixture.offer();
            })
        };
        let reader = {
            let fixture = fixture.clone();
            spawn(move || [0, 1, 0].into_iter().for_each(|key| fixture.get(key)))
        };
        remover.join().unwrap();
        let crashed = fixture.crash();
        reader.join().unwrap();
        assert!(fixture.l2.wait_rebuilt());
        (0..KEYS).for_each(|key| fixture.get(key));
        end(Arc::into_inner(fixture).expect("all threads have ended"));
        check_after_crash(crashed, 64 << 10);
    });
}

/// Keys are overwritten and removed during the warm-up, while the ring wraps.
#[test]
fn keys_forgotten_during_the_warm_up_stay_forgotten() {
    check(300, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let first = open(device, true, 64 << 10);
        (0..KEYS).for_each(|key| first.insert(key));
        first.offer();
        first.l2.flush().unwrap();
        let (pages, known) = first.crash();
        end(first);
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, pages));
        let fixture = Arc::new(open(device, false, 64 << 10));
        *fixture.known.lock() = known;
        let remover = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.remove(0);
                fixture.insert(1);
                fixture.remove(1);
            })
        };
        let reader = {
            let fixture = fixture.clone();
            spawn(move || [0, 1, 0, 1].into_iter().for_each(|key| fixture.get(key)))
        };
        remover.join().unwrap();
        reader.join().unwrap();
        let warm_up_status = fixture.l2.wait_warm_up();
        assert!(matches!(warm_up_status, forebay_l2::WarmUpStatus::Ended(_)), "{warm_up_status:?}");
        (0..KEYS).for_each(|key| fixture.get(key));
        end(Arc::into_inner(fixture).expect("all threads have ended"));
    });
}

/// An L2 is closed, after or during its rebuild, while another thread forgets a key. A forgotten
/// key stays forgotten, a late call returns an error, and the device keeps the other blocks.
#[test]
fn close_concurrent_with_forget_keeps_the_l2_intact() {
    for reopened in [false, true] {
        check(200, move || close_concurrent_with_forget(reopened));
    }
}

fn close_concurrent_with_forget(reopened: bool) {
    let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
    let mut fixture = open(device.clone(), true, 64 << 10);
    (0..KEYS).for_each(|key| fixture.insert(key));
    fixture.offer();
    fixture.l2.flush().unwrap();
    fixture.cache.clear();
    if reopened {
        // Their segment is not the newest. The newest is read before the L2 forgets anything.
        end(fixture);
        fixture = open(device.clone(), false, 64 << 10);
        assert!(fixture.l2.wait_rebuilt());
        fixture.cache.insert(KEYS, 0).unwrap();
        fixture.offer();
        fixture.l2.flush().unwrap();
        end(fixture);
        fixture = open(device.clone(), false, 64 << 10);
    }
    let l2 = fixture.l2.clone();
    let forgetter = shuttle::thread::spawn(move || {
        let forgotten = l2.forget_checked(&0);
        let closed = |error: forebay_l2::Error| {
            assert_eq!(error.kind(), forebay_l2::ErrorKind::Closed, "{error}");
        };
        forgotten.map_err(closed).is_ok()
    });
    fixture.l2.close();
    let forgotten = forgetter.join().unwrap();
    end(fixture);
    let fixture = open(device, false, 64 << 10);
    assert!(fixture.l2.wait_rebuilt(), "the label is void");
    let has = |key: u64| match fixture.cache.begin(key, 1, Attributes::DATA).unwrap() {
        Begin::Hit(_) => true,
        Begin::InFlight(flight) => flight.wait().is_ok(),
        Begin::Vacant(guard) => {
            guard.withdraw();
            false
        }
    };
    assert!(has(1), "what nobody has forgotten is gone");
    assert!(!forgotten || !has(0), "what was forgotten is back");
    end(fixture);
}
