//! Checks of what C passes.
//!
//! Locking: none.

use std::ptr;

use super::status::Failure;

fn null(name: &str) -> Failure {
    Failure::invalid(format!("`{name}` is a null pointer; pass one to a {name}"))
}

/// # Safety
///
/// `data` is null, or points to `len` bytes that nobody changes during `'a`.
pub(super) unsafe fn bytes<'a>(
    data: *const u8,
    len: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        (false, len) if isize::try_from(len).is_err() => {
            Err(Failure::invalid(format!("the length of `{name}` is {len}, more than memory")))
        }
        // SAFETY: the caller's contract; the length was checked.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// # Safety
///
/// `pointer` is null, or points to a `T` that nobody changes during `'a`.
pub(super) unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's contract.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Writes `start` where a function returns something, which may be uninitialized before.
///
/// # Safety
///
/// `pointer` is null, or points to memory of a `T` that nobody else uses during `'a`.
pub(super) unsafe fn out<'a, T>(
    pointer: *mut T,
    name: &str,
    start: T,
) -> Result<&'a mut T, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's contract.
    unsafe {
        ptr::write(pointer, start);
        Ok(&mut *pointer)
    }
}

/// Takes a handle back.
///
/// # Safety
///
/// `handle` is null, or came from `Box::into_raw` and is not used any more.
pub(super) unsafe fn take<T>(handle: *mut T, name: &str) -> Result<Box<T>, Failure> {
    if handle.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { Box::from_raw(handle) })
}
