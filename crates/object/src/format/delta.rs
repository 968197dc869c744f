//! A delta: what changed in the mutable area and in the map of data objects.
//!
//! Roots, log objects and the parts of checkpoints contain one. Blocks with equal bytes (the two
//! labels of a device) share a page.

use std::collections::HashMap;

use bytes::Bytes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FormatError, Result, SECTOR_BYTES, WINDOW_SECTORS, take, take_one};
use crate::map::Object;
use crate::mutable::MUTABLE_BLOCKS;

/// A block without a page: it is zero.
const ZERO_PAGE: u32 = u32::MAX;

/// The head of a delta.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeltaPhys {
    /// All data addresses from here on are unused.
    next_unused: U64,
    blocks: U32,
    pages: U32,
    added: U32,
    removed: U32,
}

const _: () = assert!(size_of::<DeltaPhys>() == 24);

/// A block of the mutable area.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockPhys {
    /// Its index in the mutable area.
    index: U32,
    /// The index of its page, or [`ZERO_PAGE`].
    page: U32,
}

const _: () = assert!(size_of::<BlockPhys>() == 8);

/// A data object.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ObjectPhys {
    first: U64,
    span: U32,
    epoch: U32,
    generation: U16,
    payload_sectors: U16,
    extents: U16,
    live: U16,
}

const _: () = assert!(size_of::<ObjectPhys>() == 24);

/// The first sector of an object that is no longer part of the map.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RemovedPhys {
    first: U64,
}

const _: () = assert!(size_of::<RemovedPhys>() == 8);

/// Changes, in the order in which they are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// All data addresses from here on are unused, in bytes.
    pub(crate) next_unused: u64,
    /// Index and content of each changed block of the mutable area; `None` is zeros.
    pub(crate) blocks: Vec<(u32, Option<Bytes>)>,
    /// First sector of each object that leaves the map.
    pub(crate) removed: Vec<u64>,
    /// Objects that the map gains. One with the first sector of another replaces it.
    pub(crate) added: Vec<Object>,
}

impl Delta {
    /// Whether it changes neither the mutable area nor the map.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.removed.is_empty() && self.added.is_empty()
    }

    /// Appends its bytes to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut pages: Vec<&Bytes> = Vec::new();
        let mut known: HashMap<&[u8], u32> = HashMap::new();
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (index, content) in &self.blocks {
            let page = content.as_ref().map_or(ZERO_PAGE, |content| {
                *known.entry(content).or_insert_with(|| {
                    pages.push(content);
                    pages.len() as u32 - 1
                })
            });
            blocks.push(BlockPhys { index: (*index).into(), page: page.into() });
        }
        let head = DeltaPhys {
            next_unused: self.next_unused.into(),
            blocks: (blocks.len() as u32).into(),
            pages: (pages.len() as u32).into(),
            added: (self.added.len() as u32).into(),
            removed: (self.removed.len() as u32).into(),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(blocks.as_bytes());
        for page in pages {
            out.extend_from_slice(page);
        }
        for first in &self.removed {
            out.extend_from_slice(RemovedPhys { first: (*first).into() }.as_bytes());
        }
        for object in &self.added {
            out.extend_from_slice(phys_of(object).as_bytes());
        }
    }

    /// Decodes a delta, which takes all of `bytes`.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self> {
        let head = take_one::<DeltaPhys>(&mut bytes)?;
        let blocks = take::<BlockPhys>(&mut bytes, head.blocks.get() as usize)?;
        let pages = take::<[u8; SECTOR_BYTES as usize]>(&mut bytes, head.pages.get() as usize)?;
        let removed = take::<RemovedPhys>(&mut bytes, head.removed.get() as usize)?;
        let added = take::<ObjectPhys>(&mut bytes, head.added.get() as usize)?;
        if !bytes.is_empty() {
            return Err(FormatError::Value);
        }
        let pages: Vec<Bytes> = pages.iter().map(|page| Bytes::copy_from_slice(page)).collect();
        let block = |phys: &BlockPhys| {
            let (index, page) = (phys.index.get(), phys.page.get());
            let content = match page {
                ZERO_PAGE => None,
                page => Some(pages.get(page as usize).ok_or(FormatError::Value)?.clone()),
            };
            (index < MUTABLE_BLOCKS).then_some((index, content)).ok_or(FormatError::Value)
        };
        Ok(Self {
            next_unused: head.next_unused.get(),
            blocks: blocks.iter().map(block).collect::<Result<_>>()?,
            removed: removed.iter().map(|phys| phys.first.get()).collect(),
            added: added.iter().map(object_of).collect::<Result<_>>()?,
        })
    }
}

fn phys_of(object: &Object) -> ObjectPhys {
    ObjectPhys {
        first: object.first.into(),
        span: object.span.into(),
        epoch: object.epoch.into(),
        generation: object.generation.into(),
        payload_sectors: object.payload_sectors.into(),
        extents: object.extents.into(),
        live: object.live.into(),
    }
}

fn object_of(phys: &ObjectPhys) -> Result<Object> {
    let object = Object {
        first: phys.first.get(),
        span: phys.span.get(),
        epoch: phys.epoch.get(),
        generation: phys.generation.get(),
        payload_sectors: phys.payload_sectors.get(),
        extents: phys.extents.get(),
        live: phys.live.get(),
    };
    let sectors = u64::from(object.payload_sectors);
    let sound = object.first < super::DEVICE_BYTES / SECTOR_BYTES
        && (1..=WINDOW_SECTORS).contains(&sectors)
        && sectors <= u64::from(object.span)
        && (1..=object.payload_sectors).contains(&object.extents)
        && object.live <= object.payload_sectors;
    sound.then_some(object).ok_or(FormatError::Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn object() -> impl Strategy<Value = Object> {
        let sizes = (1..2048_u16, 0..100_u32, 1..9_u16);
        (0..1_u64 << 40, sizes, any::<u32>(), any::<u16>()).prop_map(
            |(first, sizes, epoch, generation)| {
                let (payload_sectors, gap, extents) = sizes;
                Object {
                    first,
                    span: u32::from(payload_sectors) + gap,
                    epoch,
                    generation,
                    payload_sectors,
                    extents: extents.min(payload_sectors),
                    live: payload_sectors / 2,
                }
            },
        )
    }

    fn delta() -> impl Strategy<Value = Delta> {
        let block = (0..MUTABLE_BLOCKS, proptest::option::of(0..3_u8));
        let content = |byte: u8| Bytes::from(vec![byte; SECTOR_BYTES as usize]);
        let blocks = proptest::collection::vec(block, 0..8);
        let removed = proptest::collection::vec(any::<u64>(), 0..5);
        (any::<u64>(), blocks, removed, proptest::collection::vec(object(), 0..5)).prop_map(
            move |(next_unused, blocks, removed, added)| {
                let blocks =
                    blocks.into_iter().map(|(index, byte)| (index, byte.map(content))).collect();
                Delta { next_unused, blocks, removed, added }
            },
        )
    }

    proptest! {
        #[test]
        fn a_delta_is_decoded_as_encoded(delta in delta()) {
            let mut bytes = Vec::new();
            delta.encode(&mut bytes);
            prop_assert_eq!(Delta::decode(&bytes), Ok(delta));
        }

        #[test]
        fn hostile_bytes_are_refused_or_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Delta::decode(&bytes);
        }

        #[test]
        fn a_cut_delta_is_refused(delta in delta(), cut in 1..50_usize) {
            let mut bytes = Vec::new();
            delta.encode(&mut bytes);
            prop_assert!(Delta::decode(&bytes[..bytes.len().saturating_sub(cut)]).is_err());
        }
    }

    #[test]
    fn equal_blocks_share_a_page() {
        let page = Bytes::from(vec![7; SECTOR_BYTES as usize]);
        let blocks: Vec<_> = (0..100).map(|index| (index, Some(page.clone()))).collect();
        let mut bytes = Vec::new();
        Delta { blocks, ..Delta::default() }.encode(&mut bytes);
        assert!(bytes.len() < 2 * SECTOR_BYTES as usize, "{} bytes", bytes.len());
    }
}
