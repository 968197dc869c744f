//! Yardsticks: plain memory, and an immutable map.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{ReadBlocks, ReadSubject, Reader};
use crate::baseline::FastHash;
use crate::blocks::{BlockRegion, Handle};

/// A block's index is its key, so only memory is measured.
struct Memory(Arc<BlockRegion>);

impl Reader for Memory {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        Some(touch(self.0.block(key as usize)))
    }
}

/// An immutable map of counted handles, which each read clones and drops.
struct Frozen<H>(HashMap<u64, H, FastHash>);

impl<H: Handle> Reader for Frozen<H> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let handle = self.0.get(&key)?.clone();
        Some(touch(&handle))
    }
}

fn frozen<H: Handle>(handles: &[H]) -> Frozen<H> {
    Frozen(handles.iter().cloned().enumerate().map(|(key, h)| (key as u64, h)).collect())
}

pub(super) fn memcpy(plain: &Arc<BlockRegion>, huge: &Arc<BlockRegion>) -> Vec<ReadSubject> {
    vec![
        ReadSubject::new("memcpy", "plain pages", Memory(Arc::clone(plain))),
        ReadSubject::new("memcpy", "huge pages", Memory(Arc::clone(huge))),
    ]
}

pub(super) fn readers(blocks: &ReadBlocks) -> Vec<ReadSubject> {
    let mut all = memcpy(&blocks.plain, &blocks.huge);
    all.push(ReadSubject::new("frozen", "heap blocks", frozen(&blocks.heap)));
    all.push(ReadSubject::new("frozen", "huge pages", frozen(&blocks.spans)));
    all
}
