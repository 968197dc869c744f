//! The demo, on a small tree.

use std::fs;

use crate::fixture::{Fixture, fuse, is_mounted, texts};

#[test]
fn it_shows_a_tree_and_leaves_nothing() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let tree = fixture.folder("tree");
    fs::create_dir(tree.join("folder")).unwrap();
    for file in 0..40u8 {
        fs::write(tree.join(format!("folder/{file}")), vec![file; 100_000]).unwrap();
    }
    std::os::unix::fs::symlink("folder/1", tree.join("link")).unwrap();
    let temporary = fixture.folder("temporary");
    let said = fixture.ok(&["demo", "tree", "--temporary", "temporary"]);
    for part in
        ["copy ", "read and compare", "verify after a remount", "check all blocks", "3.81 MiB"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn it_cleans_up_when_it_is_interrupted() {
    if !fuse() {
        return;
    }
    // If it was through before it heard of the signal, it gets more to do.
    let tries = [3_000, 12_000, 48_000];
    assert!(tries.into_iter().any(is_interrupted), "it is never interrupted");
}

/// Copies so many files; whether the signal came before it was through.
fn is_interrupted(files: u32) -> bool {
    let fixture = Fixture::new();
    let tree = fixture.folder("tree");
    for file in 0..files {
        fs::write(tree.join(file.to_string()), vec![7; 5000]).unwrap();
    }
    let temporary = fixture.folder("temporary");
    let mut running = fixture.start(&["demo", "tree", "--temporary", "temporary"]);
    let mut mounted = None;
    crate::fixture::wait_until("it copies", || {
        let made = fs::read_dir(&temporary).unwrap().flatten().next();
        mounted = made.map(|made| made.path().join("mnt")).or(mounted.take());
        running.has_ended() || mounted.as_ref().is_some_and(|at| is_mounted(at))
    });
    if !running.has_ended() {
        running.signal(libc::SIGINT);
    }
    let output = running.wait();
    let (_, err) = texts(&output);
    assert!(!mounted.is_some_and(|at| is_mounted(&at)));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    if output.status.success() {
        return false;
    }
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("interrupted"), "{err}");
    true
}

#[test]
fn trees_that_cannot_be() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.folder("empty");
    fs::write(fixture.path("file"), b"x").unwrap();
    assert!(fixture.fails(&["demo", "absent"]).contains("absent"));
    assert!(fixture.fails(&["demo", "empty"]).contains("contains no readable files"));
    assert!(fixture.fails(&["demo", "file"]).contains("is not a directory"));
    assert!(fixture.misused(&["demo", "empty", "--memory", "1M"]).contains("at least"));
}
