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
    pub lot: u32,
}

impl Limits {
    /// What `tunables` say. Where they contradict each other the minimums win: a maximum is
    /// raised to its class's minimum, the total to the sum of them.
    pub fn new(tunables: &IoTunables) -> Self {
        let t = tunables;
        let min = [
            t.sync_read_min(),
            t.sync_write_min(),
            t.async_read_min(),
            t.async_write_min(),
            t.scrub_min(),
        ];
        let max = [
            t.sync_read_max(),
            t.sync_write_max(),
            t.async_read_max(),
            t.async_write_max(),
            t.scrub_max(),
        ];
        let max = std::array::from_fn(|class| max[class].max(min[class]));
        let total = t.total_max().max(min.iter().sum());
        Self { min, max, total, lot: t.lot() }
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
