//! The error log of a pool: where it is stored, and what users see of it.
//!
//! The log is the content of one of the pool's own objects, which the root block names. The sync
//! thread stores it; if it cannot, the log stays in memory and the transaction group goes on.

use std::fmt;

use forebay_base::sync::Arc;
use hashbrown::HashMap;

use crate::error::Result;
use crate::error_log::{DamageEntry, DamagedRange, TO_THE_END};
use crate::format::{DamageKind, ERROR_LOG_MAX, ObjectKind};
use crate::objset::Objset;
use crate::space::Space;
use crate::tx::Tx;
use crate::wait::Wait;

use super::walk::SPACE_MAPS;
use super::{Pool, PoolInner};

/// Log2 of the record size of the log's object: the longest log is one record.
const RECORD_SHIFT: u8 = 17;
/// Minimum free space with which the log is stored. A commit needs the rest.
const FREE_MIN_BYTES: u64 = 4 << RECORD_SHIFT;

/// A tree with damaged blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedTree {
    /// The root block and the space maps.
    SpaceMaps,
    /// The dnodes of the dataset, or of the pool's own objects.
    Dnodes,
    /// The object with this number.
    Object(u64),
}

/// Damage in the error log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoggedDamage {
    /// Name of the dataset; `None` for the pool's own objects and the space maps.
    pub dataset: Option<Arc<str>>,
    /// The tree in it.
    pub tree: DamagedTree,
    /// The first damaged block: of a data object, a record; of dnodes,
    /// [`DNODES_PER_BLOCK`](crate::format::DNODES_PER_BLOCK) objects.
    pub block: u64,
    /// Number of damaged blocks; `None` if the damage may reach to the end of the tree.
    pub blocks: Option<u64>,
    /// Kind of the damage.
    pub kind: DamageKind,
    /// The txg that was open when it was found first.
    pub first_txg: u64,
    /// The txg that was open when it was found last.
    pub last_txg: u64,
    /// How often it was found.
    pub count: u32,
}

impl fmt::Display for LoggedDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.dataset, self.tree) {
            (_, DamagedTree::SpaceMaps) => {
                return write!(f, "the root block or the space maps: {}", self.kind);
            }
            (None, DamagedTree::Dnodes) => write!(f, "the pool's own dnodes")?,
            (None, DamagedTree::Object(number)) => write!(f, "the pool's own object {number}")?,
            (Some(name), DamagedTree::Dnodes) => write!(f, "dataset {name}, dnodes")?,
            (Some(name), DamagedTree::Object(number)) => {
                write!(f, "dataset {name}, object {number}")?;
            }
        }
        match self.blocks {
            Some(1) => write!(f, ", block {}", self.block)?,
            Some(blocks) => {
                write!(f, ", blocks {} to {}", self.block, self.block.saturating_add(blocks - 1))?;
            }
            None => write!(f, ", from block {} on", self.block)?,
        }
        write!(f, ": {}", self.kind)
    }
}

/// Content of the error log.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DamageReport {
    /// The entries, by dataset, object and block.
    pub damage: Vec<LoggedDamage>,
    /// Number of errors that did not fit.
    pub unlisted: u64,
}

impl Pool {
    /// The error log: damage that reads, scrubs and checks have found since the last clean scrub,
    /// also before this import. Reads the names of the datasets.
    pub fn damage(&self) -> DamageReport {
        let (entries, unlisted) = self.inner.store.errors().entries();
        DamageReport { damage: self.inner.describe_damage(&entries), unlisted }
    }

    /// Empties the error log, durably, forgets the I/O errors of the devices, and uses a log vdev
    /// again that has failed. If that finds devices gone of which no other one has the blocks, goes
    /// on as [`clear`](Self::clear) does: they may be back since.
    ///
    /// # Errors
    /// As [`sync`](Self::sync). In memory it is empty nevertheless, unless the pool is read-only.
    pub fn clear_errors(&self) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.store.errors().clear();
        self.inner.devices.forget_errors();
        {
            // Nobody removes the log vdev meanwhile.
            let _config = self.inner.config.lock();
            if self.inner.devices.retry_log() {
                self.inner.log.move_to(self.inner.devices.log_extent())?;
            }
        }
        let synced = self.sync();
        if synced.is_ok() || !self.inner.devices.has_gone_vdev() {
            return synced;
        }
        self.clear()?;
        // The group may have failed for another reason, and have suspended nothing.
        self.sync()
    }
}

/// Creates the object of the error log in the first txg. Returns its number.
pub(super) fn create(mos: &Arc<Objset>, tx: &Tx) -> Result<u64> {
    mos.create(tx, ObjectKind::Data, RECORD_SHIFT, &[])
}

impl PoolInner {
    /// Loads the stored error log. A log that cannot be read is replaced with the next commit.
    pub(super) fn load_errors(&self) {
        if let Err(error) = self.read_errors() {
            tracing::error!(pool = &*self.name, %error, "lost error log");
        }
    }

    fn read_errors(&self) -> Result<()> {
        let node = self.mos.open(self.errors_number, Wait::Allowed)?;
        let size = node.size().min(1 << RECORD_SHIFT) as usize;
        if size == 0 {
            return Ok(());
        }
        let mut bytes = vec![0; size];
        let read = node.read(0, &mut bytes, Wait::Allowed)?;
        self.store.errors().load(&bytes[..read])
    }

    /// Stores the error log in the syncing txg if it has changed. A failure does not stop the
    /// commit.
    pub(super) fn store_errors(&self, tx: &Tx, space: &Space) {
        let errors = self.store.errors();
        let Some(bytes) = errors.take_changed() else { return };
        if space.free_bytes() < FREE_MIN_BYTES {
            return errors.keep_changed();
        }
        if let Err(error) = self.write_errors(tx, &bytes) {
            tracing::warn!(pool = &*self.name, %error, "cannot store the error log");
            errors.keep_changed();
        }
    }

    fn write_errors(&self, tx: &Tx, bytes: &[u8]) -> Result<()> {
        let node = self.mos.open(self.errors_number, tx.wait())?;
        let _lock = node.lock_object(tx.wait())?;
        // The old content, which may be damaged, need not be read.
        node.truncate(tx, 0)?;
        node.write(tx, 0, bytes)
    }

    /// What users see of entries.
    pub(super) fn describe_damage(
        &self,
        entries: &[(DamagedRange, DamageEntry)],
    ) -> Vec<LoggedDamage> {
        if entries.is_empty() {
            return Vec::new();
        }
        // Without the names, datasets have their numbers.
        let names = self.names_by_number().unwrap_or_default();
        entries.iter().map(|(range, entry)| describe(range, entry, &names)).collect()
    }

    /// Entries of the error log that the scrub with this `until_txg` has found last.
    pub(super) fn damage_of_scrub(&self, until_txg: u64) -> Vec<LoggedDamage> {
        let (mut entries, _) = self.store.errors().entries();
        entries.retain(|(_, entry)| until_txg > 0 && entry.scrub_txg == until_txg);
        self.describe_damage(&entries)
    }
}

fn describe(
    range: &DamagedRange,
    entry: &DamageEntry,
    names: &HashMap<u64, String>,
) -> LoggedDamage {
    let dataset = match range.dataset {
        0 | SPACE_MAPS => None,
        number => Some(match names.get(&number) {
            Some(name) => Arc::from(&**name),
            None => Arc::from(format!("number {number}")),
        }),
    };
    let tree = match (range.dataset, range.object.checked_sub(1)) {
        (SPACE_MAPS, _) => DamagedTree::SpaceMaps,
        (_, None) => DamagedTree::Dnodes,
        (_, Some(number)) => DamagedTree::Object(number),
    };
    LoggedDamage {
        dataset,
        tree,
        block: range.block,
        blocks: (range.blocks < TO_THE_END).then_some(range.blocks),
        kind: entry.kind,
        first_txg: entry.first_txg,
        last_txg: entry.last_txg,
        count: entry.count,
    }
}

/// The damage that one check has found, whether or not the error log has space for it.
#[derive(Default)]
pub(super) struct FoundDamage {
    entries: Vec<(DamagedRange, DamageEntry)>,
    pub(super) count: u64,
}

impl FoundDamage {
    pub(super) fn add(&mut self, range: DamagedRange, kind: DamageKind, txg: u64) {
        self.count += 1;
        if self.entries.len() < ERROR_LOG_MAX {
            let entry = DamageEntry { kind, first_txg: txg, last_txg: txg, scrub_txg: 0, count: 1 };
            self.entries.push((range, entry));
        }
    }

    pub(super) fn describe(&self, pool: &PoolInner) -> Vec<LoggedDamage> {
        pool.describe_damage(&self.entries)
    }
}
