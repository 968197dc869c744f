//! Mirrors on the command line: create, status with a side lost, and what to do next.

use crate::fixture::{Fixture, texts};

#[test]
fn a_mirror_is_created_and_its_tree_is_shown() {
    let fixture = Fixture::new();
    let sides = ["--mirror", "a.img", "b.img", "--mirror", "c.img", "d.img"];
    let create = [&["create", "--name", "tank", "--size", "32M", "x.img"][..], &sides].concat();
    let created = fixture.ok(&create);
    assert!(created.contains("in 5 devices, of which 2 mirrors"), "{created}");
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
    // A whole mirror is lost.
    fixture.folder("mnt");
    let lost = fixture.fails(&["mount", "x.img:c.img:d.img", "mnt"]);
    assert!(lost.contains("of mirror 1"), "{lost}");

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
    assert!(checked.contains("no problems") || !checked.contains("problem"), "{checked}");
    let wrong = fixture.fails(&["offline", "a.img:b.img", "c.img"]);
    assert!(wrong.contains("no such device"), "{wrong}");
}
