//! All changes that were made, in order, and which state a crash may leave.
//!
//! What survives a crash is the beginning of the history up to the end of the newest durable transaction group, and, from the
//! intent log, of what comes after it: all changes of existence, names and directories' attributes up to the newest fsync
//! that the log has, and the content and attributes of each other object up to its own newest fsync among those. So a state has a name: the group, and how many of the
//! fsyncs the log has.

mod possible;

use std::collections::HashMap;

use crate::model::{Change, Key, Model};

/// A change, with its group.
#[derive(Clone, Debug)]
pub struct Done {
    /// The transaction group that it is in.
    pub txg: u64,
    /// What was changed.
    pub key: Key,
    /// How.
    pub change: Change,
}

/// An fsync.
#[derive(Clone, Copy, Debug)]
pub struct Fsync {
    /// Changes that were made before it.
    pub changes: usize,
    /// Of what.
    pub key: Key,
}

/// What is known at some moment: what of the work has begun, and what is durable.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Changes that may have begun.
    pub changes_begun: usize,
    /// Fsyncs that may have begun.
    pub fsyncs_begun: usize,
    /// Fsyncs that have returned.
    pub fsyncs_done: usize,
    /// This group is durable.
    pub synced_txg: u64,
}

/// All that was done.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What it began with, as of `base_txg`.
    pub base: Model,
    /// The group of that.
    pub base_txg: u64,
    /// All changes, in order.
    pub changes: Vec<Done>,
    /// All fsyncs, in order.
    pub fsyncs: Vec<Fsync>,
}

impl History {
    /// Changes of groups up to `txg`. Groups only grow.
    pub fn end_of(&self, txg: u64) -> usize {
        self.changes.partition_point(|done| done.txg <= txg)
    }

    /// The state with all of the groups up to `txg`, and what the first `fsyncs` fsyncs made durable.
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

    /// All names that objects ever had.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.base.entries.keys().copied().chain(self.changes.iter().map(|done| done.key))
    }
}
