//! The running mean of the weights of loaded blocks: what a load reserves if its caller does not
//! know the weight.
//!
//! Locking: none. Concurrent updates may lose one: it is an estimate.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// Assumed before any block was loaded, if weights are bytes.
pub(crate) const INITIAL_BYTES: u64 = 256;
/// A new weight counts as one part in so many.
const PARTS: u64 = 8;

pub(crate) struct MeanWeight(AtomicU64);

impl MeanWeight {
    pub(crate) fn new(initial: u64) -> Self {
        Self(AtomicU64::new(initial))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a block of that weight. Blocks of one weight do not write to it.
    pub(crate) fn note(&self, weight: u64) {
        let mean = self.get();
        // Rounded towards the weight, so that it is reached.
        let step = mean.abs_diff(weight).div_ceil(PARTS);
        if step > 0 {
            let mean = if weight > mean { mean + step } else { mean - step };
            self.0.store(mean, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::MeanWeight;

    #[test]
    fn it_follows_the_weights() {
        let mean = MeanWeight::new(256);
        assert_eq!(mean.get(), 256);
        for weight in [1, 4096, 0, u64::MAX, 7] {
            (0..400).for_each(|_| mean.note(weight));
            assert_eq!(mean.get(), weight);
        }
        let all = [100, 300].into_iter().cycle().take(400);
        all.for_each(|weight| mean.note(weight));
        assert!((150..250).contains(&mean.get()), "{}", mean.get());
    }
}
