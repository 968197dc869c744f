//! Scans the log backward, newest segment first, for blocks that are current in the index.

use std::collections::VecDeque;

use forebay_base::arena::Buffer;
use forebay_cache::{Class, Key};

use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::format::{BatchExtent, BatchHeader, Footer, LogBlock, LogRecord, PAGE_BYTES};
use crate::record::{BlockAddr, KeyHash, RecordState};
use crate::shared::L2Shared;

/// Batches whose logs a thread reads before their blocks. Threads take turns, so smaller steps keep
/// the order closer to newest first.
const BATCHES_PER_STEP: usize = 4;
/// Segments whose batches are located at once.
const SEGMENTS_AT_ONCE: usize = 8;
/// A log that claims to be longer is skipped: no batch has that many records.
const MAX_LOG_BYTES: u64 = 8 << 20;

/// A block that was current when its log was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentBlock {
    pub(super) hash: KeyHash,
    pub(super) addr: BlockAddr,
    /// The sequence number of its segment.
    pub(super) seq: u64,
    pub(super) class: Class,
    pub(super) hits: u8,
}

/// The rest of the log, back in time.
#[derive(Default)]
pub(super) struct LogScan {
    /// Sequence numbers of the remaining segments, newest last.
    seqs: Vec<u64>,
    /// Remaining batches of the segments taken last, newest last.
    batches: VecDeque<Batch>,
}

/// A batch: the sequence number of its segment, and its extent there.
pub(super) type Batch = (u64, BatchExtent);

impl LogScan {
    /// A scan of the log up to the segment `newest`.
    pub(super) fn new<K: Key, V: Send + Sync + 'static>(
        shared: &L2Shared<K, V>,
        newest: u64,
    ) -> Self {
        let segments = 0..shared.ring.geometry.segments;
        let used = segments
            .map(|segment| shared.ring.seq(segment))
            .filter(|seq| (1..=newest).contains(seq));
        let mut seqs: Vec<u64> = used.collect();
        seqs.sort_unstable();
        Self { seqs, batches: VecDeque::new() }
    }

    /// The next few batches of segments that the rebuild has read. Waits for the first segment, but
    /// not for more. Empty at the end, or if the L2 is not open.
    ///
    /// # Errors
    /// If the device hangs or no memory is free for the read. Other unreadable parts are skipped
    /// and counted.
    pub(super) fn next_batches<K: Key, V: Send + Sync + 'static>(
        &mut self,
        shared: &L2Shared<K, V>,
    ) -> Result<Vec<Batch>, IoError> {
        let mut batches = Vec::with_capacity(BATCHES_PER_STEP);
        while batches.len() < BATCHES_PER_STEP {
            if let Some(batch) = self.batches.pop_back() {
                batches.push(batch);
                continue;
            }
            let seqs = self.next_segments(shared, batches.is_empty());
            if seqs.is_empty() {
                break;
            }
            self.batches.extend(shared.locate_batches(&seqs)?);
        }
        Ok(batches)
    }

    /// The next few segments that the rebuild has read, newest first.
    fn next_segments<K: Key, V: Send + Sync + 'static>(
        &mut self,
        shared: &L2Shared<K, V>,
        waits: bool,
    ) -> Vec<u64> {
        let mut seqs = Vec::with_capacity(SEGMENTS_AT_ONCE);
        while seqs.len() < SEGMENTS_AT_ONCE
            && let Some(seq) = self.seqs.last().copied()
        {
            let may_wait = waits && seqs.is_empty();
            if !may_wait && !shared.rebuild.has_reached(seq) {
                break;
            }
            if !shared.rebuild.wait_for(seq) || !shared.status.is_open() {
                self.seqs.clear();
                break;
            }
            self.seqs.pop();
            seqs.push(seq);
        }
        seqs
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// The current blocks of these batches, by segment from new to old, and by address within each.
    ///
    /// # Errors
    /// As [`LogScan::next_batches`].
    pub(super) fn current_blocks(&self, batches: &[Batch]) -> Result<Vec<CurrentBlock>, IoError> {
        let geometry = self.ring.geometry;
        let base = |seq: u64| geometry.offset(geometry.segment_of(seq));
        let ranges =
            batches.iter().map(|(seq, extent)| (base(*seq) + extent.offset, extent.log_bytes));
        let (mut found, mut error) = (Vec::new(), None);
        self.io.read_ranges_limited(BATCHES_PER_STEP, ranges, |number, read| {
            let (seq, extent) = batches[number];
            match read {
                Ok(log) => {
                    let space = geometry.footer_offset() - extent.offset;
                    let name = (self.ring.guid(), seq);
                    let log = LogBlock::parse(name, &log, (extent.offset, space));
                    found.extend(log.iter().flat_map(|log| self.current(seq, *log)));
                }
                Err(IoError::Device(_)) => self.counters.add(L2Counters::WARM_UP_ERRORS, 0, 1),
                Err(other) => error = Some(other),
            }
        });
        found
            .sort_unstable_by_key(|one: &CurrentBlock| (std::cmp::Reverse(one.seq), one.addr.unit));
        error.map_or(Ok(found), Err)
    }

    /// Blocks of a log that the index has at exactly that address.
    fn current<'a>(
        &'a self,
        seq: u64,
        log: LogBlock<'a>,
    ) -> impl Iterator<Item = CurrentBlock> + 'a {
        let segment = self.ring.geometry.segment_of(seq);
        log.records().filter_map(move |record| {
            let LogRecord::Block { hash, unit, units, .. } = record else { return None };
            let (hash, addr) = (KeyHash(hash), BlockAddr { segment, unit, units });
            let known = self.index.find(hash)?;
            let is_it = known.addr == addr && known.state == RecordState::Live;
            is_it.then_some(CurrentBlock { hash, addr, seq, class: known.class, hits: known.hits })
        })
    }

    /// Locates the batches of these segments, the oldest first.
    fn locate_batches(&self, seqs: &[u64]) -> Result<Vec<Batch>, IoError> {
        let geometry = self.ring.geometry;
        let at = |seq: &u64| geometry.offset(geometry.segment_of(*seq)) + geometry.footer_offset();
        let ranges = seqs.iter().map(|seq| (at(seq), geometry.footer_bytes()));
        let between = (geometry.first_batch_offset(), geometry.footer_offset());
        let (mut footers, mut error) = (vec![None; seqs.len()], None);
        self.io.read_ranges_limited(SEGMENTS_AT_ONCE, ranges, |number, read| match read {
            Ok(bytes) => {
                let name = (self.ring.guid(), seqs[number]);
                let footer = Footer::parse(name, &bytes, between);
                footers[number] = footer.map(|footer| footer.extents().collect::<Vec<_>>());
            }
            Err(IoError::Device(_)) => self.counters.add(L2Counters::WARM_UP_ERRORS, 0, 1),
            Err(other) => error = Some(other),
        });
        if let Some(error) = error {
            return Err(error);
        }
        let mut batches = Vec::new();
        for (seq, extents) in seqs.iter().zip(footers).rev() {
            let extents = match extents {
                Some(extents) => extents,
                None => self.walk(*seq)?,
            };
            let plausible = |extent: &BatchExtent| extent.log_bytes <= MAX_LOG_BYTES;
            let extents = extents.into_iter().filter(plausible);
            batches.extend(extents.map(|extent| (*seq, extent)));
        }
        Ok(batches)
    }

    /// Locates the batches of a segment without a footer, one after the other.
    fn walk(&self, seq: u64) -> Result<Vec<BatchExtent>, IoError> {
        let geometry = self.ring.geometry;
        let base = geometry.offset(geometry.segment_of(seq));
        let name = (self.ring.guid(), seq);
        let (mut extents, mut offset) = (Vec::new(), geometry.first_batch_offset());
        while extents.len() < geometry.max_batches() && self.status.is_open() {
            let space = geometry.footer_offset() - offset;
            if space < PAGE_BYTES {
                break;
            }
            let Some(page) = self.fetch(base + offset, PAGE_BYTES)? else { break };
            let Some((log_bytes, payload)) = BatchHeader::peek(name, &page, space) else { break };
            extents.push(BatchExtent { offset, log_bytes });
            offset += log_bytes + payload;
        }
        Ok(extents)
    }

    /// Reads bytes. Returns `None` if they are unreadable.
    fn fetch(&self, at: u64, bytes: u64) -> Result<Option<Buffer>, IoError> {
        match self.io.read(at, bytes) {
            Ok(buffer) => Ok(Some(buffer)),
            Err(IoError::Device(_)) => {
                self.counters.add(L2Counters::WARM_UP_ERRORS, 0, 1);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}
