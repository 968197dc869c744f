//! A guess whether names that are looked up are in their leaves, for leaves not in memory.
//!
//! The filter of a name that its leaf has is read in vain. Any other name, which does not exist or
//! waits in a page, needs its filter, which sixteen leaves share, and no leaf. A lookup does not
//! know which it is. But a directory is mostly used in one way for a while: names are added to it,
//! or they are used and removed.

/// So many names in a row that their leaves had make it likely for the next one too.
const IN_ROW: u8 = 4;

/// What lookups that read something found last.
#[derive(Clone, Copy, Default)]
pub(super) struct Presence(u8);

impl Presence {
    /// Whether the leaf of the next name is likely to have it.
    pub(super) fn is_likely(self) -> bool {
        self.0 >= IN_ROW
    }

    /// A lookup that had to read something has found whether the leaf of its name has it. A name
    /// that it does not have counts most: a wrong guess about that costs a leaf, and about others a
    /// block that is shared.
    pub(super) fn note(&mut self, is_in_leaf: bool) {
        self.0 = if is_in_leaf { (self.0 + 1).min(IN_ROW) } else { 0 };
    }
}
