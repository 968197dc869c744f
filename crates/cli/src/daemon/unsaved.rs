//! Pools that are suspended: their newest changes are in memory only, and go with the pool.
//!
//! So nothing ends such a pool unasked. An unmount and an export are refused, and a pool whose last
//! mount has ended by itself stays, until `forebay clear` has saved its changes or `forebay export
//! --force` gives them up. A shutdown of the process does not wait for either.
//!
//! A suspension that only another import can end is not kept: its changes are lost already.

use std::sync::Arc;

use forebay_pool::{Pool, Suspension};

use super::{Daemon, ImportedPool, MountedDataset};
use crate::error::{Failure, Result};
use crate::units;

/// What is lost with a suspended pool.
pub(super) struct Unsaved {
    pool: String,
    synced_txg: u64,
    dirty_bytes: u64,
    suspension: Suspension,
}

impl Unsaved {
    /// `None` if the pool is not suspended.
    pub(super) fn of(pool: &Pool) -> Option<Self> {
        let suspension = pool.suspension()?;
        let stats = pool.stats();
        let (synced_txg, dirty_bytes) = (stats.synced_txg, stats.dirty_bytes);
        Some(Self { pool: pool.name().to_owned(), synced_txg, dirty_bytes, suspension })
    }

    /// Whether `forebay clear` can save it.
    fn can_be_saved(&self) -> bool {
        self.suspension.resumable
    }

    /// The changes, in messages.
    fn changes(&self) -> String {
        let (txg, bytes) = (self.synced_txg, units::bytes(self.dirty_bytes));
        format!("the changes since transaction group {txg}, about {bytes}")
    }

    /// Why the pool is not ended, and what to do.
    fn refusal(&self) -> Failure {
        let Self { pool, suspension, .. } = self;
        Failure::new(format!(
            "pool {pool} is suspended, and {}, are in memory only: {suspension}; make the device work and run \
             `forebay clear {pool}`, or give them up with `forebay export --force {pool}` (and --lazy if files are in use)",
            self.changes()
        ))
    }

    /// That the pool was exported without the changes.
    pub(super) fn lost(&self) -> Failure {
        let Self { pool, suspension, .. } = self;
        Failure::new(format!(
            "pool {pool} was exported without {}: they are lost, except for what an fsync has reported as durable, \
             because {suspension}",
            self.changes()
        ))
    }

    /// That the pool stays, although its last mount has ended.
    pub(super) fn stays(&self) -> Failure {
        let refusal = self.refusal();
        Failure::new(format!(
            "is unmounted, but the pool stays imported: {refusal}; `forebay clear` exports it once its changes are durable"
        ))
    }
}

impl Daemon {
    /// What would be lost with a pool that could be saved, and that nobody has given up.
    pub(super) fn unsaved(&self, imported: &ImportedPool) -> Option<Unsaved> {
        let unsaved = Unsaved::of(&imported.pool()).filter(Unsaved::can_be_saved);
        unsaved.filter(|_| !imported.is_given_up() && !self.is_shutting_down())
    }

    /// Fails if changes would be lost with a pool.
    pub(super) fn check_saved(&self, imported: &ImportedPool) -> Result<()> {
        self.unsaved(imported).map_or(Ok(()), |unsaved| Err(unsaved.refusal()))
    }

    /// As [`check_saved`](Self::check_saved), for the pool of a mount. Those who wait there would
    /// get errors.
    pub(super) fn check_mount_saved(&self, mount: &Arc<MountedDataset>) -> Result<()> {
        let is_its = |imported: &Arc<ImportedPool>| {
            imported.mounts().iter().any(|other| Arc::ptr_eq(other, mount))
        };
        let imported = self.pools().into_iter().find(is_its);
        imported.map_or(Ok(()), |imported| self.check_saved(&imported))
    }

    /// Commits what is dirty, before a pool is exported. If a device is gone, that suspends the
    /// pool.
    ///
    /// # Errors
    /// As [`check_saved`](Self::check_saved).
    pub(super) fn save(&self, imported: &ImportedPool) -> Result<()> {
        let pool = imported.pool();
        if !pool.is_read_only() && !imported.is_given_up() {
            // What else fails, the export says.
            let _ = pool.sync();
        }
        self.check_saved(imported)
    }
}
