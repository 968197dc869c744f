//! The demo, on a small tree.

use std::fs;

use crate::place::{Place, fuse, is_mounted, texts};

#[test]
fn it_shows_a_tree_and_leaves_nothing() {
    if !fuse() {
        return;
    }
    let place = Place::new();
    let tree = place.folder("tree");
    fs::create_dir(tree.join("folder")).unwrap();
    for file in 0..40u8 {
        fs::write(tree.join(format!("folder/{file}")), vec![file; 100_000]).unwrap();
    }
    std::os::unix::fs::symlink("folder/1", tree.join("link")).unwrap();
    let temporary = place.folder("temporary");
    let said = place.ok(&["demo", "tree", "--temporary", "temporary"]);
    for part in [
        "copied in",
        "read and compared",
        "verified after a remount",
        "every block checked",
        "3.81 MiB",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn it_cleans_up_when_it_is_interrupted() {
    if !fuse() {
        return;
    }
    let place = Place::new();
    let tree = place.folder("tree");
    for file in 0..3000u32 {
        fs::write(tree.join(file.to_string()), vec![7; 5000]).unwrap();
    }
    let temporary = place.folder("temporary");
    let running = place.start(&["demo", "tree", "--temporary", "temporary"]);
    let mut mounted = None;
    crate::place::wait_until("it copies", || {
        let made = fs::read_dir(&temporary).unwrap().flatten().next();
        mounted = made.map(|made| made.path().join("mnt"));
        mounted.as_ref().is_some_and(|at| is_mounted(at))
    });
    running.signal(libc::SIGINT);
    let output = running.wait();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("interrupted"), "{err}");
    assert!(!is_mounted(&mounted.unwrap()));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn trees_that_cannot_be() {
    if !fuse() {
        return;
    }
    let place = Place::new();
    place.folder("empty");
    fs::write(place.path("file"), b"x").unwrap();
    assert!(place.fails(&["demo", "absent"]).contains("absent"));
    assert!(place.fails(&["demo", "empty"]).contains("nothing that can be read"));
    assert!(place.fails(&["demo", "file"]).contains("is no folder"));
    assert!(place.misused(&["demo", "empty", "--memory", "1M"]).contains("at least"));
}
