//! `insight`: what the flight recorder, the miss-ratio curve and a trace cost, on against off.
//!
//! The recorder is measured where it works: `evict` with blocks. So is the curve, and on cached
//! reads, which note accesses for it. A trace is measured on cached reads of a pool, all of which
//! it records, with a thread that drains it as a daemon does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::evict::WARMUP_FACTOR;
use super::{interleave, panels_over_threads, pool_read};
use crate::blocks::BLOCK_BYTES;
use crate::keys::{Distribution, KeySpace};
use crate::measure::Sample;
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::subjects::forebay::{InsightPart, insight_inserters, insight_readers};
use crate::subjects::{EvictPlan, ReadPlan};

const NAME: &str = "insight";
const THREADS: [usize; 2] = [1, 2];
/// Working set as a multiple of the cache.
const FACTOR: u64 = 2;
/// The pauses of a daemon that drains a trace.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);
const BUSY_PERIOD: Duration = Duration::from_millis(1);

/// Options of `insight`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Capacity of the cache that evicts, in blocks of 8 KiB.
    #[arg(long, default_value_t = 1 << 14, value_parser = clap::value_parser!(u64).range(64..=1 << 24))]
    pub(crate) capacity: u64,
    /// Bytes of the cached blocks, and of the objects, that are read.
    #[arg(long, default_value = "256MiB", value_parser = crate::testbed::bytes)]
    pub(crate) bytes: u64,
}

/// Measures all.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let threads = common.threads_or(&THREADS)?;
    let mut records = Vec::new();
    for threads in threads {
        records.extend(evict(common, args, threads, InsightPart::Recorder)?);
        records.extend(evict(common, args, threads, InsightPart::Curve)?);
        records.extend(cached_read(common, args, threads)?);
        records.extend(trace(common, args, threads)?);
    }
    let ratio = |name, figure| Ratio { name, figure, against: Against::Subject("off") };
    let ratios = [ratio("speed_to_off", "ops_per_s"), ratio("cpu_to_off", "cpu_ns_per_op")];
    Ok(fold_all(&records, &ratios))
}

fn record(subject: &'static str, threads: usize, what: &'static str, sample: &Sample) -> Record {
    Record::new(NAME, subject, threads)
        .param("what", what)
        .figure("ops_per_s", sample.ops_per_s())
        .figure("cpu_ns_per_op", sample.cpu_ns_per_op())
}

fn evict(
    common: &Common,
    args: &Args,
    threads: usize,
    part: InsightPart,
) -> Result<Vec<Vec<Record>>, Failure> {
    let subjects = insight_inserters(part);
    let what = match part {
        InsightPart::Recorder => "recorder, evict",
        InsightPart::Curve => "curve, evict",
    };
    let plan = EvictPlan {
        threads,
        limit: common.limit(),
        warmup_operations: args.capacity * WARMUP_FACTOR,
        keys: KeySpace::new(Distribution::Zipf, args.capacity * FACTOR, common.seed),
        capacity: args.capacity,
        seed: common.seed,
    };
    interleave(common.reps, subjects.len(), |i, _| {
        let sample = subjects[i].run(&plan).sample;
        Ok(record(subjects[i].name, threads, what, &sample))
    })
}

fn cached_read(common: &Common, args: &Args, threads: usize) -> Result<Vec<Vec<Record>>, Failure> {
    let blocks = args.bytes / BLOCK_BYTES as u64;
    let subjects = insight_readers(blocks);
    let plan = ReadPlan {
        threads,
        limit: common.limit(),
        keys: KeySpace::new(Distribution::Zipf, blocks, common.seed),
        copy: true,
        seed: common.seed,
    };
    interleave(common.reps, subjects.len(), |i, _| {
        Ok(record(subjects[i].name, threads, "curve, cached-read", &subjects[i].run(&plan)))
    })
}

fn trace(common: &Common, args: &Args, threads: usize) -> Result<Vec<Vec<Record>>, Failure> {
    let options = pool_read::Args {
        bytes: args.bytes,
        record: BLOCK_BYTES as u64,
        distribution: vec![Distribution::Uniform],
    };
    let filled = Arc::new(pool_read::Filled::new(common, &options)?);
    filled.warm()?;
    let plan = ReadPlan {
        threads,
        limit: common.limit(),
        keys: KeySpace::new(Distribution::Uniform, filled.blocks(), common.seed),
        copy: true,
        seed: common.seed,
    };
    interleave(common.reps, 2, |i, _| match i {
        0 => Ok(record("off", threads, "trace, pool-read", &filled.sample(&plan))),
        _ => {
            let (sample, records, dropped) = traced(&filled, &plan)?;
            let lost = dropped as f64 / (records + dropped).max(1) as f64;
            Ok(record("on", threads, "trace, pool-read", &sample).figure("lost_ratio", lost))
        }
    })
}

/// A measurement while a trace is recorded, with the numbers of records and of dropped accesses.
fn traced(filled: &pool_read::Filled, plan: &ReadPlan) -> Result<(Sample, u64, u64), Failure> {
    let mut session = filled.pool().trace()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let drainer = scope.spawn(|| {
            let mut bytes = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                bytes.clear();
                let is_busy = session.drain(&mut bytes);
                std::thread::sleep(if is_busy { BUSY_PERIOD } else { DRAIN_PERIOD });
            }
            session.drain(&mut bytes);
            let totals = session.totals();
            (totals.records, totals.dropped)
        });
        let sample = filled.sample(plan);
        is_over.store(true, Ordering::Relaxed);
        let (records, dropped) = drainer.join().map_err(|_| "the drainer panicked")?;
        Ok((sample, records, dropped))
    })
}

/// Throughput over threads.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    panels_over_threads(records, &["what"], "ops_per_s")
}
