//! Maps datasets to cache owners. L2 devices store dataset numbers, which are permanent; owners are
//! assigned anew at each open.
//!
//! # Invariants
//!
//! - A wrong dataset number on an L2 does little harm: a block loaded under a wrong owner is never
//!   found, because address and birth txg identify it within the pool. Its memory counts for the
//!   wrong dataset.
//! - At most [`UNKNOWN_MAX`] unknown numbers are looked up.
//!
//! # Locking
//!
//! `pool-l2-datasets`, a leaf lock. Datasets are opened outside of it.

use forebay_base::sync::{Arc, Mutex};
use forebay_cache::OwnerId;
use hashbrown::{HashMap, HashSet};

/// Maximum number of unknown dataset numbers to remember. Beyond it, no dataset is opened.
const UNKNOWN_MAX: usize = 4096;

/// Opens datasets by number.
pub(crate) trait DatasetOpener: Send + Sync {
    /// Opens the dataset with this number, which registers its owner, or does nothing. May wait for
    /// the pool's devices.
    fn open(&self, number: u64);
}

/// Maps owners to dataset numbers and back.
pub(super) struct DatasetOwners(Mutex<OwnersState>);

#[derive(Default)]
struct OwnersState {
    numbers: HashMap<OwnerId, u64>,
    owners: HashMap<u64, OwnerId>,
    unknown: HashSet<u64>,
    opener: Option<Arc<dyn DatasetOpener>>,
}

impl DatasetOwners {
    pub(super) fn new() -> Self {
        Self(Mutex::named("pool-l2-datasets", OwnersState::default()))
    }

    pub(super) fn set(&self, owner: OwnerId, number: u64) {
        let mut state = self.0.lock();
        state.numbers.insert(owner, number);
        state.owners.insert(number, owner);
        state.unknown.remove(&number);
    }

    pub(super) fn remove(&self, owner: OwnerId) {
        let mut state = self.0.lock();
        if let Some(number) = state.numbers.remove(&owner)
            && state.owners.get(&number) == Some(&owner)
        {
            state.owners.remove(&number);
        }
    }

    pub(super) fn of(&self, owner: OwnerId) -> Option<u64> {
        self.0.lock().numbers.get(&owner).copied()
    }

    pub(super) fn owner(&self, number: u64) -> Option<OwnerId> {
        let opener = {
            let state = self.0.lock();
            if let Some(owner) = state.owners.get(&number) {
                return Some(*owner);
            }
            let in_vain = state.unknown.contains(&number) || state.unknown.len() >= UNKNOWN_MAX;
            state.opener.clone().filter(|_| !in_vain)?
        };
        opener.open(number);
        let mut state = self.0.lock();
        let owner = state.owners.get(&number).copied();
        if owner.is_none() {
            state.unknown.insert(number);
        }
        owner
    }

    pub(super) fn set_dataset_opener(&self, opener: Arc<dyn DatasetOpener>) {
        self.0.lock().opener = Some(opener);
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Opens even numbers. The owner is half the number.
    struct Even<'a> {
        numbers: &'a DatasetOwners,
        opened: &'a AtomicU64,
    }

    impl DatasetOpener for Even<'static> {
        fn open(&self, number: u64) {
            self.opened.fetch_add(1, Ordering::Relaxed);
            if number.is_multiple_of(2) && number < 1000 {
                self.numbers.set(OwnerId::from_raw((number / 2) as u16), number);
            }
        }
    }

    #[test]
    fn datasets_are_opened_once_and_not_for_ever_in_vain() {
        let numbers: &'static DatasetOwners = Box::leak(Box::new(DatasetOwners::new()));
        let opened: &'static AtomicU64 = Box::leak(Box::default());
        assert_eq!(numbers.owner(4), None, "nobody opens any");
        numbers.set_dataset_opener(Arc::new(Even { numbers, opened }));
        for _ in 0..3 {
            assert_eq!(numbers.owner(4), Some(OwnerId::from_raw(2)));
            assert_eq!(numbers.owner(5), None);
        }
        assert_eq!(opened.load(Ordering::Relaxed), 2);
        // The dataset is created later.
        numbers.set(OwnerId::from_raw(9), 5);
        assert_eq!(
            (numbers.owner(5), numbers.of(OwnerId::from_raw(9))),
            (Some(OwnerId::from_raw(9)), Some(5))
        );
        numbers.remove(OwnerId::from_raw(9));
        assert_eq!(numbers.of(OwnerId::from_raw(9)), None);
        // An L2 with arbitrary dataset numbers.
        for number in 10_000..20_000u64 {
            assert_eq!(numbers.owner(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), None);
        }
        assert!(opened.load(Ordering::Relaxed) <= UNKNOWN_MAX as u64 + 2);
        assert_eq!(numbers.owner(4), Some(OwnerId::from_raw(2)), "what is open is still known");
    }
}
