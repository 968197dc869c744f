//! Tests of mounts, through the kernel. Skipped where FUSE is not permitted.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive a mount as any program does"
)]

mod files;
mod follow;
mod mount_table;
mod null;
mod slow;
mod suspended;

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_fuse::MountOptions;
use nix::mount::{MntFlags, MsFlags};

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

/// Something that is mounted over a place until this is dropped.
struct Cover(PathBuf);

impl Cover {
    /// A file system in memory. `None` without the right to mount.
    fn new(at: &Path) -> Option<Self> {
        Self::mount(Path::new("cover"), at, Some("tmpfs"), MsFlags::empty())
    }

    /// The files that control FUSE connections.
    fn control(at: &Path) -> Option<Self> {
        Self::mount(Path::new("control"), at, Some("fusectl"), MsFlags::empty())
    }

    /// A file, over another one.
    fn bind(file: &Path, at: &Path) -> Option<Self> {
        Self::mount(file, at, None, MsFlags::MS_BIND)
    }

    fn mount(source: &Path, at: &Path, fs_type: Option<&str>, flags: MsFlags) -> Option<Self> {
        match nix::mount::mount(Some(source), at, fs_type, flags, None::<&str>) {
            Ok(()) => Some(Self(at.to_path_buf())),
            Err(why) => {
                forebay_base::testing::skip("mount", why);
                None
            }
        }
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, MntFlags::MNT_DETACH);
    }
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
