//! Which image of a crash: the cut, and what survives of what was not flushed.

use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_io::record::{CrashPoint, Image, Recording, Survives, Unflushed};

use super::{Cut, Worked};
use crate::rig;

/// Buffers to write images with.
const SCRATCH_BYTES: u64 = 16 << 20;

/// What survives of writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Nothing.
    Least,
    /// Everything.
    Most,
    /// Each sector or not, or each write up to some byte.
    Sampled,
    /// Each write wholly or not at all.
    Reordered,
    /// All, but for one that is torn.
    OneTorn,
    /// All, but for one that is missing.
    OneLost,
    /// Nothing, but for one.
    OneKept,
}

const MANNERS: [Manner; 7] = [
    Manner::Least,
    Manner::Most,
    Manner::Sampled,
    Manner::Reordered,
    Manner::OneTorn,
    Manner::OneLost,
    Manner::OneKept,
];

/// An image of a crash.
#[derive(Debug)]
pub struct Picked {
    /// When.
    pub cut: Cut,
    /// How.
    pub manner: Manner,
    seed: u64,
}

impl Picked {
    /// One of all images of what was done.
    pub(crate) fn new(done: &Worked, rng: &mut SmallRng) -> Self {
        let cuts = &done.cuts;
        let flushes: Vec<usize> = (0..cuts.len()).filter(|at| cuts[*at].before_flush).collect();
        let one_of = |rng: &mut SmallRng, count: usize| rng.below(count as u64) as usize;
        // Just before a flush there is most to lose; just behind, one can see what it was for.
        let at = match rng.below(3) {
            0 if !flushes.is_empty() => flushes[one_of(rng, flushes.len())],
            1 if !flushes.is_empty() => {
                (flushes[one_of(rng, flushes.len())] + 1).min(cuts.len() - 1)
            }
            _ => one_of(rng, cuts.len()),
        };
        let manner = MANNERS[one_of(rng, MANNERS.len())];
        Self { cut: cuts[at].clone(), manner, seed: rng.next_u64() }
    }

    /// Devices that hold the image.
    pub(crate) fn devices(&self, recordings: &[Recording]) -> Vec<Arc<dyn Device>> {
        let mut rng = SmallRng::from_seed(self.seed);
        let config = ArenaConfig { limit_bytes: SCRATCH_BYTES, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("memory for an image");
        let each = recordings.iter().zip(&self.cut.positions).enumerate();
        each.map(|(at, (recording, position))| {
            let image = self.image(&recording.at(*position), &mut rng);
            let device =
                rig::memory(&format!("image-{at}"), image.size_bytes(), image.sector_bytes());
            image.write_to(&*device, &arena).expect("a device for an image");
            device
        })
        .collect()
    }

    fn image(&self, point: &CrashPoint<'_>, rng: &mut SmallRng) -> Image {
        let unflushed = point.unflushed().count() as u64;
        let one = rng.below(unflushed.max(1));
        let mut at = 0;
        let mut is_one = move || {
            at += 1;
            at - 1 == one
        };
        match self.manner {
            Manner::Least => point.at_least(),
            Manner::Most => point.at_most(),
            Manner::Sampled => point.sampled(rng),
            Manner::Reordered => point.image(|_| match rng.below(2) {
                0 => Survives::None,
                _ => Survives::All,
            }),
            Manner::OneTorn => point.image(|write| match is_one() {
                true => torn(write, rng),
                false => Survives::All,
            }),
            Manner::OneLost => point.image(|_| match is_one() {
                true => Survives::None,
                false => Survives::All,
            }),
            Manner::OneKept => point.image(|_| match is_one() {
                true => Survives::All,
                false => Survives::None,
            }),
        }
    }
}

fn torn(write: &Unflushed, rng: &mut SmallRng) -> Survives {
    Survives::Prefix(rng.below(write.len))
}
