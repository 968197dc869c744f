//! Reads blocks in large ranges and inserts them into memory.

use std::cell::Cell;
use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_cache::{Attributes, Hint, Key, WarmUp, WarmUpRefusal};

use super::WarmUpOutcome;
use super::scan::CurrentBlock;
use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::format::{Block, BlockSeed, verify_block};
use crate::record::{Record, RecordState, UNIT_BYTES};
use crate::shared::L2Shared;

/// Maximum size of a range with more than one block.
const RANGE_BYTES: u64 = 512 << 10;
/// A gap of up to this size between two blocks is read rather than split.
const MAX_GAP_BYTES: u64 = 64 << 10;
/// Maximum ranges of a thread in flight, those of one step. Each wait for the device may include a
/// wait for a processor, so a thread needs enough work when it runs.
const MAX_RANGES: usize = 8;
/// All ranges together take at most one part in this many of the arena.
const ARENA_SHARE: u64 = 4;

/// Why a block was skipped, in the order of the counter's labels.
#[derive(Clone, Copy)]
enum SkipReason {
    Cached = 0,
    Evicted = 1,
    NoCapacity = 2,
    NoMemory = 3,
    Unwanted = 4,
    UnknownOwner = 5,
    Undecodable = 6,
    Corrupt = 7,
    Outdated = 8,
    Expired = 9,
}

/// A range that is read at once.
struct ReadRange {
    start: u64,
    end: u64,
    /// The blocks in the range.
    blocks: Range<usize>,
}

/// The ranges of one step's blocks.
pub(super) struct ReadPlan<'a, K: Key, V: Send + Sync + 'static> {
    shared: &'a L2Shared<K, V>,
    found: &'a [CurrentBlock],
    ranges: Vec<ReadRange>,
}

impl<'a, K: Key, V: Send + Sync + 'static> ReadPlan<'a, K, V> {
    /// Plans the ranges. `found` is sorted by segment, and by address within each.
    pub(super) fn new(shared: &'a L2Shared<K, V>, found: &'a [CurrentBlock]) -> Self {
        let sector = u64::from(shared.io.device.info().sector_bytes);
        let mut ranges: Vec<ReadRange> = Vec::new();
        for (number, one) in found.iter().enumerate() {
            let at = offset(shared, one);
            let start = at / sector * sector;
            let end = (at + bytes(one)).next_multiple_of(sector);
            if let Some(last) = ranges.last_mut()
                && found[last.blocks.start].seq == one.seq
                && start <= last.end + MAX_GAP_BYTES
                && end.max(last.end) - last.start <= RANGE_BYTES
            {
                last.end = last.end.max(end);
                last.blocks.end = number + 1;
            } else {
                ranges.push(ReadRange { start, end, blocks: number..number + 1 });
            }
        }
        Self { shared, found, ranges }
    }

    /// Reads all ranges and inserts their blocks.
    ///
    /// # Errors
    /// The reason to end the warm-up.
    pub(super) fn run(&self, target: &WarmUp<K, V>) -> Result<(), WarmUpOutcome> {
        let shared = self.shared;
        let ended: Cell<Option<WarmUpOutcome>> = Cell::new(None);
        let goes_on = |_: &&ReadRange| ended.get().is_none() && shared.status.is_open();
        let ranges = self.ranges.iter().take_while(goes_on);
        let ranges = ranges.map(|range| (range.start, range.end - range.start));
        shared.io.read_ranges_limited(self.max_in_flight(), ranges, |number, read| {
            // Ranges in flight at the end are dropped.
            if ended.get().is_some() {
                return;
            }
            match read {
                Ok(buffer) => {
                    shared.counters.add(L2Counters::WARM_UP_BYTES, 0, buffer.len() as u64);
                    ended.set(self.insert_range(&self.ranges[number], &buffer, target).err());
                }
                Err(IoError::Device(_)) => shared.counters.add(L2Counters::WARM_UP_ERRORS, 0, 1),
                Err(error) => ended.set(Some(shared.read_failure_outcome(&error))),
            }
        });
        match ended.get() {
            Some(end) => Err(end),
            None => Ok(()),
        }
    }

    /// Maximum ranges in flight, as far as the arena allows.
    fn max_in_flight(&self) -> usize {
        let share = self.shared.io.arena.limit_bytes() / ARENA_SHARE;
        let each = share / u64::from(self.shared.tunables.warm_up_threads());
        ((each / RANGE_BYTES) as usize).clamp(1, MAX_RANGES)
    }

    fn insert_range(
        &self,
        range: &ReadRange,
        buffer: &Buffer,
        target: &WarmUp<K, V>,
    ) -> Result<(), WarmUpOutcome> {
        let shared = self.shared;
        for one in &self.found[range.blocks.clone()] {
            let at = (offset(shared, one) - range.start) as usize;
            let block = buffer.get(at..at + bytes(one) as usize).unwrap_or_default();
            match self.insert_block(one, block, target) {
                Ok(()) => shared.counters.add(L2Counters::WARMED, one.class as usize, 1),
                Err(reason) => {
                    shared.counters.add(L2Counters::WARM_UP_SKIPPED, reason as usize, 1);
                    if matches!(reason, SkipReason::NoCapacity) {
                        return Err(WarmUpOutcome::NoCapacity);
                    }
                }
            }
            if !shared.status.is_open() {
                return Err(shared.closed_outcome());
            }
        }
        Ok(())
    }

    /// Inserts a block into memory if it verifies and is still current.
    fn insert_block(
        &self,
        one: &CurrentBlock,
        bytes: &[u8],
        target: &WarmUp<K, V>,
    ) -> Result<(), SkipReason> {
        let shared = self.shared;
        let used_again = || shared.ring.seq(one.addr.segment) != one.seq;
        let seed = BlockSeed::new(shared.ring.guid(), one.seq);
        let Some(Block { key, note, value }) = verify_block(seed, bytes) else {
            if used_again() {
                return Err(SkipReason::Outdated);
            }
            shared.mark_bad(one.hash, one.addr);
            return Err(SkipReason::Corrupt);
        };
        // The log record and the block must agree on the key.
        if key.len() != shared.label.key_bytes || shared.hash_of_encoded(key) != one.hash {
            return Err(SkipReason::Corrupt);
        }
        let key = shared
            .with_codec(|codec| codec.decode_key(key, note))
            .ok_or(SkipReason::Undecodable)?;
        let key = key.ok_or(SkipReason::UnknownOwner)?;
        if shared.key_hash(&key) != Some(one.hash) {
            return Err(SkipReason::Undecodable);
        }
        if target.has(&key) {
            return Err(SkipReason::Cached);
        }
        let value = shared.with_codec(|codec| codec.decode(&key, value)).flatten();
        let value = value.ok_or(SkipReason::Undecodable)?;
        if shared.with_codec(|codec| codec.has_expired(&value)) != Some(false) {
            return Err(SkipReason::Expired);
        }
        let hint = if one.hits > 0 { Hint::Again } else { Hint::Normal };
        let attributes = Attributes { class: one.class, hint, label: 0 };
        // See the module head. The status is checked last: after it changes, forgetting a key may
        // leave its record in the index.
        let is_current = || {
            let mut live = false;
            // Memory holds the block from now on, and reports its eviction.
            shared.index.change(one.hash, one.addr, |record| {
                live = record.state == RecordState::Live;
                Some(Record { in_memory: record.in_memory || live, ..record })
            });
            // In the order of a load.
            let current =
                live && !shared.is_void(&key, one.addr) && !used_again() && shared.status.is_open();
            if live && !current {
                shared.index.clear_in_memory(one.hash);
            }
            current
        };
        target.put(key, value, attributes, is_current).map_err(|why| match why {
            WarmUpRefusal::AlreadyCached => SkipReason::Cached,
            WarmUpRefusal::EvictedBefore => SkipReason::Evicted,
            WarmUpRefusal::NoMemory => SkipReason::NoMemory,
            WarmUpRefusal::ByOwner | WarmUpRefusal::Closed => SkipReason::Unwanted,
            WarmUpRefusal::Outdated => SkipReason::Outdated,
            _ => SkipReason::NoCapacity,
        })
    }
}

/// Offset of a block on the device.
fn offset<K: Key, V: Send + Sync + 'static>(shared: &L2Shared<K, V>, one: &CurrentBlock) -> u64 {
    shared.ring.geometry.offset(one.addr.segment) + u64::from(one.addr.unit) * UNIT_BYTES
}

/// Size of a block with its header, in bytes.
fn bytes(one: &CurrentBlock) -> u64 {
    u64::from(one.addr.units) * UNIT_BYTES
}
