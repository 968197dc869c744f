//! One simulation: a policy by its name, on a trace, at a capacity.

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
pub struct Player {
    /// What it is called on the command line and in results.
    pub name: &'static str,
    run: fn(&Trace, usize, u64) -> Result<u64, Fault>,
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Ours, the textbook's, and the optimum.
pub const PLAYERS: &[Player] = &[
    Player { name: "forebay", run: play_forebay },
    Player { name: "fifo", run: play::<Fifo> },
    Player { name: "lru", run: play::<Lru> },
    Player { name: "clock", run: play::<Clock> },
    Player { name: "sieve", run: play::<Sieve> },
    Player { name: "2q", run: play::<TwoQ> },
    Player { name: "arc", run: play::<Arc> },
    Player { name: "car", run: play::<Car> },
    Player { name: "s3-fifo", run: play::<S3Fifo> },
    Player { name: "lirs", run: play::<Lirs> },
    Player { name: "lfu", run: play::<Lfu> },
    Player { name: "w-tinylfu", run: play::<WTinyLfu> },
    Player {
        name: "opt",
        run: |trace, capacity, _| Ok(opt::hits(trace.accesses(), trace.unique(), capacity)),
    },
];

/// What a simulation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Accesses that hit.
    pub hits: u64,
    /// All of them.
    pub accesses: u64,
}

impl Outcome {
    /// Hits of all accesses, from the empty cache on.
    pub fn hit_ratio(self) -> f64 {
        self.hits as f64 / (self.accesses as f64).max(1.0)
    }
}

/// The real cache could not be made, or refused an entry.
#[derive(Debug)]
pub enum Fault {
    /// It could not be made.
    Build(BuildError),
    /// It refused an entry.
    Refused(Refusal),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => write!(f, "no cache to simulate: {error}"),
            Self::Refused(reason) => write!(f, "the cache refused an entry: {reason}"),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Build(error) => Some(error),
            Self::Refused(_) => None,
        }
    }
}

impl Player {
    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        PLAYERS.iter().copied().find(|player| player.name == name)
    }

    /// Plays a trace from the first access to the last, into an empty cache. The seed is for policies that draw.
    ///
    /// # Errors
    /// When there is no memory for the real cache.
    pub fn run(self, trace: &Trace, capacity: usize, seed: u64) -> Result<Outcome, Fault> {
        // More entries than there are keys change nothing, but what a policy keeps for each would have no bound.
        let capacity = capacity.min(trace.unique()).max(1);
        let hits = (self.run)(trace, capacity, seed)?;
        Ok(Outcome { hits, accesses: trace.accesses().len() as u64 })
    }
}

fn play<P: Policy>(trace: &Trace, capacity: usize, _seed: u64) -> Result<u64, Fault> {
    let mut policy = P::new(capacity, trace.unique());
    Ok(trace.accesses().iter().map(|key| u64::from(policy.access(*key))).sum())
}

fn play_forebay(trace: &Trace, capacity: usize, seed: u64) -> Result<u64, Fault> {
    let mut cache = Forebay::new(capacity, seed).map_err(Fault::Build)?;
    let mut hits = 0;
    for key in trace.accesses() {
        let metadata = trace.is_metadata(*key);
        let attributes = if metadata { Attributes::METADATA } else { Attributes::DATA };
        let hit = cache.access(u64::from(*key), attributes).map_err(Fault::Refused)?;
        hits += u64::from(hit);
    }
    Ok(hits)
}
