//! Why an arena cannot be made, and why it has no buffer to give.

// Not the shim's: only this one is an error itself, and nothing is synchronised by it.
// tidy: std, because errors are shared in plain memory in every build, and the shim of the model build is not.
use std::sync::Arc as ErrorArc;

use crate::vm;

/// An arena cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The limit does not cover a single page.
    #[error("an arena of {limit_bytes} bytes cannot hold a page; give at least {least} bytes")]
    LimitTooSmall {
        /// The limit that was asked for.
        limit_bytes: u64,
        /// The least that makes sense.
        least: u64,
    },
    /// The system refused the address space.
    #[error("an arena has no address space: {0}")]
    Reserve(#[from] vm::Error),
}

/// There is no buffer for this request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AllocError {
    /// A buffer of no bytes was asked for.
    #[error("a buffer of length 0 was asked for; buffers hold at least one byte")]
    Empty,
    /// The length is more than an arena ever gives in one piece.
    #[error("a buffer of {len} bytes was asked for; the largest is {max} bytes, so split it")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// [`MAX_LEN`](super::MAX_LEN).
        max: usize,
    },
    /// The limit is reached and nothing is free: free buffers, or raise the limit.
    #[error(
        "no room for {len} bytes ({needed} of memory): {used} bytes in use and {committed} \
         committed, of a limit of {limit}; {}", way_out(*locked)
    )]
    Exhausted {
        /// Bytes asked for.
        len: usize,
        /// Bytes of memory that this takes.
        needed: u64,
        /// Bytes of blocks handed out.
        used: u64,
        /// Bytes that may be resident.
        committed: u64,
        /// The limit in bytes.
        limit: u64,
        /// The system did not take free memory back, since the process has locked it.
        locked: bool,
    },
    /// The system refused more address space.
    #[error("no address space for a buffer of {len} bytes: {source}")]
    Reserve {
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        source: ErrorArc<vm::Error>,
    },
}

/// What to do when there is no room.
fn way_out(locked: bool) -> &'static str {
    match locked {
        false => "free buffers or raise the limit",
        true => {
            "free memory serves no other size, because the process has locked it (mlockall or mlock), and the \
             system takes no locked page back; call munlockall"
        }
    }
}
