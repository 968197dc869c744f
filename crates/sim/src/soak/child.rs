//! The child process, which works and may be killed at any moment.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{BlockCache, Result};

use super::{CACHE_BYTES, POOLS, PoolFiles, read};
use crate::history::History;
use crate::journal::{self, Journal};
use crate::model::Model;
use crate::workload::{Workload, WorkloadOptions};
use crate::{compare, fixture};

/// Rounds of a pool, separated by an export and an import.
const ROUNDS: u64 = 12;
/// Largest number of steps in a round.
const STEPS_MAX: u64 = 400;

/// Works on all pools of a folder.
///
/// # Panics
/// If a pool is not as expected.
pub fn run(folder: &Path, seed: u64) {
    let cache = fixture::cache(CACHE_BYTES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |number: usize| {
            let cache = &cache;
            move || {
                let outcome = work(&PoolFiles::new(folder, number), cache, seed ^ number as u64);
                outcome.unwrap_or_else(|error| panic!("pool {number}, seed {seed}: {error:?}"));
            }
        };
        let threads: Vec<_> = (0..POOLS).map(|number| scope.spawn(work(number))).collect();
        scope.spawn(|| disturb(&cache, seed, &done));
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "the work on a pool failed");
    });
    cache.cache().audit();
    assert_eq!(cache.dirty_bytes(), 0, "nothing is dirty once all pools are exported");
}

/// Flushes the cache at random moments.
fn disturb(cache: &BlockCache, seed: u64, done: &AtomicBool) {
    let mut rng = SmallRng::from_seed(seed);
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1 + rng.below(200)));
        cache.cache().flush();
    }
}

/// Runs all rounds of one pool.
fn work(pool_files: &PoolFiles, cache: &Arc<BlockCache>, seed: u64) -> Result<()> {
    let mut rng = SmallRng::from_seed(seed);
    // The parent has verified the pool and started a new journal with its state.
    let (history, _) = journal::read(pool_files.journal()).expect("a journal");
    let mut model = all_of(&history);
    let journal = Journal::open(pool_files.journal()).expect("the journal");
    for _ in 0..ROUNDS {
        let faulty: Vec<_> = pool_files
            .devices()
            .into_iter()
            .map(|device| Arc::new(FaultDevice::new(device, rng.next_u64())))
            .collect();
        let devices: Vec<_> =
            faulty.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let pool = fixture::import(&devices, &fixture::import_options(cache))?;
        let found = read(&pool, model.entries.keys().copied())?;
        if let Some(difference) = compare::difference(&found, &model) {
            panic!("after an import: {difference}");
        }
        for device in &faulty {
            device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).with_probability(0.002));
            let delay = Fault::Delay(Duration::from_micros(rng.below(3000)));
            device.add(Rule::new(delay).with_probability(0.02));
        }
        let load = WorkloadOptions { background_sync: true, ..WorkloadOptions::default() };
        let mut work = Workload::new(pool, model, load, rng.next_u64())?;
        work.write_journal(journal.clone());
        work.run(rng.below(STEPS_MAX) as usize)?;
        work.sync()?;
        faulty.iter().for_each(|device| device.clear());
        let (pool, after, _) = work.end()?;
        model = after;
        if rng.below(2) == 0 {
            fixture::check(&pool)
                .unwrap_or_else(|problems| panic!("{problems}\n{:?}", pool.stats().counters));
        }
        pool.export()?;
    }
    Ok(())
}

fn all_of(history: &History) -> Model {
    history.state(u64::MAX, 0)
}
