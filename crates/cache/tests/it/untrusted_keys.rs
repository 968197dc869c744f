//! Keys whose `Hash`, `Eq` and `owner` answer at random, or panic. They cost misses, but no block
//! is dropped while it is in use, or twice, or never; no capacity is lost, and a close ends.

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay_base::rng::SmallRng;
use forebay_cache::{
    Attributes, Begin, Cache, Candidate, Hint, Key, LoadGuard, OwnerCaching, OwnerId, Reclaim,
    SecondaryCache, SlotHint,
};

use crate::support::{Counted, Live, audit, seed};

/// What keys do, for all of a test.
#[derive(Default)]
struct Whim {
    random: AtomicU64,
    /// Of 1024 calls, so many answer at random.
    lies: [AtomicU64; 3],
    /// Of 1024 calls, so many panic.
    panics: [AtomicU64; 3],
}

const HASH: usize = 0;
const EQ: usize = 1;
const OWNER: usize = 2;

impl Whim {
    fn set(&self, lies: [u64; 3], panics: [u64; 3]) {
        for call in [HASH, EQ, OWNER] {
            self.lies[call].store(lies[call], Ordering::SeqCst);
            self.panics[call].store(panics[call], Ordering::SeqCst);
        }
    }

    /// A random number, if this call lies.
    fn ask(&self, call: usize) -> Option<u64> {
        let state = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        if z % 1024 < self.panics[call].load(Ordering::Relaxed) {
            // Without the noise of a panic's message.
            resume_unwind(Box::new("a whim"));
        }
        ((z >> 10) % 1024 < self.lies[call].load(Ordering::Relaxed)).then_some(z >> 20)
    }
}

#[derive(Clone, Copy)]
struct Odd {
    id: u64,
    whim: &'static Whim,
}

impl Hash for Odd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.whim.ask(HASH).unwrap_or(self.id));
    }
}

impl PartialEq for Odd {
    fn eq(&self, other: &Self) -> bool {
        self.whim.ask(EQ).map_or(self.id == other.id, |random| random % 2 == 0)
    }
}

impl Eq for Odd {}

impl Key for Odd {
    fn owner(&self) -> OwnerId {
        OwnerId::from_raw(self.whim.ask(OWNER).unwrap_or(self.id) as u16 % 3)
    }
}

/// Has nothing, so that each load and change takes the path by it.
struct Empty;

impl SecondaryCache<Odd, Counted> for Empty {
    fn offer(&self, candidates: Vec<Candidate<Odd, Counted>>) {
        drop(candidates.into_iter().filter_map(Candidate::write).collect::<Vec<_>>());
    }
    fn load(&self, guard: LoadGuard<Odd, Counted>) -> Result<(), LoadGuard<Odd, Counted>> {
        Err(guard)
    }
    fn forget(&self, _: &Odd) {}
}

type OddCache = Cache<Odd, Counted>;

const KEYS: u64 = 600;

/// One operation of any kind. Guards of blocks stay in `held` for a while.
fn step<'a>(
    cache: &'a OddCache,
    live: &Live,
    whim: &'static Whim,
    rng: &mut SmallRng,
    held: &mut Vec<forebay_cache::Ref<'a, Odd, Counted>>,
) {
    let key = Odd { id: rng.below(KEYS), whim };
    let value = || live.value(key.id);
    let hints = [Hint::Normal, Hint::Normal, Hint::Once, Hint::Again];
    let class = if rng.below(2) == 0 { Attributes::DATA } else { Attributes::METADATA };
    let attributes = Attributes { hint: hints[rng.below(4) as usize], ..class };
    match rng.below(16) {
        0..=2 => drop(cache.insert_with(key, value(), attributes)),
        3 | 4 => held.extend(cache.get(&key)),
        5 => {
            let keys = [0, 1, 2].map(|n| Odd { id: (key.id + n) % KEYS, whim });
            let mut found = Vec::new();
            cache.get_many(&keys, &mut found);
            found.iter().flatten().for_each(|block| assert!(block.payload() < KEYS));
        }
        6 => held.extend(cache.get_at(SlotHint::UNKNOWN, &key)),
        7 => {
            let hint = held.last().map(|block| block.slot_hint()).unwrap_or_default();
            held.extend(cache.get_at(hint, &key));
        }
        8 => drop(cache.contains(&key)),
        9 if rng.below(2) == 0 => drop(cache.remove_if(&key, |value| value.payload() < KEYS)),
        9 => drop(cache.remove(&key)),
        10 | 11 => {
            let fails = rng.below(4) == 0;
            let load = || if fails { Err("no luck") } else { Ok(value()) };
            held.extend(cache.get_or_load_with(key, attributes, load).ok());
        }
        12 => match cache.begin(key, 1, attributes) {
            Ok(Begin::Vacant(guard)) if rng.below(2) == 0 => drop(guard.publish(value())),
            Ok(Begin::Vacant(guard)) => guard.withdraw(),
            Ok(Begin::InFlight(in_flight)) => drop(in_flight),
            _ => {}
        },
        13 => drop(cache.warm_up().put(key, value(), attributes, || true)),
        14 if rng.below(40) == 0 => {
            let kept = |key: &Odd, value: &Counted| key.id % 3 != value.payload() % 2;
            assert!(cache.retain(|key, value, _| kept(key, value)) <= 2 * KEYS);
        }
        14 if rng.below(40) == 0 => cache.iter().for_each(|block| assert!(block.payload() < KEYS)),
        14 if rng.below(40) == 0 => cache.resize(100 + rng.below(200)),
        _ => drop(cache.get_or_join(&key)),
    }
    held.iter().for_each(|block| assert!(block.payload() < KEYS && block.key().id < KEYS));
    if held.len() > 8 {
        held.swap_remove(rng.below(8) as usize);
    }
}

fn storm(name: &str, lies: [u64; 3], panics: [u64; 3]) {
    for (round, (reclaim, over)) in
        [(Reclaim::Inline, false), (Reclaim::Thread, false), (Reclaim::Thread, true)]
            .into_iter()
            .enumerate()
    {
        let whim: &'static Whim = Box::leak(Box::default());
        let (live, seed) = (Live::default(), seed(name) + round as u64);
        whim.random.store(seed, Ordering::SeqCst);
        let mut builder = OddCache::builder()
            .capacity(200)
            .weigher(|_, _| 1)
            .reclaim(reclaim)
            .seed(seed)
            .tunable("overflow_wait_ms", "1");
        if over {
            builder = builder.secondary_cache(Arc::new(Empty));
        }
        let cache = builder.build().unwrap();
        #[cfg(feature = "insight")]
        cache.record(true);
        let owners = [1, 2].map(|_| cache.open_owner(OwnerCaching::All).unwrap().into_id());
        assert_eq!(owners.map(OwnerId::get), [1, 2]);
        whim.set(lies, panics);
        let steps = if cfg!(miri) { 150 } else { 6_000 };
        thread::scope(|s| {
            for t in 0..4 {
                let (cache, live) = (&cache, &live);
                s.spawn(move || {
                    let mut rng = SmallRng::from_seed(seed * 7 + t);
                    let mut held = Vec::new();
                    for n in 0..steps {
                        let step = || step(cache, live, whim, &mut rng, &mut held);
                        let _a_whim = catch_unwind(AssertUnwindSafe(step));
                        if n == steps / 2 && t == 0 {
                            held.clear();
                            cache.set_owner_caching(owners[0], OwnerCaching::Metadata);
                        }
                    }
                });
            }
        });
        // Sane again, the cache works: whatever the storm has left can be used and removed.
        whim.set([0; 3], [0; 3]);
        cache.resize(2 * KEYS);
        assert!(cache.set_owner_caching(owners[0], OwnerCaching::All));
        for id in 0..KEYS {
            let key = Odd { id, whim };
            cache.insert(key, live.value(id)).unwrap();
            assert_eq!(cache.get(&key).unwrap().payload(), id);
        }
        assert!(cache.close_owner(owners[1]));
        cache.clear();
        assert_eq!(live.count(), 0, "values are left");
        audit(&cache);
        cache.close();
        let stats = cache.stats();
        assert_eq!((stats.reserved, stats.index.entries), (0, 0), "{stats}");
        drop(cache);
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn keys_with_random_hashes() {
    storm("keys_with_random_hashes", [1024, 0, 0], [0; 3]);
    storm("keys_with_random_hashes", [300, 0, 0], [0; 3]);
}

#[test]
fn keys_that_equal_at_random() {
    storm("keys_that_equal_at_random", [0, 512, 0], [0; 3]);
}

#[test]
fn keys_that_lie_now_and_then() {
    storm("keys_that_lie_now_and_then", [30, 30, 200], [0; 3]);
}

#[test]
fn keys_that_panic() {
    storm("keys_that_panic", [0; 3], [20, 0, 0]);
    storm("keys_that_panic", [0; 3], [0, 20, 0]);
    storm("keys_that_panic", [0; 3], [0, 0, 20]);
    storm("keys_that_panic", [40; 3], [20; 3]);
}

/// A loader's waiters are woken and the load can be repeated, whatever its key does.
#[test]
fn a_load_ends_when_its_key_panics() {
    let whim: &'static Whim = Box::leak(Box::default());
    let live = Live::default();
    let cache = OddCache::builder().capacity(100).weigher(|_, _| 1).build().unwrap();
    let key = Odd { id: 3, whim };
    for call in [HASH, EQ, OWNER] {
        let Ok(Begin::Vacant(guard)) = cache.begin(key, 1, Attributes::DATA) else { panic!() };
        let Ok(Begin::InFlight(waiter)) = cache.begin(key, 1, Attributes::DATA) else { panic!() };
        let mut panics = [0; 3];
        panics[call] = 1024;
        whim.set([0; 3], panics);
        drop(guard.publish(live.value(3)));
        assert_eq!(waiter.wait().unwrap().payload(), 3);
        let looked = catch_unwind(AssertUnwindSafe(|| drop(cache.get(&key))));
        assert_eq!(looked.is_err(), call != OWNER);
        whim.set([0; 3], [0; 3]);
        assert!(cache.remove(&key).is_some(), "the lookup's pin is gone, or the block with it");
        assert_eq!(live.count(), 0, "a pin is left");
    }
    audit(&cache);
}
