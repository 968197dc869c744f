//! Crash tests: images of every moment of random work, and their checks.
//!
//! A run works on recorded devices and takes cuts. An image is a cut, with a decision for each
//! unflushed write about what survived. Each image must pass these checks:
//!
//! - A read-only import finds exactly the state at the end of one transaction group (txg), which is
//!   not older than the newest one known to be durable. A check finds nothing wrong.
//! - An import with a replay of the intent log finds that state with the effects of a prefix of the
//!   fsyncs, which includes all that had returned. A check finds no leak and no block with two
//!   owners.
//! - Work continues from there. An export and another import find its result.
//!
//! After some crashes a side of a mirror is absent. It is back at the last of these imports, and is
//! out of date. If devices join and leave during the work ([`TreeChange`]), one more import is
//! without one of them: it finds the same, or says which way out there is, and that one works.
//!
//! An fsync that had not returned may survive in part (`history/allowed.rs`).

mod append;
mod cuts;
mod image;
mod store;
mod tree;
mod verify;

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_io::record::{Event, RecordDevice, RecordOptions, Recording};
use forebay_object::ObjectDevice;
use forebay_object::simulated::SimulatedStore;
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, DatasetSettings, NewVdev, Pool};

pub use cuts::{Cut, CutDevice, Cuts, Recorder};
pub use image::{CrashImage, SurvivalMode};
pub use tree::TreeChange;

use crate::fixture;
use crate::history::History;
use crate::model::Model;
use crate::workload::{Workload, WorkloadOptions};
use tree::TreeChanges;

/// Largest size of a recording, in bytes.
const RECORDING_BYTES: u64 = 1 << 30;
/// Size of the cache, in bytes.
const CACHE_BYTES: u64 = 24 << 20;
/// Size of the cache with an L2 device, in bytes. It is small, so that L2 gets many blocks.
const SMALL_CACHE_BYTES: u64 = 6 << 20;
/// Size of a device of the log, in bytes: the ring is overwritten several times.
const LOG_BYTES: u64 = 16 << 20;
/// Steps between two fills of the L2 device.
const FILL_EVERY: usize = 10;
/// Steps between two moments at which the leaves of aided directories leave the cache.
const FLUSH_EVERY: usize = 3;

/// What a pool is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Devices that are written at any place.
    Disks,
    /// A device that takes each address once, as that of an object store does.
    AppendOnly,
    /// A simulated object store. The result then does not depend on the seed alone.
    ObjectStore {
        /// Whether a part of the requests fails, with or without an effect.
        fails: bool,
    },
}

/// A crash test: a run of work and its crashes.
#[derive(Clone, Copy, Debug)]
pub struct CrashTest {
    /// Decides everything in the run.
    pub seed: u64,
    /// Number of devices of the pool.
    pub devices: usize,
    /// Number of these devices that mirror each other; 1 for no mirrors. The last side of each
    /// mirror is out of use for a part of the work, then a resilver brings it what it misses. It is
    /// absent after some of the crashes. The result then does not depend on the seed alone.
    pub sides: usize,
    /// Number of devices of its log vdev, which mirror each other; 0 for none.
    pub logs: usize,
    /// Which devices join and leave during the work. The result then does not depend on the seed
    /// alone.
    pub tree: TreeChange,
    /// Size of each device, in bytes.
    pub device_bytes: u64,
    /// Sector size, in bytes.
    pub sector_bytes: u32,
    /// Size of a physical sector, in bytes: a torn write damages all of one. The pool does not
    /// choose smaller sectors.
    pub physical_bytes: u32,
    /// Number of steps of work.
    pub steps: usize,
    /// Number of images.
    pub images: u64,
    /// The kind of work.
    pub load: WorkloadOptions,
    /// Whether the pool has an L2 device, which survives the crash.
    pub l2: bool,
    /// What the pool is on.
    pub medium: Medium,
    /// Whether freed space is discarded in the background, down to single blocks. The result then
    /// does not depend on the seed alone.
    pub discards: bool,
}

impl CrashTest {
    /// A test on `devices` devices, with the usual size.
    pub fn new(seed: u64, devices: usize) -> Self {
        Self {
            seed,
            devices,
            sides: 1,
            logs: 0,
            tree: TreeChange::None,
            device_bytes: 48 << 20,
            sector_bytes: 512,
            physical_bytes: if seed / 4 % 4 == 3 { 512 } else { 4096 },
            steps: 150,
            images: 25,
            load: WorkloadOptions::default(),
            l2: false,
            medium: Medium::Disks,
            discards: false,
        }
    }

    /// A test on a device that takes each address once.
    pub fn on_object_store(seed: u64) -> Self {
        Self {
            medium: Medium::AppendOnly,
            device_bytes: 4 << 30,
            sector_bytes: 4096,
            physical_bytes: 4096,
            ..Self::new(seed, 1)
        }
    }

    /// A test on a simulated object store.
    pub fn on_simulated_store(seed: u64, fails: bool) -> Self {
        Self { medium: Medium::ObjectStore { fails }, ..Self::on_object_store(seed) }
    }

    /// Does the work and verifies all images, or the one that `FOREBAY_IMAGE` names.
    ///
    /// # Panics
    /// With seed and image, if a check fails.
    pub fn execute(&self) {
        println!("{self:?}");
        let done = self.work();
        assert!(
            done.recordings.iter().all(Recording::is_complete),
            "the recording exceeds its bound"
        );
        println!(
            "{} changes, {} fsyncs, {} txgs, {} cuts",
            done.history.changes.len(),
            done.history.fsyncs.len(),
            done.history.changes.last().map_or(0, |done| done.txg),
            done.cuts.len(),
        );
        let only = fixture::env_number("FOREBAY_IMAGE");
        let cache = fixture::cache(self.cache_bytes());
        let mut hits = 0;
        for number in only.map_or(0..self.images, |only| only..only + 1) {
            let mut rng = SmallRng::from_seed(self.seed ^ (number + 1).wrapping_mul(0x9e37_79b9));
            let crash_image = CrashImage::new(&done, &mut rng);
            let image = Some((number, format!("{crash_image:?}")));
            let hint = ReproHint { seed: self.seed, image };
            hits += verify::verify(self, &done, &crash_image, &cache, &mut rng);
            drop(hint);
        }
        let is_discard = |event: &Event| matches!(event, Event::Discard { .. });
        let discards = done.recordings.iter().flat_map(Recording::events).filter(|e| is_discard(e));
        let seen = discards.count() > 0 || done.store.is_some();
        assert!(seen || !self.discards, "nothing was discarded");
        // Without a hit, L2 was not tested.
        assert!(hits > 0 || !self.l2 || only.is_some(), "no L2 device supplied a block");
    }

    /// Does the work.
    fn work(&self) -> RecordedRun {
        let hint = ReproHint { seed: self.seed, image: None };
        let Recorders { cuts, recorded, store, object_device, devices } = self.recorders();
        let cache = fixture::cache(self.cache_bytes());
        let settings = self.settings();
        let (devices, l2_devices) = devices.split_at(self.members());
        let (devices, logs) = devices.split_at(self.devices);
        let (logs, spares) = logs.split_at(self.logs);
        let append_only = self.medium == Medium::AppendOnly;
        let stores: Vec<_> = match append_only {
            true => devices.iter().cloned().map(append::new).collect(),
            false => Vec::new(),
        };
        let appending: Vec<_> = stores.iter().map(|it| Arc::clone(it) as Arc<dyn Device>).collect();
        let devices = if append_only { &appending[..] } else { devices };
        let vdevs = self.vdevs(devices, logs);
        let pool = fixture::create_tree(vdevs, &cache, &settings).expect("a pool");
        if let Some(device) = &object_device {
            store::start_cleaner(device, &pool);
        }
        if self.discards {
            discard_soon(&pool);
        }
        for device in l2_devices {
            pool.add_l2_device(Arc::clone(device).into(), false).expect("an L2 device");
        }
        let mut work =
            Workload::new(pool, Model::default(), self.load, self.seed).expect("datasets");
        cuts.watch(work.progress());
        let mut tree = TreeChanges::new(self.tree, (&devices[0], spares), &cuts);
        for step in 0..self.steps {
            if let Err(error) = work.step() {
                panic!("the work: {error:?}");
            }
            self.after_step(work.pool(), step, &cache);
            tree.step(&work, step, self.steps);
            cuts.take_cut(false);
        }
        tree.join();
        drop(tree);
        let cuts = cuts.stop();
        let (pool, _, history) = work.end().expect("the last commit");
        // A side that came back late in the work may still lack blocks.
        pool.wait_resilver();
        fixture::check(&pool).unwrap_or_else(|problems| panic!("after the work: {problems}"));
        if self.load.aided_directories {
            let counters = pool.stats().counters;
            let buffered = counters.iter().find(|counter| counter.0 == "directory_names_buffered");
            assert!(buffered.is_some_and(|counter| counter.2 > 0), "no name was buffered");
        }
        pool.export().expect("the export");
        stores.iter().for_each(|store| append::assert_sound(store));
        if let Some(device) = object_device {
            store::close(&device, self.seed);
        }
        let recordings = recorded.iter().map(|device| device.recording()).collect();
        drop(hint);
        RecordedRun { cuts, history, store, recordings }
    }

    /// What other threads and people do meanwhile.
    fn after_step(&self, pool: &Pool, step: usize, cache: &SharedCache) {
        self.move_sides(pool, step);
        if self.l2 && step.is_multiple_of(FILL_EVERY) {
            pool.fill_l2_devices();
        }
        if self.load.aided_directories && step.is_multiple_of(FLUSH_EVERY) {
            cache.cache().clear();
        }
        if self.discards && step == self.steps / 2 {
            // The thread may not get a turn on a busy machine.
            pool.trim(&mut |_| ControlFlow::Continue(())).expect("a pass of discards");
        }
    }

    /// The recorded devices, and a store in place of the first one.
    fn recorders(&self) -> Recorders {
        let store = match self.medium {
            Medium::ObjectStore { fails } => Some(store::recorded(fails, self.seed)),
            Medium::Disks | Medium::AppendOnly => None,
        };
        // Those of the log follow, then spare ones, and the L2 device is the last one.
        let count = self.members() + usize::from(self.l2);
        let recorded: Vec<_> =
            (usize::from(store.is_some())..count).map(|at| self.record_device(at)).collect();
        let mut recorders: Vec<Arc<dyn Recorder>> = Vec::new();
        recorders.extend(store.iter().map(|store| Arc::clone(store) as Arc<dyn Recorder>));
        recorders.extend(recorded.iter().map(|device| Arc::clone(device) as Arc<dyn Recorder>));
        let cuts = Cuts::new(recorders);
        let object_device = store.as_ref().map(|store| store::create(store, &cuts, self.seed));
        let first = object_device.iter().map(|device| Arc::clone(device) as Arc<dyn Device>);
        let others = recorded.iter().map(|device| -> Arc<dyn Device> {
            Arc::new(CutDevice::new(Arc::clone(device), Arc::clone(&cuts)))
        });
        let devices = first.chain(others).collect();
        Recorders { cuts, recorded, store, object_device, devices }
    }

    fn vdevs(&self, devices: &[Arc<dyn Device>], logs: &[Arc<dyn Device>]) -> Vec<NewVdev> {
        let mut vdevs: Vec<NewVdev> = match self.sides {
            1 => devices.iter().map(fixture::vdev).collect(),
            sides => devices.chunks(sides).map(mirror_of).collect(),
        };
        if self.logs > 0 {
            vdevs.push(NewVdev::Log(logs.iter().map(|one| Arc::clone(one).into()).collect()));
        }
        vdevs
    }

    /// Takes the last sides of mirrors out of use, or back.
    fn move_sides(&self, pool: &Pool, step: usize) {
        let is_side = |at: &usize| self.sides > 1 && at % self.sides == self.sides - 1;
        for at in (0..self.devices).filter(is_side) {
            let side = device_name(at);
            if step == self.steps / 3 {
                pool.offline_device(&side).expect("another side is whole");
            } else if step == self.steps * 2 / 3 {
                pool.online_device(&side).expect("it is there");
            }
        }
    }

    /// A side of a mirror that may be absent after a crash: others always have all blocks.
    fn absent_side(&self, rng: &mut SmallRng) -> Option<usize> {
        if self.sides == 1 || rng.below(3) > 0 {
            return None;
        }
        let mirror = rng.below((self.devices / self.sides) as u64) as usize;
        Some((mirror + 1) * self.sides - 1)
    }

    /// Number of devices of the pool, also those of the log, and those that may join.
    fn members(&self) -> usize {
        self.devices + self.logs + self.tree.spares()
    }

    /// Whether a side of a mirror may lack blocks after a crash.
    fn may_be_degraded(&self) -> bool {
        self.sides > 1 || self.tree == TreeChange::Replace
    }

    fn cache_bytes(&self) -> u64 {
        if self.l2 { SMALL_CACHE_BYTES } else { CACHE_BYTES }
    }

    fn record_device(&self, at: usize) -> Arc<RecordDevice> {
        let sectors = (self.sector_bytes, self.physical_bytes);
        let logs = match self.tree.is_of_log() {
            true => self.devices..self.members(),
            false => self.devices..self.devices + self.logs,
        };
        let is_log = logs.contains(&at);
        let bytes = if is_log { LOG_BYTES } else { self.device_bytes };
        let memory = fixture::disk(&device_name(at), bytes, sectors);
        let options = RecordOptions { max_bytes: RECORDING_BYTES, base: None };
        Arc::new(RecordDevice::new(memory, options))
    }

    /// Dataset settings, which vary with the seed.
    fn settings(&self) -> DatasetSettings {
        let compression = [Compression::Off, Compression::Lz4, Compression::Zstd];
        DatasetSettings {
            record_bytes: 4096 << (self.seed % 4),
            data_compression: compression[(self.seed % 3) as usize],
            data_copies: 1 + (self.seed % 5 == 4) as u8,
            ..DatasetSettings::default()
        }
    }
}

/// Lets the pool discard freed space at once, down to single blocks.
fn discard_soon(pool: &Pool) {
    let tunables = [
        ("trim_files", "true"),
        ("trim_delay_ms", "0"),
        ("trim_min_bytes", "4K"),
        ("trim_rate_bytes", "0"),
    ];
    for (name, value) in tunables {
        pool.set_tunable(name, value).expect("a tunable");
    }
}

fn device_name(at: usize) -> String {
    format!("memory-{at}")
}

fn mirror_of(sides: &[Arc<dyn Device>]) -> NewVdev {
    NewVdev::Mirror(sides.iter().map(|one| Arc::clone(one).into()).collect())
}

/// The devices of a run.
struct Recorders {
    cuts: Arc<Cuts>,
    recorded: Vec<Arc<RecordDevice>>,
    /// The first device, if it is an object store.
    store: Option<Arc<SimulatedStore>>,
    object_device: Option<Arc<ObjectDevice>>,
    /// All of them, which take cuts.
    devices: Vec<Arc<dyn Device>>,
}

/// The result of a run's work.
pub(crate) struct RecordedRun {
    pub(crate) cuts: Vec<Cut>,
    pub(crate) history: History,
    /// The first of the pool, if it is an object store.
    pub(crate) store: Option<Arc<SimulatedStore>>,
    /// Of the devices after it.
    pub(crate) recordings: Vec<Recording>,
}

/// Prints how to repeat a test that panics, and the image: the result may not depend on the seed
/// alone.
struct ReproHint {
    seed: u64,
    image: Option<(u64, String)>,
}

impl Drop for ReproHint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, image } = self;
            let Some((number, image)) = image else {
                return eprintln!("repeat with: FOREBAY_SEED={seed}");
            };
            eprintln!("{image}\nrepeat with: FOREBAY_IMAGE={number} FOREBAY_SEED={seed}");
        }
    }
}

/// The cache that the pools of all images share.
pub(crate) type SharedCache = Arc<BlockCache>;
