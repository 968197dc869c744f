//! The model's inputs, measured here: what a visit to a lock costs alone and under
//! contention, and what it costs to bring a cache line from another CPU.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::baseline::{LockedArc, LockedRoots};
use crate::blocks::Handle;
use crate::keys::XorShift;
use crate::measure::{self, Limit, Worker};
use crate::options::Failure;
use crate::report::median;

/// What one class of lock costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockCost {
    /// A visit when nobody else is there, nanoseconds.
    pub(crate) alone_ns: f64,
    /// A visit when two CPUs do nothing else, nanoseconds of the lock's time.
    pub(crate) queued_ns: f64,
}

/// What a hit of an ARC baseline costs in its locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArcCosts {
    /// A sublist's lock.
    pub(crate) list: LockCost,
    /// An index lock, without the list lock that is taken under it.
    pub(crate) index: LockCost,
    /// Index locks.
    pub(crate) index_locks: usize,
}

struct Visitor<'a, F> {
    nodes: &'a [(u64, u32)],
    rng: XorShift,
    visit: &'a F,
}

impl<F: Fn(u64, u32)> Worker for Visitor<'_, F> {
    #[inline]
    fn step(&mut self) -> bool {
        let (key, node) = self.nodes[self.rng.below(self.nodes.len() as u64) as usize];
        (self.visit)(key, node);
        true
    }
}

/// Time of a visit, nanoseconds; the best of several looks, since a machine that is busy with other
/// things makes visits longer and never shorter.
fn visits<F: Fn(u64, u32) + Sync>(
    nodes: &[(u64, u32)],
    threads: usize,
    limit: Limit,
    visit: &F,
) -> f64 {
    const LOOKS: usize = 5;
    let make = |thread: usize| Visitor { nodes, rng: XorShift::new(thread as u64), visit };
    let look = |_| {
        let sample = measure::run(threads, limit, make, || {});
        // One thread's cost is its CPU time, whatever else the machine does.
        if threads == 1 { sample.cpu_ns_per_op() } else { 1e9 / sample.ops_per_s() }
    };
    (0..LOOKS).map(look).fold(f64::INFINITY, f64::min)
}

/// Measures the locks of a filled baseline that has one list lock.
pub(crate) fn arc_costs<H: Handle>(one_list: &LockedArc<H>, limit: Limit) -> ArcCosts {
    let nodes = one_list.nodes();
    let idle = visits(&nodes, 1, limit, &|key, node| {
        black_box((key, node));
    });
    let list = |key, node| one_list.visit_list(key, node);
    let index = |key, _| drop(black_box(one_list.visit_index(key)));
    let alone = |cost: f64| (cost - idle).max(1.0);
    let list_alone = alone(visits(&nodes, 1, limit, &list));
    let list_queued = visits(&nodes, 2, limit, &list);
    let index_alone = alone(visits(&nodes, 1, limit, &index));
    ArcCosts {
        list: LockCost { alone_ns: list_alone, queued_ns: list_queued.max(list_alone) },
        // With hundreds of index locks hardly anybody ever waits for one.
        index: LockCost { alone_ns: index_alone, queued_ns: index_alone },
        index_locks: one_list.index_locks(),
    }
}

/// Measures the lock of a root that keeps its requests in a list: a visit is a link or an unlink.
pub(crate) fn root_costs(limit: Limit) -> LockCost {
    const VISITS: f64 = 2.0;
    let (roots, nodes) = (LockedRoots::new(1), [(0, 0)]);
    let idle = visits(&nodes, 1, limit, &|key, node| {
        black_box((key, node));
    });
    let both = |key, _| roots.visit(key);
    let alone_ns = ((visits(&nodes, 1, limit, &both) - idle) / VISITS).max(1.0);
    let queued_ns = visits(&nodes, 2, limit, &both) / VISITS;
    LockCost { alone_ns, queued_ns: queued_ns.max(alone_ns) }
}

/// Time to bring a line that another CPU wrote: half a round trip between two threads.
pub(crate) fn line_transfer_ns(time: Duration) -> Result<f64, Failure> {
    if crate::options::cpus() < 2 {
        return Err("the model needs two CPUs to measure how a cache line travels".into());
    }
    #[repr(align(128))]
    struct Line(AtomicU64);
    const STOP: u64 = u64::MAX;
    const BATCH_ROUNDS: u64 = 64;
    const MIN_BATCHES: usize = 64;
    /// Times as long, if the two threads seldom run at the same time.
    const PATIENCE: u32 = 10;
    let line = Line(AtomicU64::new(0));
    let begun = Instant::now();
    let batches = std::thread::scope(|scope| {
        let line = &line.0;
        scope.spawn(move || {
            loop {
                let ball = line.load(Ordering::Acquire);
                if ball == STOP {
                    break;
                }
                if ball % 2 == 1 {
                    line.store(ball + 1, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        });
        let mut ball = 0;
        let mut batches = Vec::new();
        let enough = |batches: &Vec<f64>| {
            let patience = if batches.len() < MIN_BATCHES { PATIENCE } else { 1 };
            begun.elapsed() >= time * patience
        };
        while !enough(&batches) {
            let batch = Instant::now();
            for _ in 0..BATCH_ROUNDS {
                line.store(ball + 1, Ordering::Release);
                while line.load(Ordering::Acquire) != ball + 2 {
                    std::hint::spin_loop();
                }
                ball += 2;
            }
            batches.push(batch.elapsed().as_nanos() as f64 / (2 * BATCH_ROUNDS) as f64);
        }
        line.store(STOP, Ordering::Release);
        batches
    });
    // A batch in which one of the two had no CPU is long. On a quiet machine these are few; on a
    // busy one the shorter quarter may still be without.
    let mut batches = batches;
    batches.sort_by(f64::total_cmp);
    Ok(median(&batches[..batches.len().div_ceil(4)]))
}
