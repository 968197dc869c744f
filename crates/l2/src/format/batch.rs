//! A batch: a log block that says what follows it, then blocks.

use forebay_cache::Class;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::segment::chain_of;
use super::{PAGE_BYTES, sum};
use crate::record::{MAX_BLOCK_UNITS, MAX_HITS};

/// First bytes of a batch: "forelbat".
const MAGIC: u64 = u64::from_le_bytes(*b"forelbat");
/// Bytes of a log block before its records.
pub(crate) const BATCH_HEADER_BYTES: usize = 80;
/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 16;

/// The front of a batch.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BatchPhys {
    /// "forelbat".
    magic: U64,
    /// XXH3, 128 bits, of all after it, records included.
    checksum: [u8; 16],
    /// The level's.
    guid: U64,
    /// The segment's.
    seq: U64,
    /// Which batch of the segment, from 0.
    number: U32,
    /// Records that follow.
    records: U32,
    /// Pages of the log block.
    log_pages: U32,
    /// Pages of blocks after it.
    payload_pages: U32,
    /// What the batch before, or the segment's header, left in the chain.
    previous: U64,
    /// The youngest stamp of any block that was ever written to the level, this batch included.
    stamp: U64,
    /// Batches of this segment that were known to be durable when this was written.
    durable: U32,
    /// Zeros.
    reserved: U32,
}

const _: () = assert!(size_of::<BatchPhys>() == BATCH_HEADER_BYTES);
const COVERED_FROM: usize = 24;

/// One line of a log block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordPhys {
    /// The identity of the key.
    hash: U64,
    /// First unit of the block in its segment; 0 for a tombstone.
    unit: U32,
    /// Units of the block (18 bits), class (1), hits (2), whether it is a tombstone (1), from the lowest bit.
    packed: U32,
}

const _: () = assert!(size_of::<RecordPhys>() == RECORD_BYTES);

const CLASS_SHIFT: u32 = 18;
const HITS_SHIFT: u32 = 19;
const TOMBSTONE: u32 = 1 << 21;
const USED_BITS: u32 = (1 << 22) - 1;
const _: () = assert!(MAX_BLOCK_UNITS < 1 << CLASS_SHIFT);
const _: () = assert!(MAX_HITS < 4);

/// A line of a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecord {
    /// There is a block.
    Block { hash: u64, unit: u32, units: u32, class: Class, hits: u8 },
    /// What came before, the blocks of this batch included, is not to be returned.
    Tombstone { hash: u64 },
}

impl LogRecord {
    fn phys(self) -> RecordPhys {
        match self {
            Self::Tombstone { hash } => {
                RecordPhys { hash: hash.into(), unit: 0.into(), packed: TOMBSTONE.into() }
            }
            Self::Block { hash, unit, units, class, hits } => {
                let class = match class {
                    Class::Metadata => 0,
                    Class::Data => 1 << CLASS_SHIFT,
                };
                let packed = units | class | u32::from(hits) << HITS_SHIFT;
                RecordPhys { hash: hash.into(), unit: unit.into(), packed: packed.into() }
            }
        }
    }

    /// What a line says; `None` if it cannot be: a block that is not within `from..to`, of the segment's units.
    #[inline]
    fn from_phys(phys: &RecordPhys, (from, to): (u32, u32)) -> Option<Self> {
        let (hash, unit, packed) = (phys.hash.get(), phys.unit.get(), phys.packed.get());
        if packed & !USED_BITS != 0 {
            return None;
        }
        let units = packed & MAX_BLOCK_UNITS;
        if packed & TOMBSTONE != 0 {
            return (packed == TOMBSTONE && unit == 0).then_some(Self::Tombstone { hash });
        }
        if units == 0 || unit < from || unit.checked_add(units)? > to {
            return None;
        }
        let class = if packed >> CLASS_SHIFT & 1 == 0 { Class::Metadata } else { Class::Data };
        let hits = (packed >> HITS_SHIFT & 3) as u8;
        Some(Self::Block { hash, unit, units, class, hits })
    }
}

/// Bytes of a log block of so many records: whole pages.
pub(crate) fn log_bytes_for(records: usize) -> u64 {
    ((BATCH_HEADER_BYTES + records * RECORD_BYTES) as u64).next_multiple_of(PAGE_BYTES)
}

/// What the front of a batch says, beside its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) seq: u64,
    pub(crate) number: u32,
    pub(crate) log_bytes: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) previous: u64,
    pub(crate) stamp: u64,
    pub(crate) durable: u32,
}

/// Writes a log block into `log`, which has `header.log_bytes`; returns what it leaves in the chain.
pub(crate) fn seal_log(
    guid: u64,
    header: &BatchHeader,
    records: &[LogRecord],
    log: &mut [u8],
) -> u64 {
    let end = BATCH_HEADER_BYTES + records.len() * RECORD_BYTES;
    assert!(end <= log.len(), "the log block has room for its records");
    let mut phys = BatchPhys {
        magic: MAGIC.into(),
        checksum: [0; 16],
        guid: guid.into(),
        seq: header.seq.into(),
        number: header.number.into(),
        records: (records.len() as u32).into(),
        log_pages: ((header.log_bytes / PAGE_BYTES) as u32).into(),
        payload_pages: ((header.payload_bytes / PAGE_BYTES) as u32).into(),
        previous: header.previous.into(),
        stamp: header.stamp.into(),
        durable: header.durable.into(),
        reserved: 0.into(),
    };
    let lines = log[BATCH_HEADER_BYTES..end].chunks_exact_mut(RECORD_BYTES);
    for (line, record) in lines.zip(records) {
        line.copy_from_slice(record.phys().as_bytes());
    }
    log[end..].fill(0);
    log[..BATCH_HEADER_BYTES].copy_from_slice(phys.as_bytes());
    phys.checksum = sum(&log[COVERED_FROM..end]);
    log[..BATCH_HEADER_BYTES].copy_from_slice(phys.as_bytes());
    chain_of(&phys.checksum)
}

impl BatchHeader {
    /// How long the batch in `page` says it is, before its sum has been looked at: log and payload, in bytes. `None` if it
    /// is none of this use of the segment, or would end past `space` bytes.
    pub(crate) fn peek((guid, seq): (u64, u64), page: &[u8], space: u64) -> Option<(u64, u64)> {
        let (phys, _) = BatchPhys::ref_from_prefix(page).ok()?;
        if phys.magic.get() != MAGIC || phys.guid.get() != guid || phys.seq.get() != seq {
            return None;
        }
        let log = u64::from(phys.log_pages.get()) * PAGE_BYTES;
        let payload = u64::from(phys.payload_pages.get()) * PAGE_BYTES;
        let needed = log_bytes_for(phys.records.get() as usize);
        (log >= needed && log + payload <= space).then_some((log, payload))
    }

    /// The sequence number that a batch claims, before its sum has been looked at.
    pub(crate) fn claimed_seq(guid: u64, page: &[u8]) -> Option<u64> {
        let (phys, _) = BatchPhys::ref_from_prefix(page).ok()?;
        (phys.magic.get() == MAGIC && phys.guid.get() == guid).then(|| phys.seq.get())
    }
}

/// A log block, as it lies in memory: its sum is right.
#[derive(Clone, Copy)]
pub(crate) struct LogBlock<'a> {
    pub(crate) header: BatchHeader,
    /// What it leaves in the chain.
    pub(crate) chain: u64,
    records: &'a [RecordPhys],
    // Units of the segment in which its blocks lie.
    range: (u32, u32),
}

impl<'a> LogBlock<'a> {
    /// The log block in `log`, all of it, of the batch at `offset` of its segment, if it is of that use of the segment and fits
    /// into `space` bytes with its blocks.
    pub(crate) fn parse(
        (guid, seq): (u64, u64),
        log: &'a [u8],
        (offset, space): (u64, u64),
    ) -> Option<Self> {
        let (log_bytes, payload_bytes) = BatchHeader::peek((guid, seq), log, space)?;
        let (phys, rest) = BatchPhys::ref_from_prefix(log).ok()?;
        if log.len() as u64 != log_bytes {
            return None;
        }
        let bytes = phys.records.get() as usize * RECORD_BYTES;
        if phys.checksum != sum(log.get(COVERED_FROM..BATCH_HEADER_BYTES + bytes)?) {
            return None;
        }
        let records = <[RecordPhys]>::ref_from_bytes(rest.get(..bytes)?).ok()?;
        let unit = |bytes: u64| u32::try_from(bytes / crate::record::UNIT_BYTES).ok();
        let from = unit(offset + log_bytes)?;
        let to = unit(offset + log_bytes + payload_bytes)?;
        let header = BatchHeader {
            seq,
            number: phys.number.get(),
            log_bytes,
            payload_bytes,
            previous: phys.previous.get(),
            stamp: phys.stamp.get(),
            durable: phys.durable.get(),
        };
        Some(Self { header, chain: chain_of(&phys.checksum), records, range: (from, to) })
    }

    /// The unit of the segment with which the batch ends.
    pub(crate) fn end_unit(&self) -> u32 {
        self.range.1
    }

    /// Number of its records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Its records, but for lines that cannot be.
    pub(crate) fn records(self) -> impl Iterator<Item = LogRecord> + 'a {
        let range = self.range;
        self.records.iter().filter_map(move |phys| LogRecord::from_phys(phys, range))
    }
}
