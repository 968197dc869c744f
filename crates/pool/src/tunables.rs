//! The tunables of a pool: its own and those of its parts, set by name together. `docs/tunables.md` is made from
//! their tables.

use forebay_base::sync::Arc;
use forebay_base::tunables::{TunableError, TunableRow};

use crate::error::{Error, ErrorKind, Result};
use crate::log::LogTunables;
use crate::readahead::PrefetchTunables;
use crate::txg::TxgTunables;

forebay_base::tunables! {
    /// Tunables of how blocks are written.
    pub table StoreTunables;

    /// Bytes that may be on their way to devices at once.
    in_flight_bytes: bytes = 64 << 20, 1 << 20..=1 << 32, build, "bytes";
}

forebay_base::tunables! {
    /// Tunables of how a pool uses its L2 devices.
    pub table L2DeviceTunables;

    /// How long an export may take to write to L2 devices what of the pool is in memory only, so that it is
    /// warm when it is used again. 0: nothing is written.
    l2_export_ms: u32 = 10000, 0..=600000, runtime, "ms";

    /// Whether an import puts blocks that L2 devices have back into memory before anybody asks for them, as far as there is room that nobody
    /// needs.
    l2_warm_up: bool = true, false..=true, build, "flag";
}

/// All tunables of a pool.
#[derive(Default)]
pub struct PoolTunables {
    txg: Arc<TxgTunables>,
    log: Arc<LogTunables>,
    prefetch: Arc<PrefetchTunables>,
    store: StoreTunables,
    l2_devices: L2DeviceTunables,
}

impl PoolTunables {
    /// Of transaction groups.
    pub fn txg(&self) -> &Arc<TxgTunables> {
        &self.txg
    }

    /// Of the intent log.
    pub fn log(&self) -> &Arc<LogTunables> {
        &self.log
    }

    /// Of prefetch.
    pub fn prefetch(&self) -> &Arc<PrefetchTunables> {
        &self.prefetch
    }

    /// Of how blocks are written.
    pub fn store(&self) -> &StoreTunables {
        &self.store
    }

    /// Of L2 devices.
    pub fn l2_devices(&self) -> &L2DeviceTunables {
        &self.l2_devices
    }

    /// All rows with their values, written as [`set`](Self::set) takes them.
    pub fn entries(&self) -> Vec<(&'static TunableRow, String)> {
        let tables = [
            self.txg.entries(),
            self.log.entries(),
            self.prefetch.entries(),
            self.store.entries(),
            self.l2_devices.entries(),
        ];
        tables.into_iter().flatten().collect()
    }

    /// Sets a tunable by its name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the name, the value or the time is wrong; it says what would be right.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let tables: [&dyn Fn() -> Result<(), TunableError>; 5] = [
            &|| self.txg.set(name, value),
            &|| self.log.set(name, value),
            &|| self.prefetch.set(name, value),
            &|| self.store.set(name, value),
            &|| self.l2_devices.set(name, value),
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
