//! What must not be written over: pools that are in use under another name, and what others keep on
//! a device.

use std::path::Path;
use std::process::Command;

use crate::fixture::{Fixture, failed, fuse, is_mounted, root};

/// A loop device over a file; it goes when this is dropped.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    fn new(file: &Path) -> Option<Self> {
        Self::with_sectors(file, 512)
    }

    pub(crate) fn with_sectors(file: &Path, bytes: u32) -> Option<Self> {
        let size = bytes.to_string();
        let options = ["--find", "--show", "--sector-size", &size];
        let why = match Command::new("losetup").args(options).arg(file).output() {
            Ok(made) if made.status.success() => {
                return Some(Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()));
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
            Err(error) => format!("losetup: {error}"),
        };
        forebay_base::testing::skip("loop", why);
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Every command that would write to a pool that is in use as `tank.img`, under another name.
fn refuses_all(fixture: &Fixture, alias: &str, said: &str) {
    fixture.folder("elsewhere");
    for arguments in [
        &["mount", alias, "elsewhere"][..],
        &["mount", alias, "elsewhere", "--daemon"],
        &["mount", alias, "elsewhere", "--daemon", "--separate"],
        &["import", alias],
        &["scrub", alias],
        &["expand", alias],
        &["dataset", "create", alias, "more"],
        &["destroy", alias, "--yes", "--force"],
        &["create", alias, "--force"],
    ] {
        if arguments[0] == "mount" && !fuse() {
            continue;
        }
        let line = fixture.fails(arguments);
        assert!(line.contains("is in use: process") && line.contains("tank.img"), "{line}");
        assert!(line.contains(said) && line.contains("`forebay export tank`"), "{line}");
        assert!(!is_mounted(&fixture.path("elsewhere")));
    }
}

#[test]
fn a_pool_in_use_is_not_taken_under_another_name() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    std::fs::copy(fixture.path("tank.img"), fixture.path("copy.img")).unwrap();
    fixture.ok(&["import", "tank.img"]);
    refuses_all(&fixture, "copy.img", "as ");
    fixture.ok(&["export", "tank"]);
    // Reading only, beside others that do.
    fixture.ok(&["import", "tank.img", "--read-only"]);
    fixture.ok(&["check", "copy.img", "--read-only"]);
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["check", "copy.img"]);
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn a_pool_that_a_foreground_mount_has_is_not_taken_by_a_loop_device() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let Some(alias) = Loop::new(&fixture.path("tank.img")) else { return };
    let running = fixture.start(&["mount", "tank.img", "at"]);
    crate::fixture::wait_until("it is mounted", || is_mounted(&at));
    refuses_all(&fixture, &alias.0, "mounted at");
    std::fs::write(at.join("file"), b"kept").unwrap();
    running.signal(libc::SIGTERM);
    assert!(running.wait().status.success());
    fixture.ok(&["check", &alias.0]);
}

#[test]
fn what_is_not_empty_is_not_overwritten_unasked() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    for (place_of, bytes, said) in [
        (1080, &[0x53, 0xef][..], "ext4"),
        (257, b"ustar", "tar archive"),
        (510, &[0x55, 0xaa], "partition table"),
        ((64 << 20) - 1, b"x", "at byte 67108863"),
    ] {
        let file = fixture.path("foreign.img");
        let mut content = vec![0; 64 << 20];
        content[place_of..place_of + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&file, &content).unwrap();
        for arguments in
            [&["create", "foreign.img"][..], &["expand", "tank.img", "--add", "foreign.img"]]
        {
            let line = fixture.fails(arguments);
            assert!(line.contains("foreign.img: is not empty") && line.contains(said), "{line}");
            assert!(line.contains("--force"), "{line}");
            assert!(std::fs::read(&file).unwrap() == content, "{arguments:?} has changed it");
        }
    }
    fixture.ok(&["create", "foreign.img", "--force"]);
    // What was destroyed is empty.
    fixture.ok(&["destroy", "foreign.img", "--yes"]);
    fixture.ok(&["create", "foreign.img"]);
    fixture.ok(&["destroy", "foreign.img", "--yes"]);
    fixture.ok(&["import", "tank.img"]);
    fixture.ok(&["expand", "tank", "--add", "foreign.img"]);
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["check", "tank.img:foreign.img"]);
}

#[test]
fn sizes_and_names_that_cannot_be() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    std::fs::write(fixture.path("three"), b"abc").unwrap();
    let line = fixture.fails(&["create", "three"]);
    assert!(line.contains("has 3 bytes") && line.contains("at least 16 MiB"), "{line}");
    for size in ["0", "1M"] {
        let line = fixture.fails(&["create", "new.img", "--size", size]);
        assert!(line.contains("new.img") && line.contains("at least 16 MiB"), "{line}");
        let line = fixture.fails(&["expand", "tank.img", "--add", "new.img", "--size", size]);
        assert!(line.contains("at least 16 MiB"), "{line}");
    }
    std::fs::File::create(fixture.path("old.img")).unwrap().set_len(32 << 20).unwrap();
    let line = fixture.fails(&["create", "old.img", "--size", "64M"]);
    assert!(line.contains("exists with 33554432 bytes"), "{line}");
    for arguments in [&["create", "a:b.img"][..], &["create", "new.img", "--name", "a:b"]] {
        let line = fixture.fails(arguments);
        assert!(line.contains("--name") && line.contains("`:`"), "{line}");
    }
    let line = fixture.fails(&["create", "old.img", "./old.img"]);
    assert!(line.contains("same device"), "{line}");
    let line = fixture.fails(&["create", "new.img", "new.img"]);
    assert!(line.contains("is named twice"), "{line}");
    let line = fixture.fails(&["expand", "tank.img", "--add", "tank.img"]);
    assert!(line.contains("of this pool already"), "{line}");
    assert!(!fixture.path("new.img").exists());
    fixture.ok(&["create", "old.img", "--size", "32M"]);
}

#[test]
fn files_that_are_added_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["expand", "tank.img", "--add", "more.img", "--size", "64M"]);
    for file in ["tank.img", "more.img"] {
        let mode = std::fs::metadata(fixture.path(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[test]
fn creates_of_one_file_at_once_leave_the_pool_of_the_first() {
    let rounds = if forebay_base::testing::full() { 500 } else { 50 };
    let fixture = Fixture::new();
    for round in 0..rounds {
        let file = format!("tank{round}.img");
        let creating = [0; 4].map(|_| fixture.start(&["create", &file, "--size", "64M"]));
        let creating = creating.map(|running| running.wait());
        let done = creating.iter().filter(|output| output.status.success()).count();
        assert!(done <= 1, "{creating:?}");
        for refused in creating.iter().filter(|output| !output.status.success()) {
            failed(refused, 1, &["create", &file]);
        }
        assert_eq!(fixture.path(&file).exists(), done == 1, "{creating:?}");
        if done == 1 {
            fixture.ok(&["check", &file]);
        }
    }
}

#[test]
fn growth_under_a_pool_in_use_is_told() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "a.img", "b.img", "--size", "64M"]);
    fixture.ok(&["import", "a.img", "b.img"]);
    let file = std::fs::File::options().write(true).open(fixture.path("b.img")).unwrap();
    file.set_len(128 << 20).unwrap();
    let line = fixture.fails(&["expand", "a.img:b.img"]);
    assert!(line.contains("b.img has grown while the pool is in use"), "{line}");
    // The commands that it names work as they are.
    let commands: Vec<&str> = line.split('`').filter(|part| part.starts_with("forebay ")).collect();
    assert_eq!(commands.len(), 2, "{line}");
    let words = |command: &str| command.split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>();
    let mut out = String::new();
    for command in commands {
        let words = words(command);
        out = fixture.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert!(out.contains("now"), "{out}");
    fixture.ok(&["check", "a.img:b.img"]);
}

#[test]
fn mounts_that_begin_at_once_share_a_process() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let names = ["a", "b", "c", "d"];
    for name in names {
        fixture.pool(&format!("{name}.img"));
        fixture.folder(name);
    }
    let mounting = names
        .map(|name| fixture.start(&["mount", &format!("{name}.img"), name, "--daemon"]))
        .map(|running| running.wait());
    for output in mounting {
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(fixture.processes().len(), 1);
    for name in names {
        fixture.ok(&["umount", name]);
    }
}

#[test]
fn a_mount_that_fails_takes_its_folder_along() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    for more in [&["--dataset", "none"][..], &["--dataset", "none", "--daemon"]] {
        fixture.fails(&[&["mount", "tank.img"][..], more].concat());
        assert!(!fixture.path("tank-mnt").exists());
    }
}
