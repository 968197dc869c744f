//! Limits on operations in flight, reconciled where tunables contradict each other.

use crate::priority::Priority;
use crate::tunables::IoTunables;

/// Limits on operations in flight: of each class, and of all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations that a class can always have in flight. At least 1, so that no class starves.
    pub min: [u32; Priority::COUNT],
    /// Operations that a class never exceeds. At least its minimum.
    pub max: [u32; Priority::COUNT],
    /// Operations that all classes together never exceed. At least the sum of the minimums.
    pub total: u32,
    /// Permits that a queue takes at once, if there are enough for all queues.
    pub batch: u32,
}

impl Limits {
    /// Derives limits from `tunables`. In a contradiction the minimums win: a maximum is raised to
    /// its class's minimum, the total to the sum of the minimums.
    pub fn new(tunables: &IoTunables) -> Self {
        Self::with_min(tunables, minimums(tunables))
    }

    /// Derives limits for queues that can execute `workers` operations at once. The minimums are
    /// reduced in proportion, so that their sum fits among the workers. Otherwise one class's
    /// minimum could keep all workers busy.
    ///
    /// # Panics
    /// If there are fewer workers than classes.
    pub fn for_workers(tunables: &IoTunables, workers: u32) -> Self {
        let classes = Priority::COUNT as u32;
        assert!(workers >= classes, "{workers} workers for {classes} classes");
        let min = minimums(tunables);
        // Each class has at least one.
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

    /// Returns the permits that no class has reserved.
    pub fn shared(&self) -> u32 {
        self.total - self.min.iter().sum::<u32>()
    }

    /// Returns the operations that `class` may have above its minimum, if enough permits are
    /// shared.
    pub fn headroom(&self, class: usize) -> u32 {
        self.max[class] - self.min[class]
    }

    /// Returns the operations that `class` can have in flight while no other class has any.
    pub fn reachable(&self, class: usize) -> u32 {
        self.min[class] + self.headroom(class).min(self.shared())
    }
}

fn minimums(t: &IoTunables) -> [u32; Priority::COUNT] {
    [t.sync_read_min(), t.sync_write_min(), t.async_read_min(), t.async_write_min(), t.scrub_min()]
}
