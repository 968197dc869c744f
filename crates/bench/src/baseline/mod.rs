//! Baselines: simple implementations of the systems in the reports.
//!
//! R1 before and after: an ARC that moves list entries on hits, under one list lock or many. R2
//! before and after: one or several I/O roots that keep their requests in a list under a lock.

mod locked_arc;
mod locked_roots;
mod slab_list;

pub(crate) use locked_arc::LockedArc;
pub(crate) use locked_roots::LockedRoots;

/// The hasher of all tables of the bench and of all peers.
pub(crate) type FastHash = hashbrown::DefaultHashBuilder;
