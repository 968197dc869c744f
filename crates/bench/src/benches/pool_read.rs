//! `pool-read`: cached reads of open objects through the pool's API, compared with memcpy.
//!
//! All threads read all objects at random, and nothing is missed. The yardstick copies as many
//! bytes from as much memory.

use std::hint::black_box;
use std::sync::Arc;

use forebay_pool::format::Compression;
use forebay_pool::{DatasetSettings, Object, Pool};

use super::{best, chosen, group_by_name, interleave, panels_over_threads};
use crate::blocks::BLOCK_BYTES;
use crate::keys::{Distribution, KeySpace, KeyStream};
use crate::lock_counts::LockCounts;
use crate::measure::{self, Sample, Worker};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::subjects::{ReadPlan, ReadSubject, memcpy};
use crate::testbed::{self, Backing, BackingArgs, TestBed};

const NAME: &str = "pool-read";
const THREADS: [usize; 3] = [1, 2, 32];
const OBJECTS: u64 = 32;
/// Bytes per transaction while the pool is filled.
const FILL_BYTES: usize = 1 << 20;
/// Locks that are taken less than once in so many operations are not listed.
const RARE: u64 = 10_000;

/// Options of `pool-read`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of all objects together.
    #[arg(long, default_value = "1GiB", value_parser = testbed::bytes)]
    pub(crate) bytes: u64,
    /// Record size of the objects.
    #[arg(long, default_value = "8KiB", value_parser = testbed::bytes)]
    pub(crate) record: u64,
    /// Distribution of the keys.
    #[arg(long, value_delimiter = ',', default_value = "uniform")]
    pub(crate) distribution: Vec<Distribution>,
}

/// Open objects, all in the cache.
pub(super) struct Filled {
    objects: Vec<Object>,
    /// Blocks of [`BLOCK_BYTES`] in each.
    blocks_each: u64,
    // Dropped after the objects.
    pool: Pool,
    _bed: TestBed,
}

impl Filled {
    pub(super) fn new(common: &Common, args: &Args) -> Result<Self, Failure> {
        let blocks_each = (args.bytes / OBJECTS / BLOCK_BYTES as u64).max(1);
        let bytes_each = blocks_each * BLOCK_BYTES as u64;
        let all = bytes_each * OBJECTS;
        // For copies that are being written, and for the bound's other uses.
        let slack = all / 2 + (256 << 20);
        let backing = BackingArgs {
            device: Backing::Memory,
            device_size: 2 * all + (1 << 30),
            overwrite: false,
        };
        let testbed = TestBed::new(&backing, common.seed)?;
        let pool = testbed.create(&testbed::cache(all + slack, false, common.seed)?, &[])?;
        let record_bytes = u32::try_from(args.record)?;
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes,
            ..DatasetSettings::default()
        };
        let data = pool.create_dataset("read", &settings)?;
        let mut objects = Vec::new();
        for number in 0..OBJECTS {
            let tx = pool.begin()?;
            let object = data.object(data.create_object(&tx, &[])?)?;
            drop(tx);
            fill(&pool, &object, bytes_each, number as u8)?;
            objects.push(object);
        }
        pool.sync()?;
        Ok(Self { objects, blocks_each, pool, _bed: testbed })
    }

    /// Reads and checks everything once, so that all of it is cached.
    pub(super) fn warm(&self) -> Result<(), Failure> {
        let mut out = vec![0; BLOCK_BYTES];
        for (number, object) in self.objects.iter().enumerate() {
            for block in 0..self.blocks_each {
                let read = object.read(block * BLOCK_BYTES as u64, &mut out)?;
                if read != BLOCK_BYTES || out.iter().any(|byte| *byte != number as u8) {
                    return Err(format!("object {number}, block {block}: wrong content").into());
                }
            }
        }
        Ok(())
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Blocks of all objects.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks_each * OBJECTS
    }

    pub(super) fn sample(&self, plan: &ReadPlan) -> Sample {
        let make = |thread| PoolWorker {
            filled: self,
            keys: plan.keys.stream(thread, plan.threads, plan.seed),
            sink: vec![0; BLOCK_BYTES].into_boxed_slice(),
        };
        measure::run(plan.threads, plan.limit, make, || {})
    }
}

fn fill(pool: &Pool, object: &Object, bytes: u64, byte: u8) -> Result<(), Failure> {
    let content = vec![byte; FILL_BYTES];
    for offset in (0..bytes).step_by(FILL_BYTES) {
        let tx = pool.begin()?;
        object.write(&tx, offset, &content[..(bytes - offset).min(FILL_BYTES as u64) as usize])?;
    }
    Ok(())
}

struct PoolWorker<'a> {
    filled: &'a Filled,
    keys: KeyStream,
    sink: Box<[u8]>,
}

impl Worker for PoolWorker<'_> {
    #[inline]
    fn step(&mut self) -> bool {
        let key = self.keys.next();
        let (object, block) = (key / self.filled.blocks_each, key % self.filled.blocks_each);
        let object = &self.filled.objects[object as usize];
        let read = object.read(block * BLOCK_BYTES as u64, &mut self.sink);
        black_box(&self.sink);
        read.is_ok_and(|bytes| bytes == BLOCK_BYTES)
    }
}

/// Measures the pool and the yardstick.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let threads = common.threads_or(&THREADS)?;
    let filled = Arc::new(Filled::new(common, args)?);
    filled.warm()?;
    let blocks = filled.blocks();
    let mut candidates = memcpy(blocks as usize)?;
    let config = format!("records of {} bytes", args.record);
    candidates.push(ReadSubject::measured("forebay", config, {
        let filled = Arc::clone(&filled);
        move |plan| filled.sample(plan)
    }));
    common.check_subjects(&candidates.iter().map(|c| c.name).collect::<Vec<_>>())?;
    let wanted = candidates.into_iter().filter(|c| common.wants(c.name)).collect();
    let groups = group_by_name(wanted, |c| c.name);
    let mut records = Vec::new();
    for distribution in &args.distribution {
        let keys = KeySpace::new(*distribution, blocks, common.seed);
        let plan = |threads: &usize| ReadPlan {
            threads: *threads,
            limit: common.limit(),
            keys: keys.clone(),
            copy: true,
            seed: common.seed,
        };
        let plans: Vec<ReadPlan> = threads.iter().map(plan).collect();
        records.extend(measure(common, &groups, &plans, *distribution)?);
    }
    Ok(records)
}

fn measure(
    common: &Common,
    groups: &[Vec<ReadSubject>],
    plans: &[ReadPlan],
    distribution: Distribution,
) -> Result<Vec<Record>, Failure> {
    let mut cells = Vec::new();
    for plan in plans {
        let tuning = ReadPlan { limit: common.tuning_limit(), keys: plan.keys.clone(), ..*plan };
        let choose = |group| best(group, |c: &ReadSubject| c.run(&tuning).ops_per_s());
        cells.extend(groups.iter().map(|group| (plan, choose(group), group.len())));
    }
    let found = interleave(common.reps, cells.len(), |i, _| {
        let (plan, subject, candidates) = cells[i];
        let counted = LockCounts::start();
        let sample = subject.run(plan);
        if sample.hits != sample.ops {
            return Err(format!("{} reads failed", sample.ops - sample.hits).into());
        }
        let config = chosen(&subject.config, candidates) + &taken(&counted, sample.ops);
        let record = Record::new(NAME, subject.name, plan.threads)
            .param("distribution", distribution.name())
            .param("config", config.as_str())
            .figure("ops_per_s", sample.ops_per_s())
            .figure("cpu_ns_per_op", sample.cpu_ns_per_op());
        Ok::<Record, Failure>(counted.add_to(record, sample.ops))
    })?;
    let ratio = |name, against| Ratio { name, figure: "ops_per_s", against };
    let ratios = [
        ratio("ratio_to_memcpy", Against::Subject("memcpy")),
        ratio("ratio_to_2_threads", Against::Threads(2)),
    ];
    Ok(fold_all(&found, &ratios))
}

/// The locks per read, in a counting build.
fn taken(counted: &LockCounts, ops: u64) -> String {
    let locks = counted.locks();
    let often: Vec<String> = locks
        .iter()
        .filter(|lock| lock.locks > ops / RARE)
        .map(|lock| format!("{} {:.3}", lock.name, lock.locks as f64 / ops as f64))
        .collect();
    if often.is_empty() { String::new() } else { format!("; locks per read: {}", often.join(", ")) }
}

/// Throughput over threads.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    panels_over_threads(records, &["distribution"], "ops_per_s")
}
