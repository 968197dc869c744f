//! L2 devices of pools: which blocks go to them, the devices, and their list.
//!
//! * [`router`]: routes calls of the block cache, which several pools share, to the L2 devices of a
//!   key's pool.
//! * [`pool_l2`]: the L2 devices of one pool, and which of its blocks may be written to them.
//! * [`owners`]: maps datasets to cache owners, for the warm-up.
//! * [`codec`]: keys and blocks as L2 devices store them.
//! * [`device`]: an L2 device in use: an L2 of `forebay-l2`.
//! * [`devices`]: adds, removes, opens and closes the L2 devices of a pool.
//! * [`follower`]: the L2 device of a host that only follows the pool.
//! * [`warm_up`]: opens the datasets whose blocks are loaded into memory after an import.
//!
//! # Invariants
//!
//! - A key identifies content for good (see [`block_key`](crate::block_key)), so L2 devices can be
//!   added and removed at any time. On a device a key has no owner: address and birth txg identify
//!   a block of the pool.
//! - A pool never depends on its L2 devices. A missing, damaged or foreign device is reported, and
//!   never fails an import.
//!
//! Locking: the module heads list the locks. No L2 is called under a leaf lock.
//!
//! Not done: the pool stores the list, as [`L2Host`]; each L2 counts refusals.

mod codec;
pub(crate) mod device;
mod devices;
mod follower;
mod locked_device;
mod owners;
mod pool_l2;
mod router;
mod warm_up;

pub(crate) use device::L2Context;
pub use device::{L2DeviceStats, L2Rebuild};
pub use devices::{L2Device, L2DeviceState};
pub(crate) use devices::{L2Devices, L2Host};
pub(crate) use follower::FollowerL2;
pub(crate) use locked_device::DeviceCloser;
#[cfg(all(test, not(forebay_model)))]
pub(crate) use pool_l2::ClassAdmission;
pub(crate) use pool_l2::PoolL2;
#[cfg(all(test, not(forebay_model)))]
pub(crate) use router::L2Cache;
pub(crate) use router::L2Router;
