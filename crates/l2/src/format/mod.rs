//! The on-disk format of the L2: every byte layout and nothing else. `docs/format.md` describes
//! each byte.
//!
//! Types here end in `Phys`, are little-endian and unaligned, and are converted by `zerocopy` only.
//!
//! # Invariants
//!
//! - Parsers accept any bytes. They return `None`, or a value whose numbers are within the bounds
//!   that its type states. They neither panic nor allocate.
//! - Every structure of a segment contains the L2's guid and the segment's sequence number, or its
//!   checksum is seeded with them. Structures of another L2, or of an earlier round of the ring,
//!   never pass for current.

mod batch;
mod block;
mod label;
mod segment;
#[cfg(all(test, not(forebay_model)))]
mod tests;

pub(crate) use batch::{
    BATCH_HEADER_BYTES, BatchHeader, LogBlock, LogRecord, RECORD_BYTES, log_bytes_for, seal_log,
};
pub(crate) use block::{Block, BlockSeed, block_bytes, seal_block, verify_block};
pub(crate) use label::{LABEL_BYTES, LabelPhys, MAX_FEATURES, VERSION, void_page};
pub(crate) use segment::{
    BATCH_EXTENT_BYTES, BatchExtent, FOOTER_HEADER_BYTES, Footer, FooterHeader, SegmentHeader,
    seal_footer,
};

/// Offsets and sizes of segments, logs and batches are multiples of this, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// XXH3, 128 bits, in storage order.
fn sum(bytes: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(bytes).to_le_bytes()
}
