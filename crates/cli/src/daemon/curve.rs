//! Converts the miss-ratio curve of the cache to a message.

use forebay_cache::{Class, CurvePoint};

use super::Daemon;
use crate::control::messages::{CurvePointInfo, CurveReport};

/// The curve of the daemon's cache.
pub(crate) fn report(daemon: &Daemon) -> CurveReport {
    let curve = daemon.cache.cache().curve();
    let ratio = |class: Class, n: usize| {
        let point: &CurvePoint = curve.by_class[class as usize].get(n)?;
        (point.accesses >= 1.0).then(|| point.hit_ratio())
    };
    let point = |(n, point): (usize, &CurvePoint)| CurvePointInfo {
        percent: point.percent,
        capacity_bytes: point.capacity,
        memory_bytes: daemon.plan.memory_for(point.percent),
        hit_ratio: point.hit_ratio(),
        metadata_hit_ratio: ratio(Class::Metadata, n),
        data_hit_ratio: ratio(Class::Data, n),
        misses: point.misses,
        misses_error: point.error,
        full: point.full,
    };
    CurveReport {
        pid: std::process::id(),
        memory_bytes: daemon.plan.total_bytes,
        capacity_bytes: curve.capacity,
        seconds: curve.seconds,
        busy_seconds: curve.busy_seconds,
        accesses: curve.points.first().map_or(0.0, |point| point.accesses),
        load_ns: curve.load_ns,
        points: curve.points.iter().enumerate().map(point).collect(),
        advice: Vec::new(),
    }
}
