//! How schedules are searched, and a device that is a map of pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_base::sync::Mutex;
use forebay_io::{Device, DeviceInfo, DeviceStats, Engine, Health, Op, Request, Waiter};
use shuttle::scheduler::{
    DataSource, PctScheduler, RandomDataSource, ReplayScheduler, Schedule, Scheduler, Task, TaskId,
};
use shuttle::{Config, Runner};

/// Searches `schedules` random schedules in bursts, and a third as many with few preemptions.
pub(crate) fn check(schedules: usize, body: impl Fn() + Send + Sync + 'static) {
    let body = Arc::new(body);
    if let Ok(schedule) = std::env::var("FOREBAY_REPLAY") {
        let scheduler = match std::path::Path::new(&schedule).exists() {
            true => ReplayScheduler::new_from_file(&schedule).expect("a readable file"),
            false => ReplayScheduler::new_from_encoded(&schedule),
        };
        return run(scheduler, &body);
    }
    let full = std::env::var("FOREBAY_FULL").is_ok_and(|v| v == "1");
    let count = if full { 20 * schedules } else { schedules };
    let seed = match std::env::var("FOREBAY_SEED") {
        Ok(seed) => seed.parse().expect("FOREBAY_SEED is a number"),
        Err(_) if full => forebay_base::rng::seed_from_system(),
        Err(_) => 1,
    };
    println!("{count} schedules, FOREBAY_SEED={seed}");
    let data = RandomDataSource::initialize(seed);
    run(Bursts { left: count, rng: SmallRng::from_seed(seed), data, length: 2 }, &body);
    run(PctScheduler::new_from_seed(seed, 3, count.div_ceil(3)), &body);
}

/// Random schedules in which a thread goes on but for one step in 2, 6, 20 or 60, which of them an execution draws.
struct Bursts {
    left: usize,
    rng: SmallRng,
    data: RandomDataSource,
    length: u64,
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

fn run<F: Fn() + Send + Sync + 'static>(scheduler: impl Scheduler + 'static, body: &Arc<F>) {
    let mut config = Config::new();
    config.silence_warnings = true;
    config.stack_size = 256 << 10;
    config.failure_persistence = shuttle::FailurePersistence::Print;
    let body = body.clone();
    Runner::new(scheduler, config).run(move || body());
}

const PAGE: usize = 4096;

/// Pages by number; what is not there is zero.
pub(crate) type Pages = BTreeMap<u64, Arc<[u8]>>;

/// A device whose every write is there at once, and can be looked at.
pub(crate) struct Plain {
    info: DeviceInfo,
    pub(crate) pages: Mutex<Pages>,
}

impl Plain {
    pub(crate) fn new(size_bytes: u64, pages: Pages) -> Self {
        let info = DeviceInfo {
            name: "plain".into(),
            size_bytes,
            sector_bytes: PAGE as u32,
            read_only: false,
            direct: false,
            engine: Engine::Memory,
        };
        Self { info, pages: Mutex::named("plain", pages) }
    }
}

impl Device for Plain {
    fn submit(&self, mut request: Request) {
        let first = request.offset() / PAGE as u64;
        match request.op() {
            Op::Read => {
                let pages = self.pages.lock();
                let out = request.bytes_mut().expect("a read's own");
                for (number, out) in (first..).zip(out.chunks_mut(PAGE)) {
                    match pages.get(&number) {
                        Some(page) => out.copy_from_slice(page),
                        None => out.fill(0),
                    }
                }
            }
            Op::Write => {
                let mut pages = self.pages.lock();
                let payload = request.payload().expect("a write's").bytes();
                for (number, page) in (first..).zip(payload.chunks(PAGE)) {
                    pages.insert(number, page.into());
                }
            }
            Op::Flush | Op::Discard => {}
        }
        request.finish(Ok(()));
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn health(&self) -> Health {
        Health::Healthy
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::new(Engine::Memory, Vec::new())
    }

    fn help(&self, _waiter: &Waiter) {}

    fn close(&self) {}
}
