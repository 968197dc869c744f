//! Reads the logs of one segment.
//!
//! Only batches that were written without an error count. The footer and the next header say which.
//! If the newest segment has neither, all its complete batches count: a removal needs the next
//! header and a tombstone, so none returned after a failed batch at the end.
//!
//! # Damage
//!
//! A durable batch that is missing may have held a tombstone. So may any batch that counts and that
//! the device fails to read. Everything before it is void. So is everything if the footer of the
//! newest segment cannot be read, because it may exclude a batch. *Damage* is the log position
//! before which nothing is valid. It is made durable as the *floor* of the log before the rebuild
//! ends. Otherwise a batch that becomes readable later would restore keys that were forgotten
//! without a tombstone. With immutable keys none of this matters.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::Key;

use super::reads::RebuildError;
use super::run::SegmentHeaders;
use crate::counters::L2Counters;
use crate::forget::tombstone;
use crate::format::{
    BatchExtent, BatchHeader, Footer, FooterHeader, LogBlock, LogRecord, PAGE_BYTES,
};
use crate::record::{
    BlockAddr, KeyHash, MAX_SEGMENT_UNITS, Record, RecordState, Tombstone, UNIT_BYTES,
};
use crate::shared::L2Shared;
use crate::writer::SegmentContents;

/// Records inserted into the index at once. Larger batches sort better.
const INSERT_BATCH_RECORDS: usize = 128 << 10;
/// The same for the first batch, which is smaller so that recently used blocks are served soon.
const FIRST_BATCH_RECORDS: usize = 8 << 10;
/// Most bytes that the search for a hole reads at once.
const HOLE_SEARCH_BYTES: u64 = 1 << 20;

/// The state that the rebuild's threads share.
pub(super) struct Reader<K: Key, V: Send + Sync + 'static> {
    shared: Arc<L2Shared<K, V>>,
    pub(super) headers: SegmentHeaders,
}

impl<K: Key, V: Send + Sync + 'static> Reader<K, V> {
    /// Registers the calling thread as one of the L2's own until it ends.
    pub(super) fn enter_thread(&self) {
        self.shared.enter_thread();
    }
}

/// The contents of the newest segment.
pub(super) struct NewestSegment {
    pub(super) contents: SegmentContents,
    pub(super) stamp: u64,
    pub(super) floor: (u64, u32),
    /// End of its last batch, in bytes.
    pub(super) end: u64,
    /// Whether all batches that count were read.
    pub(super) complete: bool,
}

/// The footer of a segment.
enum SegmentFooter {
    /// With the extents of the batches.
    Valid(Vec<BatchExtent>, FooterHeader),
    /// There is none.
    Missing,
    /// The device returned an error.
    Unreadable,
}

/// Collects records and inserts them into the index.
struct RecordSink<'a, K: Key, V: Send + Sync + 'static> {
    shared: &'a L2Shared<K, V>,
    segment: u32,
    seq: u64,
    records: Vec<(KeyHash, Record)>,
}

impl<K: Key, V: Send + Sync + 'static> RecordSink<'_, K, V> {
    fn add_log(&mut self, log: LogBlock<'_>) -> Result<(), RebuildError> {
        let (segment, end_unit) = (self.segment, log.end_unit());
        let floor = self.shared.rebuild.damage();
        let (mut blocks, mut tombstones) = (0, 0);
        for record in log.records() {
            let (hash, record) = match record {
                LogRecord::Block { hash, unit, units, class, hits } => {
                    if (self.seq, unit) < floor {
                        continue;
                    }
                    blocks += 1;
                    let addr = BlockAddr { segment, unit, units };
                    let state = RecordState::Live;
                    let (in_memory, undecodable) = (false, false);
                    (hash, Record { addr, class, hits, in_memory, undecodable, state })
                }
                LogRecord::Tombstone(Tombstone::Group(group)) => {
                    tombstones += 1;
                    self.shared.groups.set_position(group, (self.seq, end_unit));
                    continue;
                }
                LogRecord::Tombstone(Tombstone::Key(hash)) => {
                    tombstones += 1;
                    let addr = BlockAddr { segment, unit: end_unit, units: 0 };
                    (hash.0, tombstone(addr))
                }
            };
            self.records.push((KeyHash(hash), record));
        }
        let rebuild = &self.shared.rebuild;
        rebuild.records.fetch_add(blocks, Ordering::Relaxed);
        rebuild.tombstones.fetch_add(tombstones, Ordering::Relaxed);
        self.shared.counters.add(L2Counters::REBUILD_BLOCKS, 0, blocks);
        self.shared.counters.add(L2Counters::REBUILD_TOMBSTONES, 0, tombstones);
        if self.records.len() >= INSERT_BATCH_RECORDS { self.insert_all() } else { Ok(()) }
    }

    fn insert_all(&mut self) -> Result<(), RebuildError> {
        let ring = &self.shared.ring;
        let newer = |old, new| ring.is_newer(old, new);
        let expected = self.shared.rebuild.expected_records();
        let put = self.shared.index.insert_batch(&self.records, newer, expected);
        for (hash, addr) in self.shared.rebuild.find_superseded(&self.records) {
            self.shared.mark_bad(hash, addr);
        }
        self.records.clear();
        // The rejected records may include a tombstone.
        put.map(drop)
            .map_err(|error| RebuildError::NoMemory(format!("the index cannot grow: {error}")))
    }
}

impl<K: Key, V: Send + Sync + 'static> Reader<K, V> {
    pub(super) fn new(shared: Arc<L2Shared<K, V>>, headers: SegmentHeaders) -> Self {
        Self { shared, headers }
    }

    pub(super) fn shared(&self) -> &Arc<L2Shared<K, V>> {
        &self.shared
    }

    fn sink(&self, segment: u32, seq: u64) -> RecordSink<'_, K, V> {
        RecordSink { shared: &self.shared, segment, seq, records: Vec::new() }
    }

    fn record_damage(&self, at: (u64, u32)) {
        // A rebuild that was stopped has not read everything.
        if self.shared.rebuild.was_incomplete() {
            return;
        }
        self.shared.counters.add(L2Counters::REBUILD_DAMAGED, 0, 1);
        self.shared.rebuild.record_damage(at);
    }

    /// Records damage for segments without a header. Their batches may have held tombstones.
    pub(super) fn note_missing(&self) {
        let geometry = self.shared.ring.geometry;
        for seq in self.headers.missing(geometry) {
            self.record_damage((seq, MAX_SEGMENT_UNITS));
        }
    }

    /// Claims and reads segments until none is left. A segment counts as read once its records are
    /// in the index.
    pub(super) fn work(&self) -> Result<(), RebuildError> {
        // Segments that were read in part never count as read: they may hold tombstones.
        self.read_claimed().inspect_err(|_| self.shared.rebuild.stop())
    }

    fn read_claimed(&self) -> Result<(), RebuildError> {
        let mut sink = self.sink(0, 0);
        let (mut read, mut batch_records) = (Vec::new(), FIRST_BATCH_RECORDS);
        loop {
            let claimed = self.shared.rebuild.claim();
            if let Some(seq) = claimed {
                read.push(seq);
                self.read(&mut sink, seq)?;
            }
            if claimed.is_none() || sink.records.len() >= batch_records {
                sink.insert_all()?;
                if self.shared.rebuild.was_incomplete() {
                    // The last segments may have been read in part.
                    return Ok(());
                }
                read.drain(..).for_each(|seq| self.shared.rebuild.finish(seq));
                batch_records = (2 * batch_records).min(INSERT_BATCH_RECORDS);
            }
            if claimed.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads a segment other than the newest. Its records may stay in the sink.
    fn read<'a>(&'a self, sink: &mut RecordSink<'a, K, V>, seq: u64) -> Result<(), RebuildError> {
        let geometry = self.shared.ring.geometry;
        let segment = geometry.segment_of(seq);
        (sink.segment, sink.seq) = (segment, seq);
        if self.headers.get(segment, seq).is_none() {
            return Ok(());
        }
        // The next header says which batches count and how many were durable. If it is lost, that
        // is damage, and this segment is older. With immutable keys it does not matter.
        let next = self.headers.get(geometry.segment_of(seq + 1), seq + 1);
        let (durable, batches) = next.map_or((0, usize::MAX), |(header, _)| {
            (header.previous_durable, header.previous_batches as usize)
        });
        match self.footer(segment, seq)? {
            SegmentFooter::Valid(extents, _) if next.is_none() || extents.len() == batches => {
                self.read_logs(sink, &extents, durable)?;
            }
            // The next header suffices.
            _ => {
                let walked = self.walk(sink, batches)?;
                // A batch that cannot be read has already been recorded.
                if walked.complete && walked.contents.extents.len() < durable as usize {
                    self.record_damage((seq, MAX_SEGMENT_UNITS));
                }
            }
        }
        Ok(())
    }

    fn footer(&self, segment: u32, seq: u64) -> Result<SegmentFooter, RebuildError> {
        let geometry = self.shared.ring.geometry;
        let at = geometry.offset(segment) + geometry.footer_offset();
        let Some(bytes) = self.shared.read_one_for_rebuild(at, geometry.footer_bytes())? else {
            return Ok(SegmentFooter::Unreadable);
        };
        let between = (geometry.first_batch_offset(), geometry.footer_offset());
        let footer = Footer::parse((self.shared.ring.guid(), seq), &bytes, between);
        Ok(footer.map_or(SegmentFooter::Missing, |footer| {
            SegmentFooter::Valid(footer.extents().collect(), footer.header)
        }))
    }

    /// Reads the log blocks at these extents concurrently. All must be readable, and the first
    /// `durable` must be valid. Returns whether all are.
    fn read_logs(
        &self,
        sink: &mut RecordSink<'_, K, V>,
        extents: &[BatchExtent],
        durable: u32,
    ) -> Result<bool, RebuildError> {
        let geometry = self.shared.ring.geometry;
        let (segment, seq) = (sink.segment, sink.seq);
        let guid = self.shared.ring.guid();
        let base = geometry.offset(segment);
        let range = |number: usize| (base + extents[number].offset, extents[number].log_bytes);
        let (mut outcome, mut all) = (Ok(()), true);
        let read = self.shared.read_for_rebuild(extents.len(), range, |number, read| {
            let extent = extents[number];
            let space = geometry.footer_offset() - extent.offset;
            let (parsed, written) = match &read {
                // An invalid batch that is not known to be durable was never written.
                Some(bytes) => {
                    let parsed = LogBlock::parse((guid, seq), bytes, (extent.offset, space))
                        .filter(|log| log.header.number as usize == number);
                    (parsed, number < durable as usize)
                }
                // It may hold a batch, and may be readable after the next restart.
                None => (None, true),
            };
            all &= parsed.is_some();
            match parsed {
                Some(log) if outcome.is_ok() => outcome = sink.add_log(log),
                Some(_) => {}
                None if written => {
                    let end = extents.get(number + 1).map_or(u64::MAX, |next| next.offset);
                    let unit = u32::try_from(end / UNIT_BYTES).unwrap_or(u32::MAX);
                    self.record_damage((seq, unit.min(MAX_SEGMENT_UNITS)));
                }
                None => {}
            }
        });
        read.and(outcome).map(|()| all)
    }

    /// Reads batch after batch along the chain, at most `most`. A place that cannot be read may
    /// hold one of them, and is damage.
    fn walk(
        &self,
        sink: &mut RecordSink<'_, K, V>,
        most: usize,
    ) -> Result<NewestSegment, RebuildError> {
        let (segment, seq) = (sink.segment, sink.seq);
        let shared = &self.shared;
        let geometry = shared.ring.geometry;
        let guid = shared.ring.guid();
        let (header, chain) = self.headers.get(segment, seq).unwrap_or_default();
        let mut contents = SegmentContents { seq, chain, ..SegmentContents::default() };
        let (mut offset, mut stamp) = (geometry.first_batch_offset(), header.stamp);
        let most = most.min(geometry.max_batches());
        let mut complete = true;
        while contents.extents.len() < most && !shared.rebuild.was_incomplete() {
            let space = geometry.footer_offset() - offset;
            let at = geometry.offset(segment) + offset;
            if space < PAGE_BYTES {
                break;
            }
            let Some(page) = shared.read_one_for_rebuild(at, PAGE_BYTES)? else {
                complete = false;
                break;
            };
            let Some((log_bytes, payload)) = BatchHeader::peek((guid, seq), &page, space) else {
                break;
            };
            let rest = match log_bytes > PAGE_BYTES {
                true => match shared.read_one_for_rebuild(at, log_bytes)? {
                    Some(log) => log,
                    None => {
                        complete = false;
                        break;
                    }
                },
                false => page,
            };
            let parsed = LogBlock::parse((guid, seq), &rest, (offset, space));
            let Some(log) = parsed.filter(|log| {
                log.header.number as usize == contents.extents.len()
                    && log.header.previous == contents.chain
            }) else {
                break;
            };
            sink.add_log(log)?;
            stamp = stamp.max(log.header.stamp);
            contents.chain = log.chain;
            contents.records += log.len() as u64;
            contents.durable = contents.durable.max(log.header.durable);
            contents.extents.push(BatchExtent { offset, log_bytes });
            offset += log_bytes + payload;
        }
        if !complete {
            self.record_damage((seq, MAX_SEGMENT_UNITS));
        }
        Ok(NewestSegment { contents, stamp, floor: header.floor, end: offset, complete })
    }

    /// Reads the newest segment.
    pub(super) fn read_newest(&self, seq: u64) -> Result<NewestSegment, RebuildError> {
        let geometry = self.shared.ring.geometry;
        let segment = geometry.segment_of(seq);
        let (header, _) = self.headers.get(segment, seq).unwrap_or_default();
        // The log before the floor stays void.
        if header.floor > (0, 0) {
            self.shared.rebuild.adopt_floor(header.floor);
        }
        let mut sink = self.sink(segment, seq);
        let newest = match self.footer(segment, seq)? {
            SegmentFooter::Valid(extents, footer) => {
                let (records, durable) = (footer.records, footer.durable);
                let complete = self.read_logs(&mut sink, &extents, durable)?;
                let stamp = header.stamp.max(footer.stamp);
                let chain = 0;
                let contents =
                    SegmentContents { seq, extents, records, chain, durable, sealed: true };
                let end = geometry.footer_offset();
                NewestSegment { contents, stamp, floor: header.floor, end, complete }
            }
            footer => {
                let walked = self.walk(&mut sink, usize::MAX)?;
                if !self.shared.immutable_keys && walked.complete {
                    match footer {
                        // It may exclude the last batch, and a key in it may have been forgotten
                        // without a tombstone.
                        SegmentFooter::Unreadable => self.record_damage((seq, MAX_SEGMENT_UNITS)),
                        _ => self.check_for_hole(segment, seq, &walked)?,
                    }
                }
                walked
            }
        };
        sink.insert_all()?;
        Ok(newest)
    }

    /// Searches behind the end of the newest segment's log for a batch that counts a missing batch
    /// as durable. The end is then a hole, and nothing before it is valid.
    fn check_for_hole(
        &self,
        segment: u32,
        seq: u64,
        walked: &NewestSegment,
    ) -> Result<(), RebuildError> {
        let geometry = self.shared.ring.geometry;
        let guid = self.shared.ring.guid();
        let count = walked.contents.extents.len() as u32;
        let base = geometry.offset(segment);
        let mut offset = walked.end;
        let stopped = || self.shared.rebuild.was_incomplete();
        // Batches begin at pages. A read of a part of a sector fails.
        let search_bytes = self.shared.tunables.batch_bytes().min(HOLE_SEARCH_BYTES);
        let search_bytes = search_bytes / PAGE_BYTES * PAGE_BYTES;
        while offset < geometry.footer_offset() && !stopped() {
            let bytes = search_bytes.min(geometry.footer_offset() - offset);
            let Some(found) = self.shared.read_one_for_rebuild(base + offset, bytes)? else {
                // If this was durable once, it may have held tombstones.
                self.record_damage((seq, MAX_SEGMENT_UNITS));
                return Ok(());
            };
            for (number, page) in found.chunks(PAGE_BYTES as usize).enumerate() {
                let at = offset + number as u64 * PAGE_BYTES;
                let space = geometry.footer_offset() - at;
                let Some((log_bytes, _)) = BatchHeader::peek((guid, seq), page, space) else {
                    continue;
                };
                // Each page may claim a long log, and none is verified yet.
                if stopped() {
                    return Ok(());
                }
                let Some(log) = self.shared.read_one_for_rebuild(base + at, log_bytes)? else {
                    self.record_damage((seq, MAX_SEGMENT_UNITS));
                    return Ok(());
                };
                let parsed = LogBlock::parse((guid, seq), &log, (at, space));
                if parsed.is_some_and(|log| log.header.durable > count) {
                    self.record_damage((seq, MAX_SEGMENT_UNITS));
                    return Ok(());
                }
            }
            offset += bytes;
        }
        Ok(())
    }
}
