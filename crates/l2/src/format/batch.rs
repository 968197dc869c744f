//! A batch: a log block, then the blocks that it lists.

use forebay_cache::Class;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::segment::chain_of;
use super::{PAGE_BYTES, sum};
use crate::record::{KeyHash, MAX_BLOCK_UNITS, MAX_HITS, Tombstone};

/// First bytes of a batch: "forelbat".
const MAGIC: u64 = u64::from_le_bytes(*b"forelbat");
/// Size of a log block before its records.
pub(crate) const BATCH_HEADER_BYTES: usize = 80;
/// Size of a record.
pub(crate) const RECORD_BYTES: usize = 16;

/// The header of a batch.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BatchPhys {
    /// "forelbat".
    magic: U64,
    /// XXH3, 128 bits, of everything after it, records included.
    checksum: [u8; 16],
    /// The L2's guid.
    guid: U64,
    /// The segment's sequence number.
    seq: U64,
    /// Number of the batch within the segment, from 0.
    number: U32,
    /// Number of records that follow.
    records: U32,
    /// Pages of the log block.
    log_pages: U32,
    /// Pages of blocks after the log block.
    payload_pages: U32,
    /// The chain value of the batch before, or of the segment's header.
    previous: U64,
    /// The newest stamp of any block ever written to the L2, this batch included.
    stamp: U64,
    /// Batches of this segment that were durable when this was written.
    durable: U32,
    /// Zeros.
    reserved: U32,
}

const _: () = assert!(size_of::<BatchPhys>() == BATCH_HEADER_BYTES);
const COVERED_FROM: usize = 24;

/// A record of a log block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordPhys {
    /// The key hash, or the group.
    hash: U64,
    /// First unit of the block in its segment; 0 for a tombstone.
    unit: U32,
    /// From the lowest bit: units of the block (18 bits), class (1), hits (2), tombstone (1),
    /// tombstone of a group (1).
    packed: U32,
}

const _: () = assert!(size_of::<RecordPhys>() == RECORD_BYTES);

const CLASS_SHIFT: u32 = 18;
const HITS_SHIFT: u32 = 19;
const TOMBSTONE: u32 = 1 << 21;
const GROUP_TOMBSTONE: u32 = 1 << 22;
const USED_BITS: u32 = (1 << 23) - 1;
const _: () = assert!(MAX_BLOCK_UNITS < 1 << CLASS_SHIFT);
const _: () = assert!(MAX_HITS < 4);

/// A record of a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecord {
    /// A block.
    Block { hash: u64, unit: u32, units: u32, class: Class, hits: u8 },
    /// Voids all earlier blocks, those of this batch included.
    Tombstone(Tombstone),
}

impl LogRecord {
    fn phys(self) -> RecordPhys {
        match self {
            Self::Tombstone(tombstone) => {
                let (hash, packed) = match tombstone {
                    Tombstone::Key(hash) => (hash.0, TOMBSTONE),
                    Tombstone::Group(group) => (group, GROUP_TOMBSTONE),
                };
                RecordPhys { hash: hash.into(), unit: 0.into(), packed: packed.into() }
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

    /// Decodes a record. Returns `None` if it is invalid, such as a block outside of the segment's
    /// units `from..to`.
    #[inline]
    fn from_phys(phys: &RecordPhys, (from, to): (u32, u32)) -> Option<Self> {
        let (hash, unit, packed) = (phys.hash.get(), phys.unit.get(), phys.packed.get());
        if packed & !USED_BITS != 0 {
            return None;
        }
        let units = packed & MAX_BLOCK_UNITS;
        if packed & (TOMBSTONE | GROUP_TOMBSTONE) != 0 {
            let tombstone = match packed {
                TOMBSTONE => Tombstone::Key(KeyHash(hash)),
                GROUP_TOMBSTONE => Tombstone::Group(hash),
                _ => return None,
            };
            return (unit == 0).then_some(Self::Tombstone(tombstone));
        }
        if units == 0 || unit < from || unit.checked_add(units)? > to {
            return None;
        }
        let class = if packed >> CLASS_SHIFT & 1 == 0 { Class::Metadata } else { Class::Data };
        let hits = (packed >> HITS_SHIFT & 3) as u8;
        Some(Self::Block { hash, unit, units, class, hits })
    }
}

/// Size of a log block with this many records in bytes, whole pages.
pub(crate) fn log_bytes_for(records: usize) -> u64 {
    ((BATCH_HEADER_BYTES + records * RECORD_BYTES) as u64).next_multiple_of(PAGE_BYTES)
}

/// The fields of a batch's header.
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

/// Writes a log block into `log`, which has `header.log_bytes`. Returns its chain value.
pub(crate) fn seal_log(
    guid: u64,
    header: &BatchHeader,
    records: &[LogRecord],
    log: &mut [u8],
) -> u64 {
    let end = BATCH_HEADER_BYTES + records.len() * RECORD_BYTES;
    assert!(end <= log.len(), "the records fit into the log block");
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
    /// The sizes of the log and the payload that a batch claims, in bytes, before its checksum is
    /// verified. Returns `None` if the batch does not belong to this use of the segment, or would
    /// end past `space` bytes.
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

    /// The sequence number that a batch claims, before its checksum is verified.
    pub(crate) fn claimed_seq(guid: u64, page: &[u8]) -> Option<u64> {
        let (phys, _) = BatchPhys::ref_from_prefix(page).ok()?;
        (phys.magic.get() == MAGIC && phys.guid.get() == guid).then(|| phys.seq.get())
    }
}

/// A log block with a valid checksum.
#[derive(Clone, Copy)]
pub(crate) struct LogBlock<'a> {
    pub(crate) header: BatchHeader,
    /// Its chain value.
    pub(crate) chain: u64,
    records: &'a [RecordPhys],
    // The segment's units that hold its blocks.
    range: (u32, u32),
}

impl<'a> LogBlock<'a> {
    /// Parses a whole log block at `offset` of its segment. It must belong to this use of the
    /// segment, and fit into `space` bytes with its blocks.
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

    /// The unit of the segment at which the batch ends.
    pub(crate) fn end_unit(&self) -> u32 {
        self.range.1
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The records, without invalid ones.
    pub(crate) fn records(self) -> impl Iterator<Item = LogRecord> + 'a {
        let range = self.range;
        self.records.iter().filter_map(move |phys| LogRecord::from_phys(phys, range))
    }
}
