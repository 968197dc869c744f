//! Runs a load on threads for a time or a count, and measures its CPU time and memory.
//!
//! Throughput is the operations of all threads over the time from the first start to the last end,
//! so a thread that waits for a CPU counts as waiting.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a measurement runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// For this time.
    Time(Duration),
    /// For this many operations of each thread.
    Operations(u64),
}

/// One thread of a load.
pub(crate) trait Worker {
    /// Operations between two checks of the stop flag.
    const BATCH_OPERATIONS: u64 = 64;

    /// One operation. Returns true for a hit.
    fn step(&mut self) -> bool;
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Operations of all threads.
    pub(crate) ops: u64,
    /// Operations that hit.
    pub(crate) hits: u64,
    /// Wall time.
    pub(crate) elapsed_s: f64,
    /// User and system CPU time of the process.
    pub(crate) cpu_s: f64,
}

impl Sample {
    /// Operations per second.
    pub(crate) fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed_s.max(1e-9)
    }

    /// Hits over operations.
    pub(crate) fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.ops as f64).max(1.0)
    }

    /// CPU time per operation, in nanoseconds.
    pub(crate) fn cpu_ns_per_op(&self) -> f64 {
        self.cpu_s * 1e9 / (self.ops as f64).max(1.0)
    }
}

/// Time between two calls of the observer.
const OBSERVE_EVERY: Duration = Duration::from_millis(10);

/// Runs `threads` workers, and calls `observe` periodically meanwhile.
pub(crate) fn run<W, M, O>(threads: usize, limit: Limit, make: M, mut observe: O) -> Sample
where
    W: Worker,
    M: Fn(usize) -> W + Sync,
    O: FnMut(),
{
    let barrier = Barrier::new(threads + 1);
    let stop = AtomicBool::new(false);
    let (barrier, stop, make) = (&barrier, &stop, &make);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut worker = make(thread);
                    barrier.wait();
                    work(&mut worker, limit, stop)
                })
            })
            .collect();
        barrier.wait();
        let cpu_before = cpu_seconds();
        let begun = Instant::now();
        while !handles.iter().all(|h| h.is_finished()) {
            let left = match limit {
                Limit::Time(time) => time.saturating_sub(begun.elapsed()),
                Limit::Operations(_) => OBSERVE_EVERY,
            };
            if left.is_zero() {
                stop.store(true, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(left.min(OBSERVE_EVERY));
            observe();
        }
        let parts: Vec<Part> = handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        total(&parts, cpu_seconds() - cpu_before)
    })
}

struct Part {
    ops: u64,
    hits: u64,
    start: Instant,
    end: Instant,
}

fn work<W: Worker>(worker: &mut W, limit: Limit, stop: &AtomicBool) -> Part {
    let most = match limit {
        Limit::Time(_) => u64::MAX,
        Limit::Operations(ops) => ops,
    };
    let start = Instant::now();
    let (mut ops, mut hits) = (0u64, 0u64);
    while ops < most && !stop.load(Ordering::Relaxed) {
        let batch = W::BATCH_OPERATIONS.min(most - ops);
        for _ in 0..batch {
            hits += u64::from(worker.step());
        }
        ops += batch;
    }
    Part { ops, hits, start, end: Instant::now() }
}

fn total(parts: &[Part], cpu_s: f64) -> Sample {
    let start = parts.iter().map(|p| p.start).min();
    let end = parts.iter().map(|p| p.end).max();
    let elapsed_s = match (start, end) {
        (Some(start), Some(end)) => end.duration_since(start).as_secs_f64(),
        _ => 0.0,
    };
    Sample {
        ops: parts.iter().map(|p| p.ops).sum(),
        hits: parts.iter().map(|p| p.hits).sum(),
        elapsed_s,
        cpu_s,
    }
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: `rusage` is plain integers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage` that the call fills; it keeps nothing.
    let code = unsafe { libc::getrusage(who, &raw mut usage) };
    assert_eq!(code, 0, "getrusage cannot fail on its own process");
    usage
}

/// User and system CPU seconds of this process so far.
pub(crate) fn cpu_seconds() -> f64 {
    seconds_of(&usage(libc::RUSAGE_SELF))
}

/// User and system CPU seconds of the calling thread so far.
pub(crate) fn own_cpu_seconds() -> f64 {
    seconds_of(&usage(libc::RUSAGE_THREAD))
}

fn seconds_of(usage: &libc::rusage) -> f64 {
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// System CPU seconds of this process so far.
pub(crate) fn system_cpu_seconds() -> f64 {
    let time = usage(libc::RUSAGE_SELF).ru_stime;
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

/// Page faults of this process so far that needed no read from storage.
pub(crate) fn page_faults() -> i64 {
    usage(libc::RUSAGE_SELF).ru_minflt
}

/// Involuntary context switches of the calling thread.
pub(crate) fn preemptions() -> i64 {
    usage(libc::RUSAGE_THREAD).ru_nivcsw
}

/// Lets the calling thread run before all others whenever it wants to, if the system allows it. For
/// a thread that stands for a device, which needs no CPU.
pub(crate) fn run_first() {
    // SAFETY: `sched_param` is plain integers, for which all zeroes is a value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = 1;
    // SAFETY: the pointer is to a live `sched_param`, of which the call keeps nothing. 0 is the
    // calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } == 0 {
        return;
    }
    const MOST_URGENT: libc::c_int = -20;
    // SAFETY: the call takes no pointer. On Linux 0 is the calling thread. It may be refused.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, MOST_URGENT) };
}

/// Peak resident memory of this process, in bytes.
pub(crate) fn peak_rss_bytes() -> u64 {
    // Linux counts `ru_maxrss` in KiB.
    usage(libc::RUSAGE_SELF).ru_maxrss as u64 * 1024
}

/// Resident memory of this process, in bytes; 0 without `/proc`.
pub(crate) fn rss_bytes() -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}

/// Bytes that this process has read from storage so far, which the page cache did not have. `None`
/// if the kernel does not count them.
pub(crate) fn storage_read_bytes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Every(u64, u64);

    impl Worker for Every {
        fn step(&mut self) -> bool {
            self.1 += 1;
            self.1.is_multiple_of(self.0)
        }
    }

    #[test]
    fn operations_are_exact() {
        let sample = run(3, Limit::Operations(1000), |_| Every(4, 0), || {});
        assert_eq!((sample.ops, sample.hits), (3000, 750));
        assert!(sample.elapsed_s > 0.0);
    }

    #[test]
    fn time_ends_a_run() {
        // On a busy machine a thread may not run in a short time, so longer ones are tried.
        let run_for = |ms| run(2, Limit::Time(Duration::from_millis(ms)), |_| Every(1, 0), || {});
        let sample = [60, 600, 6_000].into_iter().map(run_for).find(|sample| sample.ops > 0);
        let sample = sample.expect("an operation");
        assert_eq!(sample.ops, sample.hits);
        assert!(rss_bytes() > 0 && peak_rss_bytes() >= 4096);
    }
}
