//! Random changes of directories.

use forebay_pool::{Directory, ErrorKind, Result, Transaction};

use super::Workload;
use crate::model::{Change, Key};

/// Changes of a burst per transaction.
const BURST_BATCH: u64 = 150;

impl Workload {
    /// A few changes of a directory, in one transaction.
    pub(super) fn change_names(&mut self) -> Result<()> {
        let Some(key) = self.pick(true) else { return self.create() };
        let directory = self.datasets[key.0].directory(key.1)?;
        let count = self.rng.below(6) + 1;
        self.transact(|this, tx| {
            for _ in 0..count {
                let range = this.model.names(key).map_or(0, |names| names.len() as u64) * 2 + 20;
                let name = this.rng.below(range);
                this.change_name(tx, (key, &directory), &name_of(name))?;
            }
            Ok(())
        })
    }

    /// Adds many names to a directory, or removes most of its names.
    pub(super) fn burst(&mut self) -> Result<()> {
        let Some(key) = self.pick(true) else { return self.create() };
        let directory = self.datasets[key.0].directory(key.1)?;
        let names: Vec<Vec<u8>> =
            self.model.names(key).into_iter().flatten().map(|(n, _)| n.clone()).collect();
        let grows = names.len() < 30 || self.rng.below(3) > 0;
        let changes: Vec<Vec<u8>> = match grows {
            true => {
                let (first, count) = (self.rng.below(1000), self.rng.below(self.load.burst_max));
                (first..first + count).map(name_of).collect()
            }
            false => {
                let keep = self.rng.below(10);
                names.into_iter().filter(|_| self.rng.below(10) >= keep).collect()
            }
        };
        for batch in changes.chunks(BURST_BATCH as usize) {
            self.transact(|this, tx| {
                for name in batch {
                    match grows {
                        true => this.set(tx, (key, &directory), name)?,
                        false => this.remove(tx, (key, &directory), name)?,
                    }
                }
                Ok(())
            })?;
        }
        if self.load.aided_directories && self.rng.below(3) == 0 {
            directory.merge_buffered()?;
        }
        Ok(())
    }

    fn change_name(
        &mut self,
        tx: &Transaction<'_>,
        of: (Key, &Directory),
        name: &[u8],
    ) -> Result<()> {
        match self.rng.below(5) {
            0..2 => self.remove(tx, of, name),
            2 => self.insert(tx, of, name),
            _ => self.set(tx, of, name),
        }
    }

    fn insert(&mut self, tx: &Transaction<'_>, of: (Key, &Directory), name: &[u8]) -> Result<()> {
        let (key, directory) = of;
        let value = self.value();
        self.announce_change();
        let known = self.model.names(key).is_some_and(|names| names.contains_key(name));
        match (directory.insert(tx, name, &value), known) {
            (Ok(()), false) => self.record_change(tx.txg(), key, Change::Set(name.to_vec(), value)),
            (Err(error), true) if error.kind() == ErrorKind::Exists => {}
            (Err(error), _) => return Err(error),
            (Ok(()), true) => panic!("{key:?} took {name:?} twice"),
        }
        Ok(())
    }

    fn set(&mut self, tx: &Transaction<'_>, of: (Key, &Directory), name: &[u8]) -> Result<()> {
        let (key, directory) = of;
        let value = self.value();
        self.announce_change();
        let old = directory.update(tx, name, &value)?;
        let wanted = self.model.names(key).and_then(|names| names.get(name));
        assert_eq!(old.as_deref(), wanted.map(Vec::as_slice), "{key:?}, {name:?}");
        self.record_change(tx.txg(), key, Change::Set(name.to_vec(), value));
        Ok(())
    }

    fn remove(&mut self, tx: &Transaction<'_>, of: (Key, &Directory), name: &[u8]) -> Result<()> {
        let (key, directory) = of;
        self.announce_change();
        let wanted = self.model.names(key).and_then(|names| names.get(name)).cloned();
        match (directory.remove(tx, name), wanted) {
            (Ok(old), Some(wanted)) => {
                assert_eq!(*old, *wanted, "{key:?}, {name:?}");
                self.record_change(tx.txg(), key, Change::Remove(name.to_vec()));
            }
            (Err(error), None) if error.kind() == ErrorKind::NotFound => {}
            (Err(error), _) => return Err(error),
            (Ok(_), None) => panic!("{key:?} had {name:?} after all"),
        }
        Ok(())
    }

    fn value(&mut self) -> Vec<u8> {
        let mut value = vec![0; self.rng.below(32) as usize + 1];
        self.rng.fill(&mut value);
        value
    }
}

/// Names of several lengths.
fn name_of(number: u64) -> Vec<u8> {
    let mut name = number.to_string().into_bytes();
    if number.is_multiple_of(13) {
        name.resize(name.len() + (number % 200) as usize, b'.');
    }
    name
}
