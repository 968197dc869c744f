//! `cached-read --model`: predicts 1 to 64 CPUs from measured costs.
//!
//! The model is reported, and nothing passes or fails by it. `docs/benchmarks.md` lists its limits.

use std::time::Duration;

use super::cached_read::Args;
use super::lines;
use crate::blocks::BLOCK_BYTES;
use crate::keys::{Distribution, KeySpace};
use crate::lock_counts::{LockCounts, LockUse};
use crate::model::costs::{ArcCosts, LockCost, arc_costs, line_transfer_ns};
use crate::model::mva::{Station, solve};
use crate::options::{Common, Failure, cpus};
use crate::report::plot::{Axis, Panel};
use crate::report::{Record, median};
use crate::subjects::{ReadBlocks, ReadPlan, ReadSubject, filled_arc, readers, sublists};

const NAME: &str = "cached-read-model";
const CPUS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const SUBJECTS: [&str; 3] = ["arc-1-lock", "arc-n-locks", "forebay"];
/// R1's published columns: CPUs, MB/s with one list, MB/s with sharded lists (its MB are MiB).
const R1: [(usize, f64, f64); 6] = [
    (1, 821.0, 814.0),
    (2, 1560.0, 1520.0),
    (4, 3022.0, 2985.0),
    (8, 5105.0, 5913.0),
    (16, 3854.0, 8939.0),
    (32, 3036.0, 9897.0),
];
/// Cache lines that a list visit finds on another CPU: the lock with the list's ends, the node, and
/// a neighbour.
const LINES_OF_LIST: f64 = 3.0;
/// Cache lines that an index visit finds on another CPU: the lock.
const LINES_OF_INDEX: f64 = 1.0;
/// Popular blocks with a station each. The others share one kind of station.
const POPULAR_BLOCKS: usize = 64;
const MIB: f64 = 1024.0 * 1024.0;

/// The components of a subject's operation.
struct Operation {
    name: &'static str,
    config: String,
    think_ns: f64,
    locks: Vec<Lock>,
    measured: Vec<(usize, f64)>,
}

/// A lock class.
struct Lock {
    name: &'static str,
    /// Locks of the class; visits are spread evenly.
    copies: u64,
    /// Visits per operation to all of them.
    visits: f64,
    cost: LockCost,
    /// Cache lines that each visit transfers from another CPU.
    lines: f64,
}

/// Measures the inputs and solves the model.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let line_ns = line_transfer_ns(Duration::from_secs_f64(common.seconds.min(1.0)))?;
    let blocks = ReadBlocks::new(args.blocks as usize)?;
    let costs = arc_costs(&filled_arc(&blocks.spans, 1), common.tuning_limit());
    let subjects: Vec<ReadSubject> =
        readers(&blocks, cpus()).into_iter().filter(|s| SUBJECTS.contains(&s.name)).collect();
    let mut records = Vec::new();
    for distribution in &args.distribution {
        let keys = KeySpace::new(*distribution, args.blocks, common.seed);
        for copy in &args.copy {
            for name in SUBJECTS {
                let candidates = subjects.iter().filter(|s| s.name == name && common.wants(name));
                let measured = candidates.map(|s| (s, measure(common, s, &keys, *copy)));
                let fastest = measured.max_by(|a, b| a.1[0].1.total_cmp(&b.1[0].1));
                let Some((subject, points)) = fastest else { continue };
                let operation =
                    dissect(subject, &costs, points, &lock_uses(common, subject, &keys, *copy));
                let shares = block_shares(*distribution, args.blocks);
                let rows = predict(&operation, &shares, line_ns);
                records.extend(rows.into_iter().map(|row| {
                    row.param("copy", *copy)
                        .param("distribution", distribution.name())
                        .param("config", operation.config.as_str())
                }));
            }
        }
    }
    Ok(records)
}

/// Operations per second on one and two threads.
fn measure(
    common: &Common,
    subject: &ReadSubject,
    keys: &KeySpace,
    copy: bool,
) -> Vec<(usize, f64)> {
    let at = |threads| {
        let plan = ReadPlan {
            threads,
            limit: common.limit(),
            keys: keys.clone(),
            copy,
            seed: common.seed,
        };
        let runs: Vec<f64> = (0..common.reps).map(|_| subject.run(&plan).ops_per_s()).collect();
        (threads, median(&runs))
    };
    vec![at(1), at(2)]
}

/// Locks of an operation on one thread: class, visits per operation, hold time. Empty without the
/// counting build.
fn lock_uses(
    common: &Common,
    subject: &ReadSubject,
    keys: &KeySpace,
    copy: bool,
) -> Vec<(&'static str, f64, f64)> {
    let limit = common.tuning_limit();
    let plan = ReadPlan { threads: 1, limit, keys: keys.clone(), copy, seed: common.seed };
    let counted = LockCounts::start();
    let ops = subject.run(&plan).ops.max(1) as f64;
    let used = |lock: &LockUse| {
        (lock.name, lock.locks as f64 / ops, lock.hold_ns as f64 / lock.locks as f64)
    };
    counted.locks().iter().map(used).collect()
}

/// Splits the measured operation of one thread into lock visits and thinking.
fn dissect(
    subject: &ReadSubject,
    costs: &ArcCosts,
    measured: Vec<(usize, f64)>,
    counted: &[(&'static str, f64, f64)],
) -> Operation {
    let lists = match subject.name {
        "arc-1-lock" => 1,
        "arc-n-locks" => sublists(cpus()),
        _ => 0,
    };
    let operation_ns = 1e9 / measured[0].1;
    let mut operation = Operation {
        name: subject.name,
        config: format!("{}; no lock", subject.config),
        think_ns: operation_ns,
        locks: Vec::new(),
        measured,
    };
    if lists == 0 {
        // Not a baseline: each counted class is taken for a single lock.
        for (name, visits, hold_ns) in counted {
            let cost = LockCost { alone_ns: *hold_ns, queued_ns: *hold_ns };
            operation.think_ns = (operation.think_ns - visits * hold_ns).max(0.0);
            operation.locks.push(Lock {
                name,
                copies: 1,
                visits: *visits,
                cost,
                lines: LINES_OF_LIST,
            });
        }
        if !counted.is_empty() {
            operation.config = format!("{}; {} lock classes", subject.config, counted.len());
        }
    } else {
        let (list, index) = (costs.list, costs.index);
        operation.think_ns = (operation_ns - list.alone_ns - index.alone_ns).max(0.0);
        operation.locks = vec![
            Lock {
                name: "list lock",
                copies: lists as u64,
                visits: 1.0,
                cost: list,
                lines: LINES_OF_LIST,
            },
            Lock {
                name: "index lock",
                copies: costs.index_locks as u64,
                visits: 1.0,
                cost: index,
                lines: LINES_OF_INDEX,
            },
        ];
        operation.config = format!(
            "{}; list lock {:.0} ns alone, {:.0} ns queued; index lock {:.0} ns",
            subject.config, list.alone_ns, list.queued_ns, index.alone_ns
        );
    }
    operation
}

/// Numbers of equally popular blocks, with the share of each block.
fn block_shares(distribution: Distribution, blocks: u64) -> Vec<(u64, f64)> {
    let weights = distribution.weights(blocks as usize);
    let total: f64 = weights.iter().sum();
    let popular = if distribution == Distribution::Uniform { 0 } else { POPULAR_BLOCKS };
    let popular = popular.min(weights.len());
    let mut shares: Vec<(u64, f64)> = weights[..popular].iter().map(|w| (1, w / total)).collect();
    let others = (weights.len() - popular) as f64;
    if others > 0.0 {
        let rest: f64 = weights[popular..].iter().sum();
        shares.push((others as u64, rest / total / others));
    }
    shares
}

fn predict(operation: &Operation, shares: &[(u64, f64)], line_ns: f64) -> Vec<Record> {
    let one_cpu = 1e9 / operation_ns(operation);
    let row = |cpus: usize| {
        // Probability that a cache line was last on another CPU.
        let elsewhere = (cpus - 1) as f64 / cpus as f64;
        let mut stations: Vec<Station> = operation
            .locks
            .iter()
            .map(|lock| {
                let alone_ns = lock.cost.alone_ns + elsewhere * lock.lines * line_ns;
                let visits = lock.visits / lock.copies as f64;
                let queued_ns = lock.cost.queued_ns.max(alone_ns);
                Station { name: lock.name, copies: lock.copies, visits, alone_ns, queued_ns }
            })
            .collect();
        // The line with a block's reference count is transferred with every hit on another CPU.
        stations.extend(shares.iter().map(|(copies, share)| Station {
            name: "block line",
            copies: *copies,
            visits: *share,
            alone_ns: elsewhere * line_ns,
            queued_ns: elsewhere * line_ns,
        }));
        let solutions = solve(operation.think_ns, &stations, cpus);
        let solution = &solutions[cpus - 1];
        let predicted = solution.throughput_per_ns * 1e9;
        let busy = stations.iter().zip(&solution.utilization);
        let busiest =
            busy.max_by(|a, b| a.1.total_cmp(b.1)).map_or(("none", 0.0), |(s, u)| (s.name, *u));
        let mut record = Record::new(NAME, operation.name, cpus)
            .param("busiest_station", busiest.0)
            .figure("predicted_ops_per_s", predicted)
            .figure("predicted_mib_per_s", predicted * BLOCK_BYTES as f64 / MIB)
            .figure("predicted_speedup", predicted / one_cpu)
            .figure("predicted_speedup_at_r1_cost", at_r1_cost(operation, &stations, cpus))
            .figure("busiest_station_utilization", busiest.1);
        if let Some((_, measured)) = operation.measured.iter().find(|(n, _)| *n == cpus) {
            record = record.figure("measured_ops_per_s", *measured);
        }
        with_r1(record, operation.name, cpus)
            .figure("think_ns", operation.think_ns)
            .figure("line_transfer_ns", line_ns)
    };
    CPUS.into_iter().map(row).collect()
}

/// Speedup if an operation took R1's time on one CPU, with the locks as measured here.
fn at_r1_cost(operation: &Operation, stations: &[Station], cpus: usize) -> f64 {
    let (_, before, _) = R1[0];
    let r1_operation_ns = 1e9 * BLOCK_BYTES as f64 / (before * MIB);
    let more = (r1_operation_ns - operation_ns(operation)).max(0.0);
    let solutions = solve(operation.think_ns + more, stations, cpus);
    solutions[cpus - 1].throughput_per_ns * (operation_ns(operation) + more)
}

fn operation_ns(operation: &Operation) -> f64 {
    operation.think_ns + operation.locks.iter().map(|l| l.visits * l.cost.alone_ns).sum::<f64>()
}

/// Adds the report's published figures to the baselines.
fn with_r1(record: Record, subject: &str, cpus: usize) -> Record {
    let column = |row: &(usize, f64, f64)| match subject {
        "arc-1-lock" => Some(row.1),
        "arc-n-locks" => Some(row.2),
        _ => None,
    };
    let here = R1.iter().find(|row| row.0 == cpus).and_then(column);
    let first = R1.first().and_then(column);
    match (here, first) {
        (Some(here), Some(first)) => {
            record.figure("r1_mib_per_s", here).figure("r1_speedup", here / first)
        }
        _ => record,
    }
}

/// Predicted speedup over CPUs, and the report's.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let uniform: Vec<&Record> = records
        .iter()
        .filter(|r| r.get("copy") == records[0].get("copy"))
        .filter(|r| r.get("distribution") == records[0].get("distribution"))
        .collect();
    let mut speedup = lines(&uniform, |r| r.threads() as f64, "predicted_speedup");
    for mut series in lines(&uniform, |r| r.threads() as f64, "r1_speedup") {
        series.name.push_str(" (R1, measured)");
        speedup.push(series);
    }
    vec![Panel {
        title: "a model, not a measurement: speed over one CPU".to_owned(),
        x: Axis::doubling("CPUs"),
        y: Axis::linear("speed, as a multiple of one CPU"),
        series: speedup,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lock_saturates_and_none_does_not() {
        let cost = LockCost { alone_ns: 50.0, queued_ns: 150.0 };
        let lock = Lock { name: "list lock", copies: 1, visits: 1.0, cost, lines: 3.0 };
        let operation = |locks| Operation {
            name: "arc-1-lock",
            config: String::new(),
            think_ns: 500.0,
            locks,
            measured: vec![(1, 2e6)],
        };
        let shares = block_shares(Distribution::Uniform, 1000);
        let before = predict(&operation(vec![lock]), &shares, 50.0);
        let free = predict(&operation(vec![]), &shares, 50.0);
        let speedup =
            |rows: &[Record], i: usize| rows[i].number("predicted_speedup").unwrap_or(0.0);
        assert!((speedup(&before, 0) - 1.0).abs() < 0.01 && (speedup(&free, 0) - 1.0).abs() < 0.01);
        assert!(speedup(&before, 5) < 5.0, "{}", speedup(&before, 5));
        assert!(speedup(&free, 5) > 28.0, "{}", speedup(&free, 5));
        assert_eq!(before[4].number("r1_mib_per_s"), Some(3854.0));
    }

    #[test]
    fn shares_of_blocks_sum_to_one() {
        for distribution in [Distribution::Uniform, Distribution::Zipf] {
            let shares = block_shares(distribution, 1000);
            let sum: f64 = shares.iter().map(|(n, share)| *n as f64 * share).sum();
            assert!((sum - 1.0).abs() < 1e-9);
        }
    }
}
