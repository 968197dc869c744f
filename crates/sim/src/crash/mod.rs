//! Crashes at every moment of random work, and what must be true after each.
//!
//! A run does work on recorded devices and notes cuts. An image of a crash is a cut, and for each write that was
//! not flushed by then a decision what of it survived. Of each image it must be true that
//!
//! - an import that writes nothing finds exactly the state at the end of one transaction group, of the newest one that was known to
//!   be durable or a newer one, and a check of it finds nothing wrong;
//! - an import with a replay of the intent log finds exactly that state with what the first so many fsyncs made durable, all
//!   that had returned, and a check finds nothing wrong: no leak, no block with two owners;
//! - work goes on from there, and an export and another import find what was made.
//!
//! One thing less is promised: of an fsync that had not returned, a part may be there (`verify.rs`).

mod cuts;
mod image;
mod verify;

use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_io::record::{RecordDevice, RecordOptions, Recording};
use forebay_pool::format::Compression;
use forebay_pool::{BlockCache, DatasetSettings};

pub use cuts::{Cut, CutDevice, Cuts};
pub use image::{Manner, Picked};

use crate::history::History;
use crate::model::Model;
use crate::rig;
use crate::workload::{Load, Workload};

/// Bytes that a recording may take.
const RECORDING_BYTES: u64 = 1 << 30;
/// Bytes of the caches.
const CACHE_BYTES: u64 = 24 << 20;
/// The same, of runs with a cache device.
const SMALL_CACHE_BYTES: u64 = 6 << 20;
/// After so many steps all that is durable goes to the cache device.
const FILL_EVERY: usize = 10;

/// A run of work and its crashes.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Decides everything.
    pub seed: u64,
    /// Devices of the pool.
    pub devices: usize,
    /// Bytes of each.
    pub device_bytes: u64,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Steps of work.
    pub steps: usize,
    /// Images.
    pub images: u64,
    /// What work.
    pub load: Load,
    /// Whether the pool has a cache device, which is kept over the crash. Memory is small then, so that much goes there.
    pub second: bool,
}

impl Run {
    /// A run on so many devices.
    pub fn new(seed: u64, devices: usize) -> Self {
        Self {
            seed,
            devices,
            device_bytes: 48 << 20,
            sector_bytes: 512,
            steps: 150,
            images: 25,
            load: Load::default(),
            second: false,
        }
    }

    /// Does the work, and looks at the images: all, or the one that `FOREBAY_IMAGE` names.
    ///
    /// # Panics
    /// With seed and image, if something is not as it must be.
    pub fn execute(&self) {
        println!("{self:?}");
        let done = self.work();
        assert!(done.recordings.iter().all(Recording::is_complete), "the recording is too short");
        println!(
            "{} changes, {} fsyncs, {} groups, {} cuts",
            done.history.changes.len(),
            done.history.fsyncs.len(),
            done.history.changes.last().map_or(0, |done| done.txg),
            done.cuts.len(),
        );
        let only = rig::number("FOREBAY_IMAGE");
        let cache = rig::cache(self.cache_bytes());
        let mut hits = 0;
        for number in only.map_or(0..self.images, |only| only..only + 1) {
            let told = Told { seed: self.seed, number: Some(number) };
            let mut rng = SmallRng::from_seed(self.seed ^ (number + 1).wrapping_mul(0x9e37_79b9));
            let picked = Picked::new(&done, &mut rng);
            if only.is_some() {
                println!("{picked:?}");
            }
            hits += verify::verify(self, &done, &picked, &cache, &mut rng);
            drop(told);
        }
        // Or nothing was proven.
        assert!(hits > 0 || !self.second || only.is_some(), "no cache device answered for a block");
    }

    /// Does the work.
    fn work(&self) -> Worked {
        let told = Told { seed: self.seed, number: None };
        // The last one is the cache device.
        let count = self.devices + usize::from(self.second);
        let recorded: Vec<_> = (0..count).map(|at| self.record_device(at)).collect();
        let cuts = Cuts::new(&recorded);
        let devices: Vec<Arc<dyn Device>> = recorded
            .iter()
            .map(|device| -> Arc<dyn Device> {
                Arc::new(CutDevice::new(Arc::clone(device), Arc::clone(&cuts)))
            })
            .collect();
        let cache = rig::cache(self.cache_bytes());
        let settings = self.settings();
        let (devices, caches) = devices.split_at(self.devices);
        let pool = rig::create(devices, &cache, &settings).expect("a pool");
        for device in caches {
            pool.add_l2_device(Arc::clone(device).into(), false).expect("a cache device");
        }
        let mut work =
            Workload::new(pool, Model::default(), self.load, self.seed).expect("datasets");
        cuts.watch(work.progress());
        for step in 0..self.steps {
            if let Err(error) = work.step() {
                panic!("the work: {error:?}");
            }
            if self.second && step % FILL_EVERY == 0 {
                work.pool().fill_l2_devices();
            }
            cuts.note(false);
        }
        let cuts = cuts.take();
        let (pool, _, history) = work.end().expect("the last commit");
        rig::check(&pool).unwrap_or_else(|problems| panic!("after the work: {problems}"));
        pool.export().expect("the export");
        let recordings = recorded.iter().map(|device| device.recording()).collect();
        drop(told);
        Worked { cuts, history, recordings }
    }

    fn cache_bytes(&self) -> u64 {
        if self.second { SMALL_CACHE_BYTES } else { CACHE_BYTES }
    }

    fn record_device(&self, at: usize) -> Arc<RecordDevice> {
        let memory = rig::memory(&format!("memory-{at}"), self.device_bytes, self.sector_bytes);
        let options = RecordOptions { max_bytes: RECORDING_BYTES, base: None };
        Arc::new(RecordDevice::new(memory, options))
    }

    /// Settings of the datasets: those of a run differ from those of the next.
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

/// What was done in a run.
pub(crate) struct Worked {
    pub(crate) cuts: Vec<Cut>,
    pub(crate) history: History,
    pub(crate) recordings: Vec<Recording>,
}

/// Says how to repeat what has panicked.
struct Told {
    seed: u64,
    number: Option<u64>,
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let image = self.number.map(|number| format!("FOREBAY_IMAGE={number} "));
            eprintln!("repeat with: {}FOREBAY_SEED={}", image.unwrap_or_default(), self.seed);
        }
    }
}

/// A cache for pools of images.
pub(crate) type SharedCache = Arc<BlockCache>;
