//! Files: successful opens, and clear errors for the rest.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use forebay_base::sync::Arc;
use forebay_base::testing::skip;
use forebay_io::{
    Device, Direct, EngineChoice, ErrorKind, FileDevice, Health, Locking, OpenError, OpenOptions,
    Request,
};

use crate::common::{arena, filled, folder_with, options, read, refused, write};

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
        return skip("sysfs", format_args!("there is no {}", path.display()));
    }
    let read_only = OpenOptions { read_only: true, ..options() };
    let always = OpenOptions { direct: Direct::Always, ..read_only.clone() };
    assert!(matches!(refused(path, &always), OpenError::DirectRefused { .. }));
    let device = FileDevice::open(path, &read_only).unwrap();
    assert!(!device.info().direct);
}

/// Gives this thread, if it is root's, the rights of a user who owns nothing.
fn become_nobody() {
    if rustix::process::geteuid().is_root() {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
}

#[test]
fn permission_denied_says_so() {
    let (folder, path) = folder_with(4096);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Root may open everything, so a thread without its rights tries.
    let opened = std::thread::spawn(move || {
        become_nobody();
        assert!(matches!(refused(&path, &options()), OpenError::Permission { .. }));
    });
    opened.join().unwrap();
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
