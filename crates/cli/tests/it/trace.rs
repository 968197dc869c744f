//! Traces of accesses to blocks, with a daemon and a mount.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::fixture::{Fixture, fuse, texts, wait_until};

/// A mounted pool with a file of 4 MiB that is not in memory.
fn mounted() -> Fixture {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon", "--memory", "96M"]);
    fs::write(fixture.path("at/big-file"), vec![7; 4 << 20]).unwrap();
    fs::File::open(fixture.path("at/big-file")).unwrap().sync_all().unwrap();
    fixture.ok(&["umount", "at"]);
    fixture.ok(&["mount", "tank.img", "at", "--daemon", "--memory", "96M"]);
    fixture
}

fn info(fixture: &Fixture, file: &str) -> serde_json::Value {
    serde_json::from_str(&fixture.ok(&["trace", "info", file, "--json"])).expect("JSON")
}

#[test]
fn a_trace_is_recorded_until_a_signal_described_and_converted() {
    if !fuse() {
        return;
    }
    let fixture = mounted();
    // Without the pool: there is only one.
    let mut running = fixture.start(&["trace", "record", "-o", "tank.zst", "--names"]);
    // The file is there once the daemon records.
    wait_until("the trace begins", || fixture.path("tank.zst").exists());
    assert_eq!(fs::metadata(fixture.path("tank.zst")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!running.has_ended());
    let refused = fixture.fails(&["trace", "record", "tank", "-o", "other.zst"]);
    assert!(refused.contains("being traced already"), "{refused}");
    assert!(!fixture.path("other.zst").exists());
    assert_eq!(fs::read(fixture.path("at/big-file")).unwrap().len(), 4 << 20);
    running.signal(libc::SIGINT);
    let output = running.wait();
    let (out, err) = texts(&output);
    assert!(output.status.success() && out.contains(" accesses in "), "{out}{err}");

    let shown = info(&fixture, "tank.zst");
    assert_eq!((&shown["pool"], &shown["complete"]), (&"tank".into(), &true.into()));
    assert_eq!(shown["dropped"], 0);
    let told = format!("{} accesses in ", shown["all"]["accesses"]);
    let read_ahead = format!(" s, {} read ahead", shown["read_ahead"]);
    assert!(out.contains(&told) && out.contains(&read_ahead), "{out} {shown}");
    // The file has 32 records of 128 KiB.
    let objects = shown["objects"].as_array().expect("a list");
    let file = objects.iter().find(|object| object["name"] == "main: /big-file");
    let file = file.unwrap_or_else(|| panic!("{shown}"));
    assert!(file["accesses"].as_u64() >= Some(32), "{shown}");
    assert!(file["hits"].as_u64() < file["accesses"].as_u64(), "{shown}");
    let text = fixture.ok(&["trace", "info", "tank.zst"]);
    assert!(text.contains("metadata") && text.contains("main: /big-file"), "{text}");

    let convert = |to, name| fixture.ok(&["trace", "convert", "tank.zst", "--to", to, "-o", name]);
    convert("oracle-general", "tank.oracleGeneral");
    convert("text", "tank.csv");
    let accesses = shown["all"]["accesses"].as_u64().expect("a number");
    let length = fs::metadata(fixture.path("tank.oracleGeneral")).unwrap().len();
    assert_eq!(length, accesses * 24);
    let lines = fs::read_to_string(fixture.path("tank.csv")).unwrap().lines().count();
    assert_eq!(lines as u64, accesses + 1);

    // Of a trace that is cut, what is there is used.
    let whole = fs::read(fixture.path("tank.zst")).unwrap();
    fs::write(fixture.path("cut.zst"), &whole[..whole.len() - 20]).unwrap();
    let shown = info(&fixture, "cut.zst");
    assert_eq!(shown["complete"], false, "{shown}");
    let text = fixture.ok(&["trace", "info", "cut.zst"]);
    assert!(text.contains("the end of the trace is missing"), "{text}");
    let cut = ["trace", "convert", "cut.zst", "--to", "text", "-o", "cut.csv"];
    let text = fixture.ok(&cut);
    assert!(text.contains("; the end of the trace is missing"), "{text}");
    // One that is damaged is not, and leaves nothing behind.
    let files = || fs::read_dir(fixture.path("")).unwrap().count();
    let mut damaged = whole;
    let at = damaged.len() / 2;
    damaged[at..].fill(0xff);
    fs::write(fixture.path("bad.zst"), damaged).unwrap();
    let before = files();
    fixture.fails(&["trace", "convert", "bad.zst", "--to", "text", "-o", "bad.csv"]);
    fs::write(fixture.path("cut.csv"), "kept").unwrap();
    fixture.fails(&["trace", "convert", "bad.zst", "--to", "text", "-o", "cut.csv", "--force"]);
    assert_eq!(fs::read_to_string(fixture.path("cut.csv")).unwrap(), "kept");
    assert_eq!(files(), before);
    fixture.ok(&["umount", "at"]);
}

#[test]
fn a_trace_ends_in_time_or_with_its_pool_and_has_no_names_unless_asked() {
    if !fuse() {
        return;
    }
    let fixture = mounted();
    let record = ["trace", "record", "tank", "-o", "tank.zst", "--seconds", "1"];
    fixture.ok(&record);
    let refused = fixture.fails(&record);
    assert!(refused.contains("--force"), "{refused}");
    fixture.ok(&[&record[..], &["--force"]].concat());
    // The daemon is not held up by a trace without an end.
    let running = fixture.start(&["trace", "record", "tank", "-o", "second.zst"]);
    wait_until("the trace begins", || fixture.path("second.zst").exists());
    fs::read(fixture.path("at/big-file")).unwrap();
    fixture.ok(&["export", "tank"]);
    let output = running.wait();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    let shown = info(&fixture, "second.zst");
    assert_eq!(shown["complete"], true);
    assert!(shown["all"]["accesses"].as_u64() > Some(32), "{shown}");
    assert!(!shown.to_string().contains("big-file"), "{shown}");
}

#[test]
fn what_is_no_trace_or_no_pool_in_use_is_refused() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let refused = fixture.fails(&["trace", "record", "tank.img", "-o", "tank.zst"]);
    assert!(refused.contains("not in use"), "{refused}");
    let refused = fixture.fails(&["trace", "record", "-o", "tank.zst"]);
    assert!(refused.contains("no pools are in use"), "{refused}");
    fixture.pool("other.img");
    for device in ["tank.img", "other.img"] {
        fixture.ok(&["import", device]);
    }
    let refused = fixture.misused(&["trace", "record", "-o", "tank.zst"]);
    assert!(refused.contains("several pools are in use: "), "{refused}");
    for pool in ["tank", "other"] {
        fixture.ok(&["export", pool]);
    }
    fs::write(fixture.path("junk"), b"\x28\xb5\x2f\xfdjunk").unwrap();
    for file in ["junk", "tank.img", "absent"] {
        let refused = fixture.fails(&["trace", "info", file]);
        assert!(refused.contains(file), "{refused}");
    }
}
