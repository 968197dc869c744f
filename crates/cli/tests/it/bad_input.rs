//! Whatever is wrong: one line that names the thing and the way out, and the right exit code.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use forebay_base::testing::detach_copies;

use crate::fixture::{Fixture, failed, failure_code, fuse, root};

/// A user who owns nothing.
const NOBODY: u32 = 65534;

#[test]
fn wrong_command_lines() {
    let fixture = Fixture::new();
    for (arguments, said) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["create"], "DEVICE"),
        (&["create", "a", "--size", "lots"], "no number of bytes"),
        (&["create", "a", "--compression", "best"], "lz4"),
        (&["mount", "--threads", "0"], "threads"),
        (&["mount", "--separate"], "--daemon"),
        (&["status"], "POOL"),
        (&["status", "a", "b"], "'b'"),
        (&["cache"], "flush"),
        (&["tunable", "set", "a"], "NAME"),
        (&["stats", "--watch", "0"], "watch"),
        (&["import", "a", "--tunable", "x"], "NAME=VALUE"),
    ] {
        // What is shown without a command is help, and more than a line.
        if arguments == ["cache"] {
            assert_eq!(fixture.run(arguments).status.code(), Some(2));
            continue;
        }
        let line = fixture.misused(arguments);
        assert!(line.contains(said), "{arguments:?}: {line}");
        let command = match arguments[0] {
            "frobnicate" => "forebay".to_owned(),
            "tunable" => "forebay tunable set".to_owned(),
            known => format!("forebay {known}"),
        };
        assert!(line.ends_with(&format!("; see `{command} --help`")), "{arguments:?}: {line}");
    }
    assert_eq!(fixture.run(&[]).status.code(), Some(2));
    if fuse() {
        fixture.pool("tank.img");
        fixture.folder("at");
        let line = fixture.misused(&["mount", "tank.img", "at", "--memory", "1M"]);
        assert!(line.contains("at least 64.0 MiB"), "{line}");
        let line = fixture.misused(&["mount", "tank.img", "at", "-o", "fast"]);
        assert!(line.contains("-o fast"), "{line}");
    }
}

#[test]
fn things_that_are_not_there() {
    let fixture = Fixture::new();
    for command in ["status", "check", "scrub", "export", "expand", "destroy"] {
        let line = fixture.fails(&[command, "./none.img"]);
        assert!(
            line.contains("none.img: no such file or device") && line.contains("forebay create"),
            "{line}"
        );
        let line = fixture.fails(&[command, "nobody"]);
        assert!(line.contains("no running forebay has a pool of that name"), "{line}");
    }
    fixture.fails(&["import", "none.img"]);
    let line = fixture.fails(&["create", "no/such/tank.img"]);
    assert!(line.contains("no such directory"), "{line}");
    let line = fixture.fails(&["umount", "nowhere"]);
    assert!(line.contains("nowhere"), "{line}");
    fixture.folder("folder");
    let line = fixture.fails(&["umount", "folder"]);
    assert!(line.contains("nothing is mounted there"), "{line}");
    fixture.pool("tank.img");
    let line = fixture.fails(&["umount", "tank.img"]);
    assert!(line.contains("not mounted"), "{line}");
    let line = fixture.fails(&["tunable", "get", "tank.img"]);
    assert!(line.contains("not in use"), "{line}");
    fixture.fails(&["expand", "tank.img", "--add", "none.img"]);
    fixture.ok(&["import", "tank.img"]);
    let line = fixture.fails(&["tunable", "get", "tank", "speed"]);
    assert!(line.contains("no tunable is called speed"), "{line}");
    fixture.ok(&["export", "tank"]);
}

#[test]
fn devices_that_cannot_be() {
    let fixture = Fixture::new();
    fixture.folder("folder");
    let line = fixture.fails(&["create", "folder"]);
    assert!(line.contains("directory"), "{line}");
    std::fs::write(fixture.path("small"), vec![0; 1 << 20]).unwrap();
    let line = fixture.fails(&["create", "small"]);
    assert!(line.contains("at least"), "{line}");
    let line = fixture.fails(&["create", "tiny.img", "--size", "1M"]);
    assert!(line.contains("tiny.img"), "{line}");
    assert!(!fixture.path("tiny.img").exists(), "what was made for nothing is gone");
    std::fs::write(fixture.path("noise"), vec![0xa5; 32 << 20]).unwrap();
    for command in ["status", "check", "import", "destroy"] {
        let line = fixture.fails(&[command, "./noise"]);
        assert!(line.contains("holds no pool"), "{command}: {line}");
    }
    fixture.fails(&["import", "--show", "noise"]);
    fixture.pool("tank.img");
    let line = fixture.fails(&["create", "tank.img"]);
    assert!(line.contains("holds pool \"tank\"") && line.contains("--force"), "{line}");
    fixture.pool("other.img");
    let line = fixture.fails(&["expand", "tank.img", "--add", "other.img"]);
    assert!(line.contains("holds pool \"other\"") && line.contains("--force"), "{line}");
    let line = fixture.fails(&["status", "tank.img:other.img"]);
    assert!(line.contains("another one"), "{line}");
    let line = fixture.fails(&["create", "a.img", "a.img", "--size", "64M"]);
    assert!(line.contains("a.img"), "{line}");
    let line = fixture.fails(&["create", "b.img", "--size", "64M", "--copies", "3"]);
    assert!(line.contains("1 or 2"), "{line}");
    let line = fixture.fails(&["create", "b.img", "--size", "64M", "--record-size", "5000"]);
    assert!(line.contains("power of two"), "{line}");
    let line = fixture.fails(&["create", "b.img", "--size", "64M", "--name", &"n".repeat(500)]);
    assert!(line.contains("name"), "{line}");
    fixture.fails(&["create", "b.img", "--size", "64M", "--dataset", ""]);
    assert!(!fixture.path("b.img").exists());
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn a_pool_that_another_process_has_is_left_alone() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let line = fixture.fails(&["create", "tank.img", "--force"]);
    assert!(line.contains("process") && line.contains("`forebay export tank` first"), "{line}");
    // One that cannot be asked.
    let elsewhere = fixture.path("elsewhere");
    for command in
        [&["status", "tank.img"][..], &["check", "tank.img"], &["destroy", "tank.img", "--yes"]]
    {
        let output = fixture.command(command).env("FOREBAY_RUN_DIR", &elsewhere).output().unwrap();
        let line = failed(&output, failure_code(command), command);
        assert!(line.contains("is in use: process ") && line.contains("(forebay)"), "{line}");
    }
    fixture.ok(&["export", "tank"]);
}

/// The program where everybody may run it.
fn public_program(fixture: &Fixture) -> PathBuf {
    let program = fixture.path("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn what_a_user_may_not_touch() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    std::fs::set_permissions(fixture.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = public_program(&fixture);
    fixture.pool("tank.img");
    std::fs::set_permissions(fixture.path("tank.img"), std::fs::Permissions::from_mode(0o600))
        .unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = fixture.command_of(&program, arguments);
        command.uid(NOBODY).gid(NOBODY).env_remove("FOREBAY_RUN_DIR").env_remove("XDG_RUNTIME_DIR");
        failed(&command.output().unwrap(), failure_code(arguments), arguments)
    };
    for arguments in [&["status", "tank.img"][..], &["check", "tank.img"], &["create", "mine.img"]]
    {
        let line = as_nobody(arguments);
        assert!(line.contains("permission denied") && line.contains("root"), "{line}");
    }
}

/// Runs the program where the file system is as these commands of a shell make it, in a mount
/// namespace of its own.
fn in_namespace(fixture: &Fixture, commands: &str, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command
        .arg(format!("{} set -e; {commands}; exec \"$@\"", detach_copies("fuse.forebay", None)))
        .arg("sh")
        .arg(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).current_dir(fixture.path("")).env("FOREBAY_RUN_DIR", fixture.run_dir());
    command.output().expect("unshare is there")
}

#[test]
fn a_device_without_labels_may_be_a_damaged_pool() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let device = std::fs::OpenOptions::new().write(true).open(fixture.path("tank.img")).unwrap();
    let (zeros, end) = (vec![0; 1 << 20], device.metadata().unwrap().len());
    for at in [0, end - (1 << 20)] {
        std::os::unix::fs::FileExt::write_all_at(&device, &zeros, at).unwrap();
    }
    for arguments in [
        &["import", "tank.img"][..],
        &["import", "--show", "tank.img"],
        &["check", "tank.img"],
        &["scrub", "tank.img"],
        &["status", "tank.img"],
        &["destroy", "tank.img", "--yes"],
    ] {
        let output = fixture.run(arguments);
        let (_, line) = crate::fixture::texts(&output);
        assert!(!output.status.success() && line.contains("pool"), "{line}");
        assert!(!line.contains("forebay create"), "{line}");
    }
}

#[test]
fn a_medium_that_is_read_only() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.folder("medium");
    fixture.pool("medium/tank.img");
    let read_only = "mount --bind medium medium && mount -o remount,bind,ro medium";
    for arguments in [
        &["check", "medium/tank.img"][..],
        &["create", "medium/new.img"],
        &["destroy", "medium/tank.img", "--yes"],
        &["expand", "medium/tank.img"],
        &["scrub", "medium/tank.img"],
    ] {
        let output = in_namespace(&fixture, read_only, arguments);
        let line = failed(&output, failure_code(arguments), arguments);
        assert!(line.contains("read-only"), "{line}");
        // Only where the option exists.
        assert_eq!(line.contains("--read-only"), arguments[0] == "check", "{line}");
    }
    for arguments in
        [&["check", "medium/tank.img", "--read-only"][..], &["status", "medium/tank.img"]]
    {
        let output = in_namespace(&fixture, read_only, arguments);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_machine_without_fuse() {
    if !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    let bare = "mount -t tmpfs none /dev";
    let other = "mount -t tmpfs none /dev; touch /dev/fuse";
    for arguments in [
        &["mount", "tank.img", "at"][..],
        &["mount"],
        &["mount", "tank.img", "at", "--daemon"],
        &["demo"],
    ] {
        for dev in [bare, other] {
            let line = failed(&in_namespace(&fixture, dev, arguments), 1, arguments);
            assert!(
                line.contains("/dev/fuse is missing") && line.contains("modprobe fuse"),
                "{line}"
            );
        }
    }
    assert!(!fixture.path("forebay.pool").exists(), "nothing is made for a mount that cannot be");
    assert!(in_namespace(&fixture, bare, &["check", "tank.img"]).status.success());
}
