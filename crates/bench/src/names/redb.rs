//! redb, a copy-on-write B-tree: one table, with keys of a directory and a name.
//!
//! Batches commit without durability. Every second an empty durable transaction makes them durable.
//! It has one writer at a time. A thread looks names up in one read transaction with an open table.

use std::ops::Range;
use std::path::{Path, PathBuf};

use ::redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

use super::{Directories, Lookup, ThreadError, flat_key};
use crate::report::Record;
use crate::testbed::temporary_path;

const TABLE: TableDefinition<'static, &[u8], u64> = TableDefinition::new("names");

/// A table in its own file.
pub(crate) struct Redb {
    database: Option<Database>,
    path: PathBuf,
}

impl Redb {
    /// Its configuration.
    pub(crate) const CONFIG: &'static str = "one table, batches without durability";

    /// An empty table in `folder`.
    pub(crate) fn new(folder: &Path, cache_bytes: u64) -> Result<Self, ThreadError> {
        let mut made = Self { database: None, path: temporary_path(folder) };
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(cache_bytes)?);
        let database = builder.create(&made.path)?;
        let begun = database.begin_write()?;
        begun.open_table(TABLE)?;
        begun.commit()?;
        made.database = Some(database);
        Ok(made)
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is there until the end")
    }
}

impl Drop for Redb {
    fn drop(&mut self) {
        drop(self.database.take());
        // An error has no consequence for the measurement.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Directories for Redb {
    type Lookup<'a> = ReadOnlyTable<&'static [u8], u64>;

    fn insert(&self, batch: Range<u64>) -> Result<(), ThreadError> {
        let mut begun = self.database().begin_write()?;
        begun.set_durability(Durability::None)?;
        {
            let mut table = begun.open_table(TABLE)?;
            for number in batch {
                let (key, len) = flat_key(number);
                if table.insert(&key[..len], number)?.is_some() {
                    return Err(format!("name {number} exists already").into());
                }
            }
        }
        Ok(begun.commit()?)
    }

    fn remove(&self, batch: Range<u64>) -> Result<(), ThreadError> {
        let mut begun = self.database().begin_write()?;
        begun.set_durability(Durability::None)?;
        {
            let mut table = begun.open_table(TABLE)?;
            for number in batch {
                let (key, len) = flat_key(number);
                if table.remove(&key[..len])?.is_none() {
                    return Err(format!("name {number} is missing").into());
                }
            }
        }
        Ok(begun.commit()?)
    }

    fn persist(&self) -> Result<(), ThreadError> {
        let mut begun = self.database().begin_write()?;
        begun.set_durability(Durability::Immediate)?;
        Ok(begun.commit()?)
    }

    fn lookup(&self) -> Result<Self::Lookup<'_>, ThreadError> {
        Ok(self.database().begin_read()?.open_table(TABLE)?)
    }

    fn describe(&self, record: Record) -> Result<Record, ThreadError> {
        use ::redb::ReadableTableMetadata;
        let stats = self.lookup()?.stats()?;
        let leaves = stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes();
        let entries = self.lookup()?.len()?.max(1);
        Ok(record
            .figure("bytes_per_entry", leaves as f64 / entries as f64)
            .figure("leaf_fill", stats.stored_bytes() as f64 / leaves.max(1) as f64))
    }
}

impl Lookup for ReadOnlyTable<&'static [u8], u64> {
    #[inline]
    fn get(&mut self, number: u64) -> Result<Option<u64>, ThreadError> {
        use ::redb::ReadableTable;
        let (key, len) = flat_key(number);
        Ok(ReadableTable::get(self, &key[..len])?.map(|value| value.value()))
    }
}
