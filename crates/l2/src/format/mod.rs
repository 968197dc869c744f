//! What lies on the device of a level: every byte layout of it, and nothing else. `docs/format.md` has every byte.
//!
//! Types here end in `Phys`, are little-endian and unaligned, and are turned from and into bytes by `zerocopy` alone.
//!
//! # Invariants
//!
//! - Whatever is parsed here may be anything: a parser returns `None`, or something whose numbers are within the bounds that
//!   its type states. It neither panics nor allocates.
//! - What belongs to a segment carries the level's guid and the segment's sequence number, or is summed with them:
//!   nothing of another level, or of an earlier round of the ring, is ever taken for current.

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

/// What places and lengths of segments, logs and batches are multiples of, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// XXH3, 128 bits, as it is stored.
fn sum(bytes: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(bytes).to_le_bytes()
}
