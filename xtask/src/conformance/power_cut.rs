//! Power cuts under a mount: what `docs/durability.md` promises is there afterwards.
//!
//! The server holds writes to its device in memory until a flush, see `power_cut` in
//! `forebay-pool`, and is killed after a seeded number of acknowledged operations. So the image
//! has what a device has after a power cut that lost its cache, or a part of it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use super::dsync_load::Blocks;
use super::fixture::{Fixture, TestMount};
use super::fsync_load::{Writer, mix};
use super::rename_load::Replaced;
use super::sqlite::{self, Database};
use super::{Failure, Outcome};

/// Sets the seed of the power cuts, in a server that is built with the feature `testing`.
const VARIABLE: &str = "FOREBAY_TEST_POWER_CUT";
/// The server logs this for a device with power cuts.
const SWITCHED_ON: &str = "writes without a flush are lost when this process ends";
/// It logs this if it has no memory for a write: then the cut would lose less than it should.
const OVERFLOW: &str = "the volatile cache is full";
/// Most operations before a cut.
const MOST_OPERATIONS: u64 = 250;
/// The longest time until the last of them.
const LOAD_TIME: Duration = Duration::from_secs(120);

/// Which loads run in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loads {
    /// Renames only, and nothing calls `fsync`: groups alone make changes durable.
    Renames,
    /// Renames, `O_DSYNC` writes, and files with `fsync`.
    Files,
    /// Renames, and SQLite in both journal modes.
    Databases,
}

/// Counts acknowledged operations down to the cut.
struct Countdown {
    left: AtomicU64,
    cut: Sender<()>,
}

impl Countdown {
    fn acknowledge(&self) {
        // It goes on below zero while the server is killed.
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let _ = self.cut.send(());
        }
    }
}

/// All loads and what they know to be durable.
struct State {
    renames: Replaced,
    blocks: Blocks,
    writers: Vec<Writer>,
    databases: [Database; 2],
}

impl State {
    fn new(mounted: &TestMount, seed: u64) -> io::Result<Self> {
        let at = &mounted.at;
        let writers: io::Result<_> = (0..2).map(|n| Writer::new(at, n, seed)).collect();
        Ok(Self {
            renames: Replaced::new(at, seed)?,
            blocks: Blocks::new(at, seed)?,
            writers: writers?,
            databases: ["delete", "wal"].map(|mode| Database::new(at, mode)),
        })
    }

    /// Runs loads, and kills the server after `operations` of them were acknowledged.
    fn run(
        &mut self,
        loads: Loads,
        operations: u64,
        mounted: &mut TestMount,
    ) -> Result<(), Failure> {
        let (cut, reached) = mpsc::channel();
        let countdown = &Countdown { left: AtomicU64::new(operations), cut };
        let stop = &AtomicBool::new(false);
        let acknowledge = || countdown.acknowledge();
        std::thread::scope(|scope| {
            let renames = &mut self.renames;
            let alone = loads == Loads::Renames;
            scope.spawn(move || {
                // Beside others they do not count: they are faster, and would leave them no time.
                renames.work(stop, !alone, || {
                    if alone {
                        acknowledge()
                    }
                });
            });
            if loads == Loads::Files {
                scope.spawn(|| self.blocks.work(stop, acknowledge));
                for writer in &mut self.writers {
                    scope.spawn(move || writer.work(stop, acknowledge));
                }
            }
            let mut sqlite = Vec::new();
            if loads == Loads::Databases {
                let spawn = |it| scope.spawn(move || Database::work(it, stop, acknowledge));
                sqlite.extend(self.databases.iter_mut().map(spawn));
            }
            let reached = reached.recv_timeout(LOAD_TIME);
            stop.store(true, Ordering::SeqCst);
            mounted.kill();
            for thread in sqlite {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread of the load panicked".to_owned()))?;
            }
            reached.map_err(|_| format!("the load did not reach {operations} operations in time"))
        })
    }

    /// Checks all loads after a cut.
    fn verify(&mut self) -> Result<(), Failure> {
        self.renames.verify()?;
        self.blocks.verify()?;
        self.writers.iter_mut().try_for_each(Writer::verify)?;
        self.databases.iter_mut().try_for_each(Database::verify)
    }
}

/// Mounts with power cuts of this seed. A short time between groups puts cuts into commits.
fn mount(
    mounted: &mut TestMount,
    seed: u64,
    kernel_cache: bool,
    commits_often: bool,
) -> Result<(), Failure> {
    mounted.mount_with(kernel_cache, |command| {
        command.env(VARIABLE, seed.to_string()).args(["--log", "warn"]);
        if commits_often {
            command.args(["--tunable", "txg_timeout_ms=20"]);
        }
        // Then an `fsync` of much content waits for a group.
        if (seed / 2).is_multiple_of(4) {
            command.args(["--tunable", "log_commit_max_bytes=64KiB"]);
        }
    })
}

/// The outcome if the binary, which has mounted, has no power cuts.
fn missing(mounted: &TestMount) -> Option<Outcome> {
    let why = "the binary has no power cuts; build it with `--features forebay-pool/testing`";
    (!mounted.logged().contains(SWITCHED_ON)).then(|| Outcome::Skipped("testing", why.to_owned()))
}

/// Checks that the cuts lost all that they should.
fn complete(mounted: &TestMount) -> Result<(), Failure> {
    match mounted.logged().contains(OVERFLOW) {
        true => Err("the server had no memory for a write, so a cut lost too little".to_owned()),
        false => Ok(()),
    }
}

/// Runs rounds: run the loads, cut the power, clear the dead mount, check the pool, mount again and
/// verify.
pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    if let Some(skipped) = sqlite::missing() {
        return Ok(skipped);
    }
    let rounds = if fixture.full { 100 } else { 6 };
    let seed = fixture.seed;
    let mut mounted = fixture.pool("power_cut")?;
    let loads = |round: u64| [Loads::Databases, Loads::Files, Loads::Renames][(round % 3) as usize];
    // Odd rounds have the kernel's cache.
    let mount = |mounted: &mut TestMount, round: u64| {
        let commits_often = loads(round) == Loads::Renames || round / 3 % 2 == 1;
        mount(mounted, mix(seed ^ !round), round % 2 == 1, commits_often)
    };
    mount(&mut mounted, 0)?;
    if let Some(skipped) = missing(&mounted) {
        mounted.end()?;
        return Ok(skipped);
    }
    let state = State::new(&mounted, seed);
    let mut state = state.map_err(|error| format!("creating the files of the loads: {error}"))?;
    state.databases.iter().try_for_each(Database::create)?;
    for round in 0..rounds {
        let operations = mix(seed ^ round) % MOST_OPERATIONS + 1;
        let in_round = |why: String| {
            format!("round {round} of seed {seed}, cut after {operations} operations: {why}")
        };
        state.run(loads(round), operations, &mut mounted).map_err(in_round)?;
        mounted.clear().map_err(in_round)?;
        mounted.check().map_err(in_round)?;
        mount(&mut mounted, round + 1).map_err(in_round)?;
        state.verify().map_err(in_round)?;
    }
    complete(&mounted)?;
    mounted.end()?;
    let State { renames, blocks, writers, databases } = state;
    let steps: u64 = writers.iter().map(|writer| writer.count).sum();
    let counts = databases.map(|it| format!("{} {}", it.acknowledged, it.journal_mode)).join(", ");
    Ok(Outcome::Passed(format!(
        "{rounds} cuts, {} renames, {} O_DSYNC writes, {steps} steps with fsync, transactions: \
         {counts}; none lost, seed {seed}",
        renames.acknowledged, blocks.count
    )))
}
