//! The share of memory that filters and buffer pages of directories take.
//!
//! They help only while they are in memory: a create that reads a filter block and a page instead
//! of a leaf loses. So a directory takes a share before it uses them, as large as all its filters
//! and pages, and keeps it while it is open. A directory that gets none works as one without.
//!
//! # Locking
//!
//! None: the sum is an atomic number.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// The sum of a pool's shares, in bytes.
#[derive(Clone, Default)]
pub(crate) struct AidMemory(Arc<AtomicU64>);

/// A share. It is given back when dropped.
pub(crate) struct AidShare {
    all: AidMemory,
    bytes: u64,
}

impl AidMemory {
    /// Takes a share, unless the sum would exceed `max_bytes`.
    pub(crate) fn take(&self, bytes: u64, max_bytes: u64) -> Option<AidShare> {
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        let mut known = self.0.load(Ordering::Relaxed);
        loop {
            let sum = known.checked_add(bytes).filter(|sum| *sum <= max_bytes)?;
            match self.0.compare_exchange(known, sum, order.0, order.1) {
                Ok(_) => return Some(AidShare { all: self.clone(), bytes }),
                Err(found) => known = found,
            }
        }
    }

    /// The sum.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl AidShare {
    /// Follows a directory that grows or shrinks. It keeps its share, however large that is.
    pub(super) fn resize(&mut self, bytes: u64) {
        // Wraps around: the sum never becomes less than this share.
        self.all.0.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for AidShare {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::AidMemory;

    #[test]
    fn shares_are_bounded_and_given_back() {
        let all = AidMemory::default();
        let mut one = all.take(60, 100).expect("a share");
        assert!(all.take(41, 100).is_none() && all.take(u64::MAX, 100).is_none());
        let two = all.take(40, 100).expect("a share");
        one.resize(80);
        assert_eq!(all.bytes(), 120);
        drop(two);
        one.resize(10);
        assert_eq!(all.bytes(), 10);
        drop(one);
        assert_eq!(all.bytes(), 0);
    }
}
