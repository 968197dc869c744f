//! The L2 caches of one pool, and the rules for blocks that may be written to them.
//!
//! # Invariants
//!
//! - No block is written before the transaction group that it was born in is durable. A crash could give its txg and its address to
//!   another block.
//! - Only owners that are enrolled here belong to the pool. What their blocks may do depends on the dataset's setting.
//!
//! Locking: `second-modes`, `second-numbers` and `second-levels` are leaf locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Class, Key, OwnerId};
use hashbrown::HashMap;

use super::owners::{Numbers, OpensDatasets};
use super::router::{Attached, Blocks, CacheLevel, Mux};
use crate::format::CacheMode;

/// A pool's levels, and what of its blocks may go there.
pub(crate) struct Levels {
    mux: Arc<Mux>,
    /// The newest durable transaction group.
    durable: AtomicU64,
    modes: Mutex<HashMap<OwnerId, CacheMode>>,
    numbers: Numbers,
    attached: Mutex<Attached>,
}

impl Levels {
    pub(crate) fn new(mux: &Arc<Mux>) -> Arc<Self> {
        Arc::new(Self {
            mux: Arc::clone(mux),
            durable: AtomicU64::new(0),
            modes: Mutex::named("second-modes", HashMap::new()),
            numbers: Numbers::new(),
            attached: Mutex::named("second-levels", Arc::new([])),
        })
    }

    /// Blocks with keys of `owner` are this pool's from now on, and may go to its levels as `mode` says.
    pub(crate) fn enrol(self: &Arc<Self>, owner: OwnerId, mode: CacheMode) {
        self.set_mode(owner, mode);
        drop(self.mux.shard(owner).lock().insert(owner, Arc::clone(self)));
    }

    /// The end of that.
    pub(crate) fn dismiss(&self, owner: OwnerId) {
        drop(self.mux.shard(owner).lock().remove(&owner));
        self.modes.lock().remove(&owner);
        self.numbers.remove(owner);
    }

    /// `owner` is that of the dataset of this number from now on; 0 is the pool's own objects.
    pub(crate) fn number(&self, owner: OwnerId, number: u64) {
        self.numbers.set(owner, number);
    }

    /// The number of an owner's dataset, if it has been told.
    pub(crate) fn number_of(&self, owner: OwnerId) -> Option<u64> {
        self.numbers.of(owner)
    }

    /// The owner of the dataset of that number, which is opened if need be and can be. May wait for the pool's devices.
    pub(crate) fn owner_of(&self, number: u64) -> Option<OwnerId> {
        self.numbers.owner(number)
    }

    /// How datasets are opened of which a level has blocks.
    pub(crate) fn open_by(&self, opens: Arc<dyn OpensDatasets>) {
        self.numbers.open_by(opens);
    }

    /// What of an owner's blocks goes to levels from now on.
    pub(crate) fn set_mode(&self, owner: OwnerId, mode: CacheMode) {
        self.modes.lock().insert(owner, mode);
    }

    /// What of an owner's blocks goes to levels; nothing for one that is none of the pool's.
    pub(crate) fn mode(&self, owner: OwnerId) -> CacheMode {
        self.modes.lock().get(&owner).copied().unwrap_or(CacheMode::None)
    }

    /// Whether keys of `owner` are this pool's.
    pub(crate) fn has(&self, owner: OwnerId) -> bool {
        self.modes.lock().contains_key(&owner)
    }

    /// Groups up to `txg` are durable.
    pub(crate) fn note_durable(&self, txg: u64) {
        self.durable.fetch_max(txg, Ordering::Relaxed);
    }

    /// The newest durable group.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    pub(super) fn attached(&self) -> Attached {
        Arc::clone(&self.attached.lock())
    }

    /// Uses a level from now on.
    pub(crate) fn attach(&self, level: Arc<dyn CacheLevel>) {
        self.mux.everywhere.lock().push(Arc::clone(&level));
        {
            let mut attached = self.attached.lock();
            *attached = attached.iter().cloned().chain([level]).collect();
        }
        self.mux.attached.fetch_add(1, Ordering::Relaxed);
    }

    /// Offers it nothing more, and asks it for nothing. What it is doing it may still be doing. False if it is not here.
    pub(crate) fn detach(&self, level: &Arc<dyn CacheLevel>) -> bool {
        {
            let mut attached = self.attached.lock();
            let rest: Attached =
                attached.iter().filter(|other| !Arc::ptr_eq(other, level)).cloned().collect();
            if rest.len() == attached.len() {
                return false;
            }
            *attached = rest;
        }
        self.mux.attached.fetch_sub(1, Ordering::Relaxed);
        self.mux.everywhere.lock().retain(|other| !Arc::ptr_eq(other, level));
        true
    }

    /// Writes those of the blocks that are this pool's to the levels that they are for, as
    /// [`CacheLevel::write_all`]. False if none can write any more.
    pub(crate) fn write_all(&self, mut blocks: Blocks) -> bool {
        blocks.retain(|block| self.has(block.key().owner()));
        let mut writes = blocks.is_empty();
        self.mux.hand_out(blocks, |level, lot| writes |= level.write_all(lot));
        writes
    }

    /// Whether blocks of this class and owner are wanted on levels.
    pub(crate) fn wants(&self, owner: OwnerId, class: Class) -> Wanted {
        match (self.mode(owner), class) {
            (CacheMode::All, _) | (CacheMode::Metadata, Class::Metadata) => Wanted::Yes,
            (CacheMode::Metadata, Class::Data) => Wanted::NotThisClass,
            (CacheMode::None, _) => Wanted::Nothing,
        }
    }
}

/// What an owner wants on levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Yes,
    NotThisClass,
    Nothing,
}
