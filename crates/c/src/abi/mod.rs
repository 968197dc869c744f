//! The functions of C. `include/forebay.h` is generated from this module.
//!
//! The comments of public items are those of the header: they are for programmers in C.
//!
//! Invariants
//!
//! * No panic leaves a function: `status::guard` makes it a status. Loaders of C do not unwind.
//! * Each pointer that C holds came from a `Box`, and goes back into it once.
//! * A function that returns by a pointer writes there also if it fails: null or zeros.
//!
//! Safety: a caller passes pointers that are null or valid, lengths of what they point to, and no
//! handle after its close. What can be checked is: null is [`Status::Invalid`].
//!
//! Locking: none.

#![allow(clippy::missing_safety_doc, reason = "the module and the head of the header say it")]

mod cache;
mod calls;
mod hybrid;
mod loader;
mod pointers;
mod status;
mod value;

pub use cache::{
    CacheConfig, forebay_cache_clear, forebay_cache_close, forebay_cache_get,
    forebay_cache_get_or_load, forebay_cache_insert, forebay_cache_open, forebay_cache_remove,
    forebay_cache_stats,
};
pub use hybrid::{
    HybridConfig, HybridCounts, forebay_hybrid_close, forebay_hybrid_flush, forebay_hybrid_get,
    forebay_hybrid_get_or_load, forebay_hybrid_insert, forebay_hybrid_open, forebay_hybrid_remove,
    forebay_hybrid_stats, forebay_hybrid_wait_ready,
};
pub use loader::{Buffer, Loader, forebay_buffer_resize};
pub use status::{Status, forebay_error_message, forebay_loader_code};
pub use value::{Pin, Value, forebay_value_release};

use std::ffi::c_char;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    VERSION.as_ptr().cast()
}
