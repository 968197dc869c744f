//! A cache whose keys have owners.

use std::sync::Arc;

use forebay_cache::{Cache, Key, OwnerId, Reclaim};

use crate::harness::{Block, Hasty, Ledger, SEED};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OwnedKey(pub(crate) u16, pub(crate) u64);

impl Key for OwnedKey {
    fn owner(&self) -> OwnerId {
        OwnerId::from_raw(self.0)
    }
}

#[derive(Clone)]
pub(crate) struct OwnedWorld {
    pub(crate) cache: Arc<Cache<OwnedKey, Block>>,
    pub(crate) ledger: Arc<Ledger>,
}

impl OwnedWorld {
    pub(crate) fn new(capacity: u64) -> Self {
        let cache = Cache::builder()
            .capacity(capacity)
            .weigher(|_, _| 1)
            .clock(Arc::new(Hasty::default()))
            .reclaim(Reclaim::Inline)
            .seed(SEED)
            .build();
        Self { cache: Arc::new(cache.expect("a small cache")), ledger: Ledger::new() }
    }

    pub(crate) fn insert(&self, key: OwnedKey) -> bool {
        self.cache.insert(key, Block::new(&self.ledger, key.1)).is_ok()
    }

    pub(crate) fn end(self) {
        self.cache.audit();
        assert_eq!(Arc::strong_count(&self.cache), 1, "all threads have ended");
        drop(self.cache);
        self.ledger.assert_gone();
    }
}
