//! `CacheInner`: the state that lookups, inserts, removals and the evictor share.
//!
//! Invariants
//!
//! * Each header in use holds `header.weight()` bytes of `capacity`. Freeing it returns them.
//! * A block is counted in the sublist that its state names, from the update that names the sublist
//!   until the update that retires or moves the block.
//! * `CacheInner` lives while there is a *hold* on it. Holds belong to the `Cache`, to its threads,
//!   to a reference that drops the last pin, and, after the `Cache` was dropped, to each header
//!   that was still pinned.
//!
//! Locking: see `docs/locking.md`. No function here holds two locks, except that the index takes
//! `index-memory` under a partition's lock, and that the evictor holds `reclaim` outermost.

use std::hash::BuildHasher;
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use forebay_base::clock::Clock;
#[cfg(feature = "insight")]
use forebay_base::counters::Counter;
use forebay_base::histogram::AtomicHistogram;
use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::attributes::{Attributes, Class};
use crate::callbacks::Callbacks;
use crate::capacity::Capacity;
use crate::counters::CacheCounters;
use crate::evict::Scratch;
use crate::evict::expire::Expiry;
use crate::header::slab::Slab;
use crate::header::spill::SpilledPins;
use crate::header::{Header, List};
use crate::index::Index;
use crate::index::line::Slot;
use crate::insight_budget::InsightBudget;
use crate::key::Key;
use crate::lists::MultiList;
use crate::lists::ghosts::{Ghost, GhostList, Ghosts};
use crate::lists::ring::FreeBlocks;
use crate::load::mean_weight::MeanWeight;
use crate::load::single_flight::InFlightLoads;
use crate::owner::Owners;
use crate::policy::simulation::Simulations;
use crate::policy::{GhostHits, Policy, Sizes};
use crate::recorder::Recorder;
use crate::secondary::SecondaryCache;
use crate::tunables::CacheTunables;

/// Returns the weight of a block in bytes.
pub(crate) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;
/// Returns bytes outside of the cache that count against the hard bound.
pub(crate) type Overhead = Box<dyn Fn() -> u64 + Send + Sync>;

/// Which thread evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// A thread of the cache. Inserters beyond the overflow limit wait for it.
    #[default]
    Thread,
    /// The inserting thread, as soon as the target is exceeded. Exact, and deterministic with one
    /// thread: for simulation and tests.
    Inline,
}

pub(crate) struct CacheInner<K: Key, V: Send + Sync + 'static> {
    pub(crate) hasher: foldhash::quality::FixedState,
    pub(crate) index: Index,
    pub(crate) slab: Slab<K, V>,
    /// By `List as usize - 1` and class.
    pub(crate) resident: [[MultiList; 2]; 3],
    /// Free memory of the rings of all lists, and of all ghost lists.
    pub(crate) free_blocks: Arc<FreeBlocks<u32>>,
    pub(crate) free_ghosts: Arc<FreeBlocks<Ghost>>,
    /// By `GhostList::number`.
    pub(crate) ghosts: [Ghosts; 4],
    pub(crate) policy: Policy,
    pub(crate) ghost_hits: GhostHits,
    pub(crate) simulations: Simulations,
    #[cfg(feature = "insight")]
    pub(crate) has_curve: bool,
    pub(crate) recorder: Recorder,
    pub(crate) capacity: Capacity,
    pub(crate) owners: Owners,
    pub(crate) in_flight: InFlightLoads,
    pub(crate) mean_weight: MeanWeight,
    pub(crate) spilled: SpilledPins,
    pub(crate) tunables: CacheTunables,
    pub(crate) counters: CacheCounters,
    pub(crate) throttle_wait_ns: AtomicHistogram,
    pub(crate) weigher: Weigher<K, V>,
    pub(crate) callbacks: Option<Callbacks<K, V>>,
    pub(crate) secondary: Option<Arc<dyn SecondaryCache<K, V>>>,
    pub(crate) expiry: Option<Arc<dyn Expiry<V>>>,
    /// By class, the uses of the MFU block that last lost to a candidate.
    pub(crate) last_victim_uses: [AtomicU32; 2],
    pub(crate) clock: Arc<dyn Clock>,
    /// The hard bound, if there is one.
    pub(crate) bound: Option<Bound>,
    pub(crate) mode: Reclaim,
    /// Held to set targets and maintain memory. Counts the passes of inserters.
    pub(crate) reclaim: Mutex<u64>,
    /// One for each thread that evicts at the same time.
    pub(crate) scratches: Box<[CachePadded<Mutex<Scratch<K, V>>>]>,
    pub(crate) signal: ReclaimSignal,
    pub(crate) closed: AtomicBool,
    /// Number of freed headers, for threads that wait for some; see `closers`.
    pub(crate) released: (Mutex<u64>, Condvar),
    pub(crate) closers: AtomicUsize,
    pub(crate) holds: AtomicUsize,
}

/// The hard bound on blocks and overhead.
pub(crate) struct Bound {
    pub(crate) bytes: forebay_base::sync::atomic::AtomicU64,
    pub(crate) others: Option<Overhead>,
}

/// Wakes and stops the reclaimer.
pub(crate) struct ReclaimSignal {
    pub(crate) wanted: AtomicBool,
    pub(crate) state: Mutex<ReclaimSignalState>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct ReclaimSignalState {
    pub(crate) stop: bool,
}

/// The parts that the builder chooses.
pub(crate) struct CacheParts<K: Key, V: Send + Sync + 'static> {
    pub(crate) target: u64,
    pub(crate) limit: u64,
    pub(crate) shards: usize,
    pub(crate) sublists: usize,
    pub(crate) seed: u64,
    pub(crate) tunables: CacheTunables,
    pub(crate) weigher: Weigher<K, V>,
    /// Assumed before any block was loaded.
    pub(crate) first_weight: u64,
    pub(crate) callbacks: Option<Callbacks<K, V>>,
    pub(crate) secondary: Option<Arc<dyn SecondaryCache<K, V>>>,
    pub(crate) expiry: Option<Arc<dyn Expiry<V>>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bound: Option<Bound>,
    pub(crate) mode: Reclaim,
    pub(crate) plain_lru: bool,
    /// Whether the miss-ratio curve is measured.
    pub(crate) has_curve: bool,
}

/// Bytes of an entry of the index, at least.
const INDEX_ENTRY_BYTES: u64 = 8;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// The weight of a block in bytes, at least 1.
    pub(crate) fn weigh(&self, key: &K, value: &V) -> u64 {
        self.with_structures((self.weigher)(key, value))
    }

    /// Adds to a weight what the cache spends on each block: with a hard bound, its header and its
    /// entry in the index. Otherwise many light blocks would exceed the bound before the overhead
    /// is checked again.
    pub(crate) fn with_structures(&self, weight: u64) -> u64 {
        weight.max(1).saturating_add(self.structure_bytes())
    }

    /// Bytes of structures in the weight of a block.
    pub(crate) fn structure_bytes(&self) -> u64 {
        match self.bound {
            Some(_) => size_of::<Header<K, V>>() as u64 + INDEX_ENTRY_BYTES,
            None => 0,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Number of cached blocks.
    pub(crate) fn resident_blocks(&self) -> u64 {
        self.resident.iter().flatten().map(MultiList::blocks).sum()
    }

    pub(crate) fn new(parts: CacheParts<K, V>) -> Result<Self, forebay_base::vm::Error> {
        let (free_blocks, free_ghosts) = (FreeBlocks::new(), FreeBlocks::new());
        let lists = |list: List| {
            Class::ALL.map(|class| MultiList::new((list, class), parts.sublists, &free_blocks))
        };
        Ok(Self {
            hasher: foldhash::quality::FixedState::with_seed(parts.seed),
            index: Index::new(),
            slab: Slab::new(forebay_base::vm::PageSize::system(), parts.shards)?,
            resident: [List::Mru, List::Mfu, List::Once].map(lists),
            ghosts: std::array::from_fn(|_| Ghosts::new(parts.sublists, &free_ghosts)),
            free_blocks,
            free_ghosts,
            policy: Policy::new(parts.target, parts.plain_lru),
            ghost_hits: GhostHits::new(parts.shards),
            simulations: Simulations::new(
                parts.shards,
                parts.plain_lru,
                InsightBudget::of(parts.bound.as_ref(), parts.has_curve),
            ),
            #[cfg(feature = "insight")]
            has_curve: parts.has_curve,
            recorder: Recorder::new(),
            capacity: Capacity::new(parts.target, parts.limit, parts.shards),
            owners: Owners::new(),
            in_flight: InFlightLoads::new(),
            mean_weight: MeanWeight::new(parts.first_weight),
            spilled: SpilledPins::new(),
            tunables: parts.tunables,
            counters: CacheCounters::default(),
            throttle_wait_ns: AtomicHistogram::default(),
            weigher: parts.weigher,
            callbacks: parts.callbacks,
            secondary: parts.secondary,
            expiry: parts.expiry,
            last_victim_uses: std::array::from_fn(|_| AtomicU32::new(u32::MAX)),
            clock: parts.clock,
            bound: parts.bound,
            mode: parts.mode,
            reclaim: Mutex::named("reclaim", 0),
            scratches: (0..parts.shards as u64)
                .map(|n| Scratch::new(SmallRng::from_seed(parts.seed.wrapping_add(n))))
                .map(|scratch| CachePadded::new(Mutex::named("evict-scratch", scratch)))
                .collect(),
            signal: ReclaimSignal {
                wanted: AtomicBool::new(false),
                state: Mutex::named("reclaim-signal", ReclaimSignalState::default()),
                changed: Condvar::new(),
            },
            closed: AtomicBool::new(false),
            released: (Mutex::named("released", 0), Condvar::new()),
            closers: AtomicUsize::new(0),
            holds: AtomicUsize::new(1),
        })
    }

    /// With [`Builder::plain_lru`](crate::Builder::plain_lru), all blocks are treated alike.
    #[inline]
    pub(crate) fn policy_attributes(&self, attributes: Attributes) -> Attributes {
        let plain = Attributes { label: attributes.label, ..Attributes::DATA };
        if self.policy.is_plain_lru() { plain } else { attributes }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn list(&self, list: List, class: Class) -> &MultiList {
        &self.resident[list as usize - 1][class as usize]
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let resident = |list: List| Class::ALL.map(|class| self.list(list, class).bytes());
        let ghosts = |frequent| {
            Class::ALL.map(|class| self.ghosts[GhostList { frequent, class }.number()].bytes())
        };
        Sizes {
            t1: resident(List::Mru),
            t2: resident(List::Mfu),
            once: resident(List::Once),
            b1: ghosts(false),
            b2: ghosts(true),
        }
    }

    /// What the counters say to the miss-ratio curve.
    #[cfg(feature = "insight")]
    pub(crate) fn curve_totals(&self) -> crate::curve::Totals {
        let sum = |row: Counter| Class::ALL.map(|class| self.counters.sum(row.at(class as usize)));
        let hits = [
            CacheCounters::HITS_NEW,
            CacheCounters::HITS_MRU,
            CacheCounters::HITS_MFU,
            CacheCounters::HITS_ONCE,
        ];
        let hits = hits.map(sum).into_iter().fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
        let misses = sum(CacheCounters::INSERTS_UNHINTED);
        let loads = [CacheCounters::TIMED_LOADS, CacheCounters::TIMED_LOAD_NS];
        let loads = loads.map(|row| self.counters.sum(row.at(0)));
        crate::curve::Totals { now_ns: self.clock.now_ns(), hits, misses, loads }
    }

    /// The header at the address of a resident slot.
    #[inline]
    pub(crate) fn header_at(address: usize) -> NonNull<Header<K, V>> {
        let header = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: resident slots are made from headers' addresses, which are not null.
        unsafe { NonNull::new_unchecked(header) }
    }

    pub(crate) fn slot_of(hash: u64, header: NonNull<Header<K, V>>) -> Slot {
        Slot::resident(hash, header.as_ptr().expose_provenance())
    }
}
