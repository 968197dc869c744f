//! The mutable area: a small sparse disk at both ends of the address space, in memory.
//!
//! A block that was never written, or was discarded, is zero and takes no memory. Blocks are
//! shared with the deltas that carry them.
//!
//! Locking: none; its owner has a lock.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::format::{DEVICE_BYTES, MUTABLE_BYTES, SECTOR_BYTES, TAIL_BYTES};

const BLOCK: usize = SECTOR_BYTES as usize;
const FRONT_BLOCKS: u32 = (MUTABLE_BYTES / SECTOR_BYTES) as u32;
const TAIL_START: u64 = DEVICE_BYTES - TAIL_BYTES;

/// Blocks of the mutable area. Those of the tail follow those at the front.
pub(crate) const MUTABLE_BLOCKS: u32 = FRONT_BLOCKS + (TAIL_BYTES / SECTOR_BYTES) as u32;

/// The part of the device that a range of bytes is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// The mutable area, from this block on.
    Mutable(u32),
    /// Addresses that are written once.
    Data,
    /// Parts of both.
    Mixed,
}

/// Returns where the `len` bytes at `offset` are. The range is on the device.
pub(crate) fn region(offset: u64, len: u64) -> Region {
    let end = offset + len;
    if end <= MUTABLE_BYTES {
        Region::Mutable((offset / SECTOR_BYTES) as u32)
    } else if offset >= TAIL_START {
        Region::Mutable(FRONT_BLOCKS + ((offset - TAIL_START) / SECTOR_BYTES) as u32)
    } else if offset >= MUTABLE_BYTES && end <= TAIL_START {
        Region::Data
    } else {
        Region::Mixed
    }
}

/// The content, and which blocks no published delta has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mutable {
    blocks: BTreeMap<u32, Bytes>,
    dirty: BTreeSet<u32>,
}

impl Mutable {
    /// Reads whole blocks from `block` on.
    pub(crate) fn read(&self, block: u32, into: &mut [u8]) {
        for (index, part) in (block..).zip(into.chunks_mut(BLOCK)) {
            match self.blocks.get(&index) {
                Some(content) => part.copy_from_slice(content),
                None => part.fill(0),
            }
        }
    }

    /// Writes whole blocks from `block` on. A block that stays the same does not become dirty.
    pub(crate) fn write(&mut self, block: u32, from: &[u8]) {
        for (index, part) in (block..).zip(from.chunks(BLOCK)) {
            let content = part.iter().any(|byte| *byte != 0).then_some(part);
            if self.blocks.get(&index).map(|known| &known[..]) != content {
                self.set(index, content.map(Bytes::copy_from_slice));
                self.dirty.insert(index);
            }
        }
    }

    /// Makes `count` blocks zero.
    pub(crate) fn discard(&mut self, block: u32, count: u32) {
        let known: Vec<u32> = self.blocks.range(block..block + count).map(|(i, _)| *i).collect();
        for index in known {
            self.set(index, None);
            self.dirty.insert(index);
        }
    }

    /// Sets a block to what a published delta says.
    pub(crate) fn set(&mut self, index: u32, content: Option<Bytes>) {
        match content {
            Some(content) => self.blocks.insert(index, content),
            None => self.blocks.remove(&index),
        };
    }

    /// Whether a block of the labels is dirty: of the first `label_bytes` at the front or of the
    /// tail.
    pub(crate) fn label_is_dirty(&self, label_bytes: u64) -> bool {
        let front = (label_bytes / SECTOR_BYTES) as u32;
        self.dirty.range(..front).next().is_some()
            || self.dirty.range(FRONT_BLOCKS..).next().is_some()
    }

    /// Whether a block of the labels is another one in `other`.
    pub(crate) fn label_differs(&self, other: &Self, label_bytes: u64) -> bool {
        let front = (label_bytes / SECTOR_BYTES) as u32;
        let labels = |area: &Self| {
            let blocks = area.blocks.range(..front).chain(area.blocks.range(FRONT_BLOCKS..));
            blocks.map(|(index, content)| (*index, content.clone())).collect::<Vec<_>>()
        };
        labels(self) != labels(other)
    }

    /// Whether a block is dirty.
    #[cfg(test)]
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the dirty blocks, which are dirty no longer.
    pub(crate) fn take_dirty(&mut self) -> Vec<(u32, Option<Bytes>)> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().map(|index| (index, self.blocks.get(&index).cloned())).collect()
    }

    /// All blocks that are not zero.
    pub(crate) fn all(&self) -> Vec<(u32, Option<Bytes>)> {
        self.blocks.iter().map(|(index, content)| (*index, Some(content.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_dirty() {
        let mut area = Mutable::default();
        area.write(3, &[vec![1; BLOCK], vec![0; BLOCK]].concat());
        assert_eq!(area.take_dirty(), [(3, Some(Bytes::from(vec![1; BLOCK])))]);
        area.write(3, &vec![1; BLOCK]);
        assert!(!area.is_dirty());
        area.discard(0, 10);
        assert_eq!(area.take_dirty(), [(3, None)]);
        let mut read = vec![9; 2 * BLOCK];
        area.read(2, &mut read);
        assert!(read.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn regions_have_exact_ends() {
        let tail = DEVICE_BYTES - TAIL_BYTES;
        assert_eq!(region(MUTABLE_BYTES - 4096, 4096), Region::Mutable(FRONT_BLOCKS - 1));
        assert_eq!(region(MUTABLE_BYTES - 4096, 8192), Region::Mixed);
        assert_eq!(region(MUTABLE_BYTES, 4096), Region::Data);
        assert_eq!(region(tail - 4096, 8192), Region::Mixed);
        assert_eq!(region(tail, TAIL_BYTES), Region::Mutable(FRONT_BLOCKS));
        assert_eq!(region(DEVICE_BYTES - 4096, 4096), Region::Mutable(MUTABLE_BLOCKS - 1));
    }
}
