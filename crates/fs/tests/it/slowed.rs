//! Creates that are slowed down because the change buffer of their directory fills.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};
use forebay_fs::{ErrorKind, FileSystem, FsOptions, Ino};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};

use crate::common::{Fixture, ME, MIB, ROOT, file, memory, mkdir, read, unmount, write};

const FILES: u32 = 6000;
const CREATES: usize = 12;
/// Larger than the cache.
const FILLER_BYTES: u64 = 80 * MIB;
/// A test that hangs fails after so long.
const PATIENCE: Duration = Duration::from_secs(120);

fn name(number: u32) -> Vec<u8> {
    format!("{number:0>40}").into_bytes()
}

/// Buffers names of large directories, and slows creates down as much as can be.
fn buffer_names(fs: &FileSystem) {
    let tunables = [("buffer", "true"), ("buffer_leaves", "4"), ("slow_scale_ns", "1000000000")];
    for (tunable, value) in tunables {
        fs.pool().set_tunable(&format!("directory_{tunable}"), value).expect("a tunable");
    }
}

/// Adds files to a cold directory, whose leaves cannot be read, until creates would be slowed down.
/// Returns the numbers of files whose creates would be.
fn fill_buffer(fs: &FileSystem, dir: Ino) -> Vec<u32> {
    let mut slowed = Vec::new();
    for number in FILES..2 * FILES {
        match fs.non_blocking().create(dir, &name(number), 0o644, ME) {
            Ok((entry, handle)) => {
                fs.release(handle);
                fs.forget(entry.attr.ino, 1);
            }
            Err(error) if error.to_string().contains("change buffer") => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                slowed.push(number);
                if slowed.len() == CREATES {
                    return slowed;
                }
            }
            // A filter that cannot tell, so that the create has to read a leaf, or a busy lock.
            Err(_) => {}
        }
    }
    panic!("{} creates would be slowed down", slowed.len());
}

/// More creates are slowed down than there are worker threads.
#[test]
fn slowed_creates_leave_threads_to_others() {
    let faults = Arc::new(FaultDevice::new(memory(256 * MIB), 5));
    let fixture = Fixture::on(Arc::clone(&faults) as Arc<dyn Device>);
    let fs = fixture.mount();
    buffer_names(&fs);
    let (filler, handle) = file(&fs, ROOT, b"filler");
    for at in (0..FILLER_BYTES).step_by(MIB as usize) {
        write(&fs, filler, at, &[1; MIB as usize]);
    }
    fs.release(handle);
    fs.forget(filler, 1);
    let dir = mkdir(&fs, ROOT, b"dir");
    for number in 0..FILES {
        if number % 1500 == 0 {
            // A leaf gets its filter with the first group that changes it in a large directory.
            fs.pool().sync().expect("a commit");
        }
        let (ino, handle) = file(&fs, dir, &name(number));
        fs.release(handle);
        fs.forget(ino, 1);
    }
    fs.forget(dir, 1);
    unmount(fs);
    fixture.cache.cache().clear();
    // Time stands still, so a delay never ends.
    let clock = Arc::new(ManualClock::new());
    let options = FsOptions { workers: 2, ..FsOptions::default() };
    let fs = fixture.mount_at(Arc::clone(&clock) as Arc<dyn Clock>, &options);
    buffer_names(&fs);
    let dir = fs.lookup(ROOT, b"dir").expect("it is there").attr.ino;
    // No memory is free, so the leaves are not read ahead.
    let filler = fs.lookup(ROOT, b"filler").expect("it is there").attr.ino;
    for at in (0..FILLER_BYTES).step_by(MIB as usize) {
        read(&fs, filler, at, MIB as usize);
    }
    fs.forget(filler, 1);
    // Loads all but the leaves.
    let (ino, handle) = file(&fs, dir, b"new");
    fs.release(handle);
    fs.forget(ino, 1);
    let _ = fs.non_blocking().create(dir, &name(2 * FILES), 0o644, ME);
    faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let slowed = fill_buffer(&fs, dir);

    let (done, creates) = mpsc::channel();
    for number in slowed {
        let done = done.clone();
        fs.spawn(Box::new(move |fs| {
            let made = fs.create(dir, &name(number), 0o644, ME);
            done.send(made.map(|(entry, handle)| {
                fs.release(handle);
                fs.forget(entry.attr.ino, 1);
            }))
            .expect("a receiver");
        }));
    }
    let (done, lookups) = mpsc::channel();
    fs.spawn(Box::new(move |fs| {
        done.send(fs.getattr(ROOT).map(|attr| attr.ino)).expect("a receiver");
    }));
    let found = lookups.recv_timeout(PATIENCE).expect("a thread for another operation");
    assert_eq!(found.expect("it is in memory"), ROOT);
    assert!(creates.try_recv().is_err(), "creates still wait");
    faults.clear();
    clock.advance(3_600_000_000_000);
    for _ in 0..CREATES {
        creates.recv_timeout(PATIENCE).expect("a delay that ends").expect("a new file");
    }
    fs.forget(dir, 1);
    unmount(fs);
}
