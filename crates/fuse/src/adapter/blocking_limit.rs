//! Limits how many threads of the transport may block at a time.

use forebay_base::sync::atomic::{AtomicUsize, Ordering};

/// Counts the transport's threads that block while they serve a request.
pub(super) struct BlockingLimit {
    in_use: AtomicUsize,
    limit: usize,
}

/// Permission to block. Dropping it returns it.
pub(super) struct BlockingPermit<'a>(&'a BlockingLimit);

impl BlockingLimit {
    /// Allows half of the threads to block. With one thread, none may.
    pub(super) fn for_threads(threads: usize) -> Self {
        Self { in_use: AtomicUsize::new(0), limit: threads / 2 }
    }

    /// Returns a permit, unless the limit is reached.
    pub(super) fn try_acquire(&self) -> Option<BlockingPermit<'_>> {
        if self.in_use.fetch_add(1, Ordering::Relaxed) < self.limit {
            return Some(BlockingPermit(self));
        }
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for BlockingPermit<'_> {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_threads_may_wait() {
        for (threads, allowed) in [(1, 0), (2, 1), (3, 1), (8, 4)] {
            let limit = BlockingLimit::for_threads(threads);
            let mut permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
            assert_eq!(permits.len(), allowed);
            if permits.pop().is_some() {
                assert!(limit.try_acquire().is_some(), "a place was given back");
            }
        }
    }
}
