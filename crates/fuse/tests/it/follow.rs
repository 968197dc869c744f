//! Tests of mounts that follow a pool: each transaction group is a copy of its device.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_fs::{Caller, FileKind, FileSystem, FsOptions, Ino, NewNode, Owner};
use forebay_fuse::{Group, Groups, Mount, mount_following};
use forebay_io::OpenOptions as DeviceOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool, open_path,
};
use tempfile::TempDir;

use crate::{HANG, names, options, permitted};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A pool that is written here, and followed at a mount.
struct Followed {
    directory: TempDir,
    writer: FileSystem,
    cache: Arc<BlockCache>,
    groups: usize,
}

impl Followed {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("mnt")).expect("a mount point");
        let options = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
        let cache = BlockCache::new(options).expect("a cache");
        let file = DeviceOptions { create_bytes: Some(64 << 20), ..DeviceOptions::default() };
        let device = open_path(&directory.path().join("pool.img"), &file).expect("a device");
        let options = CreateOptions::new("test", Arc::clone(&cache));
        let pool = Pool::create(vec![device], &options).expect("a pool");
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "main", &DatasetSettings::default(), owner).expect("files");
        let writer = FileSystem::open_in(Arc::new(pool), "main", &FsOptions::default());
        Self { directory, writer: writer.expect("files"), cache, groups: 0 }
    }

    fn at(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// Makes the directory `directory`.
    fn make_directory(&self) {
        let kind = FileKind::Directory;
        let node = NewNode { kind, mode: 0o755, rdev: 0, target: None };
        self.writer.make(Ino::ROOT, b"directory", &node, ME).expect("mkdir");
    }

    /// Makes what was written durable, and imports a copy of it.
    fn group(&mut self) -> Group {
        self.group_with(|| false)
    }

    fn group_with(&mut self, outdated: impl Fn() -> bool + Send + Sync + 'static) -> Group {
        // Times that it has not stored yet would change a file once more.
        self.writer.wait_for_reclaim();
        self.writer.pool().sync().expect("a transaction group");
        self.groups += 1;
        let copy = self.directory.path().join(format!("group{}.img", self.groups));
        fs::copy(self.directory.path().join("pool.img"), &copy).expect("a copy");
        let device = DeviceOptions { read_only: true, ..DeviceOptions::default() };
        let device = open_path(&copy, &device).expect("a device");
        let options = ImportOptions {
            read_only: true,
            pause: Some(Arc::new(|_| ())),
            ..ImportOptions::new(Arc::clone(&self.cache))
        };
        let pool = Arc::new(Pool::import(vec![device], &options).expect("the pool"));
        let txg = pool.stats().synced_txg;
        let fs = FileSystem::open_in(pool, "main", &FsOptions::default()).expect("files");
        Group::new(fs, txg, outdated)
    }

    fn mount(&mut self) -> (Arc<Groups>, Mount) {
        let groups = Groups::new(self.group());
        let mount = mount_following(Arc::clone(&groups), &self.at(), &options(false));
        (groups, mount.expect("a mount"))
    }

    /// Writes a file as a whole, in place.
    fn write(&self, name: &str, content: &[u8]) {
        let fs = &self.writer;
        let (ino, handle) = match fs.lookup(Ino::ROOT, name.as_bytes()) {
            Ok(entry) => (entry.attr.ino, fs.open(entry.attr.ino, Some(ME)).expect("open")),
            Err(_) => {
                let made = fs.create(Ino::ROOT, name.as_bytes(), 0o644, ME).expect("create");
                (made.0.attr.ino, made.1)
            }
        };
        fs.write(ino, handle, 0, content, Default::default()).expect("write");
        fs.release(handle);
        fs.forget(ino, 1);
    }
}

/// Waits until the kernel sees it: it keeps names for a second.
fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + HANG;
    while !holds() {
        assert!(Instant::now() < until, "it does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn read_all(file: &File) -> Vec<u8> {
    let mut content = vec![0; 1 << 20];
    let len = file.read_at(&mut content, 0).expect("a read");
    content.truncate(len);
    content
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("a file")
}

#[test]
fn open_files_stay_and_names_are_those_of_the_newest_group() {
    if !permitted() {
        return;
    }
    let mut followed = Followed::new();
    followed.write("changed", &[1; 100_000]);
    followed.write("same", b"same");
    followed.write("deleted", &[3; 50_000]);
    let (groups, mount) = followed.mount();
    let at = followed.at();
    assert_eq!(names(&at), ["changed", "deleted", "same"]);
    let (changed, same) = (File::open(at.join("changed")), File::open(at.join("same")));
    let (changed, same) = (changed.expect("open"), same.expect("open"));
    let deleted = File::open(at.join("deleted")).expect("open");
    // A part is in the kernel's cache, the rest is not.
    changed.read_exact_at(&mut [0; 4096], 0).expect("a read");

    followed.write("changed", &[2; 70_000]);
    followed.write("new", b"new");
    followed.writer.unlink(Ino::ROOT, b"deleted").expect("unlink");
    groups.advance(followed.group());
    wait_until(|| names(&at) == ["changed", "new", "same"]);
    wait_until(|| read(&at.join("changed")) == vec![2; 70_000]);
    assert_eq!(read(&at.join("new")), b"new");
    wait_until(|| !at.join("deleted").exists());
    // Both versions at once, each with its own pages and attributes, and one inode number.
    assert_eq!(read_all(&changed), vec![1; 100_000]);
    let newest = File::open(at.join("changed")).expect("open");
    assert_eq!(read_all(&newest), vec![2; 70_000]);
    let (old, new) = (changed.metadata().expect("stat"), newest.metadata().expect("stat"));
    assert_eq!((old.len(), new.len()), (100_000, 70_000));
    assert_eq!(old.ino(), new.ino());
    assert_eq!(read_all(&deleted), vec![3; 50_000]);

    // Groups are kept for those two files, and not for the one that is the same.
    for _ in 0..3 {
        followed.write("tick", b"tick");
        groups.advance(followed.group());
    }
    assert_eq!(groups.len(), 3, "the newest, the one before, and the one of open files");
    assert_eq!(read_all(&same), b"same");
    drop((changed, deleted));
    wait_until(|| {
        groups.drop_unused();
        groups.len() == 1
    });
    assert_eq!(read_all(&newest), vec![2; 70_000]);
    assert_eq!(read_all(&same), b"same");
    drop((newest, same));
    mount.unmount().expect("unmount");
    groups.close();
}

#[test]
fn open_directories_move_on_and_the_number_of_groups_is_bounded() {
    if !permitted() {
        return;
    }
    let mut followed = Followed::new();
    followed.make_directory();
    followed.write("log", b"0");
    let (groups, mount) = followed.mount();
    let at = followed.at();
    let (directory, root) = (fs::read_dir(at.join("directory")), fs::read_dir(&at));
    let (directory, root) = (directory.expect("a directory"), root.expect("a directory"));
    followed.write("new", b"new");
    groups.advance(followed.group());
    wait_until(|| {
        groups.drop_unused();
        // That of the root directory as it was.
        groups.len() == 2
    });
    assert_eq!(root.count(), 2, "an open directory stays as it was");
    wait_until(|| {
        groups.drop_unused();
        groups.len() == 1
    });
    assert_eq!(directory.count(), 0);

    let mut logs = Vec::new();
    for count in 1..20 {
        let content = vec![b'1'; count];
        followed.write("log", &content);
        groups.advance(followed.group());
        fs::remove_file(followed.directory.path().join(format!("group{}.img", followed.groups)))
            .expect("the copy");
        wait_until(|| fs::metadata(at.join("log")).is_ok_and(|log| log.len() == count as u64));
        logs.push(File::open(at.join("log")).expect("open"));
    }
    assert_eq!(groups.len(), 16);
    let error = logs[0].read_at(&mut [0; 100], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
    assert_eq!(read_all(&logs[10]), vec![b'1'; 11]);
    assert_eq!(read_all(&logs[18]), vec![b'1'; 19]);
    drop(logs);
    mount.unmount().expect("unmount");
    groups.close();
}

#[test]
fn what_is_gone_is_stale() {
    if !permitted() {
        return;
    }
    let mut followed = Followed::new();
    followed.make_directory();
    followed.write("file", b"one");
    let (groups, mount) = followed.mount();
    let at = followed.at();
    let directory = File::open(at.join("directory")).expect("open");
    followed.writer.rmdir(Ino::ROOT, b"directory").expect("rmdir");
    groups.advance(followed.group());
    wait_until(|| match directory.metadata() {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
            true
        }
    });
    let error = fs::write(at.join("file"), b"two").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    drop(directory);
    mount.unmount().expect("unmount");
    groups.close();
}

#[test]
fn reads_of_what_the_writer_has_freed_are_stale_until_the_next_group() {
    if !permitted() {
        return;
    }
    let mut followed = Followed::new();
    followed.write("file", &[7; 300_000]);
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    let first = followed.group_with(move || is_lost.load(Ordering::Relaxed));
    let groups = Groups::new(first);
    let at = followed.at();
    let mount = mount_following(Arc::clone(&groups), &at, &options(false)).expect("a mount");
    let mut file = File::open(at.join("file")).expect("open");
    // The device of the group loses everything, as a store does whose owner has deleted it.
    followed.cache.cache().clear();
    let copy = followed.directory.path().join("group1.img");
    File::options().write(true).open(copy).expect("the copy").set_len(0).expect("cut");
    lost.store(true, Ordering::Relaxed);
    let error = file.read(&mut [0; 4096]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
    followed.write("file", &[8; 300_000]);
    groups.advance(followed.group());
    wait_until(|| fs::read(at.join("file")).is_ok_and(|content| content == vec![8; 300_000]));
    drop(file);
    mount.unmount().expect("unmount");
    groups.close();
}
