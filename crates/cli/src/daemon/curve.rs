//! Converts the miss-ratio curves of the cache and of L2 to a message.
//!
//! The curve does not know whose the blocks are. What larger sizes would save of each dataset comes
//! from the flight recorder: it knows how much each missed block lacked.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_cache::{Class, Curve, CurvePoint, OwnerCurve, OwnerId, SecondaryCurve};

use super::{Daemon, explain};
use crate::control::messages::{
    self, CurvePointInfo, CurveReport, DatasetSavings, L2CurveReport, L2PointInfo,
};

/// The recorded misses that are looked at, about those of the curve.
const RECENT: Duration = Duration::from_secs(180);

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
        datasets: datasets(daemon, &curve),
        l2: daemon.cache.cache().secondary_curve().map(|curve| l2(daemon, &curve)),
        advice: Vec::new(),
    }
}

/// The curve of L2.
fn l2(daemon: &Daemon, curve: &SecondaryCurve) -> L2CurveReport {
    let point = |(n, point): (usize, &CurvePoint)| L2PointInfo {
        percent: point.percent,
        capacity_bytes: point.capacity,
        hit_ratio: curve.hit_ratio(point),
        of_misses: point.hit_ratio(),
        metadata_hit_ratio: curve.hit_ratio_of(Class::Metadata, n),
        data_hit_ratio: curve.hit_ratio_of(Class::Data, n),
        misses: point.misses,
        misses_error: point.error,
        full: point.full,
    };
    let seconds = curve.seconds.max(1e-3);
    let dataset = |of: &OwnerCurve| {
        let today = of.points.iter().find(|point| point.percent == 100)?;
        let larger = of.points.iter().filter(|point| point.percent > 100);
        let saved = |point: &CurvePoint| (today.misses - point.misses).max(0.0) / seconds;
        Some(DatasetSavings {
            name: explain::owner_name(daemon, of.owner),
            class: messages::snake_case(of.class),
            misses_per_s: today.misses / seconds,
            saved_per_s: larger.map(|point| (point.percent, saved(point))).collect(),
        })
    };
    let mut datasets: Vec<DatasetSavings> = curve.by_owner.iter().filter_map(dataset).collect();
    datasets.sort_by(|one, two| two.misses_per_s.total_cmp(&one.misses_per_s));
    L2CurveReport {
        capacity_bytes: curve.capacity,
        seconds: curve.seconds,
        asked: curve.points.first().map_or(0.0, |point| point.accesses),
        points: curve.points.iter().enumerate().map(point).collect(),
        datasets,
    }
}

/// What larger sizes would save, by dataset and class, those with most misses first.
fn datasets(daemon: &Daemon, curve: &Curve) -> Vec<DatasetSavings> {
    let seconds = RECENT.min(daemon.started.elapsed()).as_secs_f64().max(1e-3);
    let larger: Vec<&CurvePoint> =
        curve.points.iter().filter(|point| point.percent > 100).collect();
    let mut sums: BTreeMap<(OwnerId, bool), (f64, Vec<f64>)> = BTreeMap::new();
    for event in daemon.cache.cache().events(RECENT) {
        let group = (event.owner, event.class == Class::Data);
        let (misses, saved) = sums.entry(group).or_insert_with(|| (0.0, vec![0.0; larger.len()]));
        *misses += event.stands_for;
        for (saved, point) in saved.iter_mut().zip(&larger) {
            let more = point.capacity.saturating_sub(curve.capacity);
            if event.lacking > 0 && event.lacking <= more {
                *saved += event.stands_for;
            }
        }
    }
    let row = |((owner, is_data), (misses, saved)): ((OwnerId, bool), (f64, Vec<f64>))| {
        let class = if is_data { Class::Data } else { Class::Metadata };
        let of_point = larger.iter().zip(saved);
        DatasetSavings {
            name: explain::owner_name(daemon, owner),
            class: messages::snake_case(class),
            misses_per_s: misses / seconds,
            saved_per_s: of_point.map(|(point, sum)| (point.percent, sum / seconds)).collect(),
        }
    };
    let mut rows: Vec<DatasetSavings> = sums.into_iter().map(row).collect();
    rows.sort_by(|one, two| two.misses_per_s.total_cmp(&one.misses_per_s));
    rows
}
