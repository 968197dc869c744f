//! Carrying forward: blocks of the next segment to be used again that are worth keeping.
//!
//! When a segment is begun, the one after it is the next victim. Its records are looked through: metadata, and blocks with hits since they
//! were written, are worth carrying, hottest first, up to a share of a segment. While the open segment is filled, the victim's
//! batches are gone through at the same pace: each one's worthy blocks are read at once, checked, and put into the next batch
//! with half their hits. So nothing is held in memory but one batch's blocks, and nothing waits for all of a segment.
//!
//! A block that is being carried stays findable at its old place; the index changes over once the new one is written. If
//! it was forgotten, or a newer one has come, it is not there any more, and is left out. (Why a key that is forgotten meanwhile does
//! not come back: its record leaves the index first, and then its tombstone is queued; the writer looks at the index first and takes up
//! tombstones last.)

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_cache::{Class, Key};

use super::Writer;
use crate::format::{BatchExtent, BlockSeed, LogRecord, PAGE_BYTES, verify_block};
use crate::record::{BlockAddr, KeyHash, MAX_HITS, Record, RecordState, UNIT_BYTES};

/// What the victim is gone through with.
pub(super) struct Reinsertion {
    segment: u32,
    pub(super) seq: u64,
    pub(super) extents: Vec<BatchExtent>,
    /// Batches gone through.
    batches_done: usize,
    /// Blocks of a lower rank are not worth it.
    min_rank: usize,
    /// Bytes that may still be carried.
    budget_bytes: u64,
}

/// A block on its way to its new place.
pub(super) struct ReinsertedBlock {
    pub(super) hash: KeyHash,
    pub(super) class: Class,
    /// Its hits as of now, halved.
    pub(super) hits: u8,
    pub(super) old: BlockAddr,
    seed: BlockSeed,
    buffer: Arc<Buffer>,
    /// Where it is in the buffer.
    at: usize,
}

impl ReinsertedBlock {
    /// Bytes of the block.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.old.units) * UNIT_BYTES
    }

    /// Key and value, if they are what was written.
    pub(super) fn verify(&self) -> Option<crate::format::Block<'_>> {
        verify_block(self.seed, self.buffer.get(self.at..self.at + self.bytes() as usize)?)
    }
}

/// Ranks: hits, and one more for metadata.
const RANKS: usize = MAX_HITS as usize + 2;

/// How much a block is worth; 0 is nothing. So is data that memory has: most of it is offered again when memory
/// lets go of it.
pub(super) fn rank(record: &Record) -> usize {
    let hits = usize::from(record.hits.min(MAX_HITS));
    match record.class {
        Class::Metadata => hits + 1,
        Class::Data if record.in_memory => 0,
        Class::Data => hits,
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Finds out what of the next victim is worth carrying.
    pub(super) fn plan_reinsertion(&mut self) {
        self.reinsertion = None;
        let geometry = self.shared.ring.geometry;
        let segment = geometry.segment_of(self.next_seq);
        let seq = self.shared.ring.seq(segment);
        let share = u64::from(self.shared.tunables.reinsert_percent());
        // While the rebuild runs, the index does not know yet what is there.
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
        // The rank that does not fit whole is carried as far as it does.
        while min_rank > 1 && sum < space_bytes {
            min_rank -= 1;
            sum += bytes_of[min_rank];
        }
        if sum == 0 {
            // Its places are known at least, for when it is purged.
            min_rank = RANKS;
        }
        let budget_bytes = space_bytes;
        self.reinsertion =
            Some(Reinsertion { segment, seq, extents, batches_done: 0, min_rank, budget_bytes });
    }

    /// The block of a record that is still current, and its rank, if that is above 0.
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

    /// Goes on through the victim, as far as the open segment will be full after this batch. Blocks go to `self.reinserted`, half a
    /// batch of them at most.
    pub(super) fn collect_reinserted(&mut self) {
        let geometry = self.shared.ring.geometry;
        let Some(open) = &self.open else { return };
        let batch = Self::buffer_bytes(&self.shared);
        let max_bytes = batch / 2;
        let after = open.offset - geometry.first_batch_offset() + batch;
        let full = after * 1000 / geometry.batch_space_bytes();
        let used = (open.contents.extents.len() * 1000 / geometry.max_batches()) as u64;
        // A little ahead, so that the last of it comes in time.
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

    /// Takes the worthy blocks of one batch along. Returns their bytes.
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
        // In the order of the log, which is that of their places.
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
