//! The two ends of a segment: its header, which says that it is in use anew, and its footer, which says what is in it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{PAGE_BYTES, sum};

/// First bytes of a segment: "forelseg".
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"forelseg");
/// First bytes of a footer: "forelend".
const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"forelend");
/// Bytes of a footer before its places.
pub(crate) const FOOTER_HEADER_BYTES: usize = 64;
/// Bytes of a place in a footer.
pub(crate) const BATCH_EXTENT_BYTES: usize = 8;

/// The first page of a segment. Durable before anything else is written to the segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentPhys {
    /// "forelseg".
    magic: U64,
    /// XXH3, 128 bits, of all after it.
    checksum: [u8; 16],
    /// The level's.
    guid: U64,
    /// Which use of the ring's segments this is, counted over all of them.
    seq: U64,
    /// The youngest stamp of any block that was ever written to the level.
    stamp: U64,
    /// What came before this place of the log is void: the segment of this sequence number ...
    floor_seq: U64,
    /// ... and this unit in it.
    floor_unit: U32,
    /// Batches of the segment before this one that were durable when this was written.
    previous_durable: U32,
    /// Batches of the segment before this one that were written without an error: no others count.
    previous_batches: U32,
    /// Zeros.
    unused: [u8; 4028],
}

const _: () = assert!(size_of::<SegmentPhys>() as u64 == PAGE_BYTES);
const SEGMENT_COVERED_FROM: usize = 24;

/// What a segment's header says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Which use of the ring's segments this is.
    pub(crate) seq: u64,
    /// The youngest stamp of any block that was ever written to the level.
    pub(crate) stamp: u64,
    /// What came before this place of the log is void: sequence number and unit.
    pub(crate) floor: (u64, u32),
    /// Batches of the segment before that were durable when this was written.
    pub(crate) previous_durable: u32,
    /// Batches of the segment before that were written without an error: whatever else is there
    /// does not count.
    pub(crate) previous_batches: u32,
}

impl SegmentHeader {
    /// Writes the header's page, and returns the chain's value at the beginning of the segment.
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

    /// The header in a page, if it is one of this level, and the chain's value.
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

/// The value that a sum leaves in the chain.
pub(super) fn chain_of(checksum: &[u8; 16]) -> u64 {
    let (front, _) = checksum.split_at(8);
    u64::from_le_bytes(front.try_into().expect("eight bytes"))
}

/// The front of a footer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FooterPhys {
    /// "forelend".
    magic: U64,
    /// XXH3, 128 bits, of all after it, places included.
    checksum: [u8; 16],
    /// The level's.
    guid: U64,
    /// The segment's.
    seq: U64,
    /// Records of all batches.
    records: U64,
    /// The youngest stamp of any block that was ever written to the level.
    stamp: U64,
    /// Batches; as many places follow.
    batches: U32,
    /// How many of them were durable when this was written.
    durable: U32,
}

const _: () = assert!(size_of::<FooterPhys>() == FOOTER_HEADER_BYTES);
const FOOTER_COVERED_FROM: usize = 24;

/// Where a batch lies in its segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BatchExtentPhys {
    /// Its first page.
    page: U32,
    /// Pages of its log block.
    log_pages: U32,
}

const _: () = assert!(size_of::<BatchExtentPhys>() == BATCH_EXTENT_BYTES);

/// Where a batch lies in its segment, and how long its log block is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchExtent {
    pub(crate) offset: u64,
    pub(crate) log_bytes: u64,
}

/// What a footer says beside its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FooterHeader {
    pub(crate) seq: u64,
    pub(crate) records: u64,
    pub(crate) stamp: u64,
    /// Batches that were durable when it was written.
    pub(crate) durable: u32,
}

/// Writes a footer to the front of `out`, which has room for it.
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

/// A footer, as it lies in memory.
#[derive(Clone, Copy)]
pub(crate) struct Footer<'a> {
    pub(crate) header: FooterHeader,
    extents: &'a [BatchExtentPhys],
}

impl<'a> Footer<'a> {
    /// The footer in `bytes`, if it is that of this use of the segment. Batches are in order, apart from each
    /// other, and between `from` and `to`.
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

    /// Where the batches lie.
    pub(crate) fn extents(self) -> impl Iterator<Item = BatchExtent> + 'a {
        self.extents.iter().map(|extent| BatchExtent {
            offset: u64::from(extent.page.get()) * PAGE_BYTES,
            log_bytes: u64::from(extent.log_pages.get()) * PAGE_BYTES,
        })
    }
}
