//! One simulation: a policy by its name, a trace, and a capacity.

use std::fmt;

use forebay_cache::{Attributes, BuildError, Refusal};

use super::policies::arc::Arc;
use super::policies::car::Car;
use super::policies::clock::Clock;
use super::policies::fifo::Fifo;
use super::policies::forebay::Forebay;
use super::policies::lfu::Lfu;
use super::policies::lirs::Lirs;
use super::policies::lru::Lru;
use super::policies::s3_fifo::S3Fifo;
use super::policies::sieve::Sieve;
use super::policies::two_q::TwoQ;
use super::policies::w_tiny_lfu::WTinyLfu;
use super::policies::{Policy, opt};
use super::trace::Trace;

/// A policy that can be simulated.
#[derive(Clone, Copy)]
pub struct NamedPolicy {
    /// Its name on the command line and in results.
    pub name: &'static str,
    run: fn(&Trace, usize, u64) -> Result<u64, SimError>,
}

impl fmt::Debug for NamedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Forebay's cache, the textbook policies, and the optimum.
pub const POLICIES: &[NamedPolicy] = &[
    NamedPolicy { name: "forebay", run: replay_forebay },
    NamedPolicy { name: "fifo", run: replay::<Fifo> },
    NamedPolicy { name: "lru", run: replay::<Lru> },
    NamedPolicy { name: "clock", run: replay::<Clock> },
    NamedPolicy { name: "sieve", run: replay::<Sieve> },
    NamedPolicy { name: "2q", run: replay::<TwoQ> },
    NamedPolicy { name: "arc", run: replay::<Arc> },
    NamedPolicy { name: "car", run: replay::<Car> },
    NamedPolicy { name: "s3-fifo", run: replay::<S3Fifo> },
    NamedPolicy { name: "lirs", run: replay::<Lirs> },
    NamedPolicy { name: "lfu", run: replay::<Lfu> },
    NamedPolicy { name: "w-tinylfu", run: replay::<WTinyLfu> },
    NamedPolicy {
        name: "opt",
        run: |trace, capacity, _| Ok(opt::hits(trace.accesses(), trace.unique(), capacity)),
    },
];

/// The result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Accesses that hit.
    pub hits: u64,
    /// All accesses.
    pub accesses: u64,
}

impl Outcome {
    /// Hits over all accesses, including those of the empty cache.
    pub fn hit_ratio(self) -> f64 {
        self.hits as f64 / (self.accesses as f64).max(1.0)
    }
}

/// The real cache could not be built, or refused an entry.
#[derive(Debug)]
pub enum SimError {
    /// It could not be built.
    Build(BuildError),
    /// It refused an entry.
    Refused(Refusal),
    /// It did not load an entry, for this reason.
    NotLoaded(String),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => write!(f, "cannot build the cache to simulate: {error}"),
            Self::Refused(reason) => write!(f, "the cache refused an entry: {reason}"),
            Self::NotLoaded(reason) => write!(f, "the cache did not load an entry: {reason}"),
        }
    }
}

impl std::error::Error for SimError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Build(error) => Some(error),
            Self::Refused(_) | Self::NotLoaded(_) => None,
        }
    }
}

impl NamedPolicy {
    /// The policy named `name`.
    pub fn named(name: &str) -> Option<Self> {
        POLICIES.iter().copied().find(|policy| policy.name == name)
    }

    /// Replays a trace into an empty cache. `seed` is for policies that use randomness.
    ///
    /// # Errors
    /// If there is no memory for the real cache.
    pub fn run(self, trace: &Trace, capacity: usize, seed: u64) -> Result<Outcome, SimError> {
        // A larger capacity than the number of keys changes nothing, but some policies allocate for
        // it.
        let capacity = capacity.min(trace.unique()).max(1);
        let hits = (self.run)(trace, capacity, seed)?;
        Ok(Outcome { hits, accesses: trace.accesses().len() as u64 })
    }
}

fn replay<P: Policy>(trace: &Trace, capacity: usize, _seed: u64) -> Result<u64, SimError> {
    let mut policy = P::new(capacity, trace.unique());
    Ok(trace.accesses().iter().map(|key| u64::from(policy.access(*key))).sum())
}

fn replay_forebay(trace: &Trace, capacity: usize, seed: u64) -> Result<u64, SimError> {
    let mut cache = Forebay::new(capacity, seed).map_err(SimError::Build)?;
    let mut hits = 0;
    for key in trace.accesses() {
        let metadata = trace.is_metadata(*key);
        let attributes = if metadata { Attributes::METADATA } else { Attributes::DATA };
        let hit = cache.access(u64::from(*key), attributes).map_err(SimError::Refused)?;
        hits += u64::from(hit);
    }
    Ok(hits)
}
