//! Tests of mounts, through the kernel. Skipped where FUSE is not permitted.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive a mount as any program does"
)]

mod files;
mod follow;
mod null;
mod slow;
mod suspended;

use std::path::Path;
use std::time::Duration;

use forebay_fuse::MountOptions;

/// When a test gives up on what should happen.
const HANG: Duration = Duration::from_secs(60);

/// Whether mounting works here. Reports why not.
fn permitted() -> bool {
    match forebay_fuse::available() {
        Ok(()) => true,
        Err(why) => {
            forebay_base::testing::skip("fuse", why);
            false
        }
    }
}

/// Options of a test mount, with or without the kernel cache.
fn options(kernel_cache: bool) -> MountOptions {
    let mut options = MountOptions::default();
    options.kernel_cache = kernel_cache;
    options.fs_name = "test/main".to_owned();
    options
}

/// All names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}
