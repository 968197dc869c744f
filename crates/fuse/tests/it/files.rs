//! Tests of files on a pool, through the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::testing::detach_copies;
use forebay_fs::{FileSystem, FsOptions, Owner};
use forebay_fuse::{Mount, MountOptions, mount_info};
use forebay_io::OpenOptions as DeviceOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool, open_path,
};
use tempfile::TempDir;

use crate::{Cover, HANG, names, options, permitted};

/// A pool in a directory, and a mount point.
struct Fixture {
    directory: TempDir,
    cache_bytes: u64,
}

/// A mounted pool.
struct Mounted {
    fs: FileSystem,
    mount: Mount,
}

impl Fixture {
    fn new() -> Self {
        let fixture =
            Self { directory: tempfile::tempdir().expect("a directory"), cache_bytes: 32 << 20 };
        fs::create_dir(fixture.at()).expect("a mount point");
        let file = DeviceOptions { create_bytes: Some(2 << 30), ..DeviceOptions::default() };
        let device = open_path(&fixture.device(), &file).expect("a device");
        let pool = Pool::create(vec![device], &CreateOptions::new("test", fixture.cache()))
            .expect("a pool");
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "main", &DatasetSettings::default(), owner).expect("files");
        pool.export().expect("it is exported");
        fixture
    }

    fn at(&self) -> std::path::PathBuf {
        self.directory.path().join("mnt")
    }

    fn device(&self) -> std::path::PathBuf {
        self.directory.path().join("pool.img")
    }

    fn cache(&self) -> Arc<BlockCache> {
        let options = BlockCacheOptions { bytes: self.cache_bytes, ..BlockCacheOptions::default() };
        BlockCache::new(options).expect("a cache")
    }

    fn mount(&self, kernel_cache: bool) -> Mounted {
        self.mount_with(kernel_cache, &FsOptions::default())
    }

    fn mount_with(&self, kernel_cache: bool, files: &FsOptions) -> Mounted {
        self.mount_as(&options(kernel_cache), files)
    }

    fn mount_as(&self, options: &MountOptions, files: &FsOptions) -> Mounted {
        let device = open_path(&self.device(), &DeviceOptions::default()).expect("the device");
        let pool = Pool::import(vec![device], &ImportOptions::new(self.cache())).expect("the pool");
        let fs = FileSystem::open_in(Arc::new(pool), "main", files).expect("files");
        let mount = forebay_fuse::mount(fs.clone(), &self.at(), options).expect("a mount");
        Mounted { fs, mount }
    }
}

impl Mounted {
    /// Unmounts, audits the files, closes and exports.
    fn end(self) {
        self.mount.unmount().expect("it unmounts");
        let stats = self.mount.stats();
        assert_eq!(stats.last_failure, None);
        let audit = self.fs.audit().expect("an audit");
        assert!(audit.is_clean(), "{audit:?}");
        self.close();
    }

    fn close(self) {
        let pool = self.fs.pool().clone();
        drop(self.mount);
        self.fs.close().expect("it is closed");
        drop(self.fs);
        Arc::into_inner(pool).expect("the last reference").export().expect("it is exported");
    }
}

/// `FUSE_DIRECT_IO_ALLOW_MMAP`, which kernels before Linux 6.6 do not offer.
const DIRECT_MMAP: u64 = 1 << 36;

/// Writes `content` through a shared mapping of a file of at least that length, and syncs it.
fn write_mapped(file: &File, content: &[u8]) -> std::io::Result<()> {
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is long enough; it is unmapped below.
    unsafe {
        let null = std::ptr::null_mut();
        let map = libc::mmap(null, content.len(), access, shared, file.as_raw_fd(), 0);
        if map == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        map.cast::<u8>().copy_from_nonoverlapping(content.as_ptr(), content.len());
        let synced = libc::msync(map, content.len(), libc::MS_SYNC);
        libc::munmap(map, content.len());
        if synced == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

#[test]
fn shared_mappings_work_on_kernels_without_direct_mappings() {
    if !permitted() {
        return;
    }
    for ignored_features in [0, DIRECT_MMAP] {
        let fixture = Fixture::new();
        let at = fixture.at();
        let mut options = options(false);
        options.ignored_features = ignored_features;
        let mounted = fixture.mount_as(&options, &FsOptions::default());
        // One file is created here, and the other one opened.
        let path = at.join("file");
        fs::write(&path, pattern(0, 200_000)).expect("a file");
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("new"));
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        for file in [made.expect("a file"), opened.expect("the file")] {
            file.set_len(200_000).expect("its length");
            write_mapped(&file, &[9; 10_000]).expect("a shared mapping");
            // A write of the file and one through the mapping do not undo each other.
            file.write_all_at(&[8; 5000], 8000).expect("a write");
            let mut found = vec![0; 13_000];
            file.read_exact_at(&mut found, 0).expect("its content");
            assert_eq!(found, [vec![9; 8000], vec![8; 5000]].concat());
            // The server has the write, not only the kernel.
            let ino = file.metadata().expect("its number").ino();
            let mut server = Vec::new();
            let (number, handle) = (forebay_fs::Ino(ino), forebay_fs::Handle(ino));
            let read =
                mounted.fs.read(number, handle, 0, 13_000, &mut |bytes| server = bytes.to_vec());
            read.expect("a read");
            assert_eq!(server, found);
        }
        mounted.end();
        let mounted = fixture.mount(false);
        let mut wanted = pattern(0, 200_000);
        wanted[..13_000].copy_from_slice(&[vec![9; 8000], vec![8; 5000]].concat());
        assert!(fs::read(&path).expect("the file") == wanted, "{ignored_features}");
        mounted.end();
    }
}

/// Content that depends on the offset.
fn pattern(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(|at| (at / 7 % 251) as u8).collect()
}

fn make_tree(at: &Path) {
    fs::create_dir(at.join("directory")).expect("a directory");
    for n in 0..300 {
        fs::write(at.join("directory").join(format!("file{n}")), format!("content of {n}"))
            .expect("a file");
    }
    fs::write(at.join("large"), pattern(0, 3_000_000)).expect("a large file");
    fs::hard_link(at.join("large"), at.join("link")).expect("a link");
    symlink("directory/file7", at.join("symlink")).expect("a symbolic link");
    fs::set_permissions(at.join("large"), fs::Permissions::from_mode(0o640)).expect("its mode");
    fs::rename(at.join("directory/file0"), at.join("moved")).expect("a rename");
    fs::rename(at.join("directory/file1"), at.join("directory/file2"))
        .expect("a rename over another");
    fs::remove_file(at.join("directory/file3")).expect("a removal");
    let file = OpenOptions::new().append(true).open(at.join("moved")).expect("open");
    (&file).write_all(b" and more").expect("an append");
    file.sync_all().expect("a sync");
}

fn check_tree(at: &Path) {
    let there = names(&at.join("directory"));
    assert_eq!(there.len(), 297);
    assert!(!there.contains(&"file3".to_owned()));
    assert_eq!(fs::read(at.join("directory/file2")).expect("a file"), b"content of 1");
    assert_eq!(fs::read(at.join("symlink")).expect("through the link"), b"content of 7");
    assert_eq!(fs::read(at.join("moved")).expect("a file"), b"content of 0 and more");
    assert_eq!(fs::read(at.join("link")).expect("a large file"), pattern(0, 3_000_000));
    let metadata = fs::metadata(at.join("large")).expect("its attributes");
    assert_eq!((metadata.nlink(), metadata.mode() & 0o7777, metadata.len()), (2, 0o640, 3_000_000));
    assert_eq!(
        fs::metadata(at.join("directory/file3")).expect_err("it is gone").raw_os_error(),
        Some(libc::ENOENT)
    );
}

#[test]
fn a_tree_is_the_same_after_a_remount_in_either_mode() {
    if !permitted() {
        return;
    }
    for kernel_cache in [false, true] {
        let fixture = Fixture::new();
        let mounted = fixture.mount(kernel_cache);
        make_tree(&fixture.at());
        check_tree(&fixture.at());
        mounted.end();
        assert_eq!(names(&fixture.at()), Vec::<String>::new());
        let mounted = fixture.mount(!kernel_cache);
        check_tree(&fixture.at());
        mounted.end();
    }
}

#[test]
fn ranges_of_a_file_are_seen_truncated_punched_and_sparse() {
    if !permitted() {
        return;
    }
    let fixture = Fixture::new();
    let mounted = fixture.mount(false);
    let path = fixture.at().join("file");
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.write_all(&pattern(0, 1 << 20)).expect("a write");
    // SAFETY: the descriptor is open, and the call takes only integers.
    let punched = unsafe {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        libc::fallocate(file.as_raw_fd(), mode, 256 << 10, 512 << 10)
    };
    assert_eq!(punched, 0);
    let mut expected = pattern(0, 1 << 20);
    expected[256 << 10..768 << 10].fill(0);
    let mut found = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("a seek");
    file.read_to_end(&mut found).expect("a read");
    assert!(found == expected);
    // SAFETY: the descriptor is open, and the call takes only integers.
    let hole = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    assert_eq!(hole, 256 << 10);
    // SAFETY: the descriptor is open, and the call takes only integers.
    let data = unsafe { libc::lseek(file.as_raw_fd(), hole, libc::SEEK_DATA) };
    assert_eq!(data, 768 << 10);
    file.set_len(5).expect("shorter");
    file.write_at(b"end", (1 << 32) - 3).expect("far out");
    let metadata = file.metadata().expect("its attributes");
    assert_eq!(metadata.len(), 1 << 32);
    assert!(metadata.blocks() < 10_000, "{} blocks", metadata.blocks());
    let mut word = [1; 8];
    file.read_exact_at(&mut word, 2).expect("a read");
    assert_eq!(word, [&pattern(0, 5)[2..], &[0; 5]].concat()[..]);
    drop(file);
    mounted.end();
}

#[test]
fn block_counts_are_updated_after_write_out() {
    if !permitted() {
        return;
    }
    let fixture = Fixture::new();
    let mounted = fixture.mount(false);
    let path = fixture.at().join("zeros");
    let blocks = || fs::metadata(&path).expect("its attributes").blocks();
    fs::write(&path, [0; 100_000]).expect("a file");
    // The kernel caches the estimate, unless the transaction group was written just now.
    blocks();
    mounted.fs.pool().sync().expect("the group is written");
    let until = Instant::now() + Duration::from_secs(60);
    while blocks() > 0 {
        assert!(Instant::now() < until, "{} blocks, for nothing but zeros", blocks());
        std::thread::sleep(Duration::from_millis(50));
    }
    mounted.end();
}

#[test]
fn an_unlinked_file_is_there_until_it_is_closed() {
    if !permitted() {
        return;
    }
    let fixture = Fixture::new();
    let mounted = fixture.mount(false);
    let path = fixture.at().join("file");
    fs::write(&path, pattern(0, 100_000)).expect("a file");
    let file = File::open(&path).expect("open");
    fs::remove_file(&path).expect("a removal");
    assert!(!path.exists());
    let mut found = vec![0; 100_000];
    file.read_exact_at(&mut found, 0).expect("it is still there");
    assert_eq!(found, pattern(0, 100_000));
    assert_eq!(file.metadata().expect("its attributes").nlink(), 0);
    drop(file);
    mounted.end();
}

/// Reads far more than fits into the cache, so that reads wait for the device. The mount has few
/// threads, and none of them blocks.
#[test]
fn reads_that_miss_wait_concurrently() {
    if !permitted() {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.cache_bytes = 16 << 20;
    let mounted = fixture.mount(false);
    fs::write(fixture.at().join("file"), pattern(0, 64 << 20)).expect("a file");
    mounted.end();
    let mounted = fixture.mount(false);
    let path = fixture.at().join("file");
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let path = &path;
            scope.spawn(move || {
                let file = File::open(path).expect("open");
                let mut block = vec![0; 8192];
                for n in 0..300 {
                    let at = (n * 7919 + reader * 104_729) % 8192 * 8192;
                    file.read_exact_at(&mut block, at).expect("a read");
                    assert_eq!(block, pattern(at, 8192));
                }
            });
        }
    });
    let stats = mounted.mount.stats();
    let blocked =
        stats.counters.iter().find(|cell| cell.name == "would_block" && cell.label == Some("read"));
    assert!(blocked.is_some_and(|cell| cell.value > 0));
    mounted.end();
}

#[test]
fn several_threads_in_one_directory_keep_it_consistent() {
    if !permitted() {
        return;
    }
    for kernel_cache in [false, true] {
        let fixture = Fixture::new();
        let mounted = fixture.mount(kernel_cache);
        let at = fixture.at();
        std::thread::scope(|scope| {
            for thread in 0..6u32 {
                let at = &at;
                scope.spawn(move || {
                    for n in 0..150 {
                        let mine = at.join(format!("t{thread}-{n}"));
                        fs::write(&mine, vec![thread as u8; n * 37]).expect("a file");
                        // Names that all threads use: each operation may fail.
                        let _ = fs::rename(&mine, at.join(format!("shared{}", n % 7)));
                        let _ = fs::hard_link(
                            at.join(format!("shared{}", n % 5)),
                            at.join(format!("link{}", n % 3)),
                        );
                        let _ = fs::remove_file(at.join(format!("link{}", (n + 1) % 3)));
                        let _ = fs::create_dir(at.join(format!("dir{}", n % 4)));
                        let _ = fs::remove_dir(at.join(format!("dir{}", (n + 2) % 4)));
                        let _ = fs::read_dir(at).map(Iterator::count);
                    }
                });
            }
        });
        for n in 0..7 {
            let content = fs::read(at.join(format!("shared{n}"))).expect("one of them won");
            assert!(content.iter().all(|byte| *byte == content[0]), "a mixture of two files");
        }
        mounted.end();
    }
}

/// The kernel caches inodes while it has memory. The memory for them here is bounded.
#[test]
fn the_shrinker_limits_memory_of_inodes() {
    if !permitted() {
        return;
    }
    let fixture = Fixture::new();
    let files = FsOptions { memory_bytes: 256 << 10, ..FsOptions::default() };
    let mounted = fixture.mount_with(false, &files);
    let held = fixture.at().join("held");
    fs::write(&held, "held").expect("a file");
    let open = File::open(&held).expect("open");
    for n in 0..4000 {
        fs::write(fixture.at().join(format!("file{n}")), "").expect("a file");
    }
    let end = Instant::now() + HANG;
    while mounted.fs.stats().inode_bytes > files.memory_bytes {
        assert!(Instant::now() < end, "it does not forget: {:?}", mounted.fs.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
    let forgotten = mounted.mount.stats();
    assert!(forgotten.counters.iter().any(|cell| cell.name == "invalidated" && cell.value > 0));
    // All names can be looked up again, and the open file was left alone.
    assert_eq!(names(&fixture.at()).len(), 4001);
    assert_eq!(fs::metadata(fixture.at().join("file77")).expect("it is there").len(), 0);
    assert_eq!(open.metadata().expect("its attributes").len(), 4);
    assert_eq!(
        fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).expect("its path"),
        held
    );
    drop(open);
    mounted.end();
}

/// A mount namespace with a file mounted over another one, until this is dropped.
struct Elsewhere(Child);

impl Elsewhere {
    /// `at` is in the mount at `mounted`. `None` without `unshare` or the right to use it.
    fn bind(file: &Path, at: &Path, mounted: &Path) -> Option<Self> {
        let script = "mount --bind \"$0\" \"$1\" && echo ready && read line && cat \"$1\"";
        let script = detach_copies("fuse.forebay", Some(mounted)) + script;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).args([file, at]);
        let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(why) => {
                forebay_base::testing::skip("unshare", why);
                return None;
            }
        };
        let mut ready = [0; 6];
        match child.stdout.as_mut().expect("a pipe").read_exact(&mut ready) {
            Ok(()) => Some(Self(child)),
            Err(_) => {
                forebay_base::testing::skip("unshare", "it cannot mount");
                child.wait().expect("it ended");
                None
            }
        }
    }

    /// What it sees there.
    fn content(mut self) -> String {
        let mut content = String::new();
        self.0.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
        let output = self.0.stdout.as_mut().expect("a pipe");
        output.read_to_string(&mut content).expect("its output");
        content
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel detaches what is mounted on a file whose name it forgets.
#[test]
fn the_shrinker_leaves_mounts_on_files_alone() {
    if !permitted() {
        return;
    }
    let fixture = Fixture::new();
    let (outside, directory) = (fixture.directory.path().join("outside"), fixture.at().join("d"));
    fs::write(&outside, "outside").expect("a file");
    // All that can be forgotten is.
    let mounted = fixture.mount_with(false, &FsOptions { memory_bytes: 1, ..Default::default() });
    fs::create_dir(&directory).expect("a directory");
    for name in ["d/here", "d/there", "here", "there"] {
        fs::write(fixture.at().join(name), "inside").expect("a file");
    }
    let here = Cover::bind(&outside, &directory.join("here"));
    let there = here
        .as_ref()
        .and_then(|_| Elsewhere::bind(&outside, &directory.join("there"), mounted.mount.path()));
    let (Some(here), Some(there)) = (here, there) else { return mounted.end() };
    // In the second round, the names of the first one have been forgotten for certain.
    for round in 0..3 {
        fs::write(fixture.at().join(format!("{round}")), "").expect("a file");
        let end = Instant::now() + HANG;
        // The two directories and the two mount points stay.
        while mounted.fs.stats().inodes > 4 {
            assert!(Instant::now() < end, "it does not forget: {:?}", mounted.fs.stats());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let read = |name: &str| fs::read_to_string(directory.join(name)).expect("it is there");
    assert_eq!((&*read("here"), &*there.content()), ("outside", "outside"));
    assert_eq!(read("there"), "inside", "here nothing is mounted on it");
    drop(here);
    assert_eq!(read("here"), "inside");
    mounted.end();
}

#[test]
fn an_aborted_connection_leaves_no_mount() {
    if !permitted() {
        return;
    }
    let fixture = Fixture::new();
    let mounted = fixture.mount(false);
    fs::write(fixture.at().join("file"), "content").expect("a file");
    let device = fs::metadata(fixture.at()).expect("its attributes").dev();
    let control = tempfile::tempdir().expect("a directory");
    let Some(_control) = Cover::control(control.path()) else { return mounted.end() };
    let cut = control.path().join(format!("{}/abort", device & 0xff | device >> 12 & 0xfff00));
    fs::write(&cut, "1").expect("it is cut off");
    mounted.mount.wait();
    assert_eq!(mount_info(&fixture.at()).expect("the table"), None);
    mounted.close();
    let mounted = fixture.mount(false);
    assert_eq!(fs::read(fixture.at().join("file")).expect("it is there"), b"content");
    mounted.end();
}
