//! The events that the cache reports to the recorder, and its interface.
//!
//! Each event costs a relaxed load if the recorder is closed or the block is not sampled. `off.rs`
//! has the same functions without a body, for builds without the feature `insight`.
//!
//! Locking: `recorder`; `evict-scratch` may be held.

use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay_base::counters::Counter;

use super::events;
use super::explanation::Evidence;
use super::log::{AtMiss, Exit, Log};
use super::secondary_sizes::{Needed, SecondarySizes, SecondaryTotals};
use super::windows::{Totals, Windows};
use super::{Explanation, MissCause, MissEvent, RecordedBlock, SecondaryFate};
use crate::attributes::{Attributes, Cause, Class};
use crate::cache::Cache;
use crate::counters::CacheCounters;
use crate::curve::report::SecondaryCurve;
use crate::error::Refusal;
use crate::header::{Header, HeaderState, List, MARK};
use crate::inner::CacheInner;
use crate::insight_budget::InsightBudget;
use crate::key::{Key, OwnerId};
use crate::load::load_guard::LoadGuard;
use crate::secondary::{Holding, SecondaryCache};

/// A cache that holds less than this share of its target is filling up.
const FILLED: (u64, u64) = (15, 16);

/// Uses of a block that was read ahead and then once: its load, and a hit.
const READ_AHEAD_USES: u32 = 2;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// A load begins because the block is not in memory.
    #[inline]
    pub(crate) fn record_miss(
        &self,
        hash: u64,
        owner: OwnerId,
        attributes: Attributes,
        weight: u32,
        asks_secondary: bool,
    ) {
        if self.recorder.samples_any(hash) {
            self.record_sampled_miss(hash, owner, attributes, weight, asks_secondary);
        }
    }

    #[cold]
    fn record_sampled_miss(
        &self,
        hash: u64,
        owner: OwnerId,
        attributes: Attributes,
        weight: u32,
        asks_secondary: bool,
    ) {
        let target = self.capacity.target();
        let mut at = AtMiss {
            now_ns: self.clock.now_ns(),
            filling: self.capacity.reserved() < target / FILLED.1 * FILLED.0,
            target,
            asks_secondary: asks_secondary && self.active_secondary().is_some(),
            needed: Needed::Unknown,
        };
        let block = block(owner, attributes);
        self.recorder.record_in_any(hash, |log, key| {
            log.windows.advance(at.now_ns, target, || self.totals());
            if at.asks_secondary {
                at.needed = log.secondary.miss(key, block);
            }
            if log.records(key) {
                log.miss(key, block, weight, &at);
            }
        });
    }

    /// The secondary cache returned the guard of a load.
    #[inline]
    pub(crate) fn record_not_in_secondary(
        &self,
        secondary: &dyn SecondaryCache<K, V>,
        hash: u64,
        key: &K,
        class: Class,
    ) {
        if self.recorder.samples(hash) {
            let fate = match self.ask_holding(secondary, key, class) {
                None => SecondaryFate::Absent,
                Some(Holding::Excluded) => SecondaryFate::Excluded,
                Some(Holding::Stored | Holding::NotStored) => SecondaryFate::Declined,
            };
            self.recorder.record(hash, |log, key| log.not_in_secondary(key, fate));
        }
    }

    /// A block is inserted without a load.
    #[inline]
    pub(crate) fn record_entry(
        &self,
        hash: u64,
        owner: OwnerId,
        attributes: Attributes,
        weight: u32,
    ) {
        if self.recorder.samples(hash) {
            let now_ns = self.clock.now_ns();
            let block = block(owner, attributes);
            self.recorder.record(hash, |log, key| log.enter(key, block, weight, now_ns));
        }
    }

    /// A load ends with a block of that weight, or with one that is not cached.
    #[inline]
    pub(crate) fn record_load(
        &self,
        guard: &LoadGuard<K, V>,
        weight: u32,
        refusal: Option<Refusal>,
    ) {
        if !self.recorder.samples(guard.hash) {
            return;
        }
        let cause = match refusal {
            None => {
                let owner = self.owner_of(guard.key());
                return self.record_entry(guard.hash, owner, guard.attributes, weight);
            }
            Some(Refusal::ByOwner) => MissCause::ByOwner,
            Some(Refusal::TooHeavy { .. }) => MissCause::TooHeavy,
            Some(Refusal::NoCapacity | Refusal::NoMemory) => MissCause::NoCapacity,
            Some(Refusal::Closed) => MissCause::Flushed,
        };
        let now_ns = self.clock.now_ns();
        let exit = Exit::uncached(cause, now_ns);
        let block = block(self.owner_of(guard.key()), guard.attributes);
        self.recorder.record(guard.hash, |log, key| log.leave(key, block, weight, exit));
    }

    /// A load ends without a block.
    #[inline]
    pub(crate) fn record_abandoned(&self, hash: u64) {
        if self.recorder.samples(hash) {
            let now_ns = self.clock.now_ns();
            self.recorder.record(hash, |log, key| log.abandon(key, now_ns));
        }
    }

    /// The evictor has retired a block that was in `state`.
    #[inline]
    pub(crate) fn record_eviction(
        &self,
        hash: u64,
        key: &K,
        state: HeaderState,
        header: &Header<K, V>,
    ) {
        if self.recorder.samples_any(hash) {
            self.record_sampled_eviction(hash, key, state, header);
        }
    }

    #[cold]
    fn record_sampled_eviction(
        &self,
        hash: u64,
        key: &K,
        state: HeaderState,
        header: &Header<K, V>,
    ) {
        let class = state.class();
        let holding = self.active_secondary().and_then(|l2| self.ask_holding(l2, key, class));
        let uses = header.frequency().count(self.policy.now()) + u32::from(state.has(MARK));
        let is_clock = state.list() == Some(List::Mru) && !self.policy.rule(class).admission;
        let exit = Exit {
            cause: MissCause::Evicted,
            list: state.list(),
            now_ns: self.clock.now_ns(),
            stored: holding == Some(Holding::Stored),
            reused: uses > READ_AHEAD_USES,
            passed_often: uses > 1,
            clock_bytes: is_clock.then(|| self.capacity.target()),
        };
        let block = RecordedBlock { owner: self.owner_of(key), label: 0, class };
        let weight = header.weight();
        let may_store = matches!(holding, Some(Holding::Stored | Holding::NotStored));
        // Blocks hinted `Once` are not offered.
        let may_store = may_store && state.list() != Some(List::Once);
        self.recorder.record_in_any(hash, |log, key| {
            if may_store {
                log.secondary.evicted(key, weight);
            }
            if log.records(key) {
                log.leave(key, block, weight, exit);
            }
        });
    }

    /// A block leaves for another reason than capacity.
    pub(crate) fn record_removal(&self, key: &K, class: Class, weight: u32, cause: Cause) {
        if !self.recorder.is_open() {
            return;
        }
        let hash = self.rehash(key);
        if !self.recorder.samples_any(hash) {
            return;
        }
        let is_outdated = matches!(cause, Cause::Removed | Cause::Replaced | Cause::Expired);
        let cause = match cause {
            Cause::Removed | Cause::Replaced => MissCause::Invalidated,
            Cause::Expired => MissCause::Expired,
            _ => MissCause::Flushed,
        };
        let now_ns = self.clock.now_ns();
        let exit = Exit::uncached(cause, now_ns);
        let block = RecordedBlock { owner: self.owner_of(key), label: 0, class };
        self.recorder.record_in_any(hash, |log, key| {
            if is_outdated {
                log.secondary.removed(key);
            }
            if log.records(key) {
                log.leave(key, block, weight, exit);
            }
        });
    }

    /// Now and then, begins a new window, so that explanations of short times are exact, and
    /// advances the sums of the secondary cache's sizes.
    pub(crate) fn advance_recorder(&self, now_ns: u64) {
        if !self.recorder.is_open() {
            return;
        }
        let capacity = self.secondary_capacity();
        let mut log = self.recorder.log.lock();
        if let Some(log) = log.as_deref_mut() {
            log.windows.advance(now_ns, self.capacity.target(), || self.totals());
            self.advance_secondary(log, capacity);
        }
    }

    fn advance_secondary(&self, log: &mut Log, capacity: u64) {
        if capacity == 0 && log.secondary.capacity() == 0 {
            return;
        }
        log.secondary.keep_to(self.secondary_budget());
        log.secondary.set_capacity(capacity);
        log.secondary.advance(self.secondary_totals());
        self.recorder.set_masks(Some(log));
    }

    /// Memory that the simulated sizes of the secondary cache may take.
    fn secondary_budget(&self) -> u64 {
        InsightBudget::of(self.bound.as_ref(), true).secondary()
    }

    /// Bytes that the secondary cache can hold; 0 if there is none or if it does not know.
    fn secondary_capacity(&self) -> u64 {
        let Some(secondary) = self.active_secondary() else { return 0 };
        let asked = catch_unwind(AssertUnwindSafe(|| secondary.capacity_bytes()));
        asked.unwrap_or_else(|_| self.note_panic()).unwrap_or(0)
    }

    fn secondary_totals(&self) -> SecondaryTotals {
        let sum = |row: Counter| Class::ALL.map(|class| self.counters.sum(row.at(class as usize)));
        let hits = [
            CacheCounters::HITS_NEW,
            CacheCounters::HITS_MRU,
            CacheCounters::HITS_MFU,
            CacheCounters::HITS_ONCE,
        ];
        SecondaryTotals {
            now_ns: self.clock.now_ns(),
            hits: hits.map(sum).into_iter().fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]),
            misses: sum(CacheCounters::MISSES),
            served: sum(CacheCounters::SECONDARY_HITS),
        }
    }

    /// Asks the secondary cache. A panic in it is caught and counted.
    fn ask_holding(
        &self,
        secondary: &dyn SecondaryCache<K, V>,
        key: &K,
        class: Class,
    ) -> Option<Holding> {
        let asked = catch_unwind(AssertUnwindSafe(|| secondary.holding(key, class)));
        asked.unwrap_or_else(|_| self.note_panic())
    }

    fn note_panic<T>(&self) -> Option<T> {
        self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        None
    }

    fn totals(&self) -> Totals {
        let counters = self.counters.snapshot();
        let sum = |wanted: &dyn Fn(&str) -> bool| {
            counters.iter().filter(|c| wanted(c.name)).map(|c| c.value).sum()
        };
        Totals {
            now_ns: self.clock.now_ns(),
            hits: sum(&|name| name.starts_with("hits_")),
            misses: sum(&|name| name == "misses"),
            target: self.capacity.target(),
        }
    }
}

fn block(owner: OwnerId, attributes: Attributes) -> RecordedBlock {
    RecordedBlock { owner, label: attributes.label, class: attributes.class }
}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Opens the flight recorder, or closes it and forgets what it has. The blocks and misses that
    /// it remembers take at most 4 MiB, which count as overhead. What
    /// [`secondary_curve`](Self::secondary_curve) comes from is part of the memory for curves.
    ///
    /// An open recorder makes [`explain`](Self::explain) answer.
    pub fn record(&self, open: bool) {
        let inner = self.inner();
        let log = open.then(|| {
            let start = inner.totals();
            let seed = inner.hasher.hash_one(start.now_ns);
            let secondary = SecondarySizes::new(inner.secondary_budget());
            let mut log = Box::new(Log::new(Windows::new(start, seed), secondary, seed));
            log.secondary.set_capacity(inner.secondary_capacity());
            log.secondary.advance(inner.secondary_totals());
            log
        });
        inner.recorder.set(log);
    }

    /// What a smaller or larger secondary cache would have served over the last minutes. `None` if
    /// there is none, if it does not tell its [capacity](SecondaryCache::capacity_bytes), or if the
    /// recorder is closed.
    ///
    /// It comes from the blocks that left memory and those that were missed, of a sample. With a
    /// hard bound of less than 5 MiB there is no memory for that, and the answer is `None`.
    pub fn secondary_curve(&self) -> Option<SecondaryCurve> {
        let inner = self.inner();
        let capacity = inner.secondary_capacity();
        let mut log = inner.recorder.log.lock();
        let log = log.as_mut()?;
        inner.advance_secondary(log, capacity);
        log.secondary.curve()
    }

    /// Explains the misses of the last `since`, or `None` if the recorder is closed. The time is
    /// rounded to half minutes, and at most twenty minutes are remembered.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u64>::builder().capacity(100).weigher(|_, _| 1).build()?;
    /// cache.record(true);
    /// for key in (0..1000).cycle().take(10_000) {
    ///     cache.get_or_load(key, || Ok::<_, std::io::Error>(key))?;
    /// }
    /// let explanation = cache.explain(std::time::Duration::from_secs(600)).unwrap();
    /// println!("{explanation}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, since: Duration) -> Option<Explanation> {
        self.explain_where(since, |_, _| true)
    }

    /// The recorded misses of the last `since`, oldest first; none if the recorder is closed. A
    /// sampled block stands for others, and in a time with many misses so does a miss: see
    /// [`MissEvent::stands_for`]. They are copied under the lock of the recorder.
    pub fn events(&self, since: Duration) -> impl Iterator<Item = MissEvent> + use<K, V> {
        let inner = self.inner();
        let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let from_ns = inner.clock.now_ns().saturating_sub(since_ns);
        let log = inner.recorder.log.lock();
        let events = log.as_ref().map(|log| events::since(&log.windows, from_ns));
        events.unwrap_or_default().into_iter()
    }

    /// Does the same for the blocks of which `wanted` is true: it gets their owner and label.
    pub fn explain_where(
        &self,
        since: Duration,
        wanted: impl Fn(OwnerId, u64) -> bool,
    ) -> Option<Explanation> {
        let inner = self.inner();
        let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let totals = inner.totals();
        let evidence = {
            let mut log = inner.recorder.log.lock();
            let log = log.as_mut()?;
            log.windows.advance(totals.now_ns, totals.target, || totals);
            Evidence::of(log, totals.now_ns.saturating_sub(since_ns))
        };
        // The caller's code runs without the lock.
        Some(Explanation::of(evidence, totals, wanted))
    }
}
