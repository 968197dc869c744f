//! `memory`: memory per entry, and whether a hard bound holds.
//!
//! Each measurement runs in its own process, so that resident memory is its own.

use std::process::Command;

use forebay_base::arena::{Arena, Buffer};
use forebay_cache::{Attributes, Cache, Reclaim};

use super::{fold_children, lines};
use crate::blocks::fill;
use crate::keys::XorShift;
use crate::measure::{self, Worker, peak_rss_bytes, rss_bytes};
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel};
use crate::report::{Record, Value};
use crate::subjects::forebay::{bounded, built};

const NAME: &str = "memory";
const SUBJECT: &str = "forebay";
const ENTRIES: [u64; 5] = [1000, 10_000, 100_000, 1_000_000, 16_000_000];
const STORM_THREADS: usize = 32;
const MIN_STORM_BYTES: u64 = 512;
const STORM_DOUBLINGS: u64 = 11;

/// Options of `memory`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Entries of the largest cache.
    #[arg(long, default_value_t = 16_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) max_entries: u64,
    /// Run only the storm: inserts from 32 threads under a hard bound.
    #[arg(long)]
    pub(crate) storm: bool,
    /// Bound of the storm, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65536))]
    pub(crate) bound_mib: u64,
    /// Measure a cache of this many entries in this process and print figures.
    #[arg(long, hide = true)]
    pub(crate) child_entries: Option<u64>,
    /// Run the storm in this process and print figures.
    #[arg(long, hide = true)]
    pub(crate) child_storm: bool,
}

type Figures = Vec<(&'static str, f64)>;

/// Figures that the child processes print, in order.
const ENTRY_FIGURES: [&str; 10] = [
    "header_bytes_per_block",
    "list_bytes_per_block",
    "index_bytes_per_entry",
    "ghost_bytes_per_ghost",
    "overhead_bytes",
    "rss_bytes_per_block",
    "resident_blocks",
    "ghosts",
    "overhead_bytes_after_flush",
    "rss_bytes_after_flush",
];
const STORM_FIGURES: [&str; 7] = [
    "ops_per_s",
    "max_rss_bytes",
    "rss_to_bound",
    "uncached_ratio",
    "resident_bytes",
    "overhead_bytes",
    "cpu_s",
];

/// Measures all sizes, then the storm.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&[SUBJECT])?;
    if let Some(entries) = args.child_entries {
        return print(&entry_figures(entries));
    }
    if args.child_storm {
        let threads = common.threads_or(&[STORM_THREADS])?[0];
        return print(&storm_figures(common, args.bound_mib << 20, threads)?);
    }
    let mut records = Vec::new();
    if !args.storm {
        let mut sizes: Vec<u64> = ENTRIES.into_iter().filter(|n| *n < args.max_entries).collect();
        sizes.push(args.max_entries);
        for entries in sizes {
            let blank =
                || Record::new(NAME, SUBJECT, 1).param("load", "fill").param("entries", entries);
            let arguments = ["--child-entries".to_owned(), entries.to_string()];
            // Deterministic apart from the process's own memory: once is enough.
            records.extend(fold_children(1, || in_child(blank(), &arguments, &ENTRY_FIGURES))?);
        }
    }
    let threads = common.threads_or(&[STORM_THREADS])?[0];
    let bound = args.bound_mib << 20;
    let blank =
        || Record::new(NAME, SUBJECT, threads).param("load", "storm").param("bound_bytes", bound);
    let arguments = [
        "--child-storm".to_owned(),
        format!("--bound-mib={}", args.bound_mib),
        format!("--threads={threads}"),
        format!("--seconds={}", common.seconds),
        format!("--seed={}", common.seed),
    ];
    records.extend(fold_children(common.reps, || in_child(blank(), &arguments, &STORM_FIGURES))?);
    Ok(records)
}

fn print(figures: &Figures) -> Result<Vec<Record>, Failure> {
    for (name, value) in figures {
        println!("{name} {value}");
    }
    Ok(Vec::new())
}

fn in_child(
    mut record: Record,
    arguments: &[String],
    names: &[&'static str],
) -> Result<Record, Failure> {
    let output = Command::new(std::env::current_exe()?).arg("memory").args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the process that measures memory failed: {said}").into());
    }
    for name in names {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        if let Some(value) = line.and_then(|value| value.parse().ok()) {
            record = record.figure(name, value);
        }
    }
    Ok(record)
}

/// Fills a cache with words, uses them, inserts twice as many others, which leaves ghosts of both
/// kinds, and empties it.
fn entry_figures(entries: u64) -> Figures {
    let rss_before = rss_bytes();
    let builder = Cache::<u64, u64>::builder().capacity(entries).weigher(|_, _| 1);
    let cache = built(builder.reclaim(Reclaim::Inline));
    let each = |bytes: u64, n: u64| bytes as f64 / n.max(1) as f64;
    let insert = |range: std::ops::Range<u64>| {
        for key in range {
            // A refused block is missing from the count.
            let _ = cache.insert(key, key);
        }
    };
    insert(0..entries);
    let full = cache.stats();
    let rss_full = rss_bytes();
    for round in 1..3 {
        // Only reused blocks leave mfu ghosts.
        for key in (round - 1) * entries..round * entries {
            let _ = cache.get(&key);
        }
        insert(round * entries..(round + 1) * entries);
    }
    let ghosts = cache.stats();
    cache.clear();
    cache.trim();
    let empty = cache.stats();
    let values = [
        each(full.overhead.headers, full.resident_blocks()),
        each(full.overhead.lists, full.resident_blocks()),
        each(ghosts.index.resident_bytes, ghosts.index.entries),
        // Its slot in the ring and its slot in the index.
        each(ghosts.overhead.ghosts, ghosts.ghosts())
            + each(ghosts.index.resident_bytes, ghosts.index.entries),
        ghosts.overhead.total() as f64,
        each(rss_full.saturating_sub(rss_before), full.resident_blocks()),
        ghosts.resident_blocks() as f64,
        ghosts.ghosts() as f64,
        empty.overhead.total() as f64,
        rss_bytes().saturating_sub(rss_before) as f64,
    ];
    ENTRY_FIGURES.into_iter().zip(values).collect()
}

struct Storming<'a> {
    arena: &'a Arena,
    cache: &'a Cache<u64, Buffer>,
    rng: XorShift,
    next: u64,
    step: u64,
}

impl Worker for Storming<'_> {
    fn step(&mut self) -> bool {
        let key = self.next;
        self.next += self.step;
        // Every doubling from 512 bytes to 1 MiB is equally likely.
        let base = MIN_STORM_BYTES << self.rng.below(STORM_DOUBLINGS);
        let bytes = base + self.rng.below(base + 1);
        // Upper bound of the arena's use: a quarter more, in whole pages.
        let weight = (bytes + bytes / 4).next_multiple_of(MIN_STORM_BYTES);
        let make = || {
            let mut block = self.arena.alloc(bytes as usize)?;
            fill(&mut block, key);
            Ok::<_, forebay_base::arena::AllocError>(block)
        };
        self.cache.get_or_load_weighed(key, weight, Attributes::DATA, make).is_ok()
    }
}

fn storm_figures(common: &Common, bound_bytes: u64, threads: usize) -> Result<Figures, Failure> {
    let (arena, cache) = bounded(bound_bytes)?;
    let (arena, shared) = (&*arena, &cache);
    let make = |thread: usize| Storming {
        arena,
        cache: shared,
        rng: XorShift::new(common.seed + thread as u64),
        next: thread as u64,
        step: threads as u64,
    };
    let sample = measure::run(threads, common.limit(), make, || {});
    let stats = cache.stats();
    // Loads without memory, and blocks that were not cached.
    let uncached: u64 =
        ["refused_no_capacity", "refused_too_heavy", "refused_no_memory", "loads_failed"]
            .iter()
            .map(|name| stats.counter(name))
            .sum();
    let peak = peak_rss_bytes() as f64;
    let values = [
        sample.ops_per_s(),
        peak,
        peak / bound_bytes as f64,
        uncached as f64 / (sample.ops as f64).max(1.0),
        stats.resident_bytes() as f64,
        stats.overhead.total() as f64,
        sample.cpu_s,
    ];
    Ok(STORM_FIGURES.into_iter().zip(values).collect())
}

/// Bytes over entries.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let filled: Vec<&Record> = records.iter().filter(|r| r.get("entries").is_some()).collect();
    let entries = |r: &Record| match r.get("entries") {
        Some(Value::Integer(entries)) => *entries as f64,
        _ => 0.0,
    };
    let figures = ["header_bytes_per_block", "index_bytes_per_entry", "ghost_bytes_per_ghost"];
    let line = |figure: &&str| {
        let mut series = lines(&filled, entries, figure);
        series.iter_mut().for_each(|s| s.name = (*figure).to_owned());
        series
    };
    vec![Panel {
        title: "what an entry costs".to_owned(),
        x: Axis::log("entries"),
        y: Axis::log("memory per entry (bytes)"),
        series: figures.iter().flat_map(line).collect(),
    }]
}
