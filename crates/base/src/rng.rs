//! Random numbers from a seed, so that a run can be repeated.
//!
//! [`SmallRng`] is xoshiro256++ 1.0 by Blackman and Vigna. SplitMix64 fills its state from the
//! seed, as the authors advise (<https://prng.di.unimi.it>). Only [`seed_from_system`] uses
//! randomness of the system.
//!
//! Invariant: a seed gives the same numbers on every machine and in later versions, because
//! recorded seeds of failing tests depend on it.
//!
//! It is not fit for secrets. Threads do not share a generator.

use std::hash::BuildHasher;

/// The next number of the SplitMix64 sequence whose state is `state`.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A small, fast generator (32 bytes of state, period 2^256 - 1).
#[derive(Clone, Debug)]
pub struct SmallRng {
    state: [u64; 4],
}

impl SmallRng {
    /// Creates the generator of `seed`.
    pub fn from_seed(mut seed: u64) -> Self {
        // The state is never all zero, from which xoshiro256++ does not leave: SplitMix64 returns
        // each number once per period.
        Self { state: std::array::from_fn(|_| split_mix(&mut seed)) }
    }

    /// A uniform number of 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A uniform number below `n`.
    ///
    /// # Panics
    ///
    /// If `n` is zero.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number is below zero");
        // Lemire, "Fast random integer generation in an interval" (2019): the high half of a
        // product. If the low half is below the remainder of 2^64 by `n`, draw again.
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            let rest = n.wrapping_neg() % n;
            while (product as u64) < rest {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// A uniform number of at least 0 and below 1, a multiple of 2^-53.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

/// A seed from the system. Not fit for secrets.
#[allow(clippy::disallowed_types, reason = "all other code takes a seed")]
pub fn seed_from_system() -> u64 {
    // The keys of a `RandomState` come from the system and differ per instance.
    std::collections::hash_map::RandomState::new().hash_one(0u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SmallRng, seed_from_system, split_mix};

    /// The first numbers of the C code of the authors.
    #[test]
    fn the_sequences_are_the_published_ones() {
        let mut seed = 1_234_567;
        let split: [u64; 5] = std::array::from_fn(|_| split_mix(&mut seed));
        assert_eq!(
            split,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
        let mut rng = SmallRng { state: [1, 2, 3, 4] };
        let numbers: [u64; 5] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(
            numbers,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386,
                9_228_616_714_210_784_205,
            ]
        );
    }

    #[test]
    fn below_is_uniform() {
        const FACES: usize = 6;
        const THROWS: u64 = 60_000;
        let mut rng = SmallRng::from_seed(1);
        let mut seen = [0u64; FACES];
        for _ in 0..THROWS {
            seen[rng.below(FACES as u64) as usize] += 1;
        }
        let expected = THROWS / FACES as u64;
        for count in seen {
            // Five standard deviations are 456.
            assert!(count.abs_diff(expected) < 456, "{seen:?}");
        }
    }

    #[test]
    #[should_panic(expected = "below zero")]
    fn nothing_is_below_zero() {
        SmallRng::from_seed(1).below(0);
    }

    #[test]
    fn system_seeds_differ() {
        assert_ne!(seed_from_system(), seed_from_system());
    }

    proptest! {
        #[test]
        fn numbers_are_within_their_bounds(seed in any::<u64>(), n in 1..=u64::MAX) {
            let mut rng = SmallRng::from_seed(seed);
            for _ in 0..50 {
                prop_assert!(rng.below(n) < n);
                let fraction = rng.next_f64();
                prop_assert!((0.0..1.0).contains(&fraction));
            }
        }

        #[test]
        fn fill_uses_the_numbers_in_order(seed in any::<u64>(), len in 0..40usize) {
            let mut bytes = vec![0; len];
            SmallRng::from_seed(seed).fill(&mut bytes);
            let mut rng = SmallRng::from_seed(seed);
            let numbers: Vec<u8> = (0..5).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            prop_assert_eq!(&bytes[..], &numbers[..len]);
        }
    }
}
