//! Packing against unpacking, and unpacking against damage.

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use proptest::prelude::*;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, ErrorKind};
use crate::format::{BlockKind, BlockPtrPhys, Compression, Dva, DvaPhys};
use crate::store::codec::{self, MAX_LOGICAL_BYTES, Sealed};

fn arena() -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes: 128 << 20, huge_pages: HugePages::Never }).unwrap()
}

fn seal(arena: &Arena, content: &[u8], compression: Compression, sector: usize) -> Sealed {
    seal_as(arena, content, (compression, BlockKind::Data), sector)
}

fn seal_as(arena: &Arena, content: &[u8], form: (Compression, BlockKind), sector: usize) -> Sealed {
    codec::seal(content, form, sector, |len| Ok(arena.alloc(len).unwrap())).unwrap()
}

fn pointer(sealed: &Sealed) -> BlockPtrPhys {
    let place = DvaPhys::new(Dva { device: 0, offset: 1 << 20 });
    BlockPtrPhys {
        copies: [place, DvaPhys::NONE],
        checksum: sealed.checksum,
        logical_bytes: U32::new(sealed.logical_bytes),
        physical_bytes: U32::new(sealed.physical_bytes),
        compression: sealed.compression as u8,
        kind: BlockKind::Data as u8,
        ..BlockPtrPhys::HOLE
    }
}

const ALL: [Compression; 3] = [Compression::Off, Compression::Lz4, Compression::Zstd];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_sealed_opens(
        len in 1..70_000_usize,
        seed: u64,
        noise in 0..=24_usize,
        which in 0..3_usize,
        shift in 9..13_u32,
        is_data: bool,
    ) {
        let (arena, sector) = (arena(), 1_usize << shift);
        let mut rng = SmallRng::from_seed(seed);
        let mut content = vec![7; len];
        for chunk in content.chunks_mut(24) {
            let len = noise.min(chunk.len());
            chunk[..len].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        }
        let kind = if is_data { BlockKind::Data } else { BlockKind::Dnode };
        let sealed = seal_as(&arena, &content, (ALL[which], kind), sector);
        let physical = sealed.bytes(&content);
        prop_assert!(physical.len().is_multiple_of(sector));
        let plain = len.next_multiple_of(sector);
        match sealed.compression {
            Compression::Off => prop_assert_eq!(physical.len(), plain),
            Compression::Lz4 if is_data => {
                prop_assert!(sealed.physical_bytes as usize <= len - len / 8);
                prop_assert!(physical.len() < plain);
            }
            _ => prop_assert!(physical.len() < plain),
        }
        prop_assert!(physical[sealed.physical_bytes as usize..].iter().all(|&byte| byte == 0));
        let bp = pointer(&sealed);
        prop_assert_eq!(codec::pointer_defect(&bp), None);
        prop_assert!(codec::verify(&bp, physical));
        let mut out = vec![1; len];
        codec::open(&bp, physical, &mut out).unwrap();
        prop_assert_eq!(out, content);
    }
}

#[test]
fn what_saves_no_sector_is_not_compressed() {
    let arena = arena();
    // Compresses well, and both forms take one sector.
    let sealed = seal(&arena, &[3; 400], Compression::Zstd, 512);
    assert_eq!((sealed.compression, sealed.physical_bytes), (Compression::Off, 400));
    let sealed = seal(&arena, &[3; 513], Compression::Lz4, 512);
    assert_eq!(sealed.compression, Compression::Lz4);
    assert_eq!(sealed.packed.unwrap().len(), 512);
    // Whole sectors that do not compress are not copied.
    let noise: Vec<u8> = {
        let mut rng = SmallRng::from_seed(1);
        (0..4096).map(|_| rng.next_u64() as u8).collect()
    };
    assert!(seal(&arena, &noise, Compression::Zstd, 512).packed.is_none());
}

/// Data that LZ4 makes little smaller is stored as it is, so that it need not be decompressed.
/// Metadata is worth each sector.
#[test]
fn lz4_must_save_an_eighth_of_data_but_a_sector_of_metadata() {
    let arena = arena();
    let mut content = vec![0; 128 << 10];
    SmallRng::from_seed(2).fill(&mut content);
    let parts = content.len() / 12;
    content[..parts].fill(7);
    // So much repeats where a piece of the sample is taken, too.
    content[16_000..17_000].fill(7);
    for (kind, compression) in
        [(BlockKind::Data, Compression::Off), (BlockKind::Dnode, Compression::Lz4)]
    {
        let sealed = seal_as(&arena, &content, (Compression::Lz4, kind), 4096);
        assert_eq!(sealed.compression, compression, "{kind:?}");
    }
    content[parts..2 * parts].fill(7);
    let sealed = seal(&arena, &content, Compression::Lz4, 4096);
    assert_eq!(sealed.compression, Compression::Lz4, "it saves a sixth");
}

#[test]
fn lengths_have_bounds() {
    let arena = arena();
    let none = |len| Err::<_, Error>(Error::new(ErrorKind::NoMemory, format!("{len}")));
    for content in [vec![], vec![0; MAX_LOGICAL_BYTES + 1]] {
        let error =
            codec::seal(&content, (Compression::Off, BlockKind::Data), 512, none).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let largest = vec![0; MAX_LOGICAL_BYTES];
    for compression in ALL {
        let sealed = seal(&arena, &largest, compression, 4096);
        let mut out = arena.alloc(MAX_LOGICAL_BYTES).unwrap();
        codec::open(&pointer(&sealed), sealed.bytes(&largest), &mut out).unwrap();
        assert!(out.iter().all(|&byte| byte == 0));
    }
}

/// With a checksum that fits, which an attacker can make: nothing panics, and what opens has the
/// length that was promised.
#[test]
fn hostile_bytes_do_not_harm() {
    let arena = arena();
    let mut rng = SmallRng::from_seed(99);
    let content: Vec<u8> = (0..9000_u32).map(|n| (n / 100) as u8).collect();
    for round in 0..6000 {
        let compression = ALL[round % 3];
        let sealed = seal(&arena, &content, compression, 512);
        let mut physical = sealed.bytes(&content).to_vec();
        let mut bp = pointer(&sealed);
        for _ in 0..=rng.below(4) {
            let at = rng.below(physical.len() as u64) as usize;
            physical[at] = rng.next_u64() as u8;
        }
        if rng.below(2) == 0 {
            bp.logical_bytes = U32::new(rng.below(20_000) as u32 + 1);
        }
        if rng.below(4) == 0 {
            bp.physical_bytes = U32::new(rng.below(20_000) as u32);
        }
        if rng.below(8) == 0 {
            bp.compression = rng.next_u64() as u8;
        }
        let mut out = vec![0; bp.logical_bytes.get() as usize];
        if let Err(error) = codec::open(&bp, &physical, &mut out) {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        codec::verify(&bp, &physical);
    }
}

#[test]
fn objections_to_random_pointers_never_panic() {
    let mut rng = SmallRng::from_seed(5);
    for _ in 0..100_000 {
        let mut bytes = [0; 64];
        bytes.as_mut_slice().chunks_mut(8).for_each(|word| {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        });
        let mut bp = BlockPtrPhys::read_from_bytes(&bytes).unwrap();
        codec::pointer_defect(&bp);
        bp.logical_bytes = U32::new(bp.logical_bytes.get() % (1 << 24) + 1);
        bp.as_mut_bytes()[48 + 2] &= 3;
        if codec::pointer_defect(&bp).is_none() {
            assert!(bp.logical_bytes.get() as usize <= MAX_LOGICAL_BYTES);
        }
    }
}
