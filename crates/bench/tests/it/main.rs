//! The benches run small under `cargo test`, so that they never rot.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-bench")).args(args).output().expect("the bench starts")
}

#[test]
fn every_bench_runs_small() {
    let output = bench(&["smoke", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let names = [
        "cached-read",
        "evict",
        "index",
        "freeing",
        "overflow",
        "memory",
        "strided-read",
        "device",
        "r5",
    ];
    for name in names {
        let head = format!("{{\"bench\":\"{name}\",\"subject\":\"");
        assert!(lines.lines().any(|line| line.starts_with(&head)), "no row of {name}");
    }
    for line in lines.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "a flat object a line: {line}");
        assert_eq!(line.matches('{').count(), 1, "a flat object a line: {line}");
    }
}

#[test]
fn a_table_has_a_row_a_subject() {
    let output = bench(&["r5", "--capacity", "500"]);
    let table = String::from_utf8(output.stdout).expect("a table is UTF-8");
    assert!(table.starts_with("subject"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("textbook-lru")), "{table}");
}

#[test]
fn wrong_input_is_explained() {
    for (args, word) in [
        (&["evict", "--subjects", "nothing"][..], "no subject `nothing`"),
        (&["evict", "--threads", "0"][..], "--threads 0"),
        (&["evict", "--seconds=-1"][..], "seconds"),
        (&["r5", "--capacity", "0"][..], "capacity"),
        (&["device", "--depths", "0"][..], "depths"),
        (&["device", "--file", "/nowhere/at/all"][..], "/nowhere/at/all"),
        (&["strided-read", "--subjects", "fio"][..], "no subject `fio`"),
    ] {
        let output = bench(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(word), "{args:?} said {said:?}");
    }
}
