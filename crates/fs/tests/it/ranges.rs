//! Allocated and zeroed ranges: their space, and their steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_fs::{Caller, Client, ErrorKind, FallocateMode, FileSystem, Ino, SetAttr};

use crate::common::{Fixture, Killer, ME, MIB, ROOT, counter, file, read, unmount, write};

const ALLOCATE: FallocateMode = FallocateMode::Allocate { keep_size: false };
const KEEP_SIZE: FallocateMode = FallocateMode::Allocate { keep_size: true };
const ZERO: FallocateMode = FallocateMode::Zero { keep_size: false };

fn change(
    fs: &FileSystem,
    ino: Ino,
    offset: u64,
    len: u64,
    mode: FallocateMode,
) -> Option<ErrorKind> {
    let changed = fs.fallocate(ino, forebay_fs::Handle(ino.0), offset, len, mode, ME);
    changed.err().map(|error| error.kind())
}

/// The list of file systems shows what can be written, and nothing is reserved for these ranges.
#[test]
fn allocated_ranges_are_no_part_of_the_usage() {
    let fixture = Fixture::new(128 * MIB);
    let fs = fixture.mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    fs.pool().sync().unwrap();
    let before = fs.statfs().unwrap();
    assert_eq!(change(&fs, ino, 0, 100 * MIB, ALLOCATE), None);
    fs.pool().sync().unwrap();
    let after = fs.statfs().unwrap();
    assert_eq!(after.blocks, before.blocks, "the pool is as large as before");
    let used = |usage: forebay_fs::FsUsage| (usage.blocks - usage.free) * 4096;
    assert!(used(after) < used(before) + MIB, "{after:?}, before {before:?}");
    assert!(fs.getattr(ino).unwrap().blocks >= 100 * MIB / 512, "but it counts for the file");
    unmount(fs);
}

#[test]
fn data_that_exists_needs_no_space_to_be_allocated() {
    let fixture = Fixture::new(96 * MIB);
    let fs = fixture.mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    for at in 0..60 {
        write(&fs, ino, at * MIB, &vec![5; MIB as usize]);
    }
    for synced in [false, true] {
        let available = fs.statfs().unwrap().available * 4096;
        assert!(available < 40 * MIB, "{available}");
        assert_eq!(change(&fs, ino, 0, 60 * MIB, ALLOCATE), None, "synced: {synced}");
        // What is behind the end has to fit.
        assert_eq!(change(&fs, ino, 0, 61 * MIB, KEEP_SIZE), None, "synced: {synced}");
        let too_much = 60 * MIB + available + MIB;
        assert_eq!(change(&fs, ino, 0, too_much, ALLOCATE), Some(ErrorKind::NoSpace));
        fs.pool().sync().unwrap();
    }
    // And so have holes within, also those that were allocated before.
    let (sparse, _) = file(&fs, ROOT, b"sparse");
    let far = 60 * MIB;
    write(&fs, sparse, far, b"end");
    for _ in 0..2 {
        assert_eq!(change(&fs, sparse, 0, far, ALLOCATE), Some(ErrorKind::NoSpace));
        assert_eq!(change(&fs, sparse, 0, MIB, ALLOCATE), None);
    }
    unmount(fs);
}

#[test]
fn a_range_that_does_not_fit_is_not_zeroed() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    write(&fs, ino, 0, &[7; 100_000]);
    for keep_size in [false, true] {
        for len in [1 << 62, 1 << 40, 64 * MIB] {
            let mode = FallocateMode::Zero { keep_size };
            assert_eq!(change(&fs, ino, 0, len, mode), Some(ErrorKind::NoSpace), "{len}");
        }
    }
    let attr = fs.getattr(ino).unwrap();
    assert_eq!((attr.size, read(&fs, ino, 0, 200_000)), (100_000, vec![7; 100_000]));
    assert_eq!(change(&fs, ino, 50_000, 100_000, ZERO), None);
    assert_eq!(fs.getattr(ino).unwrap().size, 150_000);
    assert_eq!(read(&fs, ino, 49_999, 200_000)[..3], [7, 0, 0]);
    unmount(fs);
}

/// A file with a record in each of many parts of which each has an indirect block of its own.
fn scattered(fs: &FileSystem, parts: u64) -> (Ino, u64) {
    const PART: u64 = 512 * 8192;
    let (ino, _) = file(fs, ROOT, b"scattered");
    for part in 0..parts {
        write(fs, ino, part * PART, b"data");
    }
    // Indirect blocks exist from now on.
    fs.pool().sync().unwrap();
    (ino, parts * PART)
}

#[test]
fn a_killed_process_does_not_get_its_range_to_the_end() {
    let fixture = Fixture::new(4096 * MIB);
    let fs = fixture.mount();
    let (ino, end) = scattered(&fs, 300);
    let killer = Arc::new(Killer::default());
    killer.killed.store(7, Ordering::Relaxed);
    fs.set_client(Some(Arc::clone(&killer) as Arc<dyn Client>));
    let (killed, alive) = (fs.for_process(7), fs.for_process(8));
    // A hole is one step, however long it is.
    let (hole, _) = file(&fs, ROOT, b"hole");
    assert_eq!(change(&killed, hole, 0, end, ALLOCATE), None);
    assert_eq!(fs.getattr(hole).unwrap().size, end);

    let before = fs.getattr(ino).unwrap();
    assert_eq!(change(&killed, ino, 0, end, ALLOCATE), Some(ErrorKind::Interrupted));
    let part = fs.getattr(ino).unwrap();
    assert!(part.blocks > before.blocks && part.blocks < end / 512 / 100 * 99, "{part:?}");
    assert_eq!(part.size, before.size);
    assert_eq!(change(&alive, ino, 0, end, ALLOCATE), None);
    let all = fs.getattr(ino).unwrap();
    // A record of a few bytes is stored in less than a record.
    assert!(all.blocks > end / 512 / 100 * 99 && all.size == end, "{all:?}");
    assert_eq!(read(&fs, ino, 0, 6), *b"data\0\0");
    fs.set_client(None);
    drop((killed, alive));
    unmount(fs);
}

#[test]
fn a_killed_process_frees_its_range_and_the_inode_says_so() {
    for mode in [FallocateMode::Punch, ZERO] {
        let fixture = Fixture::new(4096 * MIB);
        let fs = fixture.mount();
        let (ino, end) = scattered(&fs, 300);
        assert_eq!(change(&fs, ino, 0, end, ALLOCATE), None);
        let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        let before = fs.setattr(ino, &set, ME).unwrap();
        let killer = Arc::new(Killer::default());
        killer.killed.store(7, Ordering::Relaxed);
        fs.set_client(Some(killer as Arc<dyn Client>));
        let killed = fs.for_process(7);
        let them = Caller { uid: 5, gid: 6, pid: 7 };
        let freed = killed.fallocate(ino, forebay_fs::Handle(ino.0), 0, end, mode, them);
        freed.expect("it goes on to the end");
        let steps = counter(&fs, "steps_freed");
        assert!(steps > 2, "{steps}");
        let after = fs.getattr(ino).unwrap();
        assert!(after.mtime > before.mtime && after.mode == 0o755, "{after:?}, before {before:?}");
        assert_eq!(read(&fs, ino, 0, 4), [0; 4]);
        fs.set_client(None);
        drop(killed);
        unmount(fs);
    }
}
