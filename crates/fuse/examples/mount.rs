//! Mounts the files of a pool in the foreground: `mount DEVICE DIRECTORY [--kernel-cache]`.
//!
//! DEVICE is a file. If it does not exist, it is created as a sparse file with a new pool. The
//! mount lasts until DIRECTORY is unmounted. The command `forebay` does the same with a daemon
//! around it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use forebay_fs::{FileSystem, FsOptions, Owner};
use forebay_fuse::MountOptions;
use forebay_io::OpenOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool, open_path,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, directory, rest @ ..] = arguments.as_slice() else {
        return Err("usage: mount DEVICE DIRECTORY [--kernel-cache]".into());
    };
    let device = Path::new(device);
    let cache =
        BlockCache::new(BlockCacheOptions { bytes: 256 << 20, ..BlockCacheOptions::default() })?;
    let pool = if device.exists() {
        Pool::import(vec![open_path(device, &OpenOptions::default())?], &ImportOptions::new(cache))?
    } else {
        let file = OpenOptions { create_bytes: Some(10 << 30), ..OpenOptions::default() };
        let pool =
            Pool::create(vec![open_path(device, &file)?], &CreateOptions::new("example", cache))?;
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "main", &DatasetSettings::default(), owner)?;
        pool
    };
    let pool = Arc::new(pool);
    let fs = FileSystem::open_in(pool.clone(), "main", &FsOptions::default())?;

    let mut options = MountOptions::default();
    options.fs_name = "example/main".to_owned();
    options.kernel_cache = rest.iter().any(|option| option == "--kernel-cache");
    let mount = forebay_fuse::mount(fs.clone(), Path::new(directory), &options)?;
    println!("mounted at {}; stop with `umount`", mount.path().display());
    if let Some(error) = mount.wait() {
        eprintln!("the session broke: {error}");
    }
    for cell in mount.stats().counters.iter().filter(|cell| cell.value > 0) {
        println!("{} {} {}", cell.value, cell.name, cell.label.unwrap_or_default());
    }
    if let Some(failure) = mount.stats().last_failure {
        eprintln!("last failure: {failure}");
    }
    drop(mount);
    fs.close()?;
    drop(fs);
    Arc::into_inner(pool).ok_or("the pool is still in use")?.export()?;
    Ok(())
}
