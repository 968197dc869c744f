//! The load of `create`, mds-survey's, and its rates over time.
//!
//! Each name gets an object with attributes and a directory entry with its number, in one
//! transaction. Threads take names in turns. An observer records one bucket of time after another.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_base::waits::{self, WaitKind, Waits};

use crate::measure::{Sample, cpu_seconds};
use crate::names::{Name, Pooled, ThreadError, directory_of, fail};
use crate::options::Failure;
use crate::testbed::{resident_by_class, resident_in_mru};

/// Attributes of each object, as large as in R5's dnodes.
const ATTRIBUTES: [u8; 144] = [0x5a; 144];
/// Names that a thread takes at a time.
const NAMES_PER_TURN: u64 = 16;
/// Time between two observations.
const OBSERVE_EVERY: Duration = Duration::from_millis(2);

/// What a create waits for, and the figure of that.
pub(crate) const KINDS: [(WaitKind, &str); 3] = [
    (WaitKind::Device, "device_wait_ns"),
    (WaitKind::Lock, "lock_wait_ns"),
    (WaitKind::Transaction, "txg_wait_ns"),
];

/// Observations at the end of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Seconds since the start of the load.
    pub(crate) end_s: f64,
    /// Operations per second in the bucket.
    pub(crate) per_s: f64,
    /// Cached bytes, metadata and data.
    pub(crate) cached: [u64; 2],
    /// Cached bytes in mru.
    pub(crate) mru_bytes: u64,
    /// Dirty bytes.
    pub(crate) dirty_bytes: u64,
    /// Bytes of live buffers of the cache's arena: their blocks, and what was asked for.
    pub(crate) buffer_bytes: u64,
    pub(crate) requested_bytes: u64,
    /// Reads of the pool per second in the bucket that a thread waited for.
    pub(crate) waited_reads_per_s: f64,
}

/// A load without a time limit.
pub(crate) const NO_LIMIT: Duration = Duration::MAX;

/// The result of a load.
pub(crate) struct CreateResult {
    /// The whole load, until all of it is durable.
    pub(crate) sample: Sample,
    /// Complete buckets, in order.
    pub(crate) buckets: Vec<Bucket>,
    /// What the threads have waited for.
    waits: Waits,
}

impl CreateResult {
    /// Nanoseconds an operation that a thread waited for this.
    pub(crate) fn waited_ns_per_op(&self, kind: WaitKind) -> f64 {
        self.waits.of(kind) as f64 / self.sample.ops.max(1) as f64
    }

    /// Rates of the slowest and the fastest bucket after `warmup` buckets, or of the whole load.
    pub(crate) fn worst_and_best(&self, warmup: usize) -> (f64, f64) {
        let counted = self.buckets.get(warmup..).unwrap_or_default();
        let rates = || counted.iter().map(|bucket| bucket.per_s);
        if counted.is_empty() {
            return (self.sample.ops_per_s(), self.sample.ops_per_s());
        }
        (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max))
    }
}

/// Which name a number has, and what a create does first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateOptions {
    /// Whether names do not grow with their number.
    pub(crate) scrambled: bool,
    /// Whether a create looks the name up first, as a kernel does.
    pub(crate) lookup: bool,
}

/// Which names destroys remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Removals {
    /// Those that were created just before, in the same order.
    Newest,
    /// Some that existed before the import, each once.
    Random,
}

impl Removals {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Random => "random",
        }
    }
}

/// The number at a position in a random order of `0..count`, which is not 0. The order is the same
/// in each run.
pub(crate) fn nth_at_random(at: u64, count: u64) -> u64 {
    // A step without a common divisor with `count` visits each number once.
    let golden = (count as f64 * 0.618_034) as u64;
    let is_step = |step: &u64| greatest_common_divisor(*step, count) == 1;
    let step = (golden.max(1)..).find(is_step).unwrap_or(1);
    (u128::from(at) * u128::from(step) % u128::from(count)) as u64
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl CreateOptions {
    fn name(self, number: u64) -> Name {
        if self.scrambled { Name::scrambled(number) } else { Name::new(number) }
    }

    /// Creates an object for a name, as the file system does.
    pub(crate) fn create(self, pooled: &Pooled, number: u64) -> Result<(), ThreadError> {
        let name = self.name(number);
        let directory = &pooled.directories[directory_of(number)];
        if self.lookup && directory.lookup(name.bytes())?.is_some() {
            return Err("a name that exists already".into());
        }
        directory.warm(name.bytes())?;
        directory.pace()?;
        let tx = pooled.pool.begin()?;
        let object = pooled.data.create_object(&tx, &ATTRIBUTES)?;
        Ok(directory.insert(&tx, name.bytes(), &object.to_le_bytes())?)
    }

    /// Destroys the object of a name. If names are looked up first, that loads what the removal
    /// needs before the transaction.
    pub(crate) fn destroy(self, pooled: &Pooled, number: u64) -> Result<(), ThreadError> {
        let (name, directory) = (self.name(number), &pooled.directories[directory_of(number)]);
        if self.lookup {
            directory.lookup(name.bytes())?.ok_or("a name that does not exist")?;
        }
        let tx = pooled.pool.begin_freeing()?;
        let value = directory.remove(&tx, name.bytes())?;
        let object = value.first_chunk::<8>().ok_or("a value that is no number of an object")?;
        Ok(pooled.data.destroy(&tx, u64::from_le_bytes(*object))?)
    }
}

/// Moves all buffered names to their leaves, then makes everything durable. Threads take
/// directories in turns.
pub(crate) fn merge_all(pooled: &Pooled, threads: usize) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let merge = || {
        while let Some(directory) = pooled.directories.get(next.fetch_add(1, Ordering::Relaxed)) {
            while directory.merge_buffered()? > 0 {}
        }
        Ok::<(), ThreadError>(())
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(merge)).collect();
        let ended = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Result<Vec<()>, ThreadError>>().map_err(fail)
    })?;
    Ok(pooled.pool.sync()?)
}

/// Applies `change` to all names on threads, then makes everything durable. Ends early after
/// `most`.
pub(crate) fn run(
    pooled: &Pooled,
    threads: usize,
    names: Range<u64>,
    (bucket, most): (Duration, Duration),
    change: impl Fn(&Pooled, u64) -> Result<(), ThreadError> + Sync,
) -> Result<CreateResult, Failure> {
    let (next, done) = (AtomicU64::new(names.start), AtomicU64::new(0));
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let create_all = || {
        while !stop.load(Ordering::Relaxed) {
            let first = next.fetch_add(NAMES_PER_TURN, Ordering::Relaxed);
            let mine = first..names.end.min(first + NAMES_PER_TURN);
            if mine.is_empty() {
                break;
            }
            let many = mine.end - mine.start;
            for number in mine {
                change(pooled, number).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            }
            done.fetch_add(many, Ordering::Relaxed);
        }
        Ok::<(), ThreadError>(())
    };
    let work = || {
        barrier.wait();
        waits::begin(1);
        create_all().map(|()| waits::end(1))
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        barrier.wait();
        let (cpu_before, begun) = (cpu_seconds(), Instant::now());
        let reads = waited_reads(pooled);
        let mut recorder =
            BucketRecorder { begun, seen: 0, since: begun, reads, buckets: Vec::new() };
        while !handles.iter().all(|handle| handle.is_finished()) {
            std::thread::sleep(OBSERVE_EVERY);
            recorder.observe(pooled, bucket, &done);
            if begun.elapsed() >= most {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let mut all = Waits::default();
        for handle in handles {
            let ended = handle.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            let waits = ended.map_err(fail)?;
            KINDS.into_iter().for_each(|(kind, _)| all.add(kind, waits.of(kind)));
        }
        pooled.pool.sync()?;
        let (elapsed_s, cpu_s) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
        let ops = done.load(Ordering::Relaxed);
        let sample = Sample { ops, hits: ops, elapsed_s, cpu_s };
        Ok(CreateResult { sample, buckets: recorder.buckets, waits: all })
    })
}

impl CreateResult {
    /// Rates of the slowest bucket after `warmup` buckets and of the median one, or of the whole
    /// load.
    pub(crate) fn worst_and_median(&self, warmup: usize) -> (f64, f64) {
        let counted = self.buckets.get(warmup..).unwrap_or_default();
        let mut rates: Vec<f64> = counted.iter().map(|bucket| bucket.per_s).collect();
        rates.sort_unstable_by(f64::total_cmp);
        match (rates.first(), rates.get(rates.len() / 2)) {
            (Some(worst), Some(median)) => (*worst, *median),
            _ => (self.sample.ops_per_s(), self.sample.ops_per_s()),
        }
    }
}

/// Records the buckets of a load.
struct BucketRecorder {
    begun: Instant,
    seen: u64,
    since: Instant,
    reads: u64,
    buckets: Vec<Bucket>,
}

/// Reads of the pool that a thread waited for.
pub(crate) fn waited_reads(pooled: &Pooled) -> u64 {
    let counters = pooled.pool.stats().counters;
    let waited = counters.iter().filter(|c| (c.0, c.1) == ("reads", "miss"));
    waited.map(|c| c.2).sum()
}

impl BucketRecorder {
    fn observe(&mut self, pooled: &Pooled, bucket: Duration, done: &AtomicU64) {
        let now = Instant::now();
        let elapsed = now.duration_since(self.since);
        if elapsed < bucket {
            return;
        }
        let (all, reads) = (done.load(Ordering::Relaxed), waited_reads(pooled));
        let arena = pooled.cache.arena().stats();
        self.buckets.push(Bucket {
            end_s: now.duration_since(self.begun).as_secs_f64(),
            per_s: (all - self.seen) as f64 / elapsed.as_secs_f64(),
            cached: resident_by_class(&pooled.cache),
            mru_bytes: resident_in_mru(&pooled.cache),
            dirty_bytes: pooled.cache.dirty_bytes(),
            buffer_bytes: arena.used_bytes,
            requested_bytes: arena.requested_bytes,
            waited_reads_per_s: (reads - self.reads) as f64 / elapsed.as_secs_f64(),
        });
        (self.seen, self.since, self.reads) = (all, now, reads);
    }
}

#[cfg(test)]
mod tests {
    use super::nth_at_random;

    #[test]
    fn a_random_order_has_each_number_once() {
        for count in [1, 2, 10, 97, 1000, 1024] {
            let mut seen: Vec<u64> = (0..count).map(|at| nth_at_random(at, count)).collect();
            let neighbours = seen.windows(2).filter(|two| two[0].abs_diff(two[1]) < 2).count();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..count), "{count}");
            assert!(count < 10 || neighbours == 0, "{count}: {neighbours}");
        }
    }
}
