//! Lookups of several keys, whose reads of the device overlap.

use std::collections::VecDeque;

use forebay_cache::{InFlight, Key, OwnedRef, Ref};

use super::{HybridCache, Lookup};

/// Lookups that one call has in flight at once. Each takes memory for I/O.
const MAX_IN_FLIGHT: usize = 64;
/// Keys that are looked up in memory together.
const CHUNK_KEYS: usize = 64;

/// Lookups of several keys, the same for callers that block and those that do not: both take the
/// steps that [`next`](Self::next) names, and report what came of them.
struct Lookups<K: Key, V: Send + Sync + 'static> {
    found: Vec<Option<OwnedRef<K, V>>>,
    /// The number of the next key to begin with.
    next: usize,
    /// Lookups in flight, and the numbers of their keys.
    pending: VecDeque<(usize, InFlight<K, V>)>,
    /// Whether one of them has to end before another begins.
    is_full: bool,
}

/// What to do next.
enum Step<K: Key, V: Send + Sync + 'static> {
    /// Begin the lookup of the key of this number.
    Begin(usize),
    /// End the lookup of the key of this number.
    End(usize, InFlight<K, V>),
    Done,
}

impl<K: Key, V: Send + Sync + 'static> Lookups<K, V> {
    fn next(&mut self) -> Step<K, V> {
        while self.found.get(self.next).is_some_and(Option::is_some) {
            self.next += 1;
        }
        if self.next < self.found.len() && !self.is_full {
            return Step::Begin(self.next);
        }
        self.pending.pop_front().map_or(Step::Done, |(number, begun)| Step::End(number, begun))
    }

    /// Notes what came of the lookup that [`Step::Begin`] asked for.
    fn begun(&mut self, lookup: Option<Lookup<K, V>>) {
        match lookup {
            Some(Lookup::Value(value)) => self.found[self.next] = Some(value),
            Some(Lookup::InFlight(begun)) => {
                self.pending.push_back((self.next, begun));
                self.is_full = self.pending.len() == MAX_IN_FLIGHT;
            }
            // The reads in flight may have the memory for it: it begins again after one of them.
            Some(Lookup::Declined) if !self.pending.is_empty() => {
                self.is_full = true;
                return;
            }
            Some(Lookup::Declined) | None => {}
        }
        self.next += 1;
    }

    /// Notes what came of the lookup that [`Step::End`] asked for.
    fn ended(&mut self, number: usize, value: Option<OwnedRef<K, V>>) {
        self.found[number] = value;
        self.is_full = false;
    }
}

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
        let (mut lookups, mut may_wait) = (self.many_from_memory(keys), true);
        loop {
            match lookups.next() {
                Step::Begin(n) => lookups.begun(self.begin_lookup(&keys[n], &mut may_wait)),
                // A load that was given up begins again.
                Step::End(n, begun) => {
                    let loaded = begun.wait().ok().map(|value| self.used(value));
                    lookups.ended(n, loaded.or_else(|| self.get(&keys[n])));
                }
                Step::Done => return lookups.found,
            }
        }
    }

    /// Like [`get_many`](Self::get_many), but does not block the thread. Works under any executor.
    pub async fn get_many_async(&self, keys: &[K]) -> Vec<Option<OwnedRef<K, V>>> {
        let (mut lookups, mut may_wait) = (self.many_from_memory(keys), true);
        loop {
            match lookups.next() {
                Step::Begin(n) => {
                    lookups.begun(self.begin_lookup_async(&keys[n], &mut may_wait).await);
                }
                Step::End(n, begun) => match begun.await {
                    Ok(value) => lookups.ended(n, Some(self.used(value))),
                    Err(_) => lookups.ended(n, self.get_async(&keys[n]).await),
                },
                Step::Done => return lookups.found,
            }
        }
    }

    fn many_from_memory(&self, keys: &[K]) -> Lookups<K, V> {
        let (mut found, mut chunk) = (Vec::with_capacity(keys.len()), Vec::new());
        for keys in keys.chunks(CHUNK_KEYS) {
            self.cache.get_many(keys, &mut chunk);
            let alive = |value: Option<Ref<'_, K, V>>| value.and_then(|value| self.alive(value));
            found.extend(chunk.drain(..).map(alive));
        }
        Lookups { found, next: 0, pending: VecDeque::new(), is_full: false }
    }
}
