//! `sim --curve`: the miss-ratio curve that a cache measures of itself, compared with simulations
//! of caches of its sizes.
//!
//! A cache of each capacity replays the trace once and is then asked for its curve. A run of the
//! simulator at the capacity of each point is the truth.

use forebay_cache::{Attributes, Curve};
use forebay_sim::cache::capacity::Capacity;
use forebay_sim::cache::policies::forebay::Forebay;
use forebay_sim::cache::run::{NamedPolicy, SimError};
use forebay_sim::cache::trace::Trace;

use super::sim::{Args, Job, NAME, run_all, traces};
use crate::options::{Common, Failure};
use crate::report::Record;

pub(super) const SUBJECT: &str = "curve";
const CAPACITY: Capacity = Capacity::Percent(10.0);

/// Measures the curves of all traces, and the truth.
pub(super) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let player = NamedPolicy::named("forebay").ok_or("the simulator has no Forebay")?;
    let mut records = Vec::new();
    for (trace, own_capacities) in traces(common, args)? {
        // Synthetic traces are made for a capacity.
        let own = if own_capacities.len() == 1 { own_capacities } else { &[CAPACITY][..] };
        let asked = if args.capacity.is_empty() { own } else { &args.capacity[..] };
        for capacity in asked.iter().map(|capacity| capacity.entries(&trace)) {
            let curve = measured(&trace, capacity, common.seed)?;
            let job =
                |capacity: u64| Job { trace: trace.clone(), capacity: capacity as usize, player };
            let jobs: Vec<Job> = curve.points.iter().map(|point| job(point.capacity)).collect();
            let truth = run_all(&jobs, common.seed)?;
            let rows = curve.points.iter().zip(truth);
            records.extend(rows.map(|(point, truth)| {
                Record::new(NAME, SUBJECT, 1)
                    .param("trace", trace.name())
                    .param("today", capacity as u64)
                    .param("capacity", point.capacity)
                    .figure("hit_ratio", point.hit_ratio())
                    .figure("simulated_hit_ratio", truth.hit_ratio())
                    .figure("curve_error", point.hit_ratio() - truth.hit_ratio())
            }));
        }
    }
    Ok(records)
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
