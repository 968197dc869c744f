//! Figures of the cache: hits by level and class, lists, and what left it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Amount, Samples, counter, grown};
use crate::control::messages::{CacheStats, MemoryHits};
use crate::control::sample::PoolSample;

/// Figures of the cache in memory of a daemon, and of the L2 devices of one of its pools.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CacheSummary {
    pub(crate) bound_bytes: u64,
    pub(crate) metadata_bytes: u64,
    pub(crate) data_bytes: u64,
    /// Bytes that metadata may have before data.
    pub(crate) metadata_target_bytes: u64,
    /// Dirty bytes of all pools of the daemon.
    pub(crate) dirty_bytes: u64,
    /// Bytes that the L2 devices of the pool hold.
    pub(crate) l2_bytes: u64,
    /// Requests for blocks that found them in memory. A block that was read from a device or an L2
    /// device, on request or ahead of it, does not count as found at its first use.
    pub(crate) memory: Hits,
    /// Of what was not in memory: lookups in the pool's L2 devices.
    pub(crate) l2: Hits,
    /// Blocks that the pool read from its devices, on request and ahead of it.
    pub(crate) device_reads: Amount,
    pub(crate) device_prefetches: Amount,
    /// The same as `memory`, by class.
    pub(crate) metadata: Hits,
    pub(crate) data: Hits,
    pub(crate) states: Vec<StateSummary>,
    /// Loads of blocks that the cache had evicted and remembered, by ghost list.
    pub(crate) ghost_hits: BTreeMap<String, Amount>,
    /// Blocks evicted, by the list they were in.
    pub(crate) evicted: BTreeMap<String, Amount>,
    /// Blocks that left, by cause.
    pub(crate) left: BTreeMap<String, Amount>,
    /// Blocks that were not cached, by cause.
    pub(crate) refused: BTreeMap<String, Amount>,
}

/// Blocks and bytes of a list of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StateSummary {
    /// `mru`, `mfu`, `once`, `mru_ghost` or `mfu_ghost`.
    pub(crate) state: String,
    /// `metadata` or `data`.
    pub(crate) class: String,
    pub(crate) blocks: u64,
    /// For ghosts: bytes that their blocks had.
    pub(crate) bytes: u64,
}

/// Requests, those that found what they wanted, and the ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Hits {
    pub(crate) requests: Amount,
    pub(crate) hits: Amount,
    /// Hits divided by requests, between the samples; none without requests.
    pub(crate) ratio: Option<f64>,
    /// The same since the start.
    pub(crate) total_ratio: Option<f64>,
}

impl Hits {
    /// From requests and hits, now and before.
    fn of(requests: (u64, Option<u64>), hits: (u64, Option<u64>), seconds: f64) -> Self {
        let ratio = |hits: u64, of: u64| (of > 0).then(|| hits as f64 / of as f64);
        Self {
            requests: Amount::of(requests.0, requests.1, seconds),
            hits: Amount::of(hits.0, hits.1, seconds),
            ratio: ratio(grown(hits.0, hits.1), grown(requests.0, requests.1)),
            total_ratio: ratio(hits.0, requests.0),
        }
    }
}

pub(super) fn summary(
    samples: &Samples<'_>,
    pool: &PoolSample,
    before: Option<&PoolSample>,
) -> CacheSummary {
    let seconds = samples.seconds();
    let (now, then) = (&samples.now.cache, &samples.before.cache);
    let amount = |of: u64, was: Option<u64>| Amount::of(of, was, seconds);
    let named = |prefix: &str| by_label(now, then, prefix, seconds);
    let reads = |cause: &str| {
        let name = format!("reads.{cause}");
        amount(counter(Some(pool), &name).unwrap_or(0), counter(before, &name))
    };
    CacheSummary {
        bound_bytes: now.bound_bytes,
        metadata_bytes: now.metadata_bytes,
        data_bytes: now.data_bytes,
        metadata_target_bytes: now.metadata_target_bytes,
        dirty_bytes: now.dirty_bytes,
        l2_bytes: pool.stats.l2_devices.iter().map(|device| device.used_bytes).sum(),
        memory: memory_hits(now, then, &["metadata", "data"], seconds),
        l2: l2_hits(pool, before, seconds),
        device_reads: reads("miss"),
        device_prefetches: reads("prefetch"),
        metadata: memory_hits(now, then, &["metadata"], seconds),
        data: memory_hits(now, then, &["data"], seconds),
        states: states(now),
        ghost_hits: named("ghost_hits_"),
        evicted: named("evicted_"),
        left: named("left."),
        refused: named("refused_"),
    }
}

fn states(cache: &CacheStats) -> Vec<StateSummary> {
    let summary = |state: &crate::control::messages::CacheStateStats| StateSummary {
        state: state.state.clone(),
        class: state.class.clone(),
        blocks: state.blocks,
        bytes: state.bytes,
    };
    cache.states.iter().map(summary).collect()
}

fn l2_hits(pool: &PoolSample, before: Option<&PoolSample>, seconds: f64) -> Hits {
    let sums = |pool: &PoolSample| {
        let devices = &pool.stats.l2_devices;
        let lookups: u64 = devices.iter().map(|device| device.lookups).sum();
        (lookups, devices.iter().map(|device| device.hits).sum::<u64>())
    };
    let (lookups, hits) = sums(pool);
    let then = before.map(sums);
    Hits::of((lookups, then.map(|then| then.0)), (hits, then.map(|then| then.1)), seconds)
}

/// Hits in memory of a class, or of both.
fn memory_hits(now: &CacheStats, before: &CacheStats, classes: &[&str], seconds: f64) -> Hits {
    let sum = |cache: &CacheStats, names: &[&str]| -> u64 {
        let of = |name: &&str| -> u64 {
            let value = |class: &&str| cache.counters.get(&format!("{name}.{class}"));
            classes.iter().filter_map(value).sum()
        };
        names.iter().map(of).sum()
    };
    let counts = |names: &[&str]| (sum(now, names), sum(before, names));
    let hits = counts(&["hits_new", "hits_mru", "hits_mfu", "hits_once"]);
    let loads = counts(&["misses"]);
    let total = MemoryHits::of(hits.0, loads.0);
    // Not the growth of what was found: that shrinks while loads have begun and not ended.
    let between = MemoryHits::of(grown(hits.0, Some(hits.1)), grown(loads.0, Some(loads.1)));
    let amount = |total, between| Amount {
        total,
        per_second: if seconds > 0.0 { between as f64 / seconds } else { 0.0 },
    };
    let ratio = |of: MemoryHits| (of.wanted > 0).then(|| of.found as f64 / of.wanted as f64);
    Hits {
        requests: amount(total.wanted, between.wanted),
        hits: amount(total.found, between.found),
        ratio: ratio(between),
        total_ratio: ratio(total),
    }
}

/// Counters whose name begins with `prefix`, by the rest of the name, both classes together.
fn by_label(
    now: &CacheStats,
    before: &CacheStats,
    prefix: &str,
    seconds: f64,
) -> BTreeMap<String, Amount> {
    let sums = |cache: &CacheStats| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (name, value) in &cache.counters {
            let Some(rest) = name.strip_prefix(prefix) else { continue };
            let rest =
                rest.strip_suffix(".metadata").or(rest.strip_suffix(".data")).unwrap_or(rest);
            // `evicted_under` splits the same blocks by rule.
            if !rest.contains('.') {
                *sums.entry(rest.to_owned()).or_default() += value;
            }
        }
        sums
    };
    let then = sums(before);
    let amount = |(name, value): (String, u64)| {
        let was = then.get(&name).copied();
        (name, Amount::of(value, was, seconds))
    };
    sums(now).into_iter().map(amount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of requests that `found` their block in memory, and of others, whose loads have
    /// `ended` or not.
    fn cache(found: u64, loads: u64, ended: u64) -> CacheStats {
        let counters = [("hits_mru.data", found + ended), ("misses.data", loads)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        CacheStats { counters, ..CacheStats::default() }
    }

    /// Whatever serves a load, a device or an L2 device: its block was not in memory.
    #[test]
    fn a_loaded_block_is_missed_once_and_found_by_later_requests() {
        let both = &["metadata", "data"][..];
        for classes in [both, &["data"]] {
            let hits = memory_hits(&cache(40, 160, 160), &cache(10, 90, 90), classes, 2.0);
            assert_eq!((hits.ratio, hits.total_ratio), (Some(0.3), Some(0.2)));
            assert_eq!((hits.requests.per_second, hits.hits.per_second), (50.0, 15.0));
            assert_eq!((hits.requests.total, hits.hits.total), (200, 40));
        }
        let hits = memory_hits(&cache(40, 160, 160), &cache(10, 90, 90), &["metadata"], 2.0);
        assert_eq!((hits.ratio, hits.total_ratio), (None, None));
        // Loads that have begun and not ended: nothing was found, and no count starts again.
        let hits = memory_hits(&cache(40, 260, 160), &cache(40, 160, 160), both, 1.0);
        assert_eq!((hits.ratio, hits.hits.per_second), (Some(0.0), 0.0));
        assert_eq!(hits.requests.per_second, 100.0);
    }
}
