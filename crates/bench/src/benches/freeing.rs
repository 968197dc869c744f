//! `freeing`: inserts, lookups and evictions over indexes that free memory at once or later (R3).
//!
//! Each measurement runs in its own process, so that resident memory is its own.

use std::process::Command;

use super::{interleave, panels_over_threads};
use crate::freeing::{
    ArenaFreeing, EpochIndex, HashIndex, HeapFreeing, Index, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES,
    PagedFreeing, SecondChanceCache, TreeIndex, Walk,
};
use crate::keys::{Distribution, KeySpace, KeyStream};
use crate::measure::{self, Limit, Sample, Worker};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};

const NAME: &str = "freeing";
const THREADS: [usize; 3] = [1, 2, 8];
const SUBJECTS: [&str; 6] =
    ["forebay", "forebay-heap", "forebay-paged", "btree-locked", "hash-immediate", "hash-epoch"];
/// What a process that measures prints, in order.
const FIGURES: [&str; 7] = [
    "ops_per_s",
    "hit_ratio",
    "cpu_s",
    "system_cpu_s",
    "page_faults",
    "peak_rss_bytes",
    "resident_block_bytes",
];

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
    /// Read each block at offsets that depend on its key.
    #[arg(long)]
    pub(crate) spread: bool,
    /// Measure this subject in this process and print its figures.
    #[arg(long, hide = true)]
    pub(crate) child: Option<String>,
}

impl Args {
    fn walk(&self) -> Walk {
        if self.spread { Walk::SpreadOffsets } else { Walk::SameOffsets }
    }
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
        .args(args.spread.then_some("--spread"))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the process that measures {subject} failed: {said}").into());
    }
    let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    if numbers.len() != FIGURES.len() {
        return Err(format!("the process that measures {subject} printed {text:?}").into());
    }
    let record = Record::new(NAME, subject, threads)
        .param("distribution", args.distribution.name())
        .param("spread", args.spread)
        .param("capacity_bytes", args.capacity_mib << 20);
    let figures = FIGURES.into_iter().zip(numbers);
    let record = figures.fold(record, |record, (name, value)| record.figure(name, value));
    let cpu_s = record.number("cpu_s").unwrap_or(0.0);
    Ok(record.figure("cpu_ns_per_op", cpu_s * 1e9 / args.operations as f64))
}

/// The figures of one measurement.
fn child_line(
    common: &Common,
    args: &Args,
    subject: &str,
    threads: usize,
) -> Result<String, Failure> {
    let (capacity, walk) = (args.capacity_mib << 20, args.walk());
    let loaded = match subject {
        "forebay" => load(&ArenaFreeing::new(capacity, walk), common, args, threads),
        "forebay-heap" => load(&HeapFreeing::new(capacity, walk), common, args, threads),
        "forebay-paged" => load(&PagedFreeing::new(capacity, walk), common, args, threads),
        "btree-locked" => second_chance::<TreeIndex>(common, args, capacity, threads),
        "hash-immediate" => second_chance::<HashIndex>(common, args, capacity, threads),
        "hash-epoch" => second_chance::<EpochIndex>(common, args, capacity, threads),
        other => return Err(format!("unknown subject `{other}`").into()),
    };
    let sample = loaded.sample;
    let values = [
        sample.ops_per_s(),
        sample.hit_ratio(),
        sample.cpu_s,
        loaded.system_cpu_s,
        loaded.page_faults as f64,
        measure::peak_rss_bytes() as f64,
        loaded.resident_bytes as f64,
    ];
    Ok(values.map(|value| value.to_string()).join(" "))
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

/// What the load did, and what it cost the process.
struct Loaded {
    sample: Sample,
    system_cpu_s: f64,
    page_faults: i64,
    /// Bytes of resident blocks at its end.
    resident_bytes: u64,
}

fn second_chance<I: Index>(common: &Common, args: &Args, capacity: u64, threads: usize) -> Loaded {
    load(&SecondChanceCache::<I>::new(capacity, args.walk()), common, args, threads)
}

/// Runs the load on a cache.
fn load<S: Freeing>(cache: &S, common: &Common, args: &Args, threads: usize) -> Loaded {
    let mean_block = (MIN_BLOCK_BYTES + MAX_BLOCK_BYTES) / 2;
    let blocks = (args.capacity_mib << 20) * args.factor / mean_block;
    let keys = KeySpace::new(args.distribution, blocks, common.seed);
    let make = |thread| FreeingWorker { cache, keys: keys.stream(thread, threads, common.seed) };
    let each = Limit::Operations(args.operations / threads as u64);
    let (system_before, faults_before) = (measure::system_cpu_seconds(), measure::page_faults());
    let sample = measure::run(threads, each, make, || {});
    Loaded {
        sample,
        system_cpu_s: measure::system_cpu_seconds() - system_before,
        page_faults: measure::page_faults() - faults_before,
        resident_bytes: cache.bytes(),
    }
}

/// Throughput and peak memory over threads.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let mut panels = panels_over_threads(records, &["distribution"], "ops_per_s");
    panels.extend(panels_over_threads(records, &["distribution"], "peak_rss_bytes"));
    panels
}
