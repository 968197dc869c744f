//! Options of mount(8): what they forbid is forbidden, and the table of mounts shows them.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{Fixture, fuse, is_mounted, mounted, root, texts};

/// Options of the mount at a place, as the kernel shows them.
fn shown(at: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    let rows = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row = rows.into_iter().rfind(|row| row[4] == at.to_str().unwrap()).expect("a mount");
    row[5].split(',').map(str::to_owned).collect()
}

fn has(at: &Path, option: &str) -> bool {
    shown(at).iter().any(|one| one == option)
}

/// A pool with a program, a set-id program and a device node in it.
fn furnished() -> (Fixture, PathBuf) {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    fs::copy("/usr/bin/id", at.join("id")).unwrap();
    fs::set_permissions(at.join("id"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let made = Command::new("mknod").arg(at.join("zero")).args(["c", "1", "5"]).status().unwrap();
    assert!(made.success());
    fs::write(at.join("file"), "content").unwrap();
    drop(running);
    (fixture, at)
}

fn runs(at: &Path) -> bool {
    Command::new(at.join("id")).output().is_ok_and(|output| output.status.success())
}

/// The effective user of the set-id program when `nobody` runs it.
fn effective(at: &Path) -> String {
    use std::os::unix::process::CommandExt;
    let output = Command::new(at.join("id")).arg("-u").uid(65534).gid(65534).output().unwrap();
    texts(&output).0.trim().to_owned()
}

fn opens_device(at: &Path) -> bool {
    File::open(at.join("zero")).is_ok()
}

#[test]
fn what_options_forbid_is_forbidden() {
    if !fuse() || !root() {
        return;
    }
    let (fixture, at) = furnished();
    for (options, exec, suid, dev) in [
        ("rw", true, true, true),
        ("noexec", false, true, true),
        ("nosuid", true, false, true),
        ("nodev", true, true, false),
        ("nosuid,nodev,noexec,nofail,x-systemd.automount", false, false, false),
        ("user,exec", true, false, false),
    ] {
        let running = mounted(&fixture, &["mount", "tank.img", "at", "-o", options], &at);
        assert_eq!(runs(&at), exec, "{options}");
        assert_eq!(has(&at, "noexec"), !exec, "{options}");
        if exec {
            assert_eq!(effective(&at), if suid { "0" } else { "65534" }, "{options}");
        }
        assert_eq!(has(&at, "nosuid"), !suid, "{options}");
        assert_eq!((opens_device(&at), has(&at, "nodev")), (dev, !dev), "{options}");
        drop(running);
    }
}

#[test]
fn unknown_options_are_refused_by_name() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    let said = fixture.misused(&["mount", "tank.img", "at", "-o", "nosuid,frobnicate"]);
    assert!(
        said.contains("-o frobnicate: no such option; valid options are ro, rw, nosuid"),
        "{said}"
    );
    let said = fixture.misused(&["mount", "tank.img", "at", "-o", "dirsync"]);
    assert!(said.contains("-o dirsync: forebay does not support it; call fsync"), "{said}");
    assert!(!is_mounted(&fixture.path("at")));
}

/// Sets the times of a file so that a read changes its time of access by one rule and not by
/// another.
fn age(path: &Path, atime: i64, mtime: i64) {
    let times = fs::FileTimes::new();
    let time =
        |seconds: i64| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds as u64);
    File::open(path)
        .unwrap()
        .set_times(times.set_accessed(time(atime)).set_modified(time(mtime)))
        .unwrap();
}

/// Whether reading the path changes its time of access.
fn touches(path: &Path) -> bool {
    let before = fs::metadata(path).unwrap().atime();
    match path.is_dir() {
        true => drop(fs::read_dir(path).unwrap().count()),
        false => drop(fs::read(path).unwrap()),
    }
    fs::metadata(path).unwrap().atime() != before
}

#[test]
fn times_of_access_follow_the_options() {
    if !fuse() {
        return;
    }
    // Far in the future, and later than any change: only a strict rule changes it.
    let (old, fresh) = (1_000_000, 8_000_000_000);
    for (options, when_old, when_fresh, of_folder) in [
        ("rw", true, false, true),
        ("relatime", true, false, true),
        ("strictatime", true, true, true),
        ("noatime", false, false, false),
        ("nodiratime", true, false, false),
    ] {
        let fixture = Fixture::new();
        fixture.pool("tank.img");
        let at = fixture.folder("at");
        let _running = mounted(&fixture, &["mount", "tank.img", "at", "-o", options], &at);
        let (file, folder) = (at.join("file"), at.join("folder"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("name"), "").unwrap();
        fs::write(&file, "content").unwrap();
        age(&file, old, 2_000_000);
        assert_eq!(touches(&file), when_old, "{options}: an old time");
        age(&file, fresh, old);
        assert_eq!(touches(&file), when_fresh, "{options}: a fresh time");
        age(&folder, old, 2_000_000);
        assert_eq!(touches(&folder), of_folder, "{options}: a folder");
    }
}

/// A mount that became read-only writes nothing, times of access included.
#[test]
fn a_read_only_mount_keeps_times_of_access() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let running = mounted(&fixture, &["mount", "tank.img", "at", "-o", "strictatime"], &at);
    let (file, old) = (at.join("file"), 1_000_000);
    fs::write(&file, "content").unwrap();
    age(&file, old, 2_000_000);
    fixture.ok(&["mount", "-o", "remount,ro", "at"]);
    assert!(!touches(&file));
    // Times that are only in memory would be written now.
    drop(running);
    let running = mounted(&fixture, &["mount", "tank.img", "at", "-o", "ro"], &at);
    assert_eq!(fs::metadata(&file).unwrap().atime(), old);
    drop(running);

    let running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    fixture.ok(&["mount", "-o", "remount,ro", "at"]);
    assert!(!touches(&file), "relatime");
    fixture.ok(&["mount", "-o", "remount,rw", "at"]);
    assert!(touches(&file), "as before it became read-only");
    drop(running);
}

#[test]
fn a_mount_changes_its_flags() {
    if !fuse() || !root() {
        return;
    }
    let (fixture, at) = furnished();
    let running = mounted(&fixture, &["mount", "tank.img", "at", "-o", "nosuid"], &at);
    let held = File::options().append(true).open(at.join("file")).unwrap();
    let said = fixture.fails(&["mount", "-o", "remount,ro", "at"]);
    assert!(said.contains("cannot become read-only: files there are open for writing"), "{said}");
    drop(held);
    fixture.ok(&["mount", "-o", "remount,ro", "at"]);
    let refused = fs::write(at.join("file"), "more").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(has(&at, "ro") && has(&at, "nosuid"), "others stay: {:?}", shown(&at));
    assert!(fixture.ok(&["list"]).contains("ro"));
    fixture.ok(&["mount", "-o", "remount,rw,noexec,strictatime", "at"]);
    fs::write(at.join("file"), "more").unwrap();
    assert!(!runs(&at) && has(&at, "nosuid"));
    age(&at.join("file"), 8_000_000_000, 1_000_000);
    assert!(touches(&at.join("file")));

    // As mount(8) calls the helper for what is mounted: by the type that the kernel shows.
    let helper = fixture.path("mount.fuse.forebay");
    symlink(env!("CARGO_BIN_EXE_forebay"), &helper).unwrap();
    let options =
        "rw,exec,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,noatime";
    let arguments = ["tank/main", at.to_str().unwrap(), "-o", options];
    let output = fixture.command_of(&helper, &arguments).output().unwrap();
    assert!(output.status.success(), "{:?}", texts(&output));
    assert!(runs(&at) && has(&at, "noatime") && has(&at, "nosuid"));
    age(&at.join("file"), 1_000_000, 2_000_000);
    assert!(!touches(&at.join("file")));
    // The kernel's flags can be changed without the program; they stay as well.
    let alone = ["-i", "-o", "remount,ro,nodev,noexec", at.to_str().unwrap()];
    assert!(Command::new("mount").args(alone).status().unwrap().success());
    assert_eq!(fixture.processes()[0]["pools"][0]["mounts"][0]["read_only"], true);
    fixture.ok(&["mount", "-o", "remount,relatime", "at"]);
    for option in ["ro", "nosuid", "nodev", "noexec", "relatime"] {
        assert!(has(&at, option), "{option}: {:?}", shown(&at));
    }
    drop(running);

    let running = mounted(&fixture, &["mount", "tank.img", "at", "-o", "ro"], &at);
    let said = fixture.fails(&["mount", "-o", "remount,rw", "at"]);
    assert!(said.contains("cannot become writable: it was mounted read-only"), "{said}");
    drop(running);
}
