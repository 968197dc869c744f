//! How a level is made or opened.

use forebay_base::arena::Arena;
use forebay_base::clock::{Clock, SystemClock, SystemWallClock, WallClock};
use forebay_base::rng::seed_from_system;
use forebay_base::sync::Arc;

use crate::tunables::L2Tunables;

/// How a level is made or opened.
#[derive(Clone)]
pub struct L2Options {
    /// Whose level it is: a level that says otherwise is refused.
    pub owner: [u8; 16],
    /// Make it even if the device holds something else, or the level of another.
    pub force: bool,
    /// When opened: make a level if the device holds nothing.
    pub create: bool,
    /// A key's content never changes, so that what is forgotten may come back after a restart: it is not wrong, only
    /// not wanted. Then forgetting costs nothing.
    pub immutable_keys: bool,
    /// When opened: the youngest stamp that the user knows of. A level with younger ones is emptied, because its user was set back:
    /// what has the same key again may be something else.
    pub max_stamp: u64,
    /// Tunables.
    pub tunables: Arc<L2Tunables>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The time of day, for people.
    pub wall_clock: Arc<dyn WallClock>,
    /// Where the level's name and the seed of its hash come from, when one is made: never the same twice.
    pub seed: u64,
    /// Memory for I/O: two batches, and what loads and the rebuild read at once.
    pub arena: Arc<Arena>,
    /// When made: bytes of a segment, if the usual ones will not do.
    pub segment_bytes: Option<u64>,
}

impl L2Options {
    /// The usual ones.
    pub fn new(owner: [u8; 16], arena: Arc<Arena>) -> Self {
        Self {
            owner,
            force: false,
            create: false,
            immutable_keys: false,
            max_stamp: u64::MAX,
            tunables: Arc::new(L2Tunables::default()),
            clock: Arc::new(SystemClock::new()),
            wall_clock: Arc::new(SystemWallClock),
            seed: seed_from_system(),
            arena,
            segment_bytes: None,
        }
    }
}

impl std::fmt::Debug for L2Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("L2Options")
            .field("owner", &self.owner)
            .field("force", &self.force)
            .field("create", &self.create)
            .field("immutable_keys", &self.immutable_keys)
            .field("max_stamp", &self.max_stamp)
            .field("segment_bytes", &self.segment_bytes)
            .finish_non_exhaustive()
    }
}
