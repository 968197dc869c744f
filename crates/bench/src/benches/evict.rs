//! `evict`: get or insert, with a working set larger than the cache.
//!
//! Values of one word measure policy and bookkeeping. Blocks of 8 KiB measure a block cache with
//! its memory. All subjects have the same capacity in blocks, and report the mean and the largest
//! number of resident blocks, so that none wins by holding more.

use super::{best, chosen, group_by_name, interleave, panels_over_threads};
use crate::keys::{Distribution, KeySpace};
use crate::lock_counts::LockCounts;
use crate::options::{Common, Failure, cpus};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::subjects::{EvictPlan, EvictSubject, PEERS, Value, inserters};

const NAME: &str = "evict";
const THREADS: [usize; 4] = [1, 2, 8, 32];
/// Operations before the measurement, as a multiple of the capacity.
pub(super) const WARMUP_FACTOR: u64 = 16;

/// Options of `evict`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Capacity of the cache, in blocks.
    #[arg(long, default_value_t = 1 << 17, value_parser = clap::value_parser!(u64).range(64..=1 << 28))]
    pub(crate) capacity: u64,
    /// Working set as a multiple of the cache.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) factor: u64,
    /// Distribution of the keys.
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf")]
    pub(crate) distribution: Vec<Distribution>,
    /// Values that are cached.
    #[arg(long, value_delimiter = ',', default_value = "word,block")]
    pub(crate) value: Vec<Value>,
}

/// Measures all subjects.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let threads = common.threads_or(&THREADS)?;
    let mut records = Vec::new();
    let loads = args.value.iter().flat_map(|v| args.distribution.iter().map(move |d| (*v, d)));
    for (value, distribution) in loads {
        let candidates = inserters(cpus(), value);
        common.check_subjects(&candidates.iter().map(|c| c.name).collect::<Vec<_>>())?;
        // Textbook policies cache keys only, so one kind of value is enough.
        let apt = |c: &EvictSubject| value == Value::Word || !c.name.starts_with("textbook");
        let wanted = candidates.into_iter().filter(|c| common.wants(c.name) && apt(c)).collect();
        let groups = group_by_name(wanted, |c: &EvictSubject| c.name);
        let keys = KeySpace::new(*distribution, args.capacity * args.factor, common.seed);
        let plan = |threads: &usize| EvictPlan {
            threads: *threads,
            limit: common.limit(),
            warmup_operations: args.capacity * WARMUP_FACTOR,
            keys: keys.clone(),
            capacity: args.capacity,
            seed: common.seed,
        };
        let plans: Vec<EvictPlan> = threads.iter().map(plan).collect();
        records.extend(measure(common, &groups, &plans, (value, *distribution))?);
    }
    add_distance_to_textbook(&mut records);
    Ok(records)
}

/// One subject's best candidate at one number of threads.
struct Cell<'a> {
    plan: &'a EvictPlan,
    subject: &'a EvictSubject,
    candidates: usize,
}

/// Selects the best candidate of each subject at each number of threads, then measures them.
fn measure(
    common: &Common,
    groups: &[Vec<EvictSubject>],
    plans: &[EvictPlan],
    (value, distribution): (Value, Distribution),
) -> Result<Vec<Record>, Failure> {
    let mut cells = Vec::new();
    for plan in plans {
        let tuning = EvictPlan { limit: common.tuning_limit(), keys: plan.keys.clone(), ..*plan };
        let able = |group: &&Vec<EvictSubject>| group.iter().all(|c| c.max_threads >= plan.threads);
        cells.extend(groups.iter().filter(able).map(|group| Cell {
            plan,
            subject: best(group, |c| c.run(&tuning).sample.ops_per_s()),
            candidates: group.len(),
        }));
    }
    let found = interleave(common.reps, cells.len(), |i, _| {
        let Cell { plan, subject, candidates } = &cells[i];
        let counted = LockCounts::start();
        let result = subject.run(plan);
        let record = Record::new(NAME, subject.name, plan.threads)
            .param("value", value.name())
            .param("distribution", distribution.name())
            .param("capacity_blocks", plan.capacity)
            .param("config", chosen(&subject.config, *candidates).as_str())
            .figure("ops_per_s", result.sample.ops_per_s())
            .figure("hit_ratio", result.sample.hit_ratio())
            .figure("mean_resident_blocks", result.mean_resident)
            .figure("max_resident_blocks", result.max_resident as f64)
            .figure("cpu_ns_per_op", result.sample.cpu_ns_per_op())
            .figure("cpu_s", result.sample.cpu_s);
        // The warm-up is counted as well.
        let operations = result.sample.ops + plan.warmup_operations;
        Ok::<Record, Failure>(counted.add_to(record, operations))
    })?;
    let ratio = |name, against| Ratio { name, figure: "ops_per_s", against };
    let ratios = [
        ratio("ratio_to_best_peer", Against::Best(PEERS)),
        ratio("ratio_to_2_threads", Against::Threads(2)),
    ];
    Ok(fold_all(&found, &ratios))
}

/// Adds each row's hit ratio minus textbook ARC's on one thread.
fn add_distance_to_textbook(records: &mut [Record]) {
    let textbook: Vec<Record> =
        records.iter().filter(|r| r.subject() == "textbook-arc").cloned().collect();
    for record in records.iter_mut() {
        let same = |t: &&Record| t.get("distribution") == record.get("distribution");
        let theirs = textbook.iter().find(same).and_then(|t| t.number("hit_ratio"));
        if let (Some(own), Some(theirs)) = (record.number("hit_ratio"), theirs) {
            record.figures.push(("hit_ratio_minus_textbook_arc", own - theirs));
        }
    }
}

/// Throughput and hit ratio over threads.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let mut panels = panels_over_threads(records, &["value", "distribution"], "ops_per_s");
    panels.extend(panels_over_threads(records, &["value", "distribution"], "hit_ratio"));
    panels
}
