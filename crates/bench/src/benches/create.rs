//! `create`: R5's mds-survey. Creates objects with attributes and their names in 32 directories
//! while the cache fills, when it is full, and cold.
//!
//! With `--preload`, names exist before. The pool is then exported, and imported with the requested
//! cache and slow reads. With `--cycle`, iterations of creates and destroys follow that import. The
//! first ones show how long a cold cache slows them down. With `--l2`, there are subjects whose
//! blocks go to an L2 when they leave memory, and come back from there at its own speed.

use std::time::{Duration, Instant};

use forebay_pool::{DatasetSettings, L2DeviceState, L2DeviceStats};

use super::{interleave, lines};
use crate::creates::{self, Bucket, CreateOptions, CreateResult, NO_LIMIT, Removals};
use crate::names::{FIRST_NAME, PoolConfig, Pooled};
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel};
use crate::report::{Against, Ratio, Record, fold, fold_all};
use crate::testbed::{self, BackingArgs, L2Args};

const NAME: &str = "create";
const BY_TIME: &str = "create-by-time";
const CYCLE: &str = "create-cycle";
const LRU: &str = "lru";
const SUBJECTS: [Subject; 5] = [
    Subject::new("forebay"),
    Subject { buffer: false, ..Subject::new("no-change-buffer") },
    Subject { lru: true, ..Subject::new(LRU) },
    Subject { l2: true, ..Subject::new("forebay-l2") },
    Subject { l2: true, buffer: false, ..Subject::new("no-change-buffer-l2") },
];
const THREADS: [usize; 1] = [2];
/// Size of the cache during the preload, in bytes.
const PRELOAD_CACHE_BYTES: u64 = 2 << 30;
/// Size of a dnode, in bytes.
const DNODE_BYTES: u64 = 512;

/// A pool in one configuration.
#[derive(Clone, Copy, Debug)]
struct Subject {
    name: &'static str,
    /// Whether new names may wait in change buffers.
    buffer: bool,
    /// Whether the cache is one LRU list.
    lru: bool,
    /// Whether the pool has an L2.
    l2: bool,
}

impl Subject {
    const fn new(name: &'static str) -> Self {
        Self { name, buffer: true, lru: false, l2: false }
    }
}

/// Options of `create`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) backing: BackingArgs,
    #[command(flatten)]
    pub(crate) l2: L2Args,
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
    let subjects = wanted(common, args)?;
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
        cells.extend(subjects.iter().map(|subject| (threads, *subject)));
    }
    // By cell and repetition.
    let mut details: Vec<Vec<Vec<Record>>> = vec![Vec::new(); cells.len()];
    let found = interleave(common.reps, cells.len(), |i, _| {
        let (threads, subject) = cells[i];
        let (record, detail) = one(common, args, subject, threads)?;
        details[i].push(detail);
        Ok::<Record, Failure>(record)
    })?;
    let mut records = if args.cycle == 0 { fold_all(&found, &ratios(args)) } else { Vec::new() };
    records.extend(details.iter().flat_map(|repetitions| by_time(repetitions)));
    Ok(records)
}

/// The requested subjects. Those with an L2 need its device.
fn wanted(common: &Common, args: &Args) -> Result<Vec<Subject>, Failure> {
    common.check_subjects(&SUBJECTS.map(|subject| subject.name))?;
    let (has_l2, all) = (args.l2.l2.is_some(), common.subjects.is_empty());
    let subjects = SUBJECTS.into_iter().filter(|subject| common.wants(subject.name));
    let subjects: Vec<_> = subjects.filter(|subject| has_l2 || !subject.l2 || !all).collect();
    if let Some(Subject { name, .. }) = subjects.iter().find(|subject| subject.l2 && !has_l2) {
        let text = format!("subject `{name}` needs an L2 device; give `--l2 mem` or `--l2 PATH`");
        return Err(text.into());
    }
    if args.l2.l2_warm && args.preload == 0 {
        return Err("--l2-warm fills the L2 with preloaded names; give --preload".into());
    }
    Ok(subjects)
}

/// Ratios of creates per second: to LRU, and with an L2 to the subjects without one.
fn ratios(args: &Args) -> Vec<Ratio<'static>> {
    let to =
        |name, subject| Ratio { name, figure: "creates_per_s", against: Against::Subject(subject) };
    let mut ratios = vec![to("ratio_to_lru", LRU)];
    if args.l2.l2.is_some() {
        ratios.push(to("ratio_to_forebay", "forebay"));
        ratios.push(to("ratio_to_no_change_buffer", "no-change-buffer"));
    }
    ratios
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
    subject: Subject,
    threads: usize,
) -> Result<(Record, Vec<Record>), Failure> {
    let (pooled, leaf_bytes) = prepared(common, args, subject, threads)?;
    let (cache_bytes, subject) = (pooled.cache.bound_bytes(), subject.name);
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
    let reads = counters.iter().filter(|counter| counter.0 == "reads").map(|counter| counter.2);
    record = record.figure("device_reads", reads.sum::<u64>() as f64);
    record = with_l2(record, l2_stats(pooled)?);
    if args.delay == 0 {
        // Reads all leaves.
        let (used, stored) = leaf_bytes_of(pooled)?;
        record = record.figure("leaf_fill", used as f64 / stored.max(1) as f64);
    }
    Ok(record)
}

/// Adds the figures of an L2.
fn with_l2(record: Record, stats: Option<L2DeviceStats>) -> Record {
    let Some(l2) = stats else { return record };
    let warmed = l2.counters.iter().filter(|c| c.0 == "warmed").map(|c| c.2).sum::<u64>();
    record
        .figure("l2_hits", l2.hits as f64)
        .figure("l2_lookups", l2.lookups as f64)
        .figure("l2_warmed", warmed as f64)
        .figure("l2_written_bytes", l2.written_bytes as f64)
        .figure("l2_used_bytes", l2.used_bytes as f64)
}

/// Statistics of the L2, if the pool has one.
///
/// # Errors
/// If the L2 has failed.
fn l2_stats(pooled: &Pooled) -> Result<Option<L2DeviceStats>, Failure> {
    let Some(device) = pooled.pool.l2_devices().into_iter().next() else { return Ok(None) };
    match device.state {
        L2DeviceState::Active | L2DeviceState::Rebuilding => Ok(device.stats),
        state => Err(format!("the L2 on {} is not in use: {state:?}", device.path).into()),
    }
}

/// Blocks that the L2 has served since the import; `None` if the pool has none.
fn l2_hits(pooled: &Pooled) -> Result<Option<u64>, Failure> {
    Ok(l2_stats(pooled)?.map(|stats| stats.hits))
}

fn row(subject: &str, threads: usize, bucket: &Bucket) -> Record {
    Record::new(BY_TIME, subject, threads)
        .figure("second", bucket.end_s)
        .figure("creates_per_s", bucket.per_s)
        .figure("cached_metadata_bytes", bucket.cached[0] as f64)
        .figure("cached_data_bytes", bucket.cached[1] as f64)
        .figure("cached_mru_bytes", bucket.mru_bytes as f64)
        .figure("dirty_bytes", bucket.dirty_bytes as f64)
        .figure("buffer_bytes", bucket.buffer_bytes as f64)
        .figure("requested_bytes", bucket.requested_bytes as f64)
        .figure("reads_waited_for_per_s", bucket.waited_reads_per_s)
}

/// Prepares a pool for the load. Returns the bytes of its leaves too.
fn prepared(
    common: &Common,
    args: &Args,
    subject: Subject,
    threads: usize,
) -> Result<(Pooled, u64), Failure> {
    let cold = args.preload > 0 || args.cycle > 0;
    let cache_bytes = if cold { args.cache.max(PRELOAD_CACHE_BYTES) } else { args.cache };
    let setting = PoolConfig {
        backing: &args.backing,
        cache_bytes,
        plain_lru: subject.lru,
        pool_tunables: &args.tunables,
        copies: args.copies,
        seed: common.seed,
    };
    let mut tunables = vec![("directory_buffer".to_owned(), subject.buffer.to_string())];
    // The last one counts: `--pool-tunable` can set it for all subjects.
    tunables.extend(args.tunables.iter().cloned());
    let setting = PoolConfig { pool_tunables: &tunables, ..setting };
    let mut pooled = Pooled::new(&setting)?;
    if !cold {
        add_l2(&mut pooled, args, subject)?;
        return Ok((pooled, 0));
    }
    let names = FIRST_NAME..FIRST_NAME + args.preload;
    let bucket = Duration::from_millis(args.bucket);
    let options = args.options();
    let create = |pooled: &Pooled, number| options.create(pooled, number);
    creates::run(&pooled, threads, names, (bucket, NO_LIMIT), create)?;
    let (_, leaf_bytes) = leaf_bytes_of(&pooled)?;
    if args.l2.l2_warm {
        // The export writes to it what memory holds.
        add_l2(&mut pooled, args, subject)?;
    }
    let of_leaves = |times: f64| (times * leaf_bytes as f64) as u64;
    let cache_bytes = args.cache_leaves.map_or(args.cache, of_leaves);
    let delay = Duration::from_millis(args.delay);
    pooled = pooled.again(&PoolConfig { cache_bytes, ..setting }, (delay, args.reads_per_s))?;
    if !args.l2.l2_warm {
        add_l2(&mut pooled, args, subject)?;
    }
    Ok((pooled, leaf_bytes))
}

/// Adds the L2 of a subject that has one.
fn add_l2(pooled: &mut Pooled, args: &Args, subject: Subject) -> Result<(), Failure> {
    match subject.l2 {
        true => pooled.testbed.add_l2(&pooled.pool, &args.l2),
        false => Ok(()),
    }
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
        let (begun, l2_begun) = (creates::waited_reads(pooled), l2_hits(pooled)?);
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
        let served = l2_hits(pooled)?.zip(l2_begun).map(|(now, then)| now - then);
        let row = served.into_iter().fold(row, |row, hits| row.figure("l2_hits", hits as f64));
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
