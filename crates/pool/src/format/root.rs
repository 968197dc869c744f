//! The root block: the root of the pool as of one txg.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LogHomePhys, LogRootPhys, ObjsetPhys, ScrubPhys, SpaceRootPhys};

/// Size of a root block.
pub const ROOT_BYTES: usize = 4096;
/// First bytes of a root block.
pub const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"FBROOT\x00\x01");

/// A root block. An uberblock points to it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RootPhys {
    /// [`ROOT_MAGIC`].
    pub magic: U64,
    /// The txg.
    pub txg: U64,
    /// Object number of the directory of datasets, among the pool's own objects.
    pub datasets: U64,
    /// Object number of the list of L2 devices, among the pool's own objects; 0 if there is none.
    pub l2_devices: U64,
    /// Object number of the error log, among the pool's own objects.
    pub errors: U64,
    /// Zeros.
    pub reserved: [u8; 24],
    /// The pool's own objects.
    pub mos: ObjsetPhys,
    /// Zeros.
    pub reserved_1: [u8; 96],
    /// The space maps.
    pub space: SpaceRootPhys,
    /// The intent log.
    pub log: LogRootPhys,
    /// The newest scrub.
    pub scrub: ScrubPhys,
    /// The ring of the log in the space of the pool, if the log is elsewhere.
    pub log_home: LogHomePhys,
    /// Zeros.
    pub reserved_2: [u8; ROOT_BYTES
        - 256
        - size_of::<SpaceRootPhys>()
        - size_of::<LogRootPhys>()
        - size_of::<ScrubPhys>()
        - size_of::<LogHomePhys>()],
}

const _: () = assert!(size_of::<RootPhys>() == ROOT_BYTES);
