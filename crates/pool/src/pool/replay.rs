//! Replays the intent log at import: applies fsynced changes that no transaction group has
//! committed.

use forebay_base::sync::Arc;
use hashbrown::HashMap;

use crate::dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LogEntry, LogRecord, LogRootPhys};

use crate::tx::Transaction;
use crate::wait::Wait;

use super::{Pool, PoolInner};

impl Pool {
    /// Applies the records of the log and commits them, or discards the log.
    pub(super) fn replay(&self, root: &LogRootPhys, discard: bool) -> Result<()> {
        let inner = &self.inner;
        if discard {
            // The log is not read at all: its content may be the reason for the failed import.
            inner.log.discard();
            return inner.txgs.sync_now().map(|_| ());
        }
        let replayed = inner.replay(root).and_then(|applied| match applied {
            0 => Ok(()),
            _ => inner.txgs.sync_now().map(|_| ()),
        });
        replayed.map_err(|error| {
            error.doing("cannot replay its intent log (discard_log imports without it)")
        })
    }
}

impl PoolInner {
    /// Applies all records of the log. Returns the number of changes applied.
    fn replay(&self, root: &LogRootPhys) -> Result<u64> {
        let mut replay = self.log.replay(root);
        let mut applied = 0;
        let mut named = LoggedDatasets { inner: self, names: None };
        while replay.next_batch()? {
            // One txg per batch, because a batch holds whole transactions. If the replay fails
            // half-way and the pool is then imported without its log, no transaction is applied in
            // part. A batch that dirties more than a txg should hold is split; the log stores how
            // far the replay came.
            let mut present = None;
            while let Some(entry) = replay.next()? {
                if present.as_ref().is_some_and(|tx| self.is_large(tx)) {
                    present = None;
                }
                let tx = match &present {
                    Some(tx) => tx,
                    None => {
                        &*present.insert(Transaction::new(self.txgs.begin()?, None, Wait::Allowed))
                    }
                };
                let dataset = named.dataset(entry.dataset)?;
                apply(&dataset, tx, &entry).map_err(|error| {
                    error.doing(format_args!("dataset {}, object {}", dataset.name, entry.object))
                })?;
                self.log.applied(tx.txg());
                applied += 1;
            }
        }
        Ok(applied)
    }

    /// Whether a transaction has dirtied as many bytes as a txg should hold.
    fn is_large(&self, tx: &Transaction<'_>) -> bool {
        tx.tx().dirty_bytes() >= self.txgs.sync_at_bytes()
    }
}

/// The datasets that the log names. Other datasets are not opened, so damage in them cannot fail
/// the replay.
struct LoggedDatasets<'a> {
    inner: &'a PoolInner,
    /// All dataset names by GUID, and an error if some could not be read. Loaded on first use.
    names: Option<(HashMap<u64, String>, Option<Error>)>,
}

impl LoggedDatasets<'_> {
    fn dataset(&mut self, guid: u64) -> Result<Arc<dataset::DatasetInner>> {
        let not_open = match self.inner.dataset_of_guid(guid) {
            Ok(dataset) => return Ok(dataset),
            Err(error) => error,
        };
        let (names, failed) = match &mut self.names {
            Some(names) => names,
            none => none.insert(self.inner.names_by_guid()?),
        };
        match names.get(&guid) {
            Some(name) => self.inner.dataset(name),
            // It may be one of the datasets that cannot be read.
            None => Err(failed.take().unwrap_or(not_open)),
        }
    }
}

/// Applies one record. Records of one object are in the order of the changes only if the callers
/// held the object lock, and a content record may belong to an object that was destroyed meanwhile.
/// So a change of a missing object, and an insert of an existing name, are not errors: the newest
/// record wins.
fn apply(
    dataset: &dataset::DatasetInner,
    transaction: &Transaction<'_>,
    entry: &LogEntry<'_>,
) -> Result<()> {
    let applied = apply_strictly(dataset, transaction, entry);
    match (applied, entry.record) {
        (Err(error), record)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Closed)
                && !matches!(record, LogRecord::Create { .. }) =>
        {
            Ok(())
        }
        (Err(error), LogRecord::ZapInsert { name, value }) if error.kind() == ErrorKind::Exists => {
            let directory = dataset.directory(entry.object, transaction.wait())?;
            directory.upsert(transaction.tx(), name, value).map(|_| ())
        }
        (applied, _) => applied,
    }
}

fn apply_strictly(
    dataset: &dataset::DatasetInner,
    transaction: &Transaction<'_>,
    entry: &LogEntry<'_>,
) -> Result<()> {
    let (objset, number, tx) = (&dataset.objset, entry.object, transaction.tx());
    match entry.record {
        LogRecord::Create { kind, record_shift, attributes } => {
            objset.create_at(tx, number, (kind, record_shift), attributes)
        }
        LogRecord::Destroy => objset.destroy(tx, number, || {}),
        LogRecord::SetAttributes { attributes } => dataset.set_attributes(tx, number, attributes),
        LogRecord::Write { offset, bytes } => {
            objset.open(number, tx.wait())?.write(tx, offset, bytes)
        }
        LogRecord::Truncate { size } => objset.open(number, tx.wait())?.truncate(tx, size),
        LogRecord::Punch { offset, len } => objset.open(number, tx.wait())?.punch(tx, offset, len),
        LogRecord::Preallocate { offset, len } => {
            let object = objset.open(number, tx.wait())?;
            object.preallocate(tx, offset, len, usize::MAX).map(|_| ())
        }
        LogRecord::ZapInsert { name, value } => {
            dataset.directory(number, tx.wait())?.insert(tx, name, value)
        }
        LogRecord::ZapUpdate { name, value } => {
            dataset.directory(number, tx.wait())?.upsert(tx, name, value).map(|_| ())
        }
        LogRecord::ZapRemove { name } => {
            dataset.directory(number, tx.wait())?.remove(tx, name).map(|_| ())
        }
    }
}
