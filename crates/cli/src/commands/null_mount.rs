//! `forebay null-mount`: mounts the null file system in the foreground until it is unmounted.

use forebay_fuse::MountOptions;

use crate::args::NullMountArgs;
use crate::error::Result;
use crate::output;

pub(crate) fn run(args: &NullMountArgs) -> Result<()> {
    forebay_fuse::available()?;
    let stop = output::interruptible()?;
    let mut options = MountOptions::default();
    options.kernel_cache = args.kernel_cache;
    if let Some(threads) = args.threads {
        options.threads = threads;
    }
    let mount = forebay_fuse::mount_null(&args.at, &options)?;
    output::line(&format!("mounted the null file system at {}", mount.path().display()));
    while !mount.wait_timeout(std::time::Duration::from_millis(200)) {
        if output::is_raised(&stop) {
            mount.unmount()?;
        }
    }
    Ok(())
}
