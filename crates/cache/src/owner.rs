//! Owners of key ranges: what of theirs is cached, and leaving without a trace.
//!
//! An owner is a number that keys carry. Its mode is one atomic byte, read on every insert, never on a
//! hit. Closing an owner sets the mode to closing, passes the index's barrier (so that every insert
//! that saw the old mode has finished), and then removes what is there.

use forebay_base::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::attributes::Class;
use crate::key::OwnerId;

/// What of an owner's blocks is cached, as R5's machine limited it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerCaching {
    /// Data and metadata.
    #[default]
    All,
    /// Metadata only: data is handed through.
    Metadata,
    /// Nothing: every block is handed through.
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
    /// Where the search for a free number begins: an insert that was already waiting for room when its
    /// owner was closed must not find the number open again, for somebody else.
    next: AtomicUsize,
}

/// Whether a block may be cached, by its owner's wish.
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

    /// A number that no key in the cache carries.
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

    /// Changes what is cached from now on. False if the owner is not open.
    pub(crate) fn set(&self, owner: OwnerId, caching: OwnerCaching) -> bool {
        self.change(owner, mode_of(caching))
    }

    /// No insert is permitted from now on. False if the owner is not open.
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

    /// The number may be used again.
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
