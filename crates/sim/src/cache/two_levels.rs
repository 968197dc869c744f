//! Forebay's cache with a second level: a ring of segments, as an L2 device without admission and
//! reinsertion.
//!
//! The ring takes every entry that leaves memory and that it does not have. When all segments are
//! full, the oldest is emptied for new entries. An entry that memory loads from the ring stays in
//! it. Memory is built as in [`Forebay`](super::policies::forebay::Forebay), and does not depend on
//! the size of the ring.

use std::collections::VecDeque;

use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Attributes, Cache, Candidate, Class, Holding, LoadGuard, SecondaryCache};

use super::policies::forebay::builder;
use super::run::SimError;
use super::trace::Trace;

/// Segments of a ring, unless it has fewer entries.
const SEGMENTS: usize = 64;

/// A ring of segments of keys.
struct Ring {
    segment_entries: usize,
    segments: usize,
    /// Keys by segment, oldest first. The last one is not full.
    keys: VecDeque<Vec<u32>>,
    held: Vec<bool>,
}

impl Ring {
    fn new(entries: usize, keys: usize) -> Self {
        let segment_entries = (entries / SEGMENTS).max(1);
        let segments = (entries / segment_entries).max(1);
        Self { segment_entries, segments, keys: VecDeque::new(), held: vec![false; keys] }
    }

    fn write(&mut self, key: u32) {
        if std::mem::replace(&mut self.held[key as usize], true) {
            return;
        }
        if self.keys.back().is_none_or(|segment| segment.len() == self.segment_entries) {
            if self.keys.len() == self.segments
                && let Some(oldest) = self.keys.pop_front()
            {
                oldest.into_iter().for_each(|key| self.held[key as usize] = false);
            }
            self.keys.push_back(Vec::new());
        }
        self.keys.back_mut().expect("there is one").push(key);
    }
}

/// The ring as the cache sees it.
struct FifoSegments {
    entries: usize,
    ring: Mutex<Ring>,
}

impl FifoSegments {
    fn holds(&self, key: u64) -> bool {
        self.ring.lock().held[key as usize]
    }
}

impl SecondaryCache<u64, ()> for FifoSegments {
    /// Takes nothing: what leaves memory is taken when it leaves.
    fn offer(&self, _: Vec<Candidate<u64, ()>>) {}

    fn evicted(&self, keys: &[u64]) {
        let mut ring = self.ring.lock();
        keys.iter().for_each(|key| ring.write(*key as u32));
    }

    fn holding(&self, key: &u64, _: Class) -> Option<Holding> {
        Some(if self.holds(*key) { Holding::Stored } else { Holding::NotStored })
    }

    fn capacity_bytes(&self) -> Option<u64> {
        Some(self.entries as u64)
    }

    fn load(&self, guard: LoadGuard<u64, ()>) -> Result<(), LoadGuard<u64, ()>> {
        if !self.holds(*guard.key()) {
            return Err(guard);
        }
        drop(guard.publish(()));
        Ok(())
    }

    fn forget(&self, _: &u64) {}
}

/// A cache with a second level.
pub struct TwoLevels {
    cache: Cache<u64, ()>,
}

/// Where the accesses of a trace were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwoLevelOutcome {
    /// All accesses.
    pub accesses: u64,
    /// Those that memory answered.
    pub memory_hits: u64,
    /// Those that the second level answered.
    pub secondary_hits: u64,
}

impl TwoLevelOutcome {
    /// Hits of both levels over all accesses.
    pub fn hit_ratio(self) -> f64 {
        (self.memory_hits + self.secondary_hits) as f64 / (self.accesses as f64).max(1.0)
    }

    /// Hits of the second level over the misses of memory.
    pub fn second_hit_ratio(self) -> f64 {
        self.secondary_hits as f64 / ((self.accesses - self.memory_hits) as f64).max(1.0)
    }
}

impl TwoLevels {
    /// Replays a trace into an empty cache of `memory` entries before a ring of `second` entries.
    ///
    /// # Errors
    /// If there is no memory for the cache, or it refuses an entry.
    pub fn replay(
        trace: &Trace,
        (memory, second): (usize, usize),
        seed: u64,
    ) -> Result<(Self, TwoLevelOutcome), SimError> {
        let ring = Mutex::named("sim-ring", Ring::new(second, trace.unique()));
        let level = Arc::new(FifoSegments { entries: second, ring });
        let cache =
            builder(memory, seed).secondary_cache(level).build().map_err(SimError::Build)?;
        cache.record(true);
        let mut outcome = TwoLevelOutcome::default();
        for key in trace.accesses() {
            let metadata = trace.is_metadata(*key);
            let attributes = if metadata { Attributes::METADATA } else { Attributes::DATA };
            let key = u64::from(*key);
            outcome.accesses += 1;
            if cache.get(&key).is_some() {
                outcome.memory_hits += 1;
                continue;
            }
            let mut loaded = false;
            let load = || {
                loaded = true;
                Ok::<(), std::convert::Infallible>(())
            };
            let found = cache.get_or_load_weighed(key, 1, attributes, load);
            drop(found.map_err(|error| SimError::NotLoaded(error.to_string()))?);
            outcome.secondary_hits += u64::from(!loaded);
        }
        Ok((Self { cache }, outcome))
    }

    /// The cache in memory, for its curves.
    pub fn cache(&self) -> &Cache<u64, ()> {
        &self.cache
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::rng::SmallRng;
    use forebay_cache::CurvePoint;

    use super::super::trace::{Trace, TraceBuilder};
    use super::{Ring, TwoLevels};

    #[test]
    fn a_ring_overwrites_its_oldest_segment() {
        let mut ring = Ring::new(128, 200);
        assert_eq!((ring.segment_entries, ring.segments), (2, 64));
        (0..128).for_each(|key| ring.write(key));
        // What it has is not written again.
        ring.write(0);
        assert!(ring.held[..128].iter().all(|held| *held));
        ring.write(128);
        assert_eq!(ring.held[..4], [false, false, true, true]);
        ring.write(0);
        assert_eq!(ring.held[..4], [true, false, true, true]);
        ring.write(129);
        assert_eq!(ring.held[..6], [true, false, false, false, true, true]);
    }

    /// Some keys often, some in a loop, some once.
    fn mixed(spread: u64, accesses: u64) -> Trace {
        let (mut builder, mut rng) = (TraceBuilder::new(), SmallRng::from_seed(9));
        for at in 0..accesses {
            let key = match rng.below(4) {
                0 => (1 << 40) + at % spread,
                1 => (1 << 41) + at,
                _ => {
                    let below = rng.below(spread) + 1;
                    rng.below(below)
                }
            };
            builder.number(key).unwrap();
        }
        builder.build("mixed")
    }

    /// The errors of the curve that a cache measures of its second level.
    fn curve_errors(trace: &Trace, (memory, second): (usize, usize)) -> Vec<f64> {
        let (measured, outcome) = TwoLevels::replay(trace, (memory, second), 1).unwrap();
        let curve = measured.cache().secondary_curve().expect("a second level");
        assert_eq!(curve.points.len(), 8);
        let error = |point: &CurvePoint| {
            let sizes = (memory, point.capacity as usize);
            let truth = TwoLevels::replay(trace, sizes, 1).unwrap().1;
            assert_eq!(truth.memory_hits, outcome.memory_hits);
            println!(
                "{}: {}, really {}",
                point.capacity,
                point.hit_ratio(),
                truth.second_hit_ratio()
            );
            curve.hit_ratio(point) - truth.hit_ratio()
        };
        curve.points.iter().map(error).collect()
    }

    #[test]
    fn the_curve_is_exact_where_all_blocks_are_sampled() {
        let errors = curve_errors(&mixed(900, 30_000), (100, 400));
        assert!(errors.iter().all(|error| error.abs() < 0.002), "{errors:?}");
    }

    #[test]
    fn the_curve_is_close_where_few_blocks_are_sampled() {
        let errors = curve_errors(&mixed(80_000, 250_000), (3000, 12_000));
        let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
        let worst = errors.iter().fold(0.0, |worst: f64, error| worst.max(error.abs()));
        assert!(mean < 0.02 && worst < 0.05, "{errors:?}");
        assert!(errors.iter().any(|error| *error != 0.0), "it is a sample");
    }

    #[test]
    fn a_loop_hits_in_the_second_level_if_it_fits_there() {
        let mut builder = TraceBuilder::new();
        (0..5).for_each(|_| (0..300).for_each(|key| builder.number(key).unwrap()));
        let trace = builder.build("loop");
        let hits = |second| TwoLevels::replay(&trace, (50, second), 1).unwrap().1;
        let fits = hits(300);
        assert_eq!(fits.memory_hits + fits.secondary_hits, 4 * 300);
        assert_eq!(fits.hit_ratio(), 0.8);
        let small = hits(100);
        assert_eq!(small.memory_hits, fits.memory_hits);
        // A loop has overwritten nearly all of a smaller ring before it comes back.
        assert!(small.secondary_hits < 60, "{small:?}");
    }
}
