//! Runs workloads on all CPUs, verifies their crashes, and reports.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;

use super::Medium;
use super::images::{Bounds, Crash, crashes};
use super::run::{Variant, run};
use super::step::Workload;
use super::verify::Verification;

/// Attempts to repeat a failure with fewer steps: threads may have decided it.
const ATTEMPTS: usize = 2;

/// Bounds while the file system is closed.
const CLOSING: Bounds = Bounds { cuts: 6, samples: 1 };

/// Which crashes of a workload are verified, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thoroughness {
    pub(super) bounds: Bounds,
    /// Largest number of crashes of a workload: those after its last step, and some of the others.
    pub(super) crashes_max: usize,
    /// Crashes from the start on, not only from the last persistence point on.
    pub(super) from_start: bool,
    /// Of so many crashes one is checked ([`Verification::check`]); the others are compared.
    pub(super) check_every: u64,
    /// Runs each workload both with inodes that are open and with inodes that leave memory, not one
    /// of the two.
    pub(super) both: bool,
}

/// What was verified.
#[derive(Default)]
struct Coverage {
    workloads: usize,
    positions: usize,
    images: usize,
    checked: usize,
    /// Images whose log had records to replay.
    replayed: usize,
    /// Workloads with each verb.
    verbs: BTreeMap<&'static str, usize>,
}

/// A search for workloads that break a promise.
pub(super) struct Search {
    pub(super) medium: Medium,
    pub(super) seed: u64,
    thoroughness: Thoroughness,
    coverage: Mutex<Coverage>,
    failed: Mutex<Option<(Workload, String)>>,
    /// Ends the search after this time.
    pub(super) limit: Duration,
}

impl Search {
    pub(super) fn new(seed: u64, thoroughness: Thoroughness) -> Self {
        Self {
            medium: Medium::new(),
            seed,
            thoroughness,
            coverage: Mutex::default(),
            failed: Mutex::default(),
            limit: Duration::MAX,
        }
    }

    /// Verifies `count` workloads.
    ///
    /// # Panics
    /// With the shortest workload that fails.
    pub(super) fn run(&self, count: usize, make: impl Fn(usize, &mut SmallRng) -> Workload + Sync) {
        let (next, begun) = (AtomicUsize::new(0), Instant::now());
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let failed = lock(&self.failed).is_some();
                if at >= count || failed || begun.elapsed() > self.limit {
                    return;
                }
                let seed = self.seed ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let workload = make(at, &mut SmallRng::from_seed(seed));
                if let Err(reason) = self.verify_caught(&workload, true) {
                    lock(&self.failed).get_or_insert((workload, reason));
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
                scope.spawn(work);
            }
        });
        if let Some((workload, reason)) = lock(&self.failed).take() {
            let (shortest, reason) = self.shorten(workload.clone(), reason);
            panic!("found: {workload}\nFOREBAY_WORKLOAD=\"{shortest}\"\n{reason}");
        }
    }

    /// Removes steps as long as the workload fails.
    fn shorten(&self, mut workload: Workload, mut reason: String) -> (Workload, String) {
        let mut at = 0;
        while at < workload.0.len() {
            let mut fewer = workload.clone();
            fewer.0.remove(at);
            let failed = (0..ATTEMPTS).find_map(|_| self.verify_caught(&fewer, false).err());
            match failed {
                Some(why) => (workload, reason, at) = (fewer, why, 0),
                None => at += 1,
            }
        }
        (workload, reason)
    }

    /// As [`verify`](Self::verify), with a panic as a failure.
    fn verify_caught(&self, workload: &Workload, counted: bool) -> Result<(), String> {
        catch(|| self.verify(workload, counted)).unwrap_or_else(Err)
    }

    /// Verifies crashes of a workload. Random decisions depend only on the seed and the workload. A
    /// workload that is not counted shortens another one: it runs in both variants.
    fn verify(&self, workload: &Workload, counted: bool) -> Result<(), String> {
        for first in [false, true] {
            self.verify_variant(workload, first, counted)?;
        }
        Ok(())
    }

    fn verify_variant(
        &self,
        workload: &Workload,
        first: bool,
        counted: bool,
    ) -> Result<(), String> {
        let mut rng = SmallRng::from_seed(self.seed ^ hash(&workload.to_string()));
        let Thoroughness { bounds, crashes_max, from_start, check_every, both } = self.thoroughness;
        let (holds_first, small_log) = (rng.below(2) == 0, rng.below(2) == 0);
        if !both && !first && counted {
            return Ok(());
        }
        let variant = Variant { holds_inodes: holds_first == first, small_log: small_log == first };
        let Some(run) = run(&self.medium, workload, variant) else { return Ok(()) };
        let (mut known, mut all) = (HashSet::new(), Vec::new());
        let from = if from_start { run.start } else { run.last_point };
        let mut positions = 0;
        // At the end a group is committed, as in many other workloads.
        let closing = Bounds { cuts: bounds.cuts.min(CLOSING.cuts), ..CLOSING };
        let ranges = [((from, run.end), bounds), ((run.end, run.closed), closing)];
        for (range, bounds) in ranges {
            let out = (&mut known, &mut all);
            positions += crashes(&run.recording, range, bounds, &mut rng, out);
        }
        let (mut all, mut others): (Vec<Crash>, Vec<Crash>) =
            all.into_iter().partition(|crash| crash.position == run.end);
        while all.len() < crashes_max && !others.is_empty() {
            all.push(others.swap_remove(rng.below(others.len() as u64) as usize));
        }
        let workloads = usize::from(first);
        let mut coverage = Coverage { workloads, positions, ..Coverage::default() };
        for crash in &all {
            coverage.images += 1;
            let checked = rng.below(check_every) == 0;
            coverage.checked += usize::from(checked);
            let verification = Verification { medium: &self.medium, run: &run, crash };
            let verified = catch(|| match checked {
                true => verification.check(&mut rng),
                false => verification.compare(),
            })
            .unwrap_or_else(Err);
            let replayed = verified.map_err(|reason| format!("{variant:?}, {crash}: {reason}"))?;
            coverage.replayed += usize::from(replayed);
        }
        if counted {
            let mut verbs: Vec<_> = workload.0.iter().map(|step| step.verb.text()).collect();
            verbs.sort_unstable();
            verbs.dedup();
            coverage.verbs = verbs.into_iter().map(|verb| (verb, workloads)).collect();
            lock(&self.coverage).add(coverage);
        }
        Ok(())
    }

    /// Prints what was verified.
    pub(super) fn report(&self, what: &str) {
        let coverage = lock(&self.coverage);
        let Coverage { workloads, positions, images, checked, replayed, verbs } = &*coverage;
        println!("{workloads} {what}: {positions} crash points, {images} images");
        println!("  {checked} of the images were checked, {replayed} had a log to replay");
        let verbs = verbs.iter().map(|(verb, count)| format!("{verb} {count}"));
        println!("  workloads by step: {}", verbs.collect::<Vec<_>>().join(", "));
        assert!(*replayed > 0, "no log was replayed");
    }
}

impl Coverage {
    fn add(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.positions += other.positions;
        self.images += other.images;
        self.checked += other.checked;
        self.replayed += other.replayed;
        for (verb, count) in other.verbs {
            *self.verbs.entry(verb).or_default() += count;
        }
    }
}

fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Turns a panic into an error.
fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        format!("a panic: {}", text.unwrap_or("no message"))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
