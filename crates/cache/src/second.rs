//! The hook for a second level behind this cache.
//!
//! The cache does not know what a second level is made of. It tells it of three things: blocks that are
//! near the cold end and may be worth keeping ([`SecondLevel::offer`]), loads that it may be able to
//! answer ([`SecondLevel::load`]), and keys whose old content must never come back
//! ([`SecondLevel::forget`]). A block that the second level is writing out is not evicted meanwhile: its
//! [`Writing`] guard holds a pin, and the evictor passes it over and counts it. Since the second level
//! has an index of its own, there is no header that lives on the second level only, and a
//! completed write has no lock to meet: dropping the guard is one atomic update (`docs/locking.md` has
//! the proof that R1's retry cannot occur).

use std::fmt;
use std::ops::Deref;

use crate::attributes::Class;
use crate::filler::Filler;
use crate::guard::OwnedRef;
use crate::header::{FILLED, ON_SECOND, RETIRED, VALID, WRITING};
use crate::key::Key;

/// A second level. All calls come from threads of the cache or of its users; none may call back into the
/// same cache except through what it is handed.
pub trait SecondLevel<K: Key, V: Send + Sync + 'static>: Send + Sync + 'static {
    /// Blocks near the cold end, oldest first, that this level does not have. Take those that are worth
    /// writing with [`Candidate::write`]; must not block for I/O. Called by the reclaimer.
    fn offer(&self, candidates: Vec<Candidate<K, V>>);

    /// A load begins. If this level has the block, it keeps the filler, and publishes or fails it
    /// when its I/O is done, from any thread; else it hands the filler back at once.
    ///
    /// # Errors
    /// The filler, when this level does not have the block.
    fn load(&self, filler: Filler<K, V>) -> Result<(), Filler<K, V>>;

    /// The key's content has changed or is gone: what this level has of it must never be returned
    /// again, not even after a crash. May block until that is so.
    fn forget(&self, key: &K);
}

/// A block that a second level may write.
pub struct Candidate<K: Key, V: Send + Sync + 'static> {
    block: OwnedRef<K, V>,
    /// Its class.
    pub class: Class,
    /// Whether it is in mfu, or has been looked up in mru: it has proven reuse.
    pub reused: bool,
}

impl<K: Key, V: Send + Sync + 'static> Candidate<K, V> {
    pub(crate) fn new(block: OwnedRef<K, V>, class: Class, reused: bool) -> Self {
        Self { block, class, reused }
    }

    /// Its key.
    pub fn key(&self) -> &K {
        self.block.key()
    }

    /// Its value.
    pub fn value(&self) -> &V {
        &self.block
    }

    /// Keeps the block from being evicted until the guard goes. `None` if it is being written already,
    /// or has left the cache.
    pub fn write(self) -> Option<Writing<K, V>> {
        let begun = self.block.header().update(|s| {
            (s.has(VALID) && !s.has(WRITING) && !s.has(ON_SECOND)).then(|| s.with(WRITING))
        });
        begun.map(|_| Writing { block: self.block })
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + 'static> fmt::Debug for Candidate<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("key", self.key())
            .field("class", &self.class)
            .field("reused", &self.reused)
            .finish()
    }
}

/// A block that is being written to the second level.
pub struct Writing<K: Key, V: Send + Sync + 'static> {
    block: OwnedRef<K, V>,
}

impl<K: Key, V: Send + Sync + 'static> Writing<K, V> {
    /// Its key.
    pub fn key(&self) -> &K {
        self.block.key()
    }

    /// The block is on the second level now: it will not be offered again. False if it was removed
    /// or overwritten meanwhile, so that what was written is outdated.
    pub fn stored(self) -> bool {
        let before = self.block.header().update(|s| Some(s.with(ON_SECOND)));
        before.is_some_and(|s| s.has(FILLED) && !s.has(RETIRED))
    }
}

impl<K: Key, V: Send + Sync + 'static> Deref for Writing<K, V> {
    type Target = V;
    fn deref(&self) -> &V {
        &self.block
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Writing<K, V> {
    fn drop(&mut self) {
        self.block.header().update(|s| Some(s.without(WRITING)));
    }
}
