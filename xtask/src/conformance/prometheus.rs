//! Metrics under the field's own tools: `promtool` finds nothing to complain about in them and in
//! the alert rules, and a Prometheus that scrapes a mount answers queries.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::{Fixture, TestMount};
use super::suites::packaged;
use super::{Failure, Outcome};

/// Bytes that the check writes to the mount, and asks Prometheus for.
const WRITTEN: usize = 3 << 20;
/// The longest time until Prometheus has scraped the mount.
const SCRAPE_TIME: Duration = Duration::from_secs(120);
const RULES: &str = "packaging/prometheus/forebay.rules.yml";

pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    if !packaged("promtool", "prometheus") || !packaged("prometheus", "prometheus") {
        let why = "Prometheus is not installed; install the package prometheus";
        return Ok(Outcome::Skipped("prometheus", why.to_owned()));
    }
    let mut mounted = fixture.pool("prometheus")?;
    mounted.mount_with(false, |command| {
        command.args(["--metrics", "127.0.0.1:0"]);
    })?;
    let address = address(&mounted)?;
    std::fs::write(mounted.at.join("file"), vec![7; WRITTEN])
        .map_err(|error| format!("writing a file: {error}"))?;
    let text = get(&address, "text/plain")?;
    promtool(&["check", "metrics"], &text)?;
    let rules = fixture.root.join(RULES);
    promtool(&["check", "rules", &rules.to_string_lossy()], "")?;
    let server = Server::start(&mounted, &address, &rules)?;
    let labels = "{job=\"forebay\",pool=\"pool\",dataset=\"main\"}";
    server.wait_for("up{job=\"forebay\"}", "1")?;
    server.wait_for(&format!("forebay_fuse_write_bytes_total{labels}"), &WRITTEN.to_string())?;
    // The rule of a histogram reads all its parts.
    let quantile =
        "histogram_quantile(0.5, forebay_txg_sync_seconds_bucket{pool=\"pool\"}) >= bool 0";
    server.wait_for(quantile, "1")?;
    drop(server);
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    mounted.end()?;
    Ok(Outcome::Passed(format!("{samples} samples; promtool and Prometheus accept them")))
}

/// Where the mount serves metrics. It prints that after it has mounted.
fn address(mounted: &TestMount) -> Result<String, Failure> {
    let until = Instant::now() + SCRAPE_TIME;
    loop {
        let logged = mounted.logged();
        let printed =
            logged.split_once("metrics at http://").and_then(|(_, at)| at.split_once('/'));
        match printed {
            Some((address, _)) => return Ok(address.to_owned()),
            None if Instant::now() > until => {
                return Err("the mount does not say where its metrics are".to_owned());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The metrics in a format.
fn get(address: &str, format: &str) -> Result<String, Failure> {
    let failed = |error: std::io::Error| format!("http://{address}/metrics: {error}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {format}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, content)) if head.starts_with("HTTP/1.1 200 ") => Ok(content.to_owned()),
        _ => Err(format!("http://{address}/metrics answers {answer}")),
    }
}

/// Runs promtool with this input. It must find nothing.
fn promtool(arguments: &[&str], input: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| format!("promtool: {error}");
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may end before it has read everything; then it says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() && said.trim().is_empty() {
        true => Ok(()),
        false => Err(format!("promtool {} says: {said}", arguments.join(" "))),
    }
}

/// A Prometheus that scrapes an address.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(mounted: &TestMount, address: &str, rules: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| format!("prometheus: {error}");
        let config = mounted.scratch_path("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\nrule_files: [\"{}\"]\nscrape_configs:\n\
             \x20 - job_name: forebay\n    static_configs:\n      - targets: [\"{address}\"]\n",
            rules.display()
        );
        std::fs::write(&config, text).map_err(failed)?;
        // Free now, and hardly taken by another process before Prometheus has it.
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_err(failed)?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", mounted.scratch_path("tsdb").display()))
            .arg(format!("--web.listen-address={port}"))
            .args(["--web.page-title=forebay", "--log.level=error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, url: format!("http://{port}") })
    }

    /// Waits until the query has this one value.
    fn wait_for(&self, query: &str, value: &str) -> Result<(), Failure> {
        let until = Instant::now() + SCRAPE_TIME;
        loop {
            let output = Command::new("promtool")
                .args(["query", "instant", &self.url, query])
                .output()
                .map_err(|error| format!("promtool: {error}"))?;
            let answer = String::from_utf8_lossy(&output.stdout);
            // A line is `NAME{LABELS} => VALUE @[TIME]`.
            let found = answer.lines().filter_map(|line| line.split_once(" => "));
            let values: Vec<&str> =
                found.map(|(_, rest)| rest.split(' ').next().unwrap_or_default()).collect();
            if values == [value] {
                return Ok(());
            }
            if Instant::now() > until {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("{query} is not {value}, Prometheus answers {answer}{said}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
