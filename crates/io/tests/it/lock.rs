//! A file or block device has one user at a time, of this process or another.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Barrier;

use forebay_io::{Device, EngineChoice, FileDevice, Locking, OpenError, OpenOptions};

use crate::common::setup;

/// Names the file that [`the_other_process`] opens.
const FILE: &str = "FOREBAY_TEST_LOCKED_FILE";

fn options() -> OpenOptions {
    OpenOptions { create_bytes: Some(1 << 16), ..OpenOptions::default() }
}

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

/// Returns the holder that the refused open reports.
fn holder(path: &Path, options: &OpenOptions) -> String {
    let error = FileDevice::open(path, options).expect_err("it is open already");
    let text = error.to_string();
    assert!(text.starts_with(&*path.to_string_lossy()) && text.contains("is in use"), "{text}");
    match error {
        OpenError::InUse { holder, .. } => holder.expect("a process of this host"),
        error => panic!("{error:?}"),
    }
}

/// Not a test, but the body of another process: keeps the file open until its input ends.
#[test]
fn the_other_process() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let opened = FileDevice::open(path, &options());
    println!("\nopened {}", opened.is_ok());
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}

/// Another process that has a file open.
struct OtherProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    opened: bool,
}

impl OtherProcess {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lock::the_other_process", "--nocapture"])
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("opened ") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "it does not say whether");
        }
        let opened = line.trim() == "opened true";
        Self { child, output, opened }
    }

    /// Lets the process exit normally.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_file_has_one_user_in_a_process() {
    setup();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("medium");
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let options = OpenOptions { engine, ..options() };
        let device = FileDevice::open(&path, &options).unwrap();
        assert_eq!(holder(&path, &options), "this process");
        // Also under another name, and for reading.
        let link = folder.path().join(format!("{engine:?}"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(holder(&link, &options), "this process");
        assert_eq!(holder(&path, &read_only()), "this process");
        // But not without locking.
        let look = OpenOptions { locking: Locking::None, ..read_only() };
        drop(FileDevice::open(&path, &look).unwrap());
        // Closing releases the lock, even while the device is referenced.
        device.close();
        let next = FileDevice::open(&path, &options).unwrap();
        drop(device);
        assert_eq!(holder(&path, &options), "this process");
        drop(next);
    }
    let readers = [0, 1].map(|_| FileDevice::open(&path, &read_only()).unwrap());
    assert_eq!(holder(&path, &options()), "this process");
    drop(readers);
    // The owner of a taken lock keeps it, whatever happens to the device.
    let device = FileDevice::open(&path, &options()).unwrap();
    let lock = device.take_lock().unwrap();
    assert!(device.take_lock().is_none());
    drop(device);
    assert_eq!(holder(&path, &options()), "this process");
    drop(lock);
    FileDevice::open(&path, &options()).unwrap();
}

#[test]
fn a_file_is_removed_only_by_the_open_that_created_it() {
    setup();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("medium");
    let device = FileDevice::open(&path, &options()).unwrap();
    let lock = device.take_lock().unwrap();
    assert!(lock.created());
    // A refused open leaves the file, and so does one that fails for its size.
    assert_eq!(holder(&path, &options()), "this process");
    drop((device, lock));
    let larger = OpenOptions { min_bytes: 1 << 20, create_bytes: Some(1 << 20), ..options() };
    let error = FileDevice::open(&path, &larger).unwrap_err();
    assert!(matches!(error, OpenError::TooSmall { .. }), "{error}");
    let lock = FileDevice::open(&path, &options()).unwrap().take_lock().unwrap();
    assert!(!lock.created());
    // Not another file at this path.
    let kept = folder.path().join("kept");
    std::fs::rename(&path, &kept).unwrap();
    std::fs::write(&path, b"another").unwrap();
    let error = lock.remove_file(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(std::fs::read(&path).unwrap(), b"another");
    lock.remove_file(&kept).unwrap();
    assert!(!kept.exists());
}

#[test]
fn of_opens_that_create_a_file_at_once_one_creates_it_and_none_removes_it() {
    setup();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..if forebay_base::testing::full() { 500 } else { 20 } {
        let path = folder.path().join(format!("medium {round}"));
        let barrier = Barrier::new(4);
        let opened: Vec<_> = std::thread::scope(|scope| {
            let open = || {
                barrier.wait();
                FileDevice::open(&path, &options())
            };
            let threads = [0; 4].map(|_| scope.spawn(open));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let devices: Vec<_> = opened.iter().flatten().collect();
        match devices[..] {
            [device] => assert!(device.take_lock().unwrap().created(), "it was empty"),
            // Another thread has slept with its lock on the empty file.
            [] => {
                let left = std::fs::metadata(&path).map_or(0, |found| found.len());
                assert_eq!(left, 0, "{opened:?}");
            }
            _ => panic!("{opened:?}"),
        }
        for error in opened.iter().filter_map(|opened| opened.as_ref().err()) {
            let refused = matches!(error, OpenError::InUse { .. } | OpenError::TooSmall { .. });
            assert!(refused, "{error}");
        }
        let len = std::fs::metadata(&path).map(|found| found.len());
        assert!(devices.is_empty() || len.is_ok_and(|len| len == 1 << 16), "it was removed");
    }
}

#[test]
fn a_file_has_one_user_of_two_processes() {
    setup();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("medium");
    let other = OtherProcess::start(&path);
    assert!(other.opened);
    let program = std::fs::read_to_string(format!("/proc/{}/comm", other.child.id())).unwrap();
    let named = format!("process {} ({})", other.child.id(), program.trim());
    assert_eq!(holder(&path, &options()), named);
    assert_eq!(holder(&path, &read_only()), named);
    other.end();
    // The lock ends with the process, however that ends.
    let device = FileDevice::open(&path, &options()).unwrap();
    let refused = OtherProcess::start(&path);
    assert!(!refused.opened, "two processes have it open");
    refused.end();
    drop(device);
    let other = OtherProcess::start(&path);
    assert!(other.opened);
    other.kill();
    FileDevice::open(&path, &options()).unwrap();
}
