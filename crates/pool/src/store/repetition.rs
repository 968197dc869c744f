//! Whether LZ4 may make a block smaller, from a few hundred bytes of it.
//!
//! LZ4 replaces sequences of four bytes and more that were there before. Content that is compressed
//! or encrypted has none, and packing it costs more than its checksum. So pieces of the block are
//! searched for repetitions, as LZ4 does it: faster and faster while nothing is found.
//!
//! What repeats only over longer distances than a piece, or only elsewhere, is not found.

/// Size of a piece.
const PIECE_BYTES: usize = 256;
/// Bytes of a block for each piece, and the most pieces. A smaller block is not looked at.
const BYTES_PER_PIECE: usize = 4 << 10;
const PIECES_MAX: usize = 4;
/// Repetitions that are enough: one may be chance, as in the header of a picture.
const ENOUGH: u32 = 3;
/// After so many positions without a repetition, the distance to the next one grows by a byte.
const ACCELERATION: usize = 16;
/// Sequences that are remembered, by hash.
const SLOTS_SHIFT: u32 = 8;

/// Whether a sample of the content has repetitions.
pub(super) fn has_repetitions(content: &[u8]) -> bool {
    let pieces = (content.len() / BYTES_PER_PIECE).min(PIECES_MAX);
    if pieces == 0 {
        return true;
    }
    let part_bytes = content.len() / pieces;
    // The middle of each part: a block often begins with a header unlike the rest.
    let start = (part_bytes - PIECE_BYTES) / 2;
    let mut sequences = [0; 1 << SLOTS_SHIFT];
    let mut found = 0;
    content.chunks_exact(part_bytes).any(|part| {
        found += repetitions(&part[start..start + PIECE_BYTES], &mut sequences, ENOUGH - found);
        found >= ENOUGH
    })
}

/// The number of repetitions in a piece, `most` at most.
fn repetitions(piece: &[u8], sequences: &mut [u32; 1 << SLOTS_SHIFT], most: u32) -> u32 {
    let (mut at, mut missed, mut found) = (0, ACCELERATION, 0);
    while let Some(bytes) = piece.get(at..at + 4)
        && found < most
    {
        let sequence = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        // Fibonacci hashing.
        let hash = sequence.wrapping_mul(0x9E37_79B1) >> (u32::BITS - SLOTS_SHIFT);
        let slot = &mut sequences[hash as usize];
        if *slot == sequence {
            found += 1;
            missed = ACCELERATION;
            at += 4;
        } else {
            *slot = sequence;
            at += missed / ACCELERATION;
            missed += 1;
        }
    }
    found
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::rng::SmallRng;

    use super::has_repetitions;

    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut content = vec![0; bytes];
        SmallRng::from_seed(seed).fill(&mut content);
        content
    }

    #[test]
    fn noise_has_none() {
        for seed in 0..500 {
            let content = noise((8 << 10) + 777 * seed as usize, seed);
            assert!(!has_repetitions(&content), "seed {seed}");
        }
    }

    #[test]
    fn text_numbers_and_zeros_have_some() {
        let text = include_str!("repetition.rs").repeat(3).into_bytes();
        let numbers: Vec<u8> = (0..5000_u64).flat_map(|n| (n * 1000).to_le_bytes()).collect();
        for (what, content) in [("text", text), ("numbers", numbers), ("zeros", vec![0; 9000])] {
            for len in [4 << 10, 5000, 8 << 10] {
                assert!(has_repetitions(&content[..len]), "{what}, {len} bytes");
            }
        }
    }

    #[test]
    fn a_compressible_half_is_found_whichever_it_is() {
        for first in [true, false] {
            let mut content = noise(128 << 10, 3);
            let half = content.len() / 2;
            let range = if first { 0..half } else { half..2 * half };
            content[range].fill(b'x');
            assert!(has_repetitions(&content), "first: {first}");
        }
    }

    /// It is tried: LZ4 is fast on them, and finds out.
    #[test]
    fn small_blocks_are_not_looked_at() {
        assert!(has_repetitions(&noise(4095, 1)));
    }
}
