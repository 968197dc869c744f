//! Segment changes: seals the open segment and reuses the oldest one.

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::{Class, Key};

use super::reinsert::rank;
use super::{MAX_FAILURES, OpenSegment, SegmentContents, Writer};
use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::format::{
    BatchExtent, BlockSeed, Footer, FooterHeader, LogBlock, LogRecord, PAGE_BYTES, SegmentHeader,
    seal_footer,
};
use crate::record::{BlockAddr, KeyHash, Tombstone};
use crate::shared::L2Shared;
use crate::write_queue::DROPPED_KIND;

impl SegmentContents {
    /// Writes the footer if it is missing, with a few retries.
    pub(crate) fn seal<K: Key, V: Send + Sync + 'static>(
        &mut self,
        shared: &L2Shared<K, V>,
        stamp: u64,
    ) -> Result<(), IoError> {
        let mut failures = 0;
        while !self.sealed && self.seq != 0 {
            let Err(error) = self.write_footer(shared, stamp) else {
                self.sealed = true;
                break;
            };
            shared.counters.add(L2Counters::WRITE_ERRORS, 0, 1);
            failures += 1;
            if failures == MAX_FAILURES || matches!(error, IoError::Stalled(_)) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_footer<K: Key, V: Send + Sync + 'static>(
        &self,
        shared: &L2Shared<K, V>,
        stamp: u64,
    ) -> Result<(), IoError> {
        let geometry = shared.ring.geometry;
        let bytes = geometry.footer_bytes();
        let mut footer = shared.io.alloc(bytes)?;
        footer.zero();
        let Self { seq, records, durable, ref extents, .. } = *self;
        let header = FooterHeader { seq, records, stamp, durable };
        seal_footer(shared.ring.guid(), header, extents, &mut footer);
        let at = geometry.offset(geometry.segment_of(seq)) + geometry.footer_offset();
        shared.io.write(at, footer)?;
        shared.counters.add(L2Counters::WRITTEN_BYTES, 0, bytes);
        Ok(())
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Closes the open segment and opens the next one. After an error the call can be repeated.
    pub(super) fn begin_segment(&mut self) -> Result<(), IoError> {
        if let Some(open) = self.open.take() {
            self.last = open.contents;
            // They are still at their old addresses, and the purge counts them.
            self.reinserted.clear();
        }
        // The footer only speeds up the next rebuild: the header has all that is required.
        if let Err(error @ IoError::Stalled(_)) = self.last.seal(&self.shared, self.stamp) {
            return Err(error);
        }
        let geometry = self.shared.ring.geometry;
        let seq = self.next_seq;
        let segment = geometry.segment_of(seq);
        let old = self.shared.ring.seq(segment);
        self.shared.rebuild.claim_for_reuse(segment);
        let header = SegmentHeader {
            seq,
            stamp: self.stamp,
            floor: self.floor,
            previous_durable: self.last.durable,
            previous_batches: self.last.extents.len() as u32,
        };
        let mut page = self.shared.io.alloc(PAGE_BYTES)?;
        let chain = header.seal(self.shared.ring.guid(), &mut page);
        let at = geometry.offset(segment);
        self.shared.io.write(at, page).inspect_err(|_| {
            self.shared.counters.add(L2Counters::WRITE_ERRORS, 0, 1);
        })?;
        self.shared.counters.add(L2Counters::WRITTEN_BYTES, 0, PAGE_BYTES);
        self.flush()?;
        // The old use is void on the device, so its blocks require no tombstones.
        self.shared.rebuild.finish_reuse(segment);
        if old != 0 {
            self.purge(segment, old);
        }
        self.shared.ring.set_seq(segment, seq);
        // In this order: see `Groups`. During the rebuild, too: it reads no segment that is reused.
        if old != 0 {
            self.shared.groups.prune(old + 1);
        }
        self.reinsertion = None;
        self.shared.ring.set_head(seq, geometry.first_batch_offset());
        self.shared.counters.add(L2Counters::SEGMENTS, 0, 1);
        let contents = SegmentContents {
            seq,
            extents: Vec::new(),
            records: 0,
            chain,
            durable: 0,
            sealed: false,
        };
        let seed = BlockSeed::new(self.shared.ring.guid(), seq);
        let offset = geometry.first_batch_offset();
        self.open = Some(OpenSegment { segment, contents, offset, seed, abandoned: false });
        self.next_seq = seq + 1;
        let round = seq + 1 - geometry.first_seq() >= u64::from(geometry.segments);
        self.shared.has_wrapped.store(round, Ordering::Relaxed);
        self.plan_reinsertion();
        Ok(())
    }

    /// Writes the footer of the open segment at the end of the log.
    pub(super) fn seal(&mut self) -> Result<(), IoError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.last = open.contents;
        self.last.seal(&self.shared, self.stamp)?;
        self.flush()
    }

    /// Removes the records of a segment's old use from the index.
    fn purge(&mut self, segment: u32, old: u64) {
        let index = &self.shared.index;
        let (mut evicted, mut lost, mut in_memory) = ([0; 2], [0; 2], [0; 2]);
        let extents = match self.reinsertion.take() {
            Some(reinsertion) if reinsertion.seq == old => Some(reinsertion.extents),
            _ => self.batch_extents(segment, old),
        };
        // Bad records of a failed batch are in no log.
        let mut complete = extents.is_some() && !self.failed_segments.remove(&old);
        for extent in extents.into_iter().flatten() {
            let read = self.read_log(segment, old, extent, |log| {
                let end = BlockAddr { segment, unit: log.end_unit(), units: 0 };
                for record in log.records() {
                    let (hash, addr) = match record {
                        LogRecord::Block { hash, unit, units, .. } => {
                            (hash, BlockAddr { segment, unit, units })
                        }
                        LogRecord::Tombstone(Tombstone::Group(_)) => continue,
                        LogRecord::Tombstone(Tombstone::Key(hash)) => {
                            // Tombstones are in the index only while the rebuild runs. One that
                            // stayed would seem newest as soon as its segment has its new sequence
                            // number. It would keep a valid block out of the index, and that block
                            // would then be forgotten without a tombstone.
                            index.remove_if_at(hash, end);
                            continue;
                        }
                    };
                    if let Some(gone) = index.remove_if_at(KeyHash(hash), addr) {
                        evicted[gone.class as usize] += 1;
                        lost[gone.class as usize] += u64::from(rank(&gone) > 0);
                        in_memory[gone.class as usize] += u64::from(gone.in_memory);
                        // Each hit counts as one more request.
                        (0..gone.hits).for_each(|_| {
                            _ = self.shared.frequency_sketch.increment(KeyHash(hash))
                        });
                        if gone.class == Class::Data && !gone.in_memory {
                            self.shared.admission.observe(KeyHash(hash), DROPPED_KIND);
                        }
                    }
                }
            });
            complete &= read.is_some();
        }
        if !complete {
            let removed = index.remove_segment(segment);
            evicted[Class::Data as usize] += removed;
        }
        for class in Class::ALL.map(|class| class as usize) {
            self.shared.counters.add(L2Counters::EVICTED, class, evicted[class]);
            self.shared.counters.add(L2Counters::REINSERT_LOST, class, lost[class]);
            self.shared.counters.add(L2Counters::EVICTED_IN_MEMORY, class, in_memory[class]);
        }
    }

    /// The extents of a full segment's batches, from its footer.
    pub(super) fn batch_extents(&self, segment: u32, seq: u64) -> Option<Vec<BatchExtent>> {
        if seq == self.last.seq {
            return Some(self.last.extents.clone());
        }
        let geometry = self.shared.ring.geometry;
        let at = geometry.offset(segment) + geometry.footer_offset();
        let bytes = self.read(at, geometry.footer_bytes())?;
        let between = (geometry.first_batch_offset(), geometry.footer_offset());
        let footer = Footer::parse((self.shared.ring.guid(), seq), &bytes, between)?;
        Some(footer.extents().collect())
    }

    /// Reads a log block and passes it to `f`.
    pub(super) fn read_log<R>(
        &self,
        segment: u32,
        seq: u64,
        extent: BatchExtent,
        f: impl FnOnce(LogBlock<'_>) -> R,
    ) -> Option<R> {
        let geometry = self.shared.ring.geometry;
        let at = geometry.offset(segment) + extent.offset;
        let bytes = self.read(at, extent.log_bytes)?;
        let space_bytes = geometry.footer_offset() - extent.offset;
        LogBlock::parse((self.shared.ring.guid(), seq), &bytes, (extent.offset, space_bytes)).map(f)
    }

    /// Reads bytes, unless the device hangs.
    pub(super) fn read(&self, at: u64, bytes: u64) -> Option<Buffer> {
        if self.stalled.get() {
            return None;
        }
        let read = self.shared.io.read(at, bytes).inspect_err(|error| {
            self.count_read_error();
            self.stalled.set(matches!(error, IoError::Stalled(_)));
        });
        read.ok()
    }

    /// Returns an error if the device hangs.
    pub(super) fn check_stalled(&self) -> Result<(), IoError> {
        match self.stalled.get() {
            true => Err(IoError::Stalled(format!("read of {}", self.shared.io.device.info().name))),
            false => Ok(()),
        }
    }

    pub(super) fn count_read_error(&self) {
        self.shared.counters.add(L2Counters::READ_ERRORS, 0, 1);
    }
}
