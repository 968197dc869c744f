//! Unmounting waits: for the commit, and for the devices to be closed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use forebay_base::testing::{detach_copies, full, skip};

use crate::fixture::{Fixture, fuse, is_mounted, mounted, root, signal, texts, wait_until};

const MIB: usize = 1 << 20;

/// Runs a script in a mount namespace of its own, so that no mount of it stays.
fn in_namespace(fixture: &Fixture, script: &str) -> Output {
    let script = detach_copies("fuse.forebay", None) + script;
    let mut command = fixture.command_of(Path::new("unshare"), &["--mount", "sh", "-ec", &script]);
    command.env("FOREBAY", env!("CARGO_BIN_EXE_forebay"));
    command.output().expect("unshare runs")
}

/// The folder `helpers`, with the helper of umount(8), to be bound over `/sbin`.
fn helpers(fixture: &Fixture) {
    let helper = fixture.folder("helpers").join("umount.fuse.forebay");
    symlink(env!("CARGO_BIN_EXE_forebay"), helper).unwrap();
}

/// Whether umount(8) and the tools of a script work here. Says that the test is skipped if not.
fn has(tools: &str) -> bool {
    let found = Command::new("sh").args(["-c", tools]).output();
    let works = found.is_ok_and(|output| output.status.success());
    if !works {
        skip("tools", format!("`{tools}` fails"));
    }
    works
}

/// Their mounts, like this one, end only with the last copy.
#[test]
fn a_namespace_has_no_mounts_of_other_tests() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
    let (out, err) = texts(&in_namespace(&fixture, "cat /proc/self/mounts"));
    assert!(is_mounted(&at) && out.contains("proc") && err.is_empty(), "{out}{err}");
    assert!(!out.contains("fuse.forebay"), "{out}");
    fixture.ok(&["umount", "at"]);
}

/// A copy keeps the file system of each mount. The daemon ends before it would have waited for two
/// of them, one after the other.
#[test]
fn a_daemon_that_ends_leaves_no_mount_behind_another_one() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    for name in ["a", "b", "c"] {
        fixture.pool(&format!("{name}.img"));
        fixture.folder(&format!("at-{name}"));
        fixture.folder(&format!("copy-{name}"));
    }
    let script = r#"
        for name in a b c; do
            "$FOREBAY" mount $name.img at-$name --daemon
            mount --bind at-$name copy-$name
        done
        pid=$(basename run/*.sock .sock)
        kill -TERM "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
        grep fuse.forebay /proc/self/mounts
    "#;
    let (out, err) = texts(&in_namespace(&fixture, script));
    let left: Vec<_> = out.lines().filter(|line| line.contains(" fuse.forebay ")).collect();
    assert_eq!(left.len(), 3, "{out}{err}");
    assert!(left.iter().all(|line| line.contains("/copy-")), "{out}{err}");
}

/// After umount(8), the process that served the mount is killed at once.
#[test]
fn umount_with_the_helper_is_a_barrier() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "256M", "--compression", "off"]);
    fixture.folder("at");
    helpers(&fixture);
    fs::write(fixture.path("content"), vec![7; 60 * MIB]).unwrap();
    let script = r#"
        mount --bind helpers /sbin
        "$FOREBAY" mount tank.img at --daemon
        "$FOREBAY" tunable set tank txg_timeout_ms 600000
        cp content at/content
        pid=$(basename run/*.sock .sock)
        umount at
        kill -9 "$pid" 2>/dev/null || true
        "$FOREBAY" import --show tank.img
        "$FOREBAY" mount tank.img at --daemon
        cmp content at/content
        # A lazy unmount, and one that passes the helper by.
        umount -l at
        "$FOREBAY" mount tank.img at --daemon
        umount -i at
    "#;
    let (out, err) = texts(&in_namespace(&fixture, script));
    assert!(out.contains("; exported"), "{out}{err}");
    assert_eq!(err, "", "{out}");
    assert!(!is_mounted(&fixture.path("at")));
}

/// In another mount namespace, umount(8) ends the copy of the mount there, and nothing else.
#[test]
fn umount_in_another_namespace_leaves_the_mount_alone() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "64M"]);
    fixture.folder("at");
    helpers(&fixture);
    let script = r#"
        mount --bind helpers /sbin
        "$FOREBAY" mount tank.img at --daemon
        unshare --mount sh -ec 'umount at; if grep "$PWD/at " /proc/self/mounts; then exit 9; fi'
        grep "$PWD/at " /proc/self/mounts
        echo content > at/file
        umount at
        "$FOREBAY" import --show tank.img
    "#;
    let output = in_namespace(&fixture, script);
    let (out, err) = texts(&output);
    assert!(output.status.success() && err.is_empty(), "{out}{err}");
    assert!(out.contains("; exported"), "{out}");
}

/// A mount bound over itself, also more than once: each umount(8) takes one away.
#[test]
fn a_mount_bound_over_itself_is_unmounted_as_the_error_says() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    helpers(&fixture);
    let script = r#"
        mount --bind helpers /sbin
        "$FOREBAY" mount tank.img at --daemon
        mkdir at/below
        mount --bind at at
        mount --bind at/below at
        if "$FOREBAY" umount at; then exit 9; fi
        umount at
        test -d at/below
        umount -l at
        echo content > at/file
        umount at
        "$FOREBAY" import --show tank.img
    "#;
    let output = in_namespace(&fixture, script);
    let (out, err) = texts(&output);
    assert!(output.status.success() && out.contains("; exported"), "{out}{err}");
    assert!(err.lines().count() == 1 && err.contains("unmount that first (`umount "), "{err}");
}

/// Where a folder is bound over itself and shared, the kernel puts a copy of the mount beneath it.
#[test]
fn a_mount_with_a_copy_beneath_it_is_unmounted() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("srv");
    helpers(&fixture);
    let script = r#"
        mount --bind helpers /sbin
        mkdir srv/at
        mount --bind srv srv
        mount --make-shared srv
        mount --bind srv srv
        for umount in "$FOREBAY umount" umount; do
            "$FOREBAY" mount tank.img srv/at --daemon
            test "$(grep -c "$PWD/srv/at " /proc/self/mounts)" = 2
            $umount srv/at
            if grep "$PWD/srv/at " /proc/self/mounts; then exit 9; fi
            "$FOREBAY" import --show tank.img
        done
    "#;
    let output = in_namespace(&fixture, script);
    let (out, err) = texts(&output);
    assert!(output.status.success() && err.is_empty(), "{out}{err}");
    assert_eq!(out.matches("; exported").count(), 2, "{out}");
}

/// A mount that is detached, but still in use, does not stand for another one at its path, of the
/// same daemon or of another one.
#[test]
fn a_mount_at_the_place_of_a_detached_one_is_unmounted() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let script = r#"
        "$FOREBAY" mount one.img at --daemon $SEPARATE
        exec 3> at/file
        umount -i -l at
        "$FOREBAY" list
        "$FOREBAY" status one
        "$FOREBAY" mount two.img at --daemon $SEPARATE
        "$FOREBAY" umount --lazy one
        grep "two/main $PWD/at " /proc/self/mounts
        "$FOREBAY" umount at
        if grep "$PWD/at " /proc/self/mounts; then exit 9; fi
        "$FOREBAY" import --show two.img
        exec 3>&-
    "#;
    for separate in ["", "--separate --memory=192M"] {
        let fixture = Fixture::new();
        fixture.pool("one.img");
        fixture.pool("two.img");
        fixture.folder("at");
        let output = in_namespace(&fixture, &format!("SEPARATE='{separate}'; {script}"));
        let (out, err) = texts(&output);
        assert!(output.status.success() && out.contains("; exported"), "{out}{err}");
        assert_eq!(out.matches("/at (detached) ").count(), 2, "list and status: {out}");
    }
}

/// A daemon that does not answer: umount(8) says so, since it cannot wait for the commit. A lazy
/// unmount does not need the daemon.
#[test]
fn the_helper_unmounts_lazily_without_the_daemon() {
    if !fuse() || !root() || !has("command -v umount") {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap() as i32;
    signal(pid, libc::SIGSTOP);
    let refused = fixture.run(&["umount", "--helper", "at"]);
    let lazily = fixture.run(&["umount", "--helper", "--lazy", "at"]);
    let still = is_mounted(&at);
    signal(pid, libc::SIGCONT);
    let (_, err) = texts(&refused);
    assert!(!refused.status.success() && err.contains("does not answer"), "{err}");
    let (out, err) = texts(&lazily);
    assert!(lazily.status.success(), "{out}{err}");
    assert!(!still);
}

/// A daemon that has too many connections refuses new ones at once. It may serve the mount.
#[test]
fn the_helper_notices_a_daemon_with_too_many_connections() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap();
    let socket = fixture.run_dir().join(format!("{pid}.sock"));
    loop {
        // The daemon closes each after some seconds without a request.
        let connect = || UnixStream::connect(&socket).unwrap();
        let connections: Vec<UnixStream> = std::iter::repeat_with(connect).take(60).collect();
        let open = || {
            let is_open = |stream: &&UnixStream| {
                stream.set_nonblocking(true).unwrap();
                let read = (&**stream).read(&mut [0]);
                read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            };
            connections.iter().filter(is_open).count()
        };
        wait_until("the daemon closes connections", || open() <= 40);
        if open() < 40 {
            continue;
        }
        let output = fixture.run(&["umount", "--helper", "at"]);
        if open() == 40 {
            let (_, err) = texts(&output);
            assert!(!output.status.success() && err.contains("does not answer"), "{err}");
            assert!(is_mounted(&at));
            break;
        }
        if !is_mounted(&at) {
            fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
        }
    }
    // The daemon notices one after the other that the connections have ended.
    let answers = || fixture.run(&["umount", "at"]).status.success();
    wait_until("the daemon has connections to spare", answers);
}

/// A mount over a mount, or over a directory above it, is not the pool's.
#[test]
fn other_mounts_over_a_mount_are_named_and_left_alone() {
    let script = r#"
        mkdir -p above/at
        "$FOREBAY" mount tank.img above/at --daemon
        for over in above/at above; do
            mount -t tmpfs precious $over
            echo content > $over/file
            for way in umount "umount --lazy" export; do
                if "$FOREBAY" $way tank; then exit 9; fi
            done
            grep content $over/file
            umount -i $over
        done
        echo content > above/at/file
        mv above moved
        "$FOREBAY" list
        "$FOREBAY" umount moved/at
    "#;
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let output = in_namespace(&fixture, script);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    let covered: Vec<&str> = err.lines().filter(|line| line.contains("tmpfs (precious)")).collect();
    assert_eq!(covered.len(), 6, "{out}{err}");
    assert!(out.contains("moved/at"), "{out}");
    let shown = fixture.ok(&["import", "--show", "tank.img"]);
    assert!(shown.contains("; exported"), "{shown}");
}

/// A daemon that must end cannot unmount it, and says so.
#[test]
fn a_mount_below_another_one_stays_behind_and_is_told() {
    if !fuse() || !root() || !has("unshare --mount mount --bind /tmp /tmp") {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    let script = r#"
        "$FOREBAY" mount tank.img at --daemon
        mount -t tmpfs precious at
        pid=$(basename run/*.sock .sock)
        kill "$pid"
        while test -e "run/$pid.sock" || readlink "/proc/$pid/exe" > /dev/null; do sleep 0.1; done
        cat "run/$pid.log"
        umount -i at
        "$FOREBAY" umount at
        if grep "$PWD/at " /proc/self/mounts; then exit 9; fi
        "$FOREBAY" import --show tank.img
    "#;
    let output = in_namespace(&fixture, script);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    let path = fixture.path("at");
    let advice = format!("run `forebay umount {}` once that is gone", path.display());
    assert!(out.contains("stays behind, dead, below another mount; ") && out.contains(&advice));
    assert!(out.contains("tmpfs (precious) is mounted over it"), "{out}");
    assert!(!out.contains("lazily after") && !out.contains("files are still open"), "{out}");
    assert!(out.contains("removed the dead mount") && out.contains("; exported"), "{out}");
}

#[test]
fn a_mount_is_named_by_its_path_after_a_rename() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("before");
    let at = fixture.folder("before/at");
    let mut running = mounted(&fixture, &["mount", "tank.img", "before/at"], &at);
    // By then the process has found it in the mount table.
    running.read_until("mounted ");
    fs::rename(fixture.path("before"), fixture.path("after")).unwrap();
    running.signal(libc::SIGINT);
    let said = running.read_until("unmounted ");
    let expected = format!("unmounted {}\n", fixture.path("after/at").display());
    assert!(said.ends_with(&expected), "{said}");
    assert!(running.wait().status.success());
}

/// The script in `packaging` does the same as the link.
#[test]
fn the_script_of_the_helper_unmounts() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/umount.forebay");
    for options in [&[][..], &["-n", "-l"], &["-t", "fuse.forebay", "-v"]] {
        fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
        let arguments = [&[at.to_str().unwrap()], options].concat();
        let mut command = fixture.command_of(&script, &arguments);
        let output = command.env("FOREBAY", env!("CARGO_BIN_EXE_forebay")).output().unwrap();
        let (out, err) = texts(&output);
        assert!(output.status.success() && out.is_empty(), "{out}{err}");
        assert!(!is_mounted(&at));
        let shown = fixture.ok(&["import", "--show", "tank.img"]);
        assert!(shown.contains("; exported"), "{options:?}: {shown}");
    }
}

/// The file system that holds the image of a pool can be unmounted right after the pool.
#[test]
fn the_file_system_below_can_be_unmounted_at_once() {
    let tools = "command -v mkfs.ext4 && command -v losetup && losetup -f";
    if !fuse() || !root() || !has(tools) {
        return;
    }
    let fixture = Fixture::new();
    fixture.folder("below");
    fixture.folder("at");
    let rounds = if full() { 30 } else { 6 };
    let script = format!(
        r#"
        truncate -s 256M disk
        mkfs.ext4 -q disk
        mount -o loop disk below
        "$FOREBAY" create below/tank.img --size 128M
        for round in $(seq {rounds}); do
            "$FOREBAY" mount below/tank.img at --daemon
            head -c 20000000 /dev/urandom > at/file
            "$FOREBAY" umount at
            umount below
            mount -o loop disk below
        done
        umount below
        "#
    );
    let output = in_namespace(&fixture, &script);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
}
