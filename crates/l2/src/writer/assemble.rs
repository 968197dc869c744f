//! Assembles a batch, writes it, and publishes its blocks.
//!
//! The proof in [`forget`](crate::forget) depends on this order: the head of the log moves; a new
//! block's record enters the index; then the writer checks whether the block is outdated;
//! tombstones are taken last. A reinserted block keeps its old record until the batch is written,
//! so it is enough to check that the record is there.
//!
//! The record is bad until this check, so that no offer of a newer value takes it for that value.
//! The check makes it pending, under the lock of its index partition. If memory has cleared the
//! block before, the check finds that. If later, the next load meets the record, and the value
//! that it then gets elsewhere makes it bad again.
//!
//! A record becomes live in one step: [`publish`](Writer::publish) checks the retired mark in the
//! header of the cache's block and changes the record under the lock of its index partition. So a
//! block that was removed or overwritten while it was written is never found. A removal that needs
//! a tombstone returns after the flush of the batch that holds it.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_cache::{Class, Key, Writing};

use super::Writer;
use super::reinsert::ReinsertedBlock;
use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::error::ErrorKind;
use crate::format::{
    BATCH_HEADER_BYTES, BatchExtent, BatchHeader, LogRecord, PAGE_BYTES, RECORD_BYTES,
    log_bytes_for, seal_block, seal_log,
};
use crate::record::{
    BlockAddr, InsertOutcome, KeyHash, Record, RecordState, Tombstone, UNIT_BYTES,
};
use crate::write_queue::QueuedBlock;

/// Maximum number of tombstones in a batch.
const MAX_TOMBSTONES: usize = 4096;

/// The contents of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct BatchPlan {
    log_bytes: u64,
    payload_bytes: u64,
    reinserted: usize,
    blocks: usize,
    tombstones: usize,
}

impl BatchPlan {
    fn total(&self) -> u64 {
        self.log_bytes + self.payload_bytes
    }
}

/// A block of the batch.
enum BatchBlock<K: Key, V: Send + Sync + 'static> {
    New { hash: KeyHash, class: Class, addr: BlockAddr, block: Writing<K, V> },
    Moved { reinserted: ReinsertedBlock, addr: BlockAddr },
}

/// A batch in assembly.
struct BatchAssembly<K: Key, V: Send + Sync + 'static> {
    buffer: Arc<Buffer>,
    records: Vec<LogRecord>,
    batch_blocks: Vec<BatchBlock<K, V>>,
    /// Offset of the next block in the batch.
    at: u64,
}

impl<K: Key, V: Send + Sync + 'static> Writer<K, V> {
    /// Writes one batch, if there is anything to write. After an error the call can be repeated
    /// with the rest.
    pub(super) fn write_batch(&mut self) -> Result<(), IoError> {
        let geometry = self.shared.ring.geometry;
        let full = |open: &super::OpenSegment| {
            open.abandoned || open.contents.extents.len() >= geometry.max_batches()
        };
        if self.open.as_ref().is_none_or(full) {
            self.begin_segment()?;
        }
        self.collect_reinserted();
        self.check_stalled()?;
        let mut plan = self.plan();
        if plan.total() == 0 && self.has_work() {
            self.begin_segment()?;
            self.collect_reinserted();
            plan = self.plan();
        }
        if plan.total() == 0 {
            // The block does not fit into an empty segment. Admission prevents this, but the writer
            // must not retry forever.
            let first = self.backlog.pop_front();
            self.shared.drop_blocks(first);
            return Ok(());
        }
        let buffer = match self.batch_buffer(plan.total()) {
            Ok(buffer) => buffer,
            Err(error) => {
                for queued in self.backlog.drain(..plan.blocks) {
                    let class = queued.class as usize;
                    self.shared.counters.add(L2Counters::ADMITTED_DROPPED, class, 1);
                }
                if plan.blocks > 0 {
                    self.report_lost(ErrorKind::NoMemory, &error.to_string());
                }
                // Tombstones alone fit into the smallest buffer. They cannot be dropped.
                return if plan.tombstones == 0 { Ok(()) } else { Err(error) };
            }
        };
        let assembly = self.assemble(plan, buffer);
        self.write_assembly(plan, assembly)
    }

    fn has_work(&self) -> bool {
        !self.backlog.is_empty()
            || !self.tombstones.0.is_empty()
            || self.shared.write_queue.queued_tombstones() > 0
    }

    /// Plans as much as fits into the open segment and the default buffer. A larger block goes
    /// alone.
    fn plan(&self) -> BatchPlan {
        let Some(open) = &self.open else { return BatchPlan::default() };
        let space_bytes = self.shared.ring.geometry.footer_offset() - open.offset;
        let usual_bytes = Self::buffer_bytes(&self.shared);
        let tombstones = (self.tombstones.0.len() + self.shared.write_queue.queued_tombstones())
            .min(MAX_TOMBSTONES);
        let mut plan = BatchPlan { tombstones, ..BatchPlan::default() };
        let mut bytes = 0u64;
        let total = |records: usize, bytes: u64| {
            log_bytes_for(records) + bytes.next_multiple_of(PAGE_BYTES)
        };
        if tombstones > 0 && total(tombstones, 0) > space_bytes {
            return BatchPlan::default();
        }
        for reinserted in &self.reinserted {
            if total(tombstones + plan.reinserted + 1, bytes + reinserted.bytes())
                > space_bytes.min(usual_bytes)
            {
                break;
            }
            plan.reinserted += 1;
            bytes += reinserted.bytes();
        }
        for queued in &self.backlog {
            let alone = plan.reinserted + plan.blocks == 0;
            let limit = if alone { space_bytes } else { space_bytes.min(usual_bytes) };
            if total(tombstones + plan.reinserted + plan.blocks + 1, bytes + queued.bytes) > limit {
                break;
            }
            plan.blocks += 1;
            bytes += queued.bytes;
        }
        let records = tombstones + plan.reinserted + plan.blocks;
        if records > 0 {
            plan.log_bytes = log_bytes_for(records);
            plan.payload_bytes = bytes.next_multiple_of(PAGE_BYTES);
        }
        plan
    }

    /// The buffer of a batch: the kept one, unless it is too small.
    fn batch_buffer(&mut self, bytes: u64) -> Result<Arc<Buffer>, IoError> {
        match self.buffer.take() {
            Some(buffer) if buffer.len() as u64 >= bytes => Ok(buffer),
            kept => {
                let larger = self.shared.io.alloc(bytes.max(Self::buffer_bytes(&self.shared)));
                if larger.is_err() {
                    self.buffer = kept;
                }
                larger.map(Arc::new)
            }
        }
    }

    /// Assigns addresses, encodes the blocks, and takes the tombstones.
    fn assemble(&mut self, plan: BatchPlan, buffer: Arc<Buffer>) -> BatchAssembly<K, V> {
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        self.shared.ring.set_head(open.contents.seq, open.offset + plan.total());
        let (records, batch_blocks) = (Vec::new(), Vec::new());
        let mut assembly = BatchAssembly { buffer, records, batch_blocks, at: plan.log_bytes };
        let reinserted: Vec<ReinsertedBlock> = self.reinserted.drain(..plan.reinserted).collect();
        for reinserted in reinserted {
            self.add_reinserted_block(&mut assembly, reinserted);
        }
        let blocks: Vec<QueuedBlock<K, V>> = self.backlog.drain(..plan.blocks).collect();
        for queued in blocks {
            self.add_new_block(&mut assembly, queued);
        }
        let capacity = (plan.log_bytes as usize - BATCH_HEADER_BYTES) / RECORD_BYTES;
        let limit = capacity.saturating_sub(assembly.records.len() + self.tombstones.0.len());
        let (more, ticket) = self.shared.write_queue.take_tombstones(limit.min(MAX_TOMBSTONES));
        if !more.is_empty() {
            self.tombstones.0.extend(more);
            self.tombstones.1 = ticket;
        }
        let tombstones = self.tombstones.0.iter().copied().map(LogRecord::Tombstone);
        assembly.records.extend(tombstones);
        assembly
    }

    /// The address of a block of `bytes` at offset `at` of the batch.
    fn addr_at(&self, at: u64, bytes: u64) -> BlockAddr {
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let unit = ((open.offset + at) / UNIT_BYTES) as u32;
        BlockAddr { segment: open.segment, unit, units: (bytes / UNIT_BYTES) as u32 }
    }

    fn add_new_block(&mut self, assembly: &mut BatchAssembly<K, V>, queued: QueuedBlock<K, V>) {
        let QueuedBlock { hash, class, value_bytes, bytes, block, .. } = queued;
        let addr = self.addr_at(assembly.at, bytes);
        // The cache keeps the block until it has been written.
        let (in_memory, undecodable, state) = (true, false, RecordState::Bad);
        let record = Record { addr, class, hits: 0, in_memory, undecodable, state };
        let index = &self.shared.index;
        let Ok(inserted) = index.insert(hash, record, |_, _| true) else {
            self.shared.counters.add(L2Counters::ADMITTED_DROPPED, class as usize, 1);
            drop(block);
            return self.report_lost(ErrorKind::NoMemory, "no memory for its index");
        };
        let before = match inserted {
            InsertOutcome::Replaced(old) => Some(old),
            InsertOutcome::Inserted | InsertOutcome::Stale => None,
        };
        // It may still require a tombstone, and memory had a newer value.
        let bad = |old: Record| Record { state: RecordState::Bad, ..old };
        let before = before.map(|old| if self.shared.immutable_keys { old } else { bad(old) });
        let mut is_current = false;
        index.change(hash, addr, |record| {
            is_current = !block.is_outdated();
            let pending = Record { state: RecordState::Pending, ..record };
            if is_current { Some(pending) } else { before }
        });
        if !is_current {
            self.shared.counters.add(L2Counters::OUTDATED, class as usize, 1);
            return;
        }
        let out = Arc::get_mut(&mut assembly.buffer).expect("no write holds the buffer");
        let out = &mut out[assembly.at as usize..(assembly.at + bytes) as usize];
        let Some(stamp) = self.encode(&block, value_bytes, out) else {
            index.change(hash, addr, |_| before);
            self.shared.counters.add(L2Counters::ADMITTED_LOST, class as usize, 1);
            return;
        };
        self.stamp = self.stamp.max(stamp);
        assembly.at += bytes;
        let (unit, units) = (addr.unit, addr.units);
        assembly.records.push(LogRecord::Block { hash: hash.0, unit, units, class, hits: 0 });
        assembly.batch_blocks.push(BatchBlock::New { hash, class, addr, block });
    }

    /// Encodes the block into `out` and returns its stamp. Returns `None` if the codec panicked.
    fn encode(&self, block: &Writing<K, V>, value_bytes: usize, out: &mut [u8]) -> Option<u64> {
        let shared = &*self.shared;
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let key = shared.encode_key(block.key())?;
        let (note, note_bytes) = shared.encode_note(block.key())?;
        let name = (&key[..shared.label.key_bytes], &note[..note_bytes]);
        let stamp = shared.with_codec(|codec| codec.stamp(block.key()))?;
        shared.with_codec(|codec| {
            seal_block(open.seed, name, value_bytes, out, |out| codec.encode(block, out));
        })?;
        Some(stamp)
    }

    fn add_reinserted_block(
        &mut self,
        assembly: &mut BatchAssembly<K, V>,
        reinserted: ReinsertedBlock,
    ) {
        let index = &self.shared.index;
        let current =
            |record: Record| record.addr == reinserted.old && record.state == RecordState::Live;
        if !index.find(reinserted.hash).is_some_and(current) {
            return;
        }
        let bytes = reinserted.bytes();
        let addr = self.addr_at(assembly.at, bytes);
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let Some(block) = reinserted.verify() else {
            let bad = |record| Some(Record { state: RecordState::Bad, ..record });
            index.change(reinserted.hash, reinserted.old, bad);
            self.count_read_error();
            return;
        };
        let out = Arc::get_mut(&mut assembly.buffer).expect("no write holds the buffer");
        let out = &mut out[assembly.at as usize..(assembly.at + bytes) as usize];
        if self.shared.is_void_encoded((block.key, block.note), reinserted.old) {
            return;
        }
        let value = block.value;
        let name = (block.key, block.note);
        seal_block(open.seed, name, value.len(), out, |out| out.copy_from_slice(value));
        assembly.at += bytes;
        assembly.records.push(LogRecord::Block {
            hash: reinserted.hash.0,
            unit: addr.unit,
            units: addr.units,
            class: reinserted.class,
            hits: reinserted.hits,
        });
        assembly.batch_blocks.push(BatchBlock::Moved { reinserted, addr });
    }

    /// Seals the log block, writes the batch, publishes its blocks, and makes its tombstones
    /// durable.
    fn write_assembly(
        &mut self,
        plan: BatchPlan,
        assembly: BatchAssembly<K, V>,
    ) -> Result<(), IoError> {
        let BatchAssembly { mut buffer, records, batch_blocks, at } = assembly;
        if records.is_empty() {
            self.buffer = Some(buffer);
            return Ok(());
        }
        let payload_bytes = (at - plan.log_bytes).next_multiple_of(PAGE_BYTES);
        let total = plan.log_bytes + payload_bytes;
        let open = self.open.as_ref().expect("a batch is planned for an open segment");
        let header = BatchHeader {
            seq: open.contents.seq,
            number: open.contents.extents.len() as u32,
            log_bytes: plan.log_bytes,
            payload_bytes,
            previous: open.contents.chain,
            stamp: self.stamp,
            durable: open.contents.durable,
        };
        let bytes = Arc::get_mut(&mut buffer).expect("no write holds the buffer");
        bytes[at as usize..total as usize].fill(0);
        let log = &mut bytes[..plan.log_bytes as usize];
        let chain = seal_log(self.shared.ring.guid(), &header, &records, log);
        let to = self.shared.ring.geometry.offset(open.segment) + open.offset;
        let begun = self.shared.clock.now_ns();
        let written = self.write_buffer(to, buffer, total);
        let took = self.shared.clock.now_ns().saturating_sub(begun);
        let open = self.open.as_mut().expect("a batch is planned for an open segment");
        // The end of the batch.
        let end;
        match written {
            Ok(buffer) => {
                self.buffer = Some(buffer);
                let log_bytes = plan.log_bytes;
                open.contents.extents.push(BatchExtent { offset: open.offset, log_bytes });
                open.contents.records += records.len() as u64;
                open.contents.chain = chain;
                open.offset += total;
                end = (open.contents.seq, (open.offset / UNIT_BYTES) as u32);
            }
            Err(error) => {
                open.abandoned = true;
                if !self.shared.immutable_keys {
                    self.failed_segments.insert(open.contents.seq);
                }
                if self.mark_failed(batch_blocks) {
                    self.report_lost(ErrorKind::Device, &error.to_string());
                }
                return Err(error);
            }
        }
        self.shared.counters.add(L2Counters::BATCHES, 0, 1);
        self.shared.counters.add(L2Counters::BLOCK_BYTES, 0, at - plan.log_bytes);
        let bounds = self.shared.rate_bounds();
        self.shared.write_queue.with(|state| state.rate.record_batch(bounds, total, took));
        self.publish(batch_blocks);
        if !self.tombstones.0.is_empty() {
            self.flush()?;
            let count = self.tombstones.0.len() as u64;
            self.shared.counters.add(L2Counters::TOMBSTONES, 0, count);
            for tombstone in self.tombstones.0.drain(..) {
                if let Tombstone::Group(group) = tombstone {
                    self.shared.groups.set_position(group, end);
                }
            }
            for forget in self.shared.write_queue.finish_tombstones(self.tombstones.1) {
                self.shared.end_durable(forget);
            }
        }
        self.failures = 0;
        Ok(())
    }

    /// Makes the blocks of a written batch live.
    fn publish(&self, batch_blocks: Vec<BatchBlock<K, V>>) {
        let immutable = self.shared.immutable_keys;
        for batch_block in batch_blocks {
            match batch_block {
                BatchBlock::New { hash, class, addr, block } => {
                    let mut stored = false;
                    self.shared.index.change(hash, addr, |record| {
                        stored = !block.is_outdated();
                        match stored {
                            true => Some(Record { state: RecordState::Live, ..record }),
                            // The block may be on the device, so it may require a tombstone.
                            false => {
                                (!immutable).then_some(Record { state: RecordState::Bad, ..record })
                            }
                        }
                    });
                    let counter = match stored {
                        true => L2Counters::STORED,
                        false => L2Counters::OUTDATED,
                    };
                    self.shared.counters.add(counter, class as usize, 1);
                }
                BatchBlock::Moved { reinserted, addr } => {
                    let ReinsertedBlock { hash, class, old, .. } = reinserted;
                    // Hits during the move count.
                    let moved = self.shared.index.change(hash, old, |record| {
                        Some(Record { addr, hits: record.hits / 2, ..record })
                    });
                    if moved {
                        self.shared.counters.add(L2Counters::REINSERTED, class as usize, 1);
                    }
                }
            }
        }
    }

    /// Marks the blocks of a batch whose write failed. The batch may still be on the device, so
    /// they require tombstones. Returns whether it has dropped any.
    fn mark_failed(&self, batch_blocks: Vec<BatchBlock<K, V>>) -> bool {
        let mut has_dropped = false;
        for batch_block in batch_blocks {
            // A moved block is still at its old address.
            let BatchBlock::New { hash, class, addr, block } = batch_block else { continue };
            self.shared.counters.add(L2Counters::ADMITTED_LOST, class as usize, 1);
            drop(block);
            self.shared.index.change(hash, addr, |record| {
                (!self.shared.immutable_keys)
                    .then_some(Record { state: RecordState::Bad, ..record })
            });
            has_dropped = true;
        }
        has_dropped
    }
}
