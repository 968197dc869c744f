//! Options to create or open an L2.

use forebay_base::arena::Arena;
use forebay_base::clock::{Clock, SystemClock, SystemWallClock, WallClock};
use forebay_base::rng::seed_from_system;
use forebay_base::sync::Arc;

use crate::tunables::L2Tunables;

/// Options to create or open an L2.
#[derive(Clone)]
pub struct L2Options {
    /// The owner's tag. An L2 with another tag is refused.
    pub owner: [u8; 16],
    /// Create an L2 even if the device holds other data or the L2 of another owner.
    pub force: bool,
    /// On open: create an L2 if the device holds none.
    pub create: bool,
    /// Keys are *immutable*: the content of a key never changes. A forgotten block may then return
    /// after a restart, which is never wrong, and forgetting a key costs no write. Otherwise keys
    /// are *mutable*.
    pub immutable_keys: bool,
    /// On open: the newest stamp that the user knows. If the L2 holds a newer one, its user was
    /// rolled back, and the L2 is emptied: the same key may name other content later.
    pub max_stamp: u64,
    /// Tunables.
    pub tunables: Arc<L2Tunables>,
    /// The monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// The wall clock, for the time of creation in the label.
    pub wall_clock: Arc<dyn WallClock>,
    /// Seeds the guid and the hash seed of a new L2. Must be different each time.
    pub seed: u64,
    /// Memory for I/O: two batches, the loads in flight, and the reads of the rebuild.
    pub arena: Arc<Arena>,
    /// On create: the segment size in bytes, to override the default.
    pub segment_bytes: Option<u64>,
    /// Called with the reason once the L2 has failed and takes nothing any more.
    pub on_failure: Option<Arc<dyn Fn(&str) + Send + Sync>>,
}

impl L2Options {
    /// The default options.
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
            on_failure: None,
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
