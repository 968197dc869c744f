//! Imports of damaged pools.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::fixture::{Fixture, texts};

/// Overwrites both copies of the newest block of the space log.
fn damage(fixture: &Fixture, file: &str) {
    let text = fixture.ok(&["inspect", file, "txg", "--json"]);
    let group: Value = serde_json::from_str(&text).expect("JSON");
    let copies = group["found"]["space"]["log"]["copies"].as_array().expect("copies");
    assert_eq!(copies.len(), 2);
    let file = OpenOptions::new().write(true).open(fixture.path(file)).expect("the file");
    for copy in copies {
        let offset = copy["offset"].as_u64().expect("an offset");
        file.write_all_at(&[0xa5; 512], offset).expect("it is written");
    }
}

#[test]
fn a_damaged_group_is_told_and_given_up_on_request() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    damage(&fixture, "tank.img");
    let shown = fixture.run(&["inspect", "tank.img", "txg"]);
    let (out, err) = texts(&shown);
    assert_eq!(shown.status.code(), Some(1), "{out}{err}");
    assert!(out.contains("damaged: "), "{out}");

    let said = fixture.fails(&["import", "tank.img"]);
    assert!(said.contains("--rewind goes back to transaction group"), "{said}");
    let read = fixture.run(&["check", "tank.img", "--read-only"]);
    let (out, err) = texts(&read);
    assert_eq!(read.status.code(), Some(1), "{out}{err}");
    assert!(out.contains("without space maps") && out.contains("1 directories"), "{out}{err}");

    let imported = fixture.run(&["import", "tank.img", "--rewind"]);
    let (out, err) = texts(&imported);
    assert!(imported.status.success(), "{out}{err}");
    assert!(err.contains("gave up 1 transaction group: the changes of "), "{err}");
    assert!(fixture.ok(&["status", "tank"]).contains("gave up 1 transaction group"));
    fixture.ok(&["export", "tank"]);
    assert!(fixture.ok(&["check", "tank.img"]).contains("no problems found"));
}

#[test]
fn a_missing_device_is_told_and_the_rest_can_be_read() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "a.img", "b.img", "--size", "64M", "--name", "tank"]);
    fs::remove_file(fixture.path("b.img")).expect("it is there");
    let said = fixture.fails(&["check", "a.img"]);
    assert!(said.contains("missing") && said.contains("--read-only"), "{said}");
    let checked = fixture.ok(&["check", "a.img", "--read-only"]);
    assert!(checked.contains("device 1 (guid "), "{checked}");
    let imported = fixture.run(&["import", "a.img", "--read-only"]);
    let (out, err) = texts(&imported);
    assert!(imported.status.success(), "{out}{err}");
    assert!(err.contains("device 1 (guid ") && err.contains("is missing"), "{err}");
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_truncated_image_is_refused_with_the_way_to_read_it() {
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "64M"]);
    let set_bytes = |bytes| {
        let file = OpenOptions::new().write(true).open(fixture.path("tank.img"));
        file.and_then(|file| file.set_len(bytes)).expect("its size is set");
    };
    set_bytes(40 << 20);
    let said = fixture.fails(&["check", "tank.img"]);
    assert!(said.contains("`truncate --size 67108864`"), "{said}");
    assert!(said.contains("import read-only"), "{said}");
    set_bytes(64 << 20);
    fixture.ok(&["check", "tank.img"]);
}
