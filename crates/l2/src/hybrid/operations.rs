//! Operations on values of a hybrid cache beside lookups, inserts and removals.
//!
//! Not done: visiting, retaining or clearing values of the device. The index there has hashes of
//! keys, so each value would have to be read.

use forebay_cache::Key;

use super::{HybridCache, MAX_ABANDONED_LOADS, NOT_HELD, capture_forget_error, closed_error};
use crate::error::{Error, ErrorKind, Result};

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// Whether memory has a value of the key, or the device has one according to the index. Reads
    /// nothing and does not count as a use. Wrong if another key has the same 64-bit hash, or if
    /// the value on the device turns out to be unreadable or expired.
    pub fn contains(&self, key: &K) -> bool {
        self.memory().contains(key) || self.l2.has(key)
    }

    /// Removes a value from memory and from the device if `condition` is true for it. Returns
    /// whether it did. The removal is durable when the call returns.
    ///
    /// A value that only the device has is loaded first, as by [`get`](Self::get). What is removed
    /// is the value that `condition` was called with: if it is replaced meanwhile, `condition` is
    /// called again with the new one. It runs under no lock.
    ///
    /// # Errors
    /// As [`remove`](Self::remove). [`ErrorKind::NoMemory`] if the value of the device cannot be
    /// held in memory, where it is judged; then nothing is removed.
    pub fn remove_if(&self, key: &K, mut condition: impl FnMut(&V) -> bool) -> Result<bool> {
        let _change = self.closing.begin_change().ok_or_else(closed_error)?;
        for _ in 0..=MAX_ABANDONED_LOADS {
            let Some(value) = self.get(key) else { return Ok(false) };
            let mut judged = false;
            let judge = |value: &V| {
                judged = true;
                condition(value)
            };
            let (removed, error) = capture_forget_error(|| self.cache.remove_if(key, judge));
            let removed = removed.is_some();
            drop(value);
            match error {
                Some(error) => return Err(error),
                None if removed || judged => return Ok(removed),
                // Evicted or removed since, or not cached at all.
                None => {}
            }
        }
        let text = format!("cannot judge {NOT_HELD}");
        Err(Error::new(ErrorKind::NoMemory, text))
    }
}
