//! `forebay advise`: the curve of a real daemon.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::fixture::{Fixture, fuse, mounted};

const RECORD: usize = 4096;
/// More than the cache of the smallest process.
const RECORDS: usize = 6000;

#[test]
fn a_daemon_without_accesses_says_so() {
    let fixture = Fixture::new();
    assert!(fixture.fails(&["advise"]).contains("no pools are in use"));
    fixture.pool("tank.img");
    fixture.ok(&["import", "tank.img"]);
    let text = fixture.ok(&["advise", "tank"]);
    assert!(text.contains("use the pool, then ask again"), "{text}");
    for wrong in [["--target-hit-ratio", "90"], ["--budget", "lots"]] {
        fixture.misused(&[&["advise"], &wrong[..]].concat());
    }
    fixture.ok(&["export", "tank"]);
}

#[test]
fn a_cache_that_is_too_small_is_told_what_more_would_bring() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "256M", "--record-size", "4K"]);
    let at = fixture.folder("at");
    let mount = ["mount", "tank.img", "at", "--memory", "72M", "--threads", "2"];
    let running = mounted(&fixture, &mount, &at);
    let path = at.join("file");
    fs::write(&path, vec![7; RECORD * RECORDS]).unwrap();
    fixture.ok(&["cache", "flush", "tank"]);
    let (file, mut record) = (File::open(&path).unwrap(), [0; RECORD]);
    // Scattered, so that nothing is read ahead. The kernel caches nothing.
    let mut number = 1;
    for _ in 0..6 * RECORDS {
        number = number * 48_271 % 0x7fff_ffff_usize;
        file.read_exact_at(&mut record, (number % RECORDS * RECORD) as u64).unwrap();
    }
    let json = fixture.ok(&["advise", "tank", "--json"]);
    let reports: serde_json::Value = serde_json::from_str(&json).unwrap();
    let report = &reports[0];
    let points = report["points"].as_array().unwrap();
    let percents: Vec<u64> =
        points.iter().map(|point| point["percent"].as_u64().unwrap()).collect();
    assert_eq!(percents, [25, 50, 75, 100, 150, 200, 300, 400], "{json}");
    let ratio = |n: usize| points[n]["data_hit_ratio"].as_f64().unwrap();
    assert!(ratio(0) < ratio(3) && ratio(3) + 0.1 < ratio(7), "{json}");
    let memory = |n: usize| points[n]["memory_bytes"].as_u64().unwrap();
    assert_eq!(memory(3), 72 << 20, "{json}");
    assert!(memory(0) < memory(3) && memory(3) < memory(7), "{json}");
    assert!(report["load_ns"].as_f64().unwrap() > 0.0, "{json}");
    assert!(report["accesses"].as_f64().unwrap() > RECORDS as f64, "{json}");
    assert!(report["advice"][0].is_string(), "{json}");
    let datasets = report["datasets"].as_array().unwrap();
    let data = datasets.iter().find(|of| of["name"] == "tank/main" && of["class"] == "data");
    let data = data.unwrap_or_else(|| panic!("{json}"));
    let saved = |percent: &str| data["saved_per_s"][percent].as_f64().unwrap();
    assert!(saved("150") <= saved("400") && saved("400") > 0.0, "{json}");
    assert!(saved("400") <= data["misses_per_s"].as_f64().unwrap(), "{json}");

    let svg = fixture.path("curve.svg");
    let text = fixture.ok(&["advise", "--plot", svg.to_str().unwrap()]);
    assert!(text.contains("tank/main"), "{text}");
    assert!(text.contains("*1.00x") && text.contains(" more memory buys "), "{text}");
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg "), "{text}");
    let text = fixture.ok(&["advise", "tank", "--target-hit-ratio", "1%", "--budget", "72M"]);
    assert!(text.contains("Already a cache of ") && text.contains("Within 72.0 MiB"), "{text}");
    let error = fixture.fails(&["advise", "--plot", "/nowhere/at/all.svg"]);
    assert!(error.contains("cannot write the plot to /nowhere/at/all.svg"), "{error}");
    drop(running);
}
