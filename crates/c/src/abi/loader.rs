//! Loaders that are functions of C.
//!
//! Locking: none. A loader runs on the thread that requests the key, under no lock.

use std::ffi::{c_int, c_void};
use std::{fmt, ptr};

use super::status::Failure;

/// The value that a loader makes: empty at first.
#[derive(Debug)]
pub struct Buffer(Vec<u8>);

/// Makes the value of a key, in the buffer, and returns 0. Any other number means that it failed;
/// then nothing is cached. `user` is what the caller passed.
///
/// It runs on the thread of the caller. Other threads that request the key wait for it. It may use
/// the cache, but not request its own key or close the cache. It must return: no longjmp(), and no
/// exception of C++.
pub type Loader = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        key: *const u8,
        key_len: usize,
        buffer: *mut Buffer,
    ) -> c_int,
>;

/// What a loader returned that failed.
#[derive(Debug)]
pub(super) struct LoaderFailed(pub(super) c_int);

impl fmt::Display for LoaderFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the loader returned {}", self.0)
    }
}

/// Sets the length of a loader's value, and returns where its bytes are, to be written. They are
/// kept; those that come to them are zero. Null if there is no memory. The bytes may move with each
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_resize(buffer: *mut Buffer, len: usize) -> *mut u8 {
    // SAFETY: the pointer is null or that of the running loader, see the module.
    let Some(Buffer(bytes)) = (unsafe { buffer.as_mut() }) else { return ptr::null_mut() };
    let more = len.saturating_sub(bytes.len());
    if bytes.try_reserve_exact(more).is_err() {
        return ptr::null_mut();
    }
    bytes.resize(len, 0);
    bytes.as_mut_ptr()
}

/// Makes a loader of Rust of one of C.
pub(super) fn loader(
    load: Loader,
    user: *mut c_void,
    key: &[u8],
) -> Result<impl FnOnce() -> Result<Vec<u8>, LoaderFailed>, Failure> {
    let Some(load) = load else {
        return Err(Failure::invalid("`load` is a null pointer; pass a function"));
    };
    Ok(move || {
        let mut buffer = Buffer(Vec::new());
        // SAFETY: the caller says that it may be called so, see the module. It does not unwind.
        match unsafe { load(user, key.as_ptr(), key.len(), &raw mut buffer) } {
            0 => Ok(buffer.0),
            code => Err(LoaderFailed(code)),
        }
    })
}
