//! The indirect blocks of an object that a txg will rewrite, so that each is charged once.
//!
//! A change of a block changes all indirect blocks above it, up to the root. If the tree grows, its
//! old content moves beneath new indirect blocks at the left edge.

use std::ops::Range;

use hashbrown::HashSet;

use crate::error::Result;

use super::tree::{POINTERS_SHIFT, Tree, capacity, levels_for};

/// The indirect blocks that a txg was charged for.
#[derive(Default)]
pub(crate) struct Paths {
    /// Levels that the tree will have, as far as known; 0 if nothing was charged yet.
    pub(crate) height: u8,
    /// Level, and index within the level.
    charged: HashSet<(u8, u64)>,
}

impl Paths {
    /// Whether the txg was charged for the level-1 indirect block above `block`.
    pub(crate) fn has_charged_parent(&self, block: u64) -> bool {
        self.charged.contains(&(1, Tree::parent_of(block)))
    }

    /// The charged indirect blocks above blocks of a range.
    pub(crate) fn changed_in(&self, range: &Range<u64>) -> impl Iterator<Item = (u8, u64)> {
        let overlaps = |(level, at): &(u8, u64)| {
            let span = capacity(level + 1);
            let first = at.saturating_mul(span);
            first < range.end && range.start < first.saturating_add(span)
        };
        self.charged.iter().copied().filter(overlaps)
    }

    /// Charges for a write of a block in a tree of `levels`. `pay` gets the number of indirect
    /// blocks that change and were not charged before.
    pub(crate) fn write(
        &mut self,
        levels: u8,
        block: u64,
        pay: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        let before = if self.height == 0 { levels } else { self.height };
        let height = before.max(levels).max(levels_for(block));
        let grows = before > 0 && height > before;
        let mut new = Vec::new();
        if grows || !self.has_charged_parent(block) {
            new.extend(above(block, 1..height));
        }
        if grows {
            new.extend(above(0, before..height));
        }
        self.charge(new, pay)?;
        self.height = height;
        Ok(())
    }

    /// Charges for preallocating a range of blocks of a tree of `levels`. `changed` are the
    /// indirect blocks that change or are new, except those above the old root.
    pub(crate) fn preallocate(
        &mut self,
        levels: u8,
        range: &Range<u64>,
        changed: Vec<(u8, u64)>,
        pay: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        let before = self.height.max(levels);
        let height = before.max(levels_for(range.end - 1));
        let mut new = changed;
        if height > before {
            new.extend(above(0, before.max(1)..height));
        }
        self.charge(new, pay)?;
        self.height = height;
        Ok(())
    }

    /// Charges for freeing a range of blocks of a tree of `levels`. Indirect blocks with children
    /// outside the range change. The others are freed and cost nothing.
    pub(crate) fn free(
        &mut self,
        levels: u8,
        range: &Range<u64>,
        pay: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        let height = self.height.max(levels);
        let mut new = Vec::new();
        for end in ends(range, capacity(height)) {
            new.extend(above(end, 1..height).filter(|(level, at)| !covers(range, *level, *at)));
        }
        self.charge(new, pay)?;
        self.height = height;
        Ok(())
    }

    fn charge(
        &mut self,
        mut new: Vec<(u8, u64)>,
        pay: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        new.retain(|place| !self.charged.contains(place));
        new.sort_unstable();
        new.dedup();
        pay(new.len())?;
        self.charged.extend(new);
        Ok(())
    }
}

/// The first and the last block of a range, if they lie in a tree of `blocks` blocks.
pub(crate) fn ends(range: &Range<u64>, blocks: u64) -> impl Iterator<Item = u64> + use<> {
    let ends = [range.start, range.end.saturating_sub(1)];
    let inside = ends.map(|end| (!range.is_empty() && end < blocks).then_some(end));
    inside.into_iter().flatten()
}

/// Whether all blocks beneath an indirect block lie in a range.
pub(crate) fn covers(range: &Range<u64>, level: u8, at: u64) -> bool {
    let span = capacity(level + 1);
    let first = at.saturating_mul(span);
    range.start <= first && first.saturating_add(span) <= range.end
}

fn above(block: u64, levels: Range<u8>) -> impl Iterator<Item = (u8, u64)> {
    let at = move |level| block.checked_shr(u32::from(level) * POINTERS_SHIFT).unwrap_or(0);
    levels.map(move |level| (level, at(level)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(paths: &mut Paths, levels: u8, block: u64) -> usize {
        let mut charged = 0;
        paths
            .write(levels, block, |count| {
                charged = count;
                Ok(())
            })
            .expect("paid");
        charged
    }

    fn free(paths: &mut Paths, levels: u8, range: Range<u64>) -> usize {
        let mut charged = 0;
        paths
            .free(levels, &range, |count| {
                charged = count;
                Ok(())
            })
            .expect("paid");
        charged
    }

    #[test]
    fn each_indirect_block_is_charged_once() {
        let mut paths = Paths::default();
        assert_eq!(write(&mut paths, 1, 0), 0, "the root is the block");
        assert_eq!(write(&mut paths, 1, 1), 1);
        assert_eq!(write(&mut paths, 1, 511), 0);
        // The new root and the parent of the block. The old root becomes the parent at the left
        // edge.
        assert_eq!(write(&mut paths, 1, 512), 2);
        assert_eq!(write(&mut paths, 1, 513), 0);
        assert_eq!(write(&mut Paths::default(), 4, 5), 3);
    }

    #[test]
    fn indirect_blocks_between_the_old_and_the_new_root_are_charged() {
        // Two levels become four: the root, two on the path to the block, and one at the left edge.
        assert_eq!(write(&mut Paths::default(), 2, 1 << 18), 4);
        let mut paths = Paths::default();
        assert_eq!(write(&mut paths, 2, 7), 1);
        assert_eq!(write(&mut paths, 2, 1 << 18), 4);
    }

    #[test]
    fn a_free_charges_indirect_blocks_that_keep_other_children() {
        assert_eq!(free(&mut Paths::default(), 2, 0..u64::MAX), 0);
        assert_eq!(free(&mut Paths::default(), 2, 3..u64::MAX), 1);
        assert_eq!(free(&mut Paths::default(), 3, 510..515), 3);
        assert_eq!(free(&mut Paths::default(), 3, 512..1024), 1);
        assert_eq!(free(&mut Paths::default(), 2, 512..1024), 0, "nothing is there");
        let mut paths = Paths::default();
        assert_eq!(free(&mut paths, 3, 5..6), 2);
        assert_eq!(write(&mut paths, 3, 6), 0);
    }

    #[test]
    fn a_failed_charge_is_not_recorded() {
        let mut paths = Paths::default();
        let full = || crate::Error::new(crate::ErrorKind::NoSpace, "full");
        assert!(paths.write(3, 9, |_| Err(full())).is_err());
        assert!(!paths.has_charged_parent(9));
        assert_eq!(write(&mut paths, 3, 9), 2);
    }
}
