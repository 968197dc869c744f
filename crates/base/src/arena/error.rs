//! Errors of creating an arena, and of allocating a buffer.

// tidy: std, because the source of an error must be an error, which the `Arc` of the shim is not.
use std::sync::Arc as ErrorArc;

use crate::vm;

/// An arena cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The limit does not cover a single page.
    #[error(
        "cannot create an arena of {limit_bytes} bytes: it cannot hold a page; give at least {least} \
         bytes"
    )]
    LimitTooSmall {
        /// The requested limit in bytes.
        limit_bytes: u64,
        /// The smallest possible limit in bytes.
        least: u64,
    },
    /// The system refused address space, or the process locks its memory.
    #[error("cannot create an arena: {0}")]
    Reserve(#[from] vm::Error),
}

/// A buffer cannot be allocated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AllocError {
    /// The length is 0.
    #[error("cannot allocate a buffer of 0 bytes: ask for at least one byte")]
    Empty,
    /// The length is greater than the largest buffer.
    #[error("cannot allocate a buffer of {len} bytes: the limit is {max} bytes; split the buffer")]
    TooLarge {
        /// Requested length in bytes.
        len: usize,
        /// [`MAX_LEN`](super::MAX_LEN).
        max: usize,
    },
    /// The limit is reached and no memory is free. Free buffers, or raise the limit.
    #[error(
        "cannot allocate {len} bytes ({needed} of memory): {used} bytes are in use and {committed} \
         are committed, of a limit of {limit}; {}", remedy(*locked)
    )]
    Exhausted {
        /// Requested length in bytes.
        len: usize,
        /// Bytes of memory that the buffer would occupy.
        needed: u64,
        /// Bytes of live buffers.
        used: u64,
        /// Bytes that may be resident.
        committed: u64,
        /// The limit in bytes.
        limit: u64,
        /// Free memory could not be released, because the process has locked it.
        locked: bool,
    },
    /// The system refused more address space.
    #[error("cannot allocate a buffer of {len} bytes: {source}")]
    Reserve {
        /// Requested length in bytes.
        len: usize,
        /// The error of the system.
        source: ErrorArc<vm::Error>,
    },
}

/// The last part of the message of [`AllocError::Exhausted`].
fn remedy(locked: bool) -> &'static str {
    match locked {
        false => "free buffers or raise the limit",
        true => {
            "the process has locked free memory (mlockall or mlock), so the system does not take it \
             back and it cannot serve other sizes; call munlockall"
        }
    }
}
