//! Write-back errors: `fsync` fails until the lost data is replaced.

use std::sync::Arc;

use forebay_fs::{ErrorKind, FallocateMode, FileSystem, Handle, Ino, SetAttr, Write};
use forebay_io::fault::{Crash, Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Priority};

use crate::common::{Fixture, ME, MIB, ROOT, file, memory, read, unmount, write};

fn fsync(fs: &FileSystem, ino: Ino) -> Option<ErrorKind> {
    let synced = [false, true].map(|data_only| fs.fsync(ino, data_only).err());
    let [all, data] = synced.map(|error| error.map(|error| error.kind()));
    assert_eq!(all, data);
    all
}

fn write_back(fs: &FileSystem, ino: Ino, offset: u64, data: &[u8]) -> Result<usize, ErrorKind> {
    fs.write_back(ino, Handle(ino.0), offset, data, Write::default()).map_err(|error| error.kind())
}

#[test]
fn fsync_fails_until_a_write_without_space_is_repeated() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (filler, handle) = file(&fs, ROOT, b"filler");
    let (ino, _) = file(&fs, ROOT, b"lost");
    let (other, _) = file(&fs, ROOT, b"other");
    let mut end = 0;
    while fs.write(filler, handle, end, &[7; 100_000], Write::default()).is_ok() {
        end += 100_000;
    }
    assert_eq!(write_back(&fs, ino, 0, &vec![1; MIB as usize]), Err(ErrorKind::NoSpace));
    for _ in 0..2 {
        assert_eq!(fsync(&fs, ino), Some(ErrorKind::Io));
        assert_eq!(fsync(&fs, other), None);
        fs.pool().sync().unwrap();
    }
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(filler, &set, ME).unwrap();
    // Freed space becomes available after a later transaction group.
    (0..4).for_each(|_| fs.pool().sync().unwrap());
    assert_eq!(fsync(&fs, ino), Some(ErrorKind::Io), "it is still not there");
    assert_eq!(write_back(&fs, ino, 0, &vec![1; MIB as usize]), Ok(MIB as usize));
    assert_eq!(fsync(&fs, ino), None);
    unmount(fs);
}

#[test]
fn truncating_punching_or_unlinking_clears_a_lost_range() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"name");
    write(&fs, ino, 0, b"content");
    let beyond = i64::MAX as u64 - 10;
    let lose = |ino| {
        assert_eq!(write_back(&fs, ino, beyond, &[1; 20]), Err(ErrorKind::FileTooLarge));
        assert_eq!(fsync(&fs, ino), Some(ErrorKind::Io));
    };
    lose(ino);
    let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(ino, &cut(beyond + 5), ME).unwrap();
    assert_eq!(fsync(&fs, ino), Some(ErrorKind::Io), "some of it is below the end");
    fs.setattr(ino, &cut(7), ME).unwrap();
    assert_eq!(fsync(&fs, ino), None);
    assert_eq!(read(&fs, ino, 0, 100), b"content");
    lose(ino);
    fs.setattr(ino, &cut(beyond + 9), ME).unwrap();
    fs.fallocate(ino, handle, beyond, 9, FallocateMode::Punch, ME).unwrap();
    assert_eq!(fsync(&fs, ino), None);
    lose(ino);
    // Evict and reload the inode: the data is still lost.
    fs.release(handle);
    fs.forget(ino, 1);
    assert_eq!(fs.lookup(ROOT, b"name").unwrap().attr.ino, ino);
    assert_eq!(fsync(&fs, ino), Some(ErrorKind::Io));
    fs.unlink(ROOT, b"name").unwrap();
    fs.forget(ino, 1);
    fs.wait_for_reclaim();
    // A reused number does not inherit the error.
    for n in 0..100u8 {
        let (next, _) = file(&fs, ROOT, format!("n{n}").as_bytes());
        assert_eq!(fsync(&fs, next), None);
    }
    unmount(fs);
}

/// A file system on a device with fault injection, with a file whose content is not durable.
fn failing() -> (Arc<dyn Device>, Arc<FaultDevice>, FileSystem, Ino) {
    let device = memory(96 * MIB);
    let faults = Arc::new(FaultDevice::new(Arc::clone(&device), 5));
    let fs = Fixture::on(Arc::clone(&faults) as Arc<dyn Device>).mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    fs.pool().sync().unwrap();
    write(&fs, ino, 0, b"content");
    (device, faults, fs, ino)
}

#[test]
fn after_a_failed_log_write_fsync_commits_the_txg_or_fails() {
    let (device, faults, fs, ino) = failing();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write).at(Priority::SyncWrite).times(1));
    assert_eq!(fs.fsync(ino, false).map_err(|error| error.kind()), Ok(()));
    assert_eq!(faults.injected().len(), 1, "the log was written");
    faults.crash(Crash::LoseAll).unwrap();
    let _ = fs.close();
    let fs = Fixture::of(device).mount();
    let ino = fs.lookup(ROOT, b"name").unwrap().attr.ino;
    assert_eq!(read(&fs, ino, 0, 100), b"content");
}

#[test]
fn fsync_never_succeeds_on_a_suspended_pool() {
    let (_, faults, fs, ino) = failing();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    assert!(fsync(&fs, ino).is_some());
    // The device works again, but the unwritten data is lost.
    faults.clear();
    for _ in 0..3 {
        assert_eq!(fsync(&fs, ino), Some(ErrorKind::Suspended));
    }
    assert_eq!(write_back(&fs, ino, 0, b"more"), Err(ErrorKind::Suspended));
    assert_eq!(fsync(&fs, ino), Some(ErrorKind::Io));
    let _ = fs.close();
}
