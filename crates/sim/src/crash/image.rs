//! Crash images: a cut, and what survives of the unflushed writes.

use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_io::append_only::AppendOnlyDevice;
use forebay_io::record::{CrashPoint, Image, Survives, Unflushed};
use forebay_pool::Pool;

use super::store::StoreImage;
use super::{CrashTest, Cut, Medium, RecordedRun, append};
use crate::fixture;

/// Capacity of the buffers for images, in bytes.
const SCRATCH_BYTES: u64 = 16 << 20;

/// What survives of unflushed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurvivalMode {
    /// Nothing.
    Least,
    /// Everything.
    Most,
    /// Each sector or not, or a prefix of each write.
    Sampled,
    /// Each write completely or not at all.
    Reordered,
    /// All but one, which is torn.
    OneTorn,
    /// All but one, which is missing.
    OneLost,
    /// Nothing, but for one.
    OneKept,
}

const SURVIVAL_MODES: [SurvivalMode; 7] = [
    SurvivalMode::Least,
    SurvivalMode::Most,
    SurvivalMode::Sampled,
    SurvivalMode::Reordered,
    SurvivalMode::OneTorn,
    SurvivalMode::OneLost,
    SurvivalMode::OneKept,
];

/// The devices of an image.
pub(crate) struct ImageDevices {
    /// Those that take each address once come first, and are not here.
    devices: Vec<Arc<dyn Device>>,
    stores: Vec<Arc<AppendOnlyDevice>>,
    object_store: Option<StoreImage>,
}

impl ImageDevices {
    /// All devices, in order.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Device>> {
        let object_store = self.object_store.iter();
        let object_store = object_store.map(|it| Arc::clone(it.device()) as Arc<dyn Device>);
        let stores = self.stores.iter().map(|store| Arc::clone(store) as Arc<dyn Device>);
        object_store.chain(stores).chain(self.devices.iter().cloned()).collect()
    }

    /// The same devices, for an import that writes nothing and must leave no trace.
    pub(crate) fn to_look_at(&self, devices: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
        let mut devices = devices.to_vec();
        if let Some(image) = &self.object_store {
            devices[0] = image.copy();
        }
        devices
    }

    /// Lets an object store merge and delete its objects.
    pub(crate) fn start_cleaner(&self, pool: &Pool) {
        if let Some(image) = &self.object_store {
            super::store::start_cleaner(image.device(), pool);
        }
    }

    /// Opens those that take each address once again.
    ///
    /// # Panics
    /// If a request has broken a rule.
    pub(crate) fn reopen(&mut self) {
        for store in &mut self.stores {
            append::assert_sound(store);
            *store = Arc::new(store.reopen());
        }
        if let Some(image) = &mut self.object_store {
            image.reopen();
        }
    }
}

/// An image of a crash.
#[derive(Debug)]
pub struct CrashImage {
    /// The moment of the crash.
    pub cut: Cut,
    /// What survives of unflushed writes.
    pub survival: SurvivalMode,
    seed: u64,
}

impl CrashImage {
    /// A random image of a run.
    pub(crate) fn new(done: &RecordedRun, rng: &mut SmallRng) -> Self {
        // Most crashes are where devices join or leave, if they do.
        let changing: Vec<&Cut> = done.cuts.iter().filter(|cut| cut.in_change).collect();
        let in_change = !changing.is_empty() && rng.below(4) > 0;
        let cuts = if in_change { changing } else { done.cuts.iter().collect() };
        let flushes: Vec<usize> = (0..cuts.len()).filter(|at| cuts[*at].before_flush).collect();
        let one_of = |rng: &mut SmallRng, count: usize| rng.below(count as u64) as usize;
        // Before a flush, most can be lost. After it, its promise can be checked.
        let at = match rng.below(3) {
            0 if !flushes.is_empty() => flushes[one_of(rng, flushes.len())],
            1 if !flushes.is_empty() => {
                (flushes[one_of(rng, flushes.len())] + 1).min(cuts.len() - 1)
            }
            _ => one_of(rng, cuts.len()),
        };
        let survival = SURVIVAL_MODES[one_of(rng, SURVIVAL_MODES.len())];
        Self { cut: (*cuts[at]).clone(), survival, seed: rng.next_u64() }
    }

    /// Memory devices and stores that hold the image.
    pub(crate) fn devices(&self, done: &RecordedRun, test: &CrashTest) -> ImageDevices {
        let mut rng = SmallRng::from_seed(self.seed);
        let config = ArenaConfig { limit_bytes: SCRATCH_BYTES, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("memory for an image");
        let mut positions = self.cut.positions.iter().copied();
        let object_store = done.store.as_ref().map(|store| {
            let position = positions.next().expect("the store is the first");
            StoreImage::new(store.crash_at(position), rng.next_u64())
        });
        let mut found = ImageDevices { devices: Vec::new(), stores: Vec::new(), object_store };
        for (at, (recording, position)) in done.recordings.iter().zip(positions).enumerate() {
            let image = self.image(&recording.at(position), &mut rng);
            let device =
                fixture::memory(&format!("image-{at}"), image.size_bytes(), image.sector_bytes());
            image.write_to(&*device, &arena).expect("a device for an image");
            if test.medium == Medium::AppendOnly && at < test.devices {
                found.stores.push(append::after_crash(device, &image, recording, position));
            } else {
                found.devices.push(device);
            }
        }
        found
    }

    fn image(&self, point: &CrashPoint<'_>, rng: &mut SmallRng) -> Image {
        let unflushed = point.unflushed().count() as u64;
        let one = rng.below(unflushed.max(1));
        let mut at = 0;
        let mut is_one = move || {
            at += 1;
            at - 1 == one
        };
        match self.survival {
            SurvivalMode::Least => point.at_least(),
            SurvivalMode::Most => point.at_most(),
            SurvivalMode::Sampled => point.sampled(rng),
            SurvivalMode::Reordered => point.image(|_| match rng.below(2) {
                0 => Survives::None,
                _ => Survives::All,
            }),
            SurvivalMode::OneTorn => point.image(|write| match is_one() {
                true => torn(write, rng),
                false => Survives::All,
            }),
            SurvivalMode::OneLost => point.image(|_| match is_one() {
                true => Survives::None,
                false => Survives::All,
            }),
            SurvivalMode::OneKept => point.image(|_| match is_one() {
                true => Survives::All,
                false => Survives::None,
            }),
        }
    }
}

fn torn(write: &Unflushed, rng: &mut SmallRng) -> Survives {
    Survives::Prefix(rng.below(write.len))
}
