//! `sim`: hit ratios of Forebay's cache, textbook policies and the optimum on traces.
//!
//! `forebay_sim::cache` does the simulation. Simulations of different policies and capacities run
//! in parallel, one per CPU; each uses one thread and no time, so its result is exact.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_sim::cache::capacity::Capacity;
use forebay_sim::cache::read::{Format, read};
use forebay_sim::cache::run::{NamedPolicy, Outcome, POLICIES, SimError};
use forebay_sim::cache::synthetic::{CAPACITY, SYNTHETIC, Synthetic};
use forebay_sim::cache::trace::Trace;

use super::{curve, lines};
use crate::options::{Common, Failure, cpus};
use crate::report::plot::{Axis, Panel};
use crate::report::{Record, Value};

pub(crate) const NAME: &str = "sim";
/// Default capacities for traces from files.
const CAPACITIES: [Capacity; 4] = [
    Capacity::Percent(0.1),
    Capacity::Percent(1.0),
    Capacity::Percent(10.0),
    Capacity::Percent(50.0),
];

/// Options of `sim`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// A trace file, plain or packed with gz, xz or zst; repeatable.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Vec<PathBuf>,
    /// Format of the files, if their names do not say it: keys (one decimal key per line), csv
    /// (timestamp,key,size,op), u32 or u64 (little-endian), pool (of `forebay trace record`).
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// Synthetic traces by name, or `all`.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) synthetic: Vec<String>,
    /// Capacities in entries, or as shares of a trace's keys (at least 32 entries). Default:
    /// 0.1%,1%,10%,50%; for synthetic traces the capacity that they are made for.
    #[arg(long, value_delimiter = ',', value_name = "N|P%,…")]
    pub(crate) capacity: Vec<Capacity>,
    /// Simulate only these policies; `forebay` is Forebay's cache.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) policy: Vec<String>,
    /// Compare the miss-ratio curve that a cache of each capacity measures of itself with
    /// simulations of its sizes. Default capacity: 10%.
    #[arg(long, conflicts_with = "policy")]
    pub(crate) curve: bool,
    /// The same for a second level of each capacity, behind a memory of a quarter of it.
    #[arg(long, conflicts_with_all = ["policy", "curve"])]
    pub(crate) secondary_curve: bool,
}

/// One simulation.
pub(super) struct Job {
    pub(super) trace: Arc<Trace>,
    pub(super) capacity: usize,
    pub(super) player: NamedPolicy,
}

/// Simulates every policy on every trace at every capacity.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    if args.curve {
        return curve::run(common, args);
    }
    if args.secondary_curve {
        return curve::run_secondary(common, args);
    }
    let policies = policies(common, args)?;
    let mut jobs = Vec::new();
    let traces = traces(common, args)?;
    for (trace, own_capacities) in &traces {
        let asked = if args.capacity.is_empty() { own_capacities } else { &args.capacity[..] };
        let mut capacities = Vec::new();
        for capacity in asked.iter().map(|capacity| capacity.entries(trace)) {
            if !capacities.contains(&capacity) {
                capacities.push(capacity);
            }
        }
        for capacity in capacities {
            jobs.extend(policies.iter().map(|p| Job {
                trace: trace.clone(),
                capacity,
                player: *p,
            }));
        }
    }
    let outcomes = run_all(&jobs, common.seed)?;
    let record = |(job, outcome): (&Job, Outcome)| {
        Record::new(NAME, job.player.name, 1)
            .param("trace", job.trace.name())
            .param("accesses", outcome.accesses)
            .param("unique", job.trace.unique() as u64)
            .param("capacity", job.capacity as u64)
            .param("policy", job.player.name)
            .figure("hit_ratio", outcome.hit_ratio())
    };
    Ok(jobs.iter().zip(outcomes).map(record).collect())
}

/// The requested policies, in the requested order.
fn policies(common: &Common, args: &Args) -> Result<Vec<NamedPolicy>, Failure> {
    let asked = if args.policy.is_empty() { &common.subjects } else { &args.policy };
    if asked.is_empty() {
        return Ok(POLICIES.to_vec());
    }
    let find = |name: &String| {
        NamedPolicy::named(name).ok_or_else(|| {
            let known: Vec<&str> = POLICIES.iter().map(|p| p.name).collect();
            Failure::from(format!("unknown policy `{name}`; known are {}", known.join(", ")))
        })
    };
    asked.iter().map(find).collect()
}

/// The traces, each with its default capacities.
pub(super) fn traces(
    common: &Common,
    args: &Args,
) -> Result<Vec<(Arc<Trace>, &'static [Capacity])>, Failure> {
    let mut traces: Vec<(Arc<Trace>, &'static [Capacity])> = Vec::new();
    for path in &args.trace {
        let mut trace = read(path, args.format)?;
        if traces.iter().any(|(other, _)| other.name() == trace.name()) {
            trace.set_name(path.display().to_string());
        }
        if trace.is_cut() {
            eprintln!("forebay-bench: {}: the end of the trace is missing", path.display());
        }
        if trace.skipped() > 0 {
            let lines = trace.skipped();
            eprintln!("forebay-bench: {}: skipped {lines} deletions", path.display());
        }
        traces.push((Arc::new(trace), &CAPACITIES));
    }
    for name in &args.synthetic {
        let known = || SYNTHETIC.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
        let made: Vec<&Synthetic> = match Synthetic::named(name) {
            Some(synthetic) => vec![synthetic],
            None if name == "all" => SYNTHETIC.iter().collect(),
            None => {
                let text = format!("unknown synthetic trace `{name}`; known are all, {}", known());
                return Err(text.into());
            }
        };
        let with_capacity = |synthetic: &Synthetic| {
            (Arc::new(synthetic.trace(common.seed)), &[Capacity::Count(CAPACITY)][..])
        };
        traces.extend(made.into_iter().map(with_capacity));
    }
    if traces.is_empty() {
        return Err("nothing to simulate: give --trace FILE or --synthetic NAME (or all)".into());
    }
    Ok(traces)
}

/// Runs all simulations.
pub(super) fn run_all(jobs: &[Job], seed: u64) -> Result<Vec<Outcome>, SimError> {
    in_parallel(jobs, |job| job.player.run(&job.trace, job.capacity, seed))
}

/// Runs all jobs, as many at once as there are CPUs.
pub(super) fn in_parallel<J: Sync, T: Send>(
    jobs: &[J],
    run: impl Fn(&J) -> Result<T, SimError> + Sync,
) -> Result<Vec<T>, SimError> {
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<Option<Result<T, SimError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..cpus().min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(place) else { break };
                    let outcome = run(job);
                    *found[place].lock().expect("nothing panics under it") = Some(outcome);
                }
            });
        }
    });
    let taken = found.into_iter().map(|outcome| outcome.into_inner().ok().flatten());
    taken.map(|outcome| outcome.expect("every job was done")).collect()
}

/// A row per policy with its mean hit ratio over all rows, for the end of the table.
pub(crate) fn means(records: &[Record]) -> Vec<Record> {
    if records.iter().any(|record| record.subject() == curve::SUBJECT) {
        return curve::summary(records);
    }
    let mut sums: Vec<(&str, f64, u64)> = Vec::new();
    for record in records {
        let ratio = record.number("hit_ratio").unwrap_or(0.0);
        match sums.iter_mut().find(|(subject, ..)| *subject == record.subject()) {
            Some((_, sum, rows)) => (*sum, *rows) = (*sum + ratio, *rows + 1),
            None => sums.push((record.subject(), ratio, 1)),
        }
    }
    let row = |(subject, sum, rows): (&str, f64, u64)| {
        Record::new(NAME, subject, 1)
            .param("rows", rows)
            .figure("mean_hit_ratio", sum / rows as f64)
    };
    sums.into_iter().map(row).collect()
}

/// Hit ratio over capacity, one panel per trace.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let mut traces: Vec<Option<&Value>> = Vec::new();
    for record in records {
        if !traces.contains(&record.get("trace")) {
            traces.push(record.get("trace"));
        }
    }
    let capacity = |record: &Record| match record.get("capacity") {
        Some(Value::Integer(entries)) => *entries as f64,
        _ => 0.0,
    };
    let panel = |trace: Option<&Value>| {
        let own: Vec<&Record> = records.iter().filter(|r| r.get("trace") == trace).collect();
        Panel {
            title: trace.map_or(String::new(), |trace| match trace {
                Value::Text(name) => name.clone(),
                other => format!("{other:?}"),
            }),
            x: Axis::log("capacity (blocks)"),
            y: Axis::of("hit_ratio"),
            series: lines(&own, capacity, "hit_ratio"),
        }
    };
    traces.into_iter().map(panel).collect()
}
