//! Forebay: directories in one dataset of a pool.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_pool::{BlockCache, Dataset, DatasetSettings, Directory, Pool};

use super::{DIRECTORIES, Directories, Lookup, Name, ThreadError, directory_of};
use crate::options::Failure;
use crate::report::Record;
use crate::testbed::{self, BackingArgs, TestBed};

/// Directories in their own pool.
pub(crate) struct Pooled {
    pub(crate) data: Dataset,
    pub(crate) directories: Vec<Directory>,
    pub(crate) pool: Pool,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) testbed: TestBed,
}

/// Configuration of such a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig<'a> {
    /// The pool's device.
    pub(crate) backing: &'a BackingArgs,
    /// Bound of the cache, in bytes.
    pub(crate) cache_bytes: u64,
    /// Whether the cache is one LRU list.
    pub(crate) plain_lru: bool,
    /// Tunables of the pool.
    pub(crate) pool_tunables: &'a [(String, String)],
    /// Copies of metadata.
    pub(crate) copies: u8,
    /// Seed of all random numbers.
    pub(crate) seed: u64,
}

impl Pooled {
    /// Makes empty directories in a new pool.
    ///
    /// # Errors
    /// If the pool cannot be made.
    pub(crate) fn new(setting: &PoolConfig<'_>) -> Result<Self, Failure> {
        let testbed = TestBed::new(setting.backing, setting.seed)?;
        let cache = testbed::cache(setting.cache_bytes, setting.plain_lru, setting.seed)?;
        let pool = testbed.create(&cache, setting.pool_tunables)?;
        let metadata_copies = setting.copies;
        let settings = DatasetSettings { metadata_copies, ..DatasetSettings::default() };
        let data = pool.create_dataset(DATASET, &settings)?;
        let mut directories = Vec::new();
        let tx = pool.begin()?;
        for _ in 0..DIRECTORIES {
            directories.push(data.directory(data.create_directory(&tx, &[])?)?);
        }
        drop(tx);
        pool.sync()?;
        Ok(Self { data, directories, pool, cache, testbed })
    }

    /// Exports and imports the pool, with a new empty cache and slow reads, see
    /// [`TestBed::slow_reads`].
    ///
    /// # Errors
    /// If the export or the import fails.
    pub(crate) fn again(
        self,
        setting: &PoolConfig<'_>,
        (delay, reads_per_s): (Duration, u32),
    ) -> Result<Self, Failure> {
        let Self { data, directories, pool, cache, mut testbed } = self;
        let numbers: Vec<u64> = directories.iter().map(Directory::number).collect();
        drop((directories, data));
        pool.export()?;
        drop(cache);
        testbed.slow_reads(delay, reads_per_s);
        let cache = testbed::cache(setting.cache_bytes, setting.plain_lru, setting.seed)?;
        let pool = testbed.import(&cache, setting.pool_tunables)?;
        let data = pool.dataset(DATASET)?;
        let open = |number: u64| data.directory(number);
        let directories = numbers.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { data, directories, pool, cache, testbed })
    }
}

/// Name of the dataset.
const DATASET: &str = "names";

impl Directories for Pooled {
    type Lookup<'a> = &'a Pooled;

    fn insert(&self, batch: Range<u64>) -> Result<(), ThreadError> {
        let tx = self.pool.begin()?;
        for number in batch {
            let directory = &self.directories[directory_of(number)];
            directory.insert(&tx, Name::new(number).bytes(), &number.to_le_bytes())?;
        }
        Ok(())
    }

    fn remove(&self, batch: Range<u64>) -> Result<(), ThreadError> {
        let tx = self.pool.begin_freeing()?;
        for number in batch {
            self.directories[directory_of(number)].remove(&tx, Name::new(number).bytes())?;
        }
        Ok(())
    }

    fn persist(&self) -> Result<(), ThreadError> {
        Ok(self.pool.sync()?)
    }

    fn lookup(&self) -> Result<&Pooled, ThreadError> {
        Ok(self)
    }

    fn describe(&self, record: Record) -> Result<Record, ThreadError> {
        let (mut stored, mut used, mut entries) = (0, 0, 0);
        for directory in &self.directories {
            let stats = directory.stats()?;
            stored += stats.stored_bytes + stats.micro_bytes;
            used += stats.used_bytes + stats.micro_bytes;
            entries += stats.entries;
        }
        Ok(record
            .figure("bytes_per_entry", stored as f64 / entries.max(1) as f64)
            .figure("leaf_fill", used as f64 / stored.max(1) as f64))
    }
}

impl Lookup for &Pooled {
    #[inline]
    fn get(&mut self, number: u64) -> Result<Option<u64>, ThreadError> {
        let found = self.directories[directory_of(number)].lookup(Name::new(number).bytes())?;
        Ok(found.and_then(|value| value.first_chunk::<8>().map(|v| u64::from_le_bytes(*v))))
    }
}
