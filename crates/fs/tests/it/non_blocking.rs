//! Non-blocking mode on a slow device.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_fs::{
    ErrorKind, FallocateMode, FileKind, FileSystem, Handle, NewNode, RenameMode, Seek, SetAttr,
    XattrMode,
};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};

use crate::common::{Fixture, ME, MIB, ROOT, audit, file, memory, mkdir, read, unmount, write};

const NAMES: u32 = 3000;

/// A file system with nothing but its root in memory.
fn cold() -> (Arc<FaultDevice>, Fixture, FileSystem) {
    let faults = Arc::new(FaultDevice::new(memory(256 * MIB), 1));
    let fixture = Fixture::on(Arc::clone(&faults) as Arc<dyn Device>);
    let fs = fixture.mount();
    for n in 0..NAMES {
        let (ino, handle) = file(&fs, ROOT, format!("file {n}").as_bytes());
        write(&fs, ino, 0, &(n + 1).to_le_bytes().repeat(5000));
        fs.release(handle);
        fs.forget(ino, 1);
    }
    mkdir(&fs, ROOT, b"dir");
    unmount(fs);
    let fs = fixture.mount();
    fs.wait_for_reclaim();
    fs.pool().set_tunable("prefetch_max_bytes", "0").unwrap();
    fixture.cache.cache().clear();
    (faults, fixture, fs)
}

fn stall(faults: &FaultDevice) {
    faults.add(Rule::new(Fault::Delay(Duration::from_millis(300))).on(Op::Read));
}

#[track_caller]
fn would_block<T>(result: Result<T, forebay_fs::Error>) {
    let Err(error) = result else { panic!("it is not in memory") };
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
}

#[test]
fn operations_that_would_block_change_nothing() {
    let (faults, fixture, fs) = cold();
    let ino = fs.lookup(ROOT, b"file 7").unwrap().attr.ino;
    fs.pool().sync().unwrap();
    fixture.cache.cache().clear();
    stall(&faults);
    let handle = Handle(ino.0);
    let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let tried = fs.non_blocking();
    would_block(tried.lookup(ROOT, b"file 8"));
    would_block(tried.make(ROOT, b"new dir", &node, ME));
    would_block(tried.create(ROOT, b"new", 0o644, ME));
    would_block(tried.link(ino, ROOT, b"link"));
    would_block(tried.unlink(ROOT, b"file 7"));
    would_block(tried.rmdir(ROOT, b"dir"));
    would_block(tried.rename(ROOT, b"file 7", ROOT, b"other", RenameMode::Replace));
    would_block(tried.setattr(ino, &size, ME));
    would_block(tried.setattr(ino, &mode, ME));
    would_block(tried.setxattr(ino, b"user.x", b"1", XattrMode::Either));
    would_block(tried.write(ino, handle, 10, b"abc", Default::default()));
    would_block(tried.read(ino, handle, 0, 100, &mut |_| panic!("nothing is there")));
    would_block(tried.fallocate(ino, handle, 5, 50, FallocateMode::Punch, ME));
    would_block(tried.readdir(ROOT, Handle(1), 2, &mut |_| panic!("nothing is there")));
    would_block(tried.fsync(ino, false));
    // Attributes are in memory.
    assert_eq!(tried.getattr(ino).unwrap().nlink, 1);
    drop(tried);
    faults.clear();
    audit(&fs);
    assert_eq!(read(&fs, ino, 0, 30_000), 8u32.to_le_bytes().repeat(5000));
    let attr = fs.getattr(ino).unwrap();
    assert_eq!((attr.mode, attr.size, attr.nlink), (0o644, 20_000, 1));
    for name in [&b"new"[..], b"new dir", b"link", b"other"] {
        assert_eq!(fs.lookup(ROOT, name).unwrap_err().kind(), ErrorKind::NotFound);
    }
    unmount(fs);
}

#[test]
fn lookups_of_metadata_would_block() {
    let (faults, fixture, fs) = cold();
    let (ino, handle) = file(&fs, ROOT, b"sparse");
    for offset in [0, 100 * MIB] {
        write(&fs, ino, offset, b"x");
    }
    // Too large for the inode.
    fs.setxattr(ino, b"user.large", &[7; 3000], XattrMode::Either).unwrap();
    fs.pool().sync().unwrap();
    fs.pool().sync().unwrap();
    // The file is open. Only the indirect block of the second half is pinned.
    assert_eq!(read(&fs, ino, 100 * MIB, 10), b"x");
    fixture.cache.cache().clear();
    stall(&faults);
    let tried = fs.non_blocking();
    would_block(tried.seek(ino, handle, 0, Seek::Hole));
    would_block(tried.getxattr(ino, b"user.large"));
    would_block(tried.listxattr(ino, || true));
    would_block(tried.removexattr(ino, b"user.large"));
    would_block(tried.peek(ROOT, b"file 8"));
    would_block(tried.readdirplus(ROOT, Handle(1), 2, &mut |_, _| panic!("nothing is there")));
    would_block(tried.copy_range(ino, 0, ino, 200 * MIB, 1, ME));
    drop(tried);
    faults.clear();
    assert_eq!(fs.getxattr(ino, b"user.large").unwrap(), [7; 3000]);
    unmount(fs);
}

#[test]
fn reads_that_miss_complete_later_and_block_no_thread() {
    let (faults, _fixture, fs) = cold();
    let inos: Vec<_> = (0..20)
        .map(|n| fs.lookup(ROOT, format!("file {n}").as_bytes()).unwrap().attr.ino)
        .collect();
    // Reads are delayed until the rule is removed.
    faults.add(Rule::new(Fault::Delay(Duration::from_secs(3600))).on(Op::Read));
    let (send, receive) = channel();
    for (n, ino) in inos.iter().enumerate() {
        let send = send.clone();
        let done = move |bytes: Result<&[u8], forebay_fs::Error>| {
            send.send((n as u32, bytes.map(<[u8]>::to_vec))).unwrap();
        };
        fs.read_async(*ino, Handle(ino.0), 4, 16, Box::new(done));
    }
    // All reads were issued, and none has completed.
    let early = receive.try_recv().ok();
    assert!(early.is_none(), "{early:?}");
    faults.clear();
    for _ in &inos {
        let (n, bytes) = receive.recv().unwrap();
        assert_eq!(bytes.unwrap(), (n + 1).to_le_bytes().repeat(4));
    }
    let counter = |name| fs.stats().counters.iter().find(|row| row.0 == name).unwrap().2;
    assert!(counter("reads_fetched") >= 20);
    assert_eq!(counter("reads_offloaded"), 0);
    // A cached read completes at once.
    let done = {
        let send = send.clone();
        move |bytes: Result<&[u8], forebay_fs::Error>| {
            send.send((0, bytes.map(<[u8]>::to_vec))).unwrap();
        }
    };
    fs.read_async(inos[0], Handle(inos[0].0), 4, 16, Box::new(done));
    assert_eq!(receive.try_recv().unwrap().1.unwrap(), 1u32.to_le_bytes().repeat(4));
    unmount(fs);
}
