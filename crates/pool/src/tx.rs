//! Transactions: changes that become durable together.

use std::cell::Cell;

use crate::error::{Error, ErrorKind, Result};
use crate::reservation::Reservation;
use crate::txg::Hold;
use crate::wait::Wait;

/// A transaction: all changes made with it become durable together, with its transaction group.
///
/// It begins with [`Pool::begin`](crate::Pool::begin) and ends when it is dropped. There is no
/// rollback: a change is made when its call returns.
///
/// A txg cannot be committed while a transaction of it lives. Keep transactions short, and do not
/// begin a second one on a thread that has one.
///
/// A transaction has the mode in which it began. In non-blocking mode, a change that would wait
/// fails with [`ErrorKind::WouldBlock`] and has changed nothing. After a first change, the others
/// must not stop half-way: see [`allow_wait`](Self::allow_wait).
pub struct Transaction<'p> {
    tx: Tx,
    hold: Hold<'p>,
}

/// Membership of changes in a txg: of a [`Transaction`], or of the sync, which works in a txg that
/// nobody else can change.
pub(crate) struct Tx {
    txg: u64,
    /// Upper bound of the bytes that the sync will write because of the changes.
    dirty_bytes: Cell<u64>,
    /// Those of them that are for indirect blocks.
    pointer_bytes: Cell<u64>,
    /// Space reserved for these bytes; `None` means without limit.
    reservation: Option<Reservation>,
    wait: Cell<Wait>,
}

impl<'p> Transaction<'p> {
    /// A transaction with this reservation, or without limit.
    pub(crate) fn new(hold: Hold<'p>, reservation: Option<Reservation>, wait: Wait) -> Self {
        let tx = Tx { reservation, wait: Cell::new(wait), ..Tx::syncing(hold.txg()) };
        Self { tx, hold }
    }

    /// The transaction group of the transaction.
    pub fn txg(&self) -> u64 {
        self.tx.txg
    }

    /// Whether changes with this transaction may wait.
    #[inline]
    pub fn wait(&self) -> Wait {
        self.tx.wait()
    }

    /// From now on, changes with this transaction may wait. For operations of several changes: once
    /// the first is made, the others must not fail with [`ErrorKind::WouldBlock`].
    pub fn allow_wait(&self) {
        self.tx.wait.set(Wait::Allowed);
    }

    pub(crate) fn tx(&self) -> &Tx {
        &self.tx
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let pointer_bytes = self.tx.pointer_bytes.get();
        self.hold.dirty(self.tx.dirty_bytes.get() - pointer_bytes);
        self.hold.dirty_pointers(pointer_bytes);
    }
}

impl Tx {
    /// For changes by the sync, in the txg that is syncing.
    pub(crate) fn syncing(txg: u64) -> Self {
        let (dirty_bytes, pointer_bytes) = (Cell::new(0), Cell::new(0));
        Self { txg, dirty_bytes, pointer_bytes, reservation: None, wait: Cell::new(Wait::Allowed) }
    }

    pub(crate) fn txg(&self) -> u64 {
        self.txg
    }

    /// Whether changes with it may wait.
    #[inline]
    pub(crate) fn wait(&self) -> Wait {
        self.wait.get()
    }

    /// Bytes counted so far.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.get()
    }

    /// Whether so many bytes more are reserved, or could be. Reserves nothing.
    pub(crate) fn has_spare(&self, bytes: u64) -> bool {
        let sum = self.dirty_bytes.get().saturating_add(bytes);
        self.reservation.as_ref().is_none_or(|reservation| reservation.could_cover(sum))
    }

    /// Counts bytes that the sync must write: all copies, and the indirect blocks above them.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there may not be enough free space.
    pub(crate) fn dirty(&self, bytes: u64) -> Result<()> {
        let sum = self.dirty_bytes.get().saturating_add(bytes);
        if self.reservation.as_ref().is_some_and(|reservation| !reservation.covers(sum)) {
            let text =
                "not enough free space for this transaction: make it smaller, or delete something";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.dirty_bytes.set(sum);
        Ok(())
    }

    /// As [`dirty`](Self::dirty), for a block of so many bytes and indirect blocks.
    ///
    /// # Errors
    /// As [`dirty`](Self::dirty).
    pub(crate) fn dirty_with_pointers(&self, bytes: u64, pointer_bytes: u64) -> Result<()> {
        self.dirty(bytes.saturating_add(pointer_bytes))?;
        self.pointer_bytes.set(self.pointer_bytes.get().saturating_add(pointer_bytes));
        Ok(())
    }
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transaction of txg {}", self.tx.txg)
    }
}
