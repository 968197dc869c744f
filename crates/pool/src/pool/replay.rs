//! Replaying the intent log at import: what was fsynced, and is in no transaction group yet, is changed again.

use crate::dataset;
use crate::error::{ErrorKind, Result};
use crate::format::LogRootPhys;
use crate::log::{Entry, Record};
use crate::tx::Transaction;

use super::{Inner, Pool};

impl Pool {
    /// Applies what the log has, and commits it.
    pub(super) fn replay(&self, root: &LogRootPhys, discard: bool) -> Result<()> {
        let inner = &self.inner;
        for name in inner.dataset_names()? {
            inner.dataset(&name)?;
        }
        let replayed = inner.replay(root);
        match replayed {
            Ok(0) => Ok(()),
            Ok(_) => inner.txgs.sync_now().map(|_| ()),
            Err(_) if discard => {
                inner.log.discard();
                inner.txgs.sync_now().map(|_| ())
            }
            Err(error) => Err(error.doing(
                "its intent log cannot be replayed (import it without, losing what was fsynced last)",
            )),
        }
    }
}

impl Inner {
    /// Returns how many changes it applied.
    fn replay(&self, root: &LogRootPhys) -> Result<u64> {
        let mut replay = self.log.replay(root);
        let mut applied = 0;
        while let Some(entry) = replay.next()? {
            // A transaction each: a group can be committed in between, and the log knows how far it was.
            let tx = Transaction::new(self.txgs.begin()?, u64::MAX);
            let dataset = self.dataset_of_guid(entry.dataset)?;
            apply(&dataset, &tx, &entry).map_err(|error| {
                error.doing(format_args!("dataset {}, object {}", dataset.name, entry.object))
            })?;
            self.log.applied(tx.txg());
            applied += 1;
        }
        Ok(applied)
    }
}

/// Changes of one thing are noted in the order in which they were made only if their callers took turns; and what a commit
/// fetched may be of an object that was destroyed by then. So a change of something that is gone, or is there already, is no
/// error: the newest note wins.
fn apply(dataset: &dataset::Inner, transaction: &Transaction<'_>, entry: &Entry<'_>) -> Result<()> {
    let applied = apply_strictly(dataset, transaction, entry);
    match (applied, entry.record) {
        (Err(error), record)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Closed)
                && !matches!(record, Record::Create { .. }) =>
        {
            Ok(())
        }
        (Err(error), Record::ZapInsert { name, value }) if error.kind() == ErrorKind::Exists => {
            let directory = dataset.directory(entry.object)?;
            directory.upsert(transaction.tx(), name, value).map(|_| ())
        }
        (applied, _) => applied,
    }
}

fn apply_strictly(
    dataset: &dataset::Inner,
    transaction: &Transaction<'_>,
    entry: &Entry<'_>,
) -> Result<()> {
    let (objset, number, tx) = (&dataset.objset, entry.object, transaction.tx());
    match entry.record {
        Record::Create { kind, record_shift, attributes } => {
            objset.create_at(tx, number, (kind, record_shift), attributes)
        }
        Record::Destroy => match objset.destroy(tx, number, || {}) {
            // Whoever destroys notes it first, and may then find that somebody else was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            destroyed => destroyed,
        },
        Record::SetAttributes { attributes } => dataset.set_attributes(tx, number, attributes),
        Record::Write { offset, bytes } => objset.open(number)?.write(tx, offset, bytes),
        Record::Truncate { size } => objset.open(number)?.truncate(tx, size),
        Record::Punch { offset, len } => objset.open(number)?.punch(tx, offset, len),
        Record::ZapInsert { name, value } => dataset.directory(number)?.insert(tx, name, value),
        Record::ZapUpdate { name, value } => {
            dataset.directory(number)?.upsert(tx, name, value).map(|_| ())
        }
        Record::ZapRemove { name } => dataset.directory(number)?.remove(tx, name).map(|_| ()),
    }
}
