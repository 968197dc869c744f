//! The end of a transaction group: writes its log record, some bases, and the index.
//!
//! [`Space::sync`] first chooses the bases to write and copies their ranges. Then it allocates
//! blocks for bases, index and log, and frees the blocks that these replace. Only then it writes.
//! Those allocations are recorded as late ones, so no block depends on itself. Its blocks can all
//! be single sectors, so it needs bytes, not long ranges; `Allocate::allocate` leaves enough of
//! them.
//!
//! A base with `flushed_txg` F and `freed_txg` P contains the allocations of records before F, the
//! [`Allocated`](SpaceChange::Allocated) ones of the record of F, and the frees of records up to P.
//! P is the newest record that was mature when the base was written.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::Result;
use crate::format::{
    BlockPtrPhys, DvaPhys, MetaslabPhys, SECTOR_UNIT, SPACE_ROOT_MAGIC, SPACE_ROOT_POINTERS,
    SpaceChain, SpaceChange, SpaceEntryPhys, SpaceRangePhys, SpaceRootPhys,
};

use super::chain::{self, ChainHead, Placement, block_bytes};
use super::metaslab::{Base, Metaslab, MetaslabChange};
use super::range_set::{Run, normalize};
use super::{Record, Space, SpaceCounters, SpaceWrite};

/// Number of txgs in which every changed metaslab is flushed once, at a constant rate of changes.
const ROTATION: u64 = 32;
/// Maximum number of records. Older ones are dropped by flushing the bases that need them.
const MAX_RECORDS: usize = 64;
/// Number of log entries that are always allowed, however small the pool is.
const MIN_LOG_ENTRIES: u64 = 16 << 10;
/// Number of log entries allowed per metaslab.
const LOG_ENTRIES_PER_METASLAB: u64 = 4;
/// Units that optional base writes leave free for required writes.
const KEPT_UNITS: u64 = (128 << 10) / SECTOR_UNIT;

/// An entry of the current txg's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceMapEntry {
    metaslab: u32,
    run: Run,
    change: SpaceChange,
}

/// A base to be written.
struct BaseFlush {
    metaslab: u32,
    ranges: Vec<SpaceRangePhys>,
    places: Vec<Placement>,
}

/// A block of the index to be written.
struct IndexNode {
    level: usize,
    at: usize,
    place: Placement,
}

impl Space {
    /// Ends the txg: writes the changes and returns the space maps' part of the root block. All
    /// writes go through `writer`, and must be durable before an uberblock points to that root.
    ///
    /// # Errors
    /// Errors of reading or writing; [`Corrupt`](crate::ErrorKind::Corrupt) if a range was freed
    /// that was not allocated. After an error the space maps are unusable and must be loaded again.
    ///
    /// # Panics
    /// If `txg` is not the current txg.
    pub(crate) fn sync(&mut self, txg: u64, writer: &mut dyn SpaceWrite) -> Result<SpaceRootPhys> {
        assert_eq!(self.open, Some(txg), "not the txg that was begun");
        let mut flushes = self.take_bases(txg)?;
        self.collect_allocated(SpaceChange::Allocated)?;
        for flush in &mut flushes {
            self.place_base(flush)?;
        }
        self.drop_records();
        let nodes = self.place_index()?;
        let places = self.place_record()?;
        self.collect_allocated(SpaceChange::AllocatedLate)?;
        self.collect_freed(txg)?;
        self.mark_needed(txg);

        for flush in flushes {
            self.write_base(txg, flush, writer)?;
        }
        for node in nodes {
            self.write_node(txg, &node, writer)?;
        }
        self.write_record(txg, &places, writer)?;
        self.open = None;
        self.synced = txg;
        self.durable = false;
        self.pending_entries = 0;
        Ok(self.root(txg))
    }

    /// Copies the bases to be written, in their current state.
    fn take_bases(&mut self, txg: u64) -> Result<Vec<BaseFlush>> {
        let (mut flushes, mut cost) = (Vec::new(), 0);
        for id in self.due() {
            self.load_metaslab(id)?;
            let metaslab = &mut self.metaslabs[id as usize];
            metaslab.return_run()?;
            let must = metaslab.must_flush;
            let ranges = metaslab.range_count().unwrap_or_default();
            let units = self.flush_units(ranges);
            let left = self.free_units.saturating_sub(self.log_units() + KEPT_UNITS);
            if !must && cost + units > left {
                self.counters.add(SpaceCounters::FLUSHES_SKIPPED, 0, 1);
                continue;
            }
            cost += units;
            flushes.push(self.take_base(id, txg)?);
        }
        Ok(flushes)
    }

    /// Returns the metaslabs whose base should be written. Those that keep the oldest records alive
    /// come first.
    fn due(&mut self) -> Vec<u32> {
        let mut must = Vec::new();
        let mut due = Vec::new();
        for metaslab in &self.metaslabs {
            if metaslab.must_flush {
                must.push(metaslab.id);
            } else if let Some(needed) = metaslab.needed.filter(|txg| *txg < after_flush(metaslab))
            {
                due.push((needed, metaslab.id));
            }
        }
        due.sort_unstable();
        self.flush_credit += due.len() as u64;
        let want = (self.flush_credit / ROTATION) as usize;
        self.flush_credit %= ROTATION;

        let limit = self.log_limit();
        let mut kept = self.records.iter().map(|record| record.entries).sum::<u64>();
        let mut at = 0;
        for (place, (needed, id)) in due.into_iter().enumerate() {
            while self.records.get(at).is_some_and(|record| record.txg < needed) {
                kept -= self.records[at].entries;
                at += 1;
            }
            if place >= want && kept <= limit && self.records.len() - at <= MAX_RECORDS {
                break;
            }
            must.push(id);
        }
        must
    }

    /// Limit of log entries. A log much longer than the bases would cost more than it saves.
    fn log_limit(&self) -> u64 {
        let ranges: u64 = self.metaslabs.iter().map(|it| u64::from(it.base.ranges)).sum();
        let slabs = self.metaslabs.len() as u64 * LOG_ENTRIES_PER_METASLAB;
        MIN_LOG_ENTRIES.max(slabs).max(ranges / 2)
    }

    /// Upper bound of the units that a base with `ranges` ranges takes, with its path in the index.
    fn flush_units(&self, ranges: usize) -> u64 {
        let sector = self.geometry.sector_bytes;
        let blocks = block_bytes(0, 1, SECTOR_UNIT).max(SECTOR_UNIT);
        let in_unit = chain::items_in(blocks, size_of::<SpaceRangePhys>()).max(1);
        let base = (ranges.div_ceil(in_unit) as u64 * SECTOR_UNIT).next_multiple_of(sector);
        2 * (base + sector * (self.index.len() as u64 + 2)) / SECTOR_UNIT
    }

    fn take_base(&mut self, id: u32, txg: u64) -> Result<BaseFlush> {
        let matured = self.matured_txg;
        let metaslab = &mut self.metaslabs[id as usize];
        let free = metaslab.free_ranges()?;
        let ranges: Vec<SpaceRangePhys> = free
            .iter()
            .map(|run| SpaceRangePhys { start: U32::new(run.start), units: U32::new(run.units) })
            .collect();
        let base = Base {
            head: BlockPtrPhys::HOLE,
            chain: Vec::new(),
            blocks: 0,
            ranges: ranges.len() as u32,
            free_units: metaslab.free_units,
            largest_units: free.iter().map(|run| run.units).max().unwrap_or(0),
            flushed_txg: txg,
            freed_txg: matured,
        };
        let old = std::mem::replace(&mut metaslab.base, base);
        metaslab.must_flush = false;
        metaslab.since_base.clear();
        metaslab.needed = metaslab.deferred.front().map(|(txg, _)| *txg);
        for pointer in &old.chain {
            self.free_own(pointer);
        }
        self.dirty_leaves.insert(self.leaf_of(id));
        Ok(BaseFlush { metaslab: id, ranges, places: Vec::new() })
    }

    fn place_base(&mut self, flush: &mut BaseFlush) -> Result<()> {
        let metaslab = &self.metaslabs[flush.metaslab as usize];
        if metaslab.base.free_units < u64::from(metaslab.extent.units) {
            flush.places = self.place_chain(flush.ranges.len(), size_of::<SpaceRangePhys>())?;
        }
        Ok(())
    }

    /// Frees the records that no base needs.
    fn drop_records(&mut self) {
        let needed = self.metaslabs.iter().filter_map(|metaslab| metaslab.needed).min();
        while let Some(record) = self.records.pop_front() {
            if needed.is_some_and(|txg| record.txg >= txg) {
                self.records.push_front(record);
                break;
            }
            for pointer in &record.blocks {
                self.free_own(pointer);
            }
            let blocks = record.blocks.len() as u64;
            self.counters.add(SpaceCounters::LOG_BLOCKS_DROPPED, 0, blocks);
        }
    }

    /// Moves the allocations to the record.
    fn collect_allocated(&mut self, change: SpaceChange) -> Result<()> {
        for metaslab in self.metaslabs.iter_mut().filter(|it| !it.allocated.is_empty()) {
            normalize(&mut metaslab.allocated)
                .map_err(|run| metaslab.corrupt_at(run, "were allocated twice"))?;
            let in_base =
                change == SpaceChange::Allocated && self.open == Some(metaslab.base.flushed_txg);
            if metaslab.is_append_only && !in_base {
                let runs = metaslab.allocated.iter().copied();
                metaslab.since_base.extend(runs.map(MetaslabChange::Allocate));
            }
            let runs = metaslab.allocated.drain(..);
            self.entries.extend(runs.map(|run| SpaceMapEntry {
                metaslab: metaslab.id,
                run,
                change,
            }));
        }
        Ok(())
    }

    /// Moves the frees to the record and defers them.
    fn collect_freed(&mut self, txg: u64) -> Result<()> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        for metaslab in self.metaslabs.iter_mut().filter(|it| !it.freed.is_empty()) {
            let mut runs = std::mem::take(&mut metaslab.freed);
            normalize(&mut runs).map_err(|run| metaslab.corrupt_at(run, "were freed twice"))?;
            for &run in &runs {
                if !metaslab.may_free(run) {
                    return Err(metaslab.corrupt_at(run, "were freed while free"));
                }
                let change = SpaceChange::Freed;
                self.entries.push(SpaceMapEntry { metaslab: metaslab.id, run, change });
            }
            metaslab.deferred.push_back((txg, runs));
        }
        Ok(())
    }

    /// Marks the metaslabs that need the current txg's record.
    fn mark_needed(&mut self, txg: u64) {
        for entry in &self.entries {
            let metaslab = &mut self.metaslabs[entry.metaslab as usize];
            let in_base =
                entry.change == SpaceChange::Allocated && metaslab.base.flushed_txg == txg;
            if !in_base {
                metaslab.needed.get_or_insert(txg);
            }
        }
    }

    fn write_base(
        &mut self,
        txg: u64,
        flush: BaseFlush,
        writer: &mut dyn SpaceWrite,
    ) -> Result<()> {
        let head = ChainHead { chain: SpaceChain::Base, txg, metaslab: flush.metaslab };
        let BaseFlush { ranges, places, .. } = flush;
        let mut blocks = Vec::new();
        if !places.is_empty() {
            blocks = chain::write(writer, head, &ranges, &places, BlockPtrPhys::HOLE)?;
        }
        let base = &mut self.metaslabs[flush.metaslab as usize].base;
        base.blocks = blocks.len() as u32;
        blocks.reverse();
        base.head = blocks.first().copied().unwrap_or(BlockPtrPhys::HOLE);
        base.chain = blocks;
        self.counters.add(SpaceCounters::BASES_FLUSHED, 0, 1);
        Ok(())
    }

    /// Resizes the index and allocates the blocks of its changed nodes.
    fn place_index(&mut self) -> Result<Vec<IndexNode>> {
        let shape = self.index_shape(self.metaslabs.len());
        self.index.resize(shape.len(), Vec::new());
        let mut dirty = std::mem::take(&mut self.dirty_leaves);
        let mut nodes = Vec::new();
        for (level, &blocks) in shape.iter().enumerate() {
            self.index[level].resize(blocks, BlockPtrPhys::HOLE);
            let holes = self.index[level].iter().enumerate();
            dirty.extend(holes.filter(|(_, pointer)| pointer.is_hole()).map(|(at, _)| at));
            for &at in &dirty {
                let old = self.index[level][at];
                self.free_own(&old);
                let place = self.allocate_own(self.geometry.sector_bytes)?;
                nodes.push(IndexNode { level, at, place });
            }
            dirty = dirty.into_iter().map(|at| at / self.pointers_in_node()).collect();
        }
        Ok(nodes)
    }

    /// Writes a node of the index. Its children are written.
    fn write_node(
        &mut self,
        txg: u64,
        node: &IndexNode,
        writer: &mut dyn SpaceWrite,
    ) -> Result<()> {
        let mut content = vec![0; node.place.1 as usize];
        if node.level == 0 {
            let each = self.metaslabs_in_leaf();
            let metaslabs = self.metaslabs.iter().skip(node.at * each).take(each);
            for (metaslab, out) in metaslabs.zip(content.chunks_mut(size_of::<MetaslabPhys>())) {
                out.copy_from_slice(to_phys(metaslab).as_bytes());
            }
        } else {
            let each = self.pointers_in_node();
            let below = self.index[node.level - 1].iter().skip(node.at * each).take(each);
            for (pointer, out) in below.zip(content.chunks_mut(size_of::<BlockPtrPhys>())) {
                out.copy_from_slice(pointer.as_bytes());
            }
        }
        self.index[node.level][node.at] = writer.write_at(node.place.0, &content, txg)?;
        self.counters.add(SpaceCounters::INDEX_BLOCKS, 0, 1);
        Ok(())
    }

    fn write_record(
        &mut self,
        txg: u64,
        places: &[Placement],
        writer: &mut dyn SpaceWrite,
    ) -> Result<()> {
        let entries = std::mem::take(&mut self.entries);
        let items: Vec<SpaceEntryPhys> = entries
            .iter()
            .map(|entry| SpaceEntryPhys {
                place: DvaPhys::new(self.metaslabs[entry.metaslab as usize].dva(entry.run.start)),
                units: U32::new(entry.run.units),
                change: entry.change as u8,
                reserved: [0; 3],
            })
            .collect();
        let head = ChainHead { chain: SpaceChain::Log, txg, metaslab: 0 };
        let last = self.records.back().and_then(|record| record.blocks.last()).copied();
        let previous = last.unwrap_or(BlockPtrPhys::HOLE);
        let blocks = chain::write(writer, head, &items, places, previous)?;
        let shard = self.counters.shard();
        shard.add(SpaceCounters::LOG_ENTRIES, 0, items.len() as u64);
        shard.add(SpaceCounters::LOG_BLOCKS, 0, blocks.len() as u64);
        self.records.push_back(Record { txg, entries: items.len() as u64, blocks });
        Ok(())
    }

    fn root(&self, txg: u64) -> SpaceRootPhys {
        let top = self.index.last().map_or(&[][..], Vec::as_slice);
        let mut index = [BlockPtrPhys::HOLE; SPACE_ROOT_POINTERS];
        index[..top.len()].copy_from_slice(top);
        let blocks: usize = self.records.iter().map(|record| record.blocks.len()).sum();
        let log = self.records.back().and_then(|record| record.blocks.last());
        let used = self.used_units();
        let mut root = SpaceRootPhys {
            magic: U64::new(SPACE_ROOT_MAGIC),
            txg: U64::new(txg),
            allocated_bytes: U64::new(used * SECTOR_UNIT),
            log_entries: U64::new(self.records.iter().map(|record| record.entries).sum()),
            log_blocks: U32::new(blocks as u32),
            metaslabs: U32::new(self.metaslabs.len() as u32),
            sector_shift: self.geometry.sector_bytes.ilog2() as u8,
            index_levels: self.index.len() as u8,
            index_pointers: top.len() as u8,
            root_slot: 0,
            root_bytes: U32::ZERO,
            log: log.copied().unwrap_or(BlockPtrPhys::HOLE),
            index,
            root_slots: Default::default(),
        };
        self.roots.store(&mut root);
        root
    }

    /// Number of metaslabs in a leaf of the index.
    pub(super) fn metaslabs_in_leaf(&self) -> usize {
        self.geometry.sector_bytes as usize / size_of::<MetaslabPhys>()
    }

    /// Number of pointers in an inner node of the index.
    pub(super) fn pointers_in_node(&self) -> usize {
        self.geometry.sector_bytes as usize / size_of::<BlockPtrPhys>()
    }

    /// Returns the index leaf that contains a metaslab.
    pub(super) fn leaf_of(&self, id: u32) -> usize {
        id as usize / self.metaslabs_in_leaf()
    }

    /// Returns the number of index blocks by level, leaves first. The root has the pointers of the
    /// last level.
    pub(super) fn index_shape(&self, metaslabs: usize) -> Vec<usize> {
        let mut shape = vec![metaslabs.div_ceil(self.metaslabs_in_leaf())];
        while let Some(&blocks) = shape.last().filter(|blocks| **blocks > SPACE_ROOT_POINTERS) {
            shape.push(blocks.div_ceil(self.pointers_in_node()));
        }
        shape
    }
}

/// The oldest record, other than the current one, that a metaslab would need after a flush.
fn after_flush(metaslab: &Metaslab) -> u64 {
    metaslab.deferred.front().map_or(u64::MAX, |(txg, _)| *txg)
}

fn to_phys(metaslab: &Metaslab) -> MetaslabPhys {
    let Metaslab { extent, base, .. } = metaslab;
    MetaslabPhys {
        base: base.head,
        start_bytes: U64::new(extent.start),
        length_bytes: U64::new(u64::from(extent.units) * SECTOR_UNIT),
        flushed_txg: U64::new(base.flushed_txg),
        freed_txg: U64::new(base.freed_txg),
        free_bytes: U64::new(base.free_units * SECTOR_UNIT),
        ranges: U32::new(base.ranges),
        largest_units: U32::new(base.largest_units),
        blocks: U32::new(base.blocks),
        device: U16::new(extent.device),
        shift: extent.shift,
        reserved: [0; 9],
    }
}
