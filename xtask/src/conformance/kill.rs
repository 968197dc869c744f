//! SIGKILL of the server at random moments, under a load that fsyncs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::bench::Bench;
use super::load::{Promises, WRITERS};
use super::{Failure, Outcome};

/// The longest time that the load runs before the kill, in milliseconds.
const LONGEST_MS: u64 = 1500;

/// Each round: mount, check what was promised before, work, kill, clear the dead mount, check the pool.
pub(super) fn run(bench: &Bench) -> Result<Outcome, Failure> {
    let rounds = if bench.full { 200 } else { 10 };
    let seed = bench.seed;
    let mut mounted = bench.mounted("kill", false)?;
    let promises: Result<Vec<Promises>, _> =
        (0..WRITERS).map(|n| Promises::new(&mounted.at, n, seed)).collect();
    let mut promises = promises.map_err(|error| format!("the first folders: {error}"))?;
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let after = seed.rotate_left(round) % LONGEST_MS;
        std::thread::scope(|scope| {
            for writer in &mut promises {
                scope.spawn(|| writer.work(&stop));
            }
            std::thread::sleep(Duration::from_millis(after));
            mounted.kill();
            stop.store(true, Ordering::Relaxed);
        });
        let told =
            |why: String| format!("round {round} of seed {seed}, killed after {after} ms: {why}");
        mounted.clear().map_err(told)?;
        mounted.check().map_err(told)?;
        // Both modes in turn; what the kernel held back is no promise.
        mounted.mount(round % 2 == 0).map_err(told)?;
        for writer in &mut promises {
            writer.verify().map_err(told)?;
        }
    }
    let steps: u64 = promises.iter().map(|writer| writer.count).sum();
    mounted.end()?;
    Ok(Outcome::Passed(format!("{rounds} kills, {steps} steps with fsync, all there, seed {seed}")))
}
