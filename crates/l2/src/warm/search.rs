//! Finding out which blocks are worth reading: from logs, newest segment first, those that the index has where the log says.

use std::collections::VecDeque;

use forebay_base::arena::Buffer;
use forebay_cache::{Class, Key};

use crate::counters::LevelCounters;
use crate::format::{BatchHead, BatchPlace, Footer, LogBlock, LogRecord, PAGE_BYTES};
use crate::inner::Inner;
use crate::medium::Trouble;
use crate::record::{Identity, Place, State};

/// Batches whose logs a thread reads before any of their blocks. Threads take these lots in turn: the smaller, the more the newest come first.
const LOT_BATCHES: usize = 4;
/// Segments of which it is found out at once where their batches lie.
const SEGMENTS_AT_ONCE: usize = 8;
/// A log that says to be longer is passed over: no batch that was ever written has so many records.
const MOST_LOG_BYTES: u64 = 8 << 20;

/// A block that the level had when its log was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) id: Identity,
    pub(super) place: Place,
    /// The use of its segment.
    pub(super) seq: u64,
    pub(super) class: Class,
    pub(super) hits: u8,
}

/// What is left of the log, back in time.
#[derive(Default)]
pub(super) struct Search {
    /// Segments that are left, by their numbers of use, the newest last.
    seqs: Vec<u64>,
    /// Batches that are left of the last segment that was taken, the newest last.
    batches: VecDeque<Batch>,
}

/// A batch: the use of its segment, and where it lies there.
pub(super) type Batch = (u64, BatchPlace);

impl Search {
    /// What there was when `newest` was the last segment in use.
    pub(super) fn new<K: Key, V: Send + Sync + 'static>(inner: &Inner<K, V>, newest: u64) -> Self {
        let segments = 0..inner.ring.geometry.segments;
        let used = segments
            .map(|segment| inner.ring.seq(segment))
            .filter(|seq| (1..=newest).contains(seq));
        let mut seqs: Vec<u64> = used.collect();
        seqs.sort_unstable();
        Self { seqs, batches: VecDeque::new() }
    }

    /// The next few batches, of segments that the rebuild has come to: waits for the first of them, not for more. None when there are no more, or
    /// the level is not open any more.
    ///
    /// # Errors
    /// The device hangs, or there is no memory to read into. What cannot be read otherwise is passed over, and counted.
    pub(super) fn next_batches<K: Key, V: Send + Sync + 'static>(
        &mut self,
        inner: &Inner<K, V>,
    ) -> Result<Vec<Batch>, Trouble> {
        let mut batches = Vec::with_capacity(LOT_BATCHES);
        while batches.len() < LOT_BATCHES {
            if let Some(batch) = self.batches.pop_back() {
                batches.push(batch);
                continue;
            }
            let seqs = self.next_segments(inner, batches.is_empty());
            if seqs.is_empty() {
                break;
            }
            self.batches.extend(inner.batches_of(&seqs)?);
        }
        Ok(batches)
    }

    /// The next few segments, newest first, that the rebuild has come to.
    fn next_segments<K: Key, V: Send + Sync + 'static>(
        &mut self,
        inner: &Inner<K, V>,
        waits: bool,
    ) -> Vec<u64> {
        let mut seqs = Vec::with_capacity(SEGMENTS_AT_ONCE);
        while seqs.len() < SEGMENTS_AT_ONCE
            && let Some(seq) = self.seqs.last().copied()
        {
            let may_wait = waits && seqs.is_empty();
            if !may_wait && !inner.rebuild.has_come_to(seq) {
                break;
            }
            if !inner.rebuild.wait_for(seq) || !inner.status.is_open() {
                self.seqs.clear();
                break;
            }
            self.seqs.pop();
            seqs.push(seq);
        }
        seqs
    }
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// Those blocks of the batches that the index has: by segment from new to old, and within one as they lie.
    ///
    /// # Errors
    /// As [`Search::next_batches`].
    pub(super) fn blocks_of(&self, batches: &[Batch]) -> Result<Vec<Found>, Trouble> {
        let geometry = self.ring.geometry;
        let base = |seq: u64| geometry.offset(geometry.segment_of(seq));
        let ranges =
            batches.iter().map(|(seq, place)| (base(*seq) + place.offset, place.log_bytes));
        let (mut found, mut trouble) = (Vec::new(), None);
        self.medium.read_some(LOT_BATCHES, ranges, |number, read| {
            let (seq, place) = batches[number];
            match read {
                Ok(log) => {
                    let room = geometry.footer_offset() - place.offset;
                    let name = (self.ring.guid(), seq);
                    let log = LogBlock::parse(name, &log, (place.offset, room));
                    found.extend(log.iter().flat_map(|log| self.current(seq, *log)));
                }
                Err(Trouble::Device(_)) => self.counters.add(LevelCounters::WARM_ERRORS, 0, 1),
                Err(other) => trouble = Some(other),
            }
        });
        found.sort_unstable_by_key(|one: &Found| (std::cmp::Reverse(one.seq), one.place.unit));
        trouble.map_or(Ok(found), Err)
    }

    /// Blocks of a log that the index has just there.
    fn current<'a>(&'a self, seq: u64, log: LogBlock<'a>) -> impl Iterator<Item = Found> + 'a {
        let segment = self.ring.geometry.segment_of(seq);
        log.records().filter_map(move |record| {
            let LogRecord::Block { hash, unit, units, .. } = record else { return None };
            let (id, place) = (Identity(hash), Place { segment, unit, units });
            let known = self.index.find(id)?;
            let is_it = known.place == place && known.state == State::Live;
            is_it.then_some(Found { id, place, seq, class: known.class, hits: known.hits })
        })
    }

    /// Where the batches of these segments lie, the oldest first.
    fn batches_of(&self, seqs: &[u64]) -> Result<Vec<Batch>, Trouble> {
        let geometry = self.ring.geometry;
        let at = |seq: &u64| geometry.offset(geometry.segment_of(*seq)) + geometry.footer_offset();
        let ranges = seqs.iter().map(|seq| (at(seq), geometry.footer_bytes()));
        let between = (geometry.first_batch(), geometry.footer_offset());
        let (mut footers, mut trouble) = (vec![None; seqs.len()], None);
        self.medium.read_some(SEGMENTS_AT_ONCE, ranges, |number, read| match read {
            Ok(bytes) => {
                let name = (self.ring.guid(), seqs[number]);
                let footer = Footer::parse(name, &bytes, between);
                footers[number] = footer.map(|footer| footer.places().collect::<Vec<_>>());
            }
            Err(Trouble::Device(_)) => self.counters.add(LevelCounters::WARM_ERRORS, 0, 1),
            Err(other) => trouble = Some(other),
        });
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let mut batches = Vec::new();
        for (seq, places) in seqs.iter().zip(footers).rev() {
            let places = match places {
                Some(places) => places,
                None => self.walk(*seq)?,
            };
            let plausible = |place: &BatchPlace| place.log_bytes <= MOST_LOG_BYTES;
            let places = places.into_iter().filter(plausible);
            batches.extend(places.map(|place| (*seq, place)));
        }
        Ok(batches)
    }

    /// Where the batches of a segment without a footer lie: from one to the next.
    fn walk(&self, seq: u64) -> Result<Vec<BatchPlace>, Trouble> {
        let geometry = self.ring.geometry;
        let base = geometry.offset(geometry.segment_of(seq));
        let name = (self.ring.guid(), seq);
        let (mut places, mut offset) = (Vec::new(), geometry.first_batch());
        while places.len() < geometry.max_batches() && self.status.is_open() {
            let room = geometry.footer_offset() - offset;
            if room < PAGE_BYTES {
                break;
            }
            let Some(page) = self.fetch(base + offset, PAGE_BYTES)? else { break };
            let Some((log_bytes, payload)) = BatchHead::peek(name, &page, room) else { break };
            places.push(BatchPlace { offset, log_bytes });
            offset += log_bytes + payload;
        }
        Ok(places)
    }

    /// Reads some bytes. `None` if the device does not give them.
    fn fetch(&self, at: u64, bytes: u64) -> Result<Option<Buffer>, Trouble> {
        match self.medium.read(at, bytes) {
            Ok(buffer) => Ok(Some(buffer)),
            Err(Trouble::Device(_)) => {
                self.counters.add(LevelCounters::WARM_ERRORS, 0, 1);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}
