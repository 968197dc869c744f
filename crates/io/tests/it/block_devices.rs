//! Block devices: their sizes and sectors, discards, and what a loss of space does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use forebay_base::testing::skip;
use forebay_io::{
    Buffered, Device, Direct, EngineChoice, ErrorKind, FileDevice, Health, Locking, OpenError,
    OpenOptions, Request,
};

use crate::common::{arena, filled, folder_with, options, read, refused, write};

/// A loop device over a file, if this user may create one.
struct Loop {
    path: PathBuf,
    file: PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl Loop {
    fn new(bytes: u64, options: &[&str]) -> Option<Self> {
        let (folder, file) = folder_with(bytes);
        Self::made(file, Some(folder), options)
    }

    fn over(file: PathBuf) -> Option<Self> {
        Self::made(file, None, &[])
    }

    fn made(file: PathBuf, folder: Option<tempfile::TempDir>, options: &[&str]) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(&file)
            .output()
            .ok()
            .filter(|output| output.status.success());
        let Some(made) = made else {
            skip("loop", "no loop device to be had");
            return None;
        };
        let path = String::from_utf8(made.stdout).unwrap().trim().into();
        Some(Self { path, file, _folder: folder })
    }

    /// Changes the size of the file and of the device.
    fn resize(&self, bytes: u64) {
        File::options().write(true).open(&self.file).unwrap().set_len(bytes).unwrap();
        let resize = Command::new("losetup").arg("--set-capacity").arg(&self.path).status();
        assert!(resize.unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn a_block_device_tells_its_size_and_sector() {
    let Some(medium) = Loop::new(1 << 20, &["--sector-size", "4096"]) else {
        return;
    };
    let arena = arena();
    let device = FileDevice::open(&medium.path, &options()).unwrap();
    assert_eq!((device.info().size_bytes, device.info().sector_bytes), (1 << 20, 4096));
    assert!(device.info().direct);
    write(&device, &arena, 1 << 19, 8192, 6);
    assert_eq!(read(&device, &arena, 1 << 19, 8192), vec![6; 8192]);
    let discard = Request::discard(1 << 19, 4096);
    (&device as &dyn Device).run(discard).result.unwrap();
    drop(device);
    let smaller = OpenOptions { sector_bytes: Some(512), direct: Direct::Always, ..options() };
    let error = refused(&medium.path, &smaller);
    assert!(
        matches!(error, OpenError::SectorMismatch { requested_bytes: 512, needed_bytes: 4096, .. }),
        "{error}"
    );
}

#[test]
fn sectors_smaller_than_those_of_the_medium_go_through_the_page_cache() {
    let Some(medium) = Loop::new(1 << 20, &["--sector-size", "4096"]) else {
        return;
    };
    let arena = arena();
    let smaller = OpenOptions { sector_bytes: Some(512), ..options() };
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let device =
            FileDevice::open(&medium.path, &OpenOptions { engine, ..smaller.clone() }).unwrap();
        let info = device.info();
        assert_eq!((info.sector_bytes, info.physical_bytes), (512, 4096));
        assert_eq!(info.buffered, Some(Buffered::SmallSectors { medium_bytes: 4096 }));
        assert_eq!((info.direct, info.medium_sector_bytes()), (false, 4096));
        for (at, fill) in [(1, 7), (2, 8), (9, 9)] {
            write(&device, &arena, at * 512, 512, fill);
        }
        let device: &dyn Device = &device;
        device.run(Request::flush()).result.unwrap();
        // The flush has reached the medium.
        let there = std::fs::read(&medium.file).unwrap();
        assert_eq!(there[512..1024], [7; 512]);
        assert_eq!(there[1024..1536], [8; 512]);
        assert_eq!(there[9 * 512..10 * 512], [9; 512]);
        assert!(there[..512].iter().chain(&there[1536..4096]).all(|byte| *byte == 0));
        // The medium could only discard more. Nothing fails, and no neighbour is lost.
        device.run(Request::discard(512, 512)).result.unwrap();
        assert_eq!(device.health(), Health::Healthy);
        device.run(Request::write(0, filled(&arena, 8192, 0))).result.unwrap();
        device.run(Request::flush()).result.unwrap();
    }
}

#[test]
fn small_sectors_are_on_the_medium_once_written_and_seen_as_on_it() {
    let Some(medium) = Loop::new(1 << 20, &["--sector-size", "4096"]) else {
        return;
    };
    let arena = arena();
    let smaller = OpenOptions { sector_bytes: Some(512), ..options() };
    // The kernel lets go of the device some time after the end of an io_uring: that one is last.
    for (engine, fill) in [(EngineChoice::Threads, 5), (EngineChoice::Auto, 3)] {
        let options = OpenOptions { engine, ..smaller.clone() };
        let device = FileDevice::open(&medium.path, &options).unwrap();
        write(&device, &arena, 512, 512, fill);
        // Without a flush.
        assert_eq!(std::fs::read(&medium.file).unwrap()[512..1024], [fill; 512]);

        // Another program reads the device, with readahead, and keeps what it has read mapped.
        let mut reader = File::open(&medium.path).unwrap();
        std::io::Read::read_exact(&mut reader, &mut [0; 100]).unwrap();
        // SAFETY: a new mapping of an open file, which is only read, and unmapped below.
        let mapped = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
            libc::mmap(std::ptr::null_mut(), 65536, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        // SAFETY: the mapping has these bytes.
        let first = unsafe { mapped.cast::<u8>().add(8192).read_volatile() };
        assert_ne!(first, fill + 1);
        // Another host writes the medium.
        let other = File::options().write(true).open(&medium.file).unwrap();
        other.write_all_at(&[fill + 1; 4096], 8192).unwrap();
        other.sync_all().unwrap();
        let looked = Request::read(8192, arena.alloc(4096).unwrap()).allow_inline();
        let (looked, pending) = looked.pending();
        device.submit_uncached(looked);
        let seen = pending.wait(&device).into_buffer().unwrap();
        assert!(seen.iter().all(|byte| *byte == fill + 1), "an old page: {}", seen[0]);
        // SAFETY: mapped above, and no reference to it is left.
        unsafe { libc::munmap(mapped, 65536) };
    }
}

#[test]
fn discards_of_less_than_a_sector_of_the_medium_do_nothing() {
    let Some(medium) = Loop::new(1 << 20, &["--sector-size", "4096"]) else {
        return;
    };
    let requested = OpenOptions { direct: Direct::Never, sector_bytes: Some(512), ..options() };
    let device = FileDevice::open(&medium.path, &requested).unwrap();
    write(&device, &arena(), 0, 4096, 7);
    (&device as &dyn Device).run(Request::discard(512, 512)).result.unwrap();
    assert_eq!(read(&device, &arena(), 0, 4096), vec![7; 4096]);
    assert_eq!(device.health(), Health::Healthy);
    (&device as &dyn Device).run(Request::discard(512, 100)).result.unwrap_err();
}

#[test]
fn content_tells_its_sectors_only_to_a_medium_with_larger_ones() {
    fn probe(size_bytes: u64, read: &mut dyn FnMut(u64) -> Option<[u8; 4096]>) -> Option<u32> {
        assert_eq!(size_bytes, 1 << 20);
        let page = read(4096).expect("a page");
        Some(u32::from(page[0]) * 256)
    }
    let probing = OpenOptions { sector_probe: Some(probe), ..options() };
    let (_folder, file) = folder_with(1 << 20);
    if FileDevice::open(&file, &options()).unwrap().info().sector_bytes == 512 {
        fn never(_: u64, _: &mut dyn FnMut(u64) -> Option<[u8; 4096]>) -> Option<u32> {
            panic!("the medium has the smallest sectors");
        }
        let never = OpenOptions { sector_probe: Some(never), ..options() };
        assert!(FileDevice::open(&file, &never).unwrap().info().direct);
    }
    let Some(medium) = Loop::new(1 << 20, &["--sector-size", "4096"]) else {
        return;
    };
    let arena = arena();
    // Sectors of 0 and of 768 bytes are nonsense, and those of 4096 are the medium's.
    for (hint, sector_bytes) in [(0, 4096), (2, 512), (3, 4096), (4, 1024), (16, 4096)] {
        let device = FileDevice::open(&medium.path, &options()).unwrap();
        write(&device, &arena, 4096, 4096, hint);
        drop(device);
        let device = FileDevice::open(&medium.path, &probing).unwrap();
        assert_eq!(device.info().sector_bytes, sector_bytes, "{hint}");
        assert_eq!(device.info().direct, sector_bytes == 4096);
    }
}

#[test]
fn a_discard_of_a_block_device_frees_its_space() {
    use std::os::unix::fs::MetadataExt;
    let Some(medium) = Loop::new(8 << 20, &[]) else {
        return;
    };
    let arena = arena();
    let device = FileDevice::open(&medium.path, &options()).unwrap();
    assert!(device.info().block_device);
    for at in (0..8 << 20).step_by(1 << 20) {
        write(&device, &arena, at, 1 << 20, 6);
    }
    (&device as &dyn Device).run(Request::flush()).result.unwrap();
    let kept = || std::fs::metadata(&medium.file).unwrap().blocks() * 512;
    let before = kept();
    assert!(before >= 8 << 20);
    // By the call for block devices, and by the engine.
    let inline = (&device as &dyn Device).run(Request::discard(0, 3 << 20));
    inline.result.unwrap();
    let (request, pending) = Request::discard(4 << 20, 3 << 20).pending();
    device.submit(request);
    pending.wait(&device).result.unwrap();
    if device.stats().counters.iter().any(|it| it.0 == "discards_ignored" && it.2 > 0) {
        return skip("loop", "the loop device ignores discards");
    }
    assert!(kept() + (5 << 20) < before, "{} of {before}", kept());
    assert_eq!(read(&device, &arena, 3 << 20, 4096), vec![6; 4096]);
    // The engine refuses what does not fit.
    for (offset, len) in [(512, 100), (0, 0), (8 << 20, 4096), (u64::MAX - 511, 512)] {
        (&device as &dyn Device).run(Request::discard(offset, len)).result.unwrap_err();
    }
}

#[test]
fn a_read_only_block_device_opens_only_read_only() {
    let Some(medium) = Loop::new(1 << 20, &["--read-only"]) else {
        return;
    };
    let error = refused(&medium.path, &options());
    assert!(matches!(error, OpenError::ReadOnlyMedium { .. }), "{error}");
    let read_only = OpenOptions { read_only: true, ..options() };
    let device = FileDevice::open(&medium.path, &read_only).unwrap();
    assert_eq!(read(&device, &arena(), 0, 4096), vec![0; 4096]);
}

#[test]
fn a_block_device_is_opened_for_writing_by_one_only() {
    let Some(medium) = Loop::new(1 << 20, &[]) else {
        return;
    };
    let _device = FileDevice::open(&medium.path, &options()).unwrap();
    let error = refused(&medium.path, &options());
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let read_only = OpenOptions { read_only: true, ..options() };
    let error = refused(&medium.path, &read_only);
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    // With or without locking.
    let error = refused(&medium.path, &OpenOptions { locking: Locking::None, ..options() });
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    FileDevice::open(&medium.path, &OpenOptions { locking: Locking::None, ..read_only }).unwrap();
}

#[test]
fn a_block_device_that_shrinks_gives_errors_and_does_not_hang() {
    let Some(medium) = Loop::new(1 << 20, &[]) else {
        return;
    };
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        medium.resize(1 << 20);
        let device = FileDevice::open(&medium.path, &OpenOptions { engine, ..options() }).unwrap();
        medium.resize(1 << 16);
        assert_eq!(read(&device, &arena, 0, 4096), vec![0; 4096]);
        let device: &dyn Device = &device;
        for request in [
            Request::read(1 << 19, arena.alloc(4096).unwrap()),
            Request::write(1 << 19, filled(&arena, 4096, 1)),
        ] {
            let error = device.run(request).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        }
        assert_eq!(device.health(), Health::Gone);
    }
}

#[test]
fn a_write_to_a_block_device_that_shrank_says_so() {
    let Some(medium) = Loop::new(1 << 20, &[]) else {
        return;
    };
    let arena = arena();
    for direct in [Direct::Auto, Direct::Never] {
        medium.resize(1 << 20);
        let device = FileDevice::open(&medium.path, &OpenOptions { direct, ..options() }).unwrap();
        medium.resize(1 << 16);
        let request = Request::write(1 << 19, filled(&arena, 4096, 1));
        let error = (&device as &dyn Device).run(request).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert_eq!(device.health(), Health::Gone);
    }
}

/// A file system of a few pages, if this user may mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn new(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mount = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let mount = Command::new("mount").args(mount).arg(folder.path()).output();
        if !mount.is_ok_and(|output| output.status.success()) {
            skip("root", "this user may not mount a file system");
            return None;
        }
        Some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// The kernel reports lost writes once, so a second flush would succeed.
#[test]
fn a_write_that_the_page_cache_lost_fails_all_flushes() {
    let Some(small) = Small::new(1 << 20) else {
        return;
    };
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let file = small.0.path().join("medium");
        File::create(&file).unwrap().set_len(8 << 20).unwrap();
        let Some(medium) = Loop::over(file.clone()) else {
            return;
        };
        let options = OpenOptions { engine, direct: Direct::Never, ..options() };
        let device = FileDevice::open(&medium.path, &options).unwrap();
        for at in 0..4 {
            write(&device, &arena, at << 20, 1 << 20, 1);
        }
        for _ in 0..3 {
            let error = (&device as &dyn Device).run(Request::flush()).result.unwrap_err();
            assert!(error.to_string().contains("opened again"), "{error}");
        }
        assert_eq!(device.health(), Health::Degraded { errors: 3 });
        drop(device);
        drop(medium);
        std::fs::remove_file(file).unwrap();
    }
}
