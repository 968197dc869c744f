//! Stores in front of a store, for tests.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::store::{Body, Condition, ObjectStore, Sink, StoreFuture, Version};

/// A store in front of another one, which is that store except in what it overrides.
pub trait StoreDecorator: Send + Sync + 'static {
    /// The store behind it.
    fn inner(&self) -> &dyn ObjectStore;

    /// [`ObjectStore::get`]; of the store behind it, unless overridden.
    fn own_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Bytes, Version)> {
        self.inner().get(key)
    }

    /// [`ObjectStore::read_range`]; of the store behind it, unless overridden.
    fn own_read_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        sink: &'a dyn Sink,
    ) -> StoreFuture<'a, ()> {
        self.inner().read_range(key, range, sink)
    }

    /// [`ObjectStore::put`]; of the store behind it, unless overridden.
    fn own_put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        self.inner().put(key, body, condition)
    }

    /// [`ObjectStore::delete`]; of the store behind it, unless overridden.
    fn own_delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        self.inner().delete(key)
    }

    /// [`ObjectStore::list`]; of the store behind it, unless overridden.
    fn own_list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>> {
        self.inner().list(prefix, after)
    }
}

impl<D: StoreDecorator> ObjectStore for D {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Bytes, Version)> {
        self.own_get(key)
    }

    fn modified<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Duration>> {
        self.inner().modified(key)
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        self.inner().get_range(key, range)
    }

    fn read_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        sink: &'a dyn Sink,
    ) -> StoreFuture<'a, ()> {
        self.own_read_range(key, range, sink)
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: Body,
        condition: Condition,
    ) -> StoreFuture<'a, Version> {
        self.own_put(key, body, condition)
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        self.own_delete(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: &'a str) -> StoreFuture<'a, Vec<String>> {
        self.own_list(prefix, after)
    }
}
