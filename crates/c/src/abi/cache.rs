//! The cache in memory.
//!
//! Locking: none.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use super::loader::{Loader, loader};
use super::pointers::{bytes, out, shared, take};
use super::status::{Failure, Status, guard};
use super::value::Value;
use crate::{ByteCache, CacheOptions, CacheStats};

/// How to open a cache in memory. Set it to zeros first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Bytes of memory to use: those of keys, of values, and 128 for each entry. 0 if max_entries
    /// is set.
    pub capacity_bytes: u64,
    /// The number of entries to hold. 0 if capacity_bytes is set.
    pub max_entries: u64,
    /// After how many milliseconds an entry expires; 0 for never. At most 62 days.
    pub time_to_live_ms: u64,
    /// After how many milliseconds an entry expires that is not used; 0 for never.
    pub time_to_idle_ms: u64,
}

fn unless_zero(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

fn lifetime(ms: u64) -> Option<Duration> {
    unless_zero(ms).map(Duration::from_millis)
}

/// Opens a cache in memory. Close it with forebay_cache_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_open(
    config: *const CacheConfig,
    cache: *mut *mut ByteCache,
) -> Status {
    guard(|| {
        // SAFETY: the pointers are null or valid, see the module.
        let (cache, config) =
            unsafe { (out(cache, "cache", ptr::null_mut())?, shared(config, "config")?) };
        if (config.capacity_bytes > 0) == (config.max_entries > 0) {
            let text = "cannot open a cache: exactly one of capacity_bytes and max_entries has to be set; set the other to 0";
            return Err(Failure::invalid(text));
        }
        let opened = ByteCache::new(&CacheOptions {
            capacity_bytes: unless_zero(config.capacity_bytes),
            max_entries: unless_zero(config.max_entries),
            time_to_live: lifetime(config.time_to_live_ms),
            time_to_idle: lifetime(config.time_to_idle_ms),
        })?;
        *cache = Box::into_raw(Box::new(opened));
        Ok(Status::Ok)
    })
}

/// Closes a cache. Values that were got from it stay valid until they are released. No other thread
/// may use it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_close(cache: *mut ByteCache) -> Status {
    guard(|| {
        // SAFETY: the handle is null or not used any more, see the module.
        drop(unsafe { take(cache, "cache") }?);
        Ok(Status::Ok)
    })
}

/// Gets the value of a key. Release it with forebay_value_release().
///
/// FOREBAY_STATUS_NOT_FOUND if the key has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_get(
    cache: *const ByteCache,
    key: *const u8,
    key_len: usize,
    value: *mut Value,
) -> Status {
    guard(|| {
        // SAFETY: the pointers are null or valid, see the module.
        let (value, cache, key) = unsafe {
            (
                out(value, "value", Value::NONE)?,
                shared(cache, "cache")?,
                bytes(key, key_len, "key")?,
            )
        };
        let Some(found) = cache.get(key) else { return Ok(Status::NotFound) };
        *value = Value::of_cache(found);
        Ok(Status::Ok)
    })
}

/// Inserts a copy of a value, which replaces any other of the key. It expires after time_to_live_ms
/// if that is not 0, and no later than other entries of the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_insert(
    cache: *const ByteCache,
    key: *const u8,
    key_len: usize,
    data: *const u8,
    len: usize,
    time_to_live_ms: u64,
) -> Status {
    guard(|| {
        // SAFETY: the pointers are null or valid, see the module.
        let (cache, key, data) = unsafe {
            (shared(cache, "cache")?, bytes(key, key_len, "key")?, bytes(data, len, "data")?)
        };
        cache.insert(key, data, lifetime(time_to_live_ms))?;
        Ok(Status::Ok)
    })
}

/// Removes the value of a key. FOREBAY_STATUS_NOT_FOUND if it has none. A value that is being
/// loaded will not be cached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_remove(
    cache: *const ByteCache,
    key: *const u8,
    key_len: usize,
) -> Status {
    guard(|| {
        // SAFETY: the pointers are null or valid, see the module.
        let (cache, key) = unsafe { (shared(cache, "cache")?, bytes(key, key_len, "key")?) };
        Ok(if cache.remove(key) { Status::Ok } else { Status::NotFound })
    })
}

/// Gets the value of a key. If it has none, `load` makes it: once, however many threads request it.
/// A value that cannot be cached is returned all the same. Release it with forebay_value_release().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_get_or_load(
    cache: *const ByteCache,
    key: *const u8,
    key_len: usize,
    load: Loader,
    user: *mut c_void,
    value: *mut Value,
) -> Status {
    guard(|| {
        // SAFETY: the pointers are null or valid, see the module.
        let (value, cache, key) = unsafe {
            (
                out(value, "value", Value::NONE)?,
                shared(cache, "cache")?,
                bytes(key, key_len, "key")?,
            )
        };
        *value = Value::of_cache(cache.get_or_load(key, loader(load, user, key)?)?);
        Ok(Status::Ok)
    })
}

/// Removes all entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_clear(cache: *const ByteCache) -> Status {
    guard(|| {
        // SAFETY: the pointer is null or valid, see the module.
        unsafe { shared(cache, "cache") }?.clear();
        Ok(Status::Ok)
    })
}

/// Reads sizes and counts. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_stats(
    cache: *const ByteCache,
    stats: *mut CacheStats,
) -> Status {
    guard(|| {
        // SAFETY: the pointers are null or valid, see the module.
        let (stats, cache) =
            unsafe { (out(stats, "stats", CacheStats::default())?, shared(cache, "cache")?) };
        *stats = cache.stats();
        Ok(Status::Ok)
    })
}
