//! What is known of where leaves are: the depth of the leaf for each prefix.

use super::entry::prefix_mask;

/// Prefixes of at most this many bits have a byte each.
const BITS_MAX: u8 = 20;

/// A byte for each prefix of as many bits as the directory is deep: one more than the depth of the leaf there, or
/// 0 if that is not known, or not the same for all hashes with that prefix.
///
/// It is a memory of what was met, not a truth: without it a lookup asks for more blocks.
pub(super) struct DepthTable {
    bits: u8,
    known: Vec<u8>,
}

impl DepthTable {
    /// Nothing is known of a directory of this depth.
    pub(super) fn new(depth: u8) -> Self {
        let bits = depth.min(BITS_MAX);
        Self { bits, known: vec![0; 1 << bits] }
    }

    /// Depth of the leaf for a hash.
    #[inline]
    pub(super) fn get(&self, hash: u32) -> Option<u8> {
        self.known[self.slot(hash)].checked_sub(1)
    }

    /// Notes that the leaf for `hash` has this depth.
    pub(super) fn set(&mut self, hash: u32, depth: u8) {
        let first = self.slot(hash & prefix_mask(depth));
        match self.bits.checked_sub(depth) {
            Some(spare) => self.known[first..first + (1 << spare)].fill(depth + 1),
            None => self.known[first] = 0,
        }
    }

    /// The directory has another depth now.
    pub(super) fn resize(&mut self, depth: u8) {
        let bits = depth.min(BITS_MAX);
        while self.bits < bits {
            self.known = self.known.iter().flat_map(|known| [*known; 2]).collect();
            self.bits += 1;
        }
        while self.bits > bits {
            // Two that differ cannot both be right: no leaf is that deep any more.
            let both = |pair: &[u8]| if pair[0] == pair[1] { pair[0] } else { 0 };
            self.known = self.known.chunks_exact(2).map(both).collect();
            self.bits -= 1;
        }
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.known.len()
    }

    #[inline]
    fn slot(&self, hash: u32) -> usize {
        (u64::from(hash) >> (32 - u32::from(self.bits))) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{BITS_MAX, DepthTable};

    #[test]
    fn knows_what_it_was_told_across_sizes() {
        let mut table = DepthTable::new(0);
        assert_eq!(table.get(7), None);
        table.set(7, 0);
        assert_eq!(table.get(u32::MAX), Some(0));
        table.resize(1);
        table.set(0, 1);
        table.set(1 << 31, 1);
        table.resize(2);
        table.set(1 << 31, 2);
        table.set(3 << 30, 2);
        let depths: Vec<_> = (0..4u32).map(|p| table.get(p << 30)).collect();
        assert_eq!(depths, [Some(1), Some(1), Some(2), Some(2)]);
        table.set(1 << 31, 1);
        table.resize(1);
        assert_eq!([table.get(0), table.get(1 << 31)], [Some(1), Some(1)]);
        assert_eq!(table.bytes(), 2);
    }

    #[test]
    fn forgets_what_is_too_deep() {
        let mut table = DepthTable::new(24);
        assert_eq!(table.bytes(), 1 << BITS_MAX);
        table.set(0, 20);
        assert_eq!(table.get(0), Some(20));
        table.set(0, 21);
        table.set(1 << 11, 21);
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(1 << 12), None);
    }
}
