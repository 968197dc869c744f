//! `--metrics`: what a daemon serves over HTTP, where, and to whom.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::fixture::{Fixture, fuse, mounted, root, texts};
use crate::suspended::SmallFs;

/// The URL in the line that a command prints.
#[track_caller]
fn url(printed: &str) -> String {
    let (_, rest) = printed.split_once("live plots at ").unwrap_or_else(|| panic!("{printed}"));
    rest.lines().next().unwrap_or_default().trim().to_owned()
}

/// The content at a path below the URL.
#[track_caller]
fn get(url: &str, path: &str) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, content) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    content.to_owned()
}

/// The value of a sample, with its labels.
#[track_caller]
fn value(metrics: &str, sample: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {sample}:\n{metrics}"))
}

/// The names of all series that metrics have, as queries name them.
fn names(metrics: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a type");
        names.insert(name.to_owned());
        if kind == "histogram" {
            names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        }
    }
    names
}

/// A pool with an L2 device, mounted by a daemon that serves metrics.
fn with_l2(fixture: &Fixture, options: &[&str]) -> String {
    fixture.pool("tank.img");
    fixture.folder("at");
    let mount = ["mount", "tank.img", "at", "--daemon", "--metrics", "127.0.0.1:0"];
    let printed = fixture.ok(&[&mount[..], options].concat());
    let l2 = std::fs::File::create(fixture.path("l2.img")).expect("a file");
    l2.set_len(64 << 20).expect("a size");
    fixture.ok(&["l2", "add", "tank", "l2.img"]);
    url(&printed)
}

#[test]
fn all_pools_of_a_daemon_are_served_at_one_address_without_paths() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let url = with_l2(&fixture, &[]);
    fixture.pool("other.img");
    let printed = fixture.ok(&["import", "other.img", "--metrics", "127.0.0.1:0"]);
    assert_eq!(self::url(&printed), url);
    std::fs::write(fixture.path("at/secret-file"), vec![1; 1 << 20]).expect("it is written");
    let metrics = get(&url, "metrics");
    assert_eq!(value(&metrics, "forebay_pool_health{pool=\"tank\",state=\"online\"}"), 1.0);
    assert_eq!(value(&metrics, "forebay_pool_health{pool=\"other\",state=\"suspended\"}"), 0.0);
    let written = "forebay_fuse_write_bytes_total{pool=\"tank\",dataset=\"main\"}";
    assert_eq!(value(&metrics, written), f64::from(1 << 20));
    let stats: serde_json::Value = serde_json::from_str(&get(&url, "stats.json")).expect("JSON");
    assert_eq!(stats["mounts"][0]["write_bytes"], 1 << 20);
    assert_eq!(stats["pools"].as_array().map(Vec::len), Some(2));
    let folder = fixture.path("").display().to_string();
    let insight: serde_json::Value =
        serde_json::from_str(&get(&url, "insight.json")).expect("JSON");
    assert_eq!(insight["curve"]["points"].as_array().map(Vec::len), Some(8), "{insight}");
    assert!(insight["curve"]["advice"][0].is_string(), "{insight}");
    assert!(insight["explanation"][0][0].is_string(), "{insight}");
    let guid = fixture.processes()[0]["pools"][0]["guid"].as_str().map(str::len);
    assert_eq!(guid, Some(16));
    for content in [metrics, stats.to_string(), insight.to_string(), get(&url, "")] {
        for name in [folder.trim_end_matches('/'), "tank.img", "l2.img", "secret-file"] {
            assert!(!content.contains(name), "{name}: {content}");
        }
    }
    let listed = fixture.processes();
    assert_eq!(listed[0]["metrics"]["url"], url.as_str());
    let other = fixture.fails(&["mount", "tank.img", "at", "--daemon", "--metrics", "127.0.0.1:1"]);
    assert!(other.contains(&url) || other.contains("mounted"), "{other}");
    let names = ["import", "tank.img", "--metrics", "127.0.0.1:0", "--metrics-names"];
    fixture.ok(&["export", "other"]);
    let names = [&["import", "other.img"][..], &names[2..]].concat();
    let refused = fixture.fails(&names);
    assert!(refused.contains(&url) && refused.contains("without --metrics-names"), "{refused}");
}

#[test]
fn paths_are_served_if_asked_for() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let url = with_l2(&fixture, &["--metrics-names"]);
    let metrics = get(&url, "metrics");
    let stats = get(&url, "stats.json");
    for (part, name) in [("forebay_device_info{", "tank.img"), ("forebay_l2_info{", "l2.img")] {
        let path = format!("path=\"{}\"}} 1", fixture.path(name).display());
        assert!(metrics.lines().any(|line| line.starts_with(part) && line.contains(&path)));
    }
    let at = format!("mountpoint=\"{}\"}} 1", fixture.path("at").display());
    assert!(metrics.contains(&at), "{metrics}");
    assert!(stats.contains(&fixture.path("at").display().to_string()), "{stats}");
}

#[test]
fn an_address_that_cannot_be_served_is_an_error_before_the_mount() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("at");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for background in [&[][..], &["--daemon"]] {
        let mount = [&["mount", "tank.img", "at", "--metrics"][..]];
        let with =
            |options: &[&str]| fixture.fails(&[&mount.concat()[..], options, background].concat());
        let in_use = with(&[&address]);
        assert!(in_use.contains(&address) && in_use.contains("in use"), "{in_use}");
        let remote = with(&["0.0.0.0:0"]);
        assert!(remote.contains("--metrics-allow-remote"), "{remote}");
    }
    assert_eq!(fixture.run(&["list", "--json"]).status.code(), Some(0));
    let wrong = texts(&fixture.run(&["mount", "tank.img", "at", "--metrics", "9469"]));
    assert!(wrong.1.contains("127.0.0.1:9469"), "{wrong:?}");
    fixture.misused(&["mount", "tank.img", "at", "-o", "metrics=9469"]);
    let printed = fixture.ok(&["mount", "tank.img", "at", "--daemon", "-o", "metrics=127.0.0.1:0"]);
    assert!(get(&url(&printed), "metrics").contains("forebay_build_info"));
}

#[test]
fn a_suspended_pool_is_served() {
    if !root() || !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let small = SmallFs::new(fixture.folder("small"), "20m");
    let create = ["create", "small/tank.img", "--size", "64M", "--failmode", "continue"];
    // Simple content is to fill it.
    fixture.ok(&[&create[..], &["--compression", "off"]].concat());
    let at = fixture.folder("at");
    let mount = ["mount", "small/tank.img", "at", "--metrics", "127.0.0.1:0"];
    let mut running = mounted(&fixture, &mount, &at);
    let printed = running.read_until("live plots at");
    let url = url(&printed);
    // It fails, or the next commit does.
    let _ = std::fs::write(at.join("large"), vec![7; 30 << 20]);
    running.read_error_until("is suspended");
    let metrics = get(&url, "metrics");
    assert_eq!(value(&metrics, "forebay_pool_health{pool=\"tank\",state=\"suspended\"}"), 1.0);
    assert_eq!(value(&metrics, "forebay_txg_suspended_total{pool=\"tank\"}"), 1.0);
    let stats: serde_json::Value = serde_json::from_str(&get(&url, "stats.json")).expect("JSON");
    let why = stats["pools"][0]["suspended"].as_str().expect("a cause");
    assert!(why.contains("forebay status tank") && !why.contains("small"), "{why}");
    small.grow("100m");
    fixture.ok(&["clear", "tank"]);
    running.signal(libc::SIGINT);
    assert!(running.wait().status.success());
}

/// The words of a text that may be names of metrics.
fn named_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("forebay_") || word.starts_with("process_")).collect()
}

#[test]
fn every_metric_of_the_alert_rules_and_the_dashboard_exists() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let metrics = get(&with_l2(&fixture, &[]), "metrics");
    let names = names(&metrics);
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for (file, at_least) in [("prometheus/forebay.rules.yml", 10), ("grafana/forebay.json", 30)] {
        let text = std::fs::read_to_string(packaging.join(file)).expect("a file");
        let named = named_in(&text);
        assert!(named.len() >= at_least, "{file}: {named:?}");
        let unknown: Vec<_> = named.iter().filter(|name| !names.contains(**name)).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard = std::fs::read_to_string(packaging.join("grafana/forebay.json"));
    let dashboard = serde_json::from_str::<serde_json::Value>(&dashboard.expect("a file"));
    assert!(dashboard.expect("JSON")["panels"].as_array().is_some_and(|panels| panels.len() > 10));
}

#[test]
fn the_page_shows_the_pool_in_a_browser() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let url = with_l2(&fixture, &[]);
    let mut browser = Command::new("chromium");
    browser.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
    // The time of the page, not of the clock: it asks often enough to see the time of the daemon
    // pass.
    browser.args(["--virtual-time-budget=7200000", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", fixture.path("browser").display())).arg(&url);
    let output = match browser.output() {
        Ok(output) => output,
        Err(error) => return forebay_base::testing::skip("chromium", error),
    };
    let (page, log) = texts(&output);
    for part in [
        "<td>tank</td>",
        "<td class=\"left online\">online</td>",
        "<td>tank/main</td>",
        "<h2>Where requested blocks came from</h2>",
        "aria-label=\"Throughput: read 0 B/s",
        "<h2>What other sizes of memory would bring</h2>",
        "<div id=\"advice\"><p>",
        "<div id=\"explanation\"><p>",
    ] {
        assert!(page.contains(part), "{part}: {page}\n{log}");
    }
    assert!(page.contains("id=\"connection\" role=\"status\"></p>"), "{page}");
    for trouble in ["Refused to", "Uncaught", "Content Security Policy"] {
        assert!(!log.contains(trouble), "{log}");
    }
}
