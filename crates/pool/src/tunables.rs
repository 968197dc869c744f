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
    flight_bytes: bytes = 64 << 20, 1 << 20..=1 << 32, build, "bytes";
}

forebay_base::tunables! {
    /// Tunables of how a pool uses its cache devices.
    pub table CacheDeviceTunables;

    /// How long an export may take to write to cache devices what of the pool is in memory only, so that it is
    /// warm when it is used again. 0: nothing is written.
    cache_export_ms: u32 = 10000, 0..=600000, runtime, "ms";

    /// Whether an import puts blocks that cache devices have back into memory before anybody asks for them, as far as there is room that nobody
    /// needs.
    cache_warm_up: bool = true, false..=true, build, "flag";
}

/// All tunables of a pool.
#[derive(Default)]
pub struct PoolTunables {
    txg: Arc<TxgTunables>,
    log: Arc<LogTunables>,
    prefetch: Arc<PrefetchTunables>,
    store: StoreTunables,
    cache_devices: CacheDeviceTunables,
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

    /// Of cache devices.
    pub fn cache_devices(&self) -> &CacheDeviceTunables {
        &self.cache_devices
    }

    /// All rows with their values, written as [`set`](Self::set) takes them.
    pub fn entries(&self) -> Vec<(&'static TunableRow, String)> {
        let tables = [
            self.txg.entries(),
            self.log.entries(),
            self.prefetch.entries(),
            self.store.entries(),
            self.cache_devices.entries(),
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
            &|| self.cache_devices.set(name, value),
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
