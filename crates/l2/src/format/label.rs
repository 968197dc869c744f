//! The label: identifies the L2 on a device, its owner and its layout.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::sum;

/// Size of a label, in bytes.
pub(crate) const LABEL_BYTES: usize = 4096;
/// The version that this code writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 4;
/// Maximum number of features in a label.
pub(crate) const MAX_FEATURES: usize = 16;
/// Maximum length of a feature's name, in bytes.
pub(crate) const FEATURE_BYTES: usize = 32;
/// First bytes of a label: "forelvl" and a one.
const MAGIC: u64 = u64::from_le_bytes(*b"forelvl\x01");

/// First bytes of the label page of a removed L2: "forelvl" and a zero. The rest is zero.
const VOID_MAGIC: u64 = u64::from_le_bytes(*b"forelvl\x00");

/// The page that replaces the label of a removed L2.
pub(crate) fn void_page() -> [u8; LABEL_BYTES] {
    let mut page = [0; LABEL_BYTES];
    page[..8].copy_from_slice(&VOID_MAGIC.to_le_bytes());
    page
}

/// The label of an L2. There are two copies, in the first and in the last page of the device.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LabelPhys {
    /// "forelvl" and a one.
    pub(crate) magic: U64,
    /// XXH3, 128 bits, of everything after it.
    pub(crate) checksum: [u8; 16],
    /// The [`VERSION`] of the writer.
    pub(crate) version: U32,
    /// Length of an encoded key, in bytes.
    pub(crate) key_bytes: U32,
    /// Identifies the L2. Recreating it changes the guid.
    pub(crate) guid: U64,
    /// Seed of the key hash.
    pub(crate) hash_seed: U64,
    /// The owner's tag.
    pub(crate) owner: [u8; 16],
    /// Size of a segment, in bytes.
    pub(crate) segment_bytes: U64,
    /// Number of segments.
    pub(crate) segments: U32,
    /// Number of features named.
    pub(crate) feature_count: U32,
    /// Offset of the second copy. The device beyond its last whole page is not used.
    pub(crate) last_page: U64,
    /// Time of creation in seconds since 1970, for display.
    pub(crate) created: U64,
    /// A number of the owner's that tells whether it used the L2 last. Initially 0.
    pub(crate) user_mark: U64,
    /// Zeros.
    pub(crate) reserved: [u8; 24],
    /// Names of features that a reader must support, padded with zeros.
    pub(crate) features: [[u8; FEATURE_BYTES]; MAX_FEATURES],
    /// Zeros.
    pub(crate) unused: [u8; 3456],
}

const _: () = assert!(size_of::<LabelPhys>() == LABEL_BYTES);
/// First byte that the checksum covers.
const COVERED_FROM: usize = 24;

/// Why a page is not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelParseError {
    /// The magic number does not match.
    NoMagic,
    /// The checksum does not match.
    Checksum,
}

impl LabelPhys {
    /// A label of this version without features. Its checksum is not set.
    pub(crate) fn new() -> Self {
        let mut label = Self::new_zeroed_label();
        label.magic = MAGIC.into();
        label.version = VERSION.into();
        label
    }

    fn new_zeroed_label() -> Self {
        // Creates a zeroed value without unsafe code.
        Self::read_from_bytes(&[0; LABEL_BYTES]).expect("the size of a label")
    }

    /// The label's bytes, with the checksum.
    pub(crate) fn seal(mut self) -> [u8; LABEL_BYTES] {
        self.checksum = sum(&self.as_bytes()[COVERED_FROM..]);
        let mut bytes = [0; LABEL_BYTES];
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }

    /// Parses a label of any version. The fields are not validated.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, LabelParseError> {
        let Ok((label, _)) = Self::read_from_prefix(bytes) else {
            return Err(LabelParseError::NoMagic);
        };
        // Other versions share this magic number.
        if label.magic.get() != MAGIC {
            return Err(LabelParseError::NoMagic);
        }
        if label.checksum != sum(&label.as_bytes()[COVERED_FROM..]) {
            return Err(LabelParseError::Checksum);
        }
        Ok(label)
    }
}
