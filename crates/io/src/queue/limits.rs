//! How many operations may be in flight, as numbers that do not contradict each other.

use crate::priority::Priority;
use crate::tunables::IoTunables;

/// Limits on operations in flight: of each class, and of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What a class can always have. At least 1, so that no class starves.
    pub min: [u32; Priority::COUNT],
    /// What a class never exceeds. At least its minimum.
    pub max: [u32; Priority::COUNT],
    /// What all together never exceed. At least the sum of the minimums.
    pub total: u32,
    /// Permits that a lane leases at once, if they go round.
    pub batch: u32,
}

impl Limits {
    /// What `tunables` say. Where they contradict each other the minimums win: a maximum is
    /// raised to its class's minimum, the total to the sum of them.
    pub fn new(tunables: &IoTunables) -> Self {
        Self::with_min(tunables, minimums(tunables))
    }

    /// The same for lanes in each of which `workers` operations can go on at once: the minimums
    /// are made smaller, in proportion, so that all classes' together fit among the workers. Otherwise one
    /// class's minimum could keep all workers busy.
    ///
    /// # Panics
    /// With fewer workers than classes.
    pub fn for_workers(tunables: &IoTunables, workers: u32) -> Self {
        let classes = Priority::COUNT as u32;
        assert!(workers >= classes, "{workers} workers for {classes} classes");
        let min = minimums(tunables);
        // Each class has one in any case.
        let (reserved, available) = (min.iter().sum::<u32>() - classes, workers - classes);
        if reserved <= available {
            return Self::with_min(tunables, min);
        }
        Self::with_min(tunables, min.map(|min| 1 + (min - 1) * available / reserved))
    }

    fn with_min(tunables: &IoTunables, min: [u32; Priority::COUNT]) -> Self {
        let t = tunables;
        let max = [
            t.sync_read_max(),
            t.sync_write_max(),
            t.async_read_max(),
            t.async_write_max(),
            t.scrub_max(),
        ];
        let max = std::array::from_fn(|class| max[class].max(min[class]));
        let total = t.total_max().max(min.iter().sum());
        Self { min, max, total, batch: t.permit_batch() }
    }

    /// Permits that no class has reserved.
    pub fn shared(&self) -> u32 {
        self.total - self.min.iter().sum::<u32>()
    }

    /// What `class` may have beyond its minimum, if enough is shared.
    pub fn headroom(&self, class: usize) -> u32 {
        self.max[class] - self.min[class]
    }

    /// What `class` can have in flight when no other class has anything.
    pub fn reachable(&self, class: usize) -> u32 {
        self.min[class] + self.headroom(class).min(self.shared())
    }
}

fn minimums(t: &IoTunables) -> [u32; Priority::COUNT] {
    [t.sync_read_min(), t.sync_write_min(), t.async_read_min(), t.async_write_min(), t.scrub_min()]
}
