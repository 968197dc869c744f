//! How many of the transport's threads may wait at a time.

use forebay_base::sync::atomic::{AtomicUsize, Ordering};

/// Counts threads of the transport that wait for something while they serve a request.
pub(super) struct InPlace {
    waiting: AtomicUsize,
    most: usize,
}

/// The right to wait. Dropping it gives it back.
pub(super) struct Place<'a>(&'a InPlace);

impl InPlace {
    /// At most half of so many threads wait: a transport of one thread never does.
    pub(super) fn among(threads: usize) -> Self {
        Self { waiting: AtomicUsize::new(0), most: threads / 2 }
    }

    /// The right to wait, unless as many wait as may.
    pub(super) fn enter(&self) -> Option<Place<'_>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.most {
            return Some(Place(self));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_threads_may_wait() {
        for (threads, most) in [(1, 0), (2, 1), (3, 1), (8, 4)] {
            let waits = InPlace::among(threads);
            let mut places: Vec<_> = std::iter::from_fn(|| waits.enter()).collect();
            assert_eq!(places.len(), most);
            if places.pop().is_some() {
                assert!(waits.enter().is_some(), "a place was given back");
            }
        }
    }
}
