//! After an import, cache devices put back into memory what they have, before anybody asks for it.
//!
//! Each does so by itself, as far as there is room that nobody needs. Datasets of which it has blocks are opened for that, so that
//! what they want cached holds, and blocks get their owners; this is no different from a user opening them.
//!
//! Locking: `second-names`, for a look. Datasets are opened on a level's thread, which holds no lock; who closes levels waits for it, and holds none that
//! opening a dataset takes.

use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::{Arc, Mutex, Weak};
use hashbrown::HashMap;

use super::{Inner, Pool};
use crate::second::OpensDatasets;

impl Pool {
    /// Waits until no cache device puts blocks back into memory any more. For tests and measurements: nothing needs it.
    pub fn wait_for_warm_up(&self) {
        for level in self.inner.open_levels() {
            level.wait_warm();
        }
    }

    /// Has cache devices put back into memory what they have.
    pub(super) fn warm_up(&self) {
        let inner = &self.inner;
        let levels = inner.open_levels();
        if levels.is_empty() || !inner.tunables.cache_devices().cache_warm_up() {
            return;
        }
        let (pool, names) = (Arc::downgrade(inner), Mutex::named("second-names", None));
        inner.store.levels().open_by(Arc::new(Opener { pool, names }));
        for level in levels {
            level.warm_up(inner.store.cache().cache().spare_room());
        }
    }
}

/// Opens datasets of which levels have blocks.
struct Opener {
    pool: Weak<Inner>,
    /// Of those that there were when the first was looked for, by number: who makes one later has it open.
    names: Mutex<Option<Arc<HashMap<u64, String>>>>,
}

impl OpensDatasets for Opener {
    fn open(&self, number: u64) {
        let Some(pool) = self.pool.upgrade() else { return };
        if pool.closed.load(Ordering::Acquire) {
            return;
        }
        let known = self.names.lock().clone();
        // If they cannot be read, none is opened here, and why is told to who wants to use one.
        let names = known.unwrap_or_else(|| Arc::new(pool.names_by_number().unwrap_or_default()));
        *self.names.lock() = Some(Arc::clone(&names));
        if let Some(name) = names.get(&number) {
            let _ = pool.dataset(name);
        }
    }
}
