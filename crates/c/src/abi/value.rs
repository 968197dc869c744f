//! Values that C holds.
//!
//! Locking: none.

use std::ptr;

use super::status::{Failure, Status, guard};
use crate::{CacheValue, HybridValue};

/// What keeps a value where it is.
pub struct Pin(Held);

enum Held {
    Cache(CacheValue),
    Hybrid(HybridValue),
}

/// A value. Its bytes stay valid and unchanged until it is released, even if the value is replaced,
/// removed or evicted. Release it soon: until then it takes room in the cache.
#[repr(C)]
#[derive(Debug)]
pub struct Value {
    /// The bytes. Not null, even if there are none. Null only if there is no value.
    pub data: *const u8,
    /// Their number.
    pub len: usize,
    /// For forebay_value_release().
    pub pin: *mut Pin,
}

impl Value {
    /// No value.
    pub(super) const NONE: Self = Self { data: ptr::null(), len: 0, pin: ptr::null_mut() };

    pub(super) fn of_cache(value: CacheValue) -> Self {
        Self::new(Held::Cache(value))
    }

    pub(super) fn of_hybrid(value: HybridValue) -> Self {
        Self::new(Held::Hybrid(value))
    }

    fn new(held: Held) -> Self {
        let bytes: &[u8] = match &held {
            Held::Cache(value) => value,
            Held::Hybrid(value) => value,
        };
        // The bytes are on the heap or in the cache, and stay there when `held` moves.
        let (data, len) = (bytes.as_ptr(), bytes.len());
        Self { data, len, pin: Box::into_raw(Box::new(Pin(held))) }
    }
}

/// Releases a value, and sets it to zeros. Does nothing if it is released already, or has never
/// been set since its initialization with zeros. Any thread may do it. A value of a cache in memory
/// may be released after the cache was closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_value_release(value: *mut Value) {
    let _ = guard(|| {
        // SAFETY: the pointer is null or valid, see the module.
        let Some(value) = (unsafe { value.as_mut() }) else { return Ok(Status::Ok) };
        let Value { pin, .. } = std::mem::replace(value, Value::NONE);
        if !pin.is_null() {
            // SAFETY: it came from `new`, and was taken out of the only value that has it.
            drop(unsafe { Box::from_raw(pin) });
        }
        Ok::<_, Failure>(Status::Ok)
    });
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Held::Cache(value) => value.fmt(f),
            Held::Hybrid(value) => value.fmt(f),
        }
    }
}
