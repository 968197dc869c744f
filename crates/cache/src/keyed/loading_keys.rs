//! The keys that threads load or are about to load, to tell loads of equal fingerprints apart.
//!
//! Single flight of the block cache goes by fingerprint. A thread that finds a load in flight of
//! its fingerprint must not wait for it if it is that of another key: it could be its own load, or
//! one that waits for it in turn. And it must not take the other load's error for its own.
//!
//! So a thread *enters* its key before it looks for a load in flight. It leaves before it waits,
//! when its load has failed, or when nothing is left of its load but to publish the value. A thread
//! that enters compares its key with those entered under the same fingerprint, and sets
//! `met_another` in both if they differ. If a load in flight is of another key, that key's thread
//! had entered before this one found the load. If it has not left, one of both saw the other.
//! Hence, if `met_another` is unset after a load was found, the load is of this thread's key, or
//! its value is about to be published: then waiting is safe, and the value tells its key.
//!
//! A loader that asks for a key that its thread is loading must not begin another load of it. The
//! block cache tells a thread's own load by its header. But a load of another key of the same
//! fingerprint may have taken that header's place. So `enter` also looks for an equal key whose
//! loader this thread runs.
//!
//! Locking: `loading-keys`, a leaf lock, sharded by fingerprint. `Eq` of keys runs under it.

use std::collections::HashMap;

use forebay_base::sync::{Arc, Mutex};

use crate::keyed::stored::Fingerprint;
use crate::load::own;

const SHARDS: usize = 16;

type Shard<K> = HashMap<u64, Vec<Entry<K>>, foldhash::fast::FixedState>;

/// All entered keys.
pub(crate) struct LoadingKeys<K> {
    shards: Box<[Mutex<Shard<K>>]>,
}

struct Entry<K> {
    key: Arc<K>,
    met_another: bool,
}

/// A key that was entered. Dropping it leaves.
pub(crate) struct Entered<'a, K: Eq> {
    keys: &'a LoadingKeys<K>,
    fingerprint: Fingerprint,
    /// `None` once left.
    key: Option<Arc<K>>,
}

/// Identifies an entered key.
fn address<K>(key: &Arc<K>) -> usize {
    Arc::as_ptr(key).addr()
}

impl<K: Eq> LoadingKeys<K> {
    pub(crate) fn new() -> Self {
        let shard = || Mutex::named("loading-keys", Shard::default());
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, fingerprint: Fingerprint) -> &Mutex<Shard<K>> {
        let hash = fingerprint.0;
        &self.shards[((hash >> 32) ^ hash) as usize % SHARDS]
    }

    /// Enters a key. `None` if this thread runs a loader of the key.
    pub(crate) fn enter(&self, fingerprint: Fingerprint, key: K) -> Option<Entered<'_, K>> {
        let key = Arc::new(key);
        let mut shard = self.shard(fingerprint).lock();
        let entries = shard.entry(fingerprint.0).or_default();
        let mut met_another = false;
        for other in entries.iter_mut() {
            if other.key != key {
                (other.met_another, met_another) = (true, true);
            } else if own::is_own(address(&other.key)) {
                drop(shard);
                return None;
            }
        }
        entries.push(Entry { key: key.clone(), met_another });
        drop(shard);
        Some(Entered { keys: self, fingerprint, key: Some(key) })
    }

    /// Removes an entry. True if it has met another key.
    fn remove(&self, fingerprint: Fingerprint, key: &Arc<K>) -> bool {
        let mut shard = self.shard(fingerprint).lock();
        let Some(entries) = shard.get_mut(&fingerprint.0) else { return false };
        let Some(at) = entries.iter().position(|entry| Arc::ptr_eq(&entry.key, key)) else {
            return false;
        };
        let entry = entries.swap_remove(at);
        if entries.is_empty() {
            shard.remove(&fingerprint.0);
        }
        drop(shard);
        // The key itself is dropped by the caller, not under the lock.
        entry.met_another
    }
}

impl<K: Eq> Entered<'_, K> {
    pub(crate) fn key(&self) -> &K {
        self.key.as_deref().expect("not left yet")
    }

    /// Marks the key as one whose loader this thread runs.
    pub(crate) fn own_scope(&self) -> own::Scope {
        own::scope(self.key.as_ref().map_or(0, address))
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Leaves. Returns the key, and whether another key was entered meanwhile under the same
    /// fingerprint.
    pub(crate) fn leave(mut self) -> (K, bool) {
        let key = self.key.take().expect("not left yet");
        let met_another = self.keys.remove(self.fingerprint, &key);
        // Other threads use the key only in the table.
        (Arc::into_inner(key).expect("shared with the table only"), met_another)
    }
}

impl<K: Eq> Drop for Entered<'_, K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.keys.remove(self.fingerprint, &key);
        }
    }
}
