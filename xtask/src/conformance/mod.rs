//! `cargo xtask conformance`: what other people's tools say of a real mount.
//!
//! Each check is a name that can be run alone. It makes a pool in a folder of its own, mounts it with the `forebay` binary of this
//! workspace, does its work, unmounts, and has `forebay check` look at what is left. Output goes to a file; a failure
//! prints its end.
//!
//! Mounting needs `/dev/fuse` and root (the suites change users). Where that is missing nothing is run, and the run says so and counts as
//! passed: a machine cannot fail for what it does not have. A tool that cannot be had is said in the same way.

mod bench;
mod kill;
mod load;
mod suites;
mod trees;

use std::io;
use std::path::Path;
use std::time::Instant;

use bench::Bench;

/// What a check says when it has not failed.
pub(crate) enum Outcome {
    /// It was done, as the text tells.
    Passed(String),
    /// It could not be done here, and why.
    Skipped(String),
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
    if let Err(why) = bench::permitted() {
        println!("SKIPPED: nothing can be mounted here: {why}");
        return Ok(true);
    }
    let bench = match Bench::new(root, full) {
        Ok(bench) => bench,
        Err(why) => {
            println!("FAILED: {why}");
            return Ok(false);
        }
    };
    let mut failed = 0;
    let wanted = CHECKS.iter().filter(|check| named.is_empty() || named.contains(&check.name));
    for check in wanted {
        let start = Instant::now();
        let outcome = (check.run)(&bench);
        let took = start.elapsed().as_secs();
        match outcome {
            Ok(Outcome::Passed(what)) => {
                println!("{:<10} ok       {took:>4} s  {what}", check.name)
            }
            Ok(Outcome::Skipped(why)) => println!("{:<10} SKIPPED  {took:>4} s  {why}", check.name),
            Err(why) => {
                failed += 1;
                println!("{:<10} FAILED   {took:>4} s  {why}", check.name);
            }
        }
    }
    Ok(failed == 0)
}
