//! A block: a header, then its key, its note and its value.
//!
//! The checksum is seeded with the L2's guid and the segment's sequence number. A block of another
//! L2, or of an earlier use of the segment, does not verify, although the block stores neither
//! number.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::record::UNIT_BYTES;

/// The header of a block. The key follows, then the note, the value, and zeros up to a whole unit.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockPhys {
    /// XXH3, 128 bits, seeded, of everything after it up to the end of the value.
    checksum: [u8; 16],
    /// Length of the value, in bytes.
    value_bytes: U32,
    /// Length of the key, in bytes.
    key_bytes: u8,
    /// Length of the note, in bytes.
    note_bytes: u8,
    /// Zeros.
    reserved: [u8; 2],
}

const BLOCK_HEADER_BYTES: usize = 24;
const _: () = assert!(size_of::<BlockPhys>() == BLOCK_HEADER_BYTES);
const COVERED_FROM: usize = 16;

/// The seed of the checksums of a segment's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSeed(u64);

impl BlockSeed {
    /// The seed for this use of a segment of this L2.
    pub(crate) fn new(guid: u64, seq: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&guid.to_le_bytes());
        bytes[8..].copy_from_slice(&seq.to_le_bytes());
        Self(xxh3_64(&bytes))
    }
}

/// Size of a block in bytes, whole units. `key_note_bytes` is the length of its key and note.
pub(crate) fn block_bytes(key_note_bytes: usize, value_bytes: usize) -> u64 {
    ((BLOCK_HEADER_BYTES + key_note_bytes + value_bytes) as u64).next_multiple_of(UNIT_BYTES)
}

/// Writes a block into `out`, whose length is [`block_bytes`]. `encode` writes the value.
pub(crate) fn seal_block(
    seed: BlockSeed,
    (key, note): (&[u8], &[u8]),
    value_bytes: usize,
    out: &mut [u8],
    encode: impl FnOnce(&mut [u8]),
) {
    let header = BlockPhys {
        checksum: [0; 16],
        value_bytes: (value_bytes as u32).into(),
        key_bytes: key.len() as u8,
        note_bytes: note.len() as u8,
        reserved: [0; 2],
    };
    let note_from = BLOCK_HEADER_BYTES + key.len();
    let value_from = note_from + note.len();
    let end = value_from + value_bytes;
    out[..BLOCK_HEADER_BYTES].copy_from_slice(header.as_bytes());
    out[BLOCK_HEADER_BYTES..note_from].copy_from_slice(key);
    out[note_from..value_from].copy_from_slice(note);
    encode(&mut out[value_from..end]);
    out[end..].fill(0);
    let checksum = xxh3_128_with_seed(&out[COVERED_FROM..end], seed.0).to_le_bytes();
    out[..COVERED_FROM].copy_from_slice(&checksum);
}

/// A block with a valid checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) note: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Parses a block that was written to this use of the segment. Returns `None` if the checksum does
/// not match.
pub(crate) fn verify_block(seed: BlockSeed, bytes: &[u8]) -> Option<Block<'_>> {
    let (header, rest) = BlockPhys::ref_from_prefix(bytes).ok()?;
    let (key_bytes, note_bytes) = (usize::from(header.key_bytes), usize::from(header.note_bytes));
    let key_note_bytes = key_bytes + note_bytes;
    let end =
        (BLOCK_HEADER_BYTES + key_note_bytes).checked_add(header.value_bytes.get() as usize)?;
    let covered = bytes.get(COVERED_FROM..end)?;
    if header.checksum != xxh3_128_with_seed(covered, seed.0).to_le_bytes() {
        return None;
    }
    let (name, value) = rest.get(..end - BLOCK_HEADER_BYTES)?.split_at(key_note_bytes);
    let (key, note) = name.split_at(key_bytes);
    Some(Block { key, note, value })
}
