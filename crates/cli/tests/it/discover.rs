//! Pools that are found without the paths of their devices: in folders, where they were last, by
//! name and by number.

use std::fs;

use crate::fixture::{Fixture, fuse, texts};

/// The number of the pool on a device.
fn guid(fixture: &Fixture, device: &str) -> String {
    let status: serde_json::Value =
        serde_json::from_str(&fixture.ok(&["status", device, "--json"])).expect("JSON");
    status["guid"].as_str().expect("a number").to_owned()
}

#[test]
fn pools_are_listed_with_what_they_lack() {
    let fixture = Fixture::new();
    fixture.folder("images");
    let sides = ["--mirror", "images/a.img", "images/b.img"];
    fixture.ok(&[&["create", "--name", "tank", "--size", "32M"][..], &sides].concat());
    fixture.ok(&["create", "--name", "wide", "--size", "32M", "images/c.img", "images/d.img"]);
    fs::write(fixture.path("images/noise"), vec![7; 32 << 20]).expect("written");
    // Nothing is remembered, and the folder is not the current one.
    fs::remove_dir_all(fixture.path("state")).expect("it remembers pools");
    let unknown = fixture.fails(&["import", "tank"]);
    assert!(unknown.contains("tank: no running forebay has a pool of that name"), "{unknown}");
    let listed = fixture.ok(&["import", "--dir", "images"]);
    let path = |name: &str| fixture.path(name).canonicalize().expect("a path");
    for wanted in ["pool tank (", "): online, exported", "pool wide ("] {
        assert!(listed.contains(wanted), "{wanted}: {listed}");
    }
    for name in ["a.img", "b.img", "c.img", "d.img"] {
        let line = format!("{}\n", path(&format!("images/{name}")).display());
        assert_eq!(listed.matches(&line).count(), 1, "{name}: {listed}");
    }
    assert!(!listed.contains("noise"), "{listed}");
    fs::remove_file(fixture.path("images/b.img")).expect("removed");
    fs::remove_file(fixture.path("images/c.img")).expect("removed");
    let listed = fixture.ok(&["import", "--dir", "images"]);
    assert!(listed.contains("): degraded, exported"), "{listed}");
    assert!(listed.contains("): incomplete, exported"), "{listed}");
    assert_eq!(listed.matches("missing: device ").count(), 2, "{listed}");
    fixture.ok(&["import", "--dir", "images", "tank"]);
    let (status, _) = texts(&fixture.run(&["status", "tank"]));
    assert!(status.contains("health     degraded"), "{status}");
    fixture.ok(&["export", "tank"]);
    let lost = fixture.fails(&["import", "--dir", "images", "wide"]);
    assert!(lost.contains("missing"), "{lost}");
    fixture.misused(&["import", "--show"]);
    let no_folder = fixture.fails(&["import", "--dir", "nowhere"]);
    assert!(no_folder.contains("nowhere"), "{no_folder}");
}

#[test]
fn a_pool_is_mounted_by_its_name_wherever_it_was() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let (far, at) = (fixture.folder("far"), fixture.folder("mnt"));
    fixture.ok(&["create", "--name", "tank", "--size", "64M", "far/one.img"]);
    fixture.ok(&["mount", "tank", "mnt", "--daemon"]);
    fs::write(at.join("file"), "content").expect("written");
    fs::File::open(at.join("file")).and_then(|file| file.sync_all()).expect("synced");
    let processes = fixture.processes();
    let pid = processes[0]["pid"].as_i64().expect("a number") as i32;
    // As a crash leaves it.
    crate::fixture::signal(pid, libc::SIGKILL);
    crate::fixture::wait_until("it has ended", || fixture.processes().is_empty());
    let listed = fixture.ok(&["import"]);
    assert!(listed.contains("not exported: an import replays its intent log"), "{listed}");
    fixture.ok(&["mount", "tank", "mnt", "--daemon"]);
    assert_eq!(fs::read_to_string(at.join("file")).expect("read"), "content");
    fixture.ok(&["umount", "mnt"]);
    // Under another name in the same folder: the labels say so.
    fs::rename(far.join("one.img"), far.join("two.img")).expect("renamed");
    let status = fixture.ok(&["status", "tank"]);
    assert!(status.contains("two.img"), "{status}");
    fixture.ok(&["destroy", "tank", "--yes"]);
    let gone = fixture.fails(&["mount", "tank", "mnt", "--daemon"]);
    assert!(gone.contains("no running forebay has a pool of that name"), "{gone}");
}

#[test]
fn pools_of_one_name_and_copies_of_one_device_are_told_apart() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "a.img"]);
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "b.img"]);
    let (a, b) = (guid(&fixture, "a.img"), guid(&fixture, "b.img"));
    let several = fixture.fails(&["import", "tank"]);
    assert!(several.contains("several pools have that name"), "{several}");
    assert!(several.contains(&a) && several.contains(&b), "{several}");
    fixture.ok(&["import", &b]);
    let status = fixture.ok(&["status", &b]);
    assert!(status.contains("b.img"), "{status}");
    fixture.ok(&["export", &b]);
    // The path that was used last counts, and without one a copy is not chosen by chance.
    fs::copy(fixture.path("a.img"), fixture.path("c.img")).expect("copied");
    let status = fixture.ok(&["status", &a]);
    assert!(status.contains("a.img") && !status.contains("c.img"), "{status}");
    fs::remove_dir_all(fixture.path("state")).expect("it remembers pools");
    let twice = fixture.fails(&["import", &a]);
    assert!(twice.contains("hold the label of one device"), "{twice}");
    assert!(twice.contains("a.img") && twice.contains("c.img"), "{twice}");
    fixture.ok(&["import", "c.img"]);
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_device_that_has_left_its_pool_is_listed_as_such() {
    let fixture = Fixture::new();
    fixture.folder("images");
    let sides = ["--mirror", "images/a.img", "images/b.img"];
    fixture.ok(&[&["create", "--name", "tank", "--size", "32M"][..], &sides].concat());
    // As if it were away while it is detached.
    fs::copy(fixture.path("images/b.img"), fixture.path("images/away.img")).expect("copied");
    fixture.ok(&["import", "images/a.img", "images/b.img"]);
    fixture.ok(&["detach", "tank", "images/b.img"]);
    fixture.ok(&["export", "tank"]);
    let listed = fixture.ok(&["import", "--dir", "images"]);
    let away = fixture.path("images/away.img").canonicalize().expect("a path");
    let line = format!("{}: the pool does not list this device any more", away.display());
    assert!(listed.contains(&line), "{listed}");
    assert!(listed.contains("): online, exported"), "{listed}");
    let said = fixture.run(&["import", "images/a.img", "images/away.img"]);
    let (_, said) = texts(&said);
    assert!(said.contains("away.img is not used: the pool does not list it"), "{said}");
    fixture.ok(&["export", "tank"]);
}
