//! Help, completions, and what is printed for people and machines.

use std::process::Stdio;

use crate::fixture::{Fixture, texts};

const COMMANDS: [&[&str]; 37] = [
    &["inspect"],
    &["create"],
    &["import"],
    &["events"],
    &["export"],
    &["expand"],
    &["mount"],
    &["umount"],
    &["list"],
    &["status"],
    &["destroy"],
    &["scrub"],
    &["check"],
    &["trim"],
    &["clear"],
    &["cache"],
    &["cache", "flush"],
    &["l2"],
    &["l2", "add"],
    &["l2", "remove"],
    &["l2", "list"],
    &["dataset", "create"],
    &["dataset", "list"],
    &["tunable", "get"],
    &["tunable", "set"],
    &["trace"],
    &["trace", "record"],
    &["trace", "info"],
    &["trace", "convert"],
    &["stats"],
    &["top"],
    &["advise"],
    &["explain"],
    &["demo"],
    &["completions"],
    &[],
    &["unmount"],
];

#[test]
fn every_commands_help_has_examples() {
    let fixture = Fixture::new();
    for command in COMMANDS {
        let help = fixture.ok(&[command, &["--help"]].concat());
        assert!(help.contains("Examples:\n  "), "{command:?}: {help}");
        assert!(help.contains("Usage: forebay"), "{command:?}: {help}");
    }
    assert!(fixture.ok(&["--version"]).starts_with("forebay "));
}

#[test]
fn completions_know_the_commands() {
    let fixture = Fixture::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = fixture.ok(&["completions", shell]);
        for word in ["umount", "kernel-cache", "discard-log", "oracle-general"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    fixture.misused(&["completions", "tcsh-or-what"]);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let fixture = Fixture::new();
    let mut child = fixture
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(texts(&output).1, "");
    assert!(output.status.success());
}

#[test]
fn statistics_are_for_people_and_machines() {
    let fixture = Fixture::new();
    assert!(fixture.ok(&["list"]).contains("no pools are in use"));
    assert!(fixture.fails(&["stats"]).contains("no pools are in use"));
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let text = fixture.ok(&["stats", "tank"]);
    assert!(text.contains("cache: ") && text.contains("tank "), "{text}");
    let stats: serde_json::Value = serde_json::from_str(&fixture.ok(&["stats", "--json"])).unwrap();
    let view = &stats[0];
    assert!(view["resident_bytes"].as_u64() <= view["memory_bytes"].as_u64(), "{view}");
    assert!(view["cache"]["counters"]["hits_mru.metadata"].is_u64(), "{view}");
    assert!(view["pools"][0]["counters"]["reads.miss"].is_u64(), "{view}");
    let status: serde_json::Value =
        serde_json::from_str(&fixture.ok(&["status", "tank", "--json"])).unwrap();
    assert_eq!(status["datasets"][0]["name"], "main");
    let check: serde_json::Value =
        serde_json::from_str(&fixture.ok(&["check", "tank", "--json"])).unwrap();
    assert_eq!((&check["complete"], &check["problem_count"]), (&true.into(), &0.into()));
    fixture.ok(&["export", "tank"]);
}

#[test]
fn statistics_are_printed_again_until_nobody_reads_them() {
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let mut watching = fixture.start(&["stats", "--watch"]);
    // It would go on for ever.
    let mut out = watching.read_until("cache: ");
    out += &watching.read_until("cache: ");
    watching.signal(libc::SIGINT);
    let output = watching.wait();
    assert!(output.status.success(), "{output:?}");
    out += &texts(&output).0;
    assert!(out.contains("OP/S"), "{out}");
}
