//! The child process, which works and may be killed at any moment.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::{BlockCache, LeafState, Pool, Result};

use super::{CACHE_BYTES, POOLS, PoolFiles, PoolKind, bring_back, heal_and_check, read};
use crate::history::History;
use crate::journal::{self, Journal};
use crate::model::Model;
use crate::workload::{Workload, WorkloadOptions};
use crate::{compare, fixture};

/// Rounds of a pool, separated by an export and an import.
const ROUNDS: u64 = 12;
/// Largest number of steps in a round.
const STEPS_MAX: u64 = 400;
/// Steps between two moments at which the L2 devices are filled.
const FILL_EVERY: u64 = 50;

/// Works on all pools of a folder.
///
/// # Panics
/// If a pool is not as expected.
pub fn run(folder: &Path, seed: u64, kind: PoolKind) {
    let cache = fixture::cache(CACHE_BYTES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |number: usize| {
            let cache = &cache;
            move || {
                let outcome =
                    work(&PoolFiles::new(folder, number, kind), cache, seed ^ number as u64);
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
        cache.cache().clear();
    }
}

/// Runs all rounds of one pool.
fn work(pool_files: &PoolFiles, cache: &Arc<BlockCache>, seed: u64) -> Result<()> {
    let mut rng = SmallRng::from_seed(seed);
    // The parent has verified the pool and started a new journal with its state.
    let (history, _) = journal::read(pool_files.journal()).expect("a journal");
    let mut model = all_of(&history);
    let journal = Journal::open(pool_files.journal()).expect("the journal");
    // The parent has brought all sides of mirrors back.
    let mut is_whole = true;
    for _ in 0..ROUNDS {
        let mut own = pool_files.devices();
        // The other side has all blocks, and the one that is left out cannot be imported alone.
        if pool_files.has_mirrors() && is_whole && rng.below(4) == 0 {
            own.remove(rng.below(own.len() as u64) as usize);
        }
        let count = own.len();
        let faulty: Vec<_> = own
            .into_iter()
            .chain(pool_files.l2_devices())
            .map(|device| Arc::new(FaultDevice::new(device, rng.next_u64())))
            .collect();
        let devices: Vec<_> =
            faulty.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let (devices, l2) = devices.split_at(count);
        let pool = fixture::import_with(devices, l2, &fixture::import_options(cache))?;
        let found = read(&pool, model.entries.keys().copied())?;
        if let Some(difference) = compare::difference(&found, &model) {
            panic!("after an import: {difference}");
        }
        for device in &faulty {
            device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).with_probability(0.002));
            let delay = Fault::Delay(Duration::from_micros(rng.below(3000)));
            device.add(Rule::new(delay).with_probability(0.02));
        }
        let load = WorkloadOptions {
            background_sync: true,
            waits_while_suspended: true,
            ..WorkloadOptions::default()
        };
        let mut work = Workload::new(pool, model, load, rng.next_u64())?;
        work.write_journal(journal.clone());
        work_while_devices_fail(&mut work, &faulty, &mut rng)?;
        faulty.iter().for_each(|device| device.clear());
        let (pool, after, _) = work.end()?;
        model = after;
        if pool_files.has_mirrors() && rng.below(2) == 0 {
            bring_back(&pool).unwrap_or_else(|problem| panic!("{problem}"));
        }
        is_whole = pool.devices().iter().all(|device| device.state == LeafState::Online);
        if rng.below(2) == 0 {
            heal_and_check(&pool)
                .unwrap_or_else(|problems| panic!("{problems}\n{:?}", pool.stats().counters));
        }
        pool.export()?;
    }
    Ok(())
}

/// Works on a pool whose devices fail altogether for moments.
fn work_while_devices_fail(
    work: &mut Workload,
    faulty: &[Arc<FaultDevice>],
    rng: &mut SmallRng,
) -> Result<()> {
    let (steps, seed, pool) = (rng.below(STEPS_MAX), rng.next_u64(), work.pool_handle());
    let done = AtomicBool::new(false);
    let worked = std::thread::scope(|scope| {
        scope.spawn(|| fail_for_moments(faulty, &pool, seed, &done));
        let worked = (0..steps).try_for_each(|step| {
            if step % FILL_EVERY == 0 {
                work.pool().fill_l2_devices();
            }
            work.step()
        });
        let worked = worked.and_then(|()| work.sync());
        done.store(true, Ordering::Relaxed);
        worked
    });
    // A commit of a resilver may have met the last failure.
    pool.wait_resilver();
    while pool.sync().is_err() {
        pool.clear()?;
    }
    worked
}

/// Lets one device after another fail for a moment, until `done`. Afterwards the pool goes on.
fn fail_for_moments(faulty: &[Arc<FaultDevice>], pool: &Pool, seed: u64, done: &AtomicBool) {
    let mut rng = SmallRng::from_seed(seed);
    let mut pause = |most: u64| std::thread::sleep(Duration::from_millis(1 + rng.below(most)));
    let mut turn = seed as usize;
    while !done.load(Ordering::Relaxed) {
        pause(60);
        turn = turn.wrapping_add(1);
        let device = &faulty[turn % faulty.len()];
        let op = if (turn / faulty.len()).is_multiple_of(2) { Op::Write } else { Op::Flush };
        let rule = device.add(Rule::new(Fault::Error(5)).on(op));
        pause(20);
        device.remove(rule);
        change_a_side(pool, turn);
        // Only a device that still fails, or the end of the work, makes it fail.
        while pool.suspension().is_some() && pool.clear().is_err() {
            pause(2);
        }
    }
}

/// Takes a side of a mirror out of use, or the sides back that are. It may be the last whole side,
/// or fail just then: the next turn tries again.
fn change_a_side(pool: &Pool, turn: usize) {
    let sides: Vec<_> = pool.devices().into_iter().filter(|device| device.mirror).collect();
    let unused = sides.iter().filter(|side| !matches!(side.state, LeafState::Online));
    match turn % 3 {
        0 if !sides.is_empty() => drop(pool.offline_device(&sides[turn % sides.len()].path)),
        1 => unused.for_each(|side| drop(pool.online_device(&side.path))),
        _ => {}
    }
}

fn all_of(history: &History) -> Model {
    history.state(u64::MAX, 0)
}
