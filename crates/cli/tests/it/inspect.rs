//! `forebay inspect` on pools that are whole, in use, cut short and damaged, and asked for what is
//! not there.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::fixture::{Fixture, fuse, texts};

#[track_caller]
fn json(fixture: &Fixture, arguments: &[&str]) -> Value {
    let text = fixture.ok(&[&["inspect"], arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_pool_that_nobody_has_is_shown() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let labels = json(&fixture, &["tank.img", "label"]);
    assert_eq!(labels[0]["labels"].as_array().map(Vec::len), Some(2));
    for label in labels[0]["labels"].as_array().expect("two") {
        assert_eq!(
            (&label["state"], &label["label"]["pool_name"]),
            (&"sound".into(), &"tank".into())
        );
    }
    let text = fixture.ok(&["inspect", "tank.img", "uberblocks"]);
    assert!(text.contains(", written 20") && text.contains(" UTC, 1 devices"), "{text}");
    let uberblocks = json(&fixture, &["tank.img", "uberblocks"]);
    let newest = uberblocks["found"][0]["txg"].as_u64().expect("a group");
    let group = json(&fixture, &["tank.img", "txg"]);
    assert_eq!(group["as_of_txg"].as_u64(), Some(newest));
    assert_eq!(group["found"]["datasets"][0]["name"], "main");
    let older = json(&fixture, &["tank.img", "txg", &(newest - 1).to_string()]);
    assert_eq!(older["found"]["txg"].as_u64(), Some(newest - 1));
    assert!(older["notices"][0].as_str().expect("a notice").contains("newest txg"), "{older}");

    let datasets = json(&fixture, &["tank.img", "datasets"]);
    let root = &datasets["found"]["datasets"][0]["root_object"];
    let root = root.as_u64().expect("the root of its files").to_string();
    let object = json(&fixture, &["tank.img", "object", "main", &root]);
    assert_eq!(object["found"]["kind"], "directory");
    assert!(fixture.ok(&["inspect", "tank.img", "zap", "main", &root]).contains("micro: "));
    assert!(fixture.ok(&["inspect", "tank.img", "datasets"]).contains("dataset \"main\""));
    let block = fixture.ok(&["inspect", "tank.img", "block", "main", "dnodes", "0"]);
    assert!(block.contains("checksum right") && block.contains("00000200  02 "), "{block}");
    let directory = group["found"]["directory"].as_u64().expect("a number").to_string();
    assert!(fixture.ok(&["inspect", "tank.img", "zap", "-", &directory]).contains("1 entries"));

    let bytes = fixture.ok(&["inspect", "tank.img", "block", "0:0x0:4096"]);
    assert!(bytes.contains("a label, whose checksum is right"), "{bytes}");
    let raw = fixture.run(&["inspect", "tank.img", "block", "0:0:7", "--raw"]);
    assert_eq!(raw.stdout, b"forebay");
}

#[test]
fn a_pool_in_use_is_shown_by_its_name_and_stays_in_use() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    for pool in ["tank", "tank.img"] {
        let labels = json(&fixture, &[pool, "label"]);
        assert_eq!(labels[0]["labels"][0]["label"]["state"], "active");
        assert!(fixture.ok(&["inspect", pool, "txg"]).contains("dataset \"main\""));
    }
    assert!(fixture.ok(&["check", "tank"]).contains("no problems found"));
    fixture.ok(&["export", "tank"]);
}

#[test]
fn files_of_a_mount_are_found_on_the_device() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("mnt");
    fixture.ok(&["mount", "tank.img", "mnt", "--daemon"]);
    let names = 2000;
    for number in 0..names {
        fs::write(fixture.path("mnt").join(format!("{number}")), b"").expect("a file");
    }
    let content = vec![42; 300_000];
    fs::write(fixture.path("mnt/content"), &content).expect("a file");
    OpenOptions::new()
        .read(true)
        .open(fixture.path("mnt"))
        .expect("it")
        .sync_all()
        .expect("synced");
    // What is synced may be in the intent log alone: with the export it is in a group.
    fixture.ok(&["export", "tank"]);
    let datasets = json(&fixture, &["tank.img", "datasets"]);
    let dataset = &datasets["found"]["datasets"][0];
    assert!(dataset["set"]["objects"].as_u64().expect("objects") > names);
    let root = dataset["root_object"].as_u64().expect("a root").to_string();
    let zap = json(&fixture, &["tank.img", "zap", "main", &root]);
    let stats = &zap["found"]["stats"];
    assert_eq!(stats["entries"].as_u64(), Some(names + 1));
    let rows = stats["leaves_by_pointers"].as_array().expect("rows").iter();
    let leaves: u64 =
        rows.filter_map(|row| row["pointers"].as_u64().and(row["leaves"].as_u64())).sum();
    assert_eq!(Some(leaves), stats["leaves"].as_u64());
    let root_object = json(&fixture, &["tank.img", "object", "main", &root]);
    let first = &root_object["found"]["first"][0];
    assert!(first["block"].is_u64() && first["pointer"]["checksum"].is_string(), "{first}");
    let level = &root_object["found"]["levels"][0];
    for key in ["level", "blocks", "logical_bytes", "physical_bytes", "allocated_bytes"] {
        assert!(level[key].is_u64(), "{key}: {level}");
    }
    for key in ["compressed", "gangs", "oldest_birth", "newest_birth"] {
        assert!(level[key].is_u64(), "{key}: {level}");
    }
    let text = fixture.ok(&["inspect", "tank.img", "zap", "main", &root]);
    for title in [
        "leaves by used share of the stored size",
        "leaves by entries",
        "leaves by pointers in a table",
        "entries by bytes, slot included",
        "entries by slots between",
    ] {
        assert!(text.contains(title), "{text}");
    }
    // The file is the object of 300,000 bytes.
    let numbers = 0..names + 100;
    let found = numbers.rev().find_map(|number| {
        let number = number.to_string();
        let output = fixture.run(&["inspect", "tank.img", "object", "main", &number, "--json"]);
        let object: Value = serde_json::from_slice(&output.stdout).ok()?;
        let size = object["found"]["size_bytes"].as_u64();
        (size == Some(content.len() as u64)).then_some(number)
    });
    let number = found.expect("it is there");
    let raw = fixture.run(&["inspect", "tank.img", "block", "main", &number, "0", "--raw"]);
    assert!(raw.stdout.len() >= 65536 && raw.stdout.iter().all(|byte| *byte == 42));
}

#[test]
fn what_is_damaged_or_cut_short_is_shown_with_exit_code_1() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let path = fixture.path("tank.img");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("it");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], 100).expect("flipped");
    let damaged = |arguments: &[&str]| {
        let output = fixture.run(arguments);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        out
    };
    let labels = damaged(&["inspect", "tank.img", "label"]);
    assert!(labels.contains("NOT SOUND: its checksum is wrong"), "{labels}");
    assert!(labels.contains("sound\n    pool:       \"tank\""), "the other one is: {labels}");
    fixture.ok(&["inspect", "tank.img", "txg"]);

    file.set_len(8 << 20).expect("cut");
    let labels = damaged(&["inspect", "tank.img", "label"]);
    assert!(!labels.contains("sound\n    pool"), "{labels}");
    let group = damaged(&["inspect", "tank.img", "txg"]);
    assert!(group.contains("note: no label is left"), "{group}");
    assert!(group.contains("damaged: space maps"), "its end is cut off: {group}");
    assert!(group.contains("dataset \"main\""), "what is left is shown: {group}");

    file.write_all_at(&vec![0; 1 << 20], 0).expect("wiped");
    let said = fixture.fails(&["inspect", "tank.img", "txg"]);
    assert!(said.contains("neither label nor uberblock is left"), "{said}");
    let said = fixture.fails(&["inspect", "tank.img", "object", "main", "1"]);
    assert!(said.contains("neither label nor uberblock is left"), "{said}");
}

#[test]
fn what_is_not_there_is_told() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("folder");
    for (arguments, told) in [
        (&["nothing.img", "label"][..], "nothing.img"),
        (&["folder", "label"], "folder"),
        (&["tank.img", "tank.img", "label"], "given twice"),
        (&["tank.img", "txg", "99"], "there are those of"),
        (&["tank.img", "object", "other", "1"], "there are: main"),
        (&["tank.img", "object", "main", "999999"], "no object 999999"),
        (&["tank.img", "zap", "-", "2"], "is no directory"),
        (&["tank.img", "block", "main", "dnodes", "77"], "block 77"),
        (&["tank.img", "block", "7:0:512"], "no device 7"),
        (&["tank.img", "block", "0:0x10000000000:512"], "within the"),
    ] {
        let said = fixture.fails(&[&["inspect"], arguments].concat());
        assert!(said.contains(told), "{said}");
    }
    for arguments in [
        &["tank.img"][..],
        &["label"],
        &["tank.img", "block", "0:0"],
        &["tank.img", "block", "main", "1"],
        &["tank.img", "block", "main", "one", "0"],
        &["tank.img", "object", "main", "x"],
    ] {
        fixture.misused(&[&["inspect"], arguments].concat());
    }
}
