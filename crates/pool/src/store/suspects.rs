//! Places of which an asynchronous read has got a bad copy.
//!
//! Such a read gives up: it is no reader, and must not block, so it neither counts nor heals. The
//! blocking read of the block then tries this place first. If the copy is bad, that counts, and the
//! place is rewritten like any other.
//!
//! It holds a bounded number of places, and forgets all when it is full: a scrub finds them too.
//!
//! Locking: `store-suspects` is a leaf lock, held for a look.

use std::collections::BTreeMap;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};

use crate::block_key::BlockKey;
use crate::devices::Place;

/// Places that are known at once: about 50 KiB.
const SUSPECTS_MAX: usize = 1024;

/// The places, by block.
pub(super) struct Suspects {
    places: Mutex<BTreeMap<BlockKey, Place>>,
    /// Their number, so that a read takes no lock if there are none.
    count: AtomicUsize,
}

impl Suspects {
    pub(super) fn new() -> Self {
        Self { places: Mutex::named("store-suspects", BTreeMap::new()), count: AtomicUsize::new(0) }
    }

    /// A read of the block has got a bad copy from this place.
    pub(super) fn note(&self, key: BlockKey, place: Place) {
        let mut places = self.places.lock();
        if places.len() >= SUSPECTS_MAX {
            places.clear();
        }
        places.insert(key, place);
        self.count.store(places.len(), Ordering::Release);
    }

    /// Returns the place of the block, and forgets it.
    pub(super) fn take(&self, key: &BlockKey) -> Option<Place> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut places = self.places.lock();
        let place = places.remove(key);
        self.count.store(places.len(), Ordering::Release);
        place
    }
}
