//! A block: a header with its key and a note of its user's, then its value.
//!
//! The sum is seeded with the level's guid and the segment's sequence number, so that a block of another level, or of an earlier
//! use of the segment, does not verify, though neither number takes room in each block.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::record::UNIT_BYTES;

/// The front of a block; its key follows, then the note, then the value, then zeros up to a whole unit.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockPhys {
    /// XXH3, 128 bits, seeded, of all after it, up to the end of the value.
    checksum: [u8; 16],
    /// Bytes of the value.
    value_bytes: U32,
    /// Bytes of the key.
    key_bytes: u8,
    /// Bytes of the note.
    note_bytes: u8,
    /// Zeros.
    reserved: [u8; 2],
}

const BLOCK_HEADER_BYTES: usize = 24;
const _: () = assert!(size_of::<BlockPhys>() == BLOCK_HEADER_BYTES);
const COVERED_FROM: usize = 16;

/// What the sums of a segment's blocks are seeded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSeed(u64);

impl BlockSeed {
    /// Of this use of a segment of this level.
    pub(crate) fn new(guid: u64, seq: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&guid.to_le_bytes());
        bytes[8..].copy_from_slice(&seq.to_le_bytes());
        Self(xxh3_64(&bytes))
    }
}

/// Bytes that a block takes whose key and note have `key_note_bytes`: whole units.
pub(crate) fn block_bytes(key_note_bytes: usize, value_bytes: usize) -> u64 {
    ((BLOCK_HEADER_BYTES + key_note_bytes + value_bytes) as u64).next_multiple_of(UNIT_BYTES)
}

/// Writes a block into `out`, which is as long as [`block_bytes`] says. `encode` writes the value.
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

/// A block, as it lies in memory: its sum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) note: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// The block in `bytes`, if it was written to this use of the segment.
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
