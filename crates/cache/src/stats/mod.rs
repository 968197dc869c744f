//! The statistics of a cache, as one value with one printer, and the part of them that is cheap.
//!
//! Locking: [`Stats`] takes each partition's and each list's lock once, and walks the index.
//! [`Usage`] takes no lock. The numbers are from slightly different instants.

pub(crate) mod audit;

use std::fmt;
use std::ops::Deref;

use forebay_base::counters::CounterValue;
use forebay_base::histogram::HistogramSnapshot;
use forebay_base::sync::atomic::Ordering;

use crate::attributes::{Cause, Class};
use crate::capacity::overhead::{self, Overhead};
use crate::header::List;
use crate::index::IndexStats;
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ghosts::GhostList;

/// The statistics of a cache, at about one instant. Weights are in bytes.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The part that is read without a lock.
    pub usage: Usage,
    /// The weight beyond which inserters wait: `c` plus the overflow.
    pub limit: u64,
    /// The hard bound, if the cache was built with one.
    pub bound: Option<u64>,
    /// Weight of resident blocks and reservations, as an upper bound.
    pub reserved: u64,
    /// Memory of the cache itself.
    pub overhead: Overhead,
    /// Size and quality of the index.
    pub index: IndexStats,
}

/// What the cache holds and has counted, at about one instant. Weights are in bytes. Reading it
/// takes no lock, so it can be watched under load.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The target `c`: the weight that the cache should hold.
    pub capacity: u64,
    /// Sizes of each state, by class.
    pub states: Vec<StateStats>,
    /// `p`: the target weight of MRU, of metadata and of data.
    pub p: [u64; 2],
    /// The target weight of metadata. The rest of `c` is for data.
    pub metadata_target: u64,
    /// Waits of inserters for capacity, in nanoseconds.
    pub throttle_wait_ns: HistogramSnapshot,
    /// All counters.
    pub counters: Vec<CounterValue>,
}

/// The size of one state of one class.
#[derive(Clone, Debug)]
pub struct StateStats {
    /// `mru`, `mfu`, `once`, `mru_ghost` or `mfu_ghost`.
    pub state: &'static str,
    /// Class of the blocks.
    pub class: Class,
    /// Weight of its blocks, or of the evicted blocks of its ghosts.
    pub bytes: u64,
    /// Number of blocks or ghosts.
    pub blocks: u64,
    /// Blocks ever added to and removed from each sublist. Empty for ghosts.
    pub sublist_traffic: Vec<(u64, u64)>,
}

impl StateStats {
    /// Unevenness of the sublists: inserts of the busiest one, divided by the mean. 1 is even.
    pub fn unevenness(&self) -> f64 {
        let inserts = || self.sublist_traffic.iter().map(|(inserts, _)| *inserts as f64);
        let mean = inserts().sum::<f64>() / self.sublist_traffic.len().max(1) as f64;
        if mean == 0.0 { 1.0 } else { inserts().fold(0.0, f64::max) / mean }
    }
}

impl Stats {
    pub(crate) fn of<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> Self {
        Self {
            usage: Usage::of(inner),
            limit: inner.capacity.limit(),
            bound: inner.bound.as_ref().map(|b| b.bytes.load(Ordering::Relaxed)),
            reserved: inner.capacity.reserved(),
            overhead: overhead::by_kind(inner),
            index: inner.index.stats(),
        }
    }
}

impl Deref for Stats {
    type Target = Usage;

    fn deref(&self) -> &Usage {
        &self.usage
    }
}

impl Usage {
    pub(crate) fn of<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> Self {
        let sizes = inner.sizes();
        inner.learn(&sizes);
        let mut states = Vec::new();
        for (list, state) in [(List::Mru, "mru"), (List::Mfu, "mfu"), (List::Once, "once")] {
            for class in Class::ALL {
                let list = inner.list(list, class);
                states.push(StateStats {
                    state,
                    class,
                    bytes: list.bytes(),
                    blocks: list.blocks(),
                    sublist_traffic: list.iter().map(|s| s.traffic()).collect(),
                });
            }
        }
        for (frequent, state) in [(false, "mru_ghost"), (true, "mfu_ghost")] {
            for class in Class::ALL {
                let ghosts = &inner.ghosts[GhostList { frequent, class }.number()];
                let (bytes, blocks) = (ghosts.bytes(), ghosts.count());
                states.push(StateStats {
                    state,
                    class,
                    bytes,
                    blocks,
                    sublist_traffic: Vec::new(),
                });
            }
        }
        Self {
            capacity: inner.policy.capacity(),
            states,
            p: Class::ALL.map(|class| inner.policy.p(class, &sizes)),
            metadata_target: inner.policy.target(Class::Metadata, &inner.tunables),
            throttle_wait_ns: inner.throttle_wait_ns.snapshot(),
            counters: inner.counters.snapshot(),
        }
    }

    /// The counter of that name, summed over its labels. Zero if there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().filter(|c| c.name == name).map(|c| c.value).sum()
    }

    /// Requests that found their block.
    pub fn hits(&self) -> u64 {
        ["hits_new", "hits_mru", "hits_mfu", "hits_once"].iter().map(|n| self.counter(n)).sum()
    }

    /// Requests that did not find their block, including those that joined a load in flight.
    pub fn misses(&self) -> u64 {
        ["lookups_missed", "misses", "in_flight_joins"].iter().map(|n| self.counter(n)).sum()
    }

    /// Hits divided by requests; 0 without requests.
    pub fn hit_ratio(&self) -> f64 {
        let (hits, misses) = (self.hits() as f64, self.misses() as f64);
        if hits == 0.0 { 0.0 } else { hits / (hits + misses) }
    }

    /// Blocks that have left the cache for that cause. One that leaves before its insert has ended,
    /// for example because another thread inserts the same key, is not counted, but a listener is
    /// told of it. So count in the listener if the numbers must agree.
    ///
    /// ```
    /// use forebay_cache::{Cause, KeyedCache};
    ///
    /// let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// cache.remove("seven");
    /// assert_eq!(cache.usage().left(Cause::Removed), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn left(&self, cause: Cause) -> u64 {
        let of_causes = self.counters.iter().filter(|c| c.name == "left");
        of_causes.map(|c| c.value).nth(cause as usize).unwrap_or(0)
    }

    /// Weight of the blocks in the cache.
    pub fn resident_bytes(&self) -> u64 {
        self.resident().map(|s| s.bytes).sum()
    }

    /// Blocks in the cache.
    pub fn resident_blocks(&self) -> u64 {
        self.resident().map(|s| s.blocks).sum()
    }

    /// Ghosts.
    pub fn ghosts(&self) -> u64 {
        self.states.iter().filter(|s| s.state.ends_with("ghost")).map(|s| s.blocks).sum()
    }

    fn resident(&self) -> impl Iterator<Item = &StateStats> {
        self.states.iter().filter(|s| !s.state.ends_with("ghost"))
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "capacity {}  limit {}  reserved {}  hit ratio {:.4}",
            self.capacity,
            self.limit,
            self.reserved,
            self.hit_ratio()
        )?;
        writeln!(
            f,
            "target: metadata {}  p: metadata {} data {}",
            self.metadata_target, self.p[0], self.p[1]
        )?;
        writeln!(
            f,
            "{:<10} {:<9} {:>14} {:>10} {:>8}",
            "state", "class", "bytes", "blocks", "uneven"
        )?;
        for s in &self.states {
            let class = if s.class == Class::Metadata { "metadata" } else { "data" };
            write!(f, "{:<10} {:<9} {:>14} {:>10}", s.state, class, s.bytes, s.blocks)?;
            if s.sublist_traffic.is_empty() {
                writeln!(f)?;
            } else {
                writeln!(f, " {:>8.3}", s.unevenness())?;
            }
        }
        let o = &self.overhead;
        writeln!(
            f,
            "overhead: headers {} index {} lists {} ghosts {} slack {} fixed {} others {}",
            o.headers, o.index, o.lists, o.ghosts, o.slack, o.fixed, o.others
        )?;
        let i = &self.index;
        writeln!(
            f,
            "index: entries {} collisions {} longest chain {} segments {} resize steps {}",
            i.entries, i.collisions, i.longest_chain, i.segments, i.resize_steps
        )?;
        let w = &self.throttle_wait_ns;
        if w.count > 0 {
            writeln!(
                f,
                "waits for capacity: {} p50 {} ns p99 {} ns",
                w.count,
                w.quantile(0.5),
                w.quantile(0.99)
            )?;
        }
        for c in self.counters.iter().filter(|c| c.value > 0) {
            match c.label {
                Some(label) => writeln!(f, "{}[{label}] {}", c.name, c.value)?,
                None => writeln!(f, "{} {}", c.name, c.value)?,
            }
        }
        Ok(())
    }
}
