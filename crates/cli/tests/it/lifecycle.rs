//! Pools from their making to their end, without mounts.

use crate::fixture::{Fixture, texts};

#[test]
fn a_pool_is_made_shown_grown_and_destroyed() {
    let fixture = Fixture::new();
    let said = fixture.ok(&[
        "create",
        "tank.img",
        "--size",
        "64M",
        "--compression",
        "zstd",
        "--record-size",
        "16K",
    ]);
    assert!(said.contains("created pool tank, 63.5 MiB in 1 device, with dataset main"), "{said}");
    let length = || std::fs::metadata(fixture.path("tank.img")).unwrap().len();
    assert_eq!(length(), 64 << 20);

    let shown = fixture.ok(&["status", "tank.img"]);
    for part in ["pool       tank", "exported", "main: ", "records of 16.0 KiB, compression zstd"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = fixture.ok(&["import", "--show", "tank.img"]);
    assert!(
        shown.contains("device 1 of 1 of pool tank") && shown.contains("; exported"),
        "{shown}"
    );

    let file = std::fs::OpenOptions::new().write(true).open(fixture.path("tank.img")).unwrap();
    file.set_len(96 << 20).unwrap();
    let said = fixture.ok(&["expand", "tank.img"]);
    assert!(said.contains("63.5 MiB before, 95.5 MiB now"), "{said}");
    let said = fixture.ok(&["expand", "tank.img"]);
    assert!(said.contains("as before"), "{said}");
    fixture.ok(&["expand", "tank.img", "--add", "more.img", "--size", "64M"]);
    let (shown, _) = texts(&fixture.run(&["status", "tank.img"]));
    assert!(shown.contains("damaged: device 1 (guid"), "{shown}");
    assert!(shown.contains("give all of its devices, joined by `:`"), "{shown}");
    let missing = fixture.fails(&["check", "tank.img"]);
    assert!(missing.contains("give all of its devices, joined by `:`"), "{missing}");
    fixture.ok(&["check", "tank.img:more.img"]);
    fixture.ok(&["scrub", "tank.img:more.img"]);

    let asked = fixture.fails(&["destroy", "tank.img:more.img"]);
    assert!(asked.contains("--yes"), "{asked}");
    let half = fixture.fails(&["destroy", "tank.img", "--yes"]);
    assert!(half.contains("has 2 devices, 1 are given"), "{half}");
    fixture.ok(&["check", "more.img:tank.img"]);
    fixture.ok(&["destroy", "tank.img:more.img", "--yes", "--remove-files"]);
    assert!(!fixture.path("tank.img").exists() && !fixture.path("more.img").exists());
}

#[test]
fn a_pool_stays_in_the_background_until_it_is_exported() {
    let fixture = Fixture::new();
    fixture.pool("one.img");
    fixture.pool("two.img");
    let said = fixture.ok(&["import", "one.img"]);
    assert!(said.contains("imported pool one"), "{said}");
    fixture.ok(&["import", "two.img", "--tunable", "txg_timeout_ms=123"]);
    let processes = fixture.processes();
    assert_eq!(processes.len(), 1, "one process has both: {processes:?}");
    assert_eq!(processes[0]["pools"].as_array().unwrap().len(), 2);

    // By name and by path it is the same pool.
    for pool in ["one", "one.img"] {
        let shown = fixture.ok(&["status", pool]);
        assert!(shown.contains("state      imported"), "{shown}");
    }
    let twice = fixture.fails(&["import", "one.img"]);
    assert!(twice.contains("in use already, by process"), "{twice}");
    let used = fixture.fails(&["destroy", "one.img", "--yes"]);
    assert!(used.contains("`forebay export one` first"), "{used}");

    let value = fixture.ok(&["tunable", "get", "two", "txg_timeout_ms"]);
    assert!(value.contains(" 123 "), "{value}");
    fixture.ok(&["tunable", "set", "two", "txg_timeout_ms", "456"]);
    fixture.ok(&["tunable", "set", "two", "overflow_wait_ms", "7"]);
    let all = fixture.ok(&["tunable", "get", "two", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let of = |name: &str| {
        all.as_array().unwrap().iter().find(|t| t["name"] == name).unwrap()["value"].clone()
    };
    assert_eq!((of("txg_timeout_ms"), of("overflow_wait_ms")), ("456".into(), "7".into()));
    for wrong in [
        ["txg_timeout_ms", "soon"],
        ["txg_timeout_ms", "0"],
        ["speed", "1"],
        ["in_flight_bytes", "2M"],
    ] {
        fixture.fails(&["tunable", "set", "two", wrong[0], wrong[1]]);
    }

    fixture.ok(&["check", "one"]);
    fixture.ok(&["scrub", "one.img"]);
    fixture.ok(&["expand", "one", "--add", "more.img", "--size", "64M"]);
    fixture.ok(&["cache", "flush"]);
    fixture.ok(&["cache", "flush", "one"]);
    fixture.ok(&["export", "one"]);
    assert_eq!(fixture.processes().len(), 1);
    fixture.ok(&["export", "two.img"]);
    crate::fixture::wait_until("the process ends", || fixture.processes().is_empty());
    crate::fixture::wait_until("nothing is left of it", || {
        std::fs::read_dir(fixture.run_dir()).unwrap().next().is_none()
    });
    fixture.ok(&["check", "one.img:more.img"]);
    let said = fixture.ok(&["export", "two.img"]);
    assert!(said.contains("exported already"), "{said}");
}

#[test]
fn datasets_are_made_and_listed() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&[
        "dataset",
        "create",
        "tank.img",
        "photos",
        "--record-size",
        "1M",
        "--copies",
        "2",
    ]);
    let listed = fixture.ok(&["dataset", "list", "tank.img"]);
    assert!(listed.lines().any(|line| line.starts_with("main ")), "{listed}");
    let photos = listed.lines().find(|line| line.starts_with("photos ")).expect(&listed);
    assert!(photos.contains("1.00 MiB"), "{listed}");
    let again = fixture.fails(&["dataset", "create", "tank.img", "photos"]);
    assert!(again.contains("photos"), "{again}");
    fixture.ok(&["check", "tank.img", "--read-only"]);
}

#[test]
fn damage_is_found_and_told() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let mut bytes = std::fs::read(fixture.path("tank.img")).unwrap();
    // Everything but the front label, and so all but one copy of what is known of the pool.
    for byte in &mut bytes[1 << 20..] {
        *byte ^= 0x55;
    }
    std::fs::write(fixture.path("tank.img"), bytes).unwrap();
    fixture.fails(&["check", "tank.img"]);
    fixture.fails(&["status", "tank.img"]);
    fixture.fails(&["scrub", "tank.img"]);
    let shown = fixture.ok(&["import", "--show", "tank.img"]);
    assert!(shown.contains("pool tank"), "{shown}");
}
