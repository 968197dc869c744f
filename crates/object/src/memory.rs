//! An object store in memory, for tests and for trying things out.
//!
//! Locking: `memory-store`, a leaf lock, held for one request.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::time::Duration;

use bytes::Bytes;
use forebay_base::sync::{Arc, Mutex};

use crate::store::{
    Body, Condition, ObjectStore, StoreError, StoreErrorKind, StoreFuture, Version,
};

/// Keys of one page of a list, as S3 has it.
const PAGE_KEYS: usize = 1000;

/// An object store in memory. It is lost with its last reference.
pub struct MemoryStore {
    objects: Mutex<Objects>,
}

#[derive(Clone, Debug, Default)]
struct Objects {
    by_key: BTreeMap<String, Stored>,
    versions: u64,
    /// The time of the store.
    now: Duration,
}

#[derive(Clone, Debug)]
struct Stored {
    body: Bytes,
    version: u64,
    modified: Duration,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { objects: Mutex::named("memory-store", Objects::default()) })
    }

    /// Copies the store as it is now.
    pub fn fork(&self) -> Arc<Self> {
        let objects = self.objects.lock().clone();
        Arc::new(Self { objects: Mutex::named("memory-store", objects) })
    }

    /// Replaces all objects by those of a copy, as a restored bucket has them. New versions still
    /// differ from all before.
    pub fn set_back(&self, copy: &Self) {
        let by_key = copy.objects.lock().by_key.clone();
        self.objects.lock().by_key = by_key;
    }

    /// All keys, in order, with the sizes of the objects in bytes.
    pub fn objects(&self) -> Vec<(String, u64)> {
        let objects = self.objects.lock();
        let len = |stored: &Stored| stored.body.len() as u64;
        objects.by_key.iter().map(|(key, stored)| (key.clone(), len(stored))).collect()
    }

    /// Puts the clock of the store forward, which stands still otherwise.
    pub fn advance(&self, time: Duration) {
        self.objects.lock().now += time;
    }

    /// Replaces or adds an object without a condition.
    pub fn set(&self, key: &str, body: Vec<u8>) {
        self.objects.lock().put(key, body.into());
    }

    /// Removes an object, as a fault of the store does.
    pub fn remove(&self, key: &str) {
        self.objects.lock().by_key.remove(key);
    }

    /// Executes a get.
    pub(crate) fn get_now(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let objects = self.objects.lock();
        let stored = objects.by_key.get(key).ok_or_else(|| not_found(key))?;
        Ok((stored.body.clone(), Version(stored.version.to_string())))
    }

    /// Tells when an object was written.
    pub(crate) fn modified_now(&self, key: &str) -> Result<Option<Duration>, StoreError> {
        let objects = self.objects.lock();
        let stored = objects.by_key.get(key).ok_or_else(|| not_found(key))?;
        Ok(Some(stored.modified))
    }

    /// Executes a put.
    pub(crate) fn put_now(
        &self,
        key: &str,
        body: &Body,
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        let mut objects = self.objects.lock();
        let current = objects.by_key.get(key).map(|stored| stored.version.to_string());
        let holds = match (condition, current) {
            (Condition::Always, _) | (Condition::Absent, None) => true,
            (Condition::Matches(wanted), Some(current)) => wanted.0 == current,
            (Condition::Matches(_), None) => return Err(not_found(key)),
            (Condition::Absent, Some(_)) => false,
        };
        if !holds {
            return Err(StoreError::new(StoreErrorKind::Condition, "the condition is false"));
        }
        Ok(objects.put(key, body.parts().concat().into()))
    }

    /// Executes a delete.
    pub(crate) fn delete_now(&self, key: &str) {
        self.objects.lock().by_key.remove(key);
    }

    /// Executes a list.
    pub(crate) fn list_now(&self, prefix: &str, after: &str) -> Vec<String> {
        let objects = self.objects.lock();
        let start = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let keys = objects.by_key.range::<str, _>((start, Bound::Unbounded)).map(|(key, _)| key);
        keys.take_while(|key| key.starts_with(prefix)).take(PAGE_KEYS).cloned().collect()
    }
}

impl Objects {
    fn put(&mut self, key: &str, body: Bytes) -> Version {
        self.versions += 1;
        let stored = Stored { body, version: self.versions, modified: self.now };
        self.by_key.insert(key.to_owned(), stored);
        Version(self.versions.to_string())
    }
}

fn not_found(key: &str) -> StoreError {
    StoreError::new(StoreErrorKind::NotFound, format!("there is no object {key}"))
}

/// Cuts a range out of a body, as servers do: what is after its end is left out.
pub(crate) fn cut(body: &Bytes, range: &Range<u64>) -> Bytes {
    let len = body.len() as u64;
    body.slice(range.start.min(len) as usize..range.end.min(len) as usize)
}

impl ObjectStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Bytes, Version)> {
        Box::pin(async { self.get_now(key) })
    }

    fn modified<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Duration>> {
        Box::pin(async { self.modified_now(key) })
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        Box::pin(async move { self.get_now(key).map(|(body, _)| cut(&body, &range)) })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        Box::pin(async move { self.put_now(key, &body, &condition) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async {
            self.delete_now(key);
            Ok(())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>> {
        Box::pin(async { Ok(self.list_now(prefix, after)) })
    }
}
