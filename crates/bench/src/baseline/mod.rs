//! Our own stand-ins: caches that stand for what was before: textbook ARC and LRU as oracles of
//! the hit ratio, and an ARC that moves list entries on hits, under one list lock or
//! many (R1's "before" and "after"). And I/O roots that keep their requests in a list under a
//! lock, one of them or several (R2's "before" and "after").

mod locked_arc;
mod locked_roots;
mod slab_list;

pub(crate) use locked_arc::LockedArc;
pub(crate) use locked_roots::LockedRoots;

/// The hasher that every table of the bench and every peer uses.
pub(crate) type FastHash = hashbrown::DefaultHashBuilder;
