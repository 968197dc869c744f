//! Putting a batch together, writing it, and making its blocks findable.
//!
//! The order of steps is what the proof in [`forget`](crate::forget) rests on: the log's head moves on; a block's record enters the
//! index as pending; only then is it asked whether the block is outdated; tombstones are taken up last.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_cache::{Class, Key, Writing};

use super::Writer;
use super::carry::Carried;
use crate::counters::LevelCounters;
use crate::feed::Queued;
use crate::format::{
    BATCH_HEAD_BYTES, BatchHead, BatchPlace, LogRecord, PAGE_BYTES, RECORD_BYTES, log_bytes_for,
    seal_block, seal_log,
};
use crate::medium::Trouble;
use crate::record::{Identity, Inserted, Place, Record, State, UNIT_BYTES};

/// Tombstones of a batch, at most.
const MOST_TOMBS: usize = 4096;

/// What goes into a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    log_bytes: u64,
    payload_bytes: u64,
    carried: usize,
    blocks: usize,
    tombs: usize,
}

impl Plan {
    fn total(&self) -> u64 {
        self.log_bytes + self.payload_bytes
    }
}

/// A block in the batch.
enum Placed<K: Key, V: Send + Sync + 'static> {
    New { id: Identity, class: Class, place: Place, block: Writing<K, V> },
    Moved { carried: Carried, place: Place },
}

/// A batch that is being put together.
struct Assembly<K: Key, V: Send + Sync + 'static> {
    buffer: Arc<Buffer>,
    records: Vec<LogRecord>,
    placed: Vec<Placed<K, V>>,
    /// Where the next block goes, in the batch.
    at: u64,
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Writes one batch of what there is, if there is anything. After an error it can be tried again with what is left.
    pub(super) fn write_batch(&mut self) -> Result<(), Trouble> {
        let geometry = self.inner.ring.geometry;
        let full = |open: &super::Open| {
            open.abandoned || open.contents.places.len() >= geometry.max_batches()
        };
        if self.open.as_ref().is_none_or(full) {
            self.advance()?;
        }
        self.evacuate();
        self.check_stalled()?;
        let mut plan = self.plan();
        if plan.total() == 0 && self.has_work() {
            self.advance()?;
            self.evacuate();
            plan = self.plan();
        }
        if plan.total() == 0 {
            // Not even an empty segment has room for it: admission asks, so this does not happen; but it must not
            // be tried for ever either.
            let first = self.backlog.pop_front();
            self.inner.lose(first);
            return Ok(());
        }
        let Ok(buffer) = self.memory(plan.total()) else {
            let dropped: Vec<_> = self.backlog.drain(..plan.blocks).collect();
            for queued in dropped {
                self.inner.counters.add(LevelCounters::ADMITTED_IN_VAIN, queued.class as usize, 1);
            }
            // Tombstones alone fit into the smallest of buffers; without one there is no going on.
            return match plan.tombs {
                0 => Ok(()),
                _ => Err(Trouble::NoMemory("a batch of tombstones".to_owned())),
            };
        };
        let assembly = self.assemble(plan, buffer);
        self.write_assembly(plan, assembly)
    }

    fn has_work(&self) -> bool {
        !self.backlog.is_empty() || !self.tombs.0.is_empty() || self.inner.feed.count_tombs() > 0
    }

    /// As much as fits into the open segment and the usual buffer; a larger block goes alone.
    fn plan(&self) -> Plan {
        let Some(open) = &self.open else { return Plan::default() };
        let room = self.inner.ring.geometry.footer_offset() - open.offset;
        let usual = Self::buffer_bytes(&self.inner);
        let tombs = (self.tombs.0.len() + self.inner.feed.count_tombs()).min(MOST_TOMBS);
        let mut plan = Plan { tombs, ..Plan::default() };
        let mut bytes = 0u64;
        let total = |records: usize, bytes: u64| {
            log_bytes_for(records) + bytes.next_multiple_of(PAGE_BYTES)
        };
        if tombs > 0 && total(tombs, 0) > room {
            return Plan::default();
        }
        for carried in &self.carried {
            if total(tombs + plan.carried + 1, bytes + carried.bytes()) > room.min(usual) {
                break;
            }
            plan.carried += 1;
            bytes += carried.bytes();
        }
        for queued in &self.backlog {
            let alone = plan.carried + plan.blocks == 0;
            let limit = if alone { room } else { room.min(usual) };
            if total(tombs + plan.carried + plan.blocks + 1, bytes + queued.bytes) > limit {
                break;
            }
            plan.blocks += 1;
            bytes += queued.bytes;
        }
        let records = tombs + plan.carried + plan.blocks;
        if records > 0 {
            plan.log_bytes = log_bytes_for(records);
            plan.payload_bytes = bytes.next_multiple_of(PAGE_BYTES);
        }
        plan
    }

    /// Memory for a batch: what is kept for that, unless it is too small.
    fn memory(&mut self, bytes: u64) -> Result<Arc<Buffer>, Trouble> {
        match self.buffer.take() {
            Some(buffer) if buffer.len() as u64 >= bytes => Ok(buffer),
            kept => {
                let larger = self.inner.medium.alloc(bytes.max(Self::buffer_bytes(&self.inner)));
                if larger.is_err() {
                    self.buffer = kept;
                }
                larger.map(Arc::new)
            }
        }
    }

    /// Places blocks, encodes them, and takes up tombstones.
    fn assemble(&mut self, plan: Plan, buffer: Arc<Buffer>) -> Assembly<K, V> {
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        self.inner.ring.set_head(open.contents.seq, open.offset + plan.total());
        let (records, placed) = (Vec::new(), Vec::new());
        let mut assembly = Assembly { buffer, records, placed, at: plan.log_bytes };
        let carried: Vec<Carried> = self.carried.drain(..plan.carried).collect();
        for carried in carried {
            self.place_carried(&mut assembly, carried);
        }
        let blocks: Vec<Queued<K, V>> = self.backlog.drain(..plan.blocks).collect();
        for queued in blocks {
            self.place_new(&mut assembly, queued);
        }
        let capacity = (plan.log_bytes as usize - BATCH_HEAD_BYTES) / RECORD_BYTES;
        let most = capacity.saturating_sub(assembly.records.len() + self.tombs.0.len());
        let (more, ticket) = self.inner.feed.take_tombs(most.min(MOST_TOMBS));
        if !more.is_empty() {
            self.tombs.0.extend(more);
            self.tombs.1 = ticket;
        }
        let tombs = self.tombs.0.iter().map(|id| LogRecord::Tomb { hash: id.0 });
        assembly.records.extend(tombs);
        assembly
    }

    /// The place of a block of `bytes` in the batch.
    fn place_at(&self, at: u64, bytes: u64) -> Place {
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let unit = ((open.offset + at) / UNIT_BYTES) as u32;
        Place { segment: open.segment, unit, units: (bytes / UNIT_BYTES) as u32 }
    }

    fn place_new(&mut self, assembly: &mut Assembly<K, V>, queued: Queued<K, V>) {
        let Queued { id, class, value_bytes, bytes, block, .. } = queued;
        let place = self.place_at(assembly.at, bytes);
        // The cache keeps it until it has been written.
        let record = Record { place, class, hits: 0, in_memory: true, state: State::Pending };
        let index = &self.inner.index;
        let Ok(inserted) = index.insert(id, record, |_, _| true) else {
            self.inner.counters.add(LevelCounters::ADMITTED_IN_VAIN, class as usize, 1);
            return;
        };
        let out = Arc::get_mut(&mut assembly.buffer).expect("nothing else writes from it now");
        let out = &mut out[assembly.at as usize..(assembly.at + bytes) as usize];
        let left_out = match block.is_outdated() {
            true => Some(LevelCounters::OUTDATED),
            false => match self.encode(&block, value_bytes, out) {
                Some(stamp) => {
                    self.stamp = self.stamp.max(stamp);
                    None
                }
                None => Some(LevelCounters::ADMITTED_LOST),
            },
        };
        if let Some(row) = left_out {
            // What it took the place of may need a tombstone yet.
            let before = match inserted {
                Inserted::Replaced(old) => Some(old),
                Inserted::Fresh | Inserted::Older => None,
            };
            index.change(id, place, |_| before);
            self.inner.counters.add(row, class as usize, 1);
            return;
        }
        assembly.at += bytes;
        let (unit, units) = (place.unit, place.units);
        assembly.records.push(LogRecord::Block { hash: id.0, unit, units, class, hits: 0 });
        assembly.placed.push(Placed::New { id, class, place, block });
    }

    /// Writes the block into `out`; its stamp. `None` if the codec panicked.
    fn encode(&self, block: &Writing<K, V>, value_bytes: usize, out: &mut [u8]) -> Option<u64> {
        let inner = &*self.inner;
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let key = inner.encode_key(block.key())?;
        let (note, note_bytes) = inner.encode_note(block.key())?;
        let name = (&key[..inner.label.key_bytes], &note[..note_bytes]);
        let stamp = inner.ask(|codec| codec.stamp(block.key()))?;
        inner.ask(|codec| {
            seal_block(open.seed, name, value_bytes, out, |out| codec.encode(block, out));
        })?;
        Some(stamp)
    }

    fn place_carried(&mut self, assembly: &mut Assembly<K, V>, carried: Carried) {
        let index = &self.inner.index;
        let current = |record: Record| record.place == carried.old && record.state == State::Live;
        if !index.find(carried.id).is_some_and(current) {
            return;
        }
        let bytes = carried.bytes();
        let place = self.place_at(assembly.at, bytes);
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let Some(block) = carried.verify() else {
            let bad = |record| Some(Record { state: State::Bad, ..record });
            index.change(carried.id, carried.old, bad);
            self.count_read_error();
            return;
        };
        let out = Arc::get_mut(&mut assembly.buffer).expect("nothing else writes from it now");
        let out = &mut out[assembly.at as usize..(assembly.at + bytes) as usize];
        let value = block.value;
        let name = (block.key, block.note);
        seal_block(open.seed, name, value.len(), out, |out| out.copy_from_slice(value));
        assembly.at += bytes;
        assembly.records.push(LogRecord::Block {
            hash: carried.id.0,
            unit: place.unit,
            units: place.units,
            class: carried.class,
            hits: carried.hits,
        });
        assembly.placed.push(Placed::Moved { carried, place });
    }

    /// Sums the log up, writes the batch, and tells index and feed.
    fn write_assembly(&mut self, plan: Plan, assembly: Assembly<K, V>) -> Result<(), Trouble> {
        let Assembly { mut buffer, records, placed, at } = assembly;
        if records.is_empty() {
            self.buffer = Some(buffer);
            return Ok(());
        }
        let payload_bytes = (at - plan.log_bytes).next_multiple_of(PAGE_BYTES);
        let total = plan.log_bytes + payload_bytes;
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let head = BatchHead {
            seq: open.contents.seq,
            number: open.contents.places.len() as u32,
            log_bytes: plan.log_bytes,
            payload_bytes,
            previous: open.contents.chain,
            stamp: self.stamp,
            durable: open.contents.durable,
        };
        let bytes = Arc::get_mut(&mut buffer).expect("nothing else writes from it now");
        bytes[at as usize..total as usize].fill(0);
        let log = &mut bytes[..plan.log_bytes as usize];
        let chain = seal_log(self.inner.ring.guid(), &head, &records, log);
        let to = self.inner.ring.geometry.offset(open.segment) + open.offset;
        let begun = self.inner.clock.now_ns();
        let written = self.put(to, buffer, total);
        let took = self.inner.clock.now_ns().saturating_sub(begun);
        let open = self.open.as_mut().expect("a batch is planned for an open segment");
        match written {
            Ok(buffer) => {
                self.buffer = Some(buffer);
                let log_bytes = plan.log_bytes;
                open.contents.places.push(BatchPlace { offset: open.offset, log_bytes });
                open.contents.records += records.len() as u64;
                open.contents.chain = chain;
                open.offset += total;
            }
            Err(trouble) => {
                open.abandoned = true;
                if !self.inner.immutable_keys {
                    self.spoiled.insert(open.contents.seq);
                }
                self.spoil(placed);
                return Err(trouble);
            }
        }
        self.inner.counters.add(LevelCounters::BATCHES, 0, 1);
        self.inner.counters.add(LevelCounters::BLOCK_BYTES, 0, at - plan.log_bytes);
        let bounds = self.inner.rate_bounds();
        self.inner.feed.with(|state| state.rate.note(bounds, total, took));
        self.publish(placed);
        if !self.tombs.0.is_empty() {
            self.flush()?;
            let count = self.tombs.0.len() as u64;
            self.inner.counters.add(LevelCounters::TOMBSTONES, 0, count);
            self.tombs.0.clear();
            self.inner.feed.buried(self.tombs.1);
        }
        Ok(())
    }

    /// The batch is written: its blocks can be found now.
    fn publish(&self, placed: Vec<Placed<K, V>>) {
        let immutable = self.inner.immutable_keys;
        for placed in placed {
            match placed {
                Placed::New { id, class, place, block } => {
                    let mut stored = false;
                    self.inner.index.change(id, place, |record| {
                        stored = !block.is_outdated();
                        match stored {
                            true => Some(Record { state: State::Live, ..record }),
                            // A tombstone is still to come for it.
                            false => (!immutable).then_some(Record { state: State::Bad, ..record }),
                        }
                    });
                    let row = match stored {
                        true => LevelCounters::STORED,
                        false => LevelCounters::OUTDATED,
                    };
                    self.inner.counters.add(row, class as usize, 1);
                }
                Placed::Moved { carried, place } => {
                    let Carried { id, class, old, .. } = carried;
                    // Hits that have come meanwhile count.
                    let moved = self.inner.index.change(id, old, |record| {
                        Some(Record { place, hits: record.hits / 2, ..record })
                    });
                    if moved {
                        self.inner.counters.add(LevelCounters::CARRIED, class as usize, 1);
                    }
                }
            }
        }
    }

    /// The batch could not be written, but may be there: tombstones are needed for its blocks.
    fn spoil(&self, placed: Vec<Placed<K, V>>) {
        for placed in placed {
            // What was carried is still at its old place.
            let Placed::New { id, class, place, block } = placed else { continue };
            self.inner.counters.add(LevelCounters::ADMITTED_LOST, class as usize, 1);
            drop(block);
            self.inner.index.change(id, place, |record| {
                (!self.inner.immutable_keys).then_some(Record { state: State::Bad, ..record })
            });
        }
    }
}
