//! Crashes during work of two threads. Every crash image must import and check clean, have
//! consistent names and links, and contain what was fsynced.

use std::sync::{Arc, Mutex};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_base::testing;
use forebay_fs::{
    ErrorKind, FallocateMode, FileKind, FileSystem, Handle, Ino, NewNode, RenameMode, SetAttr,
    XattrMode,
};
use forebay_io::Device;
use forebay_io::record::{CrashPoint, Image, RecordDevice, RecordOptions, Survives};

use crate::common::{Fixture, ME, MIB, ROOT, file, mkdir, read, write};

const STEPS: usize = 250;
const IMAGES: u64 = 40;

/// A file that was fsynced and does not change afterwards.
struct Promise {
    /// Number of device events when the fsync returned.
    position: usize,
    dir: Vec<u8>,
    name: Vec<u8>,
    content: Vec<u8>,
    xattr: Vec<u8>,
}

struct Work<'a> {
    fs: &'a FileSystem,
    device: &'a RecordDevice,
    thread: usize,
    rng: SmallRng,
    dirs: &'a [(Vec<u8>, Ino)],
    promises: &'a Mutex<Vec<Promise>>,
}

impl Work<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.below(10)).into_bytes()
    }

    fn run(&mut self) {
        for at in 0..STEPS {
            if at % 12 == 5 {
                self.promise(at);
            }
            if let Err(error) = self.step() {
                let surprises = [
                    ErrorKind::Corrupt,
                    ErrorKind::Io,
                    ErrorKind::NoSpace,
                    ErrorKind::NoMemory,
                    ErrorKind::WouldBlock,
                    ErrorKind::Suspended,
                ];
                assert!(!surprises.contains(&error.kind()), "{error:?}");
            }
        }
    }

    /// Creates a file under a temporary name, renames it, and fsyncs it.
    fn promise(&mut self, at: usize) {
        let (dir, ino) = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].clone();
        let name = format!("safe {} {at}", self.thread).into_bytes();
        let content = vec![at as u8 + 1; 1 + self.below(40_000) as usize];
        let xattr = vec![at as u8; self.below(400) as usize];
        let (entry, handle) = self.fs.create(ino, b"temporary", 0o600, ME).map_or_else(
            |_| self.fs.create(ino, &name, 0o600, ME).unwrap(),
            |made| {
                self.fs.rename(ino, b"temporary", ino, &name, RenameMode::NoReplace).unwrap();
                made
            },
        );
        let file = entry.attr.ino;
        self.fs.write(file, handle, 0, &content, Default::default()).unwrap();
        self.fs.setxattr(file, b"user.x", &xattr, XattrMode::Create).unwrap();
        self.fs.fsync(file, at.is_multiple_of(2)).unwrap();
        let position = self.device.position();
        self.fs.release(handle);
        self.fs.forget(file, 1);
        self.promises.lock().unwrap().push(Promise { position, dir, name, content, xattr });
    }

    fn step(&mut self) -> Result<(), forebay_fs::Error> {
        let (one, two) = (self.name(), self.name());
        let dir = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].1;
        let to = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].1;
        let fs = self.fs;
        match self.below(14) {
            0 | 1 => {
                let (entry, handle) = fs.create(dir, &one, 0o644, ME)?;
                let data = vec![7; self.below(30_000) as usize];
                fs.write(entry.attr.ino, handle, self.below(20_000), &data, Default::default())?;
                fs.release(handle);
                fs.forget(entry.attr.ino, 1);
            }
            2 | 3 => {
                let target = vec![b'x'; 1 + self.below(1500) as usize];
                let (kind, target) = match self.below(2) {
                    0 => (FileKind::Directory, None),
                    _ => (FileKind::Symlink, Some(&target[..])),
                };
                let node = NewNode { kind, mode: 0o755, rdev: 0, target };
                let made = fs.make(dir, &one, &node, ME)?;
                fs.forget(made.attr.ino, 1);
            }
            4 | 5 => fs.unlink(dir, &one)?,
            6 => fs.rmdir(dir, &one)?,
            7..10 => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = modes[self.below(3) as usize];
                fs.rename(dir, &one, to, &two, mode)?;
            }
            10 => {
                let ino = fs.lookup(dir, &one)?.attr.ino;
                let linked = fs.link(ino, to, &two);
                fs.forget(ino, 1 + u64::from(linked.is_ok()));
            }
            11 => {
                let ino = fs.lookup(dir, &one)?.attr.ino;
                let done = self.change(ino);
                fs.forget(ino, 1);
                done?;
            }
            12 => fs.fsync(dir, false)?,
            _ if self.below(6) == 0 => fs.pool().sync()?,
            _ => {}
        }
        Ok(())
    }

    fn change(&mut self, ino: Ino) -> Result<(), forebay_fs::Error> {
        let fs = self.fs;
        let value = vec![3; self.below(600) as usize];
        fs.setxattr(ino, b"user.y", &value, XattrMode::Either)?;
        let set = SetAttr { size: Some(self.below(40_000)), ..SetAttr::default() };
        fs.setattr(ino, &set, ME)?;
        fs.fallocate(ino, Handle(ino.0), self.below(9000), 9000, FallocateMode::Punch, ME)?;
        match self.below(3) {
            0 => fs.fsync(ino, false),
            _ => Ok(()),
        }
    }
}

/// One of the images that a crash at this point may leave.
fn image(point: &CrashPoint<'_>, rng: &mut SmallRng) -> Image {
    let one = rng.below(point.unflushed().count().max(1) as u64);
    let mut at = 0;
    let mut is_one = move || {
        at += 1;
        at - 1 == one
    };
    match rng.below(6) {
        0 => point.at_least(),
        1 => point.at_most(),
        2 => point.sampled(rng),
        3 => point.image(|_| if rng.below(2) == 0 { Survives::None } else { Survives::All }),
        4 => point.image(|_| if is_one() { Survives::None } else { Survives::All }),
        _ => point.image(|write| match is_one() {
            true => Survives::Prefix(rng.below(write.len)),
            false => Survives::All,
        }),
    }
}

fn verify(image: &Image, promises: &[&Promise]) {
    let config = ArenaConfig { limit_bytes: 16 * MIB, huge_pages: HugePages::Never };
    let arena = Arena::new(config).unwrap();
    let device = crate::common::emulating_disk(image.size_bytes());
    image.write_to(&*device, &arena).unwrap();
    let fixture = Fixture::of(device);
    let fs = fixture.mount();
    for promise in promises {
        let dir = match &promise.dir[..] {
            b"" => ROOT,
            name => fs.lookup(ROOT, name).unwrap().attr.ino,
        };
        let ino = fs.lookup(dir, &promise.name).unwrap().attr.ino;
        assert!(read(&fs, ino, 0, 100_000) == promise.content, "{:?}", promise.name);
        assert_eq!(fs.getxattr(ino, b"user.x").unwrap(), promise.xattr);
    }
    let report = fs.audit().unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.orphans, 0);
    // The file system still accepts changes.
    mkdir(&fs, ROOT, b"after the crash");
    crate::common::unmount(fs);
}

/// Returns how many promised files were checked.
fn run(seed: u64) -> usize {
    let memory = crate::common::emulating_disk(96 * MIB);
    let options = RecordOptions { max_bytes: 1 << 30, base: None };
    let device = Arc::new(RecordDevice::new(memory, options));
    let fixture = Fixture::on(Arc::clone(&device) as Arc<dyn Device>);
    let fs = fixture.mount();
    let mut dirs = vec![(Vec::new(), ROOT)];
    for name in [&b"one"[..], b"two"] {
        dirs.push((name.to_vec(), mkdir(&fs, ROOT, name)));
    }
    fs.pool().sync().unwrap();
    let first = device.position();
    let promises = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                let (fs, device, dirs, promises) = (&fs, &*device, &dirs[..], &promises);
                let rng = SmallRng::from_seed(seed.wrapping_mul(2) + thread as u64);
                let mut work = Work { fs, device, thread, rng, dirs, promises };
                scope.spawn(move || work.run())
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).next();
        assert!(failed.is_none(), "a worker failed");
    });
    let last = device.position();
    let recording = device.recording();
    assert!(recording.is_complete());
    let promises = promises.into_inner().unwrap();
    let mut looked_for = 0;
    for number in 0..IMAGES {
        let mut rng = SmallRng::from_seed(seed ^ (number + 1).wrapping_mul(0x9e37_79b9));
        let position = first + rng.below((last - first) as u64) as usize;
        let kept: Vec<&Promise> = promises.iter().filter(|it| it.position <= position).collect();
        looked_for += kept.len();
        let image = image(&recording.at(position), &mut rng);
        let verified =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| verify(&image, &kept)));
        assert!(verified.is_ok(), "seed {seed}, image {number}, position {position}");
    }
    fs.close().unwrap();
    looked_for
}

/// The file system after `work` and the loss of all unflushed writes. Before `work` the log is open
/// and there is a durable file `config` with the content `old`.
fn after_crash(work: impl FnOnce(&FileSystem)) -> FileSystem {
    let memory = crate::common::emulating_disk(96 * MIB);
    let options = RecordOptions { max_bytes: 1 << 30, base: None };
    let device = Arc::new(RecordDevice::new(memory, options));
    let fixture = Fixture::on(Arc::clone(&device) as Arc<dyn Device>);
    let fs = fixture.mount();
    let (config, _) = file(&fs, ROOT, b"config");
    write(&fs, config, 0, b"old");
    fs.pool().sync().unwrap();
    work(&fs);
    let position = device.position();
    let recording = device.recording();
    assert!(recording.is_complete());
    let image = recording.at(position).at_least();
    let arena = ArenaConfig { limit_bytes: 16 * MIB, huge_pages: HugePages::Never };
    let left = crate::common::emulating_disk(image.size_bytes());
    image.write_to(&*left, &Arena::new(arena).unwrap()).unwrap();
    fs.close().unwrap();
    Fixture::of(left).mount()
}

/// Fsyncs another file, which makes all earlier name changes durable.
fn fsync_another(fs: &FileSystem) {
    let (other, _) = file(fs, ROOT, b"other");
    write(fs, other, 0, b"x");
    fs.fsync(other, false).unwrap();
}

fn content(fs: &FileSystem, dir: Ino, name: &[u8]) -> Vec<u8> {
    let ino = fs.lookup(dir, name).unwrap().attr.ino;
    read(fs, ino, 0, 20 << 20)
}

fn rename(fs: &FileSystem, name: &[u8], new_name: &[u8], mode: RenameMode) {
    fs.rename(ROOT, name, ROOT, new_name, mode).unwrap();
}

#[test]
fn a_replaced_file_has_its_old_or_its_new_content() {
    let fs = after_crash(|fs| {
        let (new, _) = file(fs, ROOT, b"tmp");
        write(fs, new, 0, b"new");
        rename(fs, b"tmp", b"config", RenameMode::Replace);
        fsync_another(fs);
    });
    assert_eq!(content(&fs, ROOT, b"config"), b"new");
}

#[test]
fn a_replaced_file_too_large_for_the_log_has_its_content() {
    let new_content = vec![5; 9 << 20];
    let fs = after_crash(|fs| {
        let (new, _) = file(fs, ROOT, b"tmp");
        write(fs, new, 0, &new_content);
        rename(fs, b"tmp", b"config", RenameMode::Replace);
        fsync_another(fs);
    });
    // A read returns at most 4 MiB.
    assert!(content(&fs, ROOT, b"config") == new_content[..4 << 20]);
    let config = fs.lookup(ROOT, b"config").unwrap().attr.ino;
    assert!(read(&fs, config, 8 << 20, 4 << 20) == new_content[8 << 20..]);
}

#[test]
fn files_that_were_exchanged_linked_or_renamed_have_their_content() {
    let fs = after_crash(|fs| {
        for (name, content) in [(&b"tmp"[..], &b"new"[..]), (b"linked", b"l"), (b"renamed", b"r")] {
            let (new, _) = file(fs, ROOT, name);
            write(fs, new, 0, content);
        }
        let config = fs.lookup(ROOT, b"config").unwrap().attr.ino;
        write(fs, config, 3, b"er");
        rename(fs, b"tmp", b"config", RenameMode::Exchange);
        let linked = fs.lookup(ROOT, b"linked").unwrap().attr.ino;
        fs.link(linked, ROOT, b"link").unwrap();
        fs.unlink(ROOT, b"linked").unwrap();
        rename(fs, b"renamed", b"to", RenameMode::NoReplace);
        fsync_another(fs);
    });
    assert_eq!(content(&fs, ROOT, b"config"), b"new");
    assert_eq!(content(&fs, ROOT, b"tmp"), b"older");
    assert_eq!(content(&fs, ROOT, b"link"), b"l");
    assert_eq!(content(&fs, ROOT, b"to"), b"r");
}

#[test]
fn a_directory_that_was_renamed_has_the_content_of_its_files() {
    let fs = after_crash(|fs| {
        let dir = mkdir(fs, ROOT, b"new");
        let (new, _) = file(fs, dir, b"file");
        write(fs, new, 0, b"new");
        rename(fs, b"new", b"current", RenameMode::Replace);
        fsync_another(fs);
    });
    let dir = fs.lookup(ROOT, b"current").unwrap().attr.ino;
    assert_eq!(content(&fs, dir, b"file"), b"new");
}

#[test]
fn a_group_has_the_times_of_a_change_after_an_fsync() {
    let mut mtime = None;
    let fs = after_crash(|fs| {
        let config = fs.lookup(ROOT, b"config").unwrap().attr.ino;
        // The second write leaves a time for the fsync to store.
        write(fs, config, 0, b"new");
        write(fs, config, 0, b"newer");
        fs.fsync(config, false).unwrap();
        write(fs, config, 0, b"newest");
        fs.pool().sync().unwrap();
        mtime = Some(fs.getattr(config).unwrap().mtime);
    });
    assert_eq!(content(&fs, ROOT, b"config"), b"newest");
    assert_eq!(Some(fs.lookup(ROOT, b"config").unwrap().attr.mtime), mtime);
}

#[test]
fn only_names_that_were_changed_cost_their_content() {
    let log = |fs: &FileSystem, name: &str| {
        let counters = fs.pool().stats().counters;
        counters.iter().find(|row| row.0 == name).unwrap().2
    };
    let fs = after_crash(|fs| {
        // Durable before it is renamed.
        let (safe, _) = file(fs, ROOT, b"safe");
        write(fs, safe, 0, &[1; 100_000]);
        fs.fsync(safe, false).unwrap();
        rename(fs, b"safe", b"config", RenameMode::Replace);
        for n in 0..20u8 {
            let (new, _) = file(fs, ROOT, &[b'n', b'a' + n]);
            write(fs, new, 0, &[2; 100_000]);
        }
        let before = log(fs, "bytes");
        fsync_another(fs);
        assert!(log(fs, "bytes") - before < 50_000, "files without new names were written");
        assert_eq!(log(fs, "bound"), 0);
    });
    assert_eq!(content(&fs, ROOT, b"config"), vec![1; 100_000]);
    fs.lookup(ROOT, b"na").unwrap();
}

#[test]
fn crash_images_are_consistent() {
    // The long form runs more seeds.
    let count = if testing::full() { 100 } else { 3 };
    let first = testing::seed(0);
    let looked_for: usize = (0..count).map(|n| run(first.wrapping_add(n))).sum();
    assert!(looked_for > 100, "{looked_for}");
}
