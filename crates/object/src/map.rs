//! The map of data objects, in memory: sorted by first sector, at most 32 bytes an object.
//!
//! An object holds some sectors of its range, the *span*. The spans of two objects overlap only
//! within one window: when writes of a window came so late that its object was sealed without
//! them. A merged object may span several windows, and overlaps no other.
//!
//! A copy shares all chunks that neither of both changes.
//!
//! Locking: none; its owner has a lock.

use forebay_base::sync::Arc;

use crate::format::{SECTOR_BYTES, WINDOW_SECTORS};

/// A data object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its first sector. That identifies the object in the map.
    pub(crate) first: u64,
    /// Sectors from the first one to the last one.
    pub(crate) span: u32,
    /// The epoch of its writer.
    pub(crate) epoch: u32,
    /// 0 if it was written once, else one more than those of which it was merged.
    pub(crate) generation: u16,
    /// Sectors that it holds.
    pub(crate) payload_sectors: u16,
    /// Number of extents of its directory.
    pub(crate) extents: u16,
    /// Sectors that are believed to be live. Only a hint: discards may come twice.
    pub(crate) live: u16,
}

const _: () = assert!(size_of::<Object>() == 24);

impl Object {
    /// Address of its first byte.
    pub(crate) fn first_byte(&self) -> u64 {
        self.first * SECTOR_BYTES
    }

    /// One past its last sector.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.span)
    }

    /// One past the address of its last byte.
    pub(crate) fn end_byte(&self) -> u64 {
        self.end() * SECTOR_BYTES
    }

    /// Whether it holds all sectors of its span, in order.
    pub(crate) fn is_dense(&self) -> bool {
        self.span == u32::from(self.payload_sectors)
    }

    /// Bytes of its payload.
    pub(crate) fn payload_bytes(&self) -> u64 {
        u64::from(self.payload_sectors) * SECTOR_BYTES
    }

    fn may_hold(&self, sector: u64) -> bool {
        self.first <= sector && sector < self.end()
    }
}

/// Objects of a chunk. A chunk that is full is split, or followed by a new one.
const CHUNK: usize = 512;

/// The map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    /// Sorted; none is empty.
    chunks: Vec<Arc<Vec<Object>>>,
    len: usize,
    payload_sectors: u64,
    live_sectors: u64,
}

impl Map {
    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all payloads, and of their live part.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.payload_sectors * SECTOR_BYTES, self.live_sectors * SECTOR_BYTES)
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(|c| c.capacity() * size_of::<Object>()).sum();
        chunks + self.chunks.capacity() * size_of::<Vec<Object>>()
    }

    /// All objects, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.chunks.iter().flat_map(|objects| objects.iter())
    }

    /// The objects whose first sector is at `sector` or after, in order.
    pub(crate) fn iter_from(&self, sector: u64) -> impl Iterator<Item = &Object> {
        let (chunk, at) = self.position(sector);
        let rest = self.chunks.get(chunk).map_or(&[][..], |objects| &objects[at..]);
        let after = self.chunks.iter().skip(chunk + 1);
        rest.iter().chain(after.flat_map(|objects| objects.iter()))
    }

    /// The objects whose first sector is before `sector`, the last first.
    fn iter_before(&self, sector: u64) -> impl Iterator<Item = &Object> {
        let (chunk, at) = self.position(sector);
        let before = self.chunks.get(chunk).map_or(&[][..], |objects| &objects[..at]);
        before.iter().rev().chain(self.chunks[..chunk].iter().rev().flat_map(|c| c.iter().rev()))
    }

    /// The chunk and the place in it of the first object whose first sector is at `sector` or
    /// after.
    fn position(&self, sector: u64) -> (usize, usize) {
        let after =
            |objects: &Arc<Vec<Object>>| objects.last().is_some_and(|last| last.first < sector);
        let chunk = self.chunks.partition_point(after);
        let at = self
            .chunks
            .get(chunk)
            .map_or(0, |objects| objects.partition_point(|object| object.first < sector));
        (chunk, at)
    }

    /// The object whose first sector is `first`.
    pub(crate) fn get(&self, first: u64) -> Option<&Object> {
        let (chunk, at) = self.position(first);
        self.chunks.get(chunk)?.get(at).filter(|object| object.first == first)
    }

    /// The objects that may hold `sector`: it is in their span. Almost always at most one.
    pub(crate) fn candidates(&self, sector: u64) -> Vec<Object> {
        let window_start = sector / WINDOW_SECTORS * WINDOW_SECTORS;
        let mut found = Vec::new();
        for object in self.iter_before(sector + 1) {
            if object.may_hold(sector) {
                found.push(*object);
            }
            // The last one before the window may be a merged one.
            if object.first < window_start {
                break;
            }
        }
        found
    }

    /// The dense object that holds `sector`.
    pub(crate) fn dense_at(&self, sector: u64) -> Option<Object> {
        self.candidates(sector).into_iter().find(Object::is_dense)
    }

    /// Adds an object. Returns the one with the same first sector, which it replaces.
    pub(crate) fn insert(&mut self, object: Object) -> Option<Object> {
        let replaced = self.remove(object.first);
        self.len += 1;
        self.payload_sectors += u64::from(object.payload_sectors);
        self.live_sectors += u64::from(object.live);
        let (mut chunk, mut at) = self.position(object.first);
        if chunk == self.chunks.len() {
            // It is after all others.
            if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
                self.chunks.push(Arc::new(Vec::with_capacity(CHUNK)));
            }
            chunk = self.chunks.len() - 1;
            at = self.chunks[chunk].len();
        } else if self.chunks[chunk].len() == CHUNK {
            let mut second = Vec::with_capacity(CHUNK);
            second.extend(self.objects(chunk).drain(CHUNK / 2..));
            self.chunks.insert(chunk + 1, Arc::new(second));
            (chunk, at) = self.position(object.first);
        }
        self.objects(chunk).insert(at, object);
        replaced
    }

    /// Removes the object whose first sector is `first`.
    pub(crate) fn remove(&mut self, first: u64) -> Option<Object> {
        let (chunk, at) = self.position(first);
        self.chunks.get(chunk)?.get(at).filter(|object| object.first == first)?;
        let removed = self.objects(chunk).remove(at);
        self.len -= 1;
        self.payload_sectors -= u64::from(removed.payload_sectors);
        self.live_sectors -= u64::from(removed.live);
        self.shrink(chunk);
        Some(removed)
    }

    /// Joins a chunk that has become small with the next one.
    fn shrink(&mut self, chunk: usize) {
        let len = self.chunks[chunk].len();
        if len == 0 {
            self.chunks.remove(chunk);
        } else if let Some(next) = self.chunks.get(chunk + 1)
            && len + next.len() <= CHUNK * 3 / 4
        {
            let next = self.chunks.remove(chunk + 1);
            self.objects(chunk).extend(next.iter());
        }
    }

    /// Sets what is believed of the live sectors of an object.
    pub(crate) fn set_live(&mut self, first: u64, live: u16) {
        let (chunk, at) = self.position(first);
        let found = self.chunks.get(chunk).and_then(|objects| objects.get(at));
        if let Some(object) = found.filter(|object| object.first == first) {
            let live = live.min(object.payload_sectors);
            self.live_sectors = self.live_sectors - u64::from(object.live) + u64::from(live);
            self.objects(chunk)[at].live = live;
        }
    }

    /// The objects of a chunk, to be changed. Other maps that share it keep it as it is.
    fn objects(&mut self, chunk: usize) -> &mut Vec<Object> {
        let shared = &mut self.chunks[chunk];
        if Arc::get_mut(shared).is_none() {
            // A plain copy would have no room for more.
            let mut own = Vec::with_capacity(CHUNK);
            own.extend(shared.iter());
            *shared = Arc::new(own);
        }
        Arc::get_mut(shared).expect("nothing else has it")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use forebay_base::rng::SmallRng;
    use forebay_base::testing;

    use super::*;

    fn object(first: u64, span: u32) -> Object {
        let sectors = span as u16;
        Object {
            first,
            span,
            payload_sectors: sectors,
            live: sectors,
            extents: 1,
            ..Object::default()
        }
    }

    #[test]
    fn it_does_as_a_tree_does() {
        let mut rng = SmallRng::from_seed(testing::seed(1));
        let (mut map, mut model) = (Map::default(), BTreeMap::new());
        for round in 0..20_000 {
            let first = rng.below(3000);
            // Grows first, then shrinks.
            if rng.below(10) < if round < 10_000 { 8 } else { 3 } {
                let object = object(first, 1 + rng.below(9) as u32);
                assert_eq!(map.insert(object), model.insert(first, object));
            } else {
                assert_eq!(map.remove(first), model.remove(&first));
            }
            let from = rng.below(3000);
            assert!(map.iter_from(from).take(3).eq(model.range(from..).map(|(_, o)| o).take(3)));
            assert_eq!(map.get(from), model.get(&from));
        }
        assert!(map.iter().eq(model.values()));
        assert_eq!(map.len(), model.len());
        let sectors: u64 = model.values().map(|object| u64::from(object.payload_sectors)).sum();
        assert_eq!(map.bytes().0, sectors * SECTOR_BYTES);
    }

    #[test]
    fn candidates_are_those_whose_span_has_the_sector() {
        let mut map = Map::default();
        let window = WINDOW_SECTORS;
        // A merged one over three windows, then two that overlap in their window.
        map.insert(object(5, 3 * window as u32 - 10));
        map.insert(object(3 * window, 20));
        map.insert(object(3 * window + 3, 8));
        let firsts = |sector| -> Vec<u64> {
            map.candidates(sector).iter().map(|object| object.first).collect()
        };
        assert!(firsts(4).is_empty());
        assert_eq!(firsts(2 * window + 7), [5]);
        assert!(firsts(3 * window - 1).is_empty());
        assert_eq!(firsts(3 * window + 2), [3 * window]);
        assert_eq!(firsts(3 * window + 5), [3 * window + 3, 3 * window]);
        assert_eq!(firsts(3 * window + 19), [3 * window]);
    }

    #[test]
    fn an_object_takes_at_most_32_bytes() {
        let mut map = Map::default();
        for first in 0..1_000_000 {
            map.insert(object(first * WINDOW_SECTORS, 2000));
        }
        let bytes = map.memory_bytes() as f64 / map.len() as f64;
        assert!(bytes <= 32.0, "{bytes} bytes an object");
    }
}
