//! `cached-read`: all blocks are resident and every read hits. R1's workload in one process.
//!
//! With `--copy true` a read copies the block, as a read system call does; the yardstick is memcpy
//! from the same memory. With `--copy false` it reads eight bytes at a random offset, so that the
//! cache is most of the cost.

use super::{best, cached_read_model, chosen, group_by_name, interleave, panels_over_threads};
use crate::blocks::BLOCK_BYTES;
use crate::keys::{Distribution, KeySpace};
use crate::lock_counts::LockCounts;
use crate::options::{Common, Failure, cpus};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::subjects::{PEERS, ReadBlocks, ReadPlan, ReadSubject, readers};

const NAME: &str = "cached-read";
const THREADS: [usize; 5] = [1, 2, 4, 8, 32];
/// 1 GiB of blocks.
pub(crate) const BLOCKS: u64 = (1 << 30) / BLOCK_BYTES as u64;

/// Options of `cached-read`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of blocks of 8 KiB.
    #[arg(long, default_value_t = BLOCKS, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) blocks: u64,
    /// Copy blocks (true), or read eight bytes of them (false).
    #[arg(long, value_delimiter = ',', default_value = "true,false")]
    pub(crate) copy: Vec<bool>,
    /// Distribution of the keys.
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf")]
    pub(crate) distribution: Vec<Distribution>,
    /// Predict the throughput of 1 to 64 CPUs instead.
    #[arg(long)]
    pub(crate) model: bool,
}

/// Measures all subjects.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    if args.model {
        return cached_read_model::run(common, args);
    }
    let threads = common.threads_or(&THREADS)?;
    let blocks = ReadBlocks::new(args.blocks as usize)?;
    let candidates = readers(&blocks, cpus());
    common.check_subjects(&candidates.iter().map(|c| c.name).collect::<Vec<_>>())?;
    let wanted = candidates.into_iter().filter(|c| common.wants(c.name)).collect();
    let groups = group_by_name(wanted, |c| c.name);
    let mut records = Vec::new();
    for distribution in &args.distribution {
        let keys = KeySpace::new(*distribution, blocks.len() as u64, common.seed);
        for copy in &args.copy {
            let plan = |threads: &usize| ReadPlan {
                threads: *threads,
                limit: common.limit(),
                keys: keys.clone(),
                copy: *copy,
                seed: common.seed,
            };
            let plans: Vec<ReadPlan> = threads.iter().map(plan).collect();
            records.extend(measure(common, &groups, &plans, *distribution)?);
        }
    }
    Ok(records)
}

/// One subject's best candidate at one number of threads.
struct Cell<'a> {
    plan: &'a ReadPlan,
    subject: &'a ReadSubject,
    candidates: usize,
}

/// Selects the best candidate of each subject at each number of threads, then measures them.
fn measure(
    common: &Common,
    groups: &[Vec<ReadSubject>],
    plans: &[ReadPlan],
    distribution: Distribution,
) -> Result<Vec<Record>, Failure> {
    let mut cells = Vec::new();
    for plan in plans {
        let tuning = ReadPlan { limit: common.tuning_limit(), keys: plan.keys.clone(), ..*plan };
        cells.extend(groups.iter().map(|group| Cell {
            plan,
            subject: best(group, |c| c.run(&tuning).ops_per_s()),
            candidates: group.len(),
        }));
    }
    let found = interleave(common.reps, cells.len(), |i, _| {
        let Cell { plan, subject, candidates } = &cells[i];
        let counted = LockCounts::start();
        let sample = subject.run(plan);
        let record = Record::new(NAME, subject.name, plan.threads)
            .param("copy", plan.copy)
            .param("distribution", distribution.name())
            .param("config", chosen(&subject.config, *candidates).as_str())
            .figure("ops_per_s", sample.ops_per_s())
            .figure("hit_ratio", sample.hit_ratio())
            .figure("cpu_ns_per_op", sample.cpu_ns_per_op())
            .figure("cpu_s", sample.cpu_s);
        Ok::<Record, Failure>(counted.add_to(record, sample.ops))
    })?;
    let ratio = |name, against| Ratio { name, figure: "ops_per_s", against };
    let ratios = [
        ratio("ratio_to_memcpy", Against::Subject("memcpy")),
        ratio("ratio_to_quick_cache", Against::Subject("quick_cache")),
        ratio("ratio_to_best_peer", Against::Best(PEERS)),
        ratio("ratio_to_2_threads", Against::Threads(2)),
    ];
    Ok(fold_all(&found, &ratios))
}

/// Throughput over threads, or the model's predictions.
pub(crate) fn panels(args: &Args, records: &[Record]) -> Vec<Panel> {
    if args.model {
        return cached_read_model::panels(records);
    }
    panels_over_threads(records, &["distribution", "copy"], "ops_per_s")
}
