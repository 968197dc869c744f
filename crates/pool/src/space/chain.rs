//! Chains of blocks, in which the log and the bases are stored.
//!
//! A block's pointer contains its checksum, so only a later block can store it. So a chain is read
//! from its last block backwards. All data read is untrusted: the reader knows the number of
//! blocks, and each block must carry the expected part number, so that no chain is endless.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{
    BlockKind, BlockPtrPhys, DvaPhys, SPACE_BLOCK_MAGIC, SpaceBlockPhys, SpaceChain,
};
use crate::{Error, ErrorKind, Result};

use super::{SpaceRead, SpaceWrite};

/// Maximum size of a space-map block.
pub(super) const MAX_BLOCK_BYTES: u64 = 128 << 10;

const HEAD_BYTES: usize = size_of::<SpaceBlockPhys>();

/// Number of items of `item_bytes` that fit a block of `bytes`.
pub(super) fn items_in(bytes: u64, item_bytes: usize) -> usize {
    (bytes as usize).saturating_sub(HEAD_BYTES) / item_bytes
}

/// Size of a block for `items` items, up to the maximum.
pub(super) fn block_bytes(items: usize, item_bytes: usize, sector_bytes: u64) -> u64 {
    let bytes =
        (HEAD_BYTES as u64).saturating_add((items as u64).saturating_mul(item_bytes as u64));
    bytes.min(MAX_BLOCK_BYTES).next_multiple_of(sector_bytes)
}

/// The addresses and the size of an allocated block.
pub(super) type Placement = ([DvaPhys; 2], u64);

/// Header fields that all blocks of a chain share.
#[derive(Clone, Copy)]
pub(super) struct ChainHead {
    pub(super) chain: SpaceChain,
    pub(super) txg: u64,
    pub(super) metaslab: u32,
}

/// Writes `items` to `places`. Returns the block pointers, first to last.
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
    assert!(rest.is_empty(), "the places are too small for the items");
    Ok(pointers)
}

/// Checks that a pointer refers to a space-map block.
pub(super) fn check_pointer(pointer: &BlockPtrPhys) -> Result<()> {
    let bytes = pointer.logical_bytes.get();
    let plain = pointer.block_kind() == Some(BlockKind::Space)
        && pointer.compression == 0
        && pointer.physical_bytes.get() == bytes
        && u64::from(bytes) <= MAX_BLOCK_BYTES.max(super::MAX_SECTOR_BYTES)
        && !pointer.is_gang();
    if pointer.is_hole() || !plain {
        return Err(corrupt(pointer, "is not a space-map block"));
    }
    Ok(())
}

fn read_block(reader: &dyn SpaceRead, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
    check_pointer(pointer)?;
    let content = reader.read(pointer)?;
    if content.len() != pointer.logical_bytes.get() as usize {
        return Err(corrupt(pointer, "has the wrong length"));
    }
    Ok(content)
}

/// A block of a chain.
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
        return Err(corrupt(pointer, "does not belong to this chain"));
    }
    let entries = header.entries.get() as usize;
    let items = match <[T]>::ref_from_prefix_with_elems(rest, entries) {
        Ok((items, _)) => items.to_vec(),
        Err(_) => return Err(corrupt(pointer, "has more entries than fit into it")),
    };
    Ok(Link { header, items })
}

/// Reads a chain of `blocks` blocks that one txg wrote. Returns the items in order, and the block
/// pointers from last to first.
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
            return Err(corrupt(&pointer, "is out of place in its chain"));
        }
        pointers.push(pointer);
        parts.push(link.items);
        pointer = link.header.previous;
    }
    parts.reverse();
    Ok((parts.concat(), pointers))
}

/// Returns an error that names a space-map block.
#[cold]
pub(super) fn corrupt(pointer: &BlockPtrPhys, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("space maps: block {:?} {what}", pointer.copies))
}
