//! Opens the datasets whose blocks L2 devices load into memory after an import.
//!
//! An L2 loads its blocks by itself, as far as memory is free. Their dataset is opened first, so
//! that the blocks get their owner and the dataset's cache setting. This is the same as opening it
//! by a user.
//!
//! Locking: `pool-l2-names`, for a lookup. Datasets are opened on a thread of an L2, which holds no
//! lock. Closing the L2s waits for that thread, and holds no lock that opening a dataset takes.

use forebay_base::sync::{Arc, Mutex, Weak};
use hashbrown::HashMap;

use super::devices::L2Host;
use super::owners::DatasetOpener;

/// Opens datasets with blocks on an L2.
pub(super) struct HostDatasetOpener {
    host: Weak<dyn L2Host>,
    /// Dataset names by number, as of the first lookup. A dataset created later is already open.
    names: Mutex<Option<Arc<HashMap<u64, String>>>>,
}

impl HostDatasetOpener {
    pub(super) fn new(host: &Arc<dyn L2Host>) -> Self {
        Self { host: Arc::downgrade(host), names: Mutex::named("pool-l2-names", None) }
    }
}

impl DatasetOpener for HostDatasetOpener {
    fn open(&self, number: u64) {
        let Some(host) = self.host.upgrade() else { return };
        if host.is_closed() {
            return;
        }
        let known = self.names.lock().clone();
        // If the names cannot be read, no dataset is opened here. Opening a dataset by name reports
        // the error.
        let names = known.unwrap_or_else(|| Arc::new(host.dataset_names().unwrap_or_default()));
        *self.names.lock() = Some(Arc::clone(&names));
        if let Some(name) = names.get(&number) {
            host.open_dataset(name);
        }
    }
}
