//! Random work, done on a pool and on its twin at once. A seed decides all of it.
//!
//! What is read is compared at once. Every change is noted in the [`History`]. [`Progress`] says at any moment, to any thread,
//! what has begun and what is durable: whoever makes an image of the devices takes a copy of it.

mod directories;
mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use forebay_base::rng::SmallRng;
use forebay_pool::{Dataset, Pool, Result, Transaction};

use crate::compare;
use crate::history::{Done, Fsync, History, Now};
use crate::journal::{Journal, Note};
use crate::model::{Change, Key, Model};
use crate::rig;

/// How far a workload is. What is done is stored after it ended, what begins before it begins.
#[derive(Debug, Default)]
pub struct Progress {
    /// Changes that may have begun.
    pub changes_begun: AtomicUsize,
    /// Fsyncs that may have begun.
    pub fsyncs_begun: AtomicUsize,
    /// Fsyncs that have returned.
    pub fsyncs_done: AtomicUsize,
    /// This group is durable.
    pub synced_txg: AtomicU64,
}

impl Progress {
    /// All of it.
    pub fn now(&self) -> Now {
        Now {
            // What is done first: it has begun.
            fsyncs_done: self.fsyncs_done.load(Ordering::SeqCst),
            synced_txg: self.synced_txg.load(Ordering::SeqCst),
            fsyncs_begun: self.fsyncs_begun.load(Ordering::SeqCst),
            changes_begun: self.changes_begun.load(Ordering::SeqCst),
        }
    }
}

/// What kind of work, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of content that all objects together may have.
    pub bytes_max: u64,
    /// Objects, directories included.
    pub objects_max: usize,
    /// Names that a burst may add to a directory.
    pub burst_max: u64,
    /// Whether groups are committed beside the work, on another thread. What happens then does not depend on the seed alone.
    pub beside: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self { bytes_max: 6 << 20, objects_max: 40, burst_max: 600, beside: false }
    }
}

/// A pool, its twin, and what was done to them.
pub struct Workload {
    pool: Arc<Pool>,
    datasets: Vec<Dataset>,
    model: Model,
    history: History,
    rng: SmallRng,
    load: Load,
    progress: Arc<Progress>,
    beside: Option<JoinHandle<Result<()>>>,
    journal: Option<Journal>,
}

impl Workload {
    /// Work on a pool that holds `model`, all of it durable.
    ///
    /// # Errors
    /// What opening the datasets brings.
    pub fn new(pool: Pool, model: Model, load: Load, seed: u64) -> Result<Self> {
        let datasets = rig::datasets(&pool)?;
        let base_txg = pool.stats().synced_txg;
        let history = History { base: model.clone(), base_txg, ..History::default() };
        let progress = Arc::new(Progress::default());
        progress.synced_txg.store(base_txg, Ordering::SeqCst);
        let rng = SmallRng::from_seed(seed);
        let pool = Arc::new(pool);
        Ok(Self {
            pool,
            datasets,
            model,
            history,
            rng,
            load,
            progress,
            beside: None,
            journal: None,
        })
    }

    /// From now on all that is done is noted there.
    pub fn write_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    fn journal(&self, note: &Note<'_>) {
        if let Some(journal) = &self.journal {
            journal.note(note).expect("a journal can be written");
        }
    }

    /// How far it is.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What should be in the pool.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Ends: the pool, what should be in it, and what was done.
    ///
    /// # Errors
    /// What a commit beside the work brought.
    ///
    /// # Panics
    /// If that panicked.
    pub fn end(mut self) -> Result<(Pool, Model, History)> {
        self.join()?;
        let Self { pool, datasets, model, history, .. } = self;
        drop(datasets);
        let pool = Arc::into_inner(pool).expect("nobody else has the pool");
        Ok((pool, model, history))
    }

    /// Does so many steps.
    ///
    /// # Errors
    /// What a step brings.
    pub fn run(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.step())
    }

    /// One step: a transaction with changes, a read that is compared, an fsync, a commit.
    ///
    /// # Errors
    /// What the pool says; what was changed before is in the history.
    pub fn step(&mut self) -> Result<()> {
        if self.is_full() {
            return self.destroy();
        }
        match self.rng.below(100) {
            0..8 => self.create(),
            8..10 => self.destroy(),
            10..45 => self.change_object(),
            45..60 => self.change_names(),
            60..64 => self.burst(),
            64..68 => self.change_attributes(),
            68..76 => self.compare(),
            76..92 => self.fsync(),
            92..96 => self.sync(),
            _ => self.sync_beside(),
        }
    }

    fn is_full(&self) -> bool {
        let bytes: usize = self.model.keys(false).iter().map(|key| self.bytes_of(*key)).sum();
        bytes as u64 > self.load.bytes_max || self.model.entries.len() > self.load.objects_max
    }

    fn bytes_of(&self, key: Key) -> usize {
        self.model.bytes(key).map_or(0, Vec::len)
    }

    /// One of the objects, or of the directories.
    fn pick(&mut self, directory: bool) -> Option<Key> {
        let keys = self.model.keys(directory);
        self.one_of(&keys)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize])
    }

    /// Says that a change is about to be made.
    fn begins(&self) {
        self.progress.changes_begun.store(self.history.changes.len() + 1, Ordering::SeqCst);
    }

    /// Notes a change that was made.
    fn note(&mut self, txg: u64, key: Key, change: Change) {
        self.journal(&Note::Change(txg, key, &change));
        self.model.apply(key, &change);
        self.history.changes.push(Done { txg, key, change });
    }

    /// A transaction for `work`, which does not change the pool otherwise.
    fn transact(
        &mut self,
        work: impl FnOnce(&mut Self, &Transaction<'_>) -> Result<()>,
    ) -> Result<()> {
        let pool = Arc::clone(&self.pool);
        let tx = pool.begin()?;
        work(self, &tx)
    }

    fn create(&mut self) -> Result<()> {
        let count = self.rng.below(4) + 1;
        self.transact(|this, tx| {
            for _ in 0..count {
                let (at, directory) = (this.rng.below(2) as usize, this.rng.below(4) == 0);
                let attributes = this.attributes();
                this.begins();
                let dataset = &this.datasets[at];
                let number = match (directory, this.rng.below(3)) {
                    (true, _) => dataset.create_directory(tx, &attributes)?,
                    (false, 0) => dataset.create_object(tx, &attributes)?,
                    (false, _) => {
                        let record_bytes = 4096 << this.rng.below(6);
                        dataset.create_object_with(tx, record_bytes, &attributes)?
                    }
                };
                this.note(tx.txg(), (at, number), Change::Create { directory, attributes });
            }
            Ok(())
        })
    }

    fn destroy(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        let Some(key) = self.one_of(&keys) else { return Ok(()) };
        let pool = Arc::clone(&self.pool);
        let tx = pool.begin_freeing()?;
        self.begins();
        self.datasets[key.0].destroy(&tx, key.1)?;
        self.note(tx.txg(), key, Change::Destroy);
        Ok(())
    }

    fn change_attributes(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        let Some(key) = self.one_of(&keys) else { return Ok(()) };
        self.transact(|this, tx| {
            let attributes = this.attributes();
            this.begins();
            this.datasets[key.0].set_attributes(tx, key.1, &attributes)?;
            let directory = this.model.names(key).is_some();
            this.note(tx.txg(), key, Change::Attributes { directory, attributes });
            Ok(())
        })
    }

    fn attributes(&mut self) -> Vec<u8> {
        let mut attributes = vec![0; self.rng.below(225) as usize];
        self.rng.fill(&mut attributes);
        attributes
    }

    /// Reads something and compares it.
    fn compare(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        let Some(key) = self.one_of(&keys) else { return Ok(()) };
        let found = compare::read_all(&self.datasets, std::iter::once(key))?;
        let wanted = self.model.entries.get(&key).cloned();
        let wanted = Model { entries: wanted.into_iter().map(|entry| (key, entry)).collect() };
        if let Some(difference) = compare::difference(&found, &wanted) {
            panic!("the pool says something else than was written: {difference}");
        }
        Ok(())
    }

    /// Makes something durable by the intent log.
    fn fsync(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        // What was changed last is what one syncs.
        let last = self.history.changes.last().map(|done| done.key);
        let last = last.filter(|key| self.model.entries.contains_key(key));
        let key = match self.rng.below(2) {
            0 => last.or_else(|| self.one_of(&keys)),
            _ => self.one_of(&keys),
        };
        let Some(key) = key else { return Ok(()) };
        let changes = self.history.changes.len();
        self.history.fsyncs.push(Fsync { changes, key });
        let count = self.history.fsyncs.len();
        self.progress.fsyncs_begun.store(count, Ordering::SeqCst);
        self.journal(&Note::FsyncBegins(key));
        self.datasets[key.0].fsync(key.1)?;
        self.journal(&Note::FsyncDone);
        self.progress.fsyncs_done.store(count, Ordering::SeqCst);
        Ok(())
    }

    /// Commits a group.
    ///
    /// # Errors
    /// The commit's.
    pub fn sync(&mut self) -> Result<()> {
        let txg = self.history.changes.last().map_or(0, |done| done.txg);
        self.pool.sync()?;
        self.journal(&Note::Synced(txg));
        self.progress.synced_txg.fetch_max(txg, Ordering::SeqCst);
        Ok(())
    }

    /// Has a group committed while the work goes on.
    fn sync_beside(&mut self) -> Result<()> {
        if !self.load.beside {
            return self.sync();
        }
        self.join()?;
        let (pool, progress) = (Arc::clone(&self.pool), Arc::clone(&self.progress));
        let journal = self.journal.clone();
        let txg = self.history.changes.last().map_or(0, |done| done.txg);
        self.beside = Some(std::thread::spawn(move || {
            pool.sync()?;
            if let Some(journal) = journal {
                journal.note(&Note::Synced(txg)).expect("a journal can be written");
            }
            progress.synced_txg.fetch_max(txg, Ordering::SeqCst);
            Ok(())
        }));
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        match self.beside.take() {
            Some(thread) => thread.join().expect("a commit does not panic"),
            None => Ok(()),
        }
    }
}
