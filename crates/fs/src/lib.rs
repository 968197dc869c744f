//! A POSIX file system on a dataset of a pool.
//!
//! * [`FileSystem`] is created in a dataset, opened, and shared by any number of threads.
//! * [`Ino`] names an inode, [`Attr`] has its attributes, [`Handle`] is an open file or directory.
//! * [`Error`] has an [`ErrorKind`], which an adapter maps to an `errno` number.
//!
//! ```
//! use std::sync::Arc;
//!
//! use forebay_fs::{Caller, FileSystem, FsOptions, Ino, Owner};
//! use forebay_io::OpenOptions;
//! use forebay_pool::{
//!     BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Pool, open_path,
//! };
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = &directory.path().join("tank.img");
//! let cache = BlockCache::new(BlockCacheOptions { bytes: 64 << 20, ..Default::default() })?;
//! let file = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
//! let pool = Pool::create(vec![open_path(path, &file)?], &CreateOptions::new("tank", cache))?;
//!
//! let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
//! FileSystem::create_in(&pool, "files", &DatasetSettings::default(), owner)?;
//! let fs = FileSystem::open_in(Arc::new(pool), "files", &FsOptions::default())?;
//! let me = Caller { uid: 0, gid: 0, pid: 0 };
//! let (entry, handle) = fs.create(Ino::ROOT, b"name", 0o644, me)?;
//! fs.write(entry.attr.ino, handle, 0, b"content", Default::default())?;
//! fs.fsync(entry.attr.ino, false)?;
//! fs.read(entry.attr.ino, handle, 0, 100, &mut |bytes| assert_eq!(bytes, b"content"))?;
//! fs.release(handle);
//! fs.forget(entry.attr.ino, 1);
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - Each operation is one transaction: after a crash it is done or not done. Operations of
//!   unbounded size are exceptions and say so.
//! - The transaction that removes the last name of an inode enters it into the orphan directory. It
//!   stays there until it is destroyed.
//! - A transaction that changes names changes the link counts too.
//!
//! # Locking
//!
//! Begin a transaction, then lock inodes in the order of their numbers. No thread that holds a lock
//! begins a transaction or waits for a transaction group. `docs/locking.md` lists all locks.
//!
//! # Limits
//!
//! The crate checks no permissions: its caller does. It has no quotas, no ACLs, no file locks and
//! no space reservations, and knows no protocol.

mod attrs;
mod audit;
mod error;
mod extras;
pub mod format;
mod fs;
mod inode;
mod inode_lock;
mod inode_table;
mod inodes;
mod ops;
mod options;
mod paths;
mod read_buffers;
mod reclaim;
mod shared;
mod stats;
mod suspension;
#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "tests have threads and channels of the standard library"
)]
mod tests;
mod types;
mod workers;
mod writeback_errors;

pub use audit::AuditReport;
pub use error::{Error, ErrorKind, Result};
pub use format::{EXTRAS_MAX, NAME_MAX, TARGET_MAX, VALUE_MAX};
pub use fs::FileSystem;
pub use ops::dir::DirEntry;
pub use ops::privileges::Client;
pub use options::{AtimeMode, FsOptions};
pub use paths::{InodePath, paths};
pub use read_buffers::ReadBuffers;
pub use stats::{FsCounters, FsStats};
pub use types::{
    Attr, Caller, Entry, FallocateMode, FileKind, FsUsage, Handle, Ino, NewNode, Owner, RenameMode,
    Seek, SetAttr, SetTime, Time, Write, XattrMode,
};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
