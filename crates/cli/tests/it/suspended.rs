//! A pool whose image is in a file system that becomes full: how it says so, and goes on.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, fuse, mounted, root, texts};

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
    // A busy mount stays, and so do those who wait.
    let busy = fixture.fails(&["umount", "at"]);
    assert!(busy.contains("dd"), "{busy}");
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
