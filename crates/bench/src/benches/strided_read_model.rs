//! `strided-read --model`: predicts 1 to 64 CPUs from measured costs.
//!
//! The model is reported, and nothing passes or fails by it; `docs/benchmarks.md` lists its limits.
//! CPUs are the customers. Stations are the points where submissions and completions of different
//! CPUs meet: the roots' locks, the round-robin counter of sixteen roots, and the words of
//! Forebay's roots. The device has no limit of its own.

use std::time::Duration;

use super::lines;
use crate::baseline::LockedRoots;
use crate::model::costs::{LockCost, line_transfer_ns, root_costs};
use crate::model::mva::{Station, solve};
use crate::options::{Common, Failure};
use crate::report::Record;
use crate::report::plot::{Axis, Panel};
use crate::strided::RootsKind;

const NAME: &str = "strided-read-model";
const CPUS: [usize; 8] = [1, 2, 4, 8, 16, 32, 40, 64];
/// R2: CPUs, operations per second before and after.
const R2: (usize, f64, f64) = (40, 150_000.0, 300_000.0);
/// R2's CPU time per operation, after: all CPUs busy for 0.6 of the time.
const R2_OPERATION_NS: f64 = 40.0 * 0.6 * 1e9 / 300_000.0;
/// A request visits its root at submission and at completion.
const VISITS: f64 = 2.0;
/// Cache lines that a list visit finds on another CPU: the lock with the list's ends, the node, and
/// a neighbour.
const LINES_OF_LIST: f64 = 3.0;
/// Largest number of submission queues of a device.
const MAX_QUEUES: usize = 16;
/// Lock classes with one lock per submission queue.
const QUEUE_LOCKS: [&str; 2] = ["io-submission-queue", "io-drive"];
/// Prefixes of lock classes without contention: a request's own locks, and locks of pieces of the
/// device's memory, since every thread reads its own.
const PRIVATE_LOCKS: [&str; 2] = ["request-", "memory-chunk"];

/// Lock class, visits per operation, hold time per visit in nanoseconds.
pub(crate) type LockUses = Vec<(&'static str, f64, f64)>;

/// Solves the model for the measurements on the memory device. `uses` is empty without a counting
/// build.
pub(crate) fn run(
    common: &Common,
    measured: &[Record],
    uses: &[(RootsKind, LockUses)],
) -> Result<Vec<Record>, Failure> {
    let line_ns = line_transfer_ns(Duration::from_secs_f64(common.seconds.min(1.0)))?;
    let lock = root_costs(common.tuning_limit());
    let mut records = Vec::new();
    for (kind, uses) in uses {
        let of_kind = |r: &&Record| r.subject() == kind.name();
        let Some(row) = measured.iter().find(of_kind) else { continue };
        let (Some(cpu), Some(ops_per_s)) =
            (row.number("cpu_s_per_million"), row.number("ops_per_s"))
        else {
            continue;
        };
        let operation = Operation { kind: *kind, ns: cpu * 1e3, lock, line_ns, others: uses };
        let config = operation.config();
        records.extend(CPUS.into_iter().map(|cpus| {
            let row = operation.predict(cpus).param("config", config.as_str());
            let here = cpus == crate::options::cpus();
            if here { row.figure("measured_ops_per_s", ops_per_s) } else { row }
        }));
    }
    Ok(records)
}

/// The components of a subject's operation.
struct Operation<'a> {
    kind: RootsKind,
    /// CPU time of the operation, in nanoseconds.
    ns: f64,
    /// Cost of a visit to a root's lock.
    lock: LockCost,
    /// Transfer time of a cache line, in nanoseconds.
    line_ns: f64,
    others: &'a LockUses,
}

impl Operation<'_> {
    /// Number of locked roots; none for Forebay's.
    fn locked_roots(&self) -> Option<u64> {
        match self.kind {
            RootsKind::OneLocked => Some(1),
            RootsKind::SixteenLocked => Some(16),
            RootsKind::Forebay => None,
        }
    }

    fn config(&self) -> String {
        let locks = match self.locked_roots() {
            Some(roots) => {
                let LockCost { alone_ns, queued_ns } = self.lock;
                format!("{roots} locks, a visit {alone_ns:.0} ns alone, {queued_ns:.0} ns queued")
            }
            None => "no lock of roots".to_owned(),
        };
        match self.others.len() {
            0 => format!("{locks}; the device's locks not counted"),
            _ => format!("{locks}; the device's locks as counted"),
        }
    }

    /// The stations for `cpus` CPUs.
    fn stations(&self, cpus: usize) -> Vec<Station> {
        // Probability that a cache line was last on another CPU.
        let elsewhere = (cpus - 1) as f64 / cpus as f64;
        let line_ns = elsewhere * self.line_ns;
        let line = |name, copies: u64, visits: f64| {
            let visits = visits / copies as f64;
            Station { name, copies, visits, alone_ns: line_ns, queued_ns: line_ns }
        };
        let mut stations = Vec::new();
        match self.locked_roots() {
            Some(copies) => {
                let alone_ns = self.lock.alone_ns + LINES_OF_LIST * line_ns;
                let queued_ns = self.lock.queued_ns.max(alone_ns);
                let visits = VISITS / copies as f64;
                stations.push(Station { name: "root lock", copies, visits, alone_ns, queued_ns });
                if copies > 1 {
                    stations.push(line("round-robin counter", 1, 1.0));
                }
            }
            // One root per CPU. Another CPU may complete a request.
            None => stations.push(line("root word", cpus as u64, VISITS)),
        }
        let shared = |(name, visits, hold_ns): &(&'static str, f64, f64)| {
            let copies = if QUEUE_LOCKS.contains(name) { cpus.min(MAX_QUEUES) as u64 } else { 1 };
            let alone_ns = hold_ns + line_ns;
            let visits = visits / copies as f64;
            Station { name, copies, visits, alone_ns, queued_ns: alone_ns }
        };
        stations.extend(self.shared_locks().map(shared));
        stations
    }

    /// The device's locks that several CPUs share.
    fn shared_locks(&self) -> impl Iterator<Item = &(&'static str, f64, f64)> {
        let private = |name: &str| PRIVATE_LOCKS.iter().any(|prefix| name.starts_with(prefix));
        let own = move |name: &str| name == LockedRoots::LOCK || private(name);
        self.others.iter().filter(move |(name, ..)| !own(name))
    }

    /// CPU time of an operation outside all locks.
    fn think_ns(&self) -> f64 {
        let roots = self.locked_roots().map_or(0.0, |_| VISITS * self.lock.alone_ns);
        let others: f64 = self.shared_locks().map(|(_, visits, hold_ns)| visits * hold_ns).sum();
        (self.ns - roots - others).max(0.0)
    }

    fn predict(&self, cpus: usize) -> Record {
        let stations = self.stations(cpus);
        let at = |think_ns: f64| solve(think_ns, &stations, cpus).swap_remove(cpus - 1);
        let solution = at(self.think_ns());
        let per_s = solution.throughput_per_ns * 1e9;
        // With R2's CPU time per operation, and the roots as measured here.
        let at_r2_cost = at(self.think_ns() + (R2_OPERATION_NS - self.ns).max(0.0));
        let busy = stations.iter().zip(&solution.utilization);
        let busiest =
            busy.max_by(|a, b| a.1.total_cmp(b.1)).map_or(("none", 0.0), |(s, u)| (s.name, *u));
        let record = Record::new(NAME, self.kind.name(), cpus)
            .param("busiest_station", busiest.0)
            .figure("predicted_ops_per_s", per_s)
            .figure("predicted_speedup", per_s * self.ns / 1e9)
            .figure("predicted_ops_per_s_at_r2_cost", at_r2_cost.throughput_per_ns * 1e9)
            .figure("busiest_station_utilization", busiest.1)
            .figure("line_transfer_ns", self.line_ns);
        let (r2_cpus, before, after) = R2;
        match self.kind {
            RootsKind::OneLocked if cpus == r2_cpus => record.figure("r2_ops_per_s", before),
            RootsKind::SixteenLocked if cpus == r2_cpus => record.figure("r2_ops_per_s", after),
            _ => record,
        }
    }
}

/// Predicted speedup over CPUs.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let rows: Vec<&Record> =
        records.iter().filter(|r| r.number("predicted_ops_per_s").is_some()).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    vec![Panel {
        title: "a model, not a measurement: speed over one CPU".to_owned(),
        x: Axis::doubling("CPUs"),
        y: Axis::linear("speed, as a multiple of one CPU"),
        series: lines(&rows, |r| r.threads() as f64, "predicted_speedup"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lock_saturates_first_and_ours_does_not() {
        let lock = LockCost { alone_ns: 30.0, queued_ns: 150.0 };
        let others = Vec::new();
        let speedup = |kind| {
            let operation = Operation { kind, ns: 3000.0, lock, line_ns: 50.0, others: &others };
            let one = operation.predict(1).number("predicted_speedup").unwrap_or(0.0);
            assert!((one - 1.0).abs() < 0.02, "{kind:?}: {one}");
            operation.predict(64).number("predicted_speedup").unwrap_or(0.0)
        };
        let [one, sixteen, ours] = RootsKind::ALL.map(speedup);
        assert!(one < 15.0, "{one}");
        assert!(sixteen > 2.0 * one, "{sixteen}");
        assert!(ours > 55.0, "{ours}");
    }

    #[test]
    fn a_lock_of_the_device_is_a_station_and_a_requests_own_is_none() {
        let others = vec![
            ("io-submission-queue", 2.0, 100.0),
            ("request-handle", 1.0, 50.0),
            ("io-x", 1.0, 40.0),
        ];
        let lock = LockCost { alone_ns: 30.0, queued_ns: 60.0 };
        let kind = RootsKind::Forebay;
        let operation = Operation { kind, ns: 3000.0, lock, line_ns: 50.0, others: &others };
        let stations = operation.stations(32);
        let names: Vec<_> = stations.iter().map(|s| (s.name, s.copies)).collect();
        assert_eq!(names, [("root word", 32), ("io-submission-queue", 16), ("io-x", 1)]);
        assert!((operation.think_ns() - 2760.0).abs() < 1e-9);
    }
}
