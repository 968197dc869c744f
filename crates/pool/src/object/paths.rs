//! Which indirect blocks of an object a txg will write anew, so that space for each is reckoned once.
//!
//! A change of a block changes all indirect blocks above it, up to the root. If the tree becomes higher, what it was before
//! moves beneath new blocks at its left edge.

use std::ops::Range;

use hashbrown::HashSet;

use crate::error::Result;

use super::tree::{POINTERS_SHIFT, Tree, capacity, levels_for};

/// Indirect blocks that a txg has been charged for.
#[derive(Default)]
pub(crate) struct Paths {
    /// Levels that the tree will have, as far as is known; 0 if the txg was charged for nothing yet.
    pub(crate) height: u8,
    /// By level, and number among those of the level.
    charged: HashSet<(u8, u64)>,
}

impl Paths {
    /// Whether the txg changes the lowest indirect block that leads to `block`, and was charged for it.
    pub(crate) fn lead_to(&self, block: u64) -> bool {
        self.charged.contains(&(1, Tree::parent_of(block)))
    }

    /// A block is written in a tree of `levels`. `pay` gets the number of indirect blocks that change because of
    /// that and did not before.
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
        if grows || !self.lead_to(block) {
            new.extend(above(block, 1..height));
        }
        if grows {
            new.extend(above(0, before..height));
        }
        self.charge(new, pay)?;
        self.height = height;
        Ok(())
    }

    /// The same for a range of blocks that is freed from a tree of `levels`: what leads only to blocks of the range goes
    /// with it, what leads to others too changes.
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

/// The first and the last block of a range that lie in a tree of `blocks`.
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
        let mut paid = 0;
        paths
            .write(levels, block, |count| {
                paid = count;
                Ok(())
            })
            .expect("paid");
        paid
    }

    fn free(paths: &mut Paths, levels: u8, range: Range<u64>) -> usize {
        let mut paid = 0;
        paths
            .free(levels, &range, |count| {
                paid = count;
                Ok(())
            })
            .expect("paid");
        paid
    }

    #[test]
    fn each_indirect_block_is_paid_for_once() {
        let mut paths = Paths::default();
        assert_eq!(write(&mut paths, 1, 0), 0, "the root is the block");
        assert_eq!(write(&mut paths, 1, 1), 1);
        assert_eq!(write(&mut paths, 1, 511), 0);
        // A new root, what leads to the block, and the one above what was there before is the root itself.
        assert_eq!(write(&mut paths, 1, 512), 2);
        assert_eq!(write(&mut paths, 1, 513), 0);
        assert_eq!(write(&mut Paths::default(), 4, 5), 3);
    }

    #[test]
    fn what_moves_beneath_a_new_root_is_paid_for() {
        // Two levels become four: the root, two on the way to the block, and one at the left edge.
        assert_eq!(write(&mut Paths::default(), 2, 1 << 18), 4);
        let mut paths = Paths::default();
        assert_eq!(write(&mut paths, 2, 7), 1);
        assert_eq!(write(&mut paths, 2, 1 << 18), 4);
    }

    #[test]
    fn freeing_pays_for_what_leads_to_other_blocks_too() {
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
    fn what_is_not_paid_for_is_not_noted() {
        let mut paths = Paths::default();
        let full = || crate::Error::new(crate::ErrorKind::NoSpace, "full");
        assert!(paths.write(3, 9, |_| Err(full())).is_err());
        assert!(!paths.lead_to(9));
        assert_eq!(write(&mut paths, 3, 9), 2);
    }
}
