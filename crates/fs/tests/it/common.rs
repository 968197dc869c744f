//! Fixture: file systems on memory devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_base::clock::Clock;
use forebay_fs::{Caller, Client, FileKind, FileSystem, FsOptions, Handle, Ino, NewNode, Owner};
use forebay_io::{Device, MemoryDevice, MemoryOptions};
use forebay_pool::format::{Compression, FailMode};
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, HostId, ImportOptions, Pool,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ROOT: Ino = Ino::ROOT;
pub(crate) const ME: Caller = Caller { uid: 0, gid: 0, pid: 0 };
pub(crate) const NAME: &str = "files";

/// A device with a file system, and a cache.
pub(crate) struct Fixture {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cache: Arc<BlockCache>,
}

impl Fixture {
    /// An empty file system with records of 8 KiB, whose changes fail while the pool is suspended.
    pub(crate) fn new(bytes: u64) -> Self {
        Self::on(memory(bytes))
    }

    pub(crate) fn on(device: Arc<dyn Device>) -> Self {
        let fixture = Self::of(device);
        let options = CreateOptions {
            host: host(),
            seed: Some(7),
            ..CreateOptions::new("tank", Arc::clone(&fixture.cache))
        };
        let pool =
            Pool::create(vec![Arc::clone(&fixture.device).into()], &options).expect("a pool");
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: 8192,
            fail_mode: FailMode::Continue,
            ..DatasetSettings::default()
        };
        let owner = Owner { uid: 0, gid: 0, mode: 0o755 };
        FileSystem::create_in(&pool, NAME, &settings, owner).expect("a file system");
        pool.export().expect("an export");
        fixture
    }

    /// A fixture for the existing content of a device.
    pub(crate) fn of(device: Arc<dyn Device>) -> Self {
        Self { device, cache: cache() }
    }

    pub(crate) fn pool(&self) -> Pool {
        self.pool_with(false)
    }

    fn pool_with(&self, read_only: bool) -> Pool {
        let options = ImportOptions { read_only, ..self.import_options() };
        Pool::import(vec![Arc::clone(&self.device).into()], &options).expect("the pool")
    }

    fn import_options(&self) -> ImportOptions {
        let cache = Arc::clone(&self.cache);
        ImportOptions { host: host(), seed: Some(7), ..ImportOptions::new(cache) }
    }

    pub(crate) fn mount(&self) -> FileSystem {
        self.mount_with(&FsOptions::default())
    }

    /// Mounts a pool that is imported read-only.
    pub(crate) fn mount_read_only(&self) -> FileSystem {
        let pool = Arc::new(self.pool_with(true));
        FileSystem::open_in(pool, NAME, &FsOptions::default()).expect("the file system")
    }

    /// Mounts a pool with this clock.
    pub(crate) fn mount_at(&self, clock: Arc<dyn Clock>, options: &FsOptions) -> FileSystem {
        let import = ImportOptions { clock: Some(clock), ..self.import_options() };
        let pool = Pool::import(vec![Arc::clone(&self.device).into()], &import);
        FileSystem::open_in(Arc::new(pool.expect("the pool")), NAME, options)
            .expect("the file system")
    }

    pub(crate) fn mount_with(&self, options: &FsOptions) -> FileSystem {
        FileSystem::open_in(Arc::new(self.pool()), NAME, options).expect("the file system")
    }
}

/// An empty cache.
pub(crate) fn cache() -> Arc<BlockCache> {
    let cache = BlockCache::new(BlockCacheOptions { bytes: 64 * MIB, ..Default::default() });
    cache.expect("a cache")
}

/// A memory device.
pub(crate) fn memory(bytes: u64) -> Arc<dyn Device> {
    static DEVICES: AtomicU64 = AtomicU64::new(0);
    let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
    let name = format!("memory {}", DEVICES.fetch_add(1, Ordering::Relaxed));
    Arc::new(MemoryDevice::new(&name, bytes, &options).expect("a memory device"))
}

/// A memory device with sectors of 512 bytes. A torn write damages all 4,096 bytes around it.
pub(crate) fn emulating_disk(bytes: u64) -> Arc<dyn Device> {
    let options = MemoryOptions { physical_bytes: 4096, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new("disk", bytes, &options).expect("a memory device"))
}

pub(crate) fn host() -> HostId {
    HostId { id: 1, name: "test".to_owned() }
}

/// A client whose processes up to a number are killed.
#[derive(Default)]
pub(crate) struct Killer {
    pub(crate) killed: AtomicU32,
}

impl Client for Killer {
    fn mode_changed(&self, _: Ino) {}

    fn is_member(&self, _: Caller, _: u32) -> bool {
        false
    }

    fn has_fsetid(&self, _: Caller) -> bool {
        true
    }

    fn is_killed(&self, process: u32) -> bool {
        process <= self.killed.load(Ordering::Relaxed)
    }
}

/// Closes the file system, checks the pool, and exports it.
pub(crate) fn unmount(fs: FileSystem) {
    audit(&fs);
    fs.close().expect("closes");
    let report = fs.pool().check(&mut |_| std::ops::ControlFlow::Continue(())).expect("a check");
    assert!(report.is_clean(), "{report}");
    let pool = Arc::clone(fs.pool());
    drop(fs);
    Arc::into_inner(pool).expect("the last reference").export().expect("an export");
}

/// Value of a counter without a label.
pub(crate) fn counter(fs: &FileSystem, name: &str) -> u64 {
    fs.stats().counters.iter().find(|row| row.0 == name).expect("a counter").2
}

pub(crate) fn audit(fs: &FileSystem) {
    let report = fs.audit().expect("an audit");
    assert!(report.is_clean(), "{report}");
}

pub(crate) fn file(fs: &FileSystem, parent: Ino, name: &[u8]) -> (Ino, Handle) {
    let (entry, handle) = fs.create(parent, name, 0o644, ME).expect("a file");
    (entry.attr.ino, handle)
}

pub(crate) fn mkdir(fs: &FileSystem, parent: Ino, name: &[u8]) -> Ino {
    let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
    fs.make(parent, name, &node, ME).expect("a directory").attr.ino
}

pub(crate) fn symlink(fs: &FileSystem, parent: Ino, name: &[u8], target: &[u8]) -> Ino {
    let node = NewNode { kind: FileKind::Symlink, mode: 0, rdev: 0, target: Some(target) };
    fs.make(parent, name, &node, ME).expect("a symlink").attr.ino
}

pub(crate) fn read(fs: &FileSystem, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    fs.read(ino, Handle(ino.0), offset, len, &mut |bytes| out = bytes.to_vec()).expect("it reads");
    out
}

pub(crate) fn write(fs: &FileSystem, ino: Ino, offset: u64, data: &[u8]) {
    let written =
        fs.write(ino, Handle(ino.0), offset, data, Default::default()).expect("it writes");
    assert_eq!(written, data.len());
}

/// Names and inodes in a directory, without "." and "..".
pub(crate) fn list(fs: &FileSystem, ino: Ino) -> Vec<(Vec<u8>, Ino)> {
    let mut names = Vec::new();
    fs.readdir(ino, Handle(ino.0), 2, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        true
    })
    .expect("it lists");
    names.sort_unstable();
    names
}
