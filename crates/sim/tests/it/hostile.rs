//! Devices that hold anything but a pool as it should be: importing, checking and reading returns errors or works. Never a
//! panic, a hang, or memory by the gigabyte.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;
use forebay_io::Device;
use forebay_pool::inspect::{BlocksOf, Inspector, SetName};
use forebay_pool::{BlockCache, Cookie, Dataset, DatasetSettings, ErrorKind, Pool, Result};
use forebay_sim::forge::Forge;
use forebay_sim::medium::Medium;
use forebay_sim::model::Model;
use forebay_sim::rig::{self, MIB};
use forebay_sim::workload::{Load, Workload};

const DEVICE_BYTES: u64 = 24 * MIB;
/// Objects are looked for up to this number.
const NUMBERS: u64 = 80;
/// A case takes longer only if it hangs.
const LONG: Duration = Duration::from_secs(60);
/// The process takes less memory than this, in KiB.
const MEMORY_KIB: u64 = 2 << 20;

/// A small pool, exported or left as a crash would leave it, with something in its intent log.
fn original(seed: u64, exported: bool) -> Forge {
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

/// Looks at a little of everything, without importing it.
fn inspect(device: &Arc<dyn Device>) -> Result<()> {
    let inspector = Inspector::new(vec![Arc::clone(device)])?;
    let mut shown: String = inspector.labels().iter().map(ToString::to_string).collect();
    shown += &inspector.uberblocks()?.to_string();
    let group = inspector.group(None)?;
    shown += &group.to_string();
    let own = std::iter::once(SetName::Own);
    let datasets = group.found.datasets.iter().map(|dataset| SetName::Dataset(&dataset.name));
    for set in own.chain(datasets) {
        for number in 0..NUMBERS / 8 {
            let shows = [
                inspector.object(set, number, None).map(|look| look.to_string()),
                inspector.directory(set, number, None).map(|look| look.to_string()),
                inspector
                    .block(set, BlocksOf::Object(number), (number, 0), None)
                    .map(|look| look.to_string()),
            ];
            // What cannot be shown says why.
            shown.extend(shows.map(|show| show.unwrap_or_else(|error| error.to_string())));
        }
    }
    assert!(!shown.is_empty());
    Ok(())
}

/// Does what one does with a pool.
fn use_pool(device: &Arc<dyn Device>, cache: &Arc<BlockCache>, rng: &mut SmallRng) -> Result<()> {
    let mut options = rig::import_options(cache);
    options.force = rng.below(2) == 0;
    options.discard_log = rng.below(2) == 0;
    options.read_only = rng.below(4) == 0;
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

/// Memory that the process has had at most.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Ends the process if a case hangs; cases tell that they begin.
struct Watch {
    case: AtomicU64,
}

impl Watch {
    fn start(name: &'static str) -> Arc<Self> {
        let watch = Arc::new(Self { case: AtomicU64::new(0) });
        let watched = Arc::downgrade(&watch);
        std::thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            while let Some(watch) = watched.upgrade() {
                let case = watch.case.load(Ordering::Relaxed);
                if case != last {
                    (last, since) = (case, Instant::now());
                } else if since.elapsed() > LONG {
                    eprintln!("{name}: hangs; repeat with FOREBAY_SEED={case}");
                    std::process::abort();
                }
                drop(watch);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        watch
    }
}

fn cases(
    name: &'static str,
    count: u64,
    originals: &[Forge],
    how: impl Fn(&mut Forge, &mut SmallRng),
) {
    let watch = Watch::start(name);
    let cache = rig::cache(24 * MIB);
    let count = if rig::full() { count * 10 } else { count };
    let seeds = rig::number("FOREBAY_SEED").map_or(1..count + 1, |seed| seed..seed + 1);
    let (mut worked, mut refused) = (0, 0);
    for seed in seeds {
        watch.case.store(seed, Ordering::Relaxed);
        let mut rng = SmallRng::from_seed(seed);
        let mut forge = originals[rng.below(originals.len() as u64) as usize].clone();
        how(&mut forge, &mut rng);
        let device = device_of(&forge);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // What can be shown says nothing of what can be used.
            drop(inspect(&device));
            use_pool(&device, &cache, &mut rng)
        }));
        match outcome {
            Ok(Ok(())) => worked += 1,
            Ok(Err(_)) => refused += 1,
            Err(panic) => {
                eprintln!("{name}: repeat with FOREBAY_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
        assert!(peak_kib() < MEMORY_KIB, "{name}, FOREBAY_SEED={seed}: {} KiB", peak_kib());
    }
    println!("{name}: {worked} worked, {refused} refused");
}

fn originals() -> Vec<Forge> {
    (0..4).map(|seed| original(seed, seed % 2 == 0)).collect()
}

#[test]
fn damaged_images_are_imported_or_refused() {
    cases("damaged", 600, &originals(), |forge, rng| match rng.below(4) {
        0 => forge.flip(rng),
        1 => forge.swap(rng),
        2 => forge.wipe(rng),
        _ => forge.truncate(rng),
    });
}

#[test]
fn forged_labels_are_imported_or_refused() {
    cases("labels", 500, &originals(), Forge::slot);
}

#[test]
fn forged_blocks_are_survived() {
    cases("blocks", 1000, &originals(), Forge::deep);
}

#[test]
fn forged_logs_are_survived() {
    let originals = [original(1, false), original(3, false), original(5, false)];
    cases("logs", 400, &originals, Forge::log);
}
