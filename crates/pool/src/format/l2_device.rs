//! The list of a pool's L2 devices: the content of one of the pool's own objects.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum number of L2 devices of a pool.
pub const L2_DEVICES_MAX: usize = 16;
/// Maximum length of an L2 device's path.
pub const L2_PATH_BYTES: usize = 448;

/// An entry of the list in the object that [`RootPhys::l2_devices`](super::RootPhys) names.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct L2DevicePhys {
    /// The GUID of the L2.
    pub guid: U64,
    /// Size of the device in bytes when it was added.
    pub size_bytes: U64,
    /// The txg that added it.
    pub added_txg: U64,
    /// If not 0, the L2 is emptied if it holds blocks born after this txg. 0 once the device is in
    /// use and its index is rebuilt.
    pub trusted_txg: U64,
    /// Length of `path`.
    pub path_bytes: U16,
    /// Zeros.
    pub reserved: [u8; 6],
    /// Once the pool writes to the L2, its label has this as the user mark, or `mark_before` after
    /// a crash. Another mark means that another copy of the pool has used the L2.
    pub mark: U64,
    /// The previous mark.
    pub mark_before: U64,
    /// Zeros.
    pub unused: [u8; 8],
    /// Last known path, zero-padded.
    pub path: [u8; L2_PATH_BYTES],
}

const _: () = assert!(size_of::<L2DevicePhys>() == 512);

impl L2DevicePhys {
    /// Creates an entry; `None` if `path` is too long.
    pub fn new(guid: u64, size_bytes: u64, added_txg: u64, path: &str) -> Option<Self> {
        let mut phys = Self::new_zeroed();
        phys.path.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
        phys.guid = guid.into();
        phys.size_bytes = size_bytes.into();
        phys.added_txg = added_txg.into();
        phys.path_bytes = (path.len() as u16).into();
        Some(phys)
    }

    /// Returns the path. Replaces invalid UTF-8.
    pub fn path(&self) -> String {
        let bytes = usize::from(self.path_bytes.get()).min(L2_PATH_BYTES);
        String::from_utf8_lossy(&self.path[..bytes]).into_owned()
    }
}
