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
use crate::format::{BatchPlace, BlockSeed, LogRecord, PAGE_BYTES, verify_block};
use crate::record::{Identity, MAX_HITS, Place, Record, State, UNIT_BYTES};

/// What the victim is gone through with.
pub(super) struct Evacuation {
    segment: u32,
    pub(super) seq: u64,
    pub(super) places: Vec<BatchPlace>,
    /// Batches gone through.
    done: usize,
    /// Blocks of a lower rank are not worth it.
    least_rank: usize,
    /// Bytes that may still be carried.
    left_bytes: u64,
}

/// A block on its way to its new place.
pub(super) struct Carried {
    pub(super) id: Identity,
    pub(super) class: Class,
    /// Its hits as of now, halved.
    pub(super) hits: u8,
    pub(super) old: Place,
    seed: BlockSeed,
    buffer: Arc<Buffer>,
    /// Where it is in the buffer.
    at: usize,
}

impl Carried {
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
    pub(super) fn plan_evacuation(&mut self) {
        self.evacuation = None;
        let geometry = self.inner.ring.geometry;
        let segment = geometry.segment_of(self.next_seq);
        let seq = self.inner.ring.seq(segment);
        let share = u64::from(self.inner.tunables.carry_percent());
        // While the rebuild runs, the index does not know yet what is there.
        if seq == 0 || share == 0 || self.inner.rebuild.is_running() {
            return;
        }
        let Some(places) = self.places_of(segment, seq) else { return };
        let mut bytes_of = [0u64; RANKS];
        for place in &places {
            self.read_log(segment, seq, *place, |log| {
                for record in log.records() {
                    if let Some((_, units, rank)) = self.worth(segment, record) {
                        bytes_of[rank] += u64::from(units) * UNIT_BYTES;
                    }
                }
            });
        }
        let room = geometry.batch_room() / 100 * share;
        let (mut least_rank, mut sum) = (RANKS, 0);
        // The rank that does not fit whole is carried as far as it does.
        while least_rank > 1 && sum < room {
            least_rank -= 1;
            sum += bytes_of[least_rank];
        }
        if sum == 0 {
            // Its places are known at least, for when it is purged.
            least_rank = RANKS;
        }
        let left_bytes = room;
        self.evacuation =
            Some(Evacuation { segment, seq, places, done: 0, least_rank, left_bytes });
    }

    /// The block of a record that is still current, and its rank, if that is above 0.
    fn worth(&self, segment: u32, record: LogRecord) -> Option<(Place, u32, usize)> {
        let LogRecord::Block { hash, unit, units, .. } = record else { return None };
        let place = Place { segment, unit, units };
        let known = self.inner.index.find(Identity(hash))?;
        if known.place != place || known.state != State::Live {
            return None;
        }
        let rank = rank(&known);
        (rank > 0).then_some((place, units, rank))
    }

    /// Goes on through the victim, as far as the open segment will be full after this batch. Blocks go to `self.carried`, half a
    /// batch of them at most.
    pub(super) fn evacuate(&mut self) {
        let geometry = self.inner.ring.geometry;
        let Some(open) = &self.open else { return };
        let batch = Self::buffer_bytes(&self.inner);
        let most = batch / 2;
        let after = open.offset - geometry.first_batch() + batch;
        let full = after * 1000 / geometry.batch_room();
        let used = (open.contents.places.len() * 1000 / geometry.max_batches()) as u64;
        // A little ahead, so that the last of it comes in time.
        let due = full.max(used) * 5 / 4 + 50;
        let mut bytes: u64 = self.carried.iter().map(Carried::bytes).sum();
        while bytes < most
            && let Some(evacuation) = &mut self.evacuation
            && evacuation.done < evacuation.places.len()
            && (evacuation.done * 1000 / evacuation.places.len()) as u64 <= due
        {
            let place = evacuation.places[evacuation.done];
            evacuation.done += 1;
            if evacuation.least_rank < RANKS && evacuation.left_bytes > 0 {
                bytes += self.evacuate_batch(place);
            }
        }
    }

    /// Takes the worthy blocks of one batch along. Returns their bytes.
    fn evacuate_batch(&mut self, place: BatchPlace) -> u64 {
        let Some(evacuation) = &self.evacuation else { return 0 };
        let (segment, seq) = (evacuation.segment, evacuation.seq);
        let (least, mut left) = (evacuation.least_rank, evacuation.left_bytes);
        let mut chosen: Vec<(Identity, Class, u8, Place)> = Vec::new();
        self.read_log(segment, seq, place, |log| {
            for record in log.records() {
                let LogRecord::Block { hash, .. } = record else { continue };
                let Some((place, units, rank)) = self.worth(segment, record) else { continue };
                let bytes = u64::from(units) * UNIT_BYTES;
                if rank < least || bytes > left {
                    continue;
                }
                if let Some(known) = self.inner.index.find(Identity(hash)) {
                    left -= bytes;
                    chosen.push((Identity(hash), known.class, known.hits / 2, place));
                }
            }
        });
        // In the order of the log, which is that of their places.
        let (Some(first), Some(last)) = (chosen.first(), chosen.last()) else { return 0 };
        let start = u64::from(first.3.unit) * UNIT_BYTES / PAGE_BYTES * PAGE_BYTES;
        let end = u64::from(last.3.unit + last.3.units) * UNIT_BYTES;
        let at = self.inner.ring.geometry.offset(segment) + start;
        let bytes = end.next_multiple_of(PAGE_BYTES).saturating_sub(start);
        let Some(buffer) = self.read(at, bytes).map(Arc::new) else { return 0 };
        let seed = BlockSeed::new(self.inner.ring.guid(), seq);
        let carried = chosen.into_iter().map(|(id, class, hits, old)| {
            let at = (u64::from(old.unit) * UNIT_BYTES).saturating_sub(start) as usize;
            Carried { id, class, hits, old, seed, buffer: Arc::clone(&buffer), at }
        });
        let before = self.carried.len();
        self.carried.extend(carried);
        let bytes = self.carried[before..].iter().map(Carried::bytes).sum();
        if let Some(evacuation) = &mut self.evacuation {
            evacuation.left_bytes = left;
        }
        bytes
    }
}
