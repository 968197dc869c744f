//! Hours of work on six pools that share a cache, in a process that is killed again and again.
//!
//! The *child* (`child.rs`) works on all pools at once, under faults, exporting and importing them between rounds, and keeps a
//! [`journal`](mod@crate::journal) of each. The *parent* starts it, kills it at some moment or lets it end, and then
//! looks at each pool: what is there must be what the journal says that a crash may leave.

pub mod child;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;
use forebay_io::{Device, FileDevice, OpenOptions};
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, DatasetSettings, Pool, Result};

use crate::journal::{self, Journal};
use crate::model::Model;
use crate::{compare, rig};

/// Pools that work at once.
pub const POOLS: usize = 6;
/// Bytes of a device.
const DEVICE_BYTES: u64 = 64 << 20;
/// Bytes of each process's cache.
const CACHE_BYTES: u64 = 48 << 20;
/// Longest life of a child, in milliseconds.
const LIFE_MS: u64 = 3000;
/// A child that was not killed ends within this time.
const END: Duration = Duration::from_secs(60);

/// How long, and where.
#[derive(Clone, Debug)]
pub struct Soak {
    /// It begins no new round after this time.
    pub time: Duration,
    /// An empty folder.
    pub folder: PathBuf,
    /// Decides what is done; not when the child is killed in what it does.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Children.
    pub rounds: u64,
    /// Of these, killed.
    pub kills: u64,
    /// Changes that were looked for.
    pub changes: u64,
    /// Fsyncs that had returned.
    pub fsyncs: u64,
    /// Open files of the parent after the first round, and at the end.
    pub files: (usize, usize),
    /// Memory of the parent in KiB after the first round, and at the end.
    pub memory_kib: (u64, u64),
}

impl Soak {
    /// Runs it. `child` is the command of the child, which gets the folder and a seed as arguments.
    ///
    /// # Errors
    /// What is wrong, with pool and seed.
    pub fn run(&self, child: impl Fn() -> Command) -> Result<Summary, String> {
        let begun = Instant::now();
        let mut rng = SmallRng::from_seed(self.seed);
        let mut summary = Summary::default();
        for number in 0..POOLS {
            Place::new(&self.folder, number).create().map_err(|error| error.to_string())?;
        }
        while begun.elapsed() < self.time {
            let seed = rng.next_u64();
            let mut command = child();
            command.arg(&self.folder).arg(seed.to_string());
            let process = command.spawn().map_err(|error| format!("the child: {error}"))?;
            summary.kills += u64::from(watch(process, &mut rng)?);
            let cache = rig::cache(CACHE_BYTES);
            for number in 0..POOLS {
                let place = Place::new(&self.folder, number);
                place.verify(&cache, &mut summary).map_err(|text| {
                    format!("pool {number}, round {}, seed {}: {text}", summary.rounds, self.seed)
                })?;
            }
            cache.cache().audit();
            drop(cache);
            summary.rounds += 1;
            let now = (open_files(), memory_kib());
            if summary.rounds == 1 {
                (summary.files.0, summary.memory_kib.0) = now;
            }
            (summary.files.1, summary.memory_kib.1) = now;
        }
        Ok(summary)
    }
}

/// Waits for the child's end, or brings it about. Returns whether it was killed.
fn watch(mut child: Child, rng: &mut SmallRng) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("the child: {error}");
    let kills = rng.below(5) > 0;
    let life = match kills {
        true => Duration::from_millis(200 + rng.below(LIFE_MS)),
        false => END,
    };
    let begun = Instant::now();
    while begun.elapsed() < life {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return ended(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().map_err(failed)?;
    child.wait().map_err(failed)?;
    if kills { Ok(true) } else { Err(format!("the child did not end within {END:?}")) }
}

fn ended(status: ExitStatus) -> Result<bool, String> {
    if status.success() { Ok(false) } else { Err(format!("the child ended with {status}")) }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Where a pool and its journal are.
pub(crate) struct Place {
    number: usize,
    files: Vec<PathBuf>,
    journal: PathBuf,
}

impl Place {
    pub(crate) fn new(folder: &Path, number: usize) -> Self {
        let file = |at| folder.join(format!("pool-{number}-{at}"));
        // Every second pool has two devices.
        let files = (0..1 + number % 2).map(file).collect();
        Self { number, files, journal: folder.join(format!("pool-{number}.journal")) }
    }

    pub(crate) fn journal(&self) -> &Path {
        &self.journal
    }

    /// The devices.
    ///
    /// # Panics
    /// If a file cannot be opened.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        let options = OpenOptions {
            create_bytes: Some(DEVICE_BYTES),
            submission_queues: 1,
            threads: 2,
            ..OpenOptions::default()
        };
        let open = |path| FileDevice::open(path, &options).expect("a file");
        self.files.iter().map(|path| -> Arc<dyn Device> { Arc::new(open(path)) }).collect()
    }

    fn create(&self) -> Result<(), Box<dyn std::error::Error>> {
        // With two copies of all, rot in one of them is healed.
        let settings = DatasetSettings {
            record_bytes: 4096 << self.number,
            data_copies: 2,
            data_compression: if self.number.is_multiple_of(3) {
                Compression::Zstd
            } else {
                Compression::Off
            },
            ..DatasetSettings::default()
        };
        let pool = rig::create(&self.devices(), &rig::cache(CACHE_BYTES), &settings)?;
        pool.export()?;
        Journal::create(&self.journal, &Model::default())?;
        Ok(())
    }

    /// What the pool holds must be what the journal says. A new journal begins with it.
    fn verify(&self, cache: &Arc<BlockCache>, summary: &mut Summary) -> Result<(), String> {
        let told = |what: &str| {
            let what = what.to_owned();
            move |error: forebay_pool::Error| format!("{what}: {error:?}")
        };
        let (history, now) = journal::read(&self.journal).map_err(|error| error.to_string())?;
        let devices = self.devices();
        let mut options = rig::import_options(cache);
        options.read_only = true;
        let pool = rig::import(&devices, &options).map_err(told("an import without replay"))?;
        let txg = pool.stats().synced_txg;
        if txg < now.synced_txg {
            return Err(format!("group {txg}, when {} was durable", now.synced_txg));
        }
        pool.export().map_err(told("an export"))?;
        options.read_only = false;
        let pool = rig::import(&devices, &options).map_err(told("an import"))?;
        rig::check(&pool)?;
        let found = read(&pool, history.keys()).map_err(told("reading"))?;
        history.explains(txg, &now, &found)?;
        pool.export().map_err(told("an export"))?;
        summary.changes += history.changes.len() as u64;
        summary.fsyncs += now.fsyncs_done as u64;
        Journal::create(&self.journal, &found).map_err(|error| error.to_string())?;
        Ok(())
    }
}

pub(crate) fn read(pool: &Pool, keys: impl Iterator<Item = crate::model::Key>) -> Result<Model> {
    compare::read_all(&rig::datasets(pool)?, keys)
}
