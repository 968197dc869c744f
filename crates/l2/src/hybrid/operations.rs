//! Operations on values of a hybrid cache beside lookups, inserts and removals.
//!
//! Not done, but for groups: visiting, retaining or clearing values of the device. The index there
//! has hashes of keys, so each value would have to be read.

use forebay_base::sync::Arc;
use forebay_cache::{Cause, Key};

use super::{HybridCache, MAX_ABANDONED_LOADS, NOT_HELD, capture_forget_error, closed_error};
use crate::error::{Error, ErrorKind, Result};
use crate::promise::{OnDrop, Promise};

fn not_judged() -> Error {
    Error::new(ErrorKind::NoMemory, format!("cannot judge {NOT_HELD}"))
}

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// Whether memory has a value of the key, or the device has one according to the index. Reads
    /// nothing and does not count as a use. Wrong if another key has the same 64-bit hash, or if
    /// the value on the device turns out to be unreadable or expired.
    pub fn contains(&self, key: &K) -> bool {
        self.memory().contains(key) || self.l2.has(key)
    }

    /// Whether memory has a value of the key, or one is being stored or loaded there.
    pub(super) fn is_in_memory(&self, key: &K) -> bool {
        self.cache.get_or_join(key).is_some()
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
        let mut not_held = 0;
        while not_held <= MAX_ABANDONED_LOADS {
            let Some(value) = self.get(key) else { return Ok(false) };
            let mut verdict = None;
            let judge = |value: &V| *verdict.insert(condition(value));
            let (removed, error) = capture_forget_error(|| self.cache.remove_if(key, judge));
            let removed = removed.is_some();
            drop(value);
            match error {
                Some(error) => return Err(error),
                None if removed || verdict == Some(false) => return Ok(removed),
                // While a newer value is stored, memory has none, and the next lookup waits for it.
                None => not_held = if self.is_in_memory(key) { 0 } else { not_held + 1 },
            }
        }
        Err(not_judged())
    }

    /// Like [`remove_if`](Self::remove_if), but does not block the thread. Works under any
    /// executor.
    ///
    /// Dropping the future before `condition` has agreed changes nothing. From then on the removal
    /// goes on without it, as [`remove_async`](Self::remove_async) does.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # let cache = forebay_l2::HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
    /// # let run = async {
    /// cache.insert_async(1, "one".to_owned()).await?;
    /// assert!(!cache.remove_if_async(&1, |text| text.is_empty()).await?);
    /// assert!(cache.remove_if_async(&1, |text| text == "one").await?);
    /// # cache.close_async().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// # let mut run = std::pin::pin!(run);
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let ended = loop {
    /// #     if let std::task::Poll::Ready(ended) = run.as_mut().poll(&mut context) {
    /// #         break ended;
    /// #     }
    /// #     std::thread::yield_now();
    /// # };
    /// # ended?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`remove_if`](Self::remove_if).
    pub async fn remove_if_async(
        &self,
        key: &K,
        mut condition: impl FnMut(&V) -> bool,
    ) -> Result<bool> {
        self.l2.started().await;
        let mut not_held = 0;
        while not_held <= MAX_ABANDONED_LOADS {
            if self.closing.is_set() {
                return Err(closed_error());
            }
            let Some(value) = self.get_async(key).await else { return Ok(false) };
            if !condition(&value) {
                return Ok(false);
            }
            let counted = self.closing.begin_own_change().ok_or_else(closed_error)?;
            let change = self.cache.begin_remove_block(&value, Cause::Removed);
            drop(value);
            let change = match change {
                Ok(change) => change,
                Err(_) if self.closing.is_set() => return Err(closed_error()),
                Err(_) => return Err(not_judged()),
            };
            let Some(change) = change else {
                not_held = if self.is_in_memory(key) { 0 } else { not_held + 1 };
                continue;
            };
            let promise = Promise::<Result<bool>>::new();
            let answer = Arc::clone(&promise);
            let end = move |forgotten: Result<()>| {
                let _end = OnDrop::new(move || {
                    drop(counted);
                    answer.fulfill(forgotten.map(|()| true));
                });
                change.remove();
            };
            self.l2.forget_then(key, Box::new(end));
            return promise.take().await;
        }
        Err(not_judged())
    }

    /// Removes all values of a group from memory and from the device, and returns how many were in
    /// memory. The removal is durable when the call returns: one flush, however many values the
    /// device has. A key names its group by [`L2Key::group`](crate::L2Key::group).
    ///
    /// It visits all values in memory. A value that is inserted meanwhile may be removed, too. One
    /// that is being loaded reaches those that wait for it, and is not cached.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// use forebay_l2::HybridCache;
    ///
    /// // Files and the numbers of their blocks.
    /// let cache = HybridCache::<(u64, u32), Vec<u8>>::open(&path, 64 << 20, 4 << 20)?;
    /// for block in 0..100 {
    ///     cache.insert((7, block), vec![0; 4096])?;
    ///     cache.insert((8, block), vec![0; 4096])?;
    /// }
    /// cache.remove_group(7)?;
    /// assert!(cache.get(&(7, 0)).is_none() && cache.get(&(8, 0)).is_some());
    /// # cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`remove`](Self::remove): values of the group may return after the device is opened
    /// again, but not in this process.
    pub fn remove_group(&self, group: u64) -> Result<u64> {
        let _change = self.closing.begin_change().ok_or_else(closed_error)?;
        let mut removed = 0;
        self.l2.forget_group(group, |is_of| removed = self.cache.remove_all_from_memory(is_of))?;
        Ok(removed)
    }
}
