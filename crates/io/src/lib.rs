//! Block devices and asynchronous I/O, without an async runtime.
//!
//! * [`Device`]: read, write, flush and discard. Each [`Request`] carries its buffer and ends in
//!   exactly one [`Completion`], delivered by callback, future or blocking wait;
//! * [`Roots`]: groups of requests that can be awaited, cancelled and closed together, and that
//!   collect errors;
//! * [`Priority`]: five classes of urgency;
//! * [`FileDevice`] for files and block devices, [`MemoryDevice`], and decorators:
//!   [`append_only`], [`fault`], [`record`], [`metrics`].
//!
//! ```
//! use forebay_base::arena::{Arena, ArenaConfig, HugePages};
//! use forebay_io::{Device, FileDevice, OpenOptions, Request};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("device");
//! let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
//! let device = FileDevice::open(&path, &options)?;
//! println!("{} by {}", device.info().name, device.info().engine);
//!
//! // Request memory is aligned and counted: it comes from an arena.
//! let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Auto })?;
//! let mut block = arena.alloc(4096)?;
//! block.fill(7);
//! device.run(Request::write(8192, block)).result?;
//! device.run(Request::flush()).result?; // Only now is it durable.
//!
//! // The same with a future. A callback is the third way.
//! let (read, pending) = Request::read(8192, arena.alloc(4096)?).pending();
//! device.submit(read);
//! let block = pending.wait(&device).into_buffer()?;
//! assert!(block.iter().all(|&byte| byte == 7));
//! device.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Linux only.

pub mod append_only;
mod completion;
pub mod counters;
mod device;
mod engine;
mod error;
pub mod fault;
mod file;

mod memory;
pub mod metrics;
mod payload;
mod priority;
mod queue;
pub mod record;
mod request;
mod roots;
mod signatures;
pub mod tunables;
mod waiter;

pub use completion::in_callback;
pub use device::{
    AppendOnly, Away, Buffered, Decorator, Device, DeviceInfo, DeviceStats, Engine, Health, Stored,
};
pub use error::{Error, ErrorKind};
pub use file::{
    Direct, EngineChoice, FileDevice, FileLock, Locking, OpenError, OpenOptions, SectorProbe,
};
pub use memory::{MemoryDevice, MemoryOptions};
pub use payload::{Payload, StableBytes};
pub use priority::Priority;
pub use request::{Completion, Fence, Op, RaiseHandle, Request};
pub use roots::{DrainError, Drained, Failures, Roots, RootsStats};
pub use signatures::content_of;
pub use waiter::{Pending, Waiter};

/// Internals for the model checks in `tests/model`. Not a stable interface.
#[doc(hidden)]
pub mod model {
    pub use crate::queue::{
        Limits, MAX_MERGED, MAX_SUBMISSION_QUEUES, Operation, PermitStats, Permits, QueueCredits,
        QueuesToRun, Requests, SubmissionQueue,
    };
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
