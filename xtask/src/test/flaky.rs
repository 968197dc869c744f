//! `cargo xtask flaky N`: all test binaries, N times, beside a busy loop on each core.
//!
//! A test that depends on time fails here before it fails a change of somebody who has not touched
//! it. A failure does not end the rounds: the end of the run names each test that failed, and how
//! often.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::build::Builds;
use super::run::{Done, Runner};
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
            let mut all = Done::new("round");
            for binary in &binaries {
                let mut done = Done::new(&binary.name());
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

/// The tests that a binary says have failed, or the binary itself if it names none.
fn failed(done: &Done) -> Vec<String> {
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
        let mut done = Done::new("io it");
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
