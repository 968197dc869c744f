//! Going on to the next segment: the one that was used longest ago.

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::{Class, Key};

use super::carry::rank;
use super::{Contents, FAILURES, Open, Writer};
use crate::counters::LevelCounters;
use crate::feed::DROPPED;
use crate::format::{
    BatchPlace, BlockSeed, Footer, FooterHead, LogBlock, LogRecord, PAGE_BYTES, SegmentHead,
    seal_footer,
};
use crate::inner::Inner;
use crate::medium::Trouble;
use crate::record::{Identity, Place};

impl Contents {
    /// Writes the footer, unless it is there, and tries a few times.
    pub(crate) fn seal<K: Key, V: Send + Sync + 'static>(
        &mut self,
        inner: &Inner<K, V>,
        stamp: u64,
    ) -> Result<(), Trouble> {
        let mut failures = 0;
        while !self.sealed && self.seq != 0 {
            let Err(trouble) = self.write_footer(inner, stamp) else {
                self.sealed = true;
                break;
            };
            inner.counters.add(LevelCounters::WRITE_ERRORS, 0, 1);
            failures += 1;
            if failures == FAILURES || matches!(trouble, Trouble::Stalled(_)) {
                return Err(trouble);
            }
        }
        Ok(())
    }

    fn write_footer<K: Key, V: Send + Sync + 'static>(
        &self,
        inner: &Inner<K, V>,
        stamp: u64,
    ) -> Result<(), Trouble> {
        let geometry = inner.ring.geometry;
        let bytes = geometry.footer_bytes();
        let mut footer = inner.medium.alloc(bytes)?;
        footer.zero();
        let Self { seq, records, durable, ref places, .. } = *self;
        let head = FooterHead { seq, records, stamp, durable };
        seal_footer(inner.ring.guid(), head, places, &mut footer);
        let at = geometry.offset(geometry.segment_of(seq)) + geometry.footer_offset();
        inner.medium.write(at, footer)?;
        inner.counters.add(LevelCounters::WRITTEN_BYTES, 0, bytes);
        Ok(())
    }
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Ends the open segment, and begins the next one. After an error it can be tried again.
    pub(super) fn advance(&mut self) -> Result<(), Trouble> {
        if let Some(open) = self.open.take() {
            self.last = open.contents;
            // They are still at their old places, and counted when those are purged.
            self.carried.clear();
        }
        // Only so that the next rebuild is quick: the header says what it needs.
        if let Err(trouble @ Trouble::Stalled(_)) = self.last.seal(&self.inner, self.stamp) {
            return Err(trouble);
        }
        let geometry = self.inner.ring.geometry;
        let seq = self.next_seq;
        let segment = geometry.segment_of(seq);
        let old = self.inner.ring.seq(segment);
        self.inner.rebuild.claim_for_reuse(segment);
        let head = SegmentHead {
            seq,
            stamp: self.stamp,
            floor: self.floor,
            previous_durable: self.last.durable,
            previous_batches: self.last.places.len() as u32,
        };
        let mut page = self.inner.medium.alloc(PAGE_BYTES)?;
        let chain = head.seal(self.inner.ring.guid(), &mut page);
        let at = geometry.offset(segment);
        self.inner.medium.write(at, page).inspect_err(|_| {
            self.inner.counters.add(LevelCounters::WRITE_ERRORS, 0, 1);
        })?;
        self.inner.counters.add(LevelCounters::WRITTEN_BYTES, 0, PAGE_BYTES);
        self.flush()?;
        // The old use is void on the device from here on: what it held needs no tombstones any more.
        if old != 0 {
            self.purge(segment, old);
        }
        self.evacuation = None;
        self.inner.ring.set_seq(segment, seq);
        self.inner.ring.set_head(seq, geometry.first_batch());
        self.inner.counters.add(LevelCounters::SEGMENTS, 0, 1);
        let contents =
            Contents { seq, places: Vec::new(), records: 0, chain, durable: 0, sealed: false };
        let seed = BlockSeed::new(self.inner.ring.guid(), seq);
        let offset = geometry.first_batch();
        self.open = Some(Open { segment, contents, offset, seed, abandoned: false });
        self.next_seq = seq + 1;
        let round = seq + 1 - geometry.first_seq() >= u64::from(geometry.segments);
        self.inner.came_round.store(round, Ordering::Relaxed);
        self.plan_evacuation();
        Ok(())
    }

    /// Writes the footer of the open segment, since nothing will be written any more.
    pub(super) fn seal(&mut self) -> Result<(), Trouble> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.last = open.contents;
        self.last.seal(&self.inner, self.stamp)?;
        self.flush()
    }

    /// Takes what a segment held out of the index.
    fn purge(&mut self, segment: u32, old: u64) {
        let index = &self.inner.index;
        let (mut overrun, mut lost, mut in_memory) = ([0; 2], [0; 2], [0; 2]);
        let places = match self.evacuation.take() {
            Some(evacuation) if evacuation.seq == old => Some(evacuation.places),
            _ => self.places_of(segment, old),
        };
        // Bad records of a batch that could not be written are in none of its logs.
        let mut whole = places.is_some() && !self.spoiled.remove(&old);
        for place in places.into_iter().flatten() {
            let read = self.read_log(segment, old, place, |log| {
                let end = Place { segment, unit: log.end_unit(), units: 0 };
                for record in log.records() {
                    let (hash, place) = match record {
                        LogRecord::Block { hash, unit, units, .. } => {
                            (hash, Place { segment, unit, units })
                        }
                        LogRecord::Tomb { hash } => {
                            // Only while the rebuild runs are there any. One that stayed would pass for newer than all, as
                            // soon as its segment has its new number: it would keep a block out of the index that
                            // is there, and which would then be forgotten without a tombstone.
                            index.remove_if_at(Identity(hash), end);
                            continue;
                        }
                    };
                    if let Some(gone) = index.remove_if_at(Identity(hash), place) {
                        overrun[gone.class as usize] += 1;
                        lost[gone.class as usize] += u64::from(rank(&gone) > 0);
                        in_memory[gone.class as usize] += u64::from(gone.in_memory);
                        // Each hit is one more time that it was asked for.
                        (0..gone.hits).for_each(|_| _ = self.inner.seen.note(Identity(hash)));
                        if gone.class == Class::Data && !gone.in_memory {
                            self.inner.worth.note(Identity(hash), DROPPED);
                        }
                    }
                }
            });
            whole &= read.is_some();
        }
        if !whole {
            let removed = index.remove_segment(segment);
            overrun[Class::Data as usize] += removed;
        }
        for class in Class::ALL.map(|class| class as usize) {
            self.inner.counters.add(LevelCounters::OVERRUN, class, overrun[class]);
            self.inner.counters.add(LevelCounters::CARRY_LOST, class, lost[class]);
            self.inner.counters.add(LevelCounters::OVERRUN_IN_MEMORY, class, in_memory[class]);
        }
    }

    /// Where the batches of a full segment lie, by its footer.
    pub(super) fn places_of(&self, segment: u32, seq: u64) -> Option<Vec<BatchPlace>> {
        if seq == self.last.seq {
            return Some(self.last.places.clone());
        }
        let geometry = self.inner.ring.geometry;
        let at = geometry.offset(segment) + geometry.footer_offset();
        let bytes = self.read(at, geometry.footer_bytes())?;
        let between = (geometry.first_batch(), geometry.footer_offset());
        let footer = Footer::parse((self.inner.ring.guid(), seq), &bytes, between)?;
        Some(footer.places().collect())
    }

    /// Reads a log block and shows it to `f`.
    pub(super) fn read_log<R>(
        &self,
        segment: u32,
        seq: u64,
        place: BatchPlace,
        f: impl FnOnce(LogBlock<'_>) -> R,
    ) -> Option<R> {
        let geometry = self.inner.ring.geometry;
        let at = geometry.offset(segment) + place.offset;
        let bytes = self.read(at, place.log_bytes)?;
        let room = geometry.footer_offset() - place.offset;
        LogBlock::parse((self.inner.ring.guid(), seq), &bytes, (place.offset, room)).map(f)
    }

    /// Reads some bytes, unless the device has been found to hang.
    pub(super) fn read(&self, at: u64, bytes: u64) -> Option<Buffer> {
        if self.stalled.get() {
            return None;
        }
        let read = self.inner.medium.read(at, bytes).inspect_err(|trouble| {
            self.count_read_error();
            self.stalled.set(matches!(trouble, Trouble::Stalled(_)));
        });
        read.ok()
    }

    /// An error if the device has been found to hang.
    pub(super) fn check_stalled(&self) -> Result<(), Trouble> {
        match self.stalled.get() {
            true => {
                Err(Trouble::Stalled(format!("read of {}", self.inner.medium.device.info().name)))
            }
            false => Ok(()),
        }
    }

    pub(super) fn count_read_error(&self) {
        self.inner.counters.add(LevelCounters::READ_ERRORS, 0, 1);
    }
}
