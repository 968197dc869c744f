//! Statistics of an L2.

use forebay_base::counters::CounterValue;

use crate::rebuild::RebuildStats;
use crate::shared::Health;
use crate::warm_up::WarmUpStatus;

/// Statistics of an L2. The values are read one after the other and may differ slightly in time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct L2Stats {
    /// The state of the L2.
    pub health: Health,
    /// The progress of the rebuild.
    pub rebuild: RebuildStats,
    /// The progress of the warm-up.
    pub warm_up: WarmUpStatus,
    /// Number of records in the index.
    pub records: u64,
    /// Bytes of the device that segments occupy.
    pub size_bytes: u64,
    /// Bytes of segments in use. Equal to `size_bytes` once the ring has wrapped.
    pub used_bytes: u64,
    /// Bytes of memory in use, without buffers.
    pub memory_bytes: u64,
    /// Bytes of blocks in the write queue.
    pub queued_bytes: u64,
    /// The current write rate, in bytes per second.
    pub write_bytes_per_s: u64,
    /// Loads requested.
    pub loads: u64,
    /// Loads that returned a value.
    pub hits: u64,
    /// All counters, by name and label.
    pub counters: Vec<CounterValue>,
}

impl L2Stats {
    /// The nonzero counters, by name and label.
    pub fn short(&self) -> Vec<(&'static str, &'static str, u64)> {
        let some = self.counters.iter().filter(|value| value.value > 0);
        some.map(|value| (value.name, value.label.unwrap_or(""), value.value)).collect()
    }

    /// The sum of a counter over its labels, such as `written_bytes`. [`counters`](Self::counters)
    /// lists all, and `docs/counters.md` in the repository says what each counts. 0 if there is no
    /// counter of that name.
    pub fn count(&self, name: &str) -> u64 {
        self.counters.iter().filter(|value| value.name == name).map(|v| v.value).sum()
    }
}
