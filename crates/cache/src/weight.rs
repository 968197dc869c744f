//! Changes the weight of a cached block in place.
//!
//! The sums of a list contain the weights of the blocks whose states name it. Threads that move a
//! block, or retire it, read its weight once and count with that. So the block first leaves its
//! list, in one update of its state. Then no other thread counts it, and its weight may change.
//! Then it enters the list again, at the warm end. A hit is possible all the time. The evictor
//! cannot retire the block, because it is pinned. A removal can; it counts nothing then, and this
//! thread does it instead.
//!
//! Locking: `sublist`, to enter the list.

use std::ptr::NonNull;

use forebay_base::sync::thread::yield_now;

use crate::cache::Cache;
use crate::counters::CacheCounters;
use crate::error::Refusal;
use crate::header::{Header, RETIRED};
use crate::inner::CacheInner;
use crate::key::Key;

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Changes the weight of a cached block, in bytes, for a value whose size changes although it
    /// is shared. True if the block is cached.
    ///
    /// The [`weigher`](crate::Builder::weigher) is not asked. The block counts as used. A larger
    /// weight is reserved first: other blocks may be evicted for it.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// use std::sync::Mutex;
    ///
    /// let cache = Cache::<u64, Mutex<Vec<u8>>>::builder()
    ///     .capacity(1 << 20)
    ///     .weigher(|_, block| block.lock().unwrap().len() as u64)
    ///     .build()?;
    /// cache.insert(7, Mutex::new(vec![0; 100]))?;
    ///
    /// let block = cache.get(&7).expect("inserted just now");
    /// block.lock().unwrap().resize(5000, 0);
    /// cache.set_weight(&7, 5000)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refusal::TooHeavy`], or [`Refusal::NoCapacity`] if nothing can be evicted for it. The
    /// block then stays cached with its old weight. Remove it if its value has grown already.
    pub fn set_weight(&self, key: &K, bytes: u64) -> Result<bool, Refusal> {
        let Some(block) = self.peek(key) else { return Ok(false) };
        self.inner().reweigh(block.header(), bytes)
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Changes the weight of a block, which the caller has pinned, to so many bytes. False if it
    /// has left the cache.
    pub(crate) fn reweigh(
        &self,
        header: NonNull<Header<K, V>>,
        bytes: u64,
    ) -> Result<bool, Refusal> {
        let weight = self.with_structures(bytes);
        if let Some(refusal) = self.too_heavy(weight) {
            return Err(refusal);
        }
        // SAFETY: the caller holds a pin.
        let (h, key) = unsafe { (header.as_ref(), header.as_ref().key()) };
        loop {
            let old = h.weight();
            let more = weight.saturating_sub(u64::from(old));
            if more > 0 && !self.reserve(more) {
                return Err(Refusal::NoCapacity);
            }
            let in_list = |s: crate::header::HeaderState| s.list().is_some() && !s.has(RETIRED);
            let Some(before) = h.update(|s| in_list(s).then(|| s.in_no_list())) else {
                self.capacity.release(more);
                if h.state().has(RETIRED) {
                    return Ok(false);
                }
                // Another thread is about to enter it into its list.
                yield_now();
                continue;
            };
            let Some(list) = before.list() else { unreachable!("it was in a list") };
            let now = h.weight();
            let sublist = self.list(list, before.class()).at(before.position());
            sublist.count_out(u64::from(now), 1);
            // Unless another thread has changed it meanwhile.
            let changed = now == old;
            if changed {
                h.set_weight(weight as u32);
            }
            let entered = self.place(header, before.class(), list, |s| s);
            if entered.is_none() {
                self.record_removal(key, before.class(), h.weight(), h.state().cause());
                self.counters.add(CacheCounters::LEFT, h.state().cause() as usize, 1);
            }
            self.capacity.release(if changed {
                u64::from(old).saturating_sub(weight)
            } else {
                more
            });
            if changed || entered.is_none() {
                return Ok(entered.is_some());
            }
        }
    }
}
