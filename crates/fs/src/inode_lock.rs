//! Locking several inodes at once.
//!
//! An operation that changes more than one inode locks them in the order of their object numbers,
//! whatever their relation, so there is no deadlock. The thread already holds its transaction. A
//! thread that holds an inode lock never begins a transaction.

use forebay_base::sync::MutexGuard;
use forebay_pool::Transaction;

use crate::error::Result;
use crate::inode::Inode;

/// Largest number of inodes that one operation changes: two directories and two entries.
const LOCKS_MAX: usize = 4;

/// Holds up to [`LOCKS_MAX`] inode locks.
pub(crate) struct InodeLocks<'a> {
    _guards: [Option<MutexGuard<'a, ()>>; LOCKS_MAX],
}

impl<'a> InodeLocks<'a> {
    /// Locks all of them, within the thread's transaction. An inode may occur more than once.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) if the transaction may not wait, and another
    /// thread holds one of the locks.
    pub(crate) fn of<const N: usize>(tx: &Transaction<'_>, inodes: [&'a Inode; N]) -> Result<Self> {
        const { assert!(N <= LOCKS_MAX) };
        let mut sorted = inodes;
        sorted.sort_unstable_by_key(|inode| inode.number);
        let mut guards = [const { None }; LOCKS_MAX];
        let mut last = None;
        for (guard, inode) in guards.iter_mut().zip(sorted) {
            if last != Some(inode.number) {
                *guard = Some(inode.lock(tx)?);
            }
            last = Some(inode.number);
        }
        Ok(Self { _guards: guards })
    }
}
