//! A guess whether names that are looked up exist, for those whose leaf is not in memory.
//!
//! A name that exists is in its leaf, so its filter is read in vain. A name that does not exist
//! needs its filter, which sixteen leaves share, and no leaf. A lookup does not know which it is.
//! But a directory is mostly used in one way for a while: names are added to it, or they are used
//! and removed.

/// So many names in a row that existed make the next one likely to exist.
const IN_ROW: u8 = 4;

/// What lookups that read something found last.
#[derive(Clone, Copy, Default)]
pub(super) struct Presence(u8);

impl Presence {
    /// Whether the next name is likely to exist.
    pub(super) fn is_likely(self) -> bool {
        self.0 >= IN_ROW
    }

    /// A lookup that had to read something has found the name, or not. A name that does not exist
    /// counts most: a wrong guess about it costs a leaf, and about others a block that is shared.
    pub(super) fn note(&mut self, exists: bool) {
        self.0 = if exists { (self.0 + 1).min(IN_ROW) } else { 0 };
    }
}
