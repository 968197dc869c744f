//! Lookups of several keys, whose reads of the device overlap.

use std::collections::VecDeque;

use forebay_cache::{InFlight, Key, OwnedRef, Ref};

use super::{HybridCache, Lookup};

/// Lookups that one call has in flight at once. Each takes memory for I/O.
const MAX_IN_FLIGHT: usize = 64;
/// Keys that are looked up in memory together.
const CHUNK_KEYS: usize = 64;

/// A lookup in flight, and the number of its key.
type Pending<K, V> = VecDeque<(usize, InFlight<K, V>)>;

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// The values of several keys, in their order, as [`get`](Self::get) finds them.
    ///
    /// The keys are first looked up in memory together, as
    /// [`Cache::get_many`](forebay_cache::Cache::get_many) does. Then the device reads what memory
    /// does not have, up to 64 values at once. The values stay pinned while the result lives, so
    /// let them be few compared with the memory: those beyond it are read all the same, and are not
    /// cached.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # let cache = forebay_l2::HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
    /// cache.insert(7, "seven".to_owned())?;
    /// let found = cache.get_many(&[6, 7]);
    /// assert!(found[0].is_none());
    /// assert_eq!(found[1].as_deref().map(String::as_str), Some("seven"));
    /// # drop(found);
    /// # cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_many(&self, keys: &[K]) -> Vec<Option<OwnedRef<K, V>>> {
        let mut found = self.many_from_memory(keys);
        let mut pending = Pending::with_capacity(MAX_IN_FLIGHT.min(keys.len()));
        let mut may_wait = true;
        for (number, key) in keys.iter().enumerate() {
            while found[number].is_none() {
                match self.begin_lookup(key, &mut may_wait) {
                    None => break,
                    Some(Lookup::Value(value)) => found[number] = Some(value),
                    Some(Lookup::InFlight(in_flight)) => {
                        pending.push_back((number, in_flight));
                        break;
                    }
                    // The reads in flight may have the memory for it.
                    Some(Lookup::Declined) => {
                        let Some((number, in_flight)) = pending.pop_front() else { break };
                        found[number] = self.end_lookup(&keys[number], in_flight);
                    }
                }
            }
            if pending.len() == MAX_IN_FLIGHT
                && let Some((number, in_flight)) = pending.pop_front()
            {
                found[number] = self.end_lookup(&keys[number], in_flight);
            }
        }
        for (number, in_flight) in pending {
            found[number] = self.end_lookup(&keys[number], in_flight);
        }
        found
    }

    /// Like [`get_many`](Self::get_many), but does not block the thread. Works under any executor.
    pub async fn get_many_async(&self, keys: &[K]) -> Vec<Option<OwnedRef<K, V>>> {
        let mut found = self.many_from_memory(keys);
        let mut pending = Pending::with_capacity(MAX_IN_FLIGHT.min(keys.len()));
        let mut may_wait = true;
        for (number, key) in keys.iter().enumerate() {
            while found[number].is_none() {
                match self.begin_lookup_async(key, &mut may_wait).await {
                    None => break,
                    Some(Lookup::Value(value)) => found[number] = Some(value),
                    Some(Lookup::InFlight(in_flight)) => {
                        pending.push_back((number, in_flight));
                        break;
                    }
                    Some(Lookup::Declined) => {
                        let Some((number, in_flight)) = pending.pop_front() else { break };
                        found[number] = self.end_lookup_async(&keys[number], in_flight).await;
                    }
                }
            }
            if pending.len() == MAX_IN_FLIGHT
                && let Some((number, in_flight)) = pending.pop_front()
            {
                found[number] = self.end_lookup_async(&keys[number], in_flight).await;
            }
        }
        for (number, in_flight) in pending {
            found[number] = self.end_lookup_async(&keys[number], in_flight).await;
        }
        found
    }

    fn end_lookup(&self, key: &K, in_flight: InFlight<K, V>) -> Option<OwnedRef<K, V>> {
        // A load that was given up begins again.
        in_flight.wait().ok().or_else(|| self.get(key))
    }

    async fn end_lookup_async(&self, key: &K, in_flight: InFlight<K, V>) -> Option<OwnedRef<K, V>> {
        match in_flight.await {
            Ok(value) => Some(value),
            // A load that was given up begins again.
            Err(_) => self.get_async(key).await,
        }
    }

    fn many_from_memory(&self, keys: &[K]) -> Vec<Option<OwnedRef<K, V>>> {
        let (mut found, mut chunk) = (Vec::with_capacity(keys.len()), Vec::new());
        for keys in keys.chunks(CHUNK_KEYS) {
            self.cache.get_many(keys, &mut chunk);
            found.extend(chunk.drain(..).map(|value| value.map(Ref::into_owned)));
        }
        found
    }
}
