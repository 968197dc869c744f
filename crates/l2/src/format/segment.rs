//! The header of a segment, which begins a new use, and its footer, which lists its batches.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{PAGE_BYTES, sum};

/// First bytes of a segment: "forelseg".
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"forelseg");
/// First bytes of a footer: "forelend".
const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"forelend");
/// Size of a footer before its batch extents.
pub(crate) const FOOTER_HEADER_BYTES: usize = 64;
/// Size of a batch extent in a footer.
pub(crate) const BATCH_EXTENT_BYTES: usize = 8;

/// The first page of a segment. Durable before anything else is written to the segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentPhys {
    /// "forelseg".
    magic: U64,
    /// XXH3, 128 bits, of everything after it.
    checksum: [u8; 16],
    /// The L2's guid.
    guid: U64,
    /// The sequence number of this use, counted over all segments.
    seq: U64,
    /// The newest stamp of any block ever written to the L2.
    stamp: U64,
    /// Everything before this position of the log is void: the sequence number of its segment ...
    floor_seq: U64,
    /// ... and the unit in it.
    floor_unit: U32,
    /// Batches of the previous segment that were durable when this was written.
    previous_durable: U32,
    /// Batches of the previous segment that were written without an error. No others count.
    previous_batches: U32,
    /// Zeros.
    unused: [u8; 4028],
}

const _: () = assert!(size_of::<SegmentPhys>() as u64 == PAGE_BYTES);
const SEGMENT_COVERED_FROM: usize = 24;

/// The fields of a segment's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The sequence number of this use.
    pub(crate) seq: u64,
    /// The newest stamp of any block ever written to the L2.
    pub(crate) stamp: u64,
    /// Everything before this position of the log is void: sequence number and unit.
    pub(crate) floor: (u64, u32),
    /// Batches of the previous segment that were durable when this was written.
    pub(crate) previous_durable: u32,
    /// Batches of the previous segment that were written without an error. No others count.
    pub(crate) previous_batches: u32,
}

impl SegmentHeader {
    /// Writes the header's page. Returns the chain value at the beginning of the segment.
    pub(crate) fn seal(&self, guid: u64, page: &mut [u8]) -> u64 {
        let mut header = SegmentPhys {
            magic: SEGMENT_MAGIC.into(),
            checksum: [0; 16],
            guid: guid.into(),
            seq: self.seq.into(),
            stamp: self.stamp.into(),
            floor_seq: self.floor.0.into(),
            floor_unit: self.floor.1.into(),
            previous_durable: self.previous_durable.into(),
            previous_batches: self.previous_batches.into(),
            unused: [0; 4028],
        };
        header.checksum = sum(&header.as_bytes()[SEGMENT_COVERED_FROM..]);
        page[..size_of::<SegmentPhys>()].copy_from_slice(header.as_bytes());
        chain_of(&header.checksum)
    }

    /// Parses the header of a segment of this L2. Also returns its chain value.
    pub(crate) fn parse(guid: u64, page: &[u8]) -> Option<(Self, u64)> {
        let (header, _) = SegmentPhys::ref_from_prefix(page).ok()?;
        if header.magic.get() != SEGMENT_MAGIC || header.guid.get() != guid {
            return None;
        }
        if header.checksum != sum(&header.as_bytes()[SEGMENT_COVERED_FROM..]) {
            return None;
        }
        let parsed = Self {
            seq: header.seq.get(),
            stamp: header.stamp.get(),
            floor: (header.floor_seq.get(), header.floor_unit.get()),
            previous_durable: header.previous_durable.get(),
            previous_batches: header.previous_batches.get(),
        };
        Some((parsed, chain_of(&header.checksum)))
    }
}

/// The chain value of a checksum.
pub(super) fn chain_of(checksum: &[u8; 16]) -> u64 {
    let (front, _) = checksum.split_at(8);
    u64::from_le_bytes(front.try_into().expect("the front has eight bytes"))
}

/// The header of a footer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FooterPhys {
    /// "forelend".
    magic: U64,
    /// XXH3, 128 bits, of everything after it, batch extents included.
    checksum: [u8; 16],
    /// The L2's guid.
    guid: U64,
    /// The segment's sequence number.
    seq: U64,
    /// Number of records in all batches.
    records: U64,
    /// The newest stamp of any block ever written to the L2.
    stamp: U64,
    /// Number of batches. As many batch extents follow.
    batches: U32,
    /// Batches that were durable when this was written.
    durable: U32,
}

const _: () = assert!(size_of::<FooterPhys>() == FOOTER_HEADER_BYTES);
const FOOTER_COVERED_FROM: usize = 24;

/// The extent of a batch in its segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BatchExtentPhys {
    /// Its first page.
    page: U32,
    /// Pages of its log block.
    log_pages: U32,
}

const _: () = assert!(size_of::<BatchExtentPhys>() == BATCH_EXTENT_BYTES);

/// The offset of a batch in its segment and the size of its log block, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchExtent {
    pub(crate) offset: u64,
    pub(crate) log_bytes: u64,
}

/// The fields of a footer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FooterHeader {
    pub(crate) seq: u64,
    pub(crate) records: u64,
    pub(crate) stamp: u64,
    /// Batches that were durable when the footer was written.
    pub(crate) durable: u32,
}

/// Writes a footer to the front of `out`.
pub(crate) fn seal_footer(
    guid: u64,
    header: FooterHeader,
    extents: &[BatchExtent],
    out: &mut [u8],
) {
    let end = FOOTER_HEADER_BYTES + extents.len() * BATCH_EXTENT_BYTES;
    let mut phys = FooterPhys {
        magic: FOOTER_MAGIC.into(),
        checksum: [0; 16],
        guid: guid.into(),
        seq: header.seq.into(),
        records: header.records.into(),
        stamp: header.stamp.into(),
        batches: (extents.len() as u32).into(),
        durable: header.durable.into(),
    };
    for (at, extent) in extents.iter().enumerate() {
        let extent = BatchExtentPhys {
            page: ((extent.offset / PAGE_BYTES) as u32).into(),
            log_pages: ((extent.log_bytes / PAGE_BYTES) as u32).into(),
        };
        let from = FOOTER_HEADER_BYTES + at * BATCH_EXTENT_BYTES;
        out[from..from + BATCH_EXTENT_BYTES].copy_from_slice(extent.as_bytes());
    }
    out[..FOOTER_HEADER_BYTES].copy_from_slice(phys.as_bytes());
    phys.checksum = sum(&out[FOOTER_COVERED_FROM..end]);
    out[..FOOTER_HEADER_BYTES].copy_from_slice(phys.as_bytes());
}

/// A parsed footer.
#[derive(Clone, Copy)]
pub(crate) struct Footer<'a> {
    pub(crate) header: FooterHeader,
    extents: &'a [BatchExtentPhys],
}

impl<'a> Footer<'a> {
    /// Parses the footer of this use of a segment. Batches must be in order, must not overlap, and
    /// must lie between `from` and `to`.
    pub(crate) fn parse(
        (guid, seq): (u64, u64),
        bytes: &'a [u8],
        (from, to): (u64, u64),
    ) -> Option<Self> {
        let (phys, rest) = FooterPhys::ref_from_prefix(bytes).ok()?;
        if phys.magic.get() != FOOTER_MAGIC || phys.guid.get() != guid || phys.seq.get() != seq {
            return None;
        }
        let batches = phys.batches.get() as usize;
        let end = batches.checked_mul(BATCH_EXTENT_BYTES)?.checked_add(FOOTER_HEADER_BYTES)?;
        if phys.checksum != sum(bytes.get(FOOTER_COVERED_FROM..end)?) {
            return None;
        }
        let extents =
            <[BatchExtentPhys]>::ref_from_bytes(rest.get(..batches * BATCH_EXTENT_BYTES)?).ok()?;
        let (records, stamp) = (phys.records.get(), phys.stamp.get());
        let header = FooterHeader { seq, records, stamp, durable: phys.durable.get() };
        let footer = Self { header, extents };
        let mut next = from;
        for extent in footer.extents() {
            let end = extent.offset + extent.log_bytes;
            if extent.offset < next || extent.log_bytes == 0 || end > to {
                return None;
            }
            next = end;
        }
        Some(footer)
    }

    /// The extents of the batches.
    pub(crate) fn extents(self) -> impl Iterator<Item = BatchExtent> + 'a {
        self.extents.iter().map(|extent| BatchExtent {
            offset: u64::from(extent.page.get()) * PAGE_BYTES,
            log_bytes: u64::from(extent.log_pages.get()) * PAGE_BYTES,
        })
    }
}
