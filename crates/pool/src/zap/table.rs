//! The in-memory table of leaf depths, by hash prefix.

use super::entry::prefix_mask;

/// Prefixes have at most this many bits. Each prefix has one byte.
const BITS_MAX: u8 = 20;

/// One byte for each prefix, which has as many bits as the directory is deep: one more than the
/// depth of the leaf, or 0 if the depth is not known or not the same for all hashes with that
/// prefix.
///
/// The table is a cache of results. Without it a lookup tries more blocks.
pub(super) struct DepthTable {
    bits: u8,
    known: Vec<u8>,
}

impl DepthTable {
    /// An empty table for a directory of this depth.
    pub(super) fn new(depth: u8) -> Self {
        let bits = depth.min(BITS_MAX);
        Self { bits, known: vec![0; 1 << bits] }
    }

    /// Depth of the leaf of a hash.
    #[inline]
    pub(super) fn get(&self, hash: u32) -> Option<u8> {
        self.known[self.slot(hash)].checked_sub(1)
    }

    /// Records that the leaf of `hash` has this depth.
    pub(super) fn set(&mut self, hash: u32, depth: u8) {
        let first = self.slot(hash & prefix_mask(depth));
        match self.bits.checked_sub(depth) {
            Some(spare) => self.known[first..first + (1 << spare)].fill(depth + 1),
            None => self.known[first] = 0,
        }
    }

    /// Adapts the table to a new depth of the directory.
    pub(super) fn resize(&mut self, depth: u8) {
        let bits = depth.min(BITS_MAX);
        while self.bits < bits {
            self.known = self.known.iter().flat_map(|known| [*known; 2]).collect();
            self.bits += 1;
        }
        while self.bits > bits {
            // If two entries differ, at least one is stale: no leaf is that deep any more.
            let both = |pair: &[u8]| if pair[0] == pair[1] { pair[0] } else { 0 };
            self.known = self.known.chunks_exact(2).map(both).collect();
            self.bits -= 1;
        }
    }

    /// Bytes of memory.
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
    fn keeps_depths_across_resizes() {
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
    fn leaves_deeper_than_the_table_are_unknown() {
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
