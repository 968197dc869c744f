//! Several threads in the same directories.

use forebay_base::rng::SmallRng;
use forebay_fs::{
    ErrorKind, FileKind, FileSystem, FsOptions, Handle, Ino, NewNode, RenameMode, SetAttr,
    XattrMode,
};

use crate::common::{Fixture, ME, MIB, ROOT, audit, list, unmount};

const THREADS: u64 = 4;
const STEPS: usize = 3000;

/// Lookups and handles of a thread, to be given back.
#[derive(Default)]
struct Mine {
    inos: Vec<Ino>,
    open: Vec<Handle>,
}

/// Errors that concurrent changes of the same names may cause.
fn expected(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::Exists
            | ErrorKind::NotEmpty
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::Invalid
            | ErrorKind::Stale
            | ErrorKind::NotPermitted
            | ErrorKind::NoAttribute
    )
}

fn step(
    fs: &FileSystem,
    rng: &mut SmallRng,
    dirs: &[Ino],
    mine: &mut Mine,
) -> Result<(), forebay_fs::Error> {
    let pick = |rng: &mut SmallRng, list: &[Ino]| list[rng.below(list.len() as u64) as usize];
    let name = |rng: &mut SmallRng| format!("n{}", rng.below(12)).into_bytes();
    let (dir, to) = (pick(rng, dirs), pick(rng, dirs));
    let (one, two) = (name(rng), name(rng));
    let some = |rng: &mut SmallRng, mine: &Mine| match mine.inos.is_empty() {
        true => ROOT,
        false => mine.inos[rng.below(mine.inos.len() as u64) as usize],
    };
    match rng.below(14) {
        0 | 1 => {
            let (entry, handle) = fs.create(dir, &one, 0o644, ME)?;
            mine.inos.push(entry.attr.ino);
            mine.open.push(handle);
        }
        2 => {
            let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
            mine.inos.push(fs.make(dir, &one, &node, ME)?.attr.ino);
        }
        3 => {
            let target = vec![b'x'; 1 + rng.below(2000) as usize];
            let node = NewNode { kind: FileKind::Symlink, mode: 0, rdev: 0, target: Some(&target) };
            mine.inos.push(fs.make(dir, &one, &node, ME)?.attr.ino);
        }
        4 => mine.inos.push(fs.lookup(dir, &one)?.attr.ino),
        5 | 6 => fs.unlink(dir, &one)?,
        7 => fs.rmdir(dir, &one)?,
        8 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            fs.rename(dir, &one, to, &two, modes[rng.below(3) as usize])?;
        }
        9 => mine.inos.push(fs.link(some(rng, mine), dir, &one)?.attr.ino),
        10 => {
            let ino = some(rng, mine);
            change_content(fs, rng, ino)?;
        }
        11 => {
            let value = vec![2; rng.below(1000) as usize];
            fs.setxattr(some(rng, mine), b"user.x", &value, XattrMode::Either)?;
        }
        12 => {
            if let Some(handle) = mine.open.pop() {
                fs.release(handle);
            }
            if let Some(ino) = mine.inos.pop() {
                fs.forget(ino, 1);
            }
        }
        _ => {
            let mut plus = Vec::new();
            fs.readdirplus(dir, Handle(dir.0), 2, &mut |entry, attr| {
                assert!(attr.is_none_or(|attr| attr.ino == entry.ino));
                plus.extend(attr.map(|attr| attr.ino));
                plus.len() < 5
            })?;
            // The last entry was not taken.
            plus.truncate(4);
            mine.inos.extend(plus);
        }
    }
    Ok(())
}

fn change_content(fs: &FileSystem, rng: &mut SmallRng, ino: Ino) -> Result<(), forebay_fs::Error> {
    if fs.getattr(ino)?.kind == FileKind::File {
        let data = vec![1; rng.below(20_000) as usize];
        fs.write(ino, Handle(ino.0), rng.below(50_000), &data, Default::default())?;
        let set = SetAttr { size: Some(rng.below(60_000)), ..SetAttr::default() };
        fs.setattr(ino, &set, ME)?;
    }
    Ok(())
}

fn work(fs: &FileSystem, seed: u64, dirs: &[Ino]) {
    let mut rng = SmallRng::from_seed(seed);
    let mut mine = Mine::default();
    for _ in 0..STEPS {
        if let Err(error) = step(fs, &mut rng, dirs, &mut mine) {
            assert!(expected(error.kind()), "{error:?}");
        }
        if rng.below(200) == 0 {
            fs.fsync(ROOT, false).unwrap();
        }
    }
    mine.open.into_iter().for_each(|handle| fs.release(handle));
    mine.inos.into_iter().for_each(|ino| fs.forget(ino, 1));
}

#[test]
fn names_and_links_are_consistent_after_concurrent_work() {
    let seed = forebay_base::testing::seed(0);
    for round in 0..4 {
        let fixture = Fixture::new(256 * MIB);
        let fs = fixture.mount_with(&FsOptions { workers: 2, ..FsOptions::default() });
        let mut dirs = vec![ROOT];
        for at in 0..4 {
            let node = NewNode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: None };
            let name = format!("d{at}");
            dirs.push(fs.make(dirs[at / 2], name.as_bytes(), &node, ME).unwrap().attr.ino);
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, dirs) = (&fs, &dirs);
                let seed = seed.wrapping_add(round * THREADS + thread);
                scope.spawn(move || work(fs, seed, dirs));
            }
        });
        dirs[1..].iter().for_each(|ino| fs.forget(*ino, 1));
        audit(&fs);
        let stats = fs.stats();
        // All lookups were given back, so only the root is left.
        assert_eq!((stats.inodes, stats.orphans, stats.background_tasks), (1, 0, 0), "{stats:?}");
        assert!(!list(&fs, ROOT).is_empty());
        unmount(fs);
    }
}
