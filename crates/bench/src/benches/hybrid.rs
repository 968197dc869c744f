//! `hybrid`: hit ratio of caches in memory and on a device, and bytes written to the device.
//!
//! *Zipf*: Zipf-distributed keys from a set ten times as large as memory; a miss loads and caches
//! the value. The rate of operations is bounded, so that the device's speed does not matter. With
//! `--tasks`, tasks of a tokio runtime request as fast as they can.
//! *Metadata*: a set as large as memory and seldom requested, and a stream of data ten times as
//! large as the device, requested once. The result is how much of the set is left.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_cache::Class;

use super::{best, chosen, group_by_name, interleave, lines};
use crate::hybrids::{
    FoundCounts, FoundIn, HybridPlan, Scratch, Subject, TaskRequests, TieredCache,
};
use crate::keys::{Distribution, KeySpace};
use crate::options::{Common, Failure};
use crate::report::plot::{Axis, Panel};
use crate::report::{Record, fold_all};
use crate::testbed;

const NAME: &str = "hybrid";
/// Size of the set, as a multiple of memory.
const SET_FACTOR: u64 = 10;
/// Size of the stream, as a multiple of the device.
const STREAM_FACTOR: u64 = 10;
/// Requests of each metadata block during the stream.
const METADATA_TOUCHES: u64 = 8;
/// The first key of the stream.
const STREAM: u64 = 1 << 32;
/// Operations between two checks of the clock.
const PACE: u64 = 64;

/// Options of `hybrid`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Weight of values in memory.
    #[arg(long, default_value = "32MiB", value_parser = testbed::bytes)]
    pub(crate) memory: u64,
    /// Size of the device.
    #[arg(long, default_value = "128MiB", value_parser = testbed::bytes)]
    pub(crate) device: u64,
    /// Size of a value in bytes. (foyer stores multiples of 4 KiB, headers included.)
    #[arg(long, default_value_t = 8000, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    pub(crate) value_bytes: u64,
    /// Measured operations, as a multiple of the keys; half as many run before.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) rounds: u64,
    /// Largest number of operations per second; 0 for no bound.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) pace: u64,
    /// Tasks of a tokio runtime that request at the same time, without a pace, in *zipf* alone; 0
    /// for one thread.
    #[arg(long, default_value_t = 0, conflicts_with = "pace", value_parser = clap::value_parser!(u64).range(0..=1024))]
    pub(crate) tasks: u64,
    /// Folder for the files of all subjects.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,
}

impl Args {
    fn keys(&self) -> u64 {
        self.memory * SET_FACTOR / self.value_bytes
    }

    /// Whether speed is measured, not the pace.
    fn is_unpaced(&self) -> bool {
        self.pace == 0 || self.tasks > 0
    }
}

/// Bounds the rate of operations.
struct Pacer {
    start: Instant,
    done: u64,
    per_s: u64,
}

impl Pacer {
    fn new(per_s: u64) -> Self {
        Self { start: Instant::now(), done: 0, per_s }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.per_s == 0 || !self.done.is_multiple_of(PACE) {
            return;
        }
        let due = Duration::from_secs_f64(self.done as f64 / self.per_s as f64);
        if let Some(early) = due.checked_sub(self.start.elapsed()) {
            std::thread::sleep(early);
        }
    }
}

/// Measures both loads with the best configuration of each subject: by hit ratio, or by speed if
/// that is measured.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let all = Subject::all();
    common.check_subjects(&all.iter().map(|subject| subject.name).collect::<Vec<_>>())?;
    let wanted: Vec<Subject> = all.into_iter().filter(|s| common.wants(s.name)).collect();
    let groups = group_by_name(wanted, |subject| subject.name);
    let keys = KeySpace::new(Distribution::Zipf, args.keys(), common.seed);
    let score = |subject: &Subject| {
        let record = zipf(common, args, subject, &keys, args.rounds);
        let by = if args.is_unpaced() { "operations_per_s" } else { "hit_ratio" };
        record.ok().and_then(|record| record.number(by)).unwrap_or(0.0)
    };
    let cells: Vec<(&Subject, usize)> =
        groups.iter().map(|group| (best(group, score), group.len())).collect();
    let loads = if args.tasks > 0 { 1 } else { 2 };
    let found = interleave(common.reps, loads * cells.len(), |i, _| {
        let (subject, candidates) = cells[i / loads];
        let record = match i % loads {
            0 => zipf(common, args, subject, &keys, args.rounds)?,
            _ => metadata(common, args, subject)?,
        };
        Ok::<_, Failure>(record.param("config", chosen(subject.config, candidates).as_str()))
    })?;
    let mut records = fold_all(&found, &[]);
    add_distance_to_foyer(&mut records);
    Ok(records)
}

fn opened(
    common: &Common,
    args: &Args,
    subject: &Subject,
) -> Result<(Box<dyn TieredCache>, Scratch), Failure> {
    let scratch = Scratch::new(&args.folder, subject.name);
    let cache = subject.open(&HybridPlan {
        path: scratch.0.clone(),
        direct: false,
        memory_bytes: args.memory,
        device_bytes: args.device,
        value_bytes: args.value_bytes as usize,
        fill: false,
        seed: common.seed,
    })?;
    cache.wait_rebuilt();
    Ok((cache, scratch))
}

fn blank(args: &Args, subject: &Subject, load: &str) -> Record {
    Record::new(NAME, subject.name, 1)
        .param("load", load)
        .param("memory_bytes", args.memory)
        .param("device_bytes", args.device)
        .param("value_bytes", args.value_bytes)
}

/// Measures `rounds` times as many operations as keys, after half as many.
fn zipf(
    common: &Common,
    args: &Args,
    subject: &Subject,
    keys: &KeySpace,
    rounds: u64,
) -> Result<Record, Failure> {
    let (cache, _scratch) = opened(common, args, subject)?;
    let operations = rounds * args.keys();
    request_zipf(&*cache, (common, args), keys, (0, operations / 2))?;
    let written_before = cache.written_bytes();
    let start = Instant::now();
    let counts = request_zipf(&*cache, (common, args), keys, (operations / 2, operations))?;
    let operations: u64 = counts.iter().sum();
    let took_s = start.elapsed().as_secs_f64();
    let written = (cache.written_bytes() - written_before) as f64;
    let ratio = |found: FoundIn| counts[found as usize] as f64 / operations as f64;
    let inserted = (counts[FoundIn::Nowhere as usize] * args.value_bytes).max(1) as f64;
    let mut record = blank(args, subject, "zipf").param("tasks", args.tasks);
    if args.is_unpaced() {
        // Otherwise the pace decides.
        record = record.figure("operations_per_s", operations as f64 / took_s);
    }
    Ok(record
        .figure("hit_ratio", 1.0 - ratio(FoundIn::Nowhere))
        .figure("memory_hit_ratio", ratio(FoundIn::Memory))
        .figure("device_hit_ratio", ratio(FoundIn::Device))
        .figure("written_bytes", written)
        .figure("written_per_inserted_byte", written / inserted))
}

/// Requests `count` keys, after `walked` ones.
fn request_zipf(
    cache: &dyn TieredCache,
    (common, args): (&Common, &Args),
    keys: &KeySpace,
    (walked, count): (u64, u64),
) -> Result<FoundCounts, Failure> {
    let tasks = args.tasks.max(1);
    let requests = |task| TaskRequests {
        keys: keys.stream_after(task as usize, tasks as usize, common.seed, walked / tasks),
        count: count / tasks,
    };
    if args.tasks > 0 {
        return cache.run_tasks((0..tasks).map(requests).collect());
    }
    let TaskRequests { keys: mut stream, count } = requests(0);
    let mut pacer = Pacer::new(args.pace);
    let mut counts = [0; 3];
    for _ in 0..count {
        let found = cache.get_or_load(stream.next(), Class::Data);
        counts[found as usize] += 1;
        pacer.step();
    }
    Ok(counts)
}

/// Measures the metadata load.
fn metadata(common: &Common, args: &Args, subject: &Subject) -> Result<Record, Failure> {
    let (cache, _scratch) = opened(common, args, subject)?;
    let set = args.memory / args.value_bytes;
    let stream = args.device * STREAM_FACTOR / args.value_bytes;
    let mut pacer = Pacer::new(args.pace);
    for key in 0..set {
        cache.get_or_load(key, Class::Metadata);
        pacer.step();
    }
    let touches = set * METADATA_TOUCHES;
    let (mut touched, mut hits) = (0u64, 0u64);
    for nth in 0..stream {
        cache.get_or_load(STREAM + nth, Class::Data);
        pacer.step();
        while touched * stream < nth * touches {
            hits +=
                u64::from(cache.get_or_load(touched % set, Class::Metadata) != FoundIn::Nowhere);
            touched += 1;
            pacer.step();
        }
    }
    let written = cache.written_bytes() as f64;
    let survivors = (0..set).filter(|key| cache.get(*key)).count() as f64;
    let inserted = ((set + stream + touched - hits) * args.value_bytes) as f64;
    Ok(blank(args, subject, "metadata")
        .figure("survival", survivors / set as f64)
        .figure("hit_ratio", hits as f64 / touched.max(1) as f64)
        .figure("written_bytes", written)
        .figure("written_per_inserted_byte", written / inserted))
}

/// Adds each row's hit ratio minus foyer's, and its bytes written and operations per second over
/// foyer's, at the same load.
fn add_distance_to_foyer(records: &mut [Record]) {
    let foyer: Vec<Record> = records.iter().filter(|r| r.subject() == "foyer").cloned().collect();
    for record in records.iter_mut() {
        let Some(theirs) = foyer.iter().find(|r| r.get("load") == record.get("load")) else {
            continue;
        };
        let both = |figure| Some((record.number(figure)?, theirs.number(figure)?));
        let ratio = both("hit_ratio").map(|(own, theirs)| own - theirs);
        let written = both("written_bytes").map(|(own, theirs)| own / theirs.max(1.0));
        let operations = both("operations_per_s").map(|(own, theirs)| own / theirs);
        let extra = [
            ("hit_ratio_minus_foyer", ratio),
            ("written_ratio_to_foyer", written),
            ("operations_ratio_to_foyer", operations),
        ];
        record.figures.extend(extra.into_iter().filter_map(|(name, v)| Some((name, v?))));
    }
}

/// Hit ratios and bytes written by load.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let loads = ["zipf", "metadata"];
    let of = |record: &Record| {
        let text = record.get("load").cloned();
        loads.iter().position(|load| text == Some((*load).into())).unwrap_or(0) as f64
    };
    let all: Vec<&Record> = records.iter().collect();
    let panel = |figure: &str| Panel {
        title: "Memory and device".to_owned(),
        x: Axis::linear("load (0 zipf, 1 metadata)"),
        y: Axis::of(figure),
        series: lines(&all, of, figure),
    };
    vec![panel("hit_ratio"), panel("written_per_inserted_byte")]
}
