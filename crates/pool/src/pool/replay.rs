//! Replaying the intent log at import: what was fsynced, and is in no transaction group yet, is changed again.

use forebay_base::sync::Arc;
use hashbrown::HashMap;

use crate::dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LogEntry, LogRecord, LogRootPhys};

use crate::tx::Transaction;

use super::{Pool, PoolInner};

impl Pool {
    /// Applies what the log has, and commits it; or gives it up.
    pub(super) fn replay(&self, root: &LogRootPhys, discard: bool) -> Result<()> {
        let inner = &self.inner;
        if discard {
            // Not even tried: what is in it may be what suspends the pool.
            inner.log.discard();
            return inner.txgs.sync_now().map(|_| ());
        }
        let replayed = inner.replay(root).and_then(|applied| match applied {
            0 => Ok(()),
            _ => inner.txgs.sync_now().map(|_| ()),
        });
        replayed.map_err(|error| {
            error.doing(
                "its intent log cannot be replayed (import it without, losing what was fsynced last)",
            )
        })
    }
}

impl PoolInner {
    /// Returns how many changes it applied.
    fn replay(&self, root: &LogRootPhys) -> Result<u64> {
        let mut replay = self.log.replay(root);
        let mut applied = 0;
        let mut named = LoggedDatasets { inner: self, names: None };
        while replay.next_batch()? {
            // One txg for all of a batch, which holds whole transactions: should this end half-way, and somebody import the
            // pool without its log then, no transaction is there in part. But for a batch that dirties more than a txg should
            // have; the log knows how far it was.
            let mut present = None;
            while let Some(entry) = replay.next()? {
                if present.as_ref().is_some_and(|tx| self.is_large(tx)) {
                    present = None;
                }
                let tx = match &present {
                    Some(tx) => tx,
                    None => &*present.insert(Transaction::new(self.txgs.begin()?, None)),
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

    /// Whether a transaction has dirtied as much as a txg should have.
    fn is_large(&self, tx: &Transaction<'_>) -> bool {
        tx.tx().dirty_bytes() >= self.txgs.sync_at_bytes()
    }
}

/// The datasets that a log names. Others are not opened: what is wrong with them is not the log's.
struct LoggedDatasets<'a> {
    inner: &'a PoolInner,
    /// All names by guid, and why some are not there, if that had to be asked.
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
            // It may be one of those that cannot be read.
            None => Err(failed.take().unwrap_or(not_open)),
        }
    }
}

/// Changes of one thing are noted in the order in which they were made only if their callers took turns; and what a commit
/// fetched may be of an object that was destroyed by then. So a change of something that is gone, or is there already, is no
/// error: the newest note wins.
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
            let directory = dataset.directory(entry.object)?;
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
        LogRecord::Write { offset, bytes } => objset.open(number)?.write(tx, offset, bytes),
        LogRecord::Truncate { size } => objset.open(number)?.truncate(tx, size),
        LogRecord::Punch { offset, len } => objset.open(number)?.punch(tx, offset, len),
        LogRecord::ZapInsert { name, value } => dataset.directory(number)?.insert(tx, name, value),
        LogRecord::ZapUpdate { name, value } => {
            dataset.directory(number)?.upsert(tx, name, value).map(|_| ())
        }
        LogRecord::ZapRemove { name } => dataset.directory(number)?.remove(tx, name).map(|_| ()),
    }
}
