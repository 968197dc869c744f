//! Synthetic traces from a seed. Each is one kind of load, which suits some policies and defeats
//! others.
//!
//! Their sizes are relative to a cache of [`CAPACITY`] entries ("the cache" below). They can be
//! simulated with any capacity.
//!
//! A trace is identified by its name and seed, and published figures refer to it. So the sampler of
//! skewed keys is here and not in a library whose sequences may change with a version.

use std::collections::VecDeque;

use forebay_base::rng::SmallRng;

use super::trace::{Trace, TraceBuilder};

/// Entries of the cache that the traces are made for.
pub const CAPACITY: usize = 4000;

/// A kind of load.
pub struct Synthetic {
    /// Its name.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    make: fn(&mut Generator),
}

/// All kinds.
pub const SYNTHETIC: &[Synthetic] = &[
    Synthetic {
        name: "zipf-0.6",
        about: "20 caches of keys, skewed by an exponent of 0.6",
        make: |generator| zipf(generator, 0.6),
    },
    Synthetic {
        name: "zipf-0.8",
        about: "the same with 0.8",
        make: |generator| zipf(generator, 0.8),
    },
    Synthetic {
        name: "zipf-1.0",
        about: "the same with 1.0",
        make: |generator| zipf(generator, 1.0),
    },
    Synthetic {
        name: "zipf-1.2",
        about: "the same with 1.2",
        make: |generator| zipf(generator, 1.2),
    },
    Synthetic {
        name: "loop-1.1",
        about: "a loop over 1.1 caches of keys",
        make: |generator| loop_over(generator, 1.1),
    },
    Synthetic {
        name: "loop-2",
        about: "the same with 2 caches",
        make: |generator| loop_over(generator, 2.0),
    },
    Synthetic {
        name: "scan-zipf",
        about: "a skewed set of 5 caches, interrupted by scans of 2 caches of keys seen once",
        make: scans,
    },
    Synthetic {
        name: "phases",
        about: "skewed, looping and recent keys in turns, new keys each time",
        make: phases,
    },
    Synthetic {
        name: "correlated",
        about: "keys used three times in a short time and never again, and a skewed set",
        make: correlated,
    },
    Synthetic {
        name: "metadata-stream",
        about: "a loop of 0.4 caches of metadata against a stream of both classes seen once (R5)",
        make: metadata_against_a_stream,
    },
];

impl Synthetic {
    /// The kind named `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        SYNTHETIC.iter().find(|synthetic| synthetic.name == name)
    }

    /// Generates the trace of a seed.
    pub fn trace(&self, seed: u64) -> Trace {
        let mut generator = Generator {
            trace: TraceBuilder::new(),
            rng: SmallRng::from_seed(seed),
            fresh: FIRST_FRESH,
        };
        (self.make)(&mut generator);
        generator.trace.build(self.name)
    }
}

const C: u64 = CAPACITY as u64;
/// First key that is outside all key sets.
const FIRST_FRESH: u64 = 1 << 40;
/// Accesses of most kinds.
const LENGTH: u64 = 500_000;

/// A trace that is being generated.
struct Generator {
    trace: TraceBuilder,
    rng: SmallRng,
    fresh: u64,
}

impl Generator {
    fn data(&mut self, key: u64) {
        self.trace.push_with_class(key, false);
    }

    /// A key that was never used.
    fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh - 1
    }

    /// Reserves `keys` unused keys and returns the first.
    fn set(&mut self, keys: u64) -> u64 {
        self.fresh += keys;
        self.fresh - keys
    }
}

/// Zipf-distributed ranks, by inversion of the cumulative sums.
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(ranks: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=ranks).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self { sums: sums.collect() }
    }

    fn draw(&self, rng: &mut SmallRng) -> u64 {
        let at = rng.next_f64() * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1) as u64
    }
}

fn zipf(generator: &mut Generator, exponent: f64) {
    let zipf = Zipf::new(20 * C, exponent);
    for _ in 0..LENGTH {
        let key = zipf.draw(&mut generator.rng);
        generator.data(key);
    }
}

fn loop_over(generator: &mut Generator, caches: f64) {
    const ROUNDS: u64 = 50;
    let keys = (C as f64 * caches) as u64;
    for access in 0..ROUNDS * keys {
        generator.data(access % keys);
    }
}

fn scans(generator: &mut Generator) {
    const PERIOD: u64 = 5 * C;
    const SCAN: u64 = 2 * C;
    let zipf = Zipf::new(5 * C, 0.9);
    for access in 0..LENGTH {
        let scanning = access % PERIOD >= PERIOD - SCAN;
        let key = if scanning { generator.fresh() } else { zipf.draw(&mut generator.rng) };
        generator.data(key);
    }
}

fn phases(generator: &mut Generator) {
    const PHASE: u64 = 15 * C;
    let (skewed, recent) = (Zipf::new(5 * C, 0.9), Zipf::new(C, 0.5));
    for phase in 0..9 {
        let set = generator.set(5 * C);
        for access in 0..PHASE {
            let key = match phase % 3 {
                0 => set + skewed.draw(&mut generator.rng),
                1 => set + access % (C + C / 2),
                // A window that advances by a key every four accesses; newer keys are more popular.
                _ => set + (C + access / 4).saturating_sub(recent.draw(&mut generator.rng)),
            };
            generator.data(key);
        }
    }
}

fn correlated(generator: &mut Generator) {
    let zipf = Zipf::new(4 * C, 0.8);
    // Future references, by the access at which they are due.
    let (mut soon, mut later) = (VecDeque::new(), VecDeque::new());
    let mut access = 0;
    while access < LENGTH {
        let due = |queue: &mut VecDeque<(u64, u64)>| {
            let ripe = queue.front().is_some_and(|(due, _)| *due <= access);
            if ripe { queue.pop_front().map(|(_, key)| key) } else { None }
        };
        let key = if let Some(key) = due(&mut soon).or_else(|| due(&mut later)) {
            key
        } else if generator.rng.below(2) == 0 {
            zipf.draw(&mut generator.rng)
        } else {
            let key = generator.fresh();
            soon.push_back((access + 2, key));
            later.push_back((access + C / 40, key));
            key
        };
        generator.data(key);
        access += 1;
    }
}

fn metadata_against_a_stream(generator: &mut Generator) {
    const LOOP: u64 = C * 2 / 5;
    const STREAM_AN_ACCESS: u64 = 4;
    for access in 0..LENGTH / (1 + STREAM_AN_ACCESS) {
        generator.trace.push_with_class(access % LOOP, true);
        for block in 0..STREAM_AN_ACCESS {
            let key = generator.fresh();
            generator.trace.push_with_class(key, block % 2 == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{C, SYNTHETIC, Synthetic};

    #[test]
    fn a_seed_gives_one_trace() {
        for synthetic in SYNTHETIC {
            let trace = synthetic.trace(1);
            assert!(trace == synthetic.trace(1), "{}", synthetic.name);
            assert!(trace.accesses().len() >= 200_000 && trace.unique() > C as usize);
            let differs = trace.accesses() != synthetic.trace(2).accesses();
            let drawn = !synthetic.name.starts_with("loop") && synthetic.name != "metadata-stream";
            assert_eq!(differs, drawn, "{}", synthetic.name);
        }
    }

    #[test]
    fn they_are_as_described() {
        let trace = |name| Synthetic::named(name).expect("a kind of load").trace(7);
        let uses = |name| {
            let trace = trace(name);
            let mut uses = vec![0u64; trace.unique()];
            trace.accesses().iter().for_each(|key| uses[*key as usize] += 1);
            (trace, uses)
        };
        let (looped, each) = uses("loop-1.1");
        assert_eq!(looped.unique() as u64, C * 11 / 10);
        assert!(each.iter().all(|n| *n == 50));
        // The most popular key has rank one. Its share is the inverse of the sum over all ranks.
        let (zipf, each) = uses("zipf-1.0");
        let sum: f64 = (1..=20 * C).map(|rank| 1.0 / rank as f64).sum();
        let share = *each.iter().max().unwrap() as f64 / zipf.accesses().len() as f64;
        assert!((share * sum - 1.0).abs() < 0.05, "{share}");
        let (_, each) = uses("correlated");
        let thrice = each.iter().filter(|n| **n == 3).count();
        assert!(thrice > each.len() / 2, "{thrice} of {}", each.len());
        let (trace, each) = uses("metadata-stream");
        let metadata = |key: &usize| trace.is_metadata(*key as u32);
        assert_eq!(
            (0..each.len()).filter(|k| each[*k] > 1).filter(metadata).count() as u64,
            C * 2 / 5
        );
        assert!((0..each.len()).filter(|k| !metadata(k)).all(|k| each[k] == 1));
    }
}
