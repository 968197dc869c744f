//! Sector sizes: the defaults of files, and copies of a pool on media with other sectors.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use forebay_io::{Device, FileDevice, OpenOptions};
use forebay_pool::inspect::Inspector;
use forebay_pool::{CreateOptions, ImportOptions, Pool, open_path};

use crate::common::{cache, check, create_options, dataset, import_options};

const BYTES: u64 = 64 << 20;

/// A loop device over a file, or `None` if there is none to be had.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path, sector_bytes: u32) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector_bytes.to_string()])
            .arg(file)
            .output()
            .ok()
            .filter(|output| output.status.success());
        let Some(made) = made else {
            forebay_base::testing::skip("loop", "no loop device to be had");
            return None;
        };
        Some(Self(String::from_utf8(made.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    (folder, path)
}

/// As [`file`], or `None` where files have larger sectors than 512 bytes, as in a tmpfs.
fn file_with_small_sectors() -> Option<(tempfile::TempDir, PathBuf)> {
    let (folder, path) = file();
    let device = FileDevice::open(&path, &OpenOptions::default()).unwrap();
    let bytes = device.info().sector_bytes;
    if bytes > 512 {
        let why = format!("files in {} have sectors of {bytes} bytes", folder.path().display());
        forebay_base::testing::skip("sectors", why);
        return None;
    }
    Some((folder, path))
}

fn create(path: &Path, sector_bytes: Option<u32>) -> Pool {
    let options = CreateOptions { sector_bytes, ..create_options(&cache(32 << 20)) };
    let opened = open_path(path, &OpenOptions::default()).unwrap();
    Pool::create(vec![opened], &options).unwrap()
}

fn import(path: &Path, read_only: bool) -> Pool {
    let open = OpenOptions { read_only, ..OpenOptions::default() };
    let options = ImportOptions { read_only, ..import_options(&cache(32 << 20)) };
    Pool::import(vec![open_path(path, &open).unwrap()], &options).unwrap()
}

/// Creates objects, some of them by the intent log alone, and exports the pool.
fn work(pool: Pool, fill: u8) {
    fsync(&pool, fill);
    check(&pool);
    pool.export().unwrap();
}

/// Creates objects, some of them by the intent log alone.
fn fsync(pool: &Pool, fill: u8) {
    let data = match pool.dataset("data") {
        Ok(data) => data,
        Err(_) => dataset(pool),
    };
    for round in 0..3u8 {
        let tx = pool.begin().unwrap();
        let object = data.create_object(&tx, &[]).unwrap();
        data.object(object).unwrap().write(&tx, 0, &vec![fill + round; 5000]).unwrap();
        drop(tx);
        data.fsync(object).unwrap();
    }
}

/// The fills of the objects that [`work`] has made.
fn fills(pool: &Pool) -> Vec<u8> {
    let data = pool.dataset("data").unwrap();
    let numbers = (1..64).filter_map(|number| data.object(number).ok());
    let fills = numbers.map(|object| {
        let mut out = vec![0; 5000];
        assert_eq!(object.read(0, &mut out).unwrap(), 5000);
        assert!(out.iter().all(|byte| *byte == out[0]));
        out[0]
    });
    fills.collect()
}

#[test]
fn a_pool_on_a_file_has_sectors_of_4096_bytes() {
    let (_folder, path) = file();
    let pool = create(&path, None);
    assert_eq!(pool.sector_bytes(), 4096);
    drop(pool);
    let Some((_folder, path)) = file_with_small_sectors() else { return };
    assert_eq!(create(&path, Some(512)).sector_bytes(), 512);
}

#[test]
fn an_image_with_small_sectors_works_on_a_disk_with_large_ones() {
    let Some((_folder, path)) = file_with_small_sectors() else { return };
    work(create(&path, Some(512)), 10);
    let Some(disk) = Loop::over(&path, 4096) else { return };
    let pool = import(&disk.0, true);
    assert_eq!(fills(&pool), [10, 11, 12]);
    drop(pool);
    let pool = import(&disk.0, false);
    let about = pool.devices().remove(0);
    let why = about.buffered.expect("it is not direct");
    assert!(why.contains("smaller than those of the medium, 4096 bytes"), "{why}");
    assert_eq!((about.direct, about.physical_bytes, pool.sector_bytes()), (false, 4096, 512));
    work(pool, 20);
    let views = Inspector::open(&[&disk.0]).unwrap();
    assert!(!views.labels().is_empty());
    drop(views);
    drop(disk);
    assert_eq!(fills(&import(&path, false)), [10, 11, 12, 20, 21, 22]);
}

/// What an fsync has promised is on the medium, and not in the cache of the block device alone.
#[test]
fn an_fsync_reaches_the_medium_of_an_image_with_small_sectors() {
    let Some((_folder, path)) = file_with_small_sectors() else { return };
    work(create(&path, Some(512)), 10);
    let Some(disk) = Loop::over(&path, 4096) else { return };
    let pool = import(&disk.0, false);
    assert!(!pool.devices()[0].direct);
    // The last close of a block device writes its cache. This one is not the last.
    let _other = File::open(&disk.0).unwrap();
    fsync(&pool, 20);
    // The medium, as a power cut would leave it: the pool is in use.
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    let opened = open_path(&copy, &OpenOptions::default()).unwrap();
    let options =
        ImportOptions { pause: Some(Arc::new(|_| {})), ..import_options(&cache(32 << 20)) };
    let crashed = Pool::import(vec![opened], &options).unwrap();
    assert_eq!(fills(&crashed), [10, 11, 12, 20, 21, 22]);
    pool.export().unwrap();
}

#[test]
fn an_image_with_large_sectors_works_on_a_disk_with_small_ones() {
    let (_folder, path) = file();
    {
        let Some(disk) = Loop::over(&path, 4096) else { return };
        let pool = create(&disk.0, None);
        assert_eq!(pool.sector_bytes(), 4096);
        assert!(pool.devices()[0].direct);
        work(pool, 10);
        let refused = open_path(&disk.0, &OpenOptions::default()).map(|opened| {
            let small = CreateOptions {
                sector_bytes: Some(512),
                force: true,
                ..create_options(&cache(32 << 20))
            };
            Pool::create(vec![opened], &small).map(drop).unwrap_err().to_string()
        });
        let refused = refused.unwrap();
        assert!(refused.contains("has sectors of 4096 bytes"), "{refused}");
    }
    let Some(disk) = Loop::over(&path, 512) else { return };
    let pool = import(&disk.0, false);
    assert!(pool.devices()[0].direct);
    assert_eq!(fills(&pool), [10, 11, 12]);
    work(pool, 20);
    assert_eq!(fills(&import(&disk.0, false)), [10, 11, 12, 20, 21, 22]);
}
