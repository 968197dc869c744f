//! `keyed`: the cache for keys of any type, with expiry and a listener, compared with moka.
//!
//! The load *mixed* is a web service's: Zipf-distributed keys, nine lookups for one lookup that
//! loads what it misses, a time to live, and a listener that counts. The load *hits* looks up
//! resident strings; `block-cache` does that with a `Cache<u64, _>` and the string's hash as key,
//! which is the least that a hit can cost. `compared` also keeps the string in the value and
//! compares it, which is the least that an exact hit can cost.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_cache::{Cache, Delivery, KeyedCache, SeededState};

use super::{interleave, panels_over_threads};
use crate::keys::{Distribution, KeySpace, KeyStream};
use crate::measure::{self, Worker};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};

const NAME: &str = "keyed";
const THREADS: [usize; 3] = [1, 2, 8];
const FOREBAY: &str = "forebay";
const MOKA: &str = "moka";
const BLOCK_CACHE: &str = "block-cache";
const COMPARED: &str = "compared";
/// One lookup in so many loads what it misses.
const LOADS: u64 = 10;
/// Long enough that a measurement sees few expired entries, short enough that there are some.
const TIME_TO_LIVE: Duration = Duration::from_secs(10);

/// Options of `keyed`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Entries of the cache.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) entries: u64,
    /// Keys of the load `mixed`, as a multiple of the entries.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) factor: u64,
}

type Page = Arc<[u8; 64]>;

fn page(key: u64) -> Page {
    Arc::new([key as u8; 64])
}

/// A subject under one load.
trait Subject<K>: Sync {
    /// True for a hit.
    fn get(&self, key: &K) -> bool;
    /// Loads what it misses. True for a hit.
    fn get_or_load(&self, key: &K, number: u64) -> bool;
}

/// What the cells of a run share.
struct Plan<'a> {
    common: &'a Common,
    threads: usize,
    key: &'static str,
    load: &'static str,
    space: &'a KeySpace,
    loads: bool,
}

struct Walker<'a, K, T> {
    subject: &'a T,
    keys: &'a [K],
    stream: KeyStream,
    loads: bool,
}

impl<K, T: Subject<K>> Worker for Walker<'_, K, T> {
    fn step(&mut self) -> bool {
        let number = self.stream.next();
        let key = &self.keys[number as usize];
        if self.loads && self.stream.rng().below(LOADS) == 0 {
            self.subject.get_or_load(key, number)
        } else {
            self.subject.get(key)
        }
    }
}

impl Plan<'_> {
    fn measure<K: Sync, T: Subject<K>>(&self, name: &str, subject: &T, keys: &[K]) -> Record {
        let Self { common, threads, space, loads, .. } = *self;
        for (number, key) in keys.iter().enumerate() {
            subject.get_or_load(key, number as u64);
        }
        let walker = |thread| Walker {
            subject,
            keys,
            stream: space.stream(thread, threads, common.seed),
            loads,
        };
        let sample = measure::run(threads, common.limit(), walker, || {});
        Record::new(NAME, name, threads)
            .param("load", self.load)
            .param("key", self.key)
            .figure("ops_per_s", sample.ops_per_s())
            .figure("hit_ratio", sample.hit_ratio())
            .figure("cpu_ns_per_op", sample.cpu_ns_per_op())
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Subject<K> for KeyedCache<K, Page> {
    fn get(&self, key: &K) -> bool {
        KeyedCache::get(self, key).is_some_and(|page| page[0] < u8::MAX || page[1] > 0)
    }

    fn get_or_load(&self, key: &K, number: u64) -> bool {
        let mut hit = true;
        let loaded = self.get_or_load_by_ref(key, || {
            hit = false;
            Ok::<_, std::convert::Infallible>(page(number))
        });
        hit && loaded.is_ok()
    }
}

/// The block cache, whose keys are the strings' hashes.
struct Hashed {
    cache: Cache<u64, Page>,
    hasher: SeededState,
}

impl Subject<String> for Hashed {
    fn get(&self, key: &String) -> bool {
        let found = self.cache.get(&self.hasher.hash_one(key));
        found.is_some_and(|page| page[0] < u8::MAX || page[1] > 0)
    }

    fn get_or_load(&self, key: &String, number: u64) -> bool {
        self.cache.insert(self.hasher.hash_one(key), page(number)).is_err()
    }
}

/// As [`Hashed`], with the strings in the values.
struct Compared {
    cache: Cache<u64, (String, Page)>,
    hasher: SeededState,
}

impl Subject<String> for Compared {
    fn get(&self, key: &String) -> bool {
        let found = self.cache.get(&self.hasher.hash_one(key));
        let found = found.filter(|found| found.0 == *key);
        found.is_some_and(|found| found.1[0] < u8::MAX || found.1[1] > 0)
    }

    fn get_or_load(&self, key: &String, number: u64) -> bool {
        self.cache.insert(self.hasher.hash_one(key), (key.clone(), page(number))).is_err()
    }
}

#[cfg(feature = "peers")]
impl<K: Hash + Eq + Clone + Send + Sync + 'static> Subject<K> for moka::sync::Cache<K, Page> {
    fn get(&self, key: &K) -> bool {
        let found = moka::sync::Cache::get(self, key);
        found.is_some_and(|page| page[0] < u8::MAX || page[1] > 0)
    }

    fn get_or_load(&self, key: &K, number: u64) -> bool {
        !self.entry_by_ref(key).or_insert_with(|| page(number)).is_fresh()
    }
}

/// Measures one subject with new caches.
fn mixed<K>(subject: &str, plan: &Plan<'_>, entries: u64, keys: &[K]) -> Result<Record, Failure>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    let evicted = Arc::new(AtomicU64::new(0));
    let count = move || {
        evicted.fetch_add(1, Ordering::Relaxed);
    };
    #[cfg(feature = "peers")]
    if subject == MOKA {
        let cache = moka::sync::Cache::builder()
            .max_capacity(entries)
            .time_to_live(TIME_TO_LIVE)
            .eviction_listener(move |_, _: Page, _| count())
            .build();
        return Ok(plan.measure(subject, &cache, keys));
    }
    let cache = KeyedCache::<K, Page>::builder()
        .max_entries(entries)
        .time_to_live(TIME_TO_LIVE)
        .on_evicted(Delivery::Lossless, move |_| count())
        .build()?;
    Ok(plan.measure(subject, &cache, keys))
}

fn hits(subject: &str, plan: &Plan<'_>, keys: &[String]) -> Result<Record, Failure> {
    let entries = 2 * keys.len() as u64;
    if subject == BLOCK_CACHE {
        let cache = Cache::builder().capacity(entries).weigher(|_, _| 1).build()?;
        let hashed = Hashed { cache, hasher: SeededState::default() };
        return Ok(plan.measure(subject, &hashed, keys));
    }
    if subject == COMPARED {
        let cache = Cache::builder().capacity(entries).weigher(|_, _| 1).build()?;
        let compared = Compared { cache, hasher: SeededState::default() };
        return Ok(plan.measure(subject, &compared, keys));
    }
    #[cfg(feature = "peers")]
    if subject == MOKA {
        let cache = moka::sync::Cache::builder().max_capacity(entries).build();
        return Ok(plan.measure(subject, &cache, keys));
    }
    let cache = KeyedCache::<String, Page>::builder().max_entries(entries).build()?;
    Ok(plan.measure(subject, &cache, keys))
}

fn subjects() -> Vec<&'static str> {
    let mut subjects = vec![FOREBAY, BLOCK_CACHE, COMPARED];
    if cfg!(feature = "peers") {
        subjects.push(MOKA);
    }
    subjects
}

/// Measures all loads.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&subjects())?;
    let space = |keys| KeySpace::new(Distribution::Zipf, keys, common.seed);
    let (all, resident) = (space(args.entries * args.factor), space(args.entries));
    let name = |n: u64| format!("tenant-{:03}/user-{n:010}", n % 997);
    let names: Vec<String> = (0..all.key_count()).map(name).collect();
    let pairs: Vec<(u64, u128)> =
        (0..all.key_count()).map(|n| (n % 997, u128::from(n) << 40 | 7)).collect();
    let mut records = Vec::new();
    for threads in common.threads_or(&THREADS)? {
        let wanted = |all: &[&'static str]| -> Vec<&'static str> {
            let mut wanted = subjects();
            wanted.retain(|subject| all.contains(subject) && common.wants(subject));
            wanted
        };
        let mixes = wanted(&[FOREBAY, MOKA]);
        let plan = |key, load, space, loads| Plan { common, threads, key, load, space, loads };
        let texts = plan("string", "mixed", &all, true);
        let found = interleave(common.reps, mixes.len(), |i, _| {
            mixed(mixes[i], &texts, args.entries, &names)
        })?;
        records.extend(folded(&found));
        let numbers = plan("(u64, u128)", "mixed", &all, true);
        let found = interleave(common.reps, mixes.len(), |i, _| {
            mixed(mixes[i], &numbers, args.entries, &pairs)
        })?;
        records.extend(folded(&found));
        let resident_names = &names[..args.entries as usize];
        let plan = plan("string", "hits", &resident, false);
        let readers = wanted(&[FOREBAY, BLOCK_CACHE, COMPARED, MOKA]);
        let found =
            interleave(common.reps, readers.len(), |i, _| hits(readers[i], &plan, resident_names))?;
        records.extend(folded(&found));
    }
    Ok(records)
}

fn folded(found: &[Vec<Record>]) -> Vec<Record> {
    let ratio = |name, against| Ratio { name, figure: "ops_per_s", against };
    let ratios = [
        ratio("ratio_to_moka", Against::Subject(MOKA)),
        ratio("ratio_to_block_cache", Against::Subject(BLOCK_CACHE)),
        ratio("ratio_to_compared", Against::Subject(COMPARED)),
    ];
    fold_all(found, &ratios)
}

/// Throughput over threads.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    panels_over_threads(records, &["load", "key"], "ops_per_s")
}
