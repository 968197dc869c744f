//! The search of model checks for all crates, in builds with `--cfg forebay_model`.
//!
//! A failure prints its schedule. `FOREBAY_REPLAY` repeats a schedule, given as text or as the path
//! of a file. An ordinary run searches a third of the schedules that a check asks for, always the
//! same ones. `FOREBAY_FULL=1` searches twenty times as many, from a seed that it prints.
//! `FOREBAY_SEED` sets the seed.

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{
    DataSource, PctScheduler, RandomDataSource, ReplayScheduler, Schedule, Scheduler, Task, TaskId,
};
use shuttle::thread::JoinHandle;
use shuttle::{Config, Runner};

use crate::rng::SmallRng;

/// Checks `body` under random schedules with bursts, and under a third as many with few preemptions
/// ([PCT](https://dl.acm.org/doi/10.1145/1736020.1736040), at two depths).
pub fn check(schedules: usize, body: impl Fn() + Send + Sync + 'static) {
    // Leaked, because each execution calls it until the test process ends.
    let body: &'static _ = Box::leak(Box::new(body));
    if let Some(scheduler) = replay() {
        return run(scheduler, body);
    }
    let count = if crate::testing::full() { 20 * schedules } else { schedules.div_ceil(3) };
    let seed = crate::testing::seed(1);
    println!("{count} schedules");
    run(BurstScheduler::new(seed, count), body);
    run(PctScheduler::new_from_seed(seed, 2, count.div_ceil(6)), body);
    run(PctScheduler::new_from_seed(seed, 4, count.div_ceil(6)), body);
}

/// Random schedules in which threads run in bursts. An execution draws a length of 2, 6, 20 or 60.
/// Each step continues with the same thread, except one in that many steps on average. With a new
/// choice at each step, a thread would practically never run a whole operation between two steps of
/// another.
struct BurstScheduler {
    left: usize,
    rng: SmallRng,
    data: RandomDataSource,
    length: u64,
}

impl BurstScheduler {
    fn new(seed: u64, schedules: usize) -> Self {
        let data = RandomDataSource::initialize(seed);
        Self { left: schedules, rng: SmallRng::from_seed(seed), data, length: 2 }
    }
}

impl Scheduler for BurstScheduler {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        self.length = [2, 6, 20, 60][self.rng.below(4) as usize];
        Some(Schedule::new(self.data.reinitialize()))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let continues = !is_yielding && self.rng.below(self.length) > 0;
        let same =
            runnable.iter().map(|task| task.id()).find(|id| continues && Some(*id) == current);
        let drawn = runnable[self.rng.below(runnable.len() as u64) as usize].id();
        Some(same.unwrap_or(drawn))
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next_u64()
    }
}

/// The schedule that `FOREBAY_REPLAY` names.
fn replay() -> Option<ReplayScheduler> {
    let schedule = std::env::var("FOREBAY_REPLAY").ok()?;
    let from_file = std::path::Path::new(&schedule).exists();
    Some(if from_file {
        ReplayScheduler::new_from_file(&schedule).expect("FOREBAY_REPLAY is a readable file")
    } else {
        ReplayScheduler::new_from_encoded(&schedule)
    })
}

fn run<F: Fn() + Send + Sync + 'static>(scheduler: impl Scheduler + 'static, body: &'static F) {
    let mut config = Config::new();
    config.silence_warnings = true;
    // Building a cache moves large structures, and callbacks nest deeply. The default is 60 KiB.
    config.stack_size = 512 << 10;
    config.failure_persistence = shuttle::FailurePersistence::Print;
    Runner::new(scheduler, config).run(body);
}

/// Starts a thread of the model check.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    shuttle::thread::spawn(f)
}

/// Waits for threads of the model check, and returns their results.
pub fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
}

/// A random number below `n`, which a replay repeats.
pub fn below(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}
