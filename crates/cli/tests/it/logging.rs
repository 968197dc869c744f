//! The log options, and the events of a daemon.

use serde_json::Value;

use crate::fixture::{Fixture, fuse, texts, wait_until};

/// The events of a JSON log; each line must be one.
fn events(fixture: &Fixture, log: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(fixture.path(log)).expect("the log exists");
    log.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn a_daemon_logs_import_mount_and_export_as_json() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let log = ["--log", "info", "--log-format", "json", "--log-file", "tank.log"];
    let mounted = fixture.ok(&[&["mount", "tank.img", "at", "--daemon"], &log[..]].concat());
    assert!(mounted.contains("tank.log"), "it names the log: {mounted}");
    std::fs::write(at.join("file"), b"content").unwrap();
    fixture.ok(&["export", "tank"]);
    wait_until("the daemon ends", || fixture.processes().is_empty());

    let events = events(&fixture, "tank.log");
    let of = |message: &str, field: &str, value: &str| {
        let found = events.iter().filter(|event| event["message"] == message);
        let found: Vec<_> = found.filter(|event| event[field] == value).collect();
        assert_eq!(found.len(), 1, "{message}: {events:?}");
        assert_eq!(found[0]["level"], "INFO");
        assert!(found[0]["timestamp"].is_string() && found[0]["target"].is_string());
        found[0].clone()
    };
    let imported = of("imported pool", "pool", "tank");
    let exported = of("exported pool", "pool", "tank");
    assert!(imported["txg"].as_u64() < exported["txg"].as_u64(), "{events:?}");
    assert_eq!(of("mounted", "at", at.to_str().unwrap())["fs"], "tank/main");
    of("unmounted", "at", at.to_str().unwrap());
}

#[test]
fn a_command_logs_only_on_request() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let (_, silent) = texts(&fixture.run(&["check", "tank.img"]));
    assert_eq!(silent, "");
    let (_, logged) = texts(&fixture.run(&["check", "tank.img", "--log", "info"]));
    assert!(logged.contains("imported pool") && logged.contains("pool=\"tank\""), "{logged}");
    let (_, logged) = texts(&fixture.run(&["--log", "error", "check", "tank.img"]));
    assert_eq!(logged, "");
    let refused = fixture.fails(&["check", "tank.img", "--log", "info", "--log-file", "no/log"]);
    assert!(refused.contains("no/log: cannot open the log file"), "{refused}");
    fixture.misused(&["check", "tank.img", "--log", "loud"]);
}

#[test]
fn a_running_daemon_keeps_its_log() {
    let fixture = Fixture::new();
    fixture.pool("one.img");
    fixture.pool("two.img");
    fixture.ok(&["import", "one.img"]);
    let (out, err) = texts(&fixture.run(&["import", "two.img", "--log", "debug"]));
    assert!(out.contains("imported pool two"), "{out}{err}");
    assert!(err.contains("keeps its log") && err.contains("--separate"), "{err}");
    let pid = fixture.processes()[0]["pid"].to_string();
    let log = std::fs::read_to_string(fixture.run_dir().join(format!("{pid}.log"))).unwrap();
    assert!(log.contains("INFO") && log.contains("imported pool"), "info is the default: {log}");
    fixture.ok(&["export", "one"]);
    fixture.ok(&["export", "two"]);
}
