//! A soak test: six pools share a cache in a process that is killed again and again.
//!
//! The *child* (`child.rs`) works on all pools at once, under faults, exports and imports them
//! between rounds, and keeps a [`journal`](mod@crate::journal) of each. For moments, devices fail
//! altogether: then a pool is suspended until it is cleared, or goes on without its L2 device or
//! without a side of a mirror, which comes back later. Sides are also taken offline, and left out
//! of imports. The *parent* starts the child, kills it at a random moment or lets it end, and then
//! verifies each pool against its journal.

pub mod child;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;
use forebay_io::{Device, FileDevice, OpenOptions};
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, DatasetSettings, LeafState, NewVdev, Pool, Result};

use crate::journal::{self, Journal};
use crate::model::Model;
use crate::{compare, fixture};

/// Pools that the child uses at once.
pub const POOLS: usize = 6;
/// Size of a device, in bytes.
const DEVICE_BYTES: u64 = 64 << 20;
/// Size of an L2 device, in bytes.
const L2_BYTES: u64 = 32 << 20;
/// Size of each process's cache, in bytes.
const CACHE_BYTES: u64 = 48 << 20;
/// Longest life of a child that is killed, in milliseconds.
const LIFE_MS: u64 = 3000;
/// How often sides of mirrors are brought back until they must have all blocks.
const BRING_BACK_ROUNDS: usize = 3;
/// A child that is not killed must end within this time.
const END: Duration = Duration::from_secs(60);

/// What the pools of a soak test consist of besides plain devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolKind {
    /// Whether each pool has an L2 device.
    pub l2: bool,
    /// Whether each device is a mirror of two.
    pub mirror: bool,
}

/// A soak test.
#[derive(Clone, Debug)]
pub struct Soak {
    /// No round begins after this time.
    pub time: Duration,
    /// An empty folder.
    pub folder: PathBuf,
    /// Decides the work, but not the moment of a kill.
    pub seed: u64,
    /// What the pools consist of.
    pub kind: PoolKind,
}

/// The result of a soak test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Children started.
    pub rounds: u64,
    /// Children killed.
    pub kills: u64,
    /// Changes verified.
    pub changes: u64,
    /// Fsyncs that returned.
    pub fsyncs: u64,
    /// Open files of the parent, after the first round and at the end.
    pub files: (usize, usize),
    /// Resident memory of the parent in KiB, after the first round and at the end.
    pub memory_kib: (u64, u64),
}

impl Soak {
    /// Runs the test. `child` makes the child's command; the folder, a seed, and whether there are
    /// L2 devices and mirrors are appended as arguments.
    ///
    /// # Errors
    /// The failure, with pool and seed.
    pub fn run(&self, child: impl Fn() -> Command) -> Result<Summary, String> {
        let begun = Instant::now();
        let mut rng = SmallRng::from_seed(self.seed);
        let mut summary = Summary::default();
        for number in 0..POOLS {
            PoolFiles::new(&self.folder, number, self.kind)
                .create()
                .map_err(|error| error.to_string())?;
        }
        while summary.rounds == 0 || begun.elapsed() < self.time {
            let seed = rng.next_u64();
            let mut command = child();
            command.arg(&self.folder).arg(seed.to_string());
            command.args([self.kind.l2.to_string(), self.kind.mirror.to_string()]);
            let process = command.spawn().map_err(|error| format!("the child: {error}"))?;
            summary.kills += u64::from(watch(process, &mut rng)?);
            let cache = fixture::cache(CACHE_BYTES);
            for number in 0..POOLS {
                let pool_files = PoolFiles::new(&self.folder, number, self.kind);
                pool_files.verify(&cache, &mut summary).map_err(|text| {
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

/// Waits for the child to end, or kills it. Returns true if it was killed.
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

/// The files of a pool: its devices and its journal.
pub(crate) struct PoolFiles {
    number: usize,
    mirror: bool,
    /// Of a mirror, one side after the other.
    files: Vec<PathBuf>,
    l2: Option<PathBuf>,
    journal: PathBuf,
}

impl PoolFiles {
    pub(crate) fn new(folder: &Path, number: usize, PoolKind { l2, mirror }: PoolKind) -> Self {
        let file = |at| folder.join(format!("pool-{number}-{at}"));
        // Every second pool has two devices.
        let vdevs = 1 + number % 2;
        let files = (0..if mirror { 2 * vdevs } else { vdevs }).map(file).collect();
        let l2 = l2.then(|| folder.join(format!("pool-{number}-l2")));
        Self { number, mirror, files, l2, journal: folder.join(format!("pool-{number}.journal")) }
    }

    pub(crate) fn has_mirrors(&self) -> bool {
        self.mirror
    }

    pub(crate) fn journal(&self) -> &Path {
        &self.journal
    }

    /// Opens the devices.
    ///
    /// # Panics
    /// If a file cannot be opened.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.files.iter().map(|path| open(path, DEVICE_BYTES)).collect()
    }

    /// Opens the L2 device, if there is one.
    ///
    /// # Panics
    /// If the file cannot be opened.
    pub(crate) fn l2_devices(&self) -> Vec<Arc<dyn Device>> {
        self.l2.iter().map(|path| open(path, L2_BYTES)).collect()
    }

    fn vdevs(&self) -> Vec<NewVdev> {
        let devices = self.devices();
        let opened = |devices: &[Arc<dyn Device>]| {
            devices.iter().map(|device| Arc::clone(device).into()).collect()
        };
        match self.mirror {
            true => devices.chunks(2).map(|sides| NewVdev::Mirror(opened(sides))).collect(),
            false => devices.into_iter().map(|device| NewVdev::Device(device.into())).collect(),
        }
    }

    fn create(&self) -> Result<(), Box<dyn std::error::Error>> {
        // Two copies of everything, or two sides, so rot in one of them is healed.
        let settings = DatasetSettings {
            record_bytes: 4096 << self.number,
            data_copies: if self.mirror { 1 } else { 2 },
            data_compression: if self.number.is_multiple_of(3) {
                Compression::Zstd
            } else {
                Compression::Off
            },
            ..DatasetSettings::default()
        };
        let pool = fixture::create_tree(self.vdevs(), &fixture::cache(CACHE_BYTES), &settings)?;
        for l2 in self.l2_devices() {
            pool.add_l2_device(l2.into(), false)?;
        }
        pool.export()?;
        Journal::create(&self.journal, &Model::default())?;
        Ok(())
    }

    /// Verifies that the journal allows the pool's state, and starts a new journal with it.
    fn verify(&self, cache: &Arc<BlockCache>, summary: &mut Summary) -> Result<(), String> {
        let context = |what: &str| {
            let what = what.to_owned();
            move |error: forebay_pool::Error| format!("{what}: {error:?}")
        };
        let (history, snapshot) =
            journal::read(&self.journal).map_err(|error| error.to_string())?;
        let devices = self.devices();
        let mut options = fixture::import_options(cache);
        options.read_only = true;
        let pool = fixture::import_with(&devices, &[], &options)
            .map_err(context("importing without replay"))?;
        let txg = pool.stats().synced_txg;
        if txg < snapshot.synced_txg {
            return Err(format!("found txg {txg}, but {} was durable", snapshot.synced_txg));
        }
        pool.export().map_err(context("an export"))?;
        options.read_only = false;
        let pool = fixture::import_with(&devices, &self.l2_devices(), &options);
        let pool = pool.map_err(context("importing"))?;
        bring_back(&pool)?;
        heal_and_check(&pool)?;
        let found = read(&pool, history.keys()).map_err(context("reading"))?;
        history.check_allowed(txg, &snapshot, &found)?;
        pool.export().map_err(context("an export"))?;
        summary.changes += history.changes.len() as u64;
        summary.fsyncs += snapshot.fsyncs_done as u64;
        Journal::create(&self.journal, &found).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Takes sides of mirrors into use that are not, and waits until they have all blocks. A flush that
/// failed before may be noticed only now, and takes a side out of use once more.
pub(crate) fn bring_back(pool: &Pool) -> Result<(), String> {
    let failed = |error: forebay_pool::Error| format!("bringing a side back: {error:?}");
    let is_whole = |state| matches!(state, LeafState::Online | LeafState::Missing);
    let lacking = || {
        let devices = pool.devices().into_iter();
        devices.filter(|device| device.mirror && !is_whole(device.state)).collect::<Vec<_>>()
    };
    for _ in 0..BRING_BACK_ROUNDS {
        for device in lacking() {
            pool.online_device(&device.path).map_err(failed)?;
        }
        pool.start_resilver().map_err(failed)?;
        pool.wait_resilver();
    }
    match lacking().first() {
        Some(device) => {
            let status = pool.resilver_status();
            Err(format!("{} stays {}: {status}", device.path, device.state))
        }
        None => Ok(()),
    }
}

/// Writes the copies that a failed device did not take, and checks the pool.
pub(crate) fn heal_and_check(pool: &Pool) -> Result<(), String> {
    let scrubbed = pool.scrub(&mut |_| ControlFlow::Continue(()));
    let report = scrubbed.map_err(|error| format!("the scrub: {error:?}"))?;
    match report.lost_count {
        0 => fixture::check(pool),
        _ => Err(format!("the scrub: {report:?}")),
    }
}

fn open(path: &Path, bytes: u64) -> Arc<dyn Device> {
    let options = OpenOptions {
        create_bytes: Some(bytes),
        submission_queues: 1,
        threads: 2,
        ..OpenOptions::default()
    };
    Arc::new(FileDevice::open(path, &options).expect("a file"))
}

pub(crate) fn read(pool: &Pool, keys: impl Iterator<Item = crate::model::Key>) -> Result<Model> {
    compare::read_all(&fixture::datasets(pool)?, keys)
}
