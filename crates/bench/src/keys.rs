//! Streams of uniform or Zipf-distributed keys, cheap compared with the measured operations.
//!
//! Uniform keys come from a xorshift generator. Zipf keys are drawn in advance into one long
//! sequence, which all threads walk from different offsets. A permutation scatters ranks over the
//! key space, so popular keys are not neighbours.

use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand_distr::{Distribution as _, Zipf};

/// Exponent of the Zipf distribution, as usual in cache benchmarks.
const ZIPF_EXPONENT: f64 = 0.99;
/// Length of the shared sequence per key, and its bounds. A short sequence would be a loop that a
/// policy can learn. This one is longer than a measurement walks.
const DRAWS_PER_KEY: usize = 256;
const MIN_DRAWS: usize = 1 << 16;
const MAX_DRAWS: usize = 1 << 26;

/// A small generator for one thread (xorshift64*).
#[derive(Clone)]
pub(crate) struct XorShift(u64);

impl XorShift {
    /// A generator whose stream depends only on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(scramble(seed) | 1)
    }

    /// The next 64 bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        let mut x = self.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `n`, by the high half of a product.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// A bijective mix of 64 bits (SplitMix64's finaliser).
#[inline]
pub(crate) fn scramble(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Distribution {
    /// All keys are equally popular.
    Uniform,
    /// Few keys are very popular.
    Zipf,
}

impl Distribution {
    /// Weights of the keys by rank, the most popular first.
    pub(crate) fn weights(self, keys: usize) -> Vec<f64> {
        match self {
            Distribution::Uniform => vec![1.0; keys],
            Distribution::Zipf => {
                (1..=keys).map(|rank| (rank as f64).powf(-ZIPF_EXPONENT)).collect()
            }
        }
    }

    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipf => "zipf",
        }
    }
}

/// Keys below a bound with a distribution, shared by the threads of a measurement.
#[derive(Clone)]
pub(crate) struct KeySpace {
    keys: u64,
    sequence: Option<Arc<[u32]>>,
}

impl KeySpace {
    /// Keys `0..keys`; the same seed gives the same load.
    pub(crate) fn new(distribution: Distribution, keys: u64, seed: u64) -> Self {
        assert!(keys > 0 && keys <= u64::from(u32::MAX), "1 to 2^32-1 keys");
        let sequence = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf => Some(zipf_sequence(keys as usize, seed)),
        };
        Self { keys, sequence }
    }

    /// The number of keys.
    pub(crate) fn key_count(&self) -> u64 {
        self.keys
    }

    /// The stream of one of `threads` threads.
    pub(crate) fn stream(&self, thread: usize, threads: usize, seed: u64) -> KeyStream {
        self.stream_after(thread, threads, seed, 0)
    }

    /// The same stream after `walked` keys. Uniform keys continue at another point.
    pub(crate) fn stream_after(
        &self,
        thread: usize,
        threads: usize,
        seed: u64,
        walked: u64,
    ) -> KeyStream {
        let place =
            |s: &Arc<[u32]>| (s.len() / threads.max(1) * thread + walked as usize) % s.len();
        KeyStream {
            keys: self.keys,
            rng: XorShift::new(seed ^ scramble((thread as u64 + 1) ^ (walked << 16))),
            at: self.sequence.as_ref().map_or(0, place),
            sequence: self.sequence.clone(),
        }
    }
}

/// One thread's keys.
pub(crate) struct KeyStream {
    keys: u64,
    rng: XorShift,
    sequence: Option<Arc<[u32]>>,
    at: usize,
}

impl KeyStream {
    /// The next key.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        match &self.sequence {
            None => self.rng.below(self.keys),
            Some(sequence) => {
                let key = sequence[self.at];
                self.at += 1;
                if self.at == sequence.len() {
                    self.at = 0;
                }
                u64::from(key)
            }
        }
    }

    /// The thread's generator, for other random numbers.
    #[inline]
    pub(crate) fn rng(&mut self) -> &mut XorShift {
        &mut self.rng
    }
}

fn zipf_sequence(keys: usize, seed: u64) -> Arc<[u32]> {
    let zipf =
        Zipf::new(keys as f64, ZIPF_EXPONENT).expect("at least one key, a positive exponent");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut scattered: Vec<u32> = (0..keys as u32).collect();
    scattered.shuffle(&mut rng);
    let draws = (keys * DRAWS_PER_KEY).clamp(MIN_DRAWS, MAX_DRAWS);
    // Ranks are counted from one.
    (0..draws).map(|_| scattered[zipf.sample(&mut rng) as usize - 1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_frequencies_follow_the_law() {
        const KEYS: usize = 1000;
        let sequence = zipf_sequence(KEYS, 7);
        assert_eq!(sequence.len(), KEYS * DRAWS_PER_KEY);
        let mut counts = vec![0u64; KEYS];
        for key in sequence.iter() {
            counts[*key as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let total: f64 = Distribution::Zipf.weights(KEYS).iter().sum();
        for rank in [1usize, 2, 10] {
            let expected = (rank as f64).powf(-ZIPF_EXPONENT) / total * sequence.len() as f64;
            let found = counts[rank - 1] as f64;
            assert!((found / expected - 1.0).abs() < 0.05, "rank {rank}: {found} for {expected}");
        }
    }

    #[test]
    fn uniform_keys_cover_the_space() {
        let space = KeySpace::new(Distribution::Uniform, 16, 1);
        let mut stream = space.stream(0, 1, 1);
        let mut seen = [0u32; 16];
        for _ in 0..16_000 {
            seen[stream.next() as usize] += 1;
        }
        assert!(seen.iter().all(|n| (700..1300).contains(n)), "{seen:?}");
    }

    #[test]
    fn threads_start_apart_and_repeatably() {
        let space = KeySpace::new(Distribution::Zipf, 1000, 1);
        let take = |thread| -> Vec<u64> {
            let mut stream = space.stream(thread, 4, 9);
            (0..32).map(|_| stream.next()).collect()
        };
        assert_eq!(take(0), take(0));
        assert_ne!(take(0), take(1));
        let mut whole = space.stream(2, 4, 9);
        let walked = (0..5).map(|_| whole.next()).count();
        assert_eq!(space.stream_after(2, 4, 9, walked as u64).next(), whole.next());
    }
}
