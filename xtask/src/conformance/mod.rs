//! `cargo xtask conformance`: external test suites and tools on a real mount.
//!
//! Each check has a name and can run alone. It creates a pool in a folder of its own, mounts it
//! with the `forebay` binary of this workspace, runs the tools, unmounts, and runs `forebay check`
//! on the pool. Output goes to a log file; a failure prints its last lines.
//!
//! The checks need `/dev/fuse`, and root because the suites change users. A check that cannot run
//! is reported as skipped, with the reason. `FOREBAY_REQUIRE` makes a skip a failure.

mod dsync_load;
mod fixture;
mod follow;
mod fsync_load;
mod kill;
mod minio;
mod mirror;
mod object_store;
mod object_store_faults;
mod postgres;
mod power_cut;
mod prometheus;
mod rename_load;
mod sqlite;
mod store_server;
mod suites;
mod trees;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use fixture::Fixture;
pub(crate) use store_server::run as store_server;

use crate::test::skip;

/// The result of a check that did not fail.
pub(crate) enum Outcome {
    /// It passed; the text is a summary.
    Passed(String),
    /// It cannot run: the missing need in one word, and the reason.
    Skipped(&'static str, String),
}

/// The reason why a check failed.
type Failure = String;

struct Check {
    name: &'static str,
    run: fn(&Fixture) -> Result<Outcome, Failure>,
}

/// Checks that run by name or in a long run only: the first run builds a server, which takes
/// minutes.
const LONG: [&str; 2] = ["object-store", "object-store-follow"];

/// Checks that run at once. Each waits for its own mount most of the time.
const WORKERS: usize = 2;

/// All checks in the order in which they begin. The one that takes longest comes first. Those that
/// build a suite do not follow each other, because of two such builds at once one waits.
const CHECKS: [Check; 15] = [
    Check { name: "fsx", run: suites::fsx },
    Check { name: "fio", run: suites::fio },
    Check { name: "mirror", run: mirror::run },
    Check { name: "pjdfstest", run: suites::pjdfstest },
    Check { name: "fs_mark", run: suites::fs_mark },
    Check { name: "tar", run: trees::tar },
    Check { name: "git", run: trees::git },
    Check { name: "cargo", run: trees::cargo },
    Check { name: "kill", run: kill::run },
    Check { name: "sqlite", run: sqlite::run },
    Check { name: "postgresql", run: postgres::run },
    Check { name: "power_cut", run: power_cut::run },
    Check { name: "prometheus", run: prometheus::run },
    Check { name: "object-store", run: object_store::run },
    Check { name: "object-store-follow", run: follow::run },
];

/// Runs the checks that `arguments` name, or all of them.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> io::Result<bool> {
    let full = arguments.contains(&"--full");
    let mut named: Vec<&str> =
        arguments.iter().copied().filter(|argument| *argument != "--full").collect();
    let mut minutes = None;
    if let Some(at) = named.iter().position(|argument| *argument == "--minutes") {
        minutes = named.get(at + 1).and_then(|text| text.parse().ok());
        if minutes.is_none() {
            eprintln!("xtask: --minutes: give a number of minutes, for the check `mirror`");
            return Ok(false);
        }
        named.drain(at..at + 2);
    }
    if let Some(wrong) = named.iter().find(|name| !CHECKS.iter().any(|check| check.name == **name))
    {
        let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        eprintln!("xtask: unknown check `{wrong}`; the checks are: {}", names.join(", "));
        return Ok(false);
    }
    let is_wanted = |name: &str| match named.is_empty() {
        true => full || !LONG.contains(&name),
        false => named.contains(&name),
    };
    let wanted: Vec<&Check> = CHECKS.iter().filter(|check| is_wanted(check.name)).collect();
    let mut counts = Counts::default();
    if let Err((need, why)) = fixture::permitted() {
        wanted.iter().for_each(|check| counts.skip(check.name, need, &why));
        return Ok(counts.end());
    }
    let fixture = match Fixture::new(root, full, minutes) {
        Ok(fixture) => fixture,
        Err(why) => {
            println!("FAILED: {why}");
            return Ok(false);
        }
    };
    let (waiting, counts) = (Mutex::new(VecDeque::from(wanted)), Mutex::new(counts));
    let next = || waiting.lock().expect("no worker panics").pop_front();
    let work = || {
        while let Some(check) = next() {
            let start = Instant::now();
            let outcome = (check.run)(&fixture);
            let took = start.elapsed().as_secs();
            counts.lock().expect("no worker panics").add(check.name, took, outcome);
        }
    };
    thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    Ok(counts.into_inner().expect("no worker panics").end())
}

/// Numbers of passed and failed checks.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
    /// Prints and counts the outcome of a check that took so many seconds.
    fn add(&mut self, check: &str, took: u64, outcome: Result<Outcome, Failure>) {
        match outcome {
            Ok(Outcome::Passed(what)) => {
                self.passed += 1;
                println!("{check:<12} ok       {took:>4} s  {what}");
            }
            Ok(Outcome::Skipped(need, why)) => self.skip(check, need, &why),
            Err(why) => {
                self.failed += 1;
                println!("{check:<12} FAILED   {took:>4} s  {why}");
            }
        }
    }

    /// Reports a check that cannot run. A skipped check counts as passed here, as a skipped test
    /// does; the reader of the report subtracts it. It counts as failed if `need` is required.
    fn skip(&mut self, check: &str, need: &str, why: &str) {
        match skip::report(&format!("conformance {check}"), need, why) {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                println!("{check:<12} FAILED  {error}");
            }
        }
    }

    /// Prints the counts as a test harness does. Returns whether no check failed.
    fn end(&self) -> bool {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        println!("test result: {verdict}. {} passed; {} failed", self.passed, self.failed);
        self.failed == 0
    }
}
