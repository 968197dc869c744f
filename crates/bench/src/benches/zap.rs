//! `zap`: inserts, lookups and removals of names in directories, compared with other stores.

use std::path::PathBuf;

use super::{interleave, panels_over_threads};
use crate::names::{self, Load, PoolConfig, Pooled};
use crate::options::{Common, Failure};
use crate::report::plot::Panel;
use crate::report::{Against, Ratio, Record, fold_all};
use crate::testbed::{self, Backing, BackingArgs};

const NAME: &str = "zap";
const SHAPE: &str = "zap-shape";
const THREADS: [usize; 2] = [1, 2];

/// Options of `zap`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of names.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(32..=100_000_000))]
    pub(crate) count: u64,
    /// Changes per transaction.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batch: u64,
    /// Folder for the files of all subjects.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,
    /// Size of Forebay's file and memory device.
    #[arg(long, default_value = "4GiB", value_parser = testbed::bytes)]
    pub(crate) device_size: u64,
    /// Cache size of each subject.
    #[arg(long, default_value = "1GiB", value_parser = testbed::bytes)]
    pub(crate) cache: u64,
    /// Copies of Forebay's metadata.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) copies: u8,
    /// Only report the fill of leaves while directories grow and shrink, without timing.
    #[arg(long)]
    pub(crate) shape: bool,
}

/// A subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZapSubject {
    /// Forebay in a file.
    Forebay,
    /// Forebay in memory.
    ForebayMemory,
    #[cfg(feature = "peers")]
    Redb,
    #[cfg(feature = "peers")]
    Fjall,
}

impl ZapSubject {
    const ALL: &[Self] = &[
        Self::Forebay,
        Self::ForebayMemory,
        #[cfg(feature = "peers")]
        Self::Redb,
        #[cfg(feature = "peers")]
        Self::Fjall,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::ForebayMemory => "forebay-memory",
            #[cfg(feature = "peers")]
            Self::Redb => "redb",
            #[cfg(feature = "peers")]
            Self::Fjall => "fjall",
        }
    }
}

/// Measures all subjects, then the shape of Forebay's directories.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    common.check_subjects(&ZapSubject::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>())?;
    if args.shape {
        return Ok(vec![shape(common, args)?]);
    }
    let mut cells = Vec::new();
    for threads in common.threads_or(&THREADS)? {
        let wanted = ZapSubject::ALL.iter().filter(|kind| common.wants(kind.name()));
        cells.extend(wanted.map(|kind| (threads, *kind)));
    }
    let found =
        interleave(common.reps, cells.len(), |i, _| one(common, args, cells[i].1, cells[i].0))?;
    let mut records = fold_all(&found, &RATIOS);
    if common.wants(ZapSubject::ForebayMemory.name()) {
        records.push(shape(common, args)?);
    }
    Ok(records)
}

const RATIOS: [Ratio<'static>; 8] = [
    ratio("insert_ratio_to_fjall", "insert_per_s", Against::Subject("fjall")),
    ratio("insert_ratio_to_redb", "insert_per_s", Against::Subject("redb")),
    ratio("lookup_ratio_to_redb", "lookup_per_s", Against::Subject("redb")),
    ratio("lookup_ratio_to_fjall", "lookup_per_s", Against::Subject("fjall")),
    ratio("insert_cpu_ratio_to_1_thread", "insert_cpu_ns", Against::Threads(1)),
    ratio("lookup_cpu_ratio_to_1_thread", "lookup_cpu_ns", Against::Threads(1)),
    ratio("insert_own_cpu_ratio_to_1_thread", "insert_own_cpu_ns", Against::Threads(1)),
    ratio("lookup_own_cpu_ratio_to_1_thread", "lookup_own_cpu_ns", Against::Threads(1)),
];

const fn ratio(
    name: &'static str,
    figure: &'static str,
    against: Against<'static>,
) -> Ratio<'static> {
    Ratio { name, figure, against }
}

/// One measurement of one subject.
fn one(common: &Common, args: &Args, kind: ZapSubject, threads: usize) -> Result<Record, Failure> {
    let load = Load { threads, count: args.count, batch: args.batch, seed: common.seed };
    let record = Record::new(NAME, kind.name(), threads)
        .param("names", args.count)
        .param("batch", args.batch);
    match kind {
        ZapSubject::Forebay | ZapSubject::ForebayMemory => {
            let backing = backing(args, kind);
            let pooled = Pooled::new(&setting(common, args, &backing))?;
            let config = format!("{}, {} copies", pooled.testbed.config(), args.copies);
            names::phases(&pooled, &load, record.param("config", config.as_str()))
        }
        #[cfg(feature = "peers")]
        ZapSubject::Redb => {
            let redb = names::Redb::new(&args.folder, args.cache).map_err(names::fail)?;
            names::phases(&redb, &load, record.param("config", names::Redb::CONFIG))
        }
        #[cfg(feature = "peers")]
        ZapSubject::Fjall => {
            let fjall = names::Fjall::new(&args.folder, args.cache).map_err(names::fail)?;
            names::phases(&fjall, &load, record.param("config", names::Fjall::CONFIG))
        }
    }
}

fn backing(args: &Args, kind: ZapSubject) -> BackingArgs {
    let device = match kind {
        ZapSubject::Forebay => Backing::Temporary(args.folder.clone()),
        _ => Backing::Memory,
    };
    BackingArgs { device, device_size: args.device_size, overwrite: false }
}

fn setting<'a>(common: &Common, args: &Args, backing: &'a BackingArgs) -> PoolConfig<'a> {
    PoolConfig {
        backing,
        cache_bytes: args.cache,
        plain_lru: false,
        pool_tunables: &[],
        copies: args.copies,
        seed: common.seed,
    }
}

fn shape(common: &Common, args: &Args) -> Result<Record, Failure> {
    let backing = backing(args, ZapSubject::ForebayMemory);
    let pooled = Pooled::new(&setting(common, args, &backing))?;
    let load = Load { threads: 1, count: args.count, batch: args.batch, seed: common.seed };
    let record = Record::new(SHAPE, "forebay", 1).param("names", args.count);
    names::shape(&pooled, &load, record)
}

/// Throughput over threads, one panel each for inserts, lookups and removals.
pub(crate) fn panels(records: &[Record]) -> Vec<Panel> {
    let timed: Vec<Record> =
        records.iter().filter(|r| r.number("insert_per_s").is_some()).cloned().collect();
    ["insert_per_s", "lookup_per_s", "remove_per_s"]
        .into_iter()
        .flat_map(|figure| panels_over_threads(&timed, &["names"], figure))
        .collect()
}
