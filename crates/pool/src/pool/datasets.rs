//! Creates, opens and lists the datasets of a pool.

use forebay_base::sync::Arc;
use forebay_cache::OwnerId;
use hashbrown::HashMap;
use zerocopy::{FromBytes, IntoBytes};

use super::handles::Dataset;
use crate::dataset::{self, DatasetSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{DatasetPhys, DnodePhys, ObjectKind};
use crate::reservation::Intent;
use crate::store::Store;
use crate::wait::Wait;
use crate::zap::{Cookie, Entry};

use super::create::open_owner;
use super::{Pool, PoolInner};

/// Maximum length of a dataset name in bytes.
const NAME_BYTES: usize = 255;
/// Names per batch of a listing.
const BATCH: usize = 256;
/// Maximum number of datasets in a pool.
const DATASETS_MAX: usize = 4096;

impl Pool {
    /// Creates a dataset, durably.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], [`ErrorKind::Invalid`], [`ErrorKind::NoMemory`] if the cache has no
    /// free owner id, and the errors of [`begin`](Self::begin).
    pub fn create_dataset(&self, name: &str, settings: &DatasetSettings) -> Result<Dataset> {
        let inner = &self.inner;
        if name.is_empty() || name.len() > NAME_BYTES {
            let text = format!("dataset name has {} bytes; use 1 to {NAME_BYTES}", name.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        settings.check()?;
        // Opened before the name is inserted: every dataset that has a name can be opened.
        let store = inner.dataset_store(settings)?;
        {
            let tx = inner.begin(Intent::Use, Wait::Allowed)?;
            let _one = inner.datasets_changing.lock();
            if inner.directory.lookup(name.as_bytes(), Wait::Allowed)?.is_some() {
                let text = format!("pool {} already has a dataset {name}", inner.name);
                return Err(Error::new(ErrorKind::Exists, text));
            }
            if inner.directory.len() >= DATASETS_MAX as u64 {
                let text =
                    format!("pool {} has the maximum of {DATASETS_MAX} datasets", inner.name);
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let guid = inner.rng.lock().next_u64().max(1);
            let phys = dataset::DatasetInner::new_phys(settings, guid, tx.txg())?;
            let number = inner.mos.create(tx.tx(), ObjectKind::Dataset, 12, phys.as_bytes())?;
            inner.directory.insert(tx.tx(), name.as_bytes(), &number.to_le_bytes())?;
        }
        self.sync()?;
        let dataset = inner.dataset_with(name, Some(store))?;
        Ok(Dataset { pool: Arc::clone(inner), inner: dataset })
    }

    /// Opens a dataset.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or the error of reading the dataset.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        let inner = self.inner.dataset(name)?;
        Ok(Dataset { pool: Arc::clone(&self.inner), inner })
    }

    /// Returns the names of all datasets, sorted.
    ///
    /// # Errors
    /// The error of reading the directory of datasets.
    pub fn datasets(&self) -> Result<Vec<String>> {
        self.inner.dataset_names()
    }

    /// The open dataset whose blocks have that owner in their cache keys.
    pub fn dataset_of_blocks(&self, owner: OwnerId) -> Option<Dataset> {
        let datasets = self.inner.datasets.lock();
        let found = datasets.values().find(|dataset| dataset.objset.io.store.owner() == owner)?;
        Some(Dataset { pool: Arc::clone(&self.inner), inner: Arc::clone(found) })
    }

    /// The owner in the cache keys of the pool's own objects.
    pub fn block_owner(&self) -> OwnerId {
        self.inner.store.owner()
    }
}

impl PoolInner {
    pub(super) fn dataset_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.for_each_entry(|entry| names.push(String::from_utf8_lossy(&entry.name).into_owned()))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Calls `found` for each entry of the directory of datasets.
    fn for_each_entry(&self, mut found: impl FnMut(&Entry)) -> Result<()> {
        let mut from = Cookie::START;
        let mut count = 0;
        loop {
            let batch = self.directory.entries(from, BATCH, Wait::Allowed)?;
            let Some(last) = batch.last() else { return Ok(()) };
            from = last.next;
            count += batch.len();
            if count > DATASETS_MAX {
                let text = format!("the pool has more than {DATASETS_MAX} datasets");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            batch.iter().for_each(&mut found);
        }
    }

    /// Changes the settings of a dataset, durably.
    pub(crate) fn set_settings(
        &self,
        dataset: &dataset::DatasetInner,
        settings: &DatasetSettings,
    ) -> Result<()> {
        settings.check()?;
        {
            let tx = self.begin(Intent::Free, Wait::Allowed)?;
            let _one = self.datasets_changing.lock();
            dataset.set_settings(tx.tx(), &self.log, settings);
        }
        self.txgs.sync_now().map(|_| ())
    }

    /// Returns the dataset with this name; opens it if necessary.
    pub(crate) fn dataset(&self, name: &str) -> Result<Arc<dataset::DatasetInner>> {
        self.dataset_with(name, None)
    }

    /// Opens a store for a dataset.
    fn dataset_store(&self, settings: &DatasetSettings) -> Result<Store> {
        let owner = open_owner(self.store.cache(), settings.caching())?;
        Ok(self.store.with_owner(owner, settings.l2))
    }

    /// As [`dataset`](Self::dataset). Uses `store` if the dataset is not open yet.
    fn dataset_with(&self, name: &str, store: Option<Store>) -> Result<Arc<dataset::DatasetInner>> {
        let mut datasets = self.datasets.lock();
        if let Some(dataset) = datasets.get(name) {
            return Ok(Arc::clone(dataset));
        }
        let (number, dnode) = self.dataset_dnode(name)?;
        let store = match store {
            Some(store) => store,
            None => {
                let settings = dataset::DatasetInner::settings_of(dnode.attributes())?;
                let open = || self.dataset_store(&settings);
                match &self.followed {
                    Some(followed) => {
                        followed.dataset_store((number, &settings), &self.store, open)?
                    }
                    None => open()?,
                }
            }
        };
        let dataset = dataset::DatasetInner::open(
            (store, &self.mos.io.ahead),
            (name, number),
            dnode.attributes(),
            self.rng.lock().next_u64(),
        )?;
        // Only now that the dataset is open: an L2 warm-up must not load blocks for an owner that
        // an error would close.
        dataset.objset.io.store.set_number(number);
        datasets.insert(name.to_owned(), Arc::clone(&dataset));
        Ok(dataset)
    }

    /// Returns the object number and the dnode of a dataset.
    fn dataset_dnode(&self, name: &str) -> Result<(u64, DnodePhys)> {
        let not_found =
            || Error::new(ErrorKind::NotFound, format!("pool {} has no dataset {name}", self.name));
        let value = self.directory.lookup(name.as_bytes(), Wait::Allowed)?.ok_or_else(not_found)?;
        let number: [u8; 8] = (*value).try_into().map_err(|_| {
            Error::new(ErrorKind::Corrupt, format!("dataset {name} has an invalid object number"))
        })?;
        let number = u64::from_le_bytes(number);
        let dnode = self.mos.dnode(number, Wait::Allowed)?;
        if dnode.object_kind() != Some(ObjectKind::Dataset) {
            let text = format!("dataset {name} is object {number}, which is not a dataset");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok((number, dnode))
    }

    /// Returns the names of all datasets by object number. Opens none of them.
    pub(super) fn names_by_number(&self) -> Result<HashMap<u64, String>> {
        let mut names = HashMap::new();
        self.for_each_entry(|entry| {
            // Skips entries whose number or name is invalid. Opening such a dataset by name reports
            // the error.
            if let (Ok(number), Ok(name)) =
                ((*entry.value).try_into(), std::str::from_utf8(&entry.name))
            {
                names.insert(u64::from_le_bytes(number), name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// Returns the names of all datasets by GUID, and an error if some could not be read. Opens
    /// none of them.
    pub(super) fn names_by_guid(&self) -> Result<(HashMap<u64, String>, Option<Error>)> {
        let (mut names, mut failed) = (HashMap::new(), None);
        for name in self.dataset_names()? {
            let guid = self.dataset_dnode(&name).and_then(|(_, dnode)| guid_of(&dnode));
            match guid {
                Ok(guid) => drop(names.insert(guid, name)),
                Err(error) => failed = Some(error.doing(format_args!("dataset {name}"))),
            }
        }
        Ok((names, failed))
    }
}

fn guid_of(dnode: &DnodePhys) -> Result<u64> {
    let phys = DatasetPhys::read_from_bytes(dnode.attributes());
    let phys =
        phys.map_err(|_| Error::new(ErrorKind::Corrupt, "its object has invalid attributes"))?;
    Ok(phys.guid.get())
}
