//! What a level says of itself.

use forebay_base::counters::CounterValue;

use crate::rebuild::RebuildStats;
use crate::shared::Health;
use crate::warm_up::WarmUpStatus;

/// What a level says of itself. Its parts need not agree with each other to the last block.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct L2Stats {
    /// How it is.
    pub health: Health,
    /// How the rebuild goes.
    pub rebuild: RebuildStats,
    /// How putting blocks back into memory goes.
    pub warm_up: WarmUpStatus,
    /// Blocks that it knows of, those left out that are on their way or must not be returned.
    pub records: u64,
    /// Bytes of the device that segments take.
    pub size_bytes: u64,
    /// Bytes of segments that have been used: all, once the ring has come round.
    pub used_bytes: u64,
    /// Bytes of memory, but for buffers.
    pub memory_bytes: u64,
    /// Bytes of blocks that wait to be written.
    pub queued_bytes: u64,
    /// Bytes that may be written a second, as of now.
    pub write_bytes_per_s: u64,
    /// Loads that were asked for.
    pub loads: u64,
    /// Loads that were answered.
    pub hits: u64,
    /// All counters, by name and label.
    pub counters: Vec<CounterValue>,
}

impl L2Stats {
    /// The counters that are not zero, by name and label.
    pub fn short(&self) -> Vec<(&'static str, &'static str, u64)> {
        let some = self.counters.iter().filter(|value| value.value > 0);
        some.map(|value| (value.name, value.label.unwrap_or(""), value.value)).collect()
    }

    /// The sum of a counter over its labels; 0 if there is none of that name.
    pub fn count(&self, name: &str) -> u64 {
        self.counters.iter().filter(|value| value.name == name).map(|v| v.value).sum()
    }
}
