//! Admission: decides whether a candidate from MRU or a victim from MFU stays.
//!
//! A [`Rule`] sets the share of MRU in its class and the way in which two blocks are compared. The
//! simulations choose among [`RULES`]:
//!
//! - 5, 20 or 50 %: the block with more uses stays. On a tie the victim stays, so a part of a loop
//!   that does not fit stays and hits. Window, frequency and tie follow W-TinyLFU (Einziger,
//!   Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM ToS 2017), whose
//!   window is LRU and whose frequency counts every hit.
//! - 1 %: the candidate stays if the gap between its last two uses is shorter than the time since
//!   the victim's last use. So blocks of a past phase are evicted however popular they were (Jiang
//!   and Zhang, "LIRS", SIGMETRICS 2002).
//! - 100 %: no admission, and MRU is a CLOCK.
//!
//! Shares win on popularity, distances on loops, the CLOCK where only recency counts. A lead of one
//! use, which may be chance, does not suffice if the secondary cache would have to write the
//! victim. Uses are compared block by block, whatever the weights. Decision 87 has the reasons.
//!
//! Everything here is a pure function; the evictor's side is in `evict::admit`.

use crate::frequency::Frequency;

/// The share of MRU in its class, and how a candidate is compared with a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    mru_percent: u32,
    /// Whether candidates are compared with victims. If false, MRU is a CLOCK.
    pub(crate) admission: bool,
    /// Whether reuse distances are compared, rather than the number of uses.
    by_reuse_distance: bool,
}

impl Rule {
    /// The target of MRU in bytes, in a class of `capacity` bytes.
    pub(crate) fn share(self, capacity: u64) -> u64 {
        (u128::from(capacity) * u128::from(self.mru_percent) / 100) as u64
    }

    /// Whether a candidate with at least two uses stays rather than the victim.
    pub(crate) fn prefers(self, candidate: Frequency, victim: Frequency, now: u32) -> bool {
        if self.by_reuse_distance {
            victim.age(now) > candidate.gap()
        } else {
            candidate.count(now) > victim.count(now)
        }
    }

    /// Whether the candidate leads by a single use only, which may be chance.
    pub(crate) fn is_narrow(self, candidate: Frequency, victim: Frequency, now: u32) -> bool {
        !self.by_reuse_distance && candidate.count(now) <= victim.count(now) + 1
    }

    const fn by_count(mru_percent: u32) -> Self {
        Self { mru_percent, admission: true, by_reuse_distance: false }
    }

    /// Whether MRU gives up a block rather than MFU, in a class of `capacity` bytes.
    pub(crate) fn takes_from_mru(self, mru: u64, capacity: u64) -> bool {
        let slack = if self.admission { slack(capacity) } else { 0 };
        mru > 0 && mru + slack >= self.share(capacity)
    }
}

/// The rules, in the order of the counters' label `rule`.
pub(crate) const RULES: [Rule; 5] = [
    Rule { mru_percent: 1, admission: true, by_reuse_distance: true },
    Rule::by_count(5),
    Rule::by_count(20),
    Rule::by_count(50),
    Rule { mru_percent: 100, admission: false, by_reuse_distance: false },
];
/// The rule of a new cache.
pub(crate) const FIRST_RULE: usize = 1;
/// Blocks that move from MRU to MFU for each candidate while MRU exceeds its target.
pub(crate) const MOVES_PER_CANDIDATE: u32 = 3;
/// Tolerated deviation of MRU from its target. Different weights and the other class cause small
/// deviations.
fn slack(capacity: u64) -> u64 {
    capacity / 32
}

/// Whether blocks move from MRU to MFU without admission. Begins when MRU exceeds its target by
/// more than the slack, as after a change of the rule; ends at the target.
pub(crate) fn rebalances(did: bool, mru: u64, mru_target: u64, capacity: u64) -> bool {
    if did { mru > mru_target } else { mru > mru_target + slack(capacity) }
}

/// Bytes of MRU above its target. MRU never gives up all.
pub(crate) fn surplus(mru: u64, mru_target: u64) -> u64 {
    mru.saturating_sub(mru_target.max(1))
}
