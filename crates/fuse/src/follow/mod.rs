//! Serves a pool that another host writes: the newest transaction group that was taken up.
//!
//! [`Groups`] has the file system of each group that is in use. An operation uses one of them, so
//! it never sees a mixture.
//!
//! * Names, and attributes of directories, are those of the newest group. The kernel caches them
//!   for [`NAMES_VALID`].
//! * A node of the kernel stands for one version of a file, see [`nodes`]. So what the kernel
//!   caches of a file stays right, and an open file stays as it was when it was opened.
//! * An open directory stays as it was when it was opened.
//! * What is open and the same in the newest group moves there, so that old groups are needed for
//!   changed and deleted files and directories only. There are at most 16 groups: what is open in
//!   an older one fails with `ESTALE`.
//! * If the writer has freed what an old group needs, reads fail with `ESTALE`. So does a directory
//!   that was deleted.
//!
//! # Locking
//! `follow-groups`, `follow-nodes` and `follow-files` are held for a look. `follow-node` may be
//! taken under `follow-nodes`; else they are leaf locks. The thread that takes up new groups ends
//! old ones, because that may block.
//!
//! # Limits
//! There are no changes, and no access times.

mod files;
mod groups;
mod nodes;
mod serve;

use std::path::Path;
use std::time::Duration;

use forebay_base::sync::Arc;
use fuser::InitFlags;

pub use self::groups::{Group, Groups};

use self::serve::Follow;
use crate::error::MountError;
use crate::mount::{self, Mount};
use crate::options::MountOptions;

/// How long the kernel may cache names, and attributes of directories.
pub(super) const NAMES_VALID: Duration = Duration::from_secs(1);

/// Mounts the newest of `groups` at `at`, an existing directory. It is read-only whatever the
/// options say.
///
/// # Errors
/// As [`mount`](crate::mount()).
pub fn mount_following(
    groups: Arc<Groups>,
    at: &Path,
    options: &MountOptions,
) -> Result<Mount, MountError> {
    let mut options = options.clone();
    options.flags.read_only = true;
    // Nothing is written. In a listing with attributes, all names and attributes of files would
    // have one validity.
    options.kernel_cache = false;
    let plus = InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO;
    options.ignored_features |= plus.bits();
    mount::serve(|metrics, _device| Follow::new(groups, metrics), at, &options)
}
