//! Tunables of a pool and its parts, set by name. `docs/tunables.md` is generated from the tables.

use forebay_base::sync::Arc;
use forebay_base::tunables::{TunableError, TunableRow};

use crate::error::{Error, ErrorKind, Result};
use crate::log::LogTunables;
use crate::readahead::PrefetchTunables;
use crate::txg::TxgTunables;
use crate::zap::ZapTunables;

forebay_base::tunables! {
    /// Tunables of how blocks are written.
    pub table StoreTunables;

    /// Bytes of block writes that may be in flight at once.
    in_flight_bytes: bytes = 64 << 20, 1 << 20..=1 << 32, build, "bytes";
}

forebay_base::tunables! {
    /// Tunables of how a pool uses its L2 devices.
    pub table L2DeviceTunables;

    /// Time limit for writing cached blocks of the pool to its L2 devices during an export, so that
    /// the pool is warm at its next import. 0: nothing is written.
    l2_export_ms: u32 = 10000, 0..=600000, runtime, "ms";

    /// Whether an import loads blocks from L2 devices into free cache capacity in the background.
    l2_warm_up: bool = true, false..=true, build, "flag";
}

forebay_base::tunables! {
    /// Tunables of scrubs.
    pub table ScrubTunables;

    /// Most bytes that a scrub reads per second, all copies, unless it has a rate of its own. 0: no
    /// limit.
    scrub_rate_bytes: bytes = 0, 0..=1 << 40, runtime, "bytes";

    /// Blocks that a scrub or check reads before it takes the newest trees.
    scrub_slice_blocks: u32 = 4096, 1..=1 << 20, runtime, "count";
}

forebay_base::tunables! {
    /// Tunables of how freed space goes back to the devices.
    pub table TrimTunables;

    /// Whether space that the pool frees in files goes back to their file systems, in the
    /// background.
    trim_files: bool = true, false..=true, runtime, "flag";

    /// The same for block devices. Without it, `forebay trim` does it from time to time.
    trim_block_devices: bool = false, false..=true, runtime, "flag";

    /// How long freed space is gathered before it is discarded in the background. Space that is
    /// used again meanwhile is left alone.
    trim_delay_ms: u32 = 60_000, 0..=86_400_000, runtime, "ms";

    /// Shorter free ranges are not discarded.
    trim_min_bytes: bytes = 128 << 10, 4 << 10..=1 << 30, runtime, "bytes";

    /// Most bytes that are discarded per second in the background. 0: no limit. `forebay trim` has
    /// no limit.
    trim_rate_bytes: bytes = 1 << 30, 0..=1 << 40, runtime, "bytes";
}

forebay_base::tunables! {
    /// Tunables of how a pool is protected against other hosts.
    pub table HeartbeatTunables;

    /// Interval of the heartbeat in the label while the pool is imported. An import of a pool that
    /// was not exported watches for it. 0: none, so another host that shares the device can import
    /// the pool, and destroys it.
    heartbeat_ms: u32 = 1000, 0..=60000, build, "ms";
}

forebay_base::tunables! {
    /// Tunables of operations on mounted datasets.
    pub table OperationTunables;

    /// An operation that takes longer is logged, with what it has waited for. 0: none.
    slow_op_ms: u32 = 1000, 0..=3600000, runtime, "ms";
}

/// All tunables of a pool.
#[derive(Default)]
pub struct PoolTunables {
    txg: Arc<TxgTunables>,
    log: Arc<LogTunables>,
    prefetch: Arc<PrefetchTunables>,
    store: StoreTunables,
    l2_devices: L2DeviceTunables,
    scrub: ScrubTunables,
    trim: TrimTunables,
    heartbeat: HeartbeatTunables,
    directories: Arc<ZapTunables>,
    operations: Arc<OperationTunables>,
}

impl PoolTunables {
    /// Tunables of transaction groups.
    pub fn txg(&self) -> &Arc<TxgTunables> {
        &self.txg
    }

    /// Tunables of the intent log.
    pub fn log(&self) -> &Arc<LogTunables> {
        &self.log
    }

    /// Tunables of prefetch.
    pub fn prefetch(&self) -> &Arc<PrefetchTunables> {
        &self.prefetch
    }

    /// Tunables of how blocks are written.
    pub fn store(&self) -> &StoreTunables {
        &self.store
    }

    /// Tunables of L2 devices.
    pub fn l2_devices(&self) -> &L2DeviceTunables {
        &self.l2_devices
    }

    /// Tunables of scrubs.
    pub fn scrub(&self) -> &ScrubTunables {
        &self.scrub
    }

    /// Tunables of discards.
    pub fn trim(&self) -> &TrimTunables {
        &self.trim
    }

    /// Tunables of how a pool is protected against other hosts.
    pub fn heartbeat(&self) -> &HeartbeatTunables {
        &self.heartbeat
    }

    /// Tunables of directories.
    pub fn directories(&self) -> &Arc<ZapTunables> {
        &self.directories
    }

    /// Tunables of operations on mounted datasets.
    pub fn operations(&self) -> &Arc<OperationTunables> {
        &self.operations
    }

    /// All rows with their values, in the format that [`set`](Self::set) takes.
    pub fn entries(&self) -> Vec<(&'static TunableRow, String)> {
        let tables = [
            self.txg.entries(),
            self.log.entries(),
            self.prefetch.entries(),
            self.store.entries(),
            self.l2_devices.entries(),
            self.scrub.entries(),
            self.trim.entries(),
            self.heartbeat.entries(),
            self.directories.entries(),
            self.operations.entries(),
        ];
        tables.into_iter().flatten().collect()
    }

    /// Sets a tunable by its name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name or the value is wrong, or if the tunable cannot be set at
    /// this time. The message names what is allowed.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let tables: [&dyn Fn() -> Result<(), TunableError>; 10] = [
            &|| self.txg.set(name, value),
            &|| self.log.set(name, value),
            &|| self.prefetch.set(name, value),
            &|| self.store.set(name, value),
            &|| self.l2_devices.set(name, value),
            &|| self.scrub.set(name, value),
            &|| self.trim.set(name, value),
            &|| self.heartbeat.set(name, value),
            &|| self.directories.set(name, value),
            &|| self.operations.set(name, value),
        ];
        for set in tables {
            match set() {
                Err(TunableError::Unknown { .. }) => {}
                Err(error) => {
                    return Err(Error::new(ErrorKind::Invalid, error.to_string()).because(error));
                }
                Ok(()) => return Ok(()),
            }
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!("a pool has no tunable {name}; see docs/tunables.md"),
        ))
    }
}
