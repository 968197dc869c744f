//! Chains of blocks: how the log and the bases are cut into blocks, written and read.
//!
//! A chain is read from its last block backwards, since a block's pointer has its checksum, and
//! so can only be stored in a block that is written later. Everything read is hostile: a reader knows how
//! many blocks come, and each must carry the number that it expects, so that no chain is endless.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{
    BlockKind, BlockPtrPhys, DvaPhys, SPACE_BLOCK_MAGIC, SpaceBlockPhys, SpaceChain,
};
use crate::{Error, ErrorKind, Result};

use super::{SpaceRead, SpaceWrite};

/// The largest blocks that the space maps write or accept.
pub(super) const MAX_BLOCK_BYTES: u64 = 128 << 10;

const HEAD_BYTES: usize = size_of::<SpaceBlockPhys>();

/// Items of `item_bytes` that a block of `bytes` has space for.
pub(super) fn items_in(bytes: u64, item_bytes: usize) -> usize {
    (bytes as usize).saturating_sub(HEAD_BYTES) / item_bytes
}

/// Bytes of a block for `items` items, or of the largest.
pub(super) fn block_bytes(items: usize, item_bytes: usize, sector_bytes: u64) -> u64 {
    let bytes =
        (HEAD_BYTES as u64).saturating_add((items as u64).saturating_mul(item_bytes as u64));
    bytes.min(MAX_BLOCK_BYTES).next_multiple_of(sector_bytes)
}

/// A place for a block, and its size.
pub(super) type Placement = ([DvaPhys; 2], u64);

/// What all blocks of a chain have in common.
#[derive(Clone, Copy)]
pub(super) struct ChainHead {
    pub(super) chain: SpaceChain,
    pub(super) txg: u64,
    pub(super) metaslab: u32,
}

/// Writes `items` to `places`, and gives the pointers to the blocks, first to last.
pub(super) fn write<T: IntoBytes + Immutable>(
    writer: &mut dyn SpaceWrite,
    head: ChainHead,
    items: &[T],
    places: &[Placement],
    mut previous: BlockPtrPhys,
) -> Result<Vec<BlockPtrPhys>> {
    let mut rest = items;
    let mut pointers = Vec::with_capacity(places.len());
    for (part, (copies, bytes)) in places.iter().enumerate() {
        let (now, later) = rest.split_at(rest.len().min(items_in(*bytes, size_of::<T>())));
        rest = later;
        let header = SpaceBlockPhys {
            magic: U32::new(SPACE_BLOCK_MAGIC),
            chain: head.chain as u8,
            reserved_0: [0; 3],
            txg: U64::new(head.txg),
            part: U32::new(part as u32),
            entries: U32::new(now.len() as u32),
            metaslab: U32::new(head.metaslab),
            reserved_1: U32::ZERO,
            previous,
        };
        let mut content = vec![0; *bytes as usize];
        let (front, back) = content.split_at_mut(HEAD_BYTES);
        front.copy_from_slice(header.as_bytes());
        back[..size_of_val(now)].copy_from_slice(now.as_bytes());
        previous = writer.write_at(*copies, &content, head.txg)?;
        pointers.push(previous);
    }
    assert!(rest.is_empty(), "places for fewer items than there are");
    Ok(pointers)
}

/// Whether a pointer is one that the space maps write.
pub(super) fn check_pointer(pointer: &BlockPtrPhys) -> Result<()> {
    let bytes = pointer.logical_bytes.get();
    let plain = pointer.block_kind() == Some(BlockKind::Space)
        && pointer.compression == 0
        && pointer.physical_bytes.get() == bytes
        && u64::from(bytes) <= MAX_BLOCK_BYTES.max(super::MAX_SECTOR_BYTES)
        && !pointer.is_gang();
    if pointer.is_hole() || !plain {
        return Err(corrupt(pointer, "is no pointer of a space map"));
    }
    Ok(())
}

fn read_block(reader: &dyn SpaceRead, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
    check_pointer(pointer)?;
    let content = reader.read(pointer)?;
    if content.len() != pointer.logical_bytes.get() as usize {
        return Err(corrupt(pointer, "came in another length"));
    }
    Ok(content)
}

/// A block of a chain, as it was read.
pub(super) struct Link<T> {
    pub(super) header: SpaceBlockPhys,
    pub(super) items: Vec<T>,
}

/// Reads one block of a chain.
pub(super) fn read_link<T>(
    reader: &dyn SpaceRead,
    pointer: &BlockPtrPhys,
    chain: SpaceChain,
) -> Result<Link<T>>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned + Copy,
{
    let content = read_block(reader, pointer)?;
    let Ok((header, rest)) = SpaceBlockPhys::read_from_prefix(&content) else {
        return Err(corrupt(pointer, "is too short"));
    };
    if header.magic.get() != SPACE_BLOCK_MAGIC || header.chain != chain as u8 {
        return Err(corrupt(pointer, "is no block of this chain"));
    }
    let entries = header.entries.get() as usize;
    let items = match <[T]>::ref_from_prefix_with_elems(rest, entries) {
        Ok((items, _)) => items.to_vec(),
        Err(_) => return Err(corrupt(pointer, "has more entries than space")),
    };
    Ok(Link { header, items })
}

/// Reads a whole chain of `blocks` blocks that one txg wrote. Gives the items in order, and the blocks' pointers
/// from the last to the first.
pub(super) fn read_all<T>(
    reader: &dyn SpaceRead,
    last: &BlockPtrPhys,
    head: ChainHead,
    blocks: u32,
) -> Result<(Vec<T>, Vec<BlockPtrPhys>)>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned + Copy,
{
    let (mut parts, mut pointers) = (Vec::new(), Vec::new());
    let mut pointer = *last;
    for part in (0..blocks).rev() {
        let link = read_link::<T>(reader, &pointer, head.chain)?;
        let ours = link.header.txg.get() == head.txg
            && link.header.metaslab.get() == head.metaslab
            && link.header.part.get() == part;
        if !ours {
            return Err(corrupt(&pointer, "belongs to another chain, or elsewhere in this one"));
        }
        pointers.push(pointer);
        parts.push(link.items);
        pointer = link.header.previous;
    }
    parts.reverse();
    Ok((parts.concat(), pointers))
}

/// An error that names a block of the space maps.
#[cold]
pub(super) fn corrupt(pointer: &BlockPtrPhys, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("space maps: block {:?} {what}", pointer.copies))
}
