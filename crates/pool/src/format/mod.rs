//! The on-disk format: every byte layout of the pool, and nothing else.
//!
//! Types here end in `Phys` and are little-endian and unaligned. Only `zerocopy` converts them from
//! and to bytes. Readers must treat them as untrusted: a correct checksum does not make the content
//! valid. `docs/format.md` describes every byte.

mod block;
mod dnode;
mod errors;
pub mod gang;
mod l2_device;
pub mod label;
mod log;
mod objset;
mod root;
mod scrub;
mod space;
mod zap;

pub(crate) use block::{POINTERS_SHIFT, capacity};
pub(crate) use space::TXGS_TO_REUSE;

pub use block::{BlockKind, BlockPtrPhys, Checksum, Compression, Dva, DvaPhys, SECTOR_UNIT};
pub use dnode::{
    ATTRIBUTES_MAX, DNODE_BLOCK_BYTES, DNODE_BYTES, DNODES_PER_BLOCK, DnodePhys, ObjectKind,
    TAIL_BYTES,
};
pub use errors::{DamageKind, DamagePhys, ERROR_LOG_MAGIC, ERROR_LOG_MAX, ErrorLogPhys};
pub use l2_device::{L2_DEVICES_MAX, L2_PATH_BYTES, L2DevicePhys};
pub use log::*;
pub use objset::{CacheMode, DatasetPhys, FailMode, ObjsetPhys, SyncMode};
pub use root::{ROOT_BYTES, ROOT_MAGIC, RootPhys};
pub use scrub::{ScrubPhys, ScrubState};
pub use space::{
    MetaslabPhys, SPACE_BLOCK_MAGIC, SPACE_ROOT_MAGIC, SPACE_ROOT_POINTERS, SpaceBlockPhys,
    SpaceChain, SpaceChange, SpaceEntryPhys, SpaceRangePhys, SpaceRootPhys,
};
pub use zap::{
    ZAP_ASIDE, ZAP_DEPTH_MAX, ZAP_FAT, ZAP_FILTER_LEAVES, ZAP_FILTER_MAGIC, ZAP_LEAF_BYTES,
    ZAP_LEAF_MAGIC, ZAP_LEAF_OPEN, ZAP_LEAF_STEP, ZAP_LEAF_STORED, ZAP_MICRO, ZAP_NAME_MAX,
    ZAP_PAGE_BYTES, ZAP_PAGE_DEPTH_MAX, ZAP_VALUE_MAX, ZapBlock, ZapFatPhys, ZapFilterPhys,
    ZapFilterSlotPhys, ZapHeadPhys, ZapLeafPhys, ZapMicroEntryPhys, ZapSlotPhys,
};
