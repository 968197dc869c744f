//! Single-threaded tests of each operation.

use forebay_fs::format::{InodePhys, RESERVED_BYTES};
use forebay_fs::{
    Caller, ErrorKind, FallocateMode, FileKind, FileSystem, Handle, Ino, NewNode, RenameMode,
    SetAttr, XattrMode,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{
    Fixture, ME, MIB, NAME, ROOT, counter, file, list, mkdir, read, symlink, unmount, write,
};

fn kind<T: std::fmt::Debug>(result: Result<T, forebay_fs::Error>) -> ErrorKind {
    result.expect_err("it is refused").kind()
}

#[test]
fn files_are_there_after_a_remount() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let dir = mkdir(&fs, ROOT, b"dir");
    let (ino, handle) = file(&fs, dir, b"name");
    let content: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    write(&fs, ino, 5000, &content);
    fs.link(ino, ROOT, b"other").unwrap();
    let long = [b'x'; 3000];
    symlink(&fs, dir, b"short", b"some/where");
    symlink(&fs, dir, b"long", &long);
    fs.setxattr(ino, b"user.one", b"1", XattrMode::Create).unwrap();
    fs.setxattr(ino, b"user.large", &[7; 60_000], XattrMode::Either).unwrap();
    fs.release(handle);
    let attr = fs.getattr(ino).unwrap();
    assert_eq!((attr.nlink, attr.size, attr.kind), (2, 105_000, FileKind::File));
    unmount(fs);

    let fs = fixture.mount();
    let dir = fs.lookup(ROOT, b"dir").unwrap().attr;
    assert_eq!((dir.nlink, dir.kind), (2, FileKind::Directory));
    let found = fs.lookup(dir.ino, b"name").unwrap().attr;
    assert_eq!(fs.lookup(ROOT, b"other").unwrap().attr, found);
    // The block count was an estimate before the content was written.
    assert_eq!(found, forebay_fs::Attr { blocks: found.blocks, blocks_estimated: false, ..attr });
    assert!(found.blocks >= 100_000 / 512, "{}", found.blocks);
    assert_eq!(read(&fs, ino, 5000, 200_000), content);
    assert_eq!(read(&fs, ino, 0, 5000), [0; 5000]);
    let long_ino = fs.lookup(dir.ino, b"long").unwrap().attr;
    assert_eq!(long_ino.size, 3000);
    assert_eq!(fs.readlink(long_ino.ino).unwrap(), long);
    let short = fs.lookup(dir.ino, b"short").unwrap().attr.ino;
    assert_eq!(fs.readlink(short).unwrap(), b"some/where");
    assert_eq!(fs.getxattr(ino, b"user.one").unwrap(), b"1");
    assert_eq!(fs.getxattr(ino, b"user.large").unwrap(), [7; 60_000]);
    assert_eq!(fs.listxattr(ino, || true).unwrap(), [&b"user.one"[..], b"user.large"]);
    fs.removexattr(ino, b"user.large").unwrap();
    assert_eq!(kind(fs.getxattr(ino, b"user.large")), ErrorKind::NoAttribute);
    assert_eq!(
        list(&fs, dir.ino).iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(),
        [&b"long"[..], b"name", b"short"]
    );
    unmount(fs);
}

#[test]
fn trusted_names_are_listed_for_administrators_only() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    fs.setxattr(ino, b"user.one", b"1", XattrMode::Create).unwrap();
    // Who has none is not asked.
    assert_eq!(fs.listxattr(ino, || unreachable!("nothing is hidden")).unwrap(), [b"user.one"]);
    fs.setxattr(ino, b"trusted.two", b"2", XattrMode::Create).unwrap();
    fs.setxattr(ino, b"security.three", b"3", XattrMode::Create).unwrap();
    assert_eq!(fs.listxattr(ino, || false).unwrap(), [&b"user.one"[..], b"security.three"]);
    assert_eq!(fs.listxattr(ino, || true).unwrap().len(), 3);
    unmount(fs);
}

/// Reserved bytes of an inode.
fn reserved(fs: &FileSystem, ino: Ino) -> [u8; RESERVED_BYTES] {
    let attributes = fs.pool().dataset(NAME).unwrap().object_info(ino.0 - 2).unwrap().attributes;
    InodePhys::read_from_prefix(&attributes).unwrap().0.reserved
}

#[test]
fn reserved_bytes_of_an_inode_survive_its_changes() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"name");
    fs.release(handle);
    assert_eq!(reserved(&fs, ino), [0; RESERVED_BYTES]);
    unmount(fs);

    let later: [u8; RESERVED_BYTES] = std::array::from_fn(|at| at as u8 + 1);
    let pool = fixture.pool();
    let dataset = pool.dataset(NAME).unwrap();
    let attributes = dataset.object_info(ino.0 - 2).unwrap().attributes;
    let (mut phys, rest) = InodePhys::read_from_prefix(&attributes).unwrap();
    phys.reserved = later;
    let tx = pool.begin().unwrap();
    dataset.set_attributes(&tx, ino.0 - 2, &[phys.as_bytes(), rest].concat()).unwrap();
    drop((tx, dataset));
    pool.export().unwrap();

    let fs = fixture.mount();
    let ino = fs.lookup(ROOT, b"name").unwrap().attr.ino;
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(ino, &mode, ME).unwrap();
    fs.link(ino, ROOT, b"other").unwrap();
    write(&fs, ino, 0, &[1; 100]);
    fs.setxattr(ino, b"user.inline", &[2; 50], XattrMode::Create).unwrap();
    fs.setxattr(ino, b"user.spilled", &[3; 500], XattrMode::Create).unwrap();
    unmount(fs);
    let fs = fixture.mount();
    assert_eq!(fs.getxattr(ino, b"user.inline").unwrap(), [2; 50]);
    assert_eq!(fs.getxattr(ino, b"user.spilled").unwrap(), [3; 500]);
    assert_eq!(fs.getattr(ino).unwrap().mode, 0o600);
    assert_eq!(reserved(&fs, ino), later);
    unmount(fs);
}

#[test]
fn an_unlinked_file_lives_while_it_is_used() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"name");
    write(&fs, ino, 0, b"still here");
    fs.unlink(ROOT, b"name").unwrap();
    assert_eq!(kind(fs.lookup(ROOT, b"name")), ErrorKind::NotFound);
    assert_eq!(kind(fs.link(ino, ROOT, b"again")), ErrorKind::NotFound);
    assert_eq!(read(&fs, ino, 0, 100), b"still here");
    assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
    assert_eq!(fs.stats().orphans, 1);
    fs.forget(ino, 1);
    assert_eq!(read(&fs, ino, 0, 100), b"still here");
    fs.release(handle);
    fs.wait_for_reclaim();
    assert_eq!(fs.stats().orphans, 0);
    assert_eq!(kind(fs.getattr(ino)), ErrorKind::Stale);
    unmount(fs);
}

#[test]
fn a_file_unlinked_while_open_is_destroyed_at_the_next_mount() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    write(&fs, ino, 0, &[1; 100_000]);
    fs.unlink(ROOT, b"name").unwrap();
    unmount(fs);
    let fs = fixture.mount();
    fs.wait_for_reclaim();
    assert_eq!(fs.stats().orphans, 0);
    unmount(fs);
}

#[test]
fn directories_count_their_subdirectories() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let one = mkdir(&fs, ROOT, b"one");
    let two = mkdir(&fs, ROOT, b"two");
    let three = mkdir(&fs, one, b"three");
    let nlink = |ino| fs.getattr(ino).unwrap().nlink;
    assert_eq!((nlink(ROOT), nlink(one), nlink(two), nlink(three)), (4, 3, 2, 2));
    assert_eq!(kind(fs.rmdir(ROOT, b"one")), ErrorKind::NotEmpty);
    assert_eq!(kind(fs.unlink(ROOT, b"one")), ErrorKind::IsADirectory);
    let rename = |from, name: &[u8], to, new: &[u8], mode| fs.rename(from, name, to, new, mode);
    assert_eq!(kind(rename(ROOT, b"one", three, b"in", RenameMode::Replace)), ErrorKind::Invalid);
    assert_eq!(kind(rename(ROOT, b"one", one, b"in", RenameMode::Replace)), ErrorKind::Invalid);
    assert_eq!(kind(rename(ROOT, b"one", ROOT, b"two", RenameMode::NoReplace)), ErrorKind::Exists);
    rename(one, b"three", two, b"four", RenameMode::Replace).unwrap();
    assert_eq!((nlink(ROOT), nlink(one), nlink(two), nlink(three)), (4, 2, 3, 2));
    assert_eq!(kind(rename(ROOT, b"one", ROOT, b"two", RenameMode::Replace)), ErrorKind::NotEmpty);
    rename(ROOT, b"one", two, b"four", RenameMode::Exchange).unwrap();
    assert_eq!((nlink(ROOT), nlink(one), nlink(two), nlink(three)), (4, 2, 3, 2));
    let mut seen = Vec::new();
    fs.readdir(three, forebay_fs::Handle(three.0), 0, &mut |entry| {
        seen.push((entry.name.to_vec(), entry.ino));
        true
    })
    .unwrap();
    assert_eq!(seen, [(b".".to_vec(), three), (b"..".to_vec(), ROOT)]);
    let (_, _) = file(&fs, ROOT, b"file");
    assert_eq!(
        kind(rename(ROOT, b"file", ROOT, b"one", RenameMode::Replace)),
        ErrorKind::IsADirectory
    );
    assert_eq!(
        kind(rename(ROOT, b"one", ROOT, b"file", RenameMode::Replace)),
        ErrorKind::NotADirectory
    );
    rename(ROOT, b"file", two, b"four", RenameMode::Exchange).unwrap();
    assert_eq!((nlink(ROOT), nlink(two)), (5, 2));
    fs.rmdir(ROOT, b"file").unwrap();
    assert_eq!(
        kind(fs.make(
            one,
            b"x",
            &NewNode { kind: FileKind::Fifo, mode: 0, rdev: 0, target: None },
            ME
        )),
        ErrorKind::NotFound
    );
    fs.unlink(two, b"four").unwrap();
    fs.rmdir(ROOT, b"two").unwrap();
    fs.rmdir(ROOT, b"one").unwrap();
    assert_eq!(nlink(ROOT), 2);
    unmount(fs);
}

#[test]
fn owners_and_modes_follow_the_rules() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let dir = mkdir(&fs, ROOT, b"dir");
    let set = SetAttr { mode: Some(0o2775), gid: Some(77), ..SetAttr::default() };
    fs.setattr(dir, &set, ME).unwrap();
    let them = Caller { uid: 5, gid: 6, pid: 0 };
    let (entry, handle) = fs.create(dir, b"file", 0o6755, them).unwrap();
    assert_eq!((entry.attr.uid, entry.attr.gid, entry.attr.mode), (5, 77, 0o4755));
    let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
    let below = fs.make(dir, b"below", &node, them).unwrap().attr;
    assert_eq!((below.gid, below.mode), (77, 0o2755));
    let ino = entry.attr.ino;
    let before = fs.getattr(ino).unwrap();
    let after = fs.setattr(ino, &SetAttr { size: Some(10), ..SetAttr::default() }, them).unwrap();
    assert_eq!((after.mode, after.size), (0o755, 10));
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    fs.setattr(ino, &SetAttr { mode: Some(0o6711), ..SetAttr::default() }, ME).unwrap();
    let how = forebay_fs::Write { clear_suid: Some(them), ..Default::default() };
    fs.write(ino, handle, 0, b"x", how).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().mode, 0o711);
    unmount(fs);
}

#[test]
fn ranges_can_be_punched_copied_and_extended() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"one");
    let (other, _) = file(&fs, ROOT, b"two");
    write(&fs, ino, 0, &[1; 50_000]);
    fs.fallocate(ino, handle, 10_000, 20_000, FallocateMode::Punch, ME).unwrap();
    let mut wanted = vec![1; 50_000];
    wanted[10_000..30_000].fill(0);
    assert_eq!(read(&fs, ino, 0, 100_000), wanted);
    assert_eq!(fs.copy_range(ino, 5000, other, 7, 100_000, ME).unwrap(), 45_000);
    assert_eq!(read(&fs, other, 7, 100_000), &wanted[5000..]);
    assert_eq!(kind(fs.copy_range(ino, 0, ino, 10, 11, ME)), ErrorKind::Invalid);
    let mode = FallocateMode::Allocate { keep_size: true };
    fs.fallocate(ino, handle, 0, 60_000, mode, ME).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().size, 50_000);
    let mode = FallocateMode::Zero { keep_size: false };
    fs.fallocate(ino, handle, 40_000, 20_000, mode, ME).unwrap();
    wanted.truncate(40_000);
    wanted.resize(60_000, 0);
    assert_eq!(read(&fs, ino, 0, 100_000), wanted);
    let mode = FallocateMode::Allocate { keep_size: false };
    assert_eq!(kind(fs.fallocate(ino, handle, 0, 1 << 40, mode, ME)), ErrorKind::NoSpace);
    assert_eq!(
        kind(fs.fallocate(ino, handle, i64::MAX as u64, 1, mode, ME)),
        ErrorKind::FileTooLarge
    );
    unmount(fs);
}

#[test]
fn a_fallocated_range_counts_whole_blocks_until_it_is_written_or_freed() {
    let fixture = Fixture::new(256 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"edge");
    let mode = FallocateMode::Allocate { keep_size: false };
    fs.fallocate(ino, handle, 4095, 2, mode, ME).unwrap();
    let before = fs.getattr(ino).unwrap();
    assert_eq!((before.size, before.blocks), (4097, 16), "both blocks of 4 KiB");
    write(&fs, ino, 4095, b"cd");
    assert!(fs.getattr(ino).unwrap().blocks <= before.blocks);
    fs.pool().sync().unwrap();
    assert!(fs.getattr(ino).unwrap().blocks <= before.blocks);

    let (ino, handle) = file(&fs, ROOT, b"large");
    fs.fallocate(ino, handle, 0, 100 * MIB, mode, ME).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 100 * MIB / 512);
    fs.fallocate(ino, handle, 0, 100 * MIB, mode, ME).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 100 * MIB / 512, "nothing counts twice");
    let set = SetAttr { size: Some(80 * MIB), ..SetAttr::default() };
    for synced in [false, true] {
        let attr = fs.setattr(ino, &set, ME).unwrap();
        assert!(attr.blocks.abs_diff(80 * MIB / 512) < 80 * MIB / 512 / 100, "{synced}: {attr:?}");
        fs.pool().sync().unwrap();
    }
    fs.fallocate(ino, handle, 0, 40 * MIB, FallocateMode::Punch, ME).unwrap();
    let blocks = fs.getattr(ino).unwrap().blocks;
    assert!(blocks.abs_diff(40 * MIB / 512) < 1000, "{blocks}");
    let keep = FallocateMode::Allocate { keep_size: true };
    fs.fallocate(ino, handle, 80 * MIB, 20 * MIB, keep, ME).unwrap();
    let attr = fs.getattr(ino).unwrap();
    assert_eq!(attr.size, 80 * MIB);
    assert!(attr.blocks.abs_diff(60 * MIB / 512) < 1000, "behind the end: {attr:?}");
    fs.setattr(ino, &set, ME).unwrap();
    let blocks = fs.getattr(ino).unwrap().blocks;
    assert!(blocks.abs_diff(40 * MIB / 512) < 1000, "freed with the same size: {blocks}");
    assert_eq!(read(&fs, ino, 50 * MIB, 100), [0; 100]);
    unmount(fs);
}

#[test]
fn block_count_is_an_estimate_until_written() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (zeros, _) = file(&fs, ROOT, b"zeros");
    let (data, _) = file(&fs, ROOT, b"data");
    assert!(!fs.getattr(zeros).unwrap().blocks_estimated, "nothing to estimate yet");
    fs.pool().sync().unwrap();
    write(&fs, zeros, 0, &[0; 100_000]);
    write(&fs, data, 0, &[7; 100_000]);
    let attr = fs.getattr(zeros).unwrap();
    // The timer may have written the transaction group.
    assert_eq!(attr.blocks_estimated, attr.blocks > 0);
    fs.pool().sync().unwrap();
    let attr = fs.getattr(zeros).unwrap();
    assert_eq!((attr.blocks, attr.blocks_estimated), (0, false), "zeros take nothing");
    let attr = fs.getattr(data).unwrap();
    assert!(attr.blocks >= 100_000 / 512 && !attr.blocks_estimated, "{attr:?}");
    unmount(fs);
}

#[test]
fn an_estimate_survives_eviction_of_the_inode() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (zeros, handle) = file(&fs, ROOT, b"zeros");
    write(&fs, zeros, 0, &[0; 100_000]);
    let dirty = fs.getattr(zeros).unwrap();
    fs.release(handle);
    fs.forget(zeros, 1);
    // Writes its times but not its content.
    fs.wait_for_reclaim();
    let before = counter(&fs, "inodes_loaded");
    let again = fs.lookup(ROOT, b"zeros").unwrap().attr;
    assert_eq!(counter(&fs, "inodes_loaded"), before + 1, "it was read again");
    // Unless the timer has written the transaction group.
    assert_eq!(again.blocks_estimated, again.blocks > 0, "{again:?}, before {dirty:?}");
    fs.pool().sync().unwrap();
    let attr = fs.getattr(zeros).unwrap();
    assert_eq!((attr.blocks, attr.blocks_estimated), (0, false), "zeros take nothing");
    unmount(fs);
}

#[test]
fn space_reserved_for_unwritten_zeros_can_be_allocated() {
    let fixture = Fixture::new(128 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"name");
    let available = fs.statfs().unwrap().available * 4096;
    for at in 0..40 {
        write(&fs, ino, at * MIB, &[0; MIB as usize]);
    }
    let mode = FallocateMode::Allocate { keep_size: true };
    fs.fallocate(ino, handle, 40 * MIB, available - 4 * MIB, mode, ME).unwrap();
    fs.release(handle);
    unmount(fs);
}

#[test]
fn block_count_of_a_directory_follows_its_names() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let dir = mkdir(&fs, ROOT, b"names");
    let takes = |wanted: &str| {
        fs.pool().sync().unwrap();
        let attr = fs.getattr(dir).unwrap();
        assert!(!attr.blocks_estimated, "{wanted}: {attr:?}");
        attr.blocks
    };
    assert_eq!(takes("empty"), 0, "it lies where its attributes do");
    for n in 0..2_000 {
        symlink(&fs, dir, format!("name-{n}").as_bytes(), b"/");
    }
    let full = takes("full");
    assert!(full > 0);
    for n in 0..2_000 {
        fs.unlink(dir, format!("name-{n}").as_bytes()).unwrap();
    }
    assert_eq!(takes("empty again"), 0, "of {full}");
    unmount(fs);
}

#[test]
fn a_full_file_system_says_that_it_is_full() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let empty = fs.statfs().unwrap();
    assert!(empty.available < empty.free, "some is reserved for deletes: {empty:?}");
    let (ino, handle) = file(&fs, ROOT, b"name");
    let mut end = 0;
    while fs.write(ino, handle, end, &[7; 100_000], Default::default()).is_ok() {
        end += 100_000;
        assert!(end < 64 * MIB, "it ends");
    }
    assert!(end > 48 * MIB, "ended at {end}");
    // Full before all of it is written out, and after that.
    let full = fs.statfs().unwrap();
    assert!(full.available * 4096 < 4 * MIB, "{full:?}");
    fs.pool().sync().unwrap();
    let full = fs.statfs().unwrap();
    assert!(full.available * 4096 < 4 * MIB, "{full:?}");
    assert!(full.free > full.available, "the reserve for deletes is free: {full:?}");
    let mode = FallocateMode::Allocate { keep_size: true };
    let wanted = full.free * 4096;
    assert_eq!(kind(fs.fallocate(ino, handle, end, wanted, mode, ME)), ErrorKind::NoSpace);
    fs.release(handle);
    fs.unlink(ROOT, b"name").unwrap();
    fs.forget(ino, 1);
    fs.wait_for_reclaim();
    for _ in 0..4 {
        fs.pool().sync().unwrap();
    }
    let after = fs.statfs().unwrap();
    assert!(after.available > empty.available / 10 * 9, "{after:?}, before {empty:?}");
    unmount(fs);
}

/// Fills a file system until neither data nor names fit.
fn fill(fs: &FileSystem) -> Ino {
    // No timer commits a transaction group.
    fs.pool().set_tunable("txg_timeout_ms", "600000").unwrap();
    let (ino, handle) = file(fs, ROOT, b"filler");
    let mut end = 0;
    for bytes in [100_000, 4096] {
        while fs.write(ino, handle, end, &vec![7; bytes], Default::default()).is_ok() {
            end += bytes as u64;
        }
    }
    let refused = (0..100_000).find_map(|n| {
        fs.create(ROOT, format!("small {n}").as_bytes(), 0o644, ME).err().map(|error| error.kind())
    });
    assert_eq!(refused, Some(ErrorKind::NoSpace));
    ino
}

#[test]
fn a_full_file_system_can_be_changed_and_tidied_up() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, _) = file(&fs, ROOT, b"name");
    write(&fs, ino, 0, &[1; 50_000]);
    fs.setxattr(ino, b"user.one", &[3; 2000], XattrMode::Either).unwrap();
    let dir = mkdir(&fs, ROOT, b"dir");
    let filler = fill(&fs);
    let full = kind(fs.setxattr(ino, b"user.two", &[3; 2000], XattrMode::Either));
    assert_eq!(full, ErrorKind::NoSpace, "new content is refused");
    let size = |bytes| SetAttr { size: Some(bytes), ..SetAttr::default() };
    // Many, with commits in between: none of this wears out the reserve.
    for round in 0..100u64 {
        let mode = SetAttr { mode: Some(0o600 + (round % 8) as u16), ..SetAttr::default() };
        fs.setattr(ino, &mode, ME).unwrap();
        let (old, new) = (format!("name {round}"), format!("name {}", round + 1));
        let old = if round == 0 { "name" } else { &*old };
        let (from, to) = if round % 2 == 0 { (ROOT, dir) } else { (dir, ROOT) };
        fs.rename(from, old.as_bytes(), to, new.as_bytes(), RenameMode::Replace).unwrap();
        fs.setattr(ino, &size(49_999 - round * 100), ME).unwrap();
        fs.setattr(ino, &size(60_000), ME).unwrap();
        if round % 10 == 0 {
            fs.pool().sync().unwrap();
        }
    }
    fs.removexattr(ino, b"user.one").unwrap();
    fs.unlink(ROOT, b"name 100").unwrap();
    fs.setattr(filler, &size(0), ME).unwrap();
    let (ino, _) = file(&fs, ROOT, b"new");
    write(&fs, ino, 0, &[1; 50_000]);
    unmount(fs);
}

#[test]
fn a_refusal_in_a_full_file_system_commits_one_group_at_most() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let filler = fill(&fs);
    let txg = || fs.pool().stats().synced_txg;
    for round in 0..20 {
        let before = txg();
        let refused = match round % 2 {
            0 => kind(fs.write(filler, Handle(filler.0), 0, &[1; 100_000], Default::default())),
            _ => kind(fs.create(ROOT, b"another", 0o644, ME)),
        };
        assert_eq!(refused, ErrorKind::NoSpace);
        assert!(txg() <= before + 1, "{} groups for a refusal", txg() - before);
    }
    // What is freed is found, although it is reusable only some groups later.
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(filler, &set, ME).unwrap();
    write(&fs, filler, 0, &[1; 100_000]);
    unmount(fs);
}

#[test]
fn nothing_changes_on_a_pool_that_is_read_only() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"name");
    write(&fs, ino, 0, b"content");
    let (_, orphan) = file(&fs, ROOT, b"orphan");
    fs.unlink(ROOT, b"orphan").unwrap();
    unmount(fs);
    let fs = fixture.mount_read_only();
    let attr = fs.lookup(ROOT, b"name").unwrap().attr;
    assert_eq!(read(&fs, ino, 0, 100), b"content");
    assert_eq!(kind(fs.unlink(ROOT, b"name")), ErrorKind::ReadOnly);
    assert_eq!(kind(fs.create(ROOT, b"new", 0o644, ME)), ErrorKind::ReadOnly);
    fs.fsync(ino, false).expect("there is nothing to write");
    fs.fsyncdir(ROOT).expect("there is nothing to write");
    assert_eq!(fs.getattr(ino).unwrap(), attr);
    fs.release(handle);
    fs.release(orphan);
    // A read-only mount leaves orphans alone.
    assert_eq!(fs.stats().orphans, 1);
    let report = fs.audit().unwrap();
    assert!(report.is_clean(), "{report}");
    fs.close().unwrap();
    assert_eq!(kind(fs.getattr(ino)), ErrorKind::Closed);
}

#[test]
fn content_changes_by_others_clear_set_user_id() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (ino, handle) = file(&fs, ROOT, b"program");
    let (other, other_handle) = file(&fs, ROOT, b"source");
    write(&fs, ino, 0, &[1; 30_000]);
    write(&fs, other, 0, &[2; 1000]);
    let modes = [
        FallocateMode::Punch,
        FallocateMode::Zero { keep_size: true },
        FallocateMode::Zero { keep_size: false },
        FallocateMode::Allocate { keep_size: false },
        FallocateMode::Allocate { keep_size: true },
    ];
    let mut end = 40_000;
    // By root, by a member of the file's group, and by another user.
    for (mode, left) in [(0o6755, [0o6755, 0o755, 0o755]), (0o6744, [0o6744, 0o2744, 0o744])] {
        for ((uid, gid), left) in [(0, 7), (7, 0), (7, 7)].into_iter().zip(left) {
            let caller = Caller { uid, gid, pid: 0 };
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            for how in modes {
                fs.setattr(ino, &set, ME).unwrap();
                end += 1000;
                fs.fallocate(ino, handle, 5000, end - 5000, how, caller).unwrap();
                assert_eq!(fs.getattr(ino).unwrap().mode, left, "{how:?} by {uid}");
            }
            fs.setattr(ino, &set, ME).unwrap();
            assert_eq!(fs.copy_range(other, 0, ino, 0, 1000, caller).unwrap(), 1000);
            assert_eq!(fs.getattr(ino).unwrap().mode, left, "a copy by {uid}");
        }
    }
    for (ino, handle) in [(ino, handle), (other, other_handle)] {
        fs.release(handle);
        fs.forget(ino, 1);
    }
    unmount(fs);
}
