//! Mounts files through FUSE.
//!
//! [`mount`] serves a file system of `forebay-fs` at a directory; [`mount_null`] serves one that holds names and nothing else, and so
//! shows what the way through the kernel costs. A [`Mount`] is the mount's life: wait for its end, end
//! it, look at its counters. [`available`] tells beforehand why a mount cannot work here, [`mount_info`] and [`unmount_dead`] deal with what a
//! server that was killed left behind.
//!
//! # How it is made
//!
//! `transport` is the seam: requests and answers in types of this crate (`Server` on one side, one module that
//! names the FUSE library on the other), so that another way to the kernel can take the library's place. `adapter` serves a file
//! system through it, `null` the null file system. `mount` attaches and detaches, and knows nothing of requests.
//!
//! # Invariants
//!
//! - No thread that takes requests from the kernel waits for a device or a transaction group. A request that would have to wait goes on
//!   on a thread of the file system, or in a callback of its I/O, and its answer goes with it.
//! - Each request is answered once. An answer that is dropped answers with an I/O error.
//! - Nobody but this server changes the files while they are mounted, so the kernel may keep names and attributes for as long as it likes.
//!
//! # Locking
//!
//! Those of a mount's life and, for the null file system, of its names: `docs/locking.md` lists them. None is held while a request waits.
//!
//! # What it does not do
//!
//! It does not know what files mean: permissions are the kernel's (`default_permissions`), everything else `forebay-fs`'s. No
//! locks of files (the kernel keeps them), no ioctl, no POSIX ACL, no export over NFS. `sync` and `syncfs` do not reach a FUSE server of this kind: what
//! must be durable now needs `fsync`, everything else is durable with the next transaction group.

#![warn(missing_debug_implementations)]

mod adapter;
mod counters;
mod error;
mod mount;
mod null;
mod options;
mod transport;

pub use adapter::mount;
pub use counters::{MountCounters, MountStats};
pub use error::{MountError, MountUser};
pub use mount::{Mount, MountInfo, available, mount_containing, mount_info, unmount_dead};
pub use null::mount_null;
pub use options::{Atime, MountFlags, MountOptions};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
