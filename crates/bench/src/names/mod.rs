//! Names in directories: the load of `zap` and `create`, and its subjects.
//!
//! Names are growing decimal numbers. Name `n` is in directory `n % 32`, like in mds-survey.
//! Threads take batches of consecutive names in turns and change each batch in one transaction.
//! Everything becomes durable every second and at the end, and that time counts. Lookups are of
//! random existing names.

#[cfg(feature = "peers")]
mod fjall;
mod forebay;
#[cfg(feature = "peers")]
mod redb;
mod shape;

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::keys::{XorShift, scramble};
use crate::measure::{Sample, cpu_seconds, own_cpu_seconds};
use crate::options::Failure;
use crate::report::Record;

#[cfg(feature = "peers")]
pub(crate) use self::fjall::Fjall;
#[cfg(feature = "peers")]
pub(crate) use self::redb::Redb;
pub(crate) use forebay::{PoolConfig, Pooled};
pub(crate) use shape::shape;

/// Number of directories, as in R5.
pub(crate) const DIRECTORIES: u64 = 32;
/// The first name, as in R5.
pub(crate) const FIRST_NAME: u64 = 500_000;
/// Time between two syncs.
const PERSIST_EVERY: Duration = Duration::from_secs(1);
/// Time between two checks for the end of the load.
const OBSERVE_EVERY: Duration = Duration::from_millis(2);

/// An error of a subject, on any thread.
pub(crate) type ThreadError = Box<dyn std::error::Error + Send + Sync>;

/// The decimal digits of a name.
pub(crate) struct Name {
    text: [u8; 20],
    start: usize,
}

impl Name {
    /// The name of a number.
    #[inline]
    pub(crate) fn new(mut number: u64) -> Self {
        let mut name = Self { text: [0; 20], start: 20 };
        loop {
            name.start -= 1;
            name.text[name.start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return name;
            }
        }
    }

    /// A name that does not grow with its number.
    #[inline]
    pub(crate) fn scrambled(number: u64) -> Self {
        Self::new(scramble(number))
    }

    /// The name's bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

/// Index of a name's directory.
#[inline]
pub(crate) fn directory_of(number: u64) -> usize {
    (number % DIRECTORIES) as usize
}

/// A key for a single key space: the directory, then the name.
#[cfg(feature = "peers")]
#[inline]
fn flat_key(number: u64) -> ([u8; 21], usize) {
    let name = Name::new(number);
    let mut key = [0; 21];
    key[0] = directory_of(number) as u8;
    let len = 1 + name.bytes().len();
    key[1..len].copy_from_slice(name.bytes());
    (key, len)
}

/// A store of names in directories.
pub(crate) trait Directories: Sync {
    /// State of a thread for lookups.
    type Lookup<'a>: Lookup
    where
        Self: 'a;

    /// Inserts names in one transaction, which need not be durable yet.
    fn insert(&self, batch: Range<u64>) -> Result<(), ThreadError>;
    /// Removes names in one transaction, which need not be durable yet.
    fn remove(&self, batch: Range<u64>) -> Result<(), ThreadError>;
    /// Makes all changes so far durable.
    fn persist(&self) -> Result<(), ThreadError>;
    /// Prepares a thread for lookups.
    fn lookup(&self) -> Result<Self::Lookup<'_>, ThreadError>;
    /// Adds the store's own figures to a row.
    fn describe(&self, record: Record) -> Result<Record, ThreadError> {
        Ok(record)
    }
}

/// Looks names up.
pub(crate) trait Lookup {
    /// Looks a name up.
    fn get(&mut self, number: u64) -> Result<Option<u64>, ThreadError>;
}

/// The size of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of threads.
    pub(crate) threads: usize,
    /// Number of names.
    pub(crate) count: u64,
    /// Changes per transaction.
    pub(crate) batch: u64,
    /// Seed of the threads' generators.
    pub(crate) seed: u64,
}

impl Load {
    /// All names.
    pub(crate) fn names(&self) -> Range<u64> {
        FIRST_NAME..FIRST_NAME + self.count
    }
}

/// Measures all phases of a subject: inserts, lookups, removals.
pub(crate) fn phases<D: Directories>(
    directories: &D,
    load: &Load,
    record: Record,
) -> Result<Record, Failure> {
    let inserted = changes(directories, load, |batch| directories.insert(batch))?;
    let record = add(record, ["insert_per_s", "insert_cpu_ns", "insert_own_cpu_ns"], inserted)
        .figure("insert_persists", inserted.persists as f64);
    let record = directories.describe(record).map_err(fail)?;
    let looked_up = lookups(directories, load)?;
    let record = add(record, ["lookup_per_s", "lookup_cpu_ns", "lookup_own_cpu_ns"], looked_up);
    let removed = changes(directories, load, |batch| directories.remove(batch))?;
    Ok(add(record, ["remove_per_s", "remove_cpu_ns", "remove_own_cpu_ns"], removed))
}

/// The cost of a phase.
#[derive(Clone, Copy)]
struct Phase {
    sample: Sample,
    /// CPU seconds of the load's threads only.
    own_cpu_s: f64,
    /// Number of syncs.
    persists: u64,
}

fn add(record: Record, [rate, cpu, own_cpu]: [&'static str; 3], phase: Phase) -> Record {
    let Phase { sample, own_cpu_s, .. } = phase;
    let own_cpu_ns = own_cpu_s * 1e9 / (sample.ops as f64).max(1.0);
    let record = record.figure(rate, sample.ops_per_s()).figure(cpu, sample.cpu_ns_per_op());
    record.figure(own_cpu, own_cpu_ns)
}

/// Converts an error of a thread.
pub(crate) fn fail(fault: ThreadError) -> Failure {
    fault
}

/// Changes all names batch by batch, and makes that durable.
fn changes<D: Directories>(
    directories: &D,
    load: &Load,
    change: impl Fn(Range<u64>) -> Result<(), ThreadError> + Sync,
) -> Result<Phase, Failure> {
    let (names, next) = (load.names(), AtomicU64::new(load.names().start));
    let work = |_| {
        loop {
            let first = next.fetch_add(load.batch, Ordering::Relaxed);
            if first >= names.end {
                return Ok(());
            }
            change(first..names.end.min(first + load.batch))?;
        }
    };
    timed(load.threads, load.count, work, || directories.persist())
}

/// Looks up as many random names as exist.
fn lookups<D: Directories>(directories: &D, load: &Load) -> Result<Phase, Failure> {
    let each = load.count / load.threads as u64;
    let work = |thread: usize| {
        let mut rng = XorShift::new(load.seed ^ scramble(thread as u64 + 1));
        let mut lookup = directories.lookup()?;
        for _ in 0..each {
            let number = FIRST_NAME + rng.below(load.count);
            if lookup.get(number)? != Some(number) {
                return Err(format!("name {number} has a wrong value or is missing").into());
            }
        }
        Ok(())
    };
    timed(load.threads, each * load.threads as u64, work, || Ok(()))
}

/// Runs `work` on threads, and `persist` every second and at the end. Both count.
fn timed(
    threads: usize,
    ops: u64,
    work: impl Fn(usize) -> Result<(), ThreadError> + Sync,
    persist: impl Fn() -> Result<(), ThreadError>,
) -> Result<Phase, Failure> {
    let barrier = Barrier::new(threads + 1);
    let failed = AtomicBool::new(false);
    let (barrier, work, failed) = (&barrier, &work, &failed);
    std::thread::scope(|scope| {
        let body = move |thread| {
            barrier.wait();
            work(thread).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            Ok::<_, ThreadError>(own_cpu_seconds())
        };
        let handles: Vec<_> = (0..threads).map(|t| scope.spawn(move || body(t))).collect();
        barrier.wait();
        let (cpu_before, begun) = (cpu_seconds(), Instant::now());
        let mut due = begun + PERSIST_EVERY;
        let (mut persists, mut own_cpu_s) = (1, 0.0);
        while !handles.iter().all(|handle| handle.is_finished()) {
            std::thread::sleep(OBSERVE_EVERY);
            if Instant::now() >= due && !failed.load(Ordering::Relaxed) {
                persist().map_err(fail)?;
                due += PERSIST_EVERY;
                persists += 1;
            }
        }
        for handle in handles {
            let ended = handle.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            own_cpu_s += ended.map_err(fail)?;
        }
        persist().map_err(fail)?;
        let (elapsed_s, cpu_s) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
        let sample = Sample { ops, hits: ops, elapsed_s, cpu_s };
        Ok(Phase { sample, own_cpu_s, persists })
    })
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn names_are_decimal() {
        for number in [0, 9, 10, 500_000, u64::MAX] {
            assert_eq!(Name::new(number).bytes(), number.to_string().as_bytes());
        }
    }
}
