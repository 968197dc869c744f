//! Gang blocks: the pieces of a block that did not fit any contiguous free range.
//!
//! A gang block is one sector: a [`GangPhys`], pointers to the pieces in byte order, zeros. The
//! pieces concatenated are the bytes that the pointer to the gang block describes. A piece may be a
//! gang, at most [`GANG_DEPTH`] deep.

use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::BlockPtrPhys;

/// First bytes of a gang block: "gang".
pub const GANG_MAGIC: u32 = u32::from_le_bytes(*b"gang");
/// Maximum nesting depth of gangs.
pub const GANG_DEPTH: usize = 8;

/// Header of a gang block.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GangPhys {
    /// XXH3, 128 bits, of the following bytes of the sector.
    pub checksum: [u8; 16],
    /// [`GANG_MAGIC`].
    pub magic: U32,
    /// Number of pieces.
    pub count: U16,
    /// Zero.
    pub reserved: U16,
    /// The txg that wrote it, as in the pointer to it.
    pub birth_txg: U64,
    /// Checksum of the concatenated pieces, as in the pointer to it.
    pub whole: [u8; 16],
}

const _: () = assert!(size_of::<GangPhys>() == 48);

/// Maximum number of pieces of a gang block in a sector of `sector_bytes`.
pub const fn gang_capacity(sector_bytes: usize) -> usize {
    (sector_bytes - size_of::<GangPhys>()) / size_of::<BlockPtrPhys>()
}

/// Writes a gang block into `sector`.
pub fn write_gang(sector: &mut [u8], mut head: GangPhys, pieces: &[BlockPtrPhys]) {
    assert!(pieces.len() <= gang_capacity(sector.len()), "too many pieces");
    sector.fill(0);
    head.magic = U32::new(GANG_MAGIC);
    head.count = U16::new(pieces.len() as u16);
    let (front, rest) = sector.split_at_mut(size_of::<GangPhys>());
    rest[..size_of_val(pieces)].copy_from_slice(pieces.as_bytes());
    front.copy_from_slice(head.as_bytes());
    let checksum = xxh3_128(&sector[16..]).to_le_bytes();
    sector[..16].copy_from_slice(&checksum);
}

/// Decodes the gang block in `sector`. Returns its pieces, or `None` if it is invalid or does not
/// have this birth txg and this checksum of the whole.
pub fn read_gang(sector: &[u8], birth_txg: u64, whole: &[u8; 16]) -> Option<Vec<BlockPtrPhys>> {
    let (head, rest) = GangPhys::ref_from_prefix(sector).ok()?;
    let sound = head.magic.get() == GANG_MAGIC
        && head.checksum == xxh3_128(&sector[16..]).to_le_bytes()
        && head.birth_txg.get() == birth_txg
        && head.whole == *whole;
    let count = usize::from(head.count.get());
    if !sound || count < 2 || count > gang_capacity(sector.len()) {
        return None;
    }
    let (pieces, _) = <[BlockPtrPhys]>::ref_from_prefix_with_elems(rest, count).ok()?;
    Some(pieces.to_vec())
}
