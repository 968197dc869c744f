//! Reinsertion: moves valuable blocks of the next victim segment to the head of the log.
//!
//! When a segment is opened, the segment after it is the next victim. Its records are ranked:
//! metadata, and blocks with hits since they were written, are worth reinserting, highest rank
//! first, up to a share of a segment. While the open segment fills, the victim's batches are
//! processed at the same pace. The selected blocks of each are read at once, verified, and added to
//! the next batch with half their hits. So memory holds the blocks of one batch only, and no step
//! processes a whole segment.
//!
//! A block stays findable at its old address until the index changes over, after the new copy is
//! written. If it was forgotten or replaced, its record is gone, and it is skipped. A key that is
//! forgotten meanwhile does not return: its record leaves the index before its tombstone is queued,
//! and the writer checks the index before it takes tombstones.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_cache::{Class, Key};

use super::Writer;
use crate::format::{BatchExtent, BlockSeed, LogRecord, PAGE_BYTES, verify_block};
use crate::record::{BlockAddr, KeyHash, MAX_HITS, Record, RecordState, UNIT_BYTES};

/// The progress of reinsertion from the victim.
pub(super) struct Reinsertion {
    segment: u32,
    pub(super) seq: u64,
    pub(super) extents: Vec<BatchExtent>,
    /// Batches processed.
    batches_done: usize,
    /// Blocks below this rank are not reinserted.
    min_rank: usize,
    /// Bytes that may still be reinserted.
    budget_bytes: u64,
}

/// A block that is being reinserted.
pub(super) struct ReinsertedBlock {
    pub(super) hash: KeyHash,
    pub(super) class: Class,
    /// Half of its hits.
    pub(super) hits: u8,
    pub(super) old: BlockAddr,
    seed: BlockSeed,
    buffer: Arc<Buffer>,
    /// Offset of the block in the buffer.
    at: usize,
}

impl ReinsertedBlock {
    /// Size of the block in bytes.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.old.units) * UNIT_BYTES
    }

    /// The block's key, note and value, if its checksum matches.
    pub(super) fn verify(&self) -> Option<crate::format::Block<'_>> {
        verify_block(self.seed, self.buffer.get(self.at..self.at + self.bytes() as usize)?)
    }
}

/// Ranks: the hits, and one more for metadata.
const RANKS: usize = MAX_HITS as usize + 2;

/// The rank of a block; 0 is never reinserted. Data that memory holds has rank 0, because most of
/// it is offered again when memory evicts it. So has a block that did not decode.
pub(super) fn rank(record: &Record) -> usize {
    let hits = usize::from(record.hits.min(MAX_HITS));
    match record.class {
        _ if record.undecodable => 0,
        Class::Metadata => hits + 1,
        Class::Data if record.in_memory => 0,
        Class::Data => hits,
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Ranks the blocks of the next victim and chooses the minimum rank.
    pub(super) fn plan_reinsertion(&mut self) {
        self.reinsertion = None;
        let geometry = self.shared.ring.geometry;
        let segment = geometry.segment_of(self.next_seq);
        let seq = self.shared.ring.seq(segment);
        let share = u64::from(self.shared.tunables.reinsert_percent());
        // The index is incomplete during the rebuild.
        if seq == 0 || share == 0 || self.shared.rebuild.is_running() {
            return;
        }
        let Some(extents) = self.batch_extents(segment, seq) else { return };
        let mut bytes_of = [0u64; RANKS];
        for extent in &extents {
            self.read_log(segment, seq, *extent, |log| {
                for record in log.records() {
                    if let Some((_, units, rank)) = self.current_rank(segment, record) {
                        bytes_of[rank] += u64::from(units) * UNIT_BYTES;
                    }
                }
            });
        }
        let space_bytes = geometry.batch_space_bytes() / 100 * share;
        let (mut min_rank, mut sum) = (RANKS, 0);
        // The rank that does not fit completely is reinserted as far as it fits.
        while min_rank > 1 && sum < space_bytes {
            min_rank -= 1;
            sum += bytes_of[min_rank];
        }
        if sum == 0 {
            // The extents are kept for the purge.
            min_rank = RANKS;
        }
        let budget_bytes = space_bytes;
        self.reinsertion =
            Some(Reinsertion { segment, seq, extents, batches_done: 0, min_rank, budget_bytes });
    }

    /// The address, units and rank of a current block, if its rank is above 0.
    fn current_rank(&self, segment: u32, record: LogRecord) -> Option<(BlockAddr, u32, usize)> {
        let LogRecord::Block { hash, unit, units, .. } = record else { return None };
        let addr = BlockAddr { segment, unit, units };
        let known = self.shared.index.find(KeyHash(hash))?;
        if known.addr != addr || known.state != RecordState::Live {
            return None;
        }
        let rank = rank(&known);
        (rank > 0).then_some((addr, units, rank))
    }

    /// Processes the victim as far as the open segment will be full after this batch. Adds blocks
    /// to `self.reinserted`, at most half a batch.
    pub(super) fn collect_reinserted(&mut self) {
        let geometry = self.shared.ring.geometry;
        let Some(open) = &self.open else { return };
        let batch = Self::buffer_bytes(&self.shared);
        let max_bytes = batch / 2;
        let after = open.offset - geometry.first_batch_offset() + batch;
        let full = after * 1000 / geometry.batch_space_bytes();
        let used = (open.contents.extents.len() * 1000 / geometry.max_batches()) as u64;
        // Slightly ahead, so that the last batch is processed in time.
        let due = full.max(used) * 5 / 4 + 50;
        let mut bytes: u64 = self.reinserted.iter().map(ReinsertedBlock::bytes).sum();
        while bytes < max_bytes
            && let Some(reinsertion) = &mut self.reinsertion
            && reinsertion.batches_done < reinsertion.extents.len()
            && (reinsertion.batches_done * 1000 / reinsertion.extents.len()) as u64 <= due
        {
            let extent = reinsertion.extents[reinsertion.batches_done];
            reinsertion.batches_done += 1;
            if reinsertion.min_rank < RANKS && reinsertion.budget_bytes > 0 {
                bytes += self.collect_batch(extent);
            }
        }
    }

    /// Reads the selected blocks of one batch. Returns their size in bytes.
    fn collect_batch(&mut self, extent: BatchExtent) -> u64 {
        let Some(reinsertion) = &self.reinsertion else { return 0 };
        let (segment, seq) = (reinsertion.segment, reinsertion.seq);
        let (min_rank, mut budget_bytes) = (reinsertion.min_rank, reinsertion.budget_bytes);
        let mut chosen: Vec<(KeyHash, Class, u8, BlockAddr)> = Vec::new();
        self.read_log(segment, seq, extent, |log| {
            for record in log.records() {
                let LogRecord::Block { hash, .. } = record else { continue };
                let Some((addr, units, rank)) = self.current_rank(segment, record) else {
                    continue;
                };
                let bytes = u64::from(units) * UNIT_BYTES;
                if rank < min_rank || bytes > budget_bytes {
                    continue;
                }
                if let Some(known) = self.shared.index.find(KeyHash(hash)) {
                    budget_bytes -= bytes;
                    chosen.push((KeyHash(hash), known.class, known.hits / 2, addr));
                }
            }
        });
        // The log order is the order of addresses.
        let (Some(first), Some(last)) = (chosen.first(), chosen.last()) else { return 0 };
        let start = u64::from(first.3.unit) * UNIT_BYTES / PAGE_BYTES * PAGE_BYTES;
        let end = u64::from(last.3.unit + last.3.units) * UNIT_BYTES;
        let at = self.shared.ring.geometry.offset(segment) + start;
        let bytes = end.next_multiple_of(PAGE_BYTES).saturating_sub(start);
        let Some(buffer) = self.read(at, bytes).map(Arc::new) else { return 0 };
        let seed = BlockSeed::new(self.shared.ring.guid(), seq);
        let reinserted = chosen.into_iter().map(|(hash, class, hits, old)| {
            let at = (u64::from(old.unit) * UNIT_BYTES).saturating_sub(start) as usize;
            ReinsertedBlock { hash, class, hits, old, seed, buffer: Arc::clone(&buffer), at }
        });
        let before = self.reinserted.len();
        self.reinserted.extend(reinserted);
        let bytes = self.reinserted[before..].iter().map(ReinsertedBlock::bytes).sum();
        if let Some(reinsertion) = &mut self.reinsertion {
            reinsertion.budget_bytes = budget_bytes;
        }
        bytes
    }
}
