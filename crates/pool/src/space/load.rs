//! Loads the space maps from a root. All data read is untrusted.
//!
//! The index and the log are read at import, bases on first use. Properties that can be checked
//! without a base are checked here: addresses, order, sums. The ranges are checked when the base is
//! read.

use std::collections::{BTreeMap, VecDeque};

use zerocopy::FromBytes;

use crate::format::{
    BlockPtrPhys, MetaslabPhys, SECTOR_UNIT, SPACE_ROOT_MAGIC, SPACE_ROOT_POINTERS, SpaceChain,
    SpaceChange, SpaceEntryPhys, SpaceRangePhys, SpaceRootPhys,
};
use crate::{Error, ErrorKind, Result};

use super::DeviceSpan;
use super::chain::{self, ChainHead};
use super::geometry::{MAX_METASLABS, MetaslabExtent};
use super::metaslab::{Base, FreeMap, Metaslab, MetaslabChange};
use super::range_set::Run;
use super::{MAX_SECTOR_BYTES, Record, Space, SpaceCounters, SpaceRead};

/// Number of index blocks per batch of reads.
const BATCH: usize = 64;
/// Limit of addressable offsets.
const REACH: u64 = (1 << 48) * SECTOR_UNIT;

/// Where the base of a metaslab is that is not loaded.
pub(crate) struct UnloadedBase {
    id: u32,
    head: BlockPtrPhys,
    flushed_txg: u64,
    blocks: u32,
    ranges: u32,
    units: u32,
    sector_units: u32,
}

/// The content of a base: free ranges, and the blocks that store them.
pub(crate) struct BaseRuns {
    runs: Vec<Run>,
    chain: Vec<BlockPtrPhys>,
}

impl UnloadedBase {
    /// Number of the metaslab.
    pub(crate) fn metaslab(&self) -> u32 {
        self.id
    }

    /// Reads the base.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if its content is invalid; errors of `reader`.
    pub(crate) fn read(&self, reader: &dyn SpaceRead) -> Result<BaseRuns> {
        let id = self.id;
        if self.head.is_hole() {
            let runs = vec![Run::new(0, self.units)];
            return Ok(BaseRuns { runs, chain: Vec::new() });
        }
        let head = ChainHead { chain: SpaceChain::Base, txg: self.flushed_txg, metaslab: id };
        let (ranges, chain) = chain::read_all(reader, &self.head, head, self.blocks)
            .map_err(|error| error.doing(format_args!("reading the base of metaslab {id}")))?;
        let runs = to_runs(&ranges, self.units, self.sector_units);
        let runs = runs.filter(|runs| runs.len() == self.ranges as usize);
        let invalid = || corrupt(&format!("metaslab {id}: its base has invalid ranges"));
        Ok(BaseRuns { runs: runs.ok_or_else(invalid)?, chain })
    }
}

/// Whether a failed read may succeed later.
fn may_repeat(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Device | ErrorKind::NoMemory)
}

/// A record of the log with its decoded entries.
struct ReplayedRecord {
    record: Record,
    entries: Vec<(u32, Run, SpaceChange)>,
}

impl Space {
    /// Loads the space maps of `root`. The frees of its txg and of the previous one are deferred
    /// again.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the stored data is invalid; errors of `reader`.
    pub(crate) fn load(
        root: &SpaceRootPhys,
        spans: &[DeviceSpan],
        reader: Box<dyn SpaceRead + Send>,
    ) -> Result<Self> {
        let sector = 1u64.checked_shl(root.sector_shift.into()).unwrap_or(0);
        if root.magic.get() != SPACE_ROOT_MAGIC || sector > MAX_SECTOR_BYTES {
            return Err(corrupt("the root has an invalid header"));
        }
        let mut space = Self::empty(sector, reader).map_err(|_| corrupt("invalid sector size"))?;
        space.synced = root.txg.get();
        space.load_index(root, spans)?;
        space.load_root_slots(root)?;
        let replayed = space.load_log(root)?;
        space.replay(replayed)?;
        let used = space.total_units.checked_sub(space.free_units + space.deferred_units);
        if used.and_then(|units| units.checked_mul(SECTOR_UNIT)) != Some(root.allocated_bytes.get())
        {
            return Err(corrupt("index and log do not match the root's allocated bytes"));
        }
        space.begin_appending(spans)?;
        Ok(space)
    }

    /// Creates the space maps of a pool that is only read, without the metaslabs of `root`. Only
    /// the totals are known, as far as `root` is plausible.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the sector size is invalid.
    pub(crate) fn without_maps(
        root: &SpaceRootPhys,
        spans: &[DeviceSpan],
        sector_bytes: u64,
        reader: Box<dyn SpaceRead + Send>,
    ) -> Result<Self> {
        let mut space = Self::empty(sector_bytes, reader)?;
        space.synced = root.txg.get();
        let bytes: u64 = spans.iter().map(|span| span.end - span.start).sum();
        space.total_units = bytes / SECTOR_UNIT;
        let used = root.allocated_bytes.get() / SECTOR_UNIT;
        space.free_units = space.total_units.saturating_sub(used);
        Ok(space)
    }

    /// Reads the bases of all metaslabs.
    ///
    /// # Errors
    /// If a base cannot be read or does not match the log.
    pub(crate) fn load_metaslabs(&mut self) -> Result<()> {
        (0..self.metaslabs.len() as u32).try_for_each(|id| self.load_metaslab(id))
    }

    /// Reads the base of a metaslab, unless it is loaded.
    pub(super) fn load_metaslab(&mut self, id: u32) -> Result<()> {
        self.note_used(id);
        if self.metaslabs[id as usize].is_loaded() {
            return Ok(());
        }
        let Some(base) = self.unloaded_base(id) else { return Ok(()) };
        let runs = loop {
            match base.read(&*self.reader) {
                Err(error) if self.open.is_some() && may_repeat(&error) => {
                    self.reader.wait_after(error)?;
                }
                ended => break ended?,
            }
        };
        self.put_base(&base, runs)
    }

    /// The base of the first metaslab from `from` on that is not loaded.
    pub(crate) fn unloaded_base(&self, from: u32) -> Option<UnloadedBase> {
        let rest = self.metaslabs.get(from as usize..)?;
        let metaslab = rest.iter().find(|metaslab| !metaslab.is_loaded())?;
        Some(UnloadedBase {
            id: metaslab.id,
            head: metaslab.base.head,
            flushed_txg: metaslab.base.flushed_txg,
            blocks: metaslab.base.blocks,
            ranges: metaslab.base.ranges,
            units: metaslab.extent.units,
            sector_units: self.geometry.sector_units(),
        })
    }

    /// The base of the first metaslab from `from` on that a walk has to load: its blocks are not
    /// known, or a check compares its ranges.
    pub(crate) fn base_to_walk(&self, from: u32) -> Option<UnloadedBase> {
        let rest = self.metaslabs.get(from as usize..)?;
        let is_known = |metaslab: &Metaslab| metaslab.knows_chain && self.audit.is_none();
        let wanted = rest.iter().find(|metaslab| !metaslab.is_loaded() && !is_known(metaslab))?;
        self.unloaded_base(wanted.id)
    }

    /// Whether the blocks of all bases are known.
    pub(crate) fn knows_all_blocks(&self) -> bool {
        self.metaslabs.iter().all(|metaslab| metaslab.is_loaded() || metaslab.knows_chain)
    }

    /// Whether a metaslab still has this base, and is not loaded.
    pub(crate) fn is_unloaded(&self, base: &UnloadedBase) -> bool {
        let metaslab = &self.metaslabs[base.id as usize];
        !metaslab.is_loaded() && metaslab.base.head == base.head
    }

    /// Loads a metaslab from its base, unless it was loaded meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the base does not match the log.
    pub(crate) fn put_base(&mut self, base: &UnloadedBase, runs: BaseRuns) -> Result<()> {
        if !self.is_unloaded(base) {
            return Ok(());
        }
        let metaslab = &mut self.metaslabs[base.id as usize];
        metaslab.load(runs.runs)?;
        metaslab.base.chain = runs.chain;
        metaslab.knows_chain = true;
        let (withheld, device) = (metaslab.withheld_units(), metaslab.extent.device);
        let device = self.geometry.device_at(device).unwrap_or_default();
        self.devices[device].free_units -= withheld;
        self.free_units -= withheld;
        self.withheld_units += withheld;
        self.counters.add(SpaceCounters::BASES_LOADED, 0, u64::from(!base.head.is_hole()));
        self.note_used(base.id);
        Ok(())
    }

    fn load_index(&mut self, root: &SpaceRootPhys, spans: &[DeviceSpan]) -> Result<()> {
        let metaslabs = root.metaslabs.get() as usize;
        if metaslabs == 0 || metaslabs > MAX_METASLABS {
            return Err(corrupt("invalid number of metaslabs"));
        }
        let shape = self.index_shape(metaslabs);
        let top = usize::from(root.index_pointers);
        if shape.len() != usize::from(root.index_levels) || shape.last() != Some(&top) {
            return Err(corrupt("the index has an invalid shape"));
        }
        self.index = vec![Vec::new(); shape.len()];
        self.index[shape.len() - 1] = root.index[..top.min(SPACE_ROOT_POINTERS)].to_vec();
        for level in (1..shape.len()).rev() {
            let mut below = Vec::new();
            for content in self.read_nodes(level)? {
                let missing = shape[level - 1] - below.len();
                let pointers = content.chunks_exact(size_of::<BlockPtrPhys>()).take(missing);
                below
                    .extend(pointers.filter_map(|bytes| BlockPtrPhys::read_from_bytes(bytes).ok()));
            }
            self.index[level - 1] = below;
        }
        let spans: BTreeMap<u16, &DeviceSpan> =
            spans.iter().map(|span| (span.device, span)).collect();
        for content in self.read_nodes(0)? {
            let missing = metaslabs - self.metaslabs.len();
            for bytes in content.chunks_exact(size_of::<MetaslabPhys>()).take(missing) {
                if let Ok(phys) = MetaslabPhys::read_from_bytes(bytes) {
                    self.load_entry(&phys, &spans)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the blocks of an index level, each one sector.
    fn read_nodes(&self, level: usize) -> Result<Vec<Vec<u8>>> {
        let mut contents = Vec::new();
        for batch in self.index[level].chunks(BATCH) {
            for pointer in batch {
                chain::check_pointer(pointer)?;
                if u64::from(pointer.logical_bytes.get()) != self.geometry.sector_bytes {
                    return Err(chain::corrupt(pointer, "of the index has the wrong size"));
                }
            }
            let read = self.reader.read_many(batch)?;
            if read.len() != batch.len()
                || read.iter().any(|content| content.len() as u64 != self.geometry.sector_bytes)
            {
                return Err(corrupt("a block of the index has the wrong length"));
            }
            contents.extend(read);
        }
        Ok(contents)
    }

    fn load_entry(
        &mut self,
        phys: &MetaslabPhys,
        spans: &BTreeMap<u16, &DeviceSpan>,
    ) -> Result<()> {
        let id = self.metaslabs.len();
        let bad = |what: &str| corrupt(&format!("metaslab {id}: {what}"));
        let (start, length) = (phys.start_bytes.get(), phys.length_bytes.get());
        if start > REACH || length > 1 << 40 || !(20..=40).contains(&phys.shift) {
            return Err(bad("invalid address or size"));
        }
        let span =
            spans.get(&phys.device.get()).ok_or_else(|| bad("belongs to an unknown device"))?;
        if start < span.start || start + length > span.end {
            return Err(bad("is not between the device's labels"));
        }
        let (free, flushed) = (phys.free_bytes.get(), phys.flushed_txg.get());
        let whole = phys.base.is_hole();
        if free > length
            || !(free | length).is_multiple_of(self.geometry.sector_bytes)
            || flushed > self.synced
            || phys.freed_txg.get() > flushed
            || whole != (phys.blocks.get() == 0)
            || (whole && free != length)
        {
            return Err(bad("its base is invalid"));
        }
        let extent = MetaslabExtent {
            device: phys.device.get(),
            start,
            units: (length / SECTOR_UNIT) as u32,
            shift: phys.shift,
        };
        let base = Base {
            head: phys.base,
            chain: Vec::new(),
            blocks: phys.blocks.get(),
            ranges: phys.ranges.get(),
            free_units: free / SECTOR_UNIT,
            largest_units: phys.largest_units.get(),
            flushed_txg: flushed,
            freed_txg: phys.freed_txg.get(),
        };
        self.add_metaslab(extent, base)
    }

    /// Reads the log, newest block first. Returns its records, oldest first.
    fn load_log(&self, root: &SpaceRootPhys) -> Result<VecDeque<ReplayedRecord>> {
        let mut records = VecDeque::<ReplayedRecord>::new();
        let mut pointer = root.log;
        // The expected part of the current record; `None` if an older record must follow.
        let mut next_part = None;
        let mut left = root.log_entries.get();
        for _ in 0..root.log_blocks.get() {
            let link = chain::read_link(&*self.reader, &pointer, SpaceChain::Log)?;
            let (txg, part) = (link.header.txg.get(), link.header.part.get());
            let newest = records.front().map(|replayed| replayed.record.txg);
            let fits = match (newest, next_part) {
                (None, _) => txg == root.txg.get(),
                (Some(newest), None) => txg < newest,
                (Some(newest), Some(expected)) => txg == newest && part == expected,
            };
            let entries = link.items.len() as u64;
            if !fits || entries > left {
                return Err(chain::corrupt(&pointer, "is not the expected block of the log"));
            }
            left -= entries;
            if next_part.is_none() {
                let record = Record { txg, entries: 0, blocks: Vec::new() };
                records.push_front(ReplayedRecord { record, entries: Vec::new() });
            }
            if let Some(replayed) = records.front_mut() {
                replayed.record.entries += entries;
                replayed.record.blocks.push(pointer);
                for entry in &link.items {
                    replayed.entries.push(self.check_entry(&pointer, entry)?);
                }
            }
            next_part = part.checked_sub(1);
            pointer = link.header.previous;
        }
        if left > 0 || next_part.is_some() || records.is_empty() {
            return Err(corrupt("the log is shorter than the root says"));
        }
        records.iter_mut().for_each(|replayed| replayed.record.blocks.reverse());
        Ok(records)
    }

    fn check_entry(
        &self,
        pointer: &BlockPtrPhys,
        entry: &SpaceEntryPhys,
    ) -> Result<(u32, Run, SpaceChange)> {
        let bytes = u64::from(entry.units.get()) * SECTOR_UNIT;
        let place = entry.place.get().and_then(|dva| self.geometry.locate(dva, bytes));
        match (place, SpaceChange::from_raw(entry.change)) {
            (Some((id, run)), Some(change)) => Ok((id, run, change)),
            _ => Err(chain::corrupt(pointer, "has an entry with an invalid range")),
        }
    }

    /// Applies the rule of [`super`]. Changes of an unloaded metaslab are kept until it is loaded.
    fn replay(&mut self, replayed: VecDeque<ReplayedRecord>) -> Result<()> {
        let txg_at = |at: Option<usize>| at.map(|at| replayed[at].record.txg);
        for (at, ReplayedRecord { record, entries }) in replayed.iter().enumerate() {
            if let Some(before) = txg_at(at.checked_sub(3)) {
                self.replay_matured(before)?;
            }
            for &(id, run, change) in entries {
                self.replay_entry(record.txg, id, run, change)?;
            }
        }
        let oldest = replayed.front().map_or(0, |first| first.record.txg.saturating_sub(1));
        self.matured_txg = txg_at(replayed.len().checked_sub(3)).unwrap_or(oldest);
        self.replay_matured(self.matured_txg)?;
        self.records = replayed.into_iter().map(|replayed| replayed.record).collect();
        self.metaslabs.iter_mut().try_for_each(Metaslab::check_deferred)
    }

    fn replay_entry(&mut self, txg: u64, id: u32, run: Run, change: SpaceChange) -> Result<()> {
        let metaslab = &mut self.metaslabs[id as usize];
        let units = u64::from(run.units);
        let Base { flushed_txg, freed_txg, .. } = metaslab.base;
        let in_base = match change {
            SpaceChange::Allocated => txg <= flushed_txg,
            SpaceChange::AllocatedLate => txg < flushed_txg,
            SpaceChange::Freed => txg <= freed_txg,
        };
        if in_base {
            return Ok(());
        }
        metaslab.needed.get_or_insert(txg);
        if change == SpaceChange::Freed {
            match metaslab.deferred.back_mut().filter(|(last, _)| *last == txg) {
                Some((_, runs)) => runs.push(run),
                None => metaslab.deferred.push_back((txg, vec![run])),
            }
            self.deferred_units += units;
            return Ok(());
        }
        if metaslab.free_units < units {
            return Err(metaslab.corrupt_at(run, "were allocated but not free"));
        }
        metaslab.free_units -= units;
        if let FreeMap::Unloaded(changes) = &mut metaslab.map {
            changes.push(MetaslabChange::Allocate(run));
        }
        self.subtract_free(id, run.units);
        Ok(())
    }

    fn replay_matured(&mut self, txg: u64) -> Result<()> {
        for metaslab in &mut self.metaslabs {
            let units = metaslab.mature(txg, false)?;
            if metaslab.free_units > u64::from(metaslab.extent.units) {
                return Err(metaslab.corrupt("more bytes are free than it has"));
            }
            let device = self.geometry.device_at(metaslab.extent.device).unwrap_or_default();
            self.devices[device].free_units += units;
            self.free_units += units;
            self.deferred_units -= units;
        }
        Ok(())
    }
}

/// Decodes the ranges of a base; `None` if one is not made of whole sectors or outside the
/// metaslab.
fn to_runs(ranges: &[SpaceRangePhys], units: u32, sector_units: u32) -> Option<Vec<Run>> {
    let fits = |range: &SpaceRangePhys| {
        let run = Run::new(range.start.get(), range.units.get());
        let end = run.start.checked_add(run.units)?;
        let whole = (run.start | run.units).is_multiple_of(sector_units);
        (whole && run.units > 0 && end <= units).then_some(run)
    };
    ranges.iter().map(fits).collect()
}

#[cold]
fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("space maps: {what}"))
}
