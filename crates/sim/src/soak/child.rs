//! The process that works, and may be killed at any moment.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{BlockCache, Result};

use super::{CACHE_BYTES, POOLS, Place, read};
use crate::history::History;
use crate::journal::{self, Journal};
use crate::model::Model;
use crate::workload::{Load, Workload};
use crate::{compare, rig};

/// Rounds of a pool, with an export and an import between.
const ROUNDS: u64 = 12;
/// Steps of a round, at most.
const STEPS_MAX: u64 = 400;

/// Works on all pools of a folder.
///
/// # Panics
/// If a pool is not as it must be.
pub fn run(folder: &Path, seed: u64) {
    let cache = rig::cache(CACHE_BYTES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |number: usize| {
            let cache = &cache;
            move || {
                let outcome = work(&Place::new(folder, number), cache, seed ^ number as u64);
                outcome.unwrap_or_else(|error| panic!("pool {number}, seed {seed}: {error:?}"));
            }
        };
        let threads: Vec<_> = (0..POOLS).map(|number| scope.spawn(work(number))).collect();
        scope.spawn(|| disturb(&cache, seed, &done));
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "a pool's work has failed");
    });
    cache.cache().audit();
    assert_eq!(cache.dirty_bytes(), 0, "nothing is dirty once all pools are exported");
}

/// Throws out what is cached, now and then.
fn disturb(cache: &BlockCache, seed: u64, done: &AtomicBool) {
    let mut rng = SmallRng::from_seed(seed);
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1 + rng.below(200)));
        cache.cache().flush();
    }
}

/// The rounds of one pool.
fn work(place: &Place, cache: &Arc<BlockCache>, seed: u64) -> Result<()> {
    let mut rng = SmallRng::from_seed(seed);
    // The parent has just looked at it, and begun the journal anew with what it found.
    let (history, _) = journal::read(place.journal()).expect("a journal");
    let mut model = all_of(&history);
    let journal = Journal::append(place.journal()).expect("the journal");
    for _ in 0..ROUNDS {
        let faulty: Vec<_> = place
            .devices()
            .into_iter()
            .map(|device| Arc::new(FaultDevice::new(device, rng.next_u64())))
            .collect();
        let devices: Vec<_> =
            faulty.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let pool = rig::import(&devices, &rig::import_options(cache))?;
        let found = read(&pool, model.entries.keys().copied())?;
        if let Some(difference) = compare::difference(&found, &model) {
            panic!("after an import: {difference}");
        }
        for device in &faulty {
            device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).with_probability(0.002));
            let delay = Fault::Delay(Duration::from_micros(rng.below(3000)));
            device.add(Rule::new(delay).with_probability(0.02));
        }
        let load = Load { beside: true, ..Load::default() };
        let mut work = Workload::new(pool, model, load, rng.next_u64())?;
        work.write_journal(journal.clone());
        work.run(rng.below(STEPS_MAX) as usize)?;
        work.sync()?;
        faulty.iter().for_each(|device| device.clear());
        let (pool, after, _) = work.end()?;
        model = after;
        if rng.below(2) == 0 {
            rig::check(&pool)
                .unwrap_or_else(|problems| panic!("{problems}\n{:?}", pool.stats().counters));
        }
        pool.export()?;
    }
    Ok(())
}

fn all_of(history: &History) -> Model {
    history.state(u64::MAX, 0)
}
