//! `forebay explain` names what made reads slow on real mounts, and its remedies help.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::fixture::{Fixture, Running, fuse, mounted};

const MIB: u64 = 1 << 20;

fn write_file(path: &Path, mib: u64) {
    let mut file = File::create(path).unwrap();
    // Differs from block to block, and is no hole.
    (0..mib).for_each(|n| file.write_all(&vec![n as u8 | 1; MIB as usize]).unwrap());
    file.sync_all().unwrap();
}

fn read_file(path: &Path) {
    let (mut file, mut buffer) = (File::open(path).unwrap(), vec![0; MIB as usize]);
    while file.read(&mut buffer).unwrap() > 0 {}
}

fn mount(fixture: &Fixture, memory: &str) -> Running {
    let at = fixture.path("at");
    fs::create_dir_all(&at).unwrap();
    mounted(fixture, &["mount", "tank.img", "at", "--memory", memory], &at)
}

fn end(running: Running) {
    running.signal(libc::SIGINT);
    assert!(running.wait().status.success());
}

fn report(fixture: &Fixture, target: &str) -> Value {
    let text = fixture.ok(&["explain", target, "--json"]);
    let reports: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(reports.as_array().expect("one for each process").len(), 1, "{text}");
    reports[0].clone()
}

/// The largest cause of that name, for that class.
fn cause<'a>(report: &'a Value, name: &str, class: &str) -> &'a Value {
    let causes = report["causes"].as_array().unwrap();
    let found = causes.iter().find(|cause| cause["cause"] == name && cause["class"] == class);
    found.unwrap_or_else(|| panic!("no {name} of {class}: {report:#}"))
}

/// Loads of blocks since the mount.
fn loads(fixture: &Fixture) -> u64 {
    let stats: Value = serde_json::from_str(&fixture.ok(&["stats", "--json"])).unwrap();
    stats[0]["cache"]["counters"]["misses.data"].as_u64().unwrap()
}

fn read_rounds(fixture: &Fixture, rounds: u64) -> u64 {
    let path = fixture.path("at").join("big");
    read_file(&path);
    let before = loads(fixture);
    (0..rounds).for_each(|_| read_file(&path));
    loads(fixture) - before
}

#[test]
fn a_file_that_is_read_in_a_loop_is_named_and_kept_by_the_remedy() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "1G"]);
    let running = mount(&fixture, "128M");
    write_file(&fixture.path("at").join("big"), 128);
    let missed = read_rounds(&fixture, 5);
    let text = fixture.ok(&["explain", "tank/main"]);
    println!("{text}");
    let report = report(&fixture, "at/big");
    let evicted = cause(&report, "evicted", "data");
    assert_eq!(evicted["blocks"][0]["name"], "file /big of tank/main", "{report:#}");
    assert_eq!(evicted["evictors"][0]["name"], "file /big of tank/main", "{report:#}");
    assert!(text.contains("A loop over file /big of tank/main, of 1"), "{text}");
    let remedy = &evicted["remedies"][0];
    assert_eq!(remedy["remedy"], "fit_the_loop", "{report:#}");
    let bytes = remedy["loop_bytes"].as_u64().unwrap();
    assert!((115 * MIB..141 * MIB).contains(&bytes), "{bytes}");
    let (more, share) = (remedy["more_bytes"].as_u64().unwrap(), remedy["share"].as_f64().unwrap());
    let capacity = report["capacity_bytes"].as_u64().unwrap();
    end(running);

    // The capacity is a part of the memory.
    let memory = 128 * (capacity + more) / capacity;
    let running = mount(&fixture, &format!("{memory}M"));
    let again = read_rounds(&fixture, 5);
    let kept = 1.0 - again as f64 / missed as f64;
    println!("{memory} MiB: {again} loads instead of {missed}");
    assert!(kept > share - 0.05, "kept {kept}, and not {share}");
    end(running);
}

#[test]
fn a_dataset_that_l2_may_not_hold_is_named() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "1G", "--l2", "none"]);
    let running = mount(&fixture, "128M");
    fixture.ok(&["l2", "add", "tank", "fast.img", "--size", "512M"]);
    write_file(&fixture.path("at").join("big"), 128);
    read_rounds(&fixture, 4);
    let report = report(&fixture, "tank");
    let evicted = cause(&report, "evicted", "data");
    assert_eq!(evicted["l2"], "excluded", "{report:#}");
    let remedies = evicted["remedies"].as_array().unwrap();
    let allow = remedies.iter().find(|remedy| remedy["remedy"] == "allow_l2");
    let misses = allow.unwrap_or_else(|| panic!("{report:#}"))["misses"].as_u64().unwrap();
    assert!(misses > 100, "{report:#}");
    let text = fixture.ok(&["explain"]);
    assert!(text.contains("and L2 may not take it by configuration"), "{text}");
    println!("{text}");
    end(running);
}

/// Reads records of 16 KiB at random.
fn read_at_random(path: &Path, records: u64, reads: u64) {
    let (file, mut buffer) = (File::open(path).unwrap(), [0; 16 << 10]);
    let mut number = 1;
    for _ in 0..reads {
        number = number * 48_271 % 0x7fff_ffff_u64;
        file.read_exact_at(&mut buffer, number % records * (16 << 10)).unwrap();
    }
}

#[test]
fn an_l2_that_is_too_small_is_named_with_what_a_larger_one_would_serve() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "1G", "--record-size", "16K"]);
    let running = mount(&fixture, "96M");
    fixture.ok(&["l2", "add", "tank", "fast.img", "--size", "48M"]);
    let path = fixture.path("at").join("big");
    write_file(&path, 160);
    read_at_random(&path, 160 * 64, 60_000);
    let text = fixture.ok(&["explain", "tank"]);
    println!("{text}");
    assert!(text.contains("L2 is too small for it: "), "{text}");
    let report = report(&fixture, "tank");
    let causes = report["causes"].as_array().unwrap();
    let remedies = causes.iter().flat_map(|cause| cause["remedies"].as_array().unwrap());
    let larger: Vec<&Value> = remedies.filter(|remedy| remedy["remedy"] == "larger_l2").collect();
    let bytes = larger[0]["l2_bytes"].as_u64().unwrap();
    assert!((64 * MIB..200 * MIB).contains(&bytes), "{report:#}");
    let misses: u64 = larger.iter().map(|remedy| remedy["misses"].as_u64().unwrap()).sum();
    assert!(misses > report["missed"].as_u64().unwrap() / 5, "{report:#}");

    let advice = fixture.ok(&["advise", "tank"]);
    println!("{advice}");
    assert!(advice.contains("L2 SIZE") && advice.contains("*1.00x"), "{advice}");
    let json: Value = serde_json::from_str(&fixture.ok(&["advise", "tank", "--json"])).unwrap();
    let l2 = &json[0]["l2"];
    let points = l2["points"].as_array().unwrap();
    let of = |n: usize| points[n]["of_misses"].as_f64().unwrap();
    assert!(of(0) <= of(3) && of(3) + 0.2 < of(7), "{json:#}");
    assert!(of(7) > 0.7, "four times the L2 holds most of the file: {json:#}");
    let said = json[0]["advice"].as_array().unwrap();
    let said = said.iter().any(|said| said.as_str().unwrap().starts_with("An L2 of "));
    assert!(said, "{json:#}");
    let data = &l2["datasets"][0];
    assert_eq!((&data["name"], &data["class"]), (&"tank/main".into(), &"data".into()), "{json:#}");
    assert!(data["saved_per_s"]["400"].as_f64().unwrap() > 0.0, "{json:#}");
    end(running);
}

#[test]
fn a_cold_start_is_named_and_then_the_cache_is_healthy() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "1G", "--record-size", "16K"]);
    let at = fixture.path("at");
    let running = mount(&fixture, "128M");
    fs::create_dir(at.join("mail")).unwrap();
    (0..200).for_each(|n| fs::write(at.join(format!("mail/{n}")), vec![b'x'; 60_000]).unwrap());
    end(running);

    let running = mount(&fixture, "128M");
    let nothing = fixture.ok(&["explain", "at"]);
    println!("{nothing}");
    for path in ["/nowhere/at/all", "/tmp"] {
        let said = fixture.fails(&["explain", path]);
        let mounted = format!("mounted are {} (tank/main)", at.display());
        assert!(said.contains(&mounted) && !said.contains("create"), "{said}");
    }
    let read = || (0..200).for_each(|n| read_file(&at.join(format!("mail/{n}"))));
    read();
    let cold = report(&fixture, "tank");
    let filling = cause(&cold, "filling", "data");
    assert!(filling["share"].as_f64().unwrap() > 0.5, "{cold:#}");
    assert_eq!(filling["remedies"][0]["remedy"], "wait", "{cold:#}");
    let name = filling["blocks"][0]["name"].as_str().unwrap();
    assert!(name.starts_with("file /mail/"), "{cold:#}");
    let text = fixture.ok(&["explain", "tank/main", "--since", "5m"]);
    assert!(text.contains("Wait until the cache is full."), "{text}");
    println!("{text}");
    (0..60).for_each(|_| read());
    let warm = report(&fixture, "tank");
    assert_eq!(warm["healthy"], true, "{warm:#}");
    let text = fixture.ok(&["explain"]);
    assert!(text.starts_with("The cache is healthy: 9"), "{text}");
    end(running);
}

/// A setup of the same pool and load. Only the first one is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    Good,
    TooLittleMemory,
    L2NotAllowed,
    /// Somebody flushes the cache now and then.
    Flushed,
}

impl Setup {
    const ALL: [Self; 4] = [Self::Good, Self::TooLittleMemory, Self::L2NotAllowed, Self::Flushed];

    /// Runs the load, and returns what `explain` says of it.
    fn explained(self) -> Value {
        let fixture = Fixture::new();
        let l2 = if self == Self::L2NotAllowed { "none" } else { "all" };
        fixture.ok(&["create", "tank.img", "--size", "1G", "--l2", l2]);
        let memory = match self {
            Self::Good | Self::Flushed => "512M",
            Self::TooLittleMemory | Self::L2NotAllowed => "96M",
        };
        let running = mount(&fixture, memory);
        if self == Self::L2NotAllowed {
            fixture.ok(&["l2", "add", "tank", "fast.img", "--size", "512M"]);
        }
        write_file(&fixture.path("at").join("big"), 192);
        for _ in 0..4 {
            read_rounds(&fixture, 2);
            if self == Self::Flushed {
                fixture.ok(&["cache", "flush", "tank"]);
            }
        }
        let report = report(&fixture, "tank");
        println!("{self:?}: {}", fixture.ok(&["explain"]));
        end(running);
        report
    }

    /// Tells which setup a report is of, by nothing but what it says first.
    fn named_by(report: &Value) -> Self {
        if report["healthy"] == true {
            return Self::Good;
        }
        let first = &report["causes"][0];
        assert_eq!(first["class"], "data", "{report:#}");
        let remedies = first["remedies"].as_array().unwrap();
        let has = |name: &str| remedies.iter().any(|remedy| remedy["remedy"] == name);
        let text = |key: &str| first[key].as_str().unwrap();
        match (text("cause"), text("l2")) {
            ("evicted", "absent") if has("fit_the_loop") || has("loop_too_large") => {
                Self::TooLittleMemory
            }
            ("evicted", "excluded") if has("allow_l2") => Self::L2NotAllowed,
            ("flushed", "absent") => Self::Flushed,
            other => panic!("{other:?}: {report:#}"),
        }
    }
}

#[test]
fn three_bad_setups_and_a_good_one_are_told_apart_by_the_report_alone() {
    if !fuse() {
        return;
    }
    for setup in Setup::ALL {
        assert_eq!(Setup::named_by(&setup.explained()), setup);
    }
}

#[test]
fn targets_that_are_not_there_are_refused() {
    let fixture = Fixture::new();
    let said = fixture.fails(&["explain"]);
    assert!(said.contains("no pools are in use"), "{said}");
    fixture.pool("tank.img");
    let said = fixture.fails(&["explain", "tank.img"]);
    assert!(said.contains("mount the pool first"), "{said}");
    fixture.ok(&["import", "tank.img"]);
    let said = fixture.fails(&["explain", "/nowhere/at/all"]);
    assert!(said.contains("mount the pool first") && !said.contains("create"), "{said}");
    let text = fixture.ok(&["explain", "tank"]);
    assert!(text.contains("in the last"), "{text}");
    let said = fixture.fails(&["explain", "tank/none"]);
    assert!(said.contains("none"), "{said}");
    let said = fixture.fails(&["explain", "other/main"]);
    assert!(said.contains("no running forebay has a pool of that name"), "{said}");
    let said = fixture.misused(&["explain", "--since", "soon"]);
    assert!(said.contains("is no time; give seconds"), "{said}");
    fixture.ok(&["export", "tank"]);
}
