//! A pool whose image is in a file system that becomes full: how it says so, and goes on.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, fuse, is_mounted, mounted, root, texts, wait_until};

/// A file system in memory, of a size.
pub(crate) struct SmallFs(PathBuf);

impl SmallFs {
    pub(crate) fn new(at: PathBuf, size: &str) -> Self {
        let small = Self(at);
        small.mount(&format!("size={size}"));
        small
    }

    pub(crate) fn grow(&self, size: &str) {
        self.mount(&format!("remount,size={size}"));
    }

    fn mount(&self, options: &str) {
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(&self.0).status();
        assert!(done.expect("the program mount").success());
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn writers_wait_until_a_full_file_system_has_space_again() {
    if !root() || !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let small = SmallFs::new(fixture.folder("small"), "20m");
    // Simple content is to fill it.
    fixture.ok(&["create", "small/tank.img", "--size", "64M", "--compression", "off"]);
    let shown = fixture.ok(&["dataset", "list", "small/tank.img"]);
    assert!(shown.contains("FAILMODE") && shown.contains("wait"), "{shown}");
    let at = fixture.folder("at");
    std::fs::write(fixture.path("source"), vec![7; 30 << 20]).expect("a file");
    let mut running = mounted(&fixture, &["mount", "small/tank.img", "at"], &at);
    let mut copy = Command::new("dd")
        .args(["bs=64K", "conv=fsync"])
        .arg(format!("if={}", fixture.path("source").display()))
        .arg(format!("of={}", at.join("copy").display()))
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    // Nobody asks: the process says it.
    let told = running.read_error_until("is suspended");
    for part in ["pool tank is suspended", "is full", "run `forebay clear tank`"] {
        assert!(told.contains(part), "{told}");
    }
    let (status, _) = texts(&fixture.run(&["status", "tank"]));
    assert!(status.contains("suspended: transaction group"), "{status}");
    assert!(!status.contains("suspended: suspended"), "{status}");
    assert!(status.contains("failmode wait"), "{status}");
    assert!(copy.try_wait().expect("a process").is_none());
    assert!(std::fs::metadata(at.join("copy")).is_ok(), "reads go on");
    // The mount stays, and so do those who wait.
    let refused = fixture.fails(&["umount", "at"]);
    assert!(refused.contains("in memory only"), "{refused}");
    assert!(copy.try_wait().expect("a process").is_none());
    small.grow("100m");
    fixture.ok(&["clear", "tank"]);
    assert!(copy.wait().expect("it ended").success());
    assert!(running.read_error_until("goes on").contains("pool tank goes on"));
    let copied = std::fs::read(at.join("copy")).expect("it reads");
    assert!(copied == std::fs::read(fixture.path("source")).expect("it reads"));
    running.signal(libc::SIGINT);
    assert!(running.wait().status.success());
}

/// A mount of a pool that is suspended because the file system of its image is full, and a program
/// that waits there for an fsync.
struct Stuck {
    small: SmallFs,
    copy: std::process::Child,
}

impl Stuck {
    fn new(fixture: &Fixture) -> Self {
        let small = SmallFs::new(fixture.folder("small"), "20m");
        fixture.ok(&["create", "small/tank.img", "--size", "64M", "--compression", "off"]);
        let at = fixture.folder("at");
        std::fs::write(fixture.path("source"), vec![7; 30 << 20]).expect("a file");
        fixture.ok(&["mount", "small/tank.img", "at", "--daemon"]);
        let copy = Command::new("dd")
            .args(["bs=64K", "conv=fsync"])
            .arg(format!("if={}", fixture.path("source").display()))
            .arg(format!("of={}", at.join("copy").display()))
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        wait_until("it is suspended", || {
            texts(&fixture.run(&["status", "tank"])).0.contains("SUSPENDED")
        });
        Self { small, copy }
    }
}

/// What is in memory only would be lost, and those who wait for it would get errors.
#[test]
fn a_suspended_pool_is_exported_and_unmounted_only_by_force() {
    if !root() || !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let mut stuck = Stuck::new(&fixture);
    for command in [
        &["export", "tank"][..],
        &["export", "tank", "--lazy"],
        &["umount", "at"],
        &["umount", "at", "--lazy"],
        &["umount", "tank", "--lazy"],
    ] {
        let refused = fixture.fails(command);
        for part in ["in memory only", "`forebay clear tank`", "`forebay export --force tank`"] {
            assert!(refused.contains(part), "{command:?}: {refused}");
        }
        assert!(is_mounted(&fixture.path("at")), "{command:?}");
        assert!(stuck.copy.try_wait().expect("a process").is_none(), "{command:?}: it waits");
    }
    stuck.small.grow("100m");
    fixture.ok(&["clear", "tank"]);
    assert!(stuck.copy.wait().expect("it ended").success());
    let copied = std::fs::read(fixture.path("at").join("copy")).expect("it reads");
    assert!(copied == std::fs::read(fixture.path("source")).expect("it reads"));
    fixture.ok(&["export", "tank"]);
}

#[test]
fn an_export_by_force_says_what_is_lost() {
    if !root() || !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let mut stuck = Stuck::new(&fixture);
    // Its mount is busy, and nothing has happened.
    let busy = fixture.fails(&["export", "--force", "tank"]);
    assert!(busy.contains("dd"), "{busy}");
    assert!(fixture.fails(&["export", "tank"]).contains("in memory only"));
    assert!(stuck.copy.try_wait().expect("a process").is_none(), "it waits");
    let lost = fixture.fails(&["export", "--force", "--lazy", "tank"]);
    // Unless the program takes its time to end.
    if !lost.contains("is still in use") {
        for part in ["was exported without the changes since transaction group", "are lost"] {
            assert!(lost.contains(part), "{lost}");
        }
        assert!(!lost.contains("forebay clear"), "{lost}");
    }
    assert!(!stuck.copy.wait().expect("it ended").success(), "it got an error");
    wait_until("it is gone", || fixture.processes().is_empty());
}

/// A file is in use, so the forced export waits. The pool is cleared before it is closed, and
/// suspended again: nobody has given up what was written since.
#[test]
fn a_forced_export_that_waits_gives_up_nothing_after_a_clear() {
    if !root() || !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let mut stuck = Stuck::new(&fixture);
    let held = std::fs::File::options().append(true).open(fixture.path("at").join("copy"));
    let held = held.expect("it opens");
    let waits = fixture.fails(&["export", "--force", "--lazy", "tank"]);
    assert!(waits.contains("is still in use"), "{waits}");
    assert!(!stuck.copy.wait().expect("it ended").success(), "it got an error");
    stuck.small.grow("38m");
    fixture.ok(&["clear", "tank"]);
    let mut again = Command::new("dd")
        .args(["bs=64K", "conv=fsync,notrunc"])
        .arg(format!("if={}", fixture.path("source").display()))
        .stdout(held)
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    wait_until("it is suspended again", || {
        texts(&fixture.run(&["status", "tank"])).0.contains("SUSPENDED")
    });
    again.kill().expect("a signal");
    again.wait().expect("it ended");
    let refused = fixture.fails(&["export", "tank"]);
    assert!(refused.contains("in memory only"), "{refused}");
    stuck.small.grow("100m");
    fixture.ok(&["clear", "tank"]);
    wait_until("it is exported", || fixture.processes().is_empty());
}

/// umount(2) asks nobody. The pool stays until its changes are saved.
#[test]
fn a_suspended_pool_outlives_its_last_mount() {
    if !root() || !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let mut stuck = Stuck::new(&fixture);
    stuck.copy.kill().expect("a signal");
    stuck.copy.wait().expect("it ended");
    let at = fixture.path("at");
    let whole = std::fs::metadata(at.join("copy")).expect("a file").len();
    let done = Command::new("umount").arg("-i").arg(&at).status().expect("the program umount");
    assert!(done.success() && !is_mounted(&at));
    wait_until("the mount has ended", || {
        let processes = fixture.processes();
        let mounts = processes[0]["pools"][0]["mounts"].as_array();
        mounts.expect("the pool is there").is_empty()
    });
    assert!(fixture.fails(&["export", "tank"]).contains("in memory only"));
    stuck.small.grow("100m");
    fixture.ok(&["clear", "tank"]);
    // It was imported for the mount only.
    wait_until("it is exported", || fixture.processes().is_empty());
    fixture.ok(&["mount", "small/tank.img", "at", "--daemon"]);
    let copied = std::fs::read(at.join("copy")).expect("it reads");
    assert!(copied.len() as u64 == whole && copied.iter().all(|byte| *byte == 7));
    fixture.ok(&["umount", "at"]);
}

#[test]
fn failmode_is_a_setting_of_a_dataset() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "64M", "--failmode", "continue"]);
    let mode = || fixture.ok(&["dataset", "list", "tank.img"]);
    assert!(mode().contains("continue"), "{}", mode());
    fixture.ok(&["dataset", "set", "tank.img", "main", "--failmode", "wait"]);
    assert!(mode().contains("wait") && !mode().contains("continue"), "{}", mode());
    let refused = fixture.run(&["dataset", "set", "tank.img", "main", "--failmode", "panic"]);
    let (_, refused) = texts(&refused);
    for part in ["panic", "--failmode", "wait", "continue"] {
        assert!(refused.contains(part), "{refused}");
    }
}
