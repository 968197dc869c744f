//! The cache in memory and on a device.
//!
//! Locking: none.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::calls;
use super::loader::{Loader, loader};
use super::status::{Failure, Status};
use super::value::Value;
use crate::{CacheStats, HybridByteCache, HybridOptions};

/// How to open a hybrid cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HybridConfig {
    /// The file, which is created if there is none, or a block device. One process can open it at a
    /// time.
    pub path: *const c_char,
    /// Bytes of the file, at least 4 MiB. A file that exists must have this size.
    pub bytes: u64,
    /// Bytes of memory for keys and values.
    pub memory_bytes: u64,
}

/// Sizes and counts of a hybrid cache.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HybridCounts {
    /// Those of the memory. Its misses are requests of the device.
    pub memory: CacheStats,
    /// Entries of the device.
    pub device_entries: u64,
    /// Bytes of the device in use.
    pub device_used_bytes: u64,
    /// Requests that the device answered.
    pub device_hits: u64,
    /// Whether the device's index is complete, which it is soon after the cache was opened.
    pub device_is_ready: bool,
}

/// Opens a hybrid cache: in memory and in a file, where values survive the program. It serves at
/// once, and finds the values of the file after a moment. Close it with forebay_hybrid_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_open(
    config: *const HybridConfig,
    cache: *mut *mut HybridByteCache,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::open(config, cache, |config: &HybridConfig| {
            if config.path.is_null() {
                let text = "`path` is a null pointer; pass the path of a file";
                return Err(Failure::invalid(text));
            }
            // It ends with a zero, as the contract says.
            let path = CStr::from_ptr(config.path);
            Ok(HybridByteCache::open(&HybridOptions {
                path: Path::new(OsStr::from_bytes(path.to_bytes())),
                bytes: config.bytes,
                memory_bytes: config.memory_bytes,
            })?)
        })
    }
}

/// Writes all values that only memory has to the file, and closes the cache, also if that fails. No
/// other thread may use it any more.
///
/// Waits until all values that were got from it are released: release those of this thread first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_close(cache: *mut HybridByteCache) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe { calls::close(cache, |cache| Ok(cache.close()?)) }
}

/// Gets the value of a key. Reads the file if memory does not have it. Release it with
/// forebay_value_release().
///
/// FOREBAY_STATUS_NOT_FOUND if the key has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_get(
    cache: *const HybridByteCache,
    key: *const u8,
    key_len: usize,
    value: *mut Value,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::find(cache, (key, key_len), value, |cache, key| {
            Ok(cache.get(key).map(Value::of_hybrid))
        })
    }
}

/// Inserts a copy of a value, which replaces any other of the key, also in the file: after this no
/// older value is returned, not even after a crash. A crash may lose the new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_insert(
    cache: *const HybridByteCache,
    key: *const u8,
    key_len: usize,
    data: *const u8,
    len: usize,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::insert(cache, (key, key_len), (data, len), |cache, key, data| {
            Ok(cache.insert(key, data)?)
        })
    }
}

/// Removes the value of a key, if it has one, from memory and from the file. When this returns, the
/// value does not come back, not even after a crash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_remove(
    cache: *const HybridByteCache,
    key: *const u8,
    key_len: usize,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::remove(cache, (key, key_len), |cache, key| {
            cache.remove(key)?;
            Ok(Status::Ok)
        })
    }
}

/// Gets the value of a key. If neither memory nor the file has it, `load` makes it: once, however
/// many threads request it. A value that cannot be cached is returned all the same. Release it with
/// forebay_value_release().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_get_or_load(
    cache: *const HybridByteCache,
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
            Ok(Some(Value::of_hybrid(loaded)))
        })
    }
}

/// Writes all values that only memory has to the file, and waits until they are durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_flush(cache: *const HybridByteCache) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe { calls::call(cache, |cache| Ok(cache.flush()?)) }
}

/// Waits until the index of the file is complete, which takes a moment after forebay_hybrid_open().
/// Until then some values of the file are not found, and forebay_hybrid_close() may lose values
/// that only memory has, and says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_wait_ready(cache: *const HybridByteCache) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe { calls::call(cache, |cache| Ok(cache.wait_ready()?)) }
}

/// Reads sizes and counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_hybrid_stats(
    cache: *const HybridByteCache,
    stats: *mut HybridCounts,
) -> Status {
    // SAFETY: the contract of this function, see the module.
    unsafe {
        calls::report(cache, stats, |cache: &HybridByteCache| {
            let device = cache.device_stats();
            HybridCounts {
                memory: cache.memory_stats(),
                device_entries: device.records,
                device_used_bytes: device.used_bytes,
                device_hits: device.hits,
                device_is_ready: device.rebuild.done,
            }
        })
    }
}
