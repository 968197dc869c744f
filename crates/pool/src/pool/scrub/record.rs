//! The record of the newest scrub: what the root block stores, and users see.

use std::time::Duration;

use crate::format::{ScrubPhys, ScrubState};

use super::super::walk::Bookmark;

/// State and progress of the newest scrub of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ScrubStatus {
    /// Its state.
    pub state: ScrubState,
    /// Whether a thread works on it now. A scrub that an export or a crash has interrupted is
    /// running but not active until it is resumed.
    pub is_active: bool,
    /// The txg at which it started. Younger blocks are not scrubbed.
    pub txg: u64,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// When it was finished or stopped, in seconds since 1970; 0 before.
    pub ended: u64,
    /// Blocks read.
    pub blocks: u64,
    /// Bytes read, all copies.
    pub bytes: u64,
    /// Allocated bytes of the pool when the scrub started: an estimate of the final value of
    /// `bytes`.
    pub total_bytes: u64,
    /// Bad copies that were rewritten.
    pub healed: u64,
    /// Blocks without a good copy, and invalid objects.
    pub lost: u64,
    /// Its own maximum rate in bytes per second; 0 if the tunable `scrub_rate_bytes` applies.
    pub rate_bytes: u64,
    /// Time that it has been running, without pauses, in nanoseconds.
    pub active_ns: u64,
    /// Seconds from the end of a scrub to the [start](Self::due) of the next one; 0 for never.
    pub every_s: u64,
}

impl ScrubStatus {
    /// Reads the status that a root block stores. An unknown state counts as no scrub.
    pub(crate) fn of(phys: &ScrubPhys) -> Self {
        Self {
            state: ScrubState::from_raw(phys.state).unwrap_or_default(),
            is_active: false,
            txg: phys.until_txg.get(),
            started: phys.started.get(),
            ended: phys.ended.get(),
            blocks: phys.blocks.get(),
            bytes: phys.bytes.get(),
            total_bytes: phys.total_bytes.get(),
            healed: phys.healed.get(),
            lost: phys.lost.get(),
            rate_bytes: phys.rate_bytes.get(),
            active_ns: phys.active_ns.get(),
            every_s: phys.every_s.get(),
        }
    }

    /// Average rate so far in bytes per second; 0 if unknown.
    pub fn bytes_per_second(&self) -> u64 {
        let per_second = u128::from(self.bytes) * 1_000_000_000;
        per_second.checked_div(self.active_ns.into()).unwrap_or(0) as u64
    }

    /// When the next scrub is to be started, in seconds since 1970; 0 if there was none yet. `None`
    /// if the pool does not want it, or a scrub is running or paused. The pool does not start it
    /// by itself: a caller does that has the pool imported for a longer time.
    pub fn due(&self) -> Option<u64> {
        match self.state {
            _ if self.every_s == 0 => None,
            ScrubState::None => Some(0),
            ScrubState::Finished | ScrubState::Stopped => {
                Some(self.ended.saturating_add(self.every_s))
            }
            ScrubState::Running | ScrubState::Paused => None,
        }
    }

    /// Estimate of the time left, at the average rate so far; `None` if unknown.
    pub fn left(&self) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(self.bytes);
        left.checked_div(self.bytes_per_second()).map(Duration::from_secs)
    }
}

/// A [`ScrubStatus`] and where the scrub goes on.
#[derive(Clone, Copy)]
pub(super) struct ScrubRecord {
    pub(super) status: ScrubStatus,
    pub(super) at: Bookmark,
}

impl ScrubRecord {
    /// Reads a record that comes from a device.
    pub(super) fn of(phys: &ScrubPhys) -> Self {
        let at = Bookmark {
            dataset: phys.dataset.get(),
            object: phys.object.get(),
            block: phys.block.get(),
            height: phys.height,
        };
        Self { status: ScrubStatus::of(phys), at }
    }

    pub(super) fn phys(&self) -> ScrubPhys {
        let Self { status, at } = self;
        ScrubPhys {
            state: status.state as u8,
            height: at.height,
            reserved: [0; 6],
            until_txg: status.txg.into(),
            started: status.started.into(),
            ended: status.ended.into(),
            dataset: at.dataset.into(),
            object: at.object.into(),
            block: at.block.into(),
            blocks: status.blocks.into(),
            bytes: status.bytes.into(),
            total_bytes: status.total_bytes.into(),
            healed: status.healed.into(),
            lost: status.lost.into(),
            rate_bytes: status.rate_bytes.into(),
            active_ns: status.active_ns.into(),
            every_s: status.every_s.into(),
            reserved_1: [0; 8],
        }
    }
}
