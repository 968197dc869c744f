//! fjall, a log-structured merge tree: one keyspace, with keys of a directory and a name.
//!
//! A write batch goes to its journal without a sync, and `SyncAll` every second makes it durable.
//! An insert does not check for an existing name.

use std::ops::Range;
use std::path::Path;

use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Directories, Lookup, ThreadError, flat_key};
use crate::report::Record;
use crate::testbed::temporary_path;

/// A keyspace in its own folder.
pub(crate) struct Fjall {
    database: Database,
    names: Keyspace,
}

impl Fjall {
    /// Its configuration.
    pub(crate) const CONFIG: &'static str = "one keyspace, journal synced every second";

    /// An empty keyspace in `folder`.
    pub(crate) fn new(folder: &Path, cache_bytes: u64) -> Result<Self, ThreadError> {
        // fjall removes the folder itself.
        let builder = Database::builder(temporary_path(folder)).temporary(true);
        let database = builder.cache_size(cache_bytes).open()?;
        let names = database.keyspace("names", KeyspaceCreateOptions::default)?;
        Ok(Self { database, names })
    }
}

impl Directories for Fjall {
    type Lookup<'a> = &'a Keyspace;

    fn insert(&self, names: Range<u64>) -> Result<(), ThreadError> {
        let mut batch = self.database.batch();
        for number in names {
            let (key, len) = flat_key(number);
            batch.insert(&self.names, &key[..len], number.to_le_bytes());
        }
        Ok(batch.commit()?)
    }

    fn remove(&self, names: Range<u64>) -> Result<(), ThreadError> {
        let mut batch = self.database.batch();
        for number in names {
            let (key, len) = flat_key(number);
            batch.remove(&self.names, &key[..len]);
        }
        Ok(batch.commit()?)
    }

    fn persist(&self) -> Result<(), ThreadError> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn lookup(&self) -> Result<&Keyspace, ThreadError> {
        Ok(&self.names)
    }

    fn describe(&self, record: Record) -> Result<Record, ThreadError> {
        Ok(record.figure("disk_bytes", self.database.disk_space()? as f64))
    }
}

impl Lookup for &Keyspace {
    #[inline]
    fn get(&mut self, number: u64) -> Result<Option<u64>, ThreadError> {
        let (key, len) = flat_key(number);
        let found = Keyspace::get(self, &key[..len])?;
        Ok(found.and_then(|value| value.first_chunk::<8>().map(|v| u64::from_le_bytes(*v))))
    }
}
