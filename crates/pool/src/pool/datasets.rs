//! The datasets of a pool.

use forebay_base::sync::Arc;
use zerocopy::IntoBytes;

use crate::dataset::{self, DatasetSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ObjectKind;
use crate::handles::Dataset;
use crate::zap::Cookie;

use super::create::open_owner;
use super::{Inner, Intent, Pool};

/// Names of datasets are at most this long.
const NAME_BYTES: usize = 255;
/// Names are listed in lots of this many.
const LOT: usize = 256;
/// Datasets that a pool has at most.
const DATASETS_MAX: usize = 4096;

impl Pool {
    /// Creates a dataset, durably.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], [`ErrorKind::Invalid`], and as [`begin`](Self::begin).
    pub fn create_dataset(&self, name: &str, settings: &DatasetSettings) -> Result<Dataset> {
        let inner = &self.inner;
        if name.is_empty() || name.len() > NAME_BYTES {
            let text =
                format!("the dataset's name has {} bytes: take 1 to {NAME_BYTES}", name.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        {
            let tx = inner.begin(Intent::Use)?;
            let _one = inner.datasets_changing.lock();
            if inner.directory.lookup(name.as_bytes())?.is_some() {
                let text = format!("pool {} has a dataset {name} already", inner.name);
                return Err(Error::new(ErrorKind::Exists, text));
            }
            let guid = inner.rng.lock().next_u64().max(1);
            let phys = dataset::Inner::new_phys(settings, guid, tx.txg())?;
            let number = inner.mos.create(tx.tx(), ObjectKind::Dataset, 12, phys.as_bytes())?;
            inner.directory.insert(tx.tx(), name.as_bytes(), &number.to_le_bytes())?;
        }
        self.sync()?;
        self.dataset(name)
    }

    /// Opens a dataset.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or why it cannot be read.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        let inner = self.inner.dataset(name)?;
        Ok(Dataset { pool: Arc::clone(&self.inner), inner })
    }

    /// Names of all datasets.
    ///
    /// # Errors
    /// Why their directory cannot be read.
    pub fn datasets(&self) -> Result<Vec<String>> {
        self.inner.dataset_names()
    }
}

impl Inner {
    pub(super) fn dataset_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut from = Cookie::START;
        loop {
            let lot = self.directory.entries(from, LOT)?;
            let Some(last) = lot.last() else { break };
            from = last.next;
            names.extend(lot.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
            if names.len() > DATASETS_MAX {
                let text = format!("more than {DATASETS_MAX} datasets");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Changes the settings of a dataset, durably.
    pub(crate) fn set_settings(
        &self,
        dataset: &dataset::Inner,
        settings: &DatasetSettings,
    ) -> Result<()> {
        settings.check()?;
        {
            let tx = self.begin(Intent::Free)?;
            let _one = self.datasets_changing.lock();
            dataset.set_settings(tx.tx(), &self.log, settings);
        }
        self.txgs.sync_now().map(|_| ())
    }

    pub(crate) fn dataset(&self, name: &str) -> Result<Arc<dataset::Inner>> {
        let mut datasets = self.datasets.lock();
        if let Some(dataset) = datasets.get(name) {
            return Ok(Arc::clone(dataset));
        }
        let not_found =
            || Error::new(ErrorKind::NotFound, format!("pool {} has no dataset {name}", self.name));
        let value = self.directory.lookup(name.as_bytes())?.ok_or_else(not_found)?;
        let number: [u8; 8] = (*value).try_into().map_err(|_| {
            Error::new(ErrorKind::Corrupt, format!("dataset {name} has an odd number"))
        })?;
        let number = u64::from_le_bytes(number);
        let dnode = self.mos.dnode(number)?;
        if dnode.object_kind() != Some(ObjectKind::Dataset) {
            let text = format!("dataset {name} is object {number}, which is none");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let settings = dataset::Inner::settings_of(dnode.attributes())?;
        let owner = open_owner(self.store.cache(), settings.caching())?;
        let store = self.store.with_owner(owner);
        let dataset = dataset::Inner::open(
            (store, &self.mos.ahead),
            (name, number),
            dnode.attributes(),
            self.rng.lock().next_u64(),
        )?;
        datasets.insert(name.to_owned(), Arc::clone(&dataset));
        Ok(dataset)
    }
}
