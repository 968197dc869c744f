//! Admission: which of two blocks stays, and how much of a class MRU may hold.

use crate::frequency::Frequency;

/// How much of a class's room is meant for mru, and what becomes of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    mru_percent: u32,
    /// Whether newcomers meet rivals. Else mru is a clock.
    pub(crate) admission: bool,
    /// Whether a contest is about when they were asked for, rather than how often.
    by_reuse_distance: bool,
}

impl Rule {
    /// The bytes meant for mru, of a class that has `capacity`.
    pub(crate) fn share(self, capacity: u64) -> u64 {
        (u128::from(capacity) * u128::from(self.mru_percent) / 100) as u64
    }

    /// Whether a newcomer that was asked for at least twice is to stay, rather than its rival.
    pub(crate) fn prefers(self, candidate: Frequency, victim: Frequency, now: u32) -> bool {
        if self.by_reuse_distance {
            victim.age(now) > candidate.gap()
        } else {
            candidate.count(now) > victim.count(now)
        }
    }

    /// Whether a newcomer that is preferred is so by a single use: that may be chance.
    pub(crate) fn is_narrow(self, candidate: Frequency, victim: Frequency, now: u32) -> bool {
        !self.by_reuse_distance && candidate.count(now) <= victim.count(now) + 1
    }

    const fn by_count(mru_percent: u32) -> Self {
        Self { mru_percent, admission: true, by_reuse_distance: false }
    }

    /// Whether mru has to give up a block, rather than mfu, in a class with that in mru and that in both.
    pub(crate) fn takes_from_mru(self, mru: u64, capacity: u64) -> bool {
        let slack = if self.admission { slack(capacity) } else { 0 };
        mru > 0 && mru + slack >= self.share(capacity)
    }
}

/// The rules, in the order of the label `rule` of the counters.
pub(crate) const RULES: [Rule; 5] = [
    Rule { mru_percent: 1, admission: true, by_reuse_distance: true },
    Rule::by_count(5),
    Rule::by_count(20),
    Rule::by_count(50),
    Rule { mru_percent: 100, admission: false, by_reuse_distance: false },
];
/// The rule that a cache begins with.
pub(crate) const FIRST_RULE: usize = 1;
/// Blocks that go over from mru to mfu with each newcomer, while mru has too much.
pub(crate) const MOVES_PER_CANDIDATE: u32 = 3;
/// What mru may have more or less than is meant for it: blocks of different weights, and the other class, make it
/// stray a little, which says nothing about any block.
fn slack(capacity: u64) -> u64 {
    capacity / 32
}

/// Whether blocks go over from mru to mfu: from when mru has a little more than is meant for it, as it has when the
/// rule has changed, until it has no more.
pub(crate) fn rebalances(did: bool, mru: u64, mru_target: u64, capacity: u64) -> bool {
    if did { mru > mru_target } else { mru > mru_target + slack(capacity) }
}

/// What mru could give up, of what it has, to have what is meant for it: never all.
pub(crate) fn surplus(mru: u64, mru_target: u64) -> u64 {
    mru.saturating_sub(mru_target.max(1))
}
