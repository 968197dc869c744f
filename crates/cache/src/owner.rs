//! Owners of key ranges: which of their blocks are cached, and how an owner is closed.
//!
//! An owner is a number in its keys. Its mode is one atomic byte, read by every insert and by no
//! hit.
//!
//! Closing sets the mode to closing, then passes the index's barrier, so that all inserts that saw
//! the old mode have finished. Then it removes the owner's blocks and ghosts.
//!
//! Locking: none; the barrier takes each partition's lock.

use forebay_base::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::attributes::Class;
use crate::key::OwnerId;

/// Which blocks of an owner are cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerCaching {
    /// Data and metadata.
    #[default]
    All,
    /// Metadata only. Data is handed out uncached.
    Metadata,
    /// None. All blocks are handed out uncached.
    None,
}

/// Owners that can be open at once.
pub(crate) const MAX_OWNERS: usize = if cfg!(forebay_model) { 4 } else { 4096 };

const FREE: u8 = 0;
const CLOSING: u8 = 1;
const ALL: u8 = 2;
const METADATA: u8 = 3;
const NOTHING: u8 = 4;

pub(crate) struct Owners {
    modes: Box<[AtomicU8]>,
    /// Where the search for a free number begins. Numbers are reused late, so that an insert that
    /// waited for capacity while its owner was closed does not find the number open for another
    /// owner.
    next: AtomicUsize,
}

/// Whether an owner permits a block to be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Yes,
    ByOwner,
    Closed,
}

impl Owners {
    pub(crate) fn new() -> Self {
        let modes: Box<[AtomicU8]> = (0..MAX_OWNERS).map(|_| AtomicU8::new(FREE)).collect();
        modes[OwnerId::NONE.0 as usize].store(ALL, Ordering::Relaxed);
        Self { modes, next: AtomicUsize::new(0) }
    }

    pub(crate) fn permit(&self, owner: OwnerId, class: Class) -> Permit {
        let Some(mode) = self.modes.get(owner.0 as usize) else { return Permit::Closed };
        match (mode.load(Ordering::Acquire), class) {
            (ALL, _) | (METADATA, Class::Metadata) => Permit::Yes,
            (METADATA | NOTHING, _) => Permit::ByOwner,
            _ => Permit::Closed,
        }
    }

    /// Opens an owner. No key in the cache has its number.
    pub(crate) fn open(&self, caching: OwnerCaching) -> Option<OwnerId> {
        let mode = mode_of(caching);
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let start = self.next.load(Ordering::Relaxed);
        let free =
            |i: &usize| self.modes[*i].compare_exchange(FREE, mode, order.0, order.1).is_ok();
        let number = (start..MAX_OWNERS).chain(0..start).find(free)?;
        self.next.store((number + 1) % MAX_OWNERS, Ordering::Relaxed);
        Some(OwnerId(number as u16))
    }

    /// Sets which blocks are cached from now on. False if the owner is not open.
    pub(crate) fn set(&self, owner: OwnerId, caching: OwnerCaching) -> bool {
        self.change(owner, mode_of(caching))
    }

    /// Permits no inserts from now on. False if the owner is not open.
    pub(crate) fn begin_close(&self, owner: OwnerId) -> bool {
        self.change(owner, CLOSING)
    }

    /// Changes the mode of an open owner; false if it is not open.
    fn change(&self, owner: OwnerId, mode: u8) -> bool {
        let Some(cell) = self.modes.get(owner.0 as usize) else { return false };
        let mut now = cell.load(Ordering::Acquire);
        while now >= ALL {
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match cell.compare_exchange(now, mode, order.0, order.1) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Makes the number available again.
    pub(crate) fn end_close(&self, owner: OwnerId) {
        self.modes[owner.0 as usize].store(FREE, Ordering::Release);
    }
}

fn mode_of(caching: OwnerCaching) -> u8 {
    match caching {
        OwnerCaching::All => ALL,
        OwnerCaching::Metadata => METADATA,
        OwnerCaching::None => NOTHING,
    }
}
