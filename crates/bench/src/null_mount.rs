//! `null-mount`: mounts the null file system, which shows the limit that FUSE sets on a machine.
//!
//! It has names and sizes but no storage, behind the transport that `forebay mount` uses.
//! `scripts/compare-mounts` measures it beside other mounts.

use std::path::PathBuf;

use forebay_fuse::MountOptions;

use crate::options::Failure;

/// Options of `null-mount`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Empty directory to mount at.
    at: PathBuf,
    /// Let the kernel cache content.
    #[arg(long)]
    kernel_cache: bool,
    /// Threads that receive requests.
    #[arg(long)]
    threads: Option<usize>,
}

/// Returns when the file system is unmounted.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    forebay_fuse::available()?;
    let mut options = MountOptions::default();
    options.kernel_cache = args.kernel_cache;
    if let Some(threads) = args.threads {
        options.threads = threads;
    }
    let mount = forebay_fuse::mount_null(&args.at, &options)?;
    println!(
        "mounted the null file system at {at}; `umount {at}` ends it",
        at = mount.path().display()
    );
    match mount.wait() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
