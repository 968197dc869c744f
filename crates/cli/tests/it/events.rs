//! `forebay events`: what has happened to pools, listed, followed, and counted in metrics.

use crate::fixture::{Fixture, texts};

/// The kinds of the events that were printed as JSON.
fn kinds(json: &str) -> Vec<String> {
    let kind = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        event["kind"].as_str().expect("a kind").to_owned()
    };
    json.lines().map(kind).collect()
}

#[test]
fn events_are_listed_by_daemon_and_pool_and_outlive_an_export() {
    let fixture = Fixture::new();
    let nothing = fixture.fails(&["events"]);
    assert!(nothing.contains("no pools are in use"), "{nothing}");
    fixture.ok(&["create", "--name", "tank", "--size", "32M", "--mirror", "a.img", "b.img"]);
    fixture.pool("other.img");
    fixture.ok(&["import", "a.img", "b.img"]);
    fixture.ok(&["import", "other.img"]);
    fixture.ok(&["offline", "tank", "b.img"]);
    fixture.ok(&["online", "tank", "b.img"]);
    fixture.ok(&["scrub", "tank"]);
    let wanted = [
        "imported",
        "device_offline",
        "device_online",
        "resilver_began",
        "device_whole",
        "resilver_ended",
        "scrub_began",
        "scrub_ended",
    ];
    let json = fixture.ok(&["events", "tank", "--json"]);
    assert_eq!(kinds(&json), wanted, "{json}");
    let text = fixture.ok(&["events", "tank"]);
    let b = fixture.path("b.img").canonicalize().expect("a path");
    assert!(text.contains(&format!("device is offline {}", b.display())), "{text}");
    assert!(text.contains("scrub ended: finished, 0 copies healed, 0 problems"), "{text}");
    assert!(!text.contains("other"), "{text}");
    fixture.ok(&["export", "tank"]);
    let all = fixture.ok(&["events"]);
    assert!(all.contains("  other  imported pool"), "{all}");
    let after = fixture.ok(&["events", "tank", "--json"]);
    assert_eq!(kinds(&after).last().expect("an event"), "exported", "{after}");
    fixture.ok(&["export", "other"]);
    let path = fixture.fails(&["events", "other.img"]);
    assert!(path.contains("not in use, and events are kept in memory"), "{path}");
}

#[test]
fn a_follower_sees_the_last_export_and_ends() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let mut follower = fixture.start(&["events", "--follow"]);
    follower.read_until("imported pool");
    fixture.ok(&["scrub", "tank"]);
    follower.read_until("scrub ended");
    fixture.ok(&["export", "tank"]);
    let output = follower.wait();
    let (out, err) = texts(&output);
    assert!(output.status.success() && out.contains("exported pool"), "{out}{err}");
}

#[test]
fn a_follower_can_be_interrupted() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let mut follower = fixture.start(&["events", "tank", "--follow", "--json"]);
    follower.read_until("imported");
    follower.signal(libc::SIGINT);
    let output = follower.wait();
    assert!(output.status.success(), "{:?}", texts(&output));
    fixture.ok(&["export", "tank"]);
}
