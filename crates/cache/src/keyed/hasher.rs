//! The default hasher of keys.

use std::fmt;
use std::hash::BuildHasher;

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};
use forebay_base::rng::seed_from_system;

/// The default hasher of a [`KeyedCache`](crate::KeyedCache): fast, and seeded at random for each
/// cache, so that nobody can prepare keys of equal hashes.
#[derive(Clone)]
pub struct SeededState(SeedableRandomState);

impl Default for SeededState {
    fn default() -> Self {
        let shared = SharedSeed::global_random();
        Self(SeedableRandomState::with_seed(seed_from_system(), shared))
    }
}

impl BuildHasher for SeededState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

impl fmt::Debug for SeededState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededState")
    }
}
