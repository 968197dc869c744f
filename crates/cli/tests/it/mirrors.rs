//! Mirrors on the command line: create, status with a side lost, and what to do next.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, failed, texts};

#[test]
fn a_mirror_is_created_and_its_tree_is_shown() {
    let fixture = Fixture::new();
    let sides = ["--mirror", "a.img", "b.img", "--mirror", "c.img", "d.img"];
    let create = [&["create", "--name", "tank", "--size", "32M", "x.img"][..], &sides].concat();
    let created = fixture.ok(&create);
    assert!(created.contains("in 5 devices: 2 mirrors and a device without one"), "{created}");
    let all = "x.img:a.img:b.img:c.img:d.img";
    let status = fixture.ok(&["status", all]);
    for wanted in ["mirror 1", "mirror 2", "STATE", "online"] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    let json = fixture.ok(&["status", "--json", all]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let devices = json["devices"].as_array().expect("devices");
    let numbers: Vec<_> = devices.iter().map(|device| device["number"].as_u64()).collect();
    assert_eq!(numbers, [0, 1, 1, 2, 2].map(Some));
    assert!(devices[1]["mirror"] == true && devices[0]["mirror"] == false, "{json}");

    // One side is lost: degraded, and nothing is refused.
    std::fs::remove_file(fixture.path("b.img")).expect("removed");
    let left = fixture.run(&["status", "x.img:a.img:c.img:d.img"]);
    let (text, _) = texts(&left);
    assert_eq!(left.status.code(), Some(1), "{text}");
    for wanted in ["health     degraded", "missing", "connect the missing device"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let command = text.split("`forebay replace ").nth(1).expect("it says how to replace it");
    let old = command.split(' ').nth(1).expect("a guid").to_owned();
    let row = text.lines().find(|line| line.contains(&format!("    device {old} ")));
    let row = row.expect("the tree has the missing side").split_whitespace().collect::<Vec<_>>();
    assert_eq!(row[1..4], ["device", &*old, "missing"], "{text}");
    // A whole mirror is lost.
    fixture.folder("mnt");
    let lost = fixture.fails(&["mount", "x.img:c.img:d.img", "mnt"]);
    assert!(lost.contains("of mirror 1"), "{lost}");

    // The missing side has no path, and is named as `status` says.
    let left = "x.img:a.img:c.img:d.img";
    let refused = fixture.fails(&["replace", left, "b.img", "n.img", "--size", "32M"]);
    assert!(refused.contains("a missing one by its guid"), "{refused}");
    fixture.ok(&["replace", left, &old, "n.img", "--size", "32M"]);
    fixture.ok(&["status", "x.img:a.img:n.img:c.img:d.img"]);

    fixture.misused(&["create", "--name", "one", "--mirror", "e.img"]);
    let same = ["create", "--name", "two", "--size", "32M", "--mirror", "f.img", "f.img"];
    let twice = fixture.fails(&same);
    assert!(twice.contains("twice"), "{twice}");
}

#[test]
fn a_side_goes_offline_and_comes_back_beside_a_mount() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    let folder = fixture.folder("mnt");
    fixture.ok(&["mount", "a.img:b.img", "mnt", "--daemon"]);
    std::fs::write(folder.join("before"), vec![1; 1 << 20]).expect("written");
    let offline = fixture.ok(&["offline", "tank", "b.img"]);
    assert!(offline.contains("`forebay online tank b.img` brings it back"), "{offline}");
    let refused = fixture.fails(&["offline", "tank", "a.img"]);
    assert!(refused.contains("no other device of mirror 0 has all blocks"), "{refused}");
    std::fs::write(folder.join("meanwhile"), vec![2; 1 << 20]).expect("written");
    let (text, _) = texts(&fixture.run(&["status", "tank"]));
    for wanted in ["health     degraded", "offline", "forebay online tank DEVICE"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let online = fixture.ok(&["online", "tank", "b.img"]);
    assert!(online.contains("copies written, 0 lost"), "{online}");
    let status = fixture.ok(&["status", "tank"]);
    assert!(status.contains("resilver   ended"), "{status}");
    fixture.ok(&["umount", "mnt"]);

    // A pool that is not imported; and the side that was away has everything.
    fixture.ok(&["offline", "a.img:b.img", "a.img"]);
    fixture.ok(&["mount", "b.img", "mnt", "--daemon"]);
    assert_eq!(std::fs::read(folder.join("meanwhile")).expect("read"), vec![2; 1 << 20]);
    std::fs::write(folder.join("alone"), vec![3; 1 << 20]).expect("written");
    fixture.ok(&["umount", "mnt"]);
    let online = fixture.ok(&["online", "a.img:b.img", "a.img"]);
    assert!(online.contains("copies written, 0 lost"), "{online}");
    let checked = fixture.ok(&["check", "a.img:b.img"]);
    assert!(checked.contains("no problems"), "{checked}");
    let wrong = fixture.fails(&["offline", "a.img:b.img", "c.img"]);
    assert!(wrong.contains("no such device"), "{wrong}");
}

#[test]
fn a_side_that_was_copied_or_moved_while_it_was_offline_comes_back() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    let folder = fixture.folder("mnt");
    fixture.ok(&["mount", "a.img:b.img", "mnt", "--daemon"]);
    let (side, copy) = (fixture.path("b.img"), fixture.path("copy.img"));
    fixture.ok(&["offline", "tank", "b.img"]);
    std::fs::write(folder.join("first"), vec![1; 1 << 20]).expect("written");
    std::fs::rename(&side, &copy).expect("moved");
    // Its relative path names it also while nothing is there.
    let refused = fixture.fails(&["online", "tank", "b.img"]);
    assert!(refused.contains("cannot bring the side back"), "{refused}");
    let unknown = fixture.fails(&["online", "tank", "c.img"]);
    for wanted in ["c.img: the pool has no such device", "a.img (guid", "b.img (guid"] {
        assert!(unknown.contains(wanted), "{wanted}: {unknown}");
    }
    std::fs::copy(&copy, &side).expect("copied");
    std::fs::remove_file(&copy).expect("removed");
    fixture.ok(&["online", "tank", "b.img"]);
    fixture.ok(&["detach", "tank", "a.img"]);
    std::fs::write(folder.join("second"), vec![2; 1 << 20]).expect("written");
    fixture.ok(&["umount", "mnt"]);
    std::fs::remove_file(fixture.path("a.img")).expect("removed");
    fixture.ok(&["mount", "b.img", "mnt", "--daemon"]);
    for (name, byte) in [("first", 1), ("second", 2)] {
        let found = std::fs::read(folder.join(name)).expect("it reads");
        assert!(found == vec![byte; 1 << 20], "{name}");
    }
    fixture.ok(&["umount", "mnt"]);
    fixture.ok(&["check", "b.img"]);
}

/// The next commit writes at its end, and nobody would find it later.
#[test]
fn online_says_that_a_side_has_lost_its_end() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    fixture.folder("mnt");
    fixture.ok(&["mount", "a.img:b.img", "mnt", "--daemon"]);
    fixture.ok(&["offline", "tank", "b.img"]);
    let side = std::fs::File::options().write(true).open(fixture.path("b.img")).expect("a file");
    side.set_len(16 << 20).expect("cut");
    side.set_len(32 << 20).expect("grown");
    let said = fixture.ok(&["online", "tank", "b.img"]);
    assert!(said.contains("has lost its end") && said.contains("b.img: a resilver"), "{said}");
    fixture.ok(&["umount", "mnt"]);
}

/// A program that reads and writes files beside everything else, and fails at the first error.
fn work(folder: &Path, stop: &AtomicBool) {
    let mut round = 0_u8;
    while !stop.load(Ordering::Relaxed) {
        for file in 0..8_u8 {
            let kept = std::fs::read(folder.join(format!("kept-{file}"))).expect("it reads");
            assert!(kept == vec![file; 256 << 10], "file {file} has other bytes");
        }
        let path = folder.join("changing");
        std::fs::write(&path, vec![round; 64 << 10]).expect("it takes the write");
        std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("it is durable");
        assert!(std::fs::read(&path).expect("it reads") == vec![round; 64 << 10]);
        round = round.wrapping_add(1);
    }
}

/// Overwrites all 64 MiB of a side. Direct, as the pool writes: after direct and buffered writes to
/// one page, the kernel fails a flush, and the side would be faulted and not scrubbed.
fn overwrite(side: &Path) {
    let dd = |direct: Option<&str>| {
        let mut dd = std::process::Command::new("dd");
        dd.args(["if=/dev/urandom", "bs=1M", "count=64", "status=none"]);
        dd.arg("conv=notrunc").arg(format!("of={}", side.display())).args(direct);
        dd.stderr(std::process::Stdio::null()).status().expect("dd runs").success()
    };
    // Where there are no direct writes, the pool has none either.
    assert!(dd(Some("oflag=direct")) || dd(None), "overwritten");
}

#[test]
fn a_side_is_overwritten_and_replaced_and_the_other_one_pulled_beside_a_program() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "64M", "--mirror", "a.img", "b.img"]);
    let folder = fixture.folder("mnt");
    fixture.ok(&["mount", "a.img:b.img", "mnt", "--daemon"]);
    for file in 0..8_u8 {
        let content = vec![file; 256 << 10];
        std::fs::write(folder.join(format!("kept-{file}")), content).expect("written");
    }
    fixture.ok(&["cache", "flush", "tank"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let program = scope.spawn(|| work(&folder, &stop));
        overwrite(&fixture.path("b.img"));
        let scrubbed = fixture.ok(&["scrub", "tank"]);
        assert!(scrubbed.contains("healed"), "{scrubbed}");
        let args = ["replace", "tank", "b.img", "c.img", "--size", "64M"];
        let replaced = fixture.ok(&args);
        assert!(replaced.contains("c.img has replaced b.img"), "{replaced}");
        let status = fixture.ok(&["status", "tank"]);
        assert!(status.contains("c.img") && !status.contains("b.img"), "{status}");
        assert!(status.contains("health     online"), "{status}");
        stop.store(true, Ordering::Relaxed);
        program.join().expect("no error to the program");
    });
    fixture.ok(&["umount", "mnt"]);

    // The other side is pulled, and comes back.
    std::fs::rename(fixture.path("a.img"), fixture.path("pulled.img")).expect("moved");
    let output = fixture.run(&["mount", "c.img", "mnt", "--daemon"]);
    let (out, err) = texts(&output);
    assert!(output.status.success() && out.contains("mounted tank/main"), "{out}{err}");
    assert!(err.contains(" of a mirror is missing; the mirror goes on"), "{err}");
    assert!(err.contains("`forebay status tank`") && err.lines().count() == 1, "{err}");
    std::fs::write(folder.join("alone"), vec![9; 1 << 20]).expect("written");
    fixture.ok(&["umount", "mnt"]);
    std::fs::rename(fixture.path("pulled.img"), fixture.path("a.img")).expect("moved");
    fixture.ok(&["mount", "a.img:c.img", "mnt", "--daemon"]);
    fixture.ok(&["online", "tank", "a.img"]);
    for file in 0..8_u8 {
        let kept = std::fs::read(folder.join(format!("kept-{file}"))).expect("it reads");
        assert!(kept == vec![file; 256 << 10], "file {file}");
    }
    fixture.ok(&["umount", "mnt"]);
    fixture.ok(&["check", "a.img:c.img"]);
    let alone = fixture.run(&["check", "--read-only", "a.img"]);
    assert!(texts(&alone).0.contains("no problems found"), "{alone:?}");
}

/// "No problems found" says nothing of copies that nobody has read.
#[test]
fn a_scrub_and_a_check_name_the_sides_that_they_have_not_read() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    fixture.ok(&["import", "a.img", "b.img"]);
    fixture.ok(&["scrub", "tank"]);
    fixture.ok(&["offline", "tank", "b.img"]);
    for command in ["scrub", "check"] {
        let output = fixture.run(&[command, "tank"]);
        let (text, _) = texts(&output);
        assert!(text.contains("not read: ") && text.contains("b.img, which is offline"), "{text}");
        let said = failed(&output, 1, &[command]);
        assert!(said.contains("a device of a mirror was not read"), "{said}");
        let output = fixture.run(&[command, "tank", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&texts(&output).0).expect("JSON");
        assert_eq!(json["not_read"].as_array().map(Vec::len), Some(1), "{json}");
    }
    fixture.ok(&["online", "tank", "b.img"]);
    for command in ["scrub", "check"] {
        fixture.ok(&[command, "tank"]);
    }
    fixture.ok(&["export", "tank"]);
    // A missing one as well.
    std::fs::remove_file(fixture.path("b.img")).expect("removed");
    let output = fixture.run(&["check", "a.img"]);
    let (text, _) = texts(&output);
    assert!(text.contains("not read: ") && text.contains("is missing"), "{text}");
    failed(&output, 1, &["check"]);
}

#[test]
fn devices_join_and_leave_a_pool_that_is_not_imported() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "a.img"]);
    let attached = fixture.ok(&["attach", "a.img", "a.img", "b.img", "--size", "32M"]);
    assert!(attached.contains("b.img mirrors a.img"), "{attached}");
    fixture.ok(&["check", "a.img:b.img"]);
    let refused = fixture.fails(&["attach", "a.img:b.img", "a.img", "b.img"]);
    assert!(refused.contains("is a device of this pool already"), "{refused}");
    let small = fixture.fails(&["attach", "a.img:b.img", "a.img", "c.img", "--size", "20M"]);
    assert!(small.contains("give a device of at least"), "{small}");
    assert!(!fixture.path("c.img").exists(), "what was created for nothing is removed");
    fixture.ok(&["create", "--name", "other", "--size", "32M", "d.img"]);
    let taken = fixture.fails(&["attach", "a.img:b.img", "a.img", "d.img"]);
    assert!(taken.contains("holds pool \"other\""), "{taken}");
    let detached = fixture.ok(&["detach", "a.img:b.img", "a.img"]);
    assert!(detached.contains("its labels are erased"), "{detached}");
    let last = fixture.fails(&["detach", "b.img", "b.img"]);
    assert!(last.contains("no side of a mirror"), "{last}");
    fixture.ok(&["check", "b.img"]);
    let replaced = fixture.ok(&["replace", "b.img", "b.img", "c.img", "--size", "48M"]);
    assert!(replaced.contains("has replaced"), "{replaced}");
    fixture.ok(&["expand", "c.img", "--mirror", "e.img", "f.img", "--size", "32M"]);
    let status = fixture.ok(&["status", "c.img:e.img:f.img"]);
    assert!(status.contains("mirror 1") && status.contains("f.img"), "{status}");
    fixture.ok(&["detach", "c.img:e.img:f.img", "f.img"]);
    fixture.ok(&["check", "c.img:e.img"]);
    let gone = fixture.fails(&["check", "b.img"]);
    assert!(gone.contains("holds no pool"), "{gone}");
}

/// A device without a mirror could not be removed from the pool again.
#[test]
fn a_pool_of_mirrors_takes_a_single_device_only_by_force() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    let alone = ["expand", "a.img:b.img", "--add", "c.img", "--size", "32M"];
    let refused = fixture.fails(&alone);
    assert!(refused.contains("pool tank consists of mirrors"), "{refused}");
    assert!(refused.contains("expand tank --mirror") && refused.contains("--force"), "{refused}");
    assert!(!fixture.path("c.img").exists(), "what was created for nothing is removed");
    fixture.ok(&["import", "a.img", "b.img"]);
    fixture.fails(&["expand", "tank", "--add", "c.img", "--size", "32M"]);
    fixture.ok(&["expand", "tank", "--mirror", "c.img", "d.img", "--size", "32M"]);
    fixture.ok(&["expand", "tank", "--add", "e.img", "--size", "32M", "--force"]);
    // From here on it is no pool of mirrors.
    fixture.ok(&["expand", "tank", "--add", "f.img", "--size", "32M"]);
    fixture.ok(&["export", "tank"]);
    fixture.ok(&["check", "a.img:b.img:c.img:d.img:e.img:f.img"]);
}

/// Each check of one side would make it newer than the other.
#[test]
fn checks_of_single_sides_do_not_split_a_mirror() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    for side in ["b.img", "a.img"] {
        let (text, error) = texts(&fixture.run(&["check", side]));
        assert!(error.contains("a device of a mirror was not read"), "{text}{error}");
    }
    let checked = fixture.ok(&["check", "a.img:b.img"]);
    assert!(checked.contains("no problems"), "{checked}");
}
