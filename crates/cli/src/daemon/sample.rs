//! Samples of everything that a daemon counts and measures.

use forebay_base::histogram::HistogramSnapshot;
use forebay_io::metrics::Metrics;
use forebay_pool::{Pool, TxgPhase, TxgRecord};

use super::{Daemon, ImportedPool, MountedDataset, stats};
use crate::control::sample::{
    DeviceRequests, DeviceSample, MissesSample, MountSample, OperationSample, PoolSample,
    ProcessSample, TxgInfo, TxgsSample,
};

/// A sample of the whole process.
pub(crate) fn process(daemon: &Daemon) -> ProcessSample {
    ProcessSample {
        pid: std::process::id(),
        at_ns: stats::uptime_ns(daemon),
        memory_bytes: daemon.plan.total_bytes,
        resident_bytes: forebay_base::memory::rss_bytes().unwrap_or(0),
        cache: stats::cache_stats(&daemon.cache),
        pools: daemon.pools().iter().map(|imported| pool(imported)).collect(),
    }
}

fn pool(imported: &ImportedPool) -> PoolSample {
    let pool = &imported.pool();
    PoolSample {
        guid: pool.guid(),
        stats: stats::pool_stats(pool),
        mounts: imported.mounts().iter().map(|mounted| mount(mounted)).collect(),
        devices: devices(pool),
        txgs: txgs(pool),
        misses: MissesSample::default(),
    }
}

fn mount(mounted: &MountedDataset) -> MountSample {
    let operations = mounted.mount_latencies().into_iter().map(|measured| OperationSample {
        operation: measured.operation.to_owned(),
        latency: (&measured.latency_ns).into(),
    });
    MountSample { stats: stats::mount_stats(mounted), operations: operations.collect() }
}

fn devices(pool: &Pool) -> Vec<DeviceSample> {
    let members = pool.devices().into_iter().filter(|device| !device.missing);
    let members = members.map(|device| (device.path, false, device.io));
    let l2 = pool.l2_devices().into_iter();
    let l2 = l2.filter_map(|device| Some((device.path, true, device.io?)));
    let sample = |(path, l2, io)| DeviceSample { path, l2, requests: requests(&io) };
    members.chain(l2).map(sample).collect()
}

/// Requests by their kind, of all priorities together. Kinds that never occurred are left out.
fn requests(io: &Metrics) -> Vec<DeviceRequests> {
    let mut kinds: Vec<(DeviceRequests, HistogramSnapshot)> = Vec::new();
    for row in io.rows().iter().filter(|row| row.latency_ns.count + row.in_flight > 0) {
        let request = row.op.name();
        let at = kinds.iter().position(|(kind, _)| kind.request == request).unwrap_or_else(|| {
            let kind = DeviceRequests { request: request.to_owned(), ..DeviceRequests::default() };
            kinds.push((kind, HistogramSnapshot::empty()));
            kinds.len() - 1
        });
        let (kind, latency) = &mut kinds[at];
        kind.in_flight += row.in_flight;
        kind.failed += row.failed;
        kind.bytes += row.bytes;
        latency.merge(&row.latency_ns);
    }
    let finished = |(kind, latency): (DeviceRequests, HistogramSnapshot)| DeviceRequests {
        latency: (&latency).into(),
        ..kind
    };
    kinds.into_iter().map(finished).collect()
}

fn txgs(pool: &Pool) -> TxgsSample {
    let history = pool.stats().txgs;
    let info = |record: &TxgRecord| TxgInfo {
        txg: record.txg,
        open_ns: record.open_ns,
        dirty_bytes: record.dirty_bytes,
        written_bytes: record.written_bytes,
        phase_ns: record.phase_ns.to_vec(),
    };
    TxgsSample {
        count: history.count,
        phases: TxgPhase::ALL.map(|phase| phase.name().to_owned()).to_vec(),
        phase_ns: history.phase_ns.to_vec(),
        newest: history.newest.iter().map(info).collect(),
    }
}
