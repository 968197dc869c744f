//! Devices that hold anything but a pool as it should be: importing, checking and reading returns errors or works. Never a
//! panic, a hang, or memory by the gigabyte.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;
use forebay_sim::forge::{Forge, Script};
use forebay_sim::hostile::{original, originals, try_everything};
use forebay_sim::rig::{self, MIB};

/// A case takes longer only if it hangs.
const LONG: Duration = Duration::from_secs(60);
/// The process takes less memory than this, in KiB.
const MEMORY_KIB: u64 = 2 << 20;

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
    let seeds = forebay_base::testing::requested_seed().map_or(1..count + 1, |seed| seed..seed + 1);
    let (mut worked, mut refused) = (0, 0);
    for seed in seeds {
        watch.case.store(seed, Ordering::Relaxed);
        let mut rng = SmallRng::from_seed(seed);
        let mut forge = originals[rng.below(originals.len() as u64) as usize].clone();
        how(&mut forge, &mut rng);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            try_everything(&forge, &cache, &mut rng)
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

/// What `fuzz/` tries, with scripts that nobody chose.
#[test]
fn scripts_are_survived() {
    cases("scripts", 300, &originals(), |forge, rng| {
        let mut script = [0; 80];
        rng.fill(&mut script);
        forge.any(&mut Script::new(&script));
    });
}
