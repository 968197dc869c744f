//! Random work on a pool and on its reference model, decided by a seed.
//!
//! Reads are compared at once. Every change is added to the [`History`]. [`Progress`] tells other
//! threads at any moment what has begun and what is durable, so an image of the devices can be
//! taken together with a snapshot of it.

mod directories;
mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use forebay_base::rng::SmallRng;
use forebay_pool::{Dataset, ErrorKind, Pool, Result, Transaction};

use crate::compare;
use crate::fixture;
use crate::history::{Fsync, History, ProgressSnapshot, TxgChange};
use crate::journal::{Journal, JournalRecord};
use crate::model::{Change, Key, Model};

/// The progress of a workload. Completions are stored after the fact, beginnings before it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of changes that may have begun.
    pub changes_begun: AtomicUsize,
    /// Number of fsyncs that may have begun.
    pub fsyncs_begun: AtomicUsize,
    /// Number of fsyncs that have returned.
    pub fsyncs_done: AtomicUsize,
    /// The newest txg known to be durable.
    pub synced_txg: AtomicU64,
}

impl Progress {
    /// A copy of all counters.
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            // Completions first: whatever is complete has begun.
            fsyncs_done: self.fsyncs_done.load(Ordering::SeqCst),
            synced_txg: self.synced_txg.load(Ordering::SeqCst),
            fsyncs_begun: self.fsyncs_begun.load(Ordering::SeqCst),
            changes_begun: self.changes_begun.load(Ordering::SeqCst),
        }
    }
}

/// The kind and the amount of work.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadOptions {
    /// Largest content of all objects together, in bytes.
    pub bytes_max: u64,
    /// Largest number of objects and directories.
    pub objects_max: usize,
    /// Largest number of names that a burst adds to a directory.
    pub burst_max: u64,
    /// Whether directories of few leaves have filters and change buffers, as large ones do.
    pub aided_directories: bool,
    /// Whether another thread commits groups during the work. The result then does not depend on
    /// the seed alone.
    pub background_sync: bool,
    /// Whether changes, fsyncs and commits wait while the pool is suspended: somebody clears it.
    pub waits_while_suspended: bool,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            bytes_max: 6 << 20,
            objects_max: 40,
            burst_max: 600,
            aided_directories: false,
            background_sync: false,
            waits_while_suspended: false,
        }
    }
}

/// Runs `call`; while the pool is suspended, waits and repeats it if the load wants that.
fn unless_suspended<T>(
    pool: &Pool,
    load: WorkloadOptions,
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match call() {
            Err(error) if load.waits_while_suspended && error.kind() == ErrorKind::Suspended => {
                pool.wait_resumed(&|| false)?;
            }
            ended => return ended,
        }
    }
}

/// A pool, its model, and their history.
pub struct Workload {
    pool: Arc<Pool>,
    datasets: Vec<Dataset>,
    model: Model,
    history: History,
    rng: SmallRng,
    load: WorkloadOptions,
    progress: Arc<Progress>,
    background_sync: Option<JoinHandle<Result<()>>>,
    journal: Option<Journal>,
}

impl Workload {
    /// Work on a pool that holds `model`, all of it durable.
    ///
    /// # Errors
    /// The errors of opening the datasets.
    pub fn new(pool: Pool, model: Model, load: WorkloadOptions, seed: u64) -> Result<Self> {
        if load.aided_directories {
            pool.set_tunable("directory_buffer", "true")?;
            pool.set_tunable("directory_buffer_leaves", "4")?;
            // The thread would make the result depend on more than the seed.
            pool.set_tunable("directory_merge_reads", "0")?;
        }
        let datasets = fixture::datasets(&pool)?;
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
            background_sync: None,
            journal: None,
        })
    }

    /// From now on, writes all changes to a journal.
    pub fn write_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    fn journal(&self, note: &JournalRecord<'_>) {
        if let Some(journal) = &self.journal {
            journal.write(note).expect("a journal can be written");
        }
    }

    /// The progress.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool, for another thread. It must be dropped before [`end`](Self::end).
    pub fn pool_handle(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// The expected content of the pool.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Ends the work. Returns the pool, its expected content, and the history.
    ///
    /// # Errors
    /// The error of a background commit.
    ///
    /// # Panics
    /// If a background commit panicked.
    pub fn end(mut self) -> Result<(Pool, Model, History)> {
        self.join()?;
        let Self { pool, datasets, model, history, .. } = self;
        drop(datasets);
        let pool = Arc::into_inner(pool).expect("no other reference to the pool");
        Ok((pool, model, history))
    }

    /// Does `steps` steps.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn run(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.step())
    }

    /// One step: a transaction with changes, a compared read, an fsync, or a commit.
    ///
    /// # Errors
    /// The pool's error. Changes before it are in the history.
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
            _ => self.sync_in_background(),
        }
    }

    fn is_full(&self) -> bool {
        let bytes: usize = self.model.keys(false).iter().map(|key| self.bytes_of(*key)).sum();
        bytes as u64 > self.load.bytes_max || self.model.entries.len() > self.load.objects_max
    }

    fn bytes_of(&self, key: Key) -> usize {
        self.model.bytes(key).map_or(0, Vec::len)
    }

    /// A random object, or a random directory.
    fn pick(&mut self, directory: bool) -> Option<Key> {
        let keys = self.model.keys(directory);
        self.one_of(&keys)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize])
    }

    /// Announces that a change may begin.
    fn announce_change(&self) {
        self.progress.changes_begun.store(self.history.changes.len() + 1, Ordering::SeqCst);
    }

    /// Records a change.
    fn record_change(&mut self, txg: u64, key: Key, change: Change) {
        self.journal(&JournalRecord::Change(txg, key, &change));
        self.model.apply(key, &change);
        self.history.changes.push(TxgChange { txg, key, change });
    }

    /// Runs `work` in a transaction.
    fn transact(
        &mut self,
        work: impl FnOnce(&mut Self, &Transaction<'_>) -> Result<()>,
    ) -> Result<()> {
        let pool = Arc::clone(&self.pool);
        let tx = unless_suspended(&pool, self.load, || pool.begin())?;
        work(self, &tx)
    }

    fn create(&mut self) -> Result<()> {
        let count = self.rng.below(4) + 1;
        self.transact(|this, tx| {
            for _ in 0..count {
                let (at, directory) = (this.rng.below(2) as usize, this.rng.below(4) == 0);
                let attributes = this.attributes();
                this.announce_change();
                let dataset = &this.datasets[at];
                let number = match (directory, this.rng.below(3)) {
                    (true, _) => dataset.create_directory(tx, &attributes)?,
                    (false, 0) => dataset.create_object(tx, &attributes)?,
                    (false, _) => {
                        let record_bytes = 4096 << this.rng.below(6);
                        dataset.create_object_with(tx, record_bytes, &attributes)?
                    }
                };
                this.record_change(
                    tx.txg(),
                    (at, number),
                    Change::Create { directory, attributes },
                );
            }
            Ok(())
        })
    }

    fn destroy(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        let Some(key) = self.one_of(&keys) else { return Ok(()) };
        let pool = Arc::clone(&self.pool);
        let tx = unless_suspended(&pool, self.load, || pool.begin_freeing())?;
        self.announce_change();
        self.datasets[key.0].destroy(&tx, key.1)?;
        self.record_change(tx.txg(), key, Change::Destroy);
        Ok(())
    }

    fn change_attributes(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        let Some(key) = self.one_of(&keys) else { return Ok(()) };
        self.transact(|this, tx| {
            let attributes = this.attributes();
            this.announce_change();
            this.datasets[key.0].set_attributes(tx, key.1, &attributes)?;
            let directory = this.model.names(key).is_some();
            this.record_change(tx.txg(), key, Change::Attributes { directory, attributes });
            Ok(())
        })
    }

    fn attributes(&mut self) -> Vec<u8> {
        let mut attributes = vec![0; self.rng.below(225) as usize];
        self.rng.fill(&mut attributes);
        attributes
    }

    /// Reads a random object and compares it.
    fn compare(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        let Some(key) = self.one_of(&keys) else { return Ok(()) };
        let found = compare::read_all(&self.datasets, std::iter::once(key))?;
        let wanted = self.model.entries.get(&key).cloned();
        let wanted = Model { entries: wanted.into_iter().map(|entry| (key, entry)).collect() };
        if let Some(difference) = compare::difference(&found, &wanted) {
            panic!("the pool differs from the model: {difference}");
        }
        Ok(())
    }

    /// Fsyncs a random object.
    fn fsync(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.model.entries.keys().copied().collect();
        // Applications usually sync the object that they changed last.
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
        self.journal(&JournalRecord::FsyncBegins(key));
        unless_suspended(&self.pool, self.load, || self.datasets[key.0].fsync(key.1))?;
        self.journal(&JournalRecord::FsyncDone);
        self.progress.fsyncs_done.store(count, Ordering::SeqCst);
        Ok(())
    }

    /// Commits the open txg.
    ///
    /// # Errors
    /// The error of the commit.
    pub fn sync(&mut self) -> Result<()> {
        let txg = self.history.changes.last().map_or(0, |done| done.txg);
        unless_suspended(&self.pool, self.load, || self.pool.sync())?;
        self.journal(&JournalRecord::Synced(txg));
        self.progress.synced_txg.fetch_max(txg, Ordering::SeqCst);
        Ok(())
    }

    /// Commits the open txg on another thread.
    fn sync_in_background(&mut self) -> Result<()> {
        if !self.load.background_sync {
            return self.sync();
        }
        self.join()?;
        let (pool, progress) = (Arc::clone(&self.pool), Arc::clone(&self.progress));
        let (journal, load) = (self.journal.clone(), self.load);
        let txg = self.history.changes.last().map_or(0, |done| done.txg);
        self.background_sync = Some(std::thread::spawn(move || {
            unless_suspended(&pool, load, || pool.sync())?;
            if let Some(journal) = journal {
                journal.write(&JournalRecord::Synced(txg)).expect("a journal can be written");
            }
            progress.synced_txg.fetch_max(txg, Ordering::SeqCst);
            Ok(())
        }));
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        match self.background_sync.take() {
            Some(thread) => thread.join().expect("a commit does not panic"),
            None => Ok(()),
        }
    }
}
