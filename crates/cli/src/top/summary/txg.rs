//! Figures of transaction groups.

use serde::Serialize;

use super::{Amount, counter};
use crate::control::sample::{PoolSample, TxgInfo};

/// Figures of the transaction groups of a pool.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TxgSummary {
    /// The newest durable group.
    pub(crate) synced: u64,
    /// Dirty bytes of the pool.
    pub(crate) dirty_bytes: u64,
    pub(crate) commits: Amount,
    /// Changes that were throttled because much data was dirty, and that waited for a commit.
    pub(crate) throttled: Amount,
    pub(crate) waited_full: Amount,
    /// Time of each phase of the commits, in nanoseconds.
    pub(crate) phases: Vec<PhaseSummary>,
    /// The newest groups, newest first.
    pub(crate) newest: Vec<TxgInfo>,
}

/// Time of a phase.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PhaseSummary {
    pub(crate) phase: String,
    pub(crate) ns: Amount,
    /// The longest among the newest groups.
    pub(crate) newest_max_ns: u64,
}

impl TxgSummary {
    /// How long a commit took, all phases.
    pub(crate) fn took_ns(txg: &TxgInfo) -> u64 {
        txg.phase_ns.iter().sum()
    }
}

pub(super) fn summary(pool: &PoolSample, before: Option<&PoolSample>, seconds: f64) -> TxgSummary {
    let counted = |name: &str| {
        Amount::of(counter(Some(pool), name).unwrap_or(0), counter(before, name), seconds)
    };
    let phase = |(at, name): (usize, &String)| {
        let of = |pool: &PoolSample| pool.txgs.phase_ns.get(at).copied().unwrap_or(0);
        let longest = pool.txgs.newest.iter().filter_map(|txg| txg.phase_ns.get(at)).max();
        PhaseSummary {
            phase: name.clone(),
            ns: Amount::of(of(pool), before.map(of), seconds),
            newest_max_ns: longest.copied().unwrap_or(0),
        }
    };
    TxgSummary {
        synced: pool.stats.txg,
        dirty_bytes: pool.stats.dirty_bytes,
        commits: Amount::of(pool.txgs.count, before.map(|pool| pool.txgs.count), seconds),
        throttled: counted("delayed"),
        waited_full: counted("full"),
        phases: pool.txgs.phases.iter().enumerate().map(phase).collect(),
        newest: pool.txgs.newest.iter().rev().cloned().collect(),
    }
}
