//! Metrics of the block cache.

use forebay_cache::Class;
use forebay_metrics::Snapshot;
use forebay_pool::BlockCache;

use super::super::stats;

/// Lengths of sublists, in parts of the mean.
const SUBLIST_LENGTHS: [(f64, &str); 8] = [
    (0.5, "0.5"),
    (0.75, "0.75"),
    (0.9, "0.9"),
    (1.1, "1.1"),
    (1.25, "1.25"),
    (1.5, "1.5"),
    (2.0, "2"),
    (f64::INFINITY, "+Inf"),
];

pub(super) fn add(cache: &BlockCache, out: &mut Snapshot) {
    let usage = cache.cache().usage();
    out.counters("cache", &usage.counters, &[]);
    let bytes = [
        (
            "forebay_cache_bound_bytes",
            "Bound of the cache, dirty data included.",
            cache.bound_bytes(),
        ),
        ("forebay_cache_dirty_bytes", "Dirty data of all pools in memory.", cache.dirty_bytes()),
        ("forebay_cache_target_bytes", "Bytes that the cache should hold, c.", usage.capacity),
        (
            "forebay_cache_metadata_target_bytes",
            "What metadata may take of the target before it gives way to data. Data takes what \
             metadata leaves unused.",
            usage.metadata_target,
        ),
    ];
    for (name, help, value) in bytes {
        out.gauge(name, help, &[], value as f64);
    }
    for (class, p) in Class::ALL.into_iter().zip(usage.p) {
        let help = "Bytes of a class that are meant for MRU, p.";
        out.gauge("forebay_cache_mru_target_bytes", help, &[("class", name(class))], p as f64);
    }
    for state in &usage.states {
        let labels = [("state", state.state), ("class", name(state.class))];
        let help =
            "Bytes of cached blocks by state; for ghosts, of the blocks that they stand for.";
        out.gauge("forebay_cache_size_bytes", help, &labels, state.bytes as f64);
        let help = "Cached blocks or ghosts by state.";
        out.gauge("forebay_cache_blocks", help, &labels, state.blocks as f64);
        sublists(state, labels, out);
    }
    let help = "Waits of inserters for capacity.";
    out.durations("forebay_cache_throttle_wait_seconds", help, &[], &usage.throttle_wait_ns);
}

/// How evenly the blocks of a list are spread: sublists by their length in parts of the mean.
fn sublists(
    state: &forebay_cache::StateStats,
    labels: [(&'static str, &str); 2],
    out: &mut Snapshot,
) {
    let lengths = stats::sublists(state);
    let mean = lengths.iter().sum::<u64>() as f64 / lengths.len().max(1) as f64;
    if mean == 0.0 {
        return;
    }
    for (most, of_mean) in SUBLIST_LENGTHS {
        let within = lengths.iter().filter(|length| **length as f64 <= most * mean).count();
        let labels = [labels[0], labels[1], ("of_mean", of_mean)];
        let help = "Sublists of a list with at most so many times the mean number of blocks.";
        out.gauge("forebay_cache_sublists", help, &labels, within as f64);
    }
}

fn name(class: Class) -> &'static str {
    match class {
        Class::Metadata => "metadata",
        Class::Data => "data",
    }
}
