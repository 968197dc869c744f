//! Metrics of the block cache.

use forebay_cache::Class;
use forebay_metrics::Snapshot;
use forebay_pool::BlockCache;

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
            "Part of the target that is for metadata. The rest is for data.",
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
    }
    let help = "Waits of inserters for capacity.";
    out.durations("forebay_cache_throttle_wait_seconds", help, &[], &usage.throttle_wait_ns);
}

fn name(class: Class) -> &'static str {
    match class {
        Class::Metadata => "metadata",
        Class::Data => "data",
    }
}
