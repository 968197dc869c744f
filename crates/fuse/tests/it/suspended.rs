//! A mount whose pool is suspended.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_fs::{FileSystem, FsOptions, Ino, Owner};
use forebay_fuse::{Mount, MountError, MountOptions};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};
use forebay_pool::format::FailMode;
use forebay_pool::{BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, Pool};
use tempfile::TempDir;

use crate::{Cover, HANG, options, permitted};

/// A mounted pool whose device can fail.
struct Mounted {
    // The first field, so that a test that fails does not remove files of the mount.
    mount: Mount,
    at: TempDir,
    faults: Arc<FaultDevice>,
    fs: FileSystem,
    cache: Arc<BlockCache>,
}

impl Mounted {
    fn new(fail_mode: FailMode) -> Self {
        Self::with(fail_mode, &options(false))
    }

    fn with(fail_mode: FailMode, options: &MountOptions) -> Self {
        let mounted = Self::healthy(fail_mode, options);
        mounted.faults.add(Rule::new(Fault::Error(libc::EIO)).on(Op::Write));
        mounted.fs.pool().sync().expect_err("a device that takes no writes");
        mounted
    }

    /// Its pool is not suspended.
    fn healthy(fail_mode: FailMode, options: &MountOptions) -> Self {
        let memory = MemoryDevice::new("memory", 64 << 20, &MemoryOptions::default());
        let faults = Arc::new(FaultDevice::new(Arc::new(memory.expect("memory")), 1));
        let cache = BlockCacheOptions { bytes: 32 << 20, ..BlockCacheOptions::default() };
        let cache = BlockCache::new(cache).expect("a cache");
        let create = CreateOptions::new("test", Arc::clone(&cache));
        let device = Arc::clone(&faults) as Arc<dyn Device>;
        let pool = Pool::create(vec![device.into()], &create).expect("a pool");
        let settings = DatasetSettings { fail_mode, ..DatasetSettings::default() };
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, "main", &settings, owner).expect("files");
        let fs = FileSystem::open_in(Arc::new(pool), "main", &FsOptions::default());
        let (fs, at) = (fs.expect("files"), tempfile::tempdir().expect("a directory"));
        let mount = forebay_fuse::mount(fs.clone(), at.path(), options).expect("a mount");
        fs::write(at.path().join("file"), "content").expect("a file");
        fs::write(at.path().join("large"), "").expect("a file");
        fs.pool().sync().expect("a commit");
        Self { at, faults, fs, cache, mount }
    }

    /// Takes the device away, after all blocks have left memory.
    fn pull(&self) {
        self.fs.pool().sync().expect("a commit");
        self.cache.cache().clear();
        self.faults.add(Rule::new(Fault::Error(libc::ENODEV)));
    }

    /// A process that reads a block of a file, by its number.
    fn reader(&self, name: &str, block: u64) -> Child {
        let from = format!("if={}", self.at.path().join(name).display());
        let mut reader = Command::new("dd");
        reader.args([&from, "bs=4096", "count=1", &format!("skip={block}")]);
        reader.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a process")
    }

    fn read(&self) -> String {
        fs::read_to_string(self.at.path().join("file")).expect("it reads")
    }

    /// A process that writes to the file and syncs it.
    fn writer(&self) -> Child {
        let to = format!("of={}", self.at.path().join("file").display());
        let mut writer = Command::new("dd");
        writer.args(["if=/dev/zero", &to, "bs=1", "count=1", "conv=notrunc,fsync"]);
        writer.stderr(Stdio::null()).spawn().expect("a process")
    }

    fn wait_for_waiters(&self, count: u64) {
        let waits = || {
            let counters = self.fs.stats().counters;
            counters.iter().find(|row| row.0 == "suspension_waits").expect("a counter").2
        };
        let end = Instant::now() + HANG;
        while waits() < count {
            assert!(Instant::now() < end, "{} of {count} changes wait", waits());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(self) {
        self.faults.clear();
        self.fs.pool().clear().expect("the device works");
        self.mount.unmount().expect("it unmounts");
        let pool = self.fs.pool().clone();
        drop(self.mount);
        self.fs.close().expect("it is closed");
        drop(self.fs);
        Arc::into_inner(pool).expect("the last reference").export().expect("it is exported");
    }
}

#[test]
fn a_process_that_waits_for_a_suspended_pool_can_be_killed() {
    if !permitted() {
        return;
    }
    let mounted = Mounted::new(FailMode::Wait);
    let (mut killed, mut patient) = (mounted.writer(), mounted.writer());
    mounted.wait_for_waiters(2);
    assert_eq!(mounted.read(), "content");
    // It is in use. Nothing waits for that to change.
    assert!(matches!(mounted.mount.unmount(), Err(MountError::Busy { .. })));
    killed.kill().expect("a process");
    assert_eq!(killed.wait().expect("it ended").signal(), Some(libc::SIGKILL));
    assert!(patient.try_wait().expect("a process").is_none());
    mounted.faults.clear();
    mounted.fs.pool().clear().expect("the device works");
    assert!(patient.wait().expect("it ended").success());
    assert_eq!(mounted.read(), "\0ontent");
    mounted.end();
}

/// Nothing was written since, so only the reads notice it.
#[test]
fn readers_wait_for_a_device_that_is_gone_and_can_be_killed() {
    if !permitted() {
        return;
    }
    let mounted = Mounted::healthy(FailMode::Wait, &options(false));
    let content: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(mounted.at.path().join("data"), &content).expect("a file");
    mounted.pull();
    let (patient, mut killed) = (mounted.reader("data", 3), mounted.reader("data", 12));
    mounted.wait_for_waiters(2);
    let end = Instant::now() + HANG;
    while mounted.fs.pool().suspension().is_none() {
        assert!(Instant::now() < end, "nobody learns that the device is gone");
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().expect("a process");
    assert_eq!(killed.wait().expect("it ended").signal(), Some(libc::SIGKILL));
    mounted.faults.clear();
    mounted.fs.pool().clear().expect("the device is back");
    let read = patient.wait_with_output().expect("it ended");
    assert!(read.status.success());
    assert!(read.stdout == content[3 * 4096..4 * 4096]);
    mounted.end();
}

/// Else its new name could be durable before its content. The device works again after that.
#[test]
fn a_rename_fails_if_nobody_knows_whether_its_file_is_dirty() {
    if !permitted() {
        return;
    }
    let mounted = Mounted::healthy(FailMode::Continue, &options(true));
    let directory = mounted.at.path().join("directory");
    fs::create_dir(&directory).expect("a directory");
    for at in 0..300 {
        // More names than fit into the node of the directory.
        fs::write(directory.join(format!("a name that is rather long {at}")), "").expect("a file");
    }
    let name = "a name that is rather long 7";
    // The kernel looks for the target again, in another directory.
    let (from, to) = (directory.join(name), mounted.at.path().join("file"));
    assert!(from.exists() && to.exists());
    let file = fs::File::options().write(true).open(&from).expect("it opens");
    let ino = Ino(fs::metadata(&directory).expect("it is there").ino());
    mounted.pull();
    // As the mount looks for it: first without waiting.
    drop(mounted.fs.non_blocking().peek(ino, name.as_bytes()));
    mounted.fs.peek(ino, name.as_bytes()).expect_err("the name is not in memory");
    let reads = mounted.faults.injected();
    mounted.faults.clear();
    mounted.cache.cache().clear();
    for read in reads {
        let once = Rule::new(Fault::Error(libc::ENODEV)).on(Op::Read).times(1);
        mounted.faults.add(once.within(read.offset..read.offset + read.len));
    }
    let error = fs::rename(&from, &to).expect_err("it may be dirty");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    mounted.faults.clear();
    fs::rename(&from, &to).expect("the device is back");
    drop(file);
    mounted.end();
}

/// Its unmount is refused. So nothing that waits for the pool may end.
#[test]
fn changes_wait_while_another_mount_is_over_theirs() {
    if !permitted() {
        return;
    }
    let mounted = Mounted::new(FailMode::Wait);
    let mut writer = mounted.writer();
    mounted.wait_for_waiters(1);
    if let Some(_cover) = Cover::new(mounted.at.path()) {
        for refused in [mounted.mount.unmount(), mounted.mount.unmount_lazily()] {
            assert!(matches!(refused, Err(MountError::Covered { .. })), "{refused:?}");
        }
    }
    mounted.faults.clear();
    mounted.fs.pool().clear().expect("the device works");
    assert!(writer.wait().expect("it ended").success());
    assert_eq!(mounted.read(), "\0ontent");
    mounted.end();
}

#[test]
fn writers_get_an_error_at_once_with_failmode_continue() {
    if !permitted() {
        return;
    }
    let mounted = Mounted::new(FailMode::Continue);
    assert!(!mounted.writer().wait().expect("it ended").success());
    let file = fs::OpenOptions::new().write(true).open(mounted.at.path().join("file"));
    let file = file.expect("it opens");
    let errors = [file.write_at(b"x", 0).map(drop), file.sync_all()];
    for error in errors {
        assert_eq!(error.expect_err("suspended").raw_os_error(), Some(libc::EIO));
    }
    drop(file);
    assert_eq!(mounted.read(), "content");
    mounted.end();
}

/// More write-back waits than is usually copied, and than there are threads that receive requests.
#[test]
fn reads_go_on_while_the_kernel_writes_back() {
    const WRITES: u64 = 32;
    if !permitted() {
        return;
    }
    let mut options = options(true);
    (options.threads, options.max_waiting_bytes) = (2, 2 << 20);
    let mounted = Mounted::with(FailMode::Wait, &options);
    let to = format!("of={}", mounted.at.path().join("large").display());
    let mut writer = Command::new("dd");
    writer.args(["if=/dev/zero", &to, "bs=1M", &format!("count={WRITES}"), "conv=notrunc,fsync"]);
    let mut writer = writer.stderr(Stdio::null()).spawn().expect("a process");
    mounted.wait_for_waiters(WRITES);
    assert_eq!(mounted.read(), "content");
    mounted.faults.clear();
    mounted.fs.pool().clear().expect("the device works");
    assert!(writer.wait().expect("it ended").success());
    mounted.end();
}

/// Somebody else detaches the mount while a process waits in it.
#[test]
fn waits_end_in_a_mount_that_was_detached_elsewhere() {
    if !permitted() {
        return;
    }
    for lazily in [true, false] {
        let mounted = Mounted::new(FailMode::Wait);
        let mut writer = mounted.writer();
        mounted.wait_for_waiters(1);
        let path = mounted.at.path();
        // As `umount -l` in a shell.
        if !Command::new("umount").arg("-l").arg(path).status().is_ok_and(|ended| ended.success()) {
            forebay_base::testing::skip("umount", "this user may not unmount");
            mounted.faults.clear();
            mounted.fs.pool().clear().expect("the device works");
            assert!(writer.wait().expect("it ended").success());
            return mounted.end();
        }
        assert!(writer.try_wait().expect("a process").is_none(), "a detached mount is served");
        match lazily {
            true => mounted.mount.unmount_lazily().expect("it is detached"),
            false => mounted.mount.unmount().expect("it ends"),
        }
        assert!(!writer.wait().expect("it ended").success());
        assert!(mounted.mount.wait_timeout(HANG));
        mounted.end();
    }
}
