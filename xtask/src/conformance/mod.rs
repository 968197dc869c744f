//! `cargo xtask conformance`: what other people's tools say of a real mount.
//!
//! Each check is a name that can be run alone. It makes a pool in a folder of its own, mounts it with the `forebay` binary of this
//! workspace, does its work, unmounts, and has `forebay check` look at what is left. Output goes to a file; a failure
//! prints its end.
//!
//! Mounting needs `/dev/fuse` and root, because the suites change users. Checks that cannot run here
//! are reported as skipped, with the reason; `FOREBAY_REQUIRE` makes that a failure.

mod bench;
mod kill;
mod load;
mod suites;
mod trees;

use std::io;
use std::path::Path;
use std::time::Instant;

use bench::Bench;

use crate::test::skip;

/// What a check says when it has not failed.
pub(crate) enum Outcome {
    /// It was done, as the text tells.
    Passed(String),
    /// It cannot be done here: what is missing, in a word, and why.
    Skipped(&'static str, String),
}

/// Why a check failed.
type Failure = String;

struct Check {
    name: &'static str,
    run: fn(&Bench) -> Result<Outcome, Failure>,
}

/// In the order in which they run: what says most about the cause of a failure comes first.
const CHECKS: [Check; 8] = [
    Check { name: "pjdfstest", run: suites::pjdfstest },
    Check { name: "fsx", run: suites::fsx },
    Check { name: "fio", run: suites::fio },
    Check { name: "fs_mark", run: suites::fs_mark },
    Check { name: "tar", run: trees::tar },
    Check { name: "git", run: trees::git },
    Check { name: "cargo", run: trees::cargo },
    Check { name: "kill", run: kill::run },
];

/// Runs the checks that `arguments` name, or all of them.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> io::Result<bool> {
    let full = arguments.contains(&"--full");
    let named: Vec<&str> =
        arguments.iter().copied().filter(|argument| *argument != "--full").collect();
    if let Some(wrong) = named.iter().find(|name| !CHECKS.iter().any(|check| check.name == **name))
    {
        let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        eprintln!("xtask: no check `{wrong}`; there are: {}", names.join(", "));
        return Ok(false);
    }
    let wanted: Vec<&Check> =
        CHECKS.iter().filter(|check| named.is_empty() || named.contains(&check.name)).collect();
    let mut counts = Counts::default();
    if let Err((need, why)) = bench::permitted() {
        wanted.iter().for_each(|check| counts.skip(check.name, need, &why));
        return Ok(counts.end());
    }
    let bench = match Bench::new(root, full) {
        Ok(bench) => bench,
        Err(why) => {
            println!("FAILED: {why}");
            return Ok(false);
        }
    };
    for check in wanted {
        let start = Instant::now();
        let outcome = (check.run)(&bench);
        let took = start.elapsed().as_secs();
        match outcome {
            Ok(Outcome::Passed(what)) => {
                counts.passed += 1;
                println!("{:<10} ok       {took:>4} s  {what}", check.name);
            }
            Ok(Outcome::Skipped(need, why)) => counts.skip(check.name, need, &why),
            Err(why) => {
                counts.failed += 1;
                println!("{:<10} FAILED   {took:>4} s  {why}", check.name);
            }
        }
    }
    Ok(counts.end())
}

/// How many checks ended in which way.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
    /// Reports a check that cannot run. As a test that is skipped it counts as run, and is taken off
    /// again by who reads the report; it fails if what is missing is required.
    fn skip(&mut self, check: &str, need: &str, why: &str) {
        match skip::report(&format!("conformance {check}"), need, why) {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                println!("{check:<10} FAILED  {error}");
            }
        }
    }

    /// Prints the counts as a test harness does; says whether all is well.
    fn end(&self) -> bool {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        println!("test result: {verdict}. {} passed; {} failed", self.passed, self.failed);
        self.failed == 0
    }
}
