//! Kills the server with SIGKILL at random moments, under a load that calls `fsync`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::fixture::Fixture;
use super::fsync_load::{WRITERS, Writer};
use super::{Failure, Outcome};

/// The longest time that the load runs before the kill, in milliseconds.
const LONGEST_MS: u64 = 1500;

/// Runs rounds: run the load, kill the server, clear the dead mount, check the pool, mount again
/// and verify the durable state.
pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    let rounds = if fixture.full { 200 } else { 10 };
    let seed = fixture.seed;
    let mut mounted = fixture.mounted("kill", false)?;
    let writers: Result<Vec<Writer>, _> =
        (0..WRITERS).map(|n| Writer::new(&mounted.at, n, seed)).collect();
    let mut writers =
        writers.map_err(|error| format!("creating the folders of the writers: {error}"))?;
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let after = seed.rotate_left(round) % LONGEST_MS;
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| writer.work(&stop, || ()));
            }
            std::thread::sleep(Duration::from_millis(after));
            mounted.kill();
            stop.store(true, Ordering::Relaxed);
        });
        let in_round =
            |why: String| format!("round {round} of seed {seed}, killed after {after} ms: {why}");
        mounted.clear().map_err(in_round)?;
        mounted.check().map_err(in_round)?;
        // Alternates both modes. Data that only the kernel's cache held is not durable.
        mounted.mount(round % 2 == 0).map_err(in_round)?;
        for writer in &mut writers {
            writer.verify().map_err(in_round)?;
        }
    }
    let steps: u64 = writers.iter().map(|writer| writer.count).sum();
    mounted.end()?;
    Ok(Outcome::Passed(format!(
        "{rounds} kills, {steps} steps with fsync, nothing lost, seed {seed}"
    )))
}
