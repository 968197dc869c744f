//! Mounts file systems through FUSE.
//!
//! [`mount`] serves a file system of `forebay-fs` at a directory. A [`Mount`] can be waited for,
//! unmounted and inspected. [`available`] reports why mounting cannot work here. [`mount_info`] and
//! [`unmount_dead`] handle mounts whose server was killed.
//!
//! # Structure
//!
//! `transport` receives requests and sends replies; a `Server` handles them. `adapter` is the
//! server for a file system, `follow` the one for a pool that another host writes, `null` the null
//! file system of tests and benches (feature `testing`).
//! `mount` attaches and detaches mounts.
//!
//! # Invariants
//!
//! - A thread that receives requests does not block on devices or transaction groups, except where
//!   `adapter` says so. A request that would block continues on a worker thread or an I/O callback,
//!   which sends the reply.
//! - Each request gets one reply. A reply that is dropped unsent answers with `EIO`.
//! - Only this server changes the files while they are mounted, so the kernel may cache names and
//!   attributes. What `follow` serves changes by itself: the kernel caches names for a moment only.
//!
//! # Locking
//!
//! `docs/locking.md` lists the locks. None is held while a request waits.
//!
//! # Limits
//!
//! The kernel checks permissions (`default_permissions`) and keeps file locks. There are no ioctls,
//! no POSIX ACLs and no NFS export. `sync` and `syncfs` do not reach a FUSE server of this kind:
//! use `fsync`. Everything else becomes durable with the next transaction group.

#![warn(missing_debug_implementations)]

mod adapter;
mod counters;
mod error;
mod follow;
mod latency;
mod mount;
#[cfg(feature = "testing")]
mod null;
mod options;
mod transport;

pub use adapter::mount;
pub use counters::{MountCounters, MountStats, OperationLatency};
pub use error::{MountError, MountUser};
pub use follow::{Group, Groups, mount_following};
pub use mount::{
    Mount, MountInfo, available, mount_containing, mount_id_at, mount_info, unmount_dead,
};
#[cfg(feature = "testing")]
pub use null::mount_null;
pub use options::{Atime, MountFlags, MountOptions};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
