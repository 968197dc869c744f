//! What a pool knows of its L2 devices: the content of one of its own objects.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// L2 devices of a pool, at most.
pub const L2_DEVICES_MAX: usize = 16;
/// Bytes of an L2 device's path, at most.
pub const L2_PATH_BYTES: usize = 448;

/// An L2 device. The object that [`RootPhys::l2_devices`](super::RootPhys) names holds one after the other.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct L2DevicePhys {
    /// Names the L2 on it.
    pub guid: U64,
    /// Bytes that it had when it was added.
    pub size_bytes: U64,
    /// The transaction group that added it.
    pub added_txg: U64,
    /// What it holds of younger births than this is not the pool's; 0 while it is attached whenever the pool is in use.
    pub trusted_txg: U64,
    /// Bytes of `path`.
    pub path_bytes: U16,
    /// Zeros.
    pub reserved: [u8; 6],
    /// What the label of the L2 has as its user's mark once the pool writes to it, or `mark_before`: another mark means
    /// that another copy of the pool had it since.
    pub mark: U64,
    /// The mark that it had before.
    pub mark_before: U64,
    /// Zeros.
    pub unused: [u8; 8],
    /// Where it was last: it is looked for there. Zeros behind.
    pub path: [u8; L2_PATH_BYTES],
}

const _: () = assert!(size_of::<L2DevicePhys>() == 512);

impl L2DevicePhys {
    /// A device at `path`; `None` if that is too long.
    pub fn new(guid: u64, size_bytes: u64, added_txg: u64, path: &str) -> Option<Self> {
        let mut phys = Self::new_zeroed();
        phys.path.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
        phys.guid = guid.into();
        phys.size_bytes = size_bytes.into();
        phys.added_txg = added_txg.into();
        phys.path_bytes = (path.len() as u16).into();
        Some(phys)
    }

    /// Where it was last; as much of it as makes sense.
    pub fn path(&self) -> String {
        let bytes = usize::from(self.path_bytes.get()).min(L2_PATH_BYTES);
        String::from_utf8_lossy(&self.path[..bytes]).into_owned()
    }
}
