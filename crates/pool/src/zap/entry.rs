//! Names, values, and positions in the order of a directory.

use std::fmt;
use std::ops::Deref;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::{ZAP_NAME_MAX, ZAP_VALUE_MAX};
use crate::{Error, ErrorKind, Result};

/// A value: 1 to `ZAP_VALUE_MAX` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Value {
    bytes: [u8; ZAP_VALUE_MAX],
    len: u8,
}

impl Value {
    /// Copies `bytes`; `None` if the length is not valid.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > ZAP_VALUE_MAX {
            return None;
        }
        let mut value = Self { bytes: [0; ZAP_VALUE_MAX], len: bytes.len() as u8 };
        value.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(value)
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A 48-bit position in the order of a directory. Stays valid whatever changes in the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Self = Self(0);
    /// After the last entry.
    pub const END: Self = Self(1 << 48);

    /// From its raw number; a number that is too large yields the end.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw.min(Self::END.0))
    }

    /// The raw number.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Whether this is the end.
    pub fn is_end(self) -> bool {
        self == Self::END
    }

    /// The position right after an entry at `position`.
    pub(super) fn after(position: u64) -> Self {
        Self::from_raw(position + 1)
    }
}

/// An entry, as a cursor returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Box<[u8]>,
    /// The value.
    pub value: Value,
    /// Where a walk continues after this entry.
    pub next: Cookie,
}

/// A name and where it belongs.
#[derive(Clone, Copy)]
pub(super) struct HashedName<'a> {
    pub(super) name: &'a [u8],
    /// Position of the name if no other name has taken it: the upper 48 bits of its hash.
    pub(super) home: u64,
}

impl<'a> HashedName<'a> {
    #[inline]
    pub(super) fn new(seed: u64, name: &'a [u8]) -> Self {
        Self { name, home: home_of(seed, name) }
    }

    /// Upper 32 bits of the hash. They alone determine the leaf of an entry.
    #[inline]
    pub(super) fn hash(&self) -> u32 {
        hash_at(self.home)
    }
}

/// Upper 48 bits of the hash of a name.
#[inline]
pub(super) fn home_of(seed: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, seed) >> 16
}

/// The position that is tried after `position`: it has the same hash.
#[inline]
pub(super) fn next_collision(position: u64) -> u64 {
    position & !0xffff | position.wrapping_add(1) & 0xffff
}

/// The first position of entries with this hash.
#[inline]
pub(super) fn first_position(hash: u32) -> u64 {
    u64::from(hash) << 16
}

/// The hash of the entry at this position.
#[inline]
pub(super) fn hash_at(position: u64) -> u32 {
    (position >> 16) as u32
}

/// Mask of the upper `depth` bits of a hash.
#[inline]
pub(super) fn prefix_mask(depth: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(depth)).unwrap_or(0)
}

/// Block number of the leaf of this depth for this hash.
#[inline]
pub(super) fn leaf_id(hash: u32, depth: u8) -> u64 {
    u64::from((hash & prefix_mask(depth)).reverse_bits())
}

#[inline]
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > ZAP_NAME_MAX {
        return Err(bad_length("a name", name.len(), ZAP_NAME_MAX));
    }
    Ok(())
}

#[inline]
pub(super) fn check_value(value: &[u8]) -> Result<()> {
    if value.is_empty() || value.len() > ZAP_VALUE_MAX {
        return Err(bad_length("a value", value.len(), ZAP_VALUE_MAX));
    }
    Ok(())
}

#[cold]
fn bad_length(what: &str, len: usize, max: usize) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("{what} has {len} bytes; the length must be 1 to {max} bytes"),
    )
}
