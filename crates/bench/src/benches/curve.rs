//! `sim --curve`: the miss-ratio curve that a cache measures of itself, compared with simulations
//! of caches of its sizes. `sim --secondary-curve`: the same for its secondary cache.
//!
//! A cache of each capacity replays the trace once and is then asked for its curve. A run of the
//! simulator at the capacity of each point is the truth.

use std::sync::Arc;

use forebay_cache::{Attributes, Curve, CurvePoint};
use forebay_sim::cache::capacity::Capacity;
use forebay_sim::cache::policies::forebay::Forebay;
use forebay_sim::cache::run::{NamedPolicy, SimError};
use forebay_sim::cache::trace::Trace;
use forebay_sim::cache::two_levels::TwoLevels;

use super::sim::{Args, Job, NAME, in_parallel, run_all, traces};
use crate::options::{Common, Failure};
use crate::report::Record;

pub(super) const SUBJECT: &str = "curve";
const CAPACITY: Capacity = Capacity::Percent(10.0);
/// The part of the second level's capacity that memory has.
const MEMORY_PART: usize = 4;

/// Measures the curves of all traces, and the truth.
pub(super) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let player = NamedPolicy::named("forebay").ok_or("the simulator has no Forebay")?;
    let mut records = Vec::new();
    for (trace, capacity) in cases(common, args)? {
        let curve = measured(&trace, capacity, common.seed)?;
        let job = |capacity: u64| Job { trace: trace.clone(), capacity: capacity as usize, player };
        let jobs: Vec<Job> = curve.points.iter().map(|point| job(point.capacity)).collect();
        let truth = run_all(&jobs, common.seed)?;
        let rows = curve.points.iter().zip(truth);
        records.extend(rows.map(|(point, truth)| {
            record(&trace, capacity, (point, point.hit_ratio()), truth.hit_ratio())
        }));
    }
    Ok(records)
}

/// Measures the curves of secondary caches, and the truth. Hit ratios are those of both levels.
pub(super) fn run_secondary(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let mut records = Vec::new();
    for (trace, second) in cases(common, args)? {
        let memory = (second / MEMORY_PART).max(1);
        let (cache, _) = TwoLevels::replay(&trace, (memory, second), common.seed)?;
        let curve = cache.cache().secondary_curve().ok_or("the cache has no such curve")?;
        drop(cache);
        let truth = in_parallel(&curve.points, |point| {
            let sizes = (memory, point.capacity as usize);
            TwoLevels::replay(&trace, sizes, common.seed).map(|(_, outcome)| outcome)
        })?;
        records.extend(curve.points.iter().zip(truth).map(|(point, truth)| {
            record(&trace, second, (point, curve.hit_ratio(point)), truth.hit_ratio())
                .figure("of_misses", point.hit_ratio())
                .figure("of_misses_error", point.hit_ratio() - truth.second_hit_ratio())
        }));
    }
    Ok(records)
}

/// The traces, each with a capacity.
fn cases(common: &Common, args: &Args) -> Result<Vec<(Arc<Trace>, usize)>, Failure> {
    let mut cases = Vec::new();
    for (trace, own_capacities) in traces(common, args)? {
        // Synthetic traces are made for a capacity.
        let own = if own_capacities.len() == 1 { own_capacities } else { &[CAPACITY][..] };
        let asked = if args.capacity.is_empty() { own } else { &args.capacity[..] };
        let entries = asked.iter().map(|capacity| capacity.entries(&trace));
        cases.extend(entries.map(|entries| (trace.clone(), entries)));
    }
    Ok(cases)
}

fn record(trace: &Trace, today: usize, (point, ratio): (&CurvePoint, f64), truth: f64) -> Record {
    Record::new(NAME, SUBJECT, 1)
        .param("trace", trace.name())
        .param("today", today as u64)
        .param("capacity", point.capacity)
        .figure("hit_ratio", ratio)
        .figure("simulated_hit_ratio", truth)
        .figure("curve_error", ratio - truth)
}

/// The curve of a cache of that capacity, after the trace.
fn measured(trace: &Trace, capacity: usize, seed: u64) -> Result<Curve, SimError> {
    let mut cache = Forebay::new(capacity, seed).map_err(SimError::Build)?;
    for key in trace.accesses() {
        let metadata = trace.is_metadata(*key);
        let attributes = if metadata { Attributes::METADATA } else { Attributes::DATA };
        cache.access(u64::from(*key), attributes).map_err(SimError::Refused)?;
    }
    Ok(cache.cache().curve())
}

/// The mean and the largest error of each trace, and of all.
pub(super) fn summary(records: &[Record]) -> Vec<Record> {
    let errors = |of: &[&Record]| -> Vec<f64> {
        of.iter().filter_map(|record| record.number("curve_error")).map(f64::abs).collect()
    };
    let row = |name: &str, of: &[&Record]| {
        let errors = errors(of);
        Record::new(NAME, name, 1)
            .param("rows", errors.len() as u64)
            .figure("mean_curve_error", errors.iter().sum::<f64>() / errors.len().max(1) as f64)
            .figure("max_curve_error", errors.iter().copied().fold(0.0, f64::max))
    };
    let mut rows: Vec<Record> = records
        .chunk_by(|a, b| a.get("trace") == b.get("trace"))
        .filter_map(|of| match of[0].get("trace")? {
            crate::report::Value::Text(name) => Some(row(name, &of.iter().collect::<Vec<_>>())),
            _ => None,
        })
        .collect();
    rows.push(row("all", &records.iter().collect::<Vec<_>>()));
    rows
}
