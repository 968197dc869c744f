//! How model checks search schedules: the same search for every crate, in builds with `--cfg forebay_model` only.
//!
//! A failure prints its schedule; `FOREBAY_REPLAY` runs it again, as text or as the path of a file that holds it.
//! An ordinary run searches a third of the schedules that a check asks for, always the same ones.
//! `FOREBAY_FULL=1` searches twenty times as many, from a seed that it prints; `FOREBAY_SEED` sets that.

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{
    DataSource, PctScheduler, RandomDataSource, ReplayScheduler, Schedule, Scheduler, Task, TaskId,
};
use shuttle::thread::JoinHandle;
use shuttle::{Config, Runner};

use crate::rng::SmallRng;

/// Searches random schedules (see [`Bursts`]), and a third as many with few preemptions
/// ([PCT](https://dl.acm.org/doi/10.1145/1736020.1736040), at two depths).
pub fn check(schedules: usize, body: impl Fn() + Send + Sync + 'static) {
    // For ever, as far as a test's process goes: each execution calls it anew.
    let body: &'static _ = Box::leak(Box::new(body));
    if let Some(scheduler) = replay() {
        return run(scheduler, body);
    }
    let count = if crate::testing::full() { 20 * schedules } else { schedules.div_ceil(3) };
    let seed = crate::testing::seed(1);
    println!("{count} schedules");
    run(Bursts::new(seed, count), body);
    run(PctScheduler::new_from_seed(seed, 2, count.div_ceil(6)), body);
    run(PctScheduler::new_from_seed(seed, 4, count.div_ceil(6)), body);
}

/// Random schedules in which threads run in bursts: each step goes on with the same thread but for one
/// in 2, 6, 20 or 60, which of them an execution draws. Choosing anew at each step would practically never
/// let one thread run a whole operation between two steps of another.
struct Bursts {
    left: usize,
    rng: SmallRng,
    data: RandomDataSource,
    length: u64,
}

impl Bursts {
    fn new(seed: u64, schedules: usize) -> Self {
        let data = RandomDataSource::initialize(seed);
        Self { left: schedules, rng: SmallRng::from_seed(seed), data, length: 2 }
    }
}

impl Scheduler for Bursts {
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
        let goes_on = !is_yielding && self.rng.below(self.length) > 0;
        let same = runnable.iter().map(|task| task.id()).find(|id| goes_on && Some(*id) == current);
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
    // Building a cache moves large structures, and callbacks nest deep; shuttle's own default is 60 KiB.
    config.stack_size = 512 << 10;
    config.failure_persistence = shuttle::FailurePersistence::Print;
    Runner::new(scheduler, config).run(body);
}

/// Starts a thread of the model.
pub fn go<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    shuttle::thread::spawn(f)
}

/// Waits for threads of the model.
pub fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
}

/// A choice that a replay makes again.
pub fn below(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}
