//! `freeing`: inserts, lookups and evictions over indexes that free memory at once or later (R3).
//!
//! Each measurement runs in its own process, so that resident memory is its own.

use std::process::Command;

use super::{interleave, panels_over_threads};
use crate::freeing::{
    EpochIndex, HashIndex, Index, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, SecondChanceCache, TreeIndex,
};
use crate::keys::{Distribution, KeySpace, KeyStream};
use crate::measure::{self, Limit, Sample, Worker};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::subjects::forebay::{ArenaFreeing, HeapFreeing};

const NAME: &str = "freeing";
const THREADS: [usize; 3] = [1, 2, 8];
const SUBJECTS: [&str; 5] =
    ["forebay", "forebay-heap", "btree-locked", "hash-immediate", "hash-epoch"];

/// Options of `freeing`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Capacity of the cache, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(crate) capacity_mib: u64,
    /// Working set as a multiple of the cache.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) factor: u64,
    /// Operations of all threads per measurement.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..=1 << 40))]
    pub(crate) operations: u64,
    /// Distribution of the keys.
    #[arg(long, default_value = "zipf")]
    pub(crate) distribution: Distribution,
    /// Measure this subject in this process and print its figures.
    #[arg(long, hide = true)]
    pub(crate) child: Option<String>,
}

/// Measures all subjects, each in its own process.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let threads = common.threads_or(&THREADS)?;
    if let Some(subject) = &args.child {
        println!("{}", child_line(common, args, subject, threads[0])?);
        return Ok(Vec::new());
    }
    common.check_subjects(&SUBJECTS)?;
    let subjects: Vec<&str> = SUBJECTS.into_iter().filter(|s| common.wants(s)).collect();
    let mut records = Vec::new();
    for threads in threads {
        let found = interleave(common.reps, subjects.len(), |i, rep| {
            in_child(common, args, subjects[i], threads, rep as u64)
        })?;
        records.extend(fold_all(&found, &[ratio_to_btree()]));
    }
    Ok(records)
}

fn ratio_to_btree() -> Ratio<'static> {
    let against = Against::Subject("btree-locked");
    Ratio { name: "ratio_to_btree", figure: "ops_per_s", against }
}

fn in_child(
    common: &Common,
    args: &Args,
    subject: &str,
    threads: usize,
    rep: u64,
) -> Result<Record, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["freeing", "--child", subject])
        .args(["--threads", &threads.to_string()])
        .args(["--seed", &(common.seed + rep).to_string()])
        .args(["--capacity-mib", &args.capacity_mib.to_string()])
        .args(["--factor", &args.factor.to_string()])
        .args(["--operations", &args.operations.to_string()])
        .args(["--distribution", args.distribution.name()])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the process that measures {subject} failed: {said}").into());
    }
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let [ops_per_s, hit_ratio, cpu_s, peak_rss_bytes, resident_bytes] = numbers?[..] else {
        return Err(format!("the process that measures {subject} printed {text:?}").into());
    };
    Ok(Record::new(NAME, subject, threads)
        .param("distribution", args.distribution.name())
        .param("capacity_bytes", args.capacity_mib << 20)
        .figure("ops_per_s", ops_per_s)
        .figure("hit_ratio", hit_ratio)
        .figure("cpu_s", cpu_s)
        .figure("cpu_ns_per_op", cpu_s * 1e9 / args.operations as f64)
        .figure("peak_rss_bytes", peak_rss_bytes)
        .figure("resident_block_bytes", resident_bytes))
}

/// The figures of one measurement, in the order in which `in_child` reads them.
fn child_line(
    common: &Common,
    args: &Args,
    subject: &str,
    threads: usize,
) -> Result<String, Failure> {
    let capacity = args.capacity_mib << 20;
    let (sample, resident) = match subject {
        "forebay" => load(&ArenaFreeing::new(capacity), common, args, threads),
        "forebay-heap" => load(&HeapFreeing::new(capacity), common, args, threads),
        "btree-locked" => second_chance::<TreeIndex>(common, args, capacity, threads),
        "hash-immediate" => second_chance::<HashIndex>(common, args, capacity, threads),
        "hash-epoch" => second_chance::<EpochIndex>(common, args, capacity, threads),
        other => return Err(format!("unknown subject `{other}`").into()),
    };
    let (speed, hits) = (sample.ops_per_s(), sample.hit_ratio());
    Ok(format!("{speed} {hits} {} {} {resident}", sample.cpu_s, measure::peak_rss_bytes()))
}

/// A cache that makes and inserts missing blocks.
pub(crate) trait Freeing: Send + Sync {
    /// Looks a block up; makes and inserts it on a miss. Returns true for a hit.
    fn get_or_insert(&self, key: u64) -> bool;
    /// Bytes of resident blocks.
    fn bytes(&self) -> u64;
}

impl<I: Index> Freeing for SecondChanceCache<I> {
    fn get_or_insert(&self, key: u64) -> bool {
        SecondChanceCache::get_or_insert(self, key)
    }

    fn bytes(&self) -> u64 {
        SecondChanceCache::bytes(self)
    }
}

struct FreeingWorker<'a, S> {
    cache: &'a S,
    keys: KeyStream,
}

impl<S: Freeing> Worker for FreeingWorker<'_, S> {
    #[inline]
    fn step(&mut self) -> bool {
        let key = self.keys.next();
        self.cache.get_or_insert(key)
    }
}

fn second_chance<I: Index>(
    common: &Common,
    args: &Args,
    capacity: u64,
    threads: usize,
) -> (Sample, u64) {
    load(&SecondChanceCache::<I>::new(capacity), common, args, threads)
}

/// Runs the load on a cache. Returns the sample and the resident bytes at its end.
fn load<S: Freeing>(cache: &S, common: &Common, args: &Args, threads: usize) -> (Sample, u64) {
    let mean_block = (MIN_BLOCK_BYTES + MAX_BLOCK_BYTES) / 2;
    let blocks = (args.capacity_mib << 20) * args.factor / mean_block;
    let keys = KeySpace::new(args.distribution, blocks, common.seed);
    let make = |thread| FreeingWorker { cache, keys: keys.stream(thread, threads, common.seed) };
    let each = Limit::Operations(args.operations / threads as u64);
    let sample = measure::run(threads, each, make, || {});
    (sample, cache.bytes())
}

/// Throughput and peak memory over threads.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let mut panels = panels_over_threads(records, &["distribution"], "ops_per_s");
    panels.extend(panels_over_threads(records, &["distribution"], "peak_rss_bytes"));
    panels
}
