//! The L2 caches of pools: which blocks go to them, the devices they are on, and their list.
//!
//! * [`router`]: leads the calls of the block cache, which several pools share, to the L2 caches of
//!   a key's pool;
//! * [`pool_l2`]: the L2 caches of one pool, and which of its blocks may be written to them;
//! * [`owners`]: which dataset has which owner in the cache, so that blocks can be put back into
//!   memory;
//! * [`codec`]: keys and blocks as L2 devices store them;
//! * [`device`]: one L2 device in use, which is an L2 of `forebay-l2`;
//! * [`devices`]: the L2 devices of a pool: adding, removing, opening, trusting and closing them;
//! * [`warm_up`]: loads their blocks into memory after an import.
//!
//! # Invariants
//!
//! - A key names content for good (see [`block_key`](crate::block_key)), so L2 devices can be added
//!   and removed at any time. On a device a key has no owner: address and birth name a block of the
//!   pool.
//! - A pool never needs its L2 devices. A device that is missing, damaged or foreign is reported,
//!   and never makes an import fail.
//!
//! # Locking
//!
//! The heads of the modules name their locks. No L2 is called under a leaf lock.
//!
//! # What it does not do
//!
//! It stores no list: the pool does, and gives it as [`L2Host`]. It counts no refusals: each L2
//! does. A pool without L2 devices refuses nothing.

mod codec;
pub(crate) mod device;
mod devices;
mod owners;
mod pool_l2;
mod router;
mod warm_up;

pub(crate) use device::L2Context;
pub use device::{L2DeviceStats, L2Rebuild};
pub use devices::{L2Device, L2DeviceState};
pub(crate) use devices::{L2Devices, L2Host};
#[cfg(all(test, not(forebay_model)))]
pub(crate) use pool_l2::ClassAdmission;
pub(crate) use pool_l2::PoolL2;
#[cfg(all(test, not(forebay_model)))]
pub(crate) use router::L2Cache;
pub(crate) use router::L2Router;
