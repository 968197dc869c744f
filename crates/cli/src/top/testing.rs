//! Samples for the tests of this folder: a daemon under a steady load.

use std::collections::BTreeMap;

use forebay_base::histogram::AtomicHistogram;

use crate::control::messages::{
    CacheStateStats, CacheStats, ExplainedBlocks, MountStats, PoolStats,
};
use crate::control::sample::{
    DeviceRequests, DeviceSample, Latency, MissesSample, MountSample, OperationSample, PoolSample,
    ProcessSample, TxgInfo, TxgsSample,
};

/// Reads of each dataset in a second.
pub(crate) const READS: u64 = 1000;

/// `count` durations of 10 µs, of which one in fifty took 2 ms.
fn latency(count: u64) -> Latency {
    let histogram = AtomicHistogram::new();
    for at in 0..count {
        histogram.record(if at % 50 == 0 { 2_000_000 } else { 10_000 });
    }
    (&histogram.snapshot()).into()
}

fn counters(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A daemon with these pools, `second` seconds after it has started.
pub(crate) fn sample(pid: u32, pools: &[(&str, u64)], second: u64) -> ProcessSample {
    let state = |state: &str, class: &str, mib: u64| CacheStateStats {
        state: state.to_owned(),
        class: class.to_owned(),
        bytes: mib << 20,
        blocks: 8 * mib,
        sublists: Vec::new(),
    };
    let cache = CacheStats {
        bound_bytes: 256 << 20,
        hits: 1000 * second,
        metadata_bytes: 20 << 20,
        data_bytes: 44 << 20,
        states: vec![
            state("mru", "metadata", 4),
            state("mru", "data", 12),
            state("mfu", "metadata", 16),
            state("mfu", "data", 32),
            state("mru_ghost", "data", 7),
        ],
        counters: counters(&[
            ("hits_mfu.data", 800 * second),
            ("misses.data", 100 * second),
            ("hits_mru.metadata", 200 * second),
            ("evicted_mru.data", 50 * second),
            ("evicted_mru.metadata", 10 * second),
            ("evicted_under.mru_1", 60 * second),
            ("left.capacity", 60 * second),
            ("left.closed", 0),
        ]),
        ..CacheStats::default()
    };
    ProcessSample {
        pid,
        at_ns: second * 1_000_000_000,
        memory_bytes: 1 << 30,
        resident_bytes: 300 << 20,
        cache,
        pools: pools.iter().map(|(name, guid)| pool(name, *guid, second)).collect(),
    }
}

fn pool(name: &str, guid: u64, second: u64) -> PoolSample {
    let requests = |request: &str, per_second: u64| DeviceRequests {
        request: request.to_owned(),
        in_flight: 3,
        failed: 0,
        bytes: (per_second * second) << 12,
        latency: latency(per_second * second),
    };
    PoolSample {
        guid,
        stats: PoolStats {
            name: name.to_owned(),
            txg: 100 + second,
            total_bytes: 1 << 30,
            allocated_bytes: 400 << 20,
            available_bytes: 600 << 20,
            dirty_bytes: 5 << 20,
            counters: counters(&[("reads.miss", 100 * second)]),
            ..PoolStats::default()
        },
        mounts: vec![mount(name, "main", second), mount(name, "busy", 2 * second)],
        devices: vec![DeviceSample {
            path: format!("/dev/{name}.img"),
            l2: false,
            requests: vec![requests("read", 400), requests("write", 100)],
        }],
        txgs: TxgsSample {
            count: second,
            phases: ["quiesce", "readers", "objects", "writes", "space", "flush", "uberblock"]
                .map(str::to_owned)
                .to_vec(),
            phase_ns: (1..=7).map(|phase| phase * second * 1_000_000).collect(),
            newest: (1..=second.min(64)).map(txg).collect(),
        },
        misses: MissesSample {
            span_ns: 30_000_000_000,
            misses: 3000,
            blocks: vec![
                missed("directory /mail of tank/main", 0.75),
                missed("file /big of tank/main", 0.25),
            ],
        },
    }
}

fn missed(name: &str, share: f64) -> ExplainedBlocks {
    let (name, class) = (name.to_owned(), "data".to_owned());
    ExplainedBlocks { name, class, share, used_once: 0.5, bytes: 1 << 20 }
}

fn txg(number: u64) -> TxgInfo {
    TxgInfo {
        txg: 100 + number,
        open_ns: 972_000_000,
        dirty_bytes: 5 << 20,
        written_bytes: 6 << 20,
        phase_ns: (1..=7).map(|phase| phase * 1_000_000).collect(),
    }
}

fn mount(pool: &str, dataset: &str, units: u64) -> MountSample {
    let reads = READS * units;
    MountSample {
        stats: MountStats {
            pool: pool.to_owned(),
            dataset: dataset.to_owned(),
            at: format!("/srv/{dataset}").into(),
            operations: reads,
            read_bytes: reads << 12,
            counters: counters(&[("requests.read", reads), ("would_block.read", reads / 10)]),
            ..MountStats::default()
        },
        operations: vec![OperationSample { operation: "read".to_owned(), latency: latency(reads) }],
    }
}
