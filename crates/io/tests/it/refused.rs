//! The choice of the engine and its reason, with io_uring and where the system refuses it.

use forebay_io::{Device, Engine, EngineChoice, FileDevice, OpenError, OpenOptions, Request};

use crate::common;

fn create(choice: EngineChoice) -> (tempfile::TempDir, Result<FileDevice, OpenError>) {
    common::setup();
    let folder = tempfile::tempdir().unwrap();
    let engine = choice;
    let options = OpenOptions { create_bytes: Some(1 << 20), engine, ..OpenOptions::default() };
    let device = FileDevice::open(folder.path().join("medium"), &options);
    (folder, device)
}

fn works(device: &dyn Device) {
    let arena = common::arena();
    device.run(Request::write(4096, common::filled(&arena, 4096, 3))).result.unwrap();
    device.run(Request::flush()).result.unwrap();
    let read = device.run(Request::read(4096, arena.alloc(4096).unwrap())).into_buffer().unwrap();
    assert!(read.iter().all(|&byte| byte == 3));
}

/// Returns whether this system allows rings.
fn is_granted() -> bool {
    common::uring_errno() == Some(libc::EFAULT)
}

#[test]
fn the_stats_say_which_engine_runs_and_why() {
    let (_folder, device) = create(EngineChoice::Auto);
    let device = device.unwrap();
    works(&device);
    let engine = device.stats().engine;
    assert_eq!(engine, device.info().engine);
    match engine {
        Engine::IoUring => assert!(is_granted()),
        Engine::Threads { why } => {
            assert!(!is_granted());
            if common::is_refused() {
                // The system's error, and its usual cause.
                let said = std::io::Error::from_raw_os_error(libc::EPERM).to_string();
                assert!(why.contains(&said), "{why}");
                assert!(why.contains("seccomp"), "{why}");
            }
        }
        engine => panic!("a file on {engine}"),
    }
}

#[test]
fn threads_run_where_they_are_asked_for() {
    let (_folder, device) = create(EngineChoice::Threads);
    let device = device.unwrap();
    works(&device);
    match device.stats().engine {
        Engine::Threads { why } => assert!(why.contains("requested"), "{why}"),
        engine => panic!("{engine}, not threads"),
    }
}

#[test]
fn io_uring_runs_where_it_is_asked_for_or_the_device_does_not_open() {
    let (folder, device) = create(EngineChoice::IoUring);
    match device {
        Ok(device) => {
            assert!(is_granted());
            assert_eq!(device.info().engine, Engine::IoUring);
            works(&device);
        }
        Err(error) => {
            assert!(!is_granted());
            assert!(matches!(error, OpenError::EngineRefused { .. }), "{error:?}");
            assert!(!folder.path().join("medium").exists(), "it was created for nothing");
            let text = error.to_string();
            assert!(text.contains(&*folder.path().to_string_lossy()), "{text}");
            assert!(text.contains("EngineChoice::Auto"), "{text}");
        }
    }
}
