//! Files on a pool's dataset, with the semantics of POSIX.
//!
//! * [`FileSystem`]: made in a dataset, opened, shared by any number of threads;
//! * [`Ino`]: names an inode; [`Attr`]: what is known of it; [`Handle`]: that somebody has it open;
//! * [`Error`]: its [`ErrorKind`] is what becomes an errno in an adapter.
//!
//! ```
//! use std::sync::Arc;
//!
//! use forebay_fs::{Caller, FileSystem, FsOptions, Ino, Owner};
//! use forebay_io::OpenOptions;
//! use forebay_pool::{BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Pool, open_path};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = &folder.path().join("tank.img");
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
//! - An operation is one transaction: after a crash it has happened or not. The exceptions are those whose size has no bound,
//!   and they say so.
//! - An inode that no name leads to is in the orphan directory until it is destroyed, from the transaction that took its
//!   last name on.
//! - A link count is changed in the transaction that changes the names.
//!
//! # Locking
//!
//! `docs/locking.md` has every lock and the order. In short: begin a transaction, then lock inodes in the order of
//! their numbers. Nobody begins a transaction, or waits for a group, with a lock held.
//!
//! # What it does not do
//!
//! It checks no permissions: whoever passes requests on does. It has no quotas, no ACLs, no locks of files, no
//! reservations of room. It knows nothing of any protocol.

mod attrs;
mod audit;
mod error;
mod extras;
pub mod format;
mod fs;
mod inode;
mod inode_lock;
mod inode_table;
mod ops;
mod options;
mod reclaim;
mod stats;
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
pub use stats::{FsCounters, FsStats};
pub use types::{
    Attr, Caller, Entry, FallocateMode, FileKind, FsUsage, Handle, Ino, NewNode, Owner, RenameMode,
    Seek, SetAttr, SetTime, Time, Write, XattrMode,
};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
