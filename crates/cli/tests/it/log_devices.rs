//! Log devices on the command line.

use std::fs::File;
use std::path::Path;

use crate::fixture::{Fixture, signal, texts, wait_until};

/// Kills the daemon, and removes its mount.
fn kill(fixture: &Fixture) {
    let pid = fixture.processes()[0]["pid"].as_i64().expect("a pid") as i32;
    signal(pid, libc::SIGKILL);
    wait_until("its end", || !Path::new(&format!("/proc/{pid}")).exists());
    fixture.ok(&["umount", "mnt"]);
}

fn write_and_sync(path: &Path, value: u8) {
    std::fs::write(path, [value; 4096]).expect("written");
    File::open(path).expect("there").sync_all().expect("an fsync");
}

#[test]
fn a_pool_with_a_log_device_is_killed_and_needs_it() {
    let fixture = Fixture::new();
    let create = ["create", "--name", "tank", "--size", "64M", "a.img", "--log-device", "log.img"];
    let created = fixture.ok(&create);
    assert!(created.contains("in 2 devices, with a log device"), "{created}");
    let folder = fixture.folder("mnt");
    fixture.ok(&["mount", "tank", "mnt", "--daemon"]);
    let status = fixture.ok(&["status", "tank"]);
    assert!(status.contains("log device") && status.contains("log.img"), "{status}");
    write_and_sync(&folder.join("file"), 1);
    kill(&fixture);
    std::fs::rename(fixture.path("log.img"), fixture.path("hidden")).expect("renamed");
    let refused = fixture.fails(&["mount", "a.img", "mnt"]);
    for wanted in ["log device 0x", "fsynced after txg", "--discard-log"] {
        assert!(refused.contains(wanted), "{wanted}: {refused}");
    }
    std::fs::rename(fixture.path("hidden"), fixture.path("log.img")).expect("renamed");
    fixture.ok(&["mount", "tank", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("replayed"), [1; 4096]);
    write_and_sync(&folder.join("file"), 2);
    kill(&fixture);
    std::fs::remove_file(fixture.path("log.img")).expect("removed");
    let mounted = fixture.run(&["mount", "a.img", "mnt", "--daemon", "--discard-log"]);
    let (out, err) = texts(&mounted);
    assert!(mounted.status.success(), "{out}{err}");
    assert!(format!("{out}{err}").contains("was given up"), "{out}{err}");
    write_and_sync(&folder.join("file"), 3);
    fixture.ok(&["log", "remove", "tank"]);
    kill(&fixture);
    fixture.ok(&["mount", "a.img", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("it is there"), [3; 4096]);
    fixture.ok(&["umount", "mnt"]);
    fixture.ok(&["destroy", "a.img", "--yes"]);
}

#[test]
fn a_log_device_is_mirrored_and_replaced_beside_a_mount() {
    let fixture = Fixture::new();
    let create = ["create", "--name", "tank", "--size", "64M", "a.img", "--log-device", "log.img"];
    fixture.ok(&create);
    let folder = fixture.folder("mnt");
    fixture.ok(&["mount", "tank", "mnt", "--daemon"]);
    write_and_sync(&folder.join("file"), 1);
    let attached = fixture.ok(&["attach", "tank", "log.img", "b.img", "--size", "64M"]);
    assert!(attached.contains("b.img mirrors log.img"), "{attached}");
    let status = fixture.ok(&["status", "tank"]);
    assert!(status.contains("log mirror") && status.contains("b.img"), "{status}");
    let refused = fixture.fails(&["offline", "tank", "b.img"]);
    assert!(refused.contains("is a device of the log"), "{refused}");
    let replaced = fixture.ok(&["replace", "tank", "log.img", "c.img", "--size", "64M"]);
    assert!(replaced.contains("c.img has replaced log.img"), "{replaced}");
    fixture.ok(&["detach", "tank", "b.img"]);
    let last = fixture.fails(&["detach", "tank", "c.img"]);
    assert!(last.contains("forebay log remove"), "{last}");
    let events = fixture.ok(&["events", "tank"]);
    for wanted in ["b.img", "c.img", "in place of", "log.img"] {
        assert!(events.contains(wanted), "{wanted}: {events}");
    }
    write_and_sync(&folder.join("file"), 2);
    kill(&fixture);
    // The devices that have left are not needed.
    for left in ["log.img", "b.img"] {
        std::fs::remove_file(fixture.path(left)).expect("removed");
    }
    fixture.ok(&["mount", "a.img:c.img", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("replayed"), [2; 4096]);
    fixture.ok(&["umount", "mnt"]);
    // Without an import before.
    let replaced = fixture.ok(&["replace", "a.img:c.img", "c.img", "d.img", "--size", "64M"]);
    assert!(replaced.contains("d.img has replaced c.img"), "{replaced}");
    let checked = fixture.ok(&["check", "a.img:d.img"]);
    assert!(checked.contains("no problems"), "{checked}");
}

#[test]
fn a_log_device_is_added_and_removed_beside_a_mount() {
    let fixture = Fixture::new();
    fixture.pool("a.img");
    let folder = fixture.folder("mnt");
    fixture.ok(&["mount", "a.img", "mnt", "--daemon"]);
    fixture.ok(&["log", "add", "a.img", "b.img", "c.img", "--size", "32M"]);
    let status = fixture.ok(&["status", "a.img"]);
    assert!(status.contains("log mirror"), "{status}");
    let again = fixture.fails(&["log", "add", "a.img", "d.img", "--size", "32M"]);
    assert!(again.contains("remove that first"), "{again}");
    assert!(!fixture.path("d.img").exists(), "it was not removed");
    write_and_sync(&folder.join("file"), 1);
    kill(&fixture);
    // One side of the mirror is enough.
    fixture.ok(&["mount", "a.img:c.img", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("replayed"), [1; 4096]);
    fixture.ok(&["log", "remove", "a.img"]);
    let none = fixture.fails(&["log", "remove", "a.img"]);
    assert!(none.contains("no log device"), "{none}");
    write_and_sync(&folder.join("file"), 2);
    kill(&fixture);
    fixture.ok(&["mount", "a.img", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("file")).expect("replayed"), [2; 4096]);
    fixture.ok(&["umount", "mnt"]);
    let checked = fixture.ok(&["check", "a.img"]);
    assert!(checked.contains("no problems"), "{checked}");
}
