//! What a hostile device is tried with: all that one does with a pool, once.
//!
//! Whatever lies there, an operation works or returns an error. It never panics, and it ends.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_io::Device;
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{BlockCache, Cookie, Dataset, DatasetSettings, ErrorKind, Pool, Result};

use crate::forge::{Choices, Forge};
use crate::medium::Medium;
use crate::model::Model;
use crate::rig::{self, MIB};
use crate::workload::{Load, Workload};

const DEVICE_BYTES: u64 = 24 * MIB;
/// Objects are looked for up to this number.
const NUMBERS: u64 = 80;

/// A small pool, exported or left as a crash would leave it, with something in its intent log.
///
/// # Panics
/// If it cannot be made.
pub fn original(seed: u64, exported: bool) -> Forge {
    let device = rig::memory("a", DEVICE_BYTES, 512);
    let settings = DatasetSettings { record_bytes: 4096, ..DatasetSettings::default() };
    let pool =
        rig::create(&[Arc::clone(&device)], &rig::cache(24 * MIB), &settings).expect("a pool");
    let load = Load { bytes_max: MIB, objects_max: 20, burst_max: 900, beside: false };
    let mut work = Workload::new(pool, Model::default(), load, seed).expect("datasets");
    work.run(120).expect("work");
    let (pool, ..) = work.end().expect("a commit");
    match exported {
        true => pool.export().expect("an export"),
        false => pool.abandon(),
    }
    Forge::new(&Medium::new(&device).image())
}

/// Four of them, half of them exported.
///
/// # Panics
/// As [`original`].
pub fn originals() -> Vec<Forge> {
    (0..4).map(|seed| original(seed, seed % 2 == 0)).collect()
}

fn device_of(forge: &Forge) -> Arc<dyn Device> {
    let device = rig::memory("a", forge.bytes.len() as u64, 512);
    let medium = Medium::new(&device);
    for (at, piece) in forge.bytes.chunks(64 << 10).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            medium.write(at as u64 * (64 << 10), piece);
        }
    }
    device
}

/// Does with a device what one does with a pool: looks at it, imports it, checks it, reads, changes, scrubs and exports it.
/// What is left out or forced is chosen.
///
/// # Errors
/// The first thing that did not work.
///
/// # Panics
/// Whatever panics there must not.
pub fn try_everything(
    forge: &Forge,
    cache: &Arc<BlockCache>,
    choices: &mut impl Choices,
) -> Result<()> {
    let device = device_of(forge);
    // What can be shown says nothing of what can be used.
    drop(inspect(&device));
    use_pool(&device, cache, choices)
}

/// Looks at a little of everything, without importing it.
fn inspect(device: &Arc<dyn Device>) -> Result<()> {
    let inspector = Inspector::new(vec![Arc::clone(device)])?;
    let mut shown: String = inspector.labels().iter().map(ToString::to_string).collect();
    shown += &inspector.uberblocks()?.to_string();
    let group = inspector.txg(None)?;
    shown += &group.to_string();
    let own = std::iter::once(ObjsetName::Own);
    let datasets = group.found.datasets.iter().map(|dataset| ObjsetName::Dataset(&dataset.name));
    for set in own.chain(datasets) {
        for number in 0..NUMBERS / 8 {
            let shows = [
                inspector.object(set, number, None).map(|look| look.to_string()),
                inspector.directory(set, number, None).map(|look| look.to_string()),
                inspector
                    .block(set, BlockOwner::Object(number), (number, 0), None)
                    .map(|look| look.to_string()),
            ];
            // What cannot be shown says why.
            shown.extend(shows.map(|show| show.unwrap_or_else(|error| error.to_string())));
        }
    }
    assert!(!shown.is_empty());
    Ok(())
}

fn use_pool(
    device: &Arc<dyn Device>,
    cache: &Arc<BlockCache>,
    choices: &mut impl Choices,
) -> Result<()> {
    let mut options = rig::import_options(cache);
    options.force = choices.below(2) == 0;
    options.discard_log = choices.below(2) == 0;
    options.read_only = choices.below(4) == 0;
    let pool = rig::import(std::slice::from_ref(device), &options)?;
    let mut outcome = Ok(());
    for step in [check, read, change, scrub] {
        // One that fails does not keep the next from being tried.
        let result = step(&pool);
        outcome = outcome.and(result);
    }
    outcome.and(pool.export())
}

fn check(pool: &Pool) -> Result<()> {
    pool.check(&mut |_| ControlFlow::Continue(())).map(|_| ())
}

fn scrub(pool: &Pool) -> Result<()> {
    pool.scrub(&mut |_| ControlFlow::Continue(())).map(|_| ())
}

/// Reads a little of everything.
fn read(pool: &Pool) -> Result<()> {
    for name in pool.datasets()? {
        let Ok(dataset) = pool.dataset(&name) else { continue };
        for number in 0..NUMBERS {
            let outcome = read_one(&dataset, number);
            // Errors name what is wrong; what is read may be wrong where whoever forged it made it so.
            drop(outcome);
        }
    }
    Ok(())
}

fn read_one(dataset: &Dataset, number: u64) -> Result<()> {
    dataset.object_info(number)?;
    match dataset.object(number) {
        Ok(object) => {
            let mut bytes = vec![0; 100_000];
            let size = object.size();
            for offset in [0, size / 2, size.saturating_sub(50_000), size] {
                let read = object.read(offset, &mut bytes)?;
                assert!(read as u64 <= size - offset, "no more than there is");
            }
        }
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let directory = dataset.directory(number)?;
            let mut from = Cookie::START;
            for _ in 0..40 {
                let lot = directory.entries(from, 100)?;
                let Some(last) = lot.last() else { break };
                assert!(last.next > from, "a walk goes on");
                from = last.next;
                directory.lookup(&last.name)?;
            }
            directory.stats()?;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Changes something everywhere.
fn change(pool: &Pool) -> Result<()> {
    let dataset = pool.dataset(rig::DATASETS[0])?;
    for number in 0..NUMBERS {
        let tx = pool.begin()?;
        if let Ok(object) = dataset.object(number) {
            let _ = object.write(&tx, object.size() / 2, &[1; 5000]);
            let _ = object.truncate(&tx, object.size() / 3);
        } else if let Ok(directory) = dataset.directory(number) {
            for name in 0..20_u64 {
                let _ = directory.insert(&tx, &name.to_le_bytes(), &[1]);
                let _ = directory.remove(&tx, name.to_string().as_bytes());
            }
        }
        if number % 3 == 0 {
            let _ = dataset.destroy(&tx, number);
        }
    }
    pool.sync()
}
