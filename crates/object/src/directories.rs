//! Directories of objects with gaps, in memory as long as there is room for them.
//!
//! A dense object needs none: its sectors are in the order of their addresses. The oldest
//! directories give way. No two objects of one history of a store have the same key, so all views
//! of a follower share them until the store is set back to a copy.
//!
//! Locking: `object-directories`, a leaf lock, held for a look or an insert.

use std::collections::{HashMap, VecDeque};

use forebay_base::sync::{Arc, Mutex};

use crate::format::directory::Extent;
use crate::map::Object;

/// The most bytes of extents that are kept.
const BYTES_MAX: usize = 32 << 20;

/// The extents of an object, in the order of their addresses.
pub(crate) type Extents = Arc<Vec<Extent>>;

/// Directories by object.
pub(crate) struct Directories(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    known: HashMap<Key, Extents>,
    ages: VecDeque<Key>,
    bytes: usize,
}

type Key = (u64, u32, u16);

fn key_of(object: &Object) -> Key {
    (object.first, object.epoch, object.generation)
}

fn bytes_of(extents: &Extents) -> usize {
    extents.len() * size_of::<Extent>() + size_of::<(Key, Key, Extents)>()
}

impl Directories {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::named("object-directories", Table::default())))
    }

    pub(crate) fn get(&self, object: &Object) -> Option<Extents> {
        self.0.lock().known.get(&key_of(object)).cloned()
    }

    pub(crate) fn insert(&self, object: &Object, extents: &Extents) {
        self.0.lock().insert(object, extents);
    }
}

impl Table {
    fn insert(&mut self, object: &Object, extents: &Extents) {
        if self.known.insert(key_of(object), Arc::clone(extents)).is_some() {
            return;
        }
        self.ages.push_back(key_of(object));
        self.bytes += bytes_of(extents);
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            let removed = self.known.remove(&oldest);
            self.bytes -= removed.as_ref().map_or(0, bytes_of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_directories_give_way() {
        let extents =
            |len| Arc::new(vec![Extent { start: 0, sectors: 1, offset: 0, checksum: 0 }; len]);
        let object = |first| Object { first, ..Object::default() };
        let directories = Directories::new();
        let large = extents(2048);
        let fits = BYTES_MAX / bytes_of(&large);
        for first in 0..fits as u64 + 1 {
            directories.insert(&object(first), &large);
        }
        assert!(directories.get(&object(0)).is_none());
        assert!(directories.get(&object(1)).is_some());
        let table = directories.0.lock();
        assert!(table.bytes <= BYTES_MAX);
        assert_eq!(table.known.len(), table.ages.len());
    }
}
