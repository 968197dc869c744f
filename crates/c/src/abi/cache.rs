//! The cache in memory.
//!
//! Locking: none.

use std::ffi::c_void;
use std::time::Duration;

use super::calls;
use super::loader::{Loader, loader};
use super::status::{Failure, Status};
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
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::open(config, cache, |config| {
            if (config.capacity_bytes > 0) == (config.max_entries > 0) {
                let text = "cannot open a cache: exactly one of capacity_bytes and max_entries has to be set; set the other to 0";
                return Err(Failure::invalid(text));
            }
            Ok(ByteCache::new(&CacheOptions {
                capacity_bytes: unless_zero(config.capacity_bytes),
                max_entries: unless_zero(config.max_entries),
                time_to_live: lifetime(config.time_to_live_ms),
                time_to_idle: lifetime(config.time_to_idle_ms),
            })?)
        })
    }
}

/// Closes a cache. Values that were got from it stay valid until they are released. No other thread
/// may use it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_close(cache: *mut ByteCache) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe { calls::close(cache, |_| Ok(())) }
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
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::find(cache, (key, key_len), value, |cache, key| {
            Ok(cache.get(key).map(Value::of_cache))
        })
    }
}

/// Inserts a copy of a value, which replaces any other of the key. It expires after time_to_live_ms
/// if that is not 0, after at most 62 days, and no later than other entries of the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_insert(
    cache: *const ByteCache,
    key: *const u8,
    key_len: usize,
    data: *const u8,
    len: usize,
    time_to_live_ms: u64,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::insert(cache, (key, key_len), (data, len), |cache, key, data| {
            Ok(cache.insert(key, data, lifetime(time_to_live_ms))?)
        })
    }
}

/// Removes the value of a key. FOREBAY_STATUS_NOT_FOUND if it has none. A value that is being
/// loaded will not be cached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_remove(
    cache: *const ByteCache,
    key: *const u8,
    key_len: usize,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::remove(cache, (key, key_len), |cache, key| {
            Ok(if cache.remove(key) { Status::Ok } else { Status::NotFound })
        })
    }
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
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::find(cache, (key, key_len), value, |cache, key| {
            let loaded = cache.get_or_load(key, loader(load, user, key)?)?;
            Ok(Some(Value::of_cache(loaded)))
        })
    }
}

/// Removes all entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_clear(cache: *const ByteCache) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::call(cache, |cache| {
            cache.clear();
            Ok(())
        })
    }
}

/// Reads sizes and counts. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_cache_stats(
    cache: *const ByteCache,
    stats: *mut CacheStats,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe { calls::report(cache, stats, ByteCache::stats) }
}
