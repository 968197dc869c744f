//! `create`: R5's mds-survey. Creates objects with attributes and their names in 32 directories
//! while the cache fills, when it is full, and cold.
//!
//! With `--preload`, names exist before. The pool is then exported, and imported with the requested
//! cache and slow reads. With `--cycle`, iterations of creates and destroys follow that import. The
//! first ones show how long a cold cache slows them down.

use std::time::{Duration, Instant};

use forebay_pool::DatasetSettings;

use super::{interleave, lines};
use crate::creates::{self, Bucket, CreateOptions, CreateResult, NO_LIMIT, Removals};
use crate::names::{FIRST_NAME, PoolConfig, Pooled};
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel};
use crate::report::{Against, Ratio, Record, fold, fold_all};
use crate::testbed::{self, BackingArgs};

const NAME: &str = "create";
const BY_TIME: &str = "create-by-time";
const CYCLE: &str = "create-cycle";
const SUBJECTS: [&str; 3] = ["forebay", "no-change-buffer", "lru"];
const THREADS: [usize; 1] = [2];
/// Size of the cache during the preload, in bytes.
const PRELOAD_CACHE_BYTES: u64 = 2 << 30;
/// Size of a dnode, in bytes.
const DNODE_BYTES: u64 = 512;

/// Options of `create`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) backing: BackingArgs,
    /// Names that are created before the measurement.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub(crate) preload: u64,
    /// Number of creates.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) count: u64,
    /// Bound of the cache, including dirty data.
    #[arg(long, default_value = "1GiB", value_parser = testbed::bytes)]
    pub(crate) cache: u64,
    /// Bound of the cache as a multiple of the preloaded leaves' bytes, instead of --cache.
    #[arg(long)]
    pub(crate) cache_leaves: Option<f64>,
    /// Creates until dnodes take so many caches, instead of --count.
    #[arg(long)]
    pub(crate) dnode_caches: Option<f64>,
    /// Extra time of each read after the preload, in milliseconds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) delay: u64,
    /// Reads that the device serves per second after the preload; 0: any number.
    #[arg(long, default_value_t = 0)]
    pub(crate) reads_per_s: u32,
    /// Names do not grow.
    #[arg(long)]
    pub(crate) random_names: bool,
    /// Look each name up before it is created, as a kernel does.
    #[arg(long)]
    pub(crate) lookup: bool,
    /// Move all buffered names to their leaves at the end. That time counts.
    #[arg(long)]
    pub(crate) merge: bool,
    /// Seconds after which other subjects than `forebay` stop; 0: never.
    #[arg(long, default_value_t = 0)]
    pub(crate) limit: u64,
    /// Iterations of creates and destroys after an import with a cold cache, instead.
    #[arg(long, default_value_t = 0)]
    pub(crate) cycle: u64,
    /// Creates, and destroys, per iteration.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iteration: u64,
    /// Names that the destroys of an iteration remove.
    #[arg(long, value_enum, default_value_t = Removals::Newest)]
    pub(crate) removals: Removals,
    /// Length of a time bucket, in milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) bucket: u64,
    /// Buckets at the start that do not count.
    #[arg(long, default_value_t = 1)]
    pub(crate) warmup: usize,
    /// Copies of metadata.
    #[arg(long, default_value_t = DatasetSettings::default().metadata_copies, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) copies: u8,
    /// A tunable of the pool; repeatable.
    #[arg(long = "pool-tunable", value_name = "NAME=VALUE", value_parser = tunable)]
    pub(crate) tunables: Vec<(String, String)>,
}

impl Args {
    fn options(&self) -> CreateOptions {
        CreateOptions { scrambled: self.random_names, lookup: self.lookup }
    }
}

fn tunable(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').ok_or("NAME=VALUE")?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

/// Measures all subjects.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&SUBJECTS)?;
    let removed = args.cycle.saturating_mul(args.iteration);
    if args.removals == Removals::Random && removed > args.preload {
        let text = format!(
            "--removals random removes {removed} preloaded names, but --preload is {}; \
             preload as many, or reduce --cycle or --iteration",
            args.preload
        );
        return Err(text.into());
    }
    let mut cells = Vec::new();
    for threads in common.threads_or(&THREADS)? {
        let wanted = SUBJECTS.into_iter().filter(|subject| common.wants(subject));
        cells.extend(wanted.map(|subject| (threads, subject)));
    }
    // By cell and repetition.
    let mut details: Vec<Vec<Vec<Record>>> = vec![Vec::new(); cells.len()];
    let found = interleave(common.reps, cells.len(), |i, _| {
        let (threads, subject) = cells[i];
        let (record, detail) = one(common, args, subject, threads)?;
        details[i].push(detail);
        Ok::<Record, Failure>(record)
    })?;
    let against = Against::Subject("lru");
    let ratio = Ratio { name: "ratio_to_lru", figure: "creates_per_s", against };
    let mut records = if args.cycle == 0 { fold_all(&found, &[ratio]) } else { Vec::new() };
    records.extend(details.iter().flat_map(|repetitions| by_time(repetitions)));
    Ok(records)
}

/// Medians of the repetitions' buckets, as long as all repetitions ran.
fn by_time(repetitions: &[Vec<Record>]) -> Vec<Record> {
    let length = repetitions.iter().map(Vec::len).min().unwrap_or(0);
    let at = |i: usize| -> Vec<Record> { repetitions.iter().map(|r| r[i].clone()).collect() };
    (0..length).filter_map(|i| fold(&at(i))).collect()
}

/// One measurement: the row of the whole, and rows by time or by iteration.
fn one(
    common: &Common,
    args: &Args,
    subject: &'static str,
    threads: usize,
) -> Result<(Record, Vec<Record>), Failure> {
    let (pooled, leaf_bytes) = prepared(common, args, subject, threads)?;
    let cache_bytes = pooled.cache.bound_bytes();
    let record = Record::new(NAME, subject, threads)
        .param("preload", args.preload)
        .param("delay_ms", args.delay)
        .param("config", pooled.testbed.config().as_str());
    let start = FIRST_NAME + args.preload;
    if args.cycle > 0 {
        return Ok((record, cycle(args, &pooled, subject, threads, start)?));
    }
    let of_dnodes = |caches: f64| (caches * cache_bytes as f64) as u64 / DNODE_BYTES;
    let count = args.dnode_caches.map_or(args.count, of_dnodes);
    let bucket = Duration::from_millis(args.bucket);
    let most = match args.limit {
        0 => NO_LIMIT,
        _ if subject == "forebay" => NO_LIMIT,
        limit => Duration::from_secs(limit),
    };
    let options = args.options();
    let create = |pooled: &Pooled, number| options.create(pooled, number);
    let mut found = creates::run(&pooled, threads, start..start + count, (bucket, most), create)?;
    if args.merge {
        let begun = Instant::now();
        creates::merge_all(&pooled, threads)?;
        found.sample.elapsed_s += begun.elapsed().as_secs_f64();
    }
    let detail = found.buckets.iter().map(|bucket| row(subject, threads, bucket)).collect();
    Ok((whole(record, args, &pooled, &found, (cache_bytes, leaf_bytes))?, detail))
}

/// Counters of the pool since its import, and their figures.
const COUNTERS: [(&str, &str, &str); 22] = [
    ("reads", "miss", "reads_waited_for"),
    ("read_ns", "miss", "reads_waited_for_ns"),
    ("reads", "prefetch", "reads_ahead"),
    ("read_ns", "prefetch", "reads_ahead_ns"),
    ("directory_waits", "leaf", "leaves_waited_for"),
    ("directory_wait_ns", "leaf", "leaves_waited_for_ns"),
    ("directory_waits", "filter", "filters_waited_for"),
    ("directory_wait_ns", "filter", "filters_waited_for_ns"),
    ("directory_waits", "page", "pages_waited_for"),
    ("directory_wait_ns", "page", "pages_waited_for_ns"),
    ("blocks_written", "", "blocks_written"),
    ("logical_bytes", "", "logical_bytes_written"),
    ("physical_bytes", "", "physical_bytes_written"),
    ("directory_names_buffered", "", "names_buffered"),
    ("directory_names_merged", "", "names_merged"),
    ("directory_leaves_merged", "", "leaves_merged"),
    ("directory_filter_absent", "", "filter_absent"),
    ("directory_filter_maybe", "", "filter_maybe"),
    ("directory_filter_false", "", "filter_false"),
    ("directory_filters_voided", "", "filters_voided"),
    ("directory_merge_reads", "", "merge_reads"),
    ("directory_creates_slowed", "", "creates_slowed"),
];

/// The figures of a whole load.
fn whole(
    record: Record,
    args: &Args,
    pooled: &Pooled,
    found: &CreateResult,
    (cache_bytes, leaf_bytes): (u64, u64),
) -> Result<Record, Failure> {
    let (worst, best) = found.worst_and_best(args.warmup);
    let (slowest, median) = found.worst_and_median(args.warmup);
    let [metadata, data] = testbed::resident_by_class(&pooled.cache);
    let mut record = record
        .figure("creates", found.sample.ops as f64)
        .figure("creates_per_s", found.sample.ops_per_s())
        .figure("best_per_s", best)
        .figure("worst_per_s", worst)
        .figure("worst_to_best", worst / best.max(1.0))
        .figure("median_per_s", median)
        .figure("worst_to_median", slowest / median.max(1.0))
        .figure("cpu_ns_per_op", found.sample.cpu_ns_per_op())
        .figure("cache_bytes", cache_bytes as f64)
        .figure("preloaded_leaf_bytes", leaf_bytes as f64)
        .figure("cached_metadata_bytes", metadata as f64)
        .figure("cached_data_bytes", data as f64);
    for (kind, figure) in creates::KINDS {
        record = record.figure(figure, found.waited_ns_per_op(kind));
    }
    let stats = pooled.cache.cache().stats();
    record = record.figure("hit_ratio", stats.hit_ratio());
    let pool = pooled.pool.stats();
    record = record.figure("newest_txg", pool.synced_txg as f64);
    let counters = pool.counters;
    for (name, label, figure) in COUNTERS {
        let counted = counters.iter().filter(|c| (c.0, c.1) == (name, label)).map(|c| c.2);
        record = record.figure(figure, counted.sum::<u64>() as f64);
    }
    if args.delay == 0 {
        // Reads all leaves.
        let (used, stored) = leaf_bytes_of(pooled)?;
        record = record.figure("leaf_fill", used as f64 / stored.max(1) as f64);
    }
    Ok(record)
}

fn row(subject: &str, threads: usize, bucket: &Bucket) -> Record {
    Record::new(BY_TIME, subject, threads)
        .figure("second", bucket.end_s)
        .figure("creates_per_s", bucket.per_s)
        .figure("cached_metadata_bytes", bucket.cached[0] as f64)
        .figure("cached_data_bytes", bucket.cached[1] as f64)
        .figure("cached_mru_bytes", bucket.mru_bytes as f64)
        .figure("dirty_bytes", bucket.dirty_bytes as f64)
        .figure("reads_waited_for_per_s", bucket.waited_reads_per_s)
}

/// Prepares a pool for the load. Returns the bytes of its leaves too.
fn prepared(
    common: &Common,
    args: &Args,
    subject: &str,
    threads: usize,
) -> Result<(Pooled, u64), Failure> {
    let cold = args.preload > 0 || args.cycle > 0;
    let cache_bytes = if cold { args.cache.max(PRELOAD_CACHE_BYTES) } else { args.cache };
    let setting = PoolConfig {
        backing: &args.backing,
        cache_bytes,
        plain_lru: subject == "lru",
        pool_tunables: &args.tunables,
        copies: args.copies,
        seed: common.seed,
    };
    let buffers = subject != "no-change-buffer";
    let mut tunables = vec![("directory_buffer".to_owned(), buffers.to_string())];
    // The last one counts: `--pool-tunable` can set it for all subjects.
    tunables.extend(args.tunables.iter().cloned());
    let setting = PoolConfig { pool_tunables: &tunables, ..setting };
    let mut pooled = Pooled::new(&setting)?;
    if !cold {
        return Ok((pooled, 0));
    }
    let names = FIRST_NAME..FIRST_NAME + args.preload;
    let bucket = Duration::from_millis(args.bucket);
    let options = args.options();
    let create = |pooled: &Pooled, number| options.create(pooled, number);
    creates::run(&pooled, threads, names, (bucket, NO_LIMIT), create)?;
    let (_, leaf_bytes) = leaf_bytes_of(&pooled)?;
    let of_leaves = |times: f64| (times * leaf_bytes as f64) as u64;
    let cache_bytes = args.cache_leaves.map_or(args.cache, of_leaves);
    let delay = Duration::from_millis(args.delay);
    pooled = pooled.again(&PoolConfig { cache_bytes, ..setting }, (delay, args.reads_per_s))?;
    Ok((pooled, leaf_bytes))
}

/// Used bytes and stored bytes of all leaves.
fn leaf_bytes_of(pooled: &Pooled) -> Result<(u64, u64), Failure> {
    let (mut used, mut stored) = (0, 0);
    for directory in &pooled.directories {
        let stats = directory.stats()?;
        used += stats.used_bytes;
        stored += stats.stored_bytes;
    }
    Ok((used, stored))
}

/// Runs iterations on a cold cache, a row each.
fn cycle(
    args: &Args,
    pooled: &Pooled,
    subject: &str,
    threads: usize,
    start: u64,
) -> Result<Vec<Record>, Failure> {
    let bucket = Duration::from_millis(args.bucket);
    let mut rows = Vec::new();
    let mut best = 0.0f64;
    for iteration in 0..args.cycle {
        let names = start + iteration * args.iteration..start + (iteration + 1) * args.iteration;
        let options = args.options();
        let create = |pooled: &Pooled, number| options.create(pooled, number);
        let destroy = |pooled: &Pooled, number| match args.removals {
            Removals::Newest => options.destroy(pooled, number),
            Removals::Random => {
                let number = creates::nth_at_random(number - start, args.preload);
                options.destroy(pooled, FIRST_NAME + number)
            }
        };
        let begun = creates::waited_reads(pooled);
        let created = creates::run(pooled, threads, names.clone(), (bucket, NO_LIMIT), create)?;
        let between = creates::waited_reads(pooled);
        let destroyed = creates::run(pooled, threads, names, (bucket, NO_LIMIT), destroy)?;
        let ended = creates::waited_reads(pooled);
        let waits = creates::KINDS.map(|(kind, figure)| (figure, created.waited_ns_per_op(kind)));
        let (created, destroyed) = (created.sample, destroyed.sample);
        let elapsed_s = created.elapsed_s + destroyed.elapsed_s;
        let per_s = (created.ops + destroyed.ops) as f64 / elapsed_s;
        best = best.max(per_s);
        let row = Record::new(CYCLE, subject, threads)
            .param("preload", args.preload)
            .param("delay_ms", args.delay)
            .param("removals", args.removals.name())
            .param("iteration", iteration + 1)
            .figure("changes_per_s", per_s)
            .figure("creates_per_s", created.ops_per_s())
            .figure("destroys_per_s", destroyed.ops_per_s())
            .figure("create_reads_waited_for", (between - begun) as f64)
            .figure("destroy_reads_waited_for", (ended - between) as f64);
        rows.push(waits.into_iter().fold(row, |row, (figure, ns)| row.figure(figure, ns)));
    }
    let share = |row: Record| {
        let per_s = row.number("changes_per_s").unwrap_or(0.0);
        row.figure("share_of_best", per_s / best)
    };
    Ok(rows.into_iter().map(share).collect())
}

/// Creates, and reads that delay them, over time; or changes by iteration.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let figures = [
        (BY_TIME, "Creates while the cache fills", "creates_per_s", "second"),
        (BY_TIME, "Reads that creates wait for", "reads_waited_for_per_s", "second"),
        (CYCLE, "Creates and removes after an import", "changes_per_s", "iteration"),
    ];
    let mut panels = Vec::new();
    for (bench, title, figure, x) in figures {
        let own: Vec<&Record> =
            records.iter().filter(|r| r.get("bench") == Some(&bench.into())).collect();
        if own.is_empty() {
            continue;
        }
        panels.push(Panel {
            title: title.to_owned(),
            x: Axis::of(x),
            y: Axis::of(figure),
            series: lines(&own, |r| x_of(r, x), figure),
        });
    }
    panels
}

fn x_of(record: &Record, x: &str) -> f64 {
    match record.get(x) {
        Some(crate::report::Value::Integer(number)) => *number as f64,
        _ => record.number(x).unwrap_or(0.0),
    }
}
