//! Transactions: what changes together.

use std::cell::Cell;

use crate::txg::Hold;

/// A transaction: all changes made with it become durable together, with its transaction group. It begins with
/// [`Pool::begin`](crate::Pool::begin) and ends when it is dropped. There is no way back: a change is made when
/// its call returns.
///
/// A group cannot be committed while a transaction of it lives: keep them short, and begin no second one on a thread
/// that has one.
pub struct Transaction<'p> {
    tx: Tx,
    hold: Hold<'p>,
}

/// A place in a transaction group, for all that changes in it: of a [`Transaction`], or of the sync itself, which
/// works in a group that nobody else can change any more.
pub(crate) struct Tx {
    txg: u64,
    /// Memory that waits for the group's sync since this began.
    dirty_bytes: Cell<u64>,
}

impl<'p> Transaction<'p> {
    pub(crate) fn new(hold: Hold<'p>) -> Self {
        Self { tx: Tx::syncing(hold.txg()), hold }
    }

    /// Number of its transaction group.
    pub fn txg(&self) -> u64 {
        self.tx.txg
    }

    pub(crate) fn tx(&self) -> &Tx {
        &self.tx
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.hold.dirty(self.tx.dirty_bytes.get());
    }
}

impl Tx {
    /// A place in the group that is syncing.
    pub(crate) fn syncing(txg: u64) -> Self {
        Self { txg, dirty_bytes: Cell::new(0) }
    }

    pub(crate) fn txg(&self) -> u64 {
        self.txg
    }

    /// Counts memory that waits for the group's sync.
    pub(crate) fn dirty(&self, bytes: u64) {
        self.dirty_bytes.set(self.dirty_bytes.get() + bytes);
    }
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transaction of group {}", self.tx.txg)
    }
}
