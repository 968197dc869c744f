//! Measures the model's inputs: the cost of a visit to a lock, alone and under contention, and the
//! transfer of a cache line from another CPU.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::baseline::{LockedArc, LockedRoots};
use crate::blocks::Handle;
use crate::keys::XorShift;
use crate::measure::{self, Limit, Worker};
use crate::options::Failure;
use crate::report::median;

/// Costs of one lock class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockCost {
    /// An uncontended visit, in nanoseconds.
    pub(crate) alone_ns: f64,
    /// A visit when two CPUs do nothing else, in nanoseconds of the lock's time.
    pub(crate) queued_ns: f64,
}

/// Costs of the locks in a hit of an ARC baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArcCosts {
    /// The lock of a sublist.
    pub(crate) list: LockCost,
    /// An index lock, without the list lock that is taken under it.
    pub(crate) index: LockCost,
    /// Number of index locks.
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

/// Time of a visit in nanoseconds: the best of several runs, because other load only makes visits
/// longer.
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
        // With one thread, CPU time excludes other load.
        if threads == 1 { sample.cpu_ns_per_op() } else { 1e9 / sample.ops_per_s() }
    };
    (0..LOOKS).map(look).fold(f64::INFINITY, f64::min)
}

/// Measures the locks of a filled baseline with one list lock.
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
        // With hundreds of index locks, contention is rare.
        index: LockCost { alone_ns: index_alone, queued_ns: index_alone },
        index_locks: one_list.index_locks(),
    }
}

/// Measures the lock of a root that keeps requests in a list. A visit is a link or an unlink.
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

/// Time to transfer a cache line that another CPU wrote: half a round trip between two threads.
pub(crate) fn line_transfer_ns(time: Duration) -> Result<f64, Failure> {
    if crate::options::cpus() < 2 {
        return Err("the model needs two CPUs to measure the transfer of a cache line".into());
    }
    #[repr(align(128))]
    struct Line(AtomicU64);
    const STOP: u64 = u64::MAX;
    const BATCH_ROUNDS: u64 = 64;
    const MIN_BATCHES: usize = 64;
    /// Factor of the time limit if the two threads seldom run at the same time.
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
    // A batch is long if one thread had no CPU. On a quiet machine these are few. On a busy one,
    // the shorter quarter may still be free of them.
    let mut batches = batches;
    batches.sort_by(f64::total_cmp);
    Ok(median(&batches[..batches.len().div_ceil(4)]))
}
