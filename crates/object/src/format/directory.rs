//! The directory at the end of a data object: which sectors its payload holds, and their checksums.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FormatError, Result, SECTOR_BYTES, VERSION, WINDOW_SECTORS, take, take_one};
use crate::map::Object;

const MAGIC: [u8; 8] = *b"FBdirect";

/// A run of sectors that was written as a whole: 12 bytes a block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ExtentPhys {
    /// Its first sector, from the first one of the object.
    start: U32,
    /// Its length in sectors.
    sectors: U16,
    /// Its first sector in the payload.
    offset: U16,
    /// The low half of XXH3 of its bytes.
    checksum: U32,
}

const _: () = assert!(size_of::<ExtentPhys>() == 12);

/// The last bytes of a data object.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TrailerPhys {
    magic: [u8; 8],
    version: U32,
    /// Number of extents before it.
    extents: U32,
    first: U64,
    epoch: U32,
    generation: U16,
    payload_sectors: U16,
    /// XXH3 of the extents and of the fields before it.
    checksum: U64,
}

const _: () = assert!(size_of::<TrailerPhys>() == 40);

/// A run of sectors that was written as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Address of its first sector, in sectors.
    pub(crate) start: u64,
    /// Its length in sectors.
    pub(crate) sectors: u16,
    /// Its first sector in the payload.
    pub(crate) offset: u16,
    /// Checksum of its bytes.
    pub(crate) checksum: u32,
}

impl Extent {
    /// One past its last sector.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.sectors)
    }
}

/// The checksum of an extent.
pub(crate) fn checksum_of(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

/// Bytes of the directory of an object.
pub(crate) fn directory_bytes(extents: usize) -> usize {
    extents * size_of::<ExtentPhys>() + size_of::<TrailerPhys>()
}

/// Encodes the directory of `object`. The extents are in the order of their addresses.
pub(crate) fn encode(object: &Object, extents: &[Extent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(directory_bytes(extents.len()));
    for extent in extents {
        let phys = ExtentPhys {
            start: ((extent.start - object.first) as u32).into(),
            sectors: extent.sectors.into(),
            offset: extent.offset.into(),
            checksum: extent.checksum.into(),
        };
        bytes.extend_from_slice(phys.as_bytes());
    }
    let trailer = TrailerPhys {
        magic: MAGIC,
        version: VERSION.into(),
        extents: (extents.len() as u32).into(),
        first: object.first.into(),
        epoch: object.epoch.into(),
        generation: object.generation.into(),
        payload_sectors: object.payload_sectors.into(),
        checksum: U64::ZERO,
    };
    let trailer_bytes = trailer.as_bytes();
    bytes.extend_from_slice(&trailer_bytes[..trailer_bytes.len() - 8]);
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Decodes the directory of `object`: the bytes after its payload.
pub(crate) fn decode(object: &Object, bytes: &[u8]) -> Result<Vec<Extent>> {
    let (checked, checksum) = bytes.split_last_chunk::<8>().ok_or(FormatError::Short)?;
    let mut rest = bytes;
    let extents = take::<ExtentPhys>(&mut rest, object.extents.into())?;
    let trailer = take_one::<TrailerPhys>(&mut rest)?;
    if trailer.magic != MAGIC || !rest.is_empty() {
        return Err(FormatError::Magic);
    }
    if trailer.version.get() != VERSION {
        return Err(FormatError::Version(trailer.version.get()));
    }
    if xxh3_64(checked) != u64::from_le_bytes(*checksum) {
        return Err(FormatError::Checksum);
    }
    let named = (trailer.first.get(), trailer.epoch.get(), trailer.generation.get());
    if named != (object.first, object.epoch, object.generation)
        || trailer.extents.get() != u32::from(object.extents)
        || trailer.payload_sectors.get() != object.payload_sectors
    {
        return Err(FormatError::Identity);
    }
    let mut found = Vec::with_capacity(extents.len());
    let (mut at, mut offset) = (object.first, 0);
    for phys in extents {
        let extent = Extent {
            start: object.first + u64::from(phys.start.get()),
            sectors: phys.sectors.get(),
            offset: phys.offset.get(),
            checksum: phys.checksum.get(),
        };
        let in_order = extent.start >= at && extent.offset == offset && extent.sectors > 0;
        let end = u64::from(extent.offset) + u64::from(extent.sectors);
        if !in_order || end > u64::from(object.payload_sectors).min(WINDOW_SECTORS) {
            return Err(FormatError::Value);
        }
        (at, offset) = (extent.end(), end as u16);
        found.push(extent);
    }
    if offset != object.payload_sectors || at > object.end() {
        return Err(FormatError::Value);
    }
    Ok(found)
}

/// Bytes of `sectors` sectors.
pub(crate) fn bytes_of(sectors: u16) -> u64 {
    u64::from(sectors) * SECTOR_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (Object, Vec<Extent>) {
        let extents = vec![
            Extent { start: 100, sectors: 2, offset: 0, checksum: 1 },
            Extent { start: 102, sectors: 1, offset: 2, checksum: 2 },
            Extent { start: 110, sectors: 5, offset: 3, checksum: 3 },
        ];
        let object = Object {
            first: 100,
            span: 15,
            payload_sectors: 8,
            extents: 3,
            live: 8,
            epoch: 4,
            generation: 1,
        };
        (object, extents)
    }

    #[test]
    fn a_directory_is_decoded_as_encoded() {
        let (object, extents) = example();
        let bytes = encode(&object, &extents);
        assert_eq!(bytes.len(), directory_bytes(3));
        assert_eq!(decode(&object, &bytes), Ok(extents));
    }

    #[test]
    fn each_changed_bit_and_each_cut_is_found() {
        let (object, extents) = example();
        let bytes = encode(&object, &extents);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&object, &changed).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&object, &bytes[..len]).is_err(), "{len} bytes");
            assert!(decode(&object, &bytes[len + 1..]).is_err(), "without {len} bytes");
        }
    }

    #[test]
    fn the_directory_of_another_object_is_refused() {
        let (object, extents) = example();
        let bytes = encode(&object, &extents);
        let other = Object { epoch: 5, ..object };
        assert_eq!(decode(&other, &bytes), Err(FormatError::Identity));
    }
}
