//! Turns of several inodes at once.
//!
//! Whoever changes more than one inode takes their turns in the order of their numbers, whatever they are to each other:
//! so nobody waits in a circle. The thread has its transaction already; what holds turns begins none.

use forebay_base::sync::MutexGuard;

use crate::error::Result;
use crate::inode::Inode;

/// Inodes that one operation changes, at most: two directories and what two names lead to.
const LOCKS_MAX: usize = 4;

/// Turns of up to [`LOCKS_MAX`] inodes.
pub(crate) struct InodeLocks<'a> {
    _guards: [Option<MutexGuard<'a, ()>>; LOCKS_MAX],
}

impl<'a> InodeLocks<'a> {
    /// Waits for the turns of all of them; the same one may come twice.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) if the thread must not wait, and somebody has one of them.
    pub(crate) fn of<const N: usize>(inodes: [&'a Inode; N]) -> Result<Self> {
        const { assert!(N <= LOCKS_MAX) };
        let mut sorted = inodes;
        sorted.sort_unstable_by_key(|inode| inode.number);
        let mut guards = [const { None }; LOCKS_MAX];
        let mut last = None;
        for (guard, inode) in guards.iter_mut().zip(sorted) {
            if last != Some(inode.number) {
                *guard = Some(inode.lock()?);
            }
            last = Some(inode.number);
        }
        Ok(Self { _guards: guards })
    }
}
