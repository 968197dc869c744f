//! `cargo xtask flaky N`: runs all test binaries N times, with a busy loop on each core.
//!
//! This finds tests that depend on time before they fail an unrelated change. A round runs as many
//! binaries at once as `cargo xtask test` does. A failure does not end the run. The last lines name
//! each test that failed and the number of failures.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::report::StepReport;
use super::run::Runner;
use super::step::Step;
use super::tiers;

/// Builds, then runs `rounds` rounds.
pub(crate) fn flaky(root: &Path, rounds: u32) -> io::Result<bool> {
    let round = Step::tests("round", tiers::WORKSPACE, |_| true);
    let (mut runner, stop) = (Runner::new(root)?, AtomicBool::new(false));
    let build = round.build_only().expect("it runs test binaries");
    if !runner.step(&build, StepReport::new(&build.name))?.ok {
        return Ok(false);
    }
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
        let ran = (1..=rounds).try_for_each(|number| {
            let done = runner.step(&round, StepReport::new(&round.name))?;
            let (passed, failed) = done.counts();
            let (skipped, took) = (done.skips.len(), done.running.as_secs());
            done.failed.into_iter().for_each(|test| *failures.entry(test).or_default() += 1);
            println!(
                "=== round {number}/{rounds}: {passed} passed, {failed} failed, {skipped} skipped, \
                 {took} s"
            );
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
