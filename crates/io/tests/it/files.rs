//! Files and block devices: successful opens, and clear errors for the rest.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_base::arena::Arena;
use forebay_base::sync::Arc;
use forebay_io::{
    Buffered, Device, Direct, EngineChoice, ErrorKind, FileDevice, Health, Locking, OpenError,
    OpenOptions, Request,
};

use crate::common::{arena, filled, setup};

fn folder_with(bytes: u64) -> (tempfile::TempDir, PathBuf) {
    setup();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("medium");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    (folder, path)
}

fn options() -> OpenOptions {
    OpenOptions::default()
}

/// The error, which must name the path.
fn refused(path: impl AsRef<Path>, options: &OpenOptions) -> OpenError {
    setup();
    let path = path.as_ref();
    let error = FileDevice::open(path, options).expect_err("must not open");
    let text = error.to_string();
    assert!(text.starts_with(&*path.to_string_lossy()), "{text}");
    error
}

fn read(device: &FileDevice, arena: &Arena, offset: u64, len: usize) -> Vec<u8> {
    let device: &dyn Device = device;
    device.run(Request::read(offset, arena.alloc(len).unwrap())).into_buffer().unwrap().to_vec()
}

fn write(device: &FileDevice, arena: &Arena, offset: u64, len: usize, fill: u8) {
    let device: &dyn Device = device;
    device.run(Request::write(offset, filled(arena, len, fill))).result.unwrap();
}

/// Descriptors of this process that refer to a file.
fn descriptors_of(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|target| target == path)).count()
}

#[test]
fn a_closed_device_has_no_open_file_while_it_is_referenced() {
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let (_folder, path) = folder_with(1 << 20);
        let path = path.canonicalize().unwrap();
        let device = FileDevice::open(&path, &OpenOptions { engine, ..options() }).unwrap();
        write(&device, &arena, 0, 4096, 3);
        assert!(descriptors_of(&path) > 0);
        device.close();
        assert_eq!(descriptors_of(&path), 0, "{engine:?}");
        // Requests are refused, also those that look at the file first.
        let refused = &device as &dyn Device;
        for offset in [0, (1 << 20) - 4096] {
            let request = Request::write(offset, filled(&arena, 4096, 4));
            assert_eq!(refused.run(request).result.unwrap_err().kind(), ErrorKind::Closed);
        }
        device.close();
        let again = FileDevice::open(&path, &options()).unwrap();
        assert_eq!(read(&again, &arena, 0, 4096), [3; 4096]);
    }
}

#[test]
fn written_data_is_read_back_with_all_options() {
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        for direct in [Direct::Auto, Direct::Never] {
            let (_folder, path) = folder_with(1 << 20);
            let options = OpenOptions { engine, direct, ..options() };
            let device = FileDevice::open(&path, &options).unwrap();
            let info = device.info().clone();
            assert_eq!((info.size_bytes, info.read_only), (1 << 20, false));
            assert_eq!(&*info.name, path.to_str().unwrap());
            assert!(direct == Direct::Auto || !info.direct);
            let sector = info.sector_bytes as usize;
            write(&device, &arena, 0, sector, 1);
            write(&device, &arena, (1 << 20) - 65536, 65536, 2);
            (&device as &dyn Device).run(Request::flush()).result.unwrap();
            assert_eq!(read(&device, &arena, 0, sector), vec![1; sector]);
            assert_eq!(read(&device, &arena, (1 << 20) - 65536, 65536), vec![2; 65536]);
            let mut last = [0; 8];
            File::open(&path).unwrap().read_exact_at(&mut last, (1 << 20) - 8).unwrap();
            assert_eq!(last, [2; 8]);
            assert_eq!(device.health(), Health::Healthy);
        }
    }
}

#[test]
fn a_missing_file_is_made_only_if_asked() {
    let (folder, _) = folder_with(0);
    let path = folder.path().join("new");
    assert!(matches!(refused(&path, &options()), OpenError::Missing { .. }));
    assert!(!path.exists());
    let create = OpenOptions { create_bytes: Some(1 << 16), ..options() };
    let inside = folder.path().join("no folder").join("new");
    let error = refused(&inside, &create);
    let folder = inside.parent().unwrap();
    let says = format!("{}: there is no folder {}; create it", inside.display(), folder.display());
    assert!(error.to_string().starts_with(&says), "{error}");
    assert!(matches!(error, OpenError::MissingFolder { .. }));
    assert_eq!(FileDevice::open(&path, &create).unwrap().info().size_bytes, 1 << 16);
    // An existing file keeps its size.
    let larger = OpenOptions { create_bytes: Some(1 << 20), ..options() };
    assert_eq!(FileDevice::open(&path, &larger).unwrap().info().size_bytes, 1 << 16);
}

#[test]
fn directories_and_other_things_are_refused() {
    let (folder, path) = folder_with(4096);
    let directory = refused(folder.path(), &options());
    assert!(matches!(directory, OpenError::Directory { .. }), "{directory}");
    let character = refused("/dev/null", &options());
    assert!(matches!(character, OpenError::OtherType { what: "a character device", .. }));
    let below = refused(path.join("below"), &options());
    assert!(matches!(below, OpenError::MissingFolder { .. }), "{below}");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(matches!(refused(&socket, &options()), OpenError::OtherType { what: "a socket", .. }));
    let pipe = folder.path().join("pipe");
    // Opening a pipe would wait for its other end.
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(matches!(refused(&pipe, &options()), OpenError::OtherType { what: "a pipe", .. }));
}

#[test]
fn too_small_ones_are_refused_and_the_rest_of_a_sector_is_left_out() {
    let never = OpenOptions { direct: Direct::Never, ..options() };
    for bytes in [0, 511] {
        let (_folder, path) = folder_with(bytes);
        let error = refused(path, &never);
        assert!(
            matches!(error, OpenError::TooSmall { size_bytes, min_bytes: 512, .. } if size_bytes == bytes)
        );
        let says = error.to_string();
        assert!(says.contains(&format!("it has {bytes} bytes")) && says.contains("512"), "{says}");
    }
    let (_folder, path) = folder_with(8192 + 100);
    let least = OpenOptions { min_bytes: 8193, ..options() };
    let error = refused(&path, &least);
    assert!(matches!(error, OpenError::TooSmall { size_bytes: 8292, min_bytes: 8193, .. }));
    let device = FileDevice::open(&path, &OpenOptions { min_bytes: 8192, ..options() }).unwrap();
    assert_eq!(device.info().size_bytes, 8192);
}

#[test]
fn contradicting_options_are_refused_before_anything_is_made() {
    let (folder, path) = folder_with(1 << 16);
    for sector in [0, 1, 256, 513, 8192] {
        let error = refused(&path, &OpenOptions { sector_bytes: Some(sector), ..options() });
        assert!(matches!(error, OpenError::Options { .. }), "{sector}: {error}");
    }
    let new = folder.path().join("new");
    let create = || OpenOptions { create_bytes: Some(1 << 16), ..options() };
    for wrong in [
        OpenOptions { create_bytes: Some(0), ..options() },
        OpenOptions { create_bytes: Some(1000), ..options() },
        OpenOptions { sector_bytes: Some(4096), create_bytes: Some(512), ..options() },
        OpenOptions { read_only: true, ..create() },
        OpenOptions { min_bytes: 1 << 17, ..create() },
    ] {
        assert!(matches!(refused(&new, &wrong), OpenError::Options { .. }));
        assert!(!new.exists());
    }
}

#[test]
fn a_file_takes_any_sector_size_without_direct_io() {
    let (_folder, path) = folder_with(1 << 16);
    for sector in [512, 1024, 4096] {
        let options =
            OpenOptions { sector_bytes: Some(sector), direct: Direct::Never, ..options() };
        let device = FileDevice::open(&path, &options).unwrap();
        assert_eq!(device.info().sector_bytes, sector);
        let arena = arena();
        write(&device, &arena, u64::from(sector), sector as usize, 5);
        let half = Request::read(u64::from(sector) / 2, arena.alloc(sector as usize).unwrap());
        let error = (&device as &dyn Device).run(half).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
}

#[test]
fn a_device_opened_read_only_refuses_changes() {
    let arena = arena();
    let (_folder, path) = folder_with(1 << 16);
    let device = FileDevice::open(&path, &OpenOptions { read_only: true, ..options() }).unwrap();
    assert!(device.info().read_only);
    assert_eq!(read(&device, &arena, 0, 4096), vec![0; 4096]);
    let device: &dyn Device = &device;
    for request in
        [Request::write(0, filled(&arena, 4096, 1)), Request::flush(), Request::discard(0, 4096)]
    {
        assert_eq!(device.run(request).result.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

#[test]
fn direct_io_that_the_file_system_has_not_is_an_error_only_if_asked_for() {
    // A sysfs file: regular, one page long, and without direct I/O.
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if !path.exists() {
        eprintln!("skipped: there is no {}", path.display());
        return;
    }
    let read_only = OpenOptions { read_only: true, ..options() };
    let always = OpenOptions { direct: Direct::Always, ..read_only.clone() };
    assert!(matches!(refused(path, &always), OpenError::DirectRefused { .. }));
    let device = FileDevice::open(path, &read_only).unwrap();
    assert!(!device.info().direct);
}

#[test]
fn permission_denied_says_so() {
    let (_folder, path) = folder_with(4096);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if File::open(&path).is_ok() {
        eprintln!("skipped: this user may open everything");
        return;
    }
    assert!(matches!(refused(&path, &options()), OpenError::Permission { .. }));
}

#[test]
fn a_file_that_shrinks_gives_clear_errors_and_does_not_hang() {
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let (_folder, path) = folder_with(1 << 20);
        let device = FileDevice::open(&path, &OpenOptions { engine, ..options() }).unwrap();
        write(&device, &arena, 0, 1 << 20, 4);
        File::options().write(true).open(&path).unwrap().set_len(1 << 16).unwrap();
        assert_eq!(read(&device, &arena, 0, 4096), vec![4; 4096]);
        let device: &dyn Device = &device;
        // Entirely beyond the end, and across it.
        for offset in [1 << 19, (1 << 16) - 4096] {
            let request = Request::read(offset, arena.alloc(8192).unwrap());
            let error = device.run(request).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
            assert!(error.to_string().contains("medium"), "{error}");
        }
        assert_eq!(device.health(), Health::Gone);
        // The device must be opened again. Until then it must not look whole.
        for request in [
            Request::read(0, arena.alloc(4096).unwrap()),
            Request::write(1 << 19, filled(&arena, 4096, 1)),
            Request::flush(),
            Request::discard(0, 4096),
        ] {
            assert_eq!(device.run(request).result.unwrap_err().kind(), ErrorKind::Gone);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 16);
    }
}

#[test]
fn a_file_that_shrinks_and_grows_by_writes_is_noticed_by_the_flush() {
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        for direct in [Direct::Auto, Direct::Never] {
            let (_folder, path) = folder_with(1 << 20);
            let options = OpenOptions { engine, direct, ..options() };
            let device = FileDevice::open(&path, &options).unwrap();
            write(&device, &arena, 0, 1 << 20, 4);
            (&device as &dyn Device).run(Request::flush()).result.unwrap();
            File::options().write(true).open(&path).unwrap().set_len(1 << 16).unwrap();
            write(&device, &arena, 1 << 19, 4096, 5);
            let error = (&device as &dyn Device).run(Request::flush()).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
            assert!(error.to_string().contains("earlier than when it was opened"), "{error}");
            assert_eq!(device.health(), Health::Gone);
            // Lost bytes do not read as zeros.
            let lost = Request::read(1 << 18, arena.alloc(4096).unwrap());
            let error = (&device as &dyn Device).run(lost).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        }
    }
}

#[test]
fn a_file_that_shrank_does_not_get_its_size_back_by_a_write_of_its_end() {
    let arena = arena();
    let last = || Request::write((1 << 20) - 8192, filled(&arena, 8192, 1));
    for many in [false, true] {
        let (_folder, path) = folder_with(1 << 20);
        let device = FileDevice::open(&path, &options()).unwrap();
        write(&device, &arena, (1 << 20) - 4096, 4096, 4);
        File::options().write(true).open(&path).unwrap().set_len(1 << 16).unwrap();
        let (request, pending) = last().pending();
        match many {
            false => device.submit(request),
            true => {
                let (read, other) = Request::read(0, arena.alloc(4096).unwrap()).pending();
                let mut requests = vec![read, request];
                device.submit_all(&mut requests);
                assert!(requests.is_empty());
                other.wait(&device).result.unwrap();
            }
        }
        let error = pending.wait(&device).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert_eq!(device.health(), Health::Gone);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 16);
    }
}

/// Memory that keeps its device open.
struct Keeps(forebay_base::arena::Buffer, #[allow(dead_code, reason = "dropped")] Arc<FileDevice>);

// SAFETY: the buffer's bytes stay where they are, and nobody writes to them.
unsafe impl forebay_io::StableBytes for Keeps {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_device_can_go_with_the_memory_of_its_last_request() {
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let (_folder, path) = folder_with(1 << 16);
        let options = OpenOptions { engine, submission_queues: 1, threads: 1, ..options() };
        let mut device = Arc::new(FileDevice::open(&path, &options).unwrap());
        for _ in 0..50 {
            let memory = Keeps(filled(&arena, 4096, 1), Arc::clone(&device));
            let (request, pending) = Request::write_shared(0, Box::new(memory)).pending();
            drop(pending);
            device.submit(request);
            drop(device);
            // The file is locked until the device is gone.
            let begun = std::time::Instant::now();
            device = loop {
                match FileDevice::open(&path, &options) {
                    Err(OpenError::InUse { .. }) => {
                        assert!(begun.elapsed().as_secs() < 30, "it waits for itself");
                        std::thread::yield_now();
                    }
                    opened => break Arc::new(opened.unwrap()),
                }
            };
        }
    }
}

#[test]
fn flushes_of_many_threads_all_succeed() {
    let arena = arena();
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let (_folder, path) = folder_with(1 << 20);
        let device = FileDevice::open(&path, &OpenOptions { engine, ..options() }).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (device, arena): (&dyn Device, _) = (&device, &arena);
                scope.spawn(move || {
                    for i in 0..20u64 {
                        let at = (thread * 20 + i) * 4096;
                        device.run(Request::write(at, filled(arena, 4096, 1))).result.unwrap();
                        device.run(Request::flush()).result.unwrap();
                    }
                });
            }
        });
        assert_eq!(device.health(), Health::Healthy);
        // Requests without a waiting thread complete before the close returns.
        let ended = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for _ in 0..100 {
            let ended = Arc::clone(&ended);
            device.submit(Request::flush().on_done(move |completion| {
                completion.result.unwrap();
                ended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }));
        }
        device.close();
        assert_eq!(ended.load(std::sync::atomic::Ordering::Relaxed), 100);
        let error = (&device as &dyn Device).run(Request::flush()).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

#[test]
fn a_file_that_is_unlinked_stays_usable() {
    let arena = arena();
    let (folder, path) = folder_with(1 << 16);
    let device = FileDevice::open(&path, &options()).unwrap();
    drop(folder);
    assert!(!path.exists());
    write(&device, &arena, 4096, 4096, 8);
    assert_eq!(read(&device, &arena, 4096, 4096), vec![8; 4096]);
}

#[test]
fn a_closed_device_refuses_and_dropping_closes() {
    let arena = arena();
    let (_folder, path) = folder_with(1 << 16);
    let device = Arc::new(FileDevice::open(&path, &options()).unwrap());
    device.close();
    device.close();
    let request = Request::read(0, arena.alloc(4096).unwrap());
    let error = (&*device as &dyn Device).run(request).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let device = FileDevice::open(&path, &options()).unwrap();
    let (request, pending) = Request::write(0, filled(&arena, 4096, 9)).pending();
    device.submit(request);
    let beside = OpenOptions { locking: Locking::None, ..options() };
    let other = FileDevice::open(&path, &beside).unwrap();
    drop(device);
    pending.wait(&other).result.unwrap();
    assert_eq!(read(&other, &arena, 0, 4096), vec![9; 4096]);
}

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
            eprintln!("skipped: no loop device to be had");
            return None;
        };
        let path = String::from_utf8(made.stdout).unwrap().trim().into();
        Some(Self { path, file, _folder: folder })
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
        let mut reader = std::fs::File::open(&medium.path).unwrap();
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
        let other = std::fs::File::options().write(true).open(&medium.file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&other, &[fill + 1; 4096], 8192).unwrap();
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
        return forebay_base::testing::skip("loop", "the loop device ignores discards");
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
        File::options().write(true).open(&medium.file).unwrap().set_len(1 << 20).unwrap();
        let resize = || {
            let resize = Command::new("losetup").arg("--set-capacity").arg(&medium.path).status();
            assert!(resize.unwrap().success());
        };
        resize();
        let device = FileDevice::open(&medium.path, &OpenOptions { engine, ..options() }).unwrap();
        File::options().write(true).open(&medium.file).unwrap().set_len(1 << 16).unwrap();
        resize();
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
        File::options().write(true).open(&medium.file).unwrap().set_len(1 << 20).unwrap();
        let resize = || {
            let resize = Command::new("losetup").arg("--set-capacity").arg(&medium.path).status();
            assert!(resize.unwrap().success());
        };
        resize();
        let device = FileDevice::open(&medium.path, &OpenOptions { direct, ..options() }).unwrap();
        File::options().write(true).open(&medium.file).unwrap().set_len(1 << 16).unwrap();
        resize();
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
            eprintln!("skipped: no file system to be had");
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
