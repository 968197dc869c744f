//! All changes in order, and the states that a crash may leave.
//!
//! After a crash, a pool has the history up to the end of the newest durable transaction group
//! (txg). The intent log adds two things: all changes of existence, names and directories'
//! attributes up to its newest fsync, and the content and attributes of each other object up to the
//! object's own newest fsync. So a state is identified by a txg and the number of fsyncs in the
//! log.

mod allowed;

use std::collections::HashMap;

use crate::model::{Change, Key, Model};

/// A change, with its txg.
#[derive(Clone, Debug)]
pub struct TxgChange {
    /// The txg that contains it.
    pub txg: u64,
    /// The changed object.
    pub key: Key,
    /// The change.
    pub change: Change,
}

/// An fsync of one object.
#[derive(Clone, Copy, Debug)]
pub struct Fsync {
    /// Number of changes before it.
    pub changes: usize,
    /// The synced object.
    pub key: Key,
}

/// Progress at a moment: what may have begun, and what is durable.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgressSnapshot {
    /// Number of changes that may have begun.
    pub changes_begun: usize,
    /// Number of fsyncs that may have begun.
    pub fsyncs_begun: usize,
    /// Number of fsyncs that have returned.
    pub fsyncs_done: usize,
    /// The newest txg known to be durable.
    pub synced_txg: u64,
}

/// The history of a pool.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The first state, as of `base_txg`.
    pub base: Model,
    /// The txg of `base`.
    pub base_txg: u64,
    /// All changes, in order.
    pub changes: Vec<TxgChange>,
    /// All fsyncs, in order.
    pub fsyncs: Vec<Fsync>,
}

impl History {
    /// Number of changes of all groups up to `txg`. Their txgs never decrease.
    pub fn end_of(&self, txg: u64) -> usize {
        self.changes.partition_point(|done| done.txg <= txg)
    }

    /// The state after all groups up to `txg` and the first `fsyncs` fsyncs.
    pub fn state(&self, txg: u64, fsyncs: usize) -> Model {
        let fsyncs = &self.fsyncs[..fsyncs];
        let named = fsyncs.last().map_or(0, |fsync| fsync.changes);
        let synced: HashMap<Key, usize> =
            fsyncs.iter().map(|fsync| (fsync.key, fsync.changes)).collect();
        let end = self.end_of(txg);
        let mut model = self.base.clone();
        for (at, done) in self.changes.iter().enumerate().take(end.max(named)) {
            let content_end = synced.get(&done.key).copied().unwrap_or(0);
            if at < end || done.change.is_of_names() || at < content_end {
                model.apply(done.key, &done.change);
            }
        }
        model
    }

    /// Keys of all objects that ever existed. A key may repeat.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.base.entries.keys().copied().chain(self.changes.iter().map(|done| done.key))
    }
}
