//! Kills the server with SIGKILL at random moments, under a load that calls `fsync`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::fixture::{Fixture, TestMount};
use super::fsync_load::{WRITERS, Writer, mix};
use super::{Failure, Outcome};

/// The longest time from the first step of each writer to the kill, in milliseconds.
const LONGEST_MS: u64 = 1500;
/// The longest time until each writer has done a step.
const BEGIN_TIME: Duration = Duration::from_secs(60);

/// Runs the load, and kills the server `after` milliseconds after each writer's first step.
fn kill(mounted: &mut TestMount, writers: &mut [Writer], after: u64) -> Result<(), Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let begun: Vec<_> = writers
            .iter_mut()
            .map(|writer| {
                let (sender, first) = mpsc::channel();
                let acknowledged = move || {
                    let _ = sender.send(());
                };
                scope.spawn(move || writer.work(stop, acknowledged));
                first
            })
            .collect();
        // A busy machine may take long to begin, so the time counts from here on.
        let has_begun = begun.iter().all(|first| first.recv_timeout(BEGIN_TIME).is_ok());
        std::thread::sleep(Duration::from_millis(after));
        mounted.kill();
        stop.store(true, Ordering::Relaxed);
        match has_begun {
            true => Ok(()),
            false => Err("a writer has done no step".to_owned()),
        }
    })
}

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
        let after = mix(seed ^ round) % LONGEST_MS;
        let in_round =
            |why: String| format!("round {round} of seed {seed}, killed after {after} ms: {why}");
        kill(&mut mounted, &mut writers, after).map_err(in_round)?;
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
