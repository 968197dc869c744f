//! The common part of the functions of both caches: check the pointers, call the cache, and turn
//! the outcome into a status.
//!
//! Each function has the contract of the functions of C, see the module above: pointers are null or
//! valid for its call, and the memory behind those that it writes is not used by anybody else.
//!
//! Locking: none.

use std::ptr;

use super::pointers::{bytes, out, shared, take};
use super::status::{Failure, Status, guard};
use super::value::Value;

/// A pointer to bytes, and their number.
pub(super) type RawBytes = (*const u8, usize);

/// # Safety
///
/// See the module.
pub(super) unsafe fn open<T, C>(
    config: *const T,
    cache: *mut *mut C,
    open: impl FnOnce(&T) -> Result<C, Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let cache = unsafe { out(cache, "cache", ptr::null_mut()) }?;
        // SAFETY: the caller's contract.
        let config = unsafe { shared(config, "config") }?;
        *cache = Box::into_raw(Box::new(open(config)?));
        Ok(Status::Ok)
    })
}

/// # Safety
///
/// See the module. The handle is not used any more.
pub(super) unsafe fn close<C>(
    cache: *mut C,
    close: impl FnOnce(&C) -> Result<(), Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let cache = unsafe { take(cache, "cache") }?;
        close(&cache)?;
        Ok(Status::Ok)
    })
}

/// # Safety
///
/// See the module.
pub(super) unsafe fn call<C>(
    cache: *const C,
    call: impl FnOnce(&C) -> Result<(), Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        call(unsafe { shared(cache, "cache") }?)?;
        Ok(Status::Ok)
    })
}

/// # Safety
///
/// See the module.
pub(super) unsafe fn report<C, T: Default>(
    cache: *const C,
    stats: *mut T,
    read: impl FnOnce(&C) -> T,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let stats = unsafe { out(stats, "stats", T::default()) }?;
        // SAFETY: the caller's contract.
        *stats = read(unsafe { shared(cache, "cache") }?);
        Ok(Status::Ok)
    })
}

/// `find` returns the value, or `None` if there is none.
///
/// # Safety
///
/// See the module.
pub(super) unsafe fn find<C>(
    cache: *const C,
    (key, key_len): RawBytes,
    value: *mut Value,
    find: impl FnOnce(&C, &[u8]) -> Result<Option<Value>, Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let (value, cache, key) = unsafe {
            (
                out(value, "value", Value::NONE)?,
                shared(cache, "cache")?,
                bytes(key, key_len, "key")?,
            )
        };
        let Some(found) = find(cache, key)? else { return Ok(Status::NotFound) };
        *value = found;
        Ok(Status::Ok)
    })
}

/// # Safety
///
/// See the module.
pub(super) unsafe fn insert<C>(
    cache: *const C,
    (key, key_len): RawBytes,
    (data, len): RawBytes,
    insert: impl FnOnce(&C, &[u8], &[u8]) -> Result<(), Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let (cache, key, data) = unsafe {
            (shared(cache, "cache")?, bytes(key, key_len, "key")?, bytes(data, len, "data")?)
        };
        insert(cache, key, data)?;
        Ok(Status::Ok)
    })
}

/// # Safety
///
/// See the module.
pub(super) unsafe fn remove<C>(
    cache: *const C,
    (key, key_len): RawBytes,
    remove: impl FnOnce(&C, &[u8]) -> Result<Status, Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let (cache, key) = unsafe { (shared(cache, "cache")?, bytes(key, key_len, "key")?) };
        remove(cache, key)
    })
}
