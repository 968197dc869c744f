//! Reading what one segment holds: its logs.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::Key;

use super::run::Heads;
use crate::counters::LevelCounters;
use crate::format::{BatchHead, BatchPlace, Footer, LogBlock, LogRecord, PAGE_BYTES};
use crate::inner::Inner;
use crate::medium::Trouble;
use crate::record::{Identity, MAX_SEGMENT_UNITS, Place, Record, State, UNIT_BYTES};
use crate::writer::Contents;

/// Records that are put into the index at once: the more, the better they can be sorted before.
const AT_ONCE: usize = 128 << 10;
/// The same of the first lot: what was used last is to be served soon.
const FIRST_LOT: usize = 8 << 10;
/// Bytes read at once when a segment is searched for batches behind a hole.
const SEARCH_BYTES: u64 = 1 << 20;

/// What the rebuild's threads share.
pub(super) struct Reader<K: Key, V: Send + Sync + 'static> {
    inner: Arc<Inner<K, V>>,
    pub(super) heads: Heads,
}

impl<K: Key, V: Send + Sync + 'static> Reader<K, V> {
    /// This thread is one of the level's own, until it ends.
    pub(super) fn enter_thread(&self) {
        self.inner.enter_thread();
    }
}

/// What the newest segment says.
pub(super) struct Newest {
    pub(super) contents: Contents,
    pub(super) stamp: u64,
    pub(super) floor: (u64, u32),
    /// Where its last batch ends, in bytes.
    pub(super) end: u64,
    /// Whether all batches were read that it says it has.
    pub(super) whole: bool,
}

/// Records on their way into the index.
struct Sink<'a, K: Key, V: Send + Sync + 'static> {
    inner: &'a Inner<K, V>,
    segment: u32,
    seq: u64,
    records: Vec<(Identity, Record)>,
}

impl<K: Key, V: Send + Sync + 'static> Sink<'_, K, V> {
    fn take(&mut self, log: LogBlock<'_>) -> Result<(), String> {
        let (segment, end_unit) = (self.segment, log.end_unit());
        let floor = self.inner.rebuild.damage();
        let (mut blocks, mut tombs) = (0, 0);
        for record in log.records() {
            let (hash, record) = match record {
                LogRecord::Block { hash, unit, units, class, hits } => {
                    if (self.seq, unit) < floor {
                        continue;
                    }
                    blocks += 1;
                    let place = Place { segment, unit, units };
                    (hash, Record { place, class, hits, in_memory: false, state: State::Live })
                }
                LogRecord::Tomb { hash } => {
                    tombs += 1;
                    let place = Place { segment, unit: end_unit, units: 0 };
                    let class = forebay_cache::Class::Data;
                    (hash, Record { place, class, hits: 0, in_memory: false, state: State::Tomb })
                }
            };
            self.records.push((Identity(hash), record));
        }
        let rebuild = &self.inner.rebuild;
        rebuild.records.fetch_add(blocks, Ordering::Relaxed);
        rebuild.tombstones.fetch_add(tombs, Ordering::Relaxed);
        self.inner.counters.add(LevelCounters::REBUILD_BLOCKS, 0, blocks);
        self.inner.counters.add(LevelCounters::REBUILD_TOMBSTONES, 0, tombs);
        if self.records.len() >= AT_ONCE { self.pour() } else { Ok(()) }
    }

    fn pour(&mut self) -> Result<(), String> {
        let ring = &self.inner.ring;
        let newer = |old, new| ring.is_newer(old, new);
        let expected = self.inner.rebuild.expected_records();
        let put = self.inner.index.insert_batch(&self.records, newer, expected);
        self.records.clear();
        // A tombstone may be among what did not go in.
        put.map(drop).map_err(|error| format!("the index cannot grow: {error}"))
    }
}

impl<K: Key, V: Send + Sync + 'static> Reader<K, V> {
    pub(super) fn new(inner: Arc<Inner<K, V>>, heads: Heads) -> Self {
        Self { inner, heads }
    }

    pub(super) fn inner(&self) -> &Arc<Inner<K, V>> {
        &self.inner
    }

    fn sink(&self, segment: u32, seq: u64) -> Sink<'_, K, V> {
        Sink { inner: &self.inner, segment, seq, records: Vec::new() }
    }

    fn damaged(&self, at: (u64, u32)) {
        self.inner.counters.add(LevelCounters::REBUILD_DAMAGED, 0, 1);
        self.inner.rebuild.damaged(at);
    }

    /// Segments without a header are damage: their batches may have had tombstones.
    pub(super) fn note_missing(&self) {
        let geometry = self.inner.ring.geometry;
        for seq in self.heads.missing(geometry) {
            self.damaged((seq, MAX_SEGMENT_UNITS));
        }
    }

    /// Takes segments and reads them until there are no more. A segment counts as read once its records are in the index.
    pub(super) fn work(&self) -> Result<(), String> {
        let mut sink = self.sink(0, 0);
        let (mut read, mut lot) = (Vec::new(), FIRST_LOT);
        loop {
            let claimed = self.inner.rebuild.claim();
            let mut outcome = claimed.map_or(Ok(()), |seq| {
                read.push(seq);
                self.read(&mut sink, seq)
            });
            if outcome.is_err() || claimed.is_none() || sink.records.len() >= lot {
                outcome = outcome.and(sink.pour());
                read.drain(..).for_each(|seq| self.inner.rebuild.finish(seq));
                lot = (2 * lot).min(AT_ONCE);
            }
            outcome?;
            if claimed.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads a segment that is not the newest. Its records may be left in the sink.
    fn read<'a>(&'a self, sink: &mut Sink<'a, K, V>, seq: u64) -> Result<(), String> {
        let geometry = self.inner.ring.geometry;
        let segment = geometry.segment_of(seq);
        (sink.segment, sink.seq) = (segment, seq);
        if self.heads.of(segment, seq).is_none() {
            return Ok(());
        }
        // The next header knows which batches count, and how many were durable. If it is lost, that
        // is damage of its own, and this is older; with immutable keys it does not matter.
        let next = self.heads.of(geometry.segment_of(seq + 1), seq + 1);
        let (durable, batches) = next.map_or((0, usize::MAX), |(head, _)| {
            (head.previous_durable, head.previous_batches as usize)
        });
        let footer = self.footer(segment, seq);
        match footer.filter(|(places, _)| next.is_none() || places.len() == batches) {
            Some((places, _)) => _ = self.read_places(sink, &places, durable)?,
            None => {
                let walked = self.walk(sink, batches)?;
                if walked.contents.places.len() < durable as usize {
                    self.damaged((seq, MAX_SEGMENT_UNITS));
                }
            }
        }
        Ok(())
    }

    /// The places and the count of durable batches that a segment's footer says, if it has one.
    fn footer(&self, segment: u32, seq: u64) -> Option<(Vec<BatchPlace>, (u32, u64, u64))> {
        let geometry = self.inner.ring.geometry;
        let at = geometry.offset(segment) + geometry.footer_offset();
        let bytes = self.inner.medium.read(at, geometry.footer_bytes()).ok()?;
        let between = (geometry.first_batch(), geometry.footer_offset());
        let footer = Footer::parse((self.inner.ring.guid(), seq), &bytes, between)?;
        let head = footer.head;
        Some((footer.places().collect(), (head.durable, head.records, head.stamp)))
    }

    /// Reads log blocks at known places, several at once. Each of the first `durable` must be
    /// there. Returns whether all are.
    fn read_places(
        &self,
        sink: &mut Sink<'_, K, V>,
        places: &[BatchPlace],
        durable: u32,
    ) -> Result<bool, String> {
        let geometry = self.inner.ring.geometry;
        let (segment, seq) = (sink.segment, sink.seq);
        let guid = self.inner.ring.guid();
        let base = geometry.offset(segment);
        let ranges = places.iter().map(|place| (base + place.offset, place.log_bytes));
        let (mut outcome, mut all) = (Ok(()), true);
        self.inner.medium.read_each(ranges, |number, read| {
            let place = places[number];
            let room = geometry.footer_offset() - place.offset;
            let parsed = match &read {
                Ok(bytes) => LogBlock::parse((guid, seq), bytes, (place.offset, room))
                    .filter(|log| log.head.number as usize == number),
                Err(Trouble::Stalled(what)) => {
                    outcome = Err(format!("{what} has not ended in time"));
                    None
                }
                Err(_) => {
                    self.inner.counters.add(LevelCounters::READ_ERRORS, 0, 1);
                    None
                }
            };
            all &= parsed.is_some();
            match parsed {
                Some(log) if outcome.is_ok() => outcome = sink.take(log),
                Some(_) => {}
                None if number < durable as usize => {
                    let end = places.get(number + 1).map_or(u64::MAX, |next| next.offset);
                    let unit = u32::try_from(end / UNIT_BYTES).unwrap_or(u32::MAX);
                    self.damaged((seq, unit.min(MAX_SEGMENT_UNITS)));
                }
                // It may never have been written.
                None => {}
            }
        });
        outcome.map(|()| all)
    }

    /// Reads batch after batch, as far as the chain leads, `most` of them at most.
    fn walk(&self, sink: &mut Sink<'_, K, V>, most: usize) -> Result<Newest, String> {
        let (segment, seq) = (sink.segment, sink.seq);
        let inner = &self.inner;
        let geometry = inner.ring.geometry;
        let guid = inner.ring.guid();
        let (head, chain) = self.heads.of(segment, seq).unwrap_or_default();
        let mut contents = Contents { seq, chain, ..Contents::default() };
        let (mut offset, mut stamp) = (geometry.first_batch(), head.stamp);
        let most = most.min(geometry.max_batches());
        while contents.places.len() < most && !inner.rebuild.was_incomplete() {
            let room = geometry.footer_offset() - offset;
            let at = geometry.offset(segment) + offset;
            if room < PAGE_BYTES {
                break;
            }
            let Some(page) = self.fetch(at, PAGE_BYTES)? else { break };
            let Some((log_bytes, payload)) = BatchHead::peek((guid, seq), &page, room) else {
                break;
            };
            let rest = match log_bytes > PAGE_BYTES {
                true => match self.fetch(at, log_bytes)? {
                    Some(log) => log,
                    None => break,
                },
                false => page,
            };
            let parsed = LogBlock::parse((guid, seq), &rest, (offset, room));
            let Some(log) = parsed.filter(|log| {
                log.head.number as usize == contents.places.len()
                    && log.head.previous == contents.chain
            }) else {
                break;
            };
            sink.take(log)?;
            stamp = stamp.max(log.head.stamp);
            contents.chain = log.chain;
            contents.records += log.len() as u64;
            contents.durable = contents.durable.max(log.head.durable);
            contents.places.push(BatchPlace { offset, log_bytes });
            offset += log_bytes + payload;
        }
        Ok(Newest { contents, stamp, floor: head.floor, end: offset, whole: true })
    }

    /// Reads some bytes; `None` if they cannot be read, an error if the device hangs.
    fn fetch(&self, at: u64, bytes: u64) -> Result<Option<forebay_base::arena::Buffer>, String> {
        match self.inner.medium.read(at, bytes) {
            Ok(buffer) => Ok(Some(buffer)),
            Err(trouble @ Trouble::Stalled(_)) => Err(trouble.to_string()),
            Err(_) => {
                self.inner.counters.add(LevelCounters::READ_ERRORS, 0, 1);
                Ok(None)
            }
        }
    }

    /// Reads the newest segment.
    pub(super) fn read_newest(&self, seq: u64) -> Result<Newest, Trouble> {
        let geometry = self.inner.ring.geometry;
        let segment = geometry.segment_of(seq);
        let stalled = |what: String| Trouble::Stalled(what);
        let (head, _) = self.heads.of(segment, seq).unwrap_or_default();
        // What the log has given up before is not believed again.
        if head.floor > (0, 0) {
            self.inner.rebuild.damaged_before(head.floor);
        }
        let mut sink = self.sink(segment, seq);
        let newest = match self.footer(segment, seq) {
            Some((places, (durable, records, stamp))) => {
                let whole = self.read_places(&mut sink, &places, durable).map_err(stalled)?;
                let stamp = head.stamp.max(stamp);
                let chain = 0;
                let contents = Contents { seq, places, records, chain, durable, sealed: true };
                let end = geometry.footer_offset();
                Newest { contents, stamp, floor: head.floor, end, whole }
            }
            None => {
                let walked = self.walk(&mut sink, usize::MAX).map_err(stalled)?;
                if !self.inner.immutable_keys {
                    self.search(segment, seq, &walked);
                }
                walked
            }
        };
        sink.pour().map_err(stalled)?;
        Ok(newest)
    }

    /// Looks behind the end of the newest segment's log for a batch that knows that what is missing was durable once: then the
    /// end is a hole, and nothing before it is believed.
    fn search(&self, segment: u32, seq: u64, walked: &Newest) {
        let geometry = self.inner.ring.geometry;
        let guid = self.inner.ring.guid();
        let count = walked.contents.places.len() as u32;
        let base = geometry.offset(segment);
        let mut offset = walked.end;
        let stopped = || self.inner.rebuild.was_incomplete();
        while offset < geometry.footer_offset() && !stopped() {
            let bytes = SEARCH_BYTES.min(geometry.footer_offset() - offset);
            let Ok(found) = self.inner.medium.read(base + offset, bytes) else {
                // If it was durable once, it may have had tombstones.
                self.damaged((seq, MAX_SEGMENT_UNITS));
                return;
            };
            for (number, page) in found.chunks(PAGE_BYTES as usize).enumerate() {
                let at = offset + number as u64 * PAGE_BYTES;
                let room = geometry.footer_offset() - at;
                let Some((log_bytes, _)) = BatchHead::peek((guid, seq), page, room) else {
                    continue;
                };
                // Each may claim to be long, and none of them has been checked.
                if stopped() {
                    return;
                }
                let Ok(log) = self.inner.medium.read(base + at, log_bytes) else { continue };
                let parsed = LogBlock::parse((guid, seq), &log, (at, room));
                if parsed.is_some_and(|log| log.head.durable > count) {
                    self.damaged((seq, MAX_SEGMENT_UNITS));
                    return;
                }
            }
            offset += bytes;
        }
    }
}
