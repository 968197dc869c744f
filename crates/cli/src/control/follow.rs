//! How a pool is followed, in answers of a daemon.

use serde::{Deserialize, Serialize};

/// How a pool is followed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FollowInfo {
    /// The host that writes the pool.
    pub(crate) owner: String,
    pub(crate) epoch: u64,
    /// What is shown was the newest transaction group so long ago, unless `is_behind`.
    pub(crate) staleness_ms: u64,
    /// A newer transaction group is known, and could not be imported.
    pub(crate) is_behind: bool,
    /// Time between two looks for a newer one.
    pub(crate) interval_ms: u64,
    /// Transaction groups that mounts use.
    pub(crate) groups: usize,
    /// Whether a pin keeps what they need.
    pub(crate) pinned: bool,
    /// Why the last put of the pin failed.
    pub(crate) pin_error: Option<String>,
    /// Why the newest look failed.
    pub(crate) error: Option<String>,
}
