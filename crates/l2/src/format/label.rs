//! The label: what says that a device holds a level, whose it is, and how it is laid out.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::sum;

/// Size of a label.
pub(crate) const LABEL_BYTES: usize = 4096;
/// The version that this code writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 3;
/// Features that a label can name.
pub(crate) const MAX_FEATURES: usize = 16;
/// Bytes of a feature's name, at most.
pub(crate) const FEATURE_BYTES: usize = 32;
/// First bytes of a label: "forelvl" and a one.
const MAGIC: u64 = u64::from_le_bytes(*b"forelvl\x01");

/// First bytes of a page that was a label until the level was removed: "forelvl" and a zero. All else in it is zero.
const VOID_MAGIC: u64 = u64::from_le_bytes(*b"forelvl\x00");

/// The page that takes a label's place when the level is removed.
pub(crate) fn void_page() -> [u8; LABEL_BYTES] {
    let mut page = [0; LABEL_BYTES];
    page[..8].copy_from_slice(&VOID_MAGIC.to_le_bytes());
    page
}

/// The label of a level. Two copies: in the device's first page, and in its last one.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LabelPhys {
    /// "forelvl" and a one.
    pub(crate) magic: U64,
    /// XXH3, 128 bits, of all after it.
    pub(crate) checksum: [u8; 16],
    /// [`VERSION`] of who wrote it.
    pub(crate) version: U32,
    /// Bytes of an encoded key.
    pub(crate) key_bytes: U32,
    /// Names the level. A device that is made a level again gets another.
    pub(crate) guid: U64,
    /// Seed of the hash that makes a key an identity.
    pub(crate) hash_seed: U64,
    /// Whose level it is, as its user says.
    pub(crate) owner: [u8; 16],
    /// Bytes of a segment.
    pub(crate) segment_bytes: U64,
    /// Segments.
    pub(crate) segments: U32,
    /// Features that are named, from the front.
    pub(crate) feature_count: U32,
    /// Where the other copy lies: what is left of the device after its last whole page belongs to nobody.
    pub(crate) last_page: U64,
    /// When it was made, in seconds since 1970; for people.
    pub(crate) created: U64,
    /// A number of the owner's, by which it knows whether it was the last to use the level; 0 at first.
    pub(crate) user_mark: U64,
    /// Zeros.
    pub(crate) reserved: [u8; 24],
    /// Names of features that a reader must know, zeros after each.
    pub(crate) features: [[u8; FEATURE_BYTES]; MAX_FEATURES],
    /// Zeros.
    pub(crate) unused: [u8; 3456],
}

const _: () = assert!(size_of::<LabelPhys>() == LABEL_BYTES);
/// What the checksum covers begins here.
const COVERED_FROM: usize = 24;

/// What is wrong with a page that should be a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelParseError {
    /// It begins otherwise.
    NoMagic,
    /// Its content is not what was written.
    Checksum,
}

impl LabelPhys {
    /// A label of this version without features, not summed yet.
    pub(crate) fn new() -> Self {
        let mut label = Self::new_zeroed_label();
        label.magic = MAGIC.into();
        label.version = VERSION.into();
        label
    }

    fn new_zeroed_label() -> Self {
        // The cheapest way to a value of zeros that needs no unsafe code.
        Self::read_from_bytes(&[0; LABEL_BYTES]).expect("as many bytes as it has")
    }

    /// Its bytes, with their sum.
    pub(crate) fn seal(mut self) -> [u8; LABEL_BYTES] {
        self.checksum = sum(&self.as_bytes()[COVERED_FROM..]);
        let mut bytes = [0; LABEL_BYTES];
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }

    /// The label in a page: what somebody wrote as one, of whatever version; nothing in it has been looked at.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, LabelParseError> {
        let Ok((label, _)) = Self::read_from_prefix(bytes) else {
            return Err(LabelParseError::NoMagic);
        };
        // Another version's magic ends otherwise; what it has in common is the name.
        if label.magic.get() != MAGIC {
            return Err(LabelParseError::NoMagic);
        }
        if label.checksum != sum(&label.as_bytes()[COVERED_FROM..]) {
            return Err(LabelParseError::Checksum);
        }
        Ok(label)
    }
}
