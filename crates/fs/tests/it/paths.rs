//! Paths of inodes.

use forebay_fs::{FileSystem, Ino, RenameMode, paths};

use crate::common::{Fixture, MIB, ROOT, file, mkdir, unmount};

fn path(fs: &FileSystem, ino: Ino) -> Option<String> {
    let data = fs.pool().dataset("files").expect("it");
    let number = if ino == ROOT { data.root_object() } else { ino.0 - 2 };
    let found = paths(&data, &[number]).remove(&number).expect("it is an inode");
    assert_eq!(found.ino, ino);
    found.path
}

#[test]
fn an_inode_has_the_path_of_its_newest_name() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let (a, b) = (mkdir(&fs, ROOT, b"a"), mkdir(&fs, ROOT, b"b"));
    let deep = mkdir(&fs, a, b"deep");
    for n in 0..600 {
        let (_, handle) = file(&fs, deep, format!("other {n}").as_bytes());
        fs.release(handle);
    }
    let (ino, handle) = file(&fs, deep, b"file");
    let is = |path: Option<String>, expected: &str| assert_eq!(path.as_deref(), Some(expected));
    is(path(&fs, ROOT), "/");
    is(path(&fs, a), "/a");
    is(path(&fs, ino), "/a/deep/file");
    fs.rename(deep, b"file", b, b"new\n\xffname", RenameMode::NoReplace).unwrap();
    is(path(&fs, ino), "/b/new\u{fffd}\u{fffd}name");
    fs.rename(a, b"deep", b, b"moved", RenameMode::NoReplace).unwrap();
    fs.link(ino, deep, b"second").unwrap();
    is(path(&fs, ino), "/b/moved/second");
    // Another name is left, but not in the directory of the newest one.
    fs.unlink(deep, b"second").unwrap();
    assert_eq!(path(&fs, ino), None);
    fs.unlink(b, b"new\n\xffname").unwrap();
    assert_eq!(path(&fs, ino), None, "it is unlinked and open");
    fs.release(handle);
    unmount(fs);
}

#[test]
fn many_paths_are_found_together_and_what_is_no_inode_is_left_out() {
    let fixture = Fixture::new(64 * MIB);
    let fs = fixture.mount();
    let dir = mkdir(&fs, ROOT, b"dir");
    let numbers: Vec<u64> = (0..300)
        .map(|n| {
            let (ino, handle) = file(&fs, dir, format!("{n}").as_bytes());
            fs.release(handle);
            ino.0 - 2
        })
        .collect();
    let data = fs.pool().dataset("files").expect("it");
    let mut wanted = numbers.clone();
    wanted.push(1 << 40);
    let found = paths(&data, &wanted);
    assert_eq!(found.len(), numbers.len());
    for (n, number) in numbers.iter().enumerate() {
        assert_eq!(found[number].path.as_deref(), Some(&*format!("/dir/{n}")));
    }
    drop(data);
    unmount(fs);
}
