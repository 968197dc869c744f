//! Allocates the blocks of the space maps, before any of them is written.

use crate::Result;
use crate::format::{BlockPtrPhys, SpaceEntryPhys};

use super::Space;
use super::chain::{Placement, block_bytes, items_in};

impl Space {
    /// Allocates at least one block, for a chain of `items` items.
    pub(super) fn place_chain(
        &mut self,
        items: usize,
        item_bytes: usize,
    ) -> Result<Vec<Placement>> {
        let mut places = Vec::new();
        let mut capacity = 0;
        while capacity < items || places.is_empty() {
            let wanted = block_bytes(items - capacity, item_bytes, self.geometry.sector_bytes);
            let place = self.allocate_own(wanted)?;
            capacity += items_in(place.1, item_bytes);
            places.push(place);
        }
        Ok(places)
    }

    /// Allocates blocks for the current txg's record, which includes the entries of these
    /// allocations.
    pub(super) fn place_record(&mut self) -> Result<Vec<Placement>> {
        let mut places: Vec<Placement> = Vec::new();
        let mut capacity = 0;
        loop {
            let entries = self.pending_entries as usize;
            if capacity >= entries && !places.is_empty() {
                return Ok(places);
            }
            // Terminates: each block holds more entries than its allocation adds.
            let item_bytes = size_of::<SpaceEntryPhys>();
            let wanted =
                block_bytes(entries - capacity + 2, item_bytes, self.geometry.sector_bytes);
            let place = self.allocate_own(wanted)?;
            capacity += items_in(place.1, item_bytes);
            places.push(place);
        }
    }

    /// Frees a block of the space maps.
    pub(super) fn free_own(&mut self, pointer: &BlockPtrPhys) {
        let bytes = pointer.allocated_bytes(self.geometry.sector_bytes);
        for dva in pointer.dvas() {
            self.free_range(dva, bytes);
        }
    }
}
