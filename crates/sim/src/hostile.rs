//! Tries every operation of a pool once with a hostile device.
//!
//! An operation succeeds or returns an error, whatever the device contains. It never panics, and it
//! terminates.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_io::Device;
use forebay_pool::format::Compression;
use forebay_pool::inspect::{BlockOwner, Inspector, ObjsetName};
use forebay_pool::{BlockCache, Cookie, Dataset, DatasetSettings, ErrorKind, Pool, Result};

use crate::corrupter::{Choices, Corrupter};
use crate::fixture::{self, MIB};
use crate::model::Model;
use crate::raw_device::RawDevice;
use crate::workload::{Workload, WorkloadOptions};

const DEVICE_BYTES: u64 = 24 * MIB;
/// Largest object number that is tried.
const NUMBERS: u64 = 80;

/// The image of a small pool with a filled intent log, exported or as after a crash.
///
/// # Panics
/// If the pool cannot be made.
pub fn original(seed: u64, exported: bool) -> Corrupter {
    let device = fixture::memory("a", DEVICE_BYTES, 512);
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: 4096,
        ..DatasetSettings::default()
    };
    let pool = fixture::create(&[Arc::clone(&device)], &fixture::cache(24 * MIB), &settings)
        .expect("a pool");
    let load = WorkloadOptions {
        bytes_max: MIB,
        objects_max: 20,
        burst_max: 900,
        ..WorkloadOptions::default()
    };
    let mut work = Workload::new(pool, Model::default(), load, seed).expect("datasets");
    work.run(120).expect("work");
    let (pool, ..) = work.end().expect("a commit");
    match exported {
        true => pool.export().expect("an export"),
        false => pool.abandon(),
    }
    Corrupter::new(&RawDevice::new(&device).image())
}

/// Four such images, two of them exported.
///
/// # Panics
/// As [`original`].
pub fn originals() -> Vec<Corrupter> {
    (0..4).map(|seed| original(seed, seed % 2 == 0)).collect()
}

fn device_of(corrupter: &Corrupter) -> Arc<dyn Device> {
    let device = fixture::memory("a", corrupter.bytes.len() as u64, 512);
    let raw_device = RawDevice::new(&device);
    const ZEROS: &[u8] = &[0; 64 << 10];
    for (at, piece) in corrupter.bytes.chunks(ZEROS.len()).enumerate() {
        if piece != &ZEROS[..piece.len()] {
            raw_device.write((at * ZEROS.len()) as u64, piece);
        }
    }
    device
}

/// Inspects, imports, checks, reads, changes, scrubs and exports a device. `choices` decides the
/// import options.
///
/// # Errors
/// The first error.
///
/// # Panics
/// On any bug that this test is meant to find.
pub fn try_everything(
    corrupter: &Corrupter,
    cache: &Arc<BlockCache>,
    choices: &mut impl Choices,
) -> Result<()> {
    let device = device_of(corrupter);
    // Whether it can be inspected does not matter for its use.
    drop(inspect(&device));
    use_pool(&device, cache, choices)
}

/// Inspects a sample of everything, without an import.
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
            // An object that cannot be shown has an error message.
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
    let mut options = fixture::import_options(cache);
    options.force = choices.below(2) == 0;
    options.discard_log = choices.below(2) == 0;
    options.read_only = choices.below(4) == 0;
    let pool = fixture::import(std::slice::from_ref(device), &options)?;
    let mut outcome = Ok(());
    for step in [check, read, change, scrub] {
        // A failed step does not prevent the next one.
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

/// Reads a sample of everything.
fn read(pool: &Pool) -> Result<()> {
    for name in pool.datasets()? {
        let Ok(dataset) = pool.dataset(&name) else { continue };
        for number in 0..NUMBERS {
            let outcome = read_one(&dataset, number);
            // An error is fine; corrupted content with a correct checksum is not detectable.
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
                let batch = directory.entries(from, 100)?;
                let Some(last) = batch.last() else { break };
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

/// Changes a part of every object.
fn change(pool: &Pool) -> Result<()> {
    let dataset = pool.dataset(fixture::DATASETS[0])?;
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
