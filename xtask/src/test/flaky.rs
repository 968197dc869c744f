//! `cargo xtask flaky N`: runs all test binaries N times, with a busy loop on each core.
//!
//! This finds tests that depend on time before they fail an unrelated change. A failure does not
//! end the run. The last lines name each test that failed and the number of failures.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::build::Builds;
use super::run::{Runner, StepReport};
use super::tiers;

/// Builds, then runs `rounds` rounds.
pub(crate) fn flaky(root: &Path, rounds: u32) -> io::Result<bool> {
    let arguments: Vec<String> =
        format!("test {} --no-run", tiers::WORKSPACE).split(' ').map(str::to_owned).collect();
    let Some(binaries) = Builds::default().binaries(root, &arguments, &[])? else {
        return Ok(false);
    };
    let (runner, stop) = (Runner::new(root)?, AtomicBool::new(false));
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box((0..10_000_u64).fold(0, |sum, n| black_box(sum ^ n)));
                }
            });
        }
        let ran = (1..=rounds).try_for_each(|round| {
            let mut all = StepReport::new("round");
            for binary in &binaries {
                let mut done = StepReport::new(&binary.name());
                runner.binary(binary, &[], &[], &mut done)?;
                failed(&done).into_iter().for_each(|test| *failures.entry(test).or_default() += 1);
                all.tests.passed += done.tests.passed;
                all.tests.failed += done.tests.failed;
                all.skips.extend(done.skips);
                all.running += done.running;
            }
            let (passed, failed) = all.counts();
            let (skipped, took) = (all.skips.len(), all.running.as_secs());
            println!("=== round {round}/{rounds}: {passed} passed, {failed} failed, {skipped} skipped, {took} s");
            io::Result::Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        ran
    })?;
    for (test, times) in &failures {
        println!("failed {times} times of {rounds}: {test}");
    }
    println!("{} passed, {} failed", u64::from(failures.is_empty()), failures.len());
    Ok(failures.is_empty())
}

/// The failed tests that a binary names, or the binary if it failed and names none.
fn failed(done: &StepReport) -> Vec<String> {
    let names = done.last.iter().filter_map(|line| {
        let name = line.strip_prefix("    ")?;
        (!name.contains(' ') && name.contains("::")).then(|| format!("{}: {name}", done.name))
    });
    let mut names: Vec<String> = names.collect();
    if !done.ok && names.is_empty() {
        names.push(done.name.clone());
    }
    if done.ok { Vec::new() } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        let mut done = StepReport::new("io it");
        done.ok = false;
        assert_eq!(failed(&done), ["io it"]);
        done.last = ["failures:", "    memory::a_wait", "", "test result: FAILED."]
            .map(str::to_owned)
            .into();
        assert_eq!(failed(&done), ["io it: memory::a_wait"]);
        done.ok = true;
        assert!(failed(&done).is_empty());
    }
}
