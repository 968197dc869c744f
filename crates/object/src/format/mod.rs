//! The format of all objects of a store, and nothing else.
//!
//! | key | content | written |
//! |---|---|---|
//! | `super` | owner, epoch, and the newest root | by compare-and-swap |
//! | `txg/<n>.<epoch>.<nonce>` | a root: the checkpoint, the chain of deltas after it, its own delta | once |
//! | `map/<n>.<epoch>.<nonce>/<part>` | a part of a checkpoint, as a delta | once |
//! | `log/<epoch>/<sequence>` | a delta, or the fence that ends an epoch | if absent |
//! | `data/<shard>/<first>.<epoch>.<generation>` | blocks, then their directory | once |
//! | `free/<n>.<epoch>.<nonce>` | objects that wait for their deletion; `….last` ends an import | once |
//! | `pins/<nonce>` | the root that a follower needs, for a time | again and again |
//! | `probe/<nonce>` | whether the store honours conditions | at create and open |
//!
//! All but data objects are an *envelope* ([`envelope`]) around a body. Types end in `Phys`, are
//! little-endian and unaligned. Parsers treat bytes as hostile: they return an error, and never
//! panic or allocate more than a small multiple of the input.

pub(crate) mod delta;
pub(crate) mod directory;
pub(crate) mod envelope;
pub(crate) mod freed;
pub(crate) mod names;
pub(crate) mod pin;
pub(crate) mod root;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Sector size in bytes: the unit of all addresses.
pub const SECTOR_BYTES: u64 = 4096;
/// Size of the address space in bytes.
pub const DEVICE_BYTES: u64 = 1 << 56;
/// Bytes at the start that may be overwritten.
pub const MUTABLE_BYTES: u64 = 64 << 20;
/// Bytes at the end that may be overwritten.
pub const TAIL_BYTES: u64 = 256 << 10;
/// The most bytes of payload of an object, and the alignment of the *window* of addresses that one
/// object takes when it is first written.
pub const WINDOW_BYTES: u64 = 8 << 20;

pub(crate) const WINDOW_SECTORS: u64 = WINDOW_BYTES / SECTOR_BYTES;

/// The version of the format. Other versions are refused.
pub(crate) const VERSION: u32 = 2;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    #[error("it is shorter than its head says")]
    Short,
    #[error("it does not start with the magic number of its kind")]
    Magic,
    #[error("its version is {0}, and this program knows version {VERSION} only")]
    Version(u32),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it belongs to another key")]
    Identity,
    #[error("a field has an impossible value")]
    Value,
}

pub(crate) type Result<T> = std::result::Result<T, FormatError>;

/// Takes `count` values of type `T` off the front of `bytes`.
pub(crate) fn take<'a, T>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [T]>
where
    T: FromBytes + Immutable + Unaligned + KnownLayout,
{
    let len = size_of::<T>().checked_mul(count).ok_or(FormatError::Short)?;
    let (front, rest) = bytes.split_at_checked(len).ok_or(FormatError::Short)?;
    *bytes = rest;
    <[T]>::ref_from_bytes(front).map_err(|_| FormatError::Short)
}

/// Takes one value of type `T` off the front of `bytes`.
pub(crate) fn take_one<'a, T>(bytes: &mut &'a [u8]) -> Result<&'a T>
where
    T: FromBytes + Immutable + Unaligned + KnownLayout,
{
    Ok(&take::<T>(bytes, 1)?[0])
}
