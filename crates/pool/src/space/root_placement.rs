//! Root blocks have a few preallocated addresses, used in rotation.
//!
//! A txg cannot end without its root block, which is longer than a sector and cannot be a gang. In
//! a full, fragmented pool no free range might be long enough, so root blocks are preallocated. An
//! address is reused after `ROOT_SLOTS` txgs, later than any space that a txg frees. So the roots
//! of the last three txgs are always intact.

use crate::format::{Dva, DvaPhys, SpaceRootPhys};
use crate::{Error, ErrorKind, Result};

use super::Space;

const ROOT_SLOTS: usize = SpaceRootPhys::ROOT_SLOTS;

/// The addresses, and the current one.
#[derive(Debug, Default)]
pub(super) struct RootSlots {
    places: Vec<[DvaPhys; 2]>,
    bytes: u64,
    /// Index of the newest root's address.
    current: usize,
    /// The txg of that root.
    txg: u64,
}

impl RootSlots {
    /// Stores the addresses in a root.
    pub(super) fn store(&self, root: &mut SpaceRootPhys) {
        for (place, out) in self.places.iter().zip(&mut root.root_slots) {
            *out = *place;
        }
        root.root_bytes = (self.bytes as u32).into();
        root.root_slot = self.current as u8;
    }

    fn ranges(&self) -> impl Iterator<Item = Dva> {
        self.places.iter().flatten().filter_map(|place| place.get())
    }
}

impl Space {
    /// Returns the addresses of the current txg's root block: two, or one on an object store.
    /// `bytes` is the same for all txgs of a pool. The first txg allocates the addresses; they are
    /// never freed.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] in the first txg, [`ErrorKind::Invalid`] if `bytes` differs from the
    /// first txg's.
    pub(crate) fn place_root(&mut self, bytes: u64) -> Result<[DvaPhys; 2]> {
        let txg = self.open;
        assert!(txg.is_some(), "no transaction group is open");
        if self.roots.places.is_empty() {
            for _ in 0..ROOT_SLOTS {
                let place = self.allocate_rewritable(bytes, 2)?;
                self.roots.places.push(place);
            }
            self.roots.bytes = bytes;
        } else if self.roots.txg != txg.unwrap_or(0) {
            self.roots.current = (self.roots.current + 1) % ROOT_SLOTS;
        }
        if self.roots.bytes != bytes {
            let message = format!("root blocks have {} bytes, not {bytes}", self.roots.bytes);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.roots.txg = txg.unwrap_or(0);
        Ok(self.roots.places[self.roots.current])
    }

    /// Calls `each` for the addresses of root blocks, which are always allocated.
    pub(crate) fn root_slots(&self, mut each: impl FnMut(Dva, u64)) {
        self.roots.ranges().for_each(|dva| each(dva, self.roots.bytes));
    }

    /// Loads the addresses from a root. The metaslabs must be loaded before.
    pub(super) fn load_root_slots(&mut self, root: &SpaceRootPhys) -> Result<()> {
        let corrupt = || {
            Error::new(ErrorKind::Corrupt, "space maps: the addresses of root blocks are invalid")
        };
        let bytes = u64::from(root.root_bytes.get());
        if bytes == 0 {
            return Ok(());
        }
        let current = usize::from(root.root_slot);
        let roots =
            RootSlots { places: root.root_slots.to_vec(), bytes, current, txg: root.txg.get() };
        let mut ranges: Vec<Dva> = roots.ranges().collect();
        ranges.sort_unstable();
        let apart = ranges.windows(2).all(|pair| {
            pair[0].device != pair[1].device || pair[0].offset + bytes <= pair[1].offset
        });
        let inside = ranges.iter().all(|dva| self.geometry.locate(*dva, bytes).is_some());
        // A device that takes each address once has one copy.
        let complete = [ROOT_SLOTS, 2 * ROOT_SLOTS].contains(&ranges.len())
            && roots.places.iter().all(|place| place[0].get().is_some());
        if current >= ROOT_SLOTS || !complete || !apart || !inside {
            return Err(corrupt());
        }
        self.roots = roots;
        Ok(())
    }
}
