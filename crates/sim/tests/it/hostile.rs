//! Corrupted devices: import, check and reads succeed or return errors, without panic, hang, or
//! gigabytes of memory.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::rng::SmallRng;
use forebay_sim::corrupter::{Corrupter, Script};
use forebay_sim::fixture::{self, MIB};
use forebay_sim::hostile::{original, originals, try_everything};

/// A case that takes longer hangs.
const LONG: Duration = Duration::from_secs(60);
/// Largest memory of the process, in KiB.
const MEMORY_KIB: u64 = 2 << 20;
/// What the process of a test prints at its end.
const ENDED: &str = "all cases were tried";

/// Peak resident memory of the process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of the process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

/// Runs `body` in a process that runs nothing but this test, so that the memory is its own.
fn alone(test: &str, body: impl FnOnce()) {
    const MARK: &str = "FOREBAY_ALONE";
    if std::env::var_os(MARK).is_some() {
        body();
        println!("{ENDED}");
        std::process::exit(0);
    }
    let output = Command::new(std::env::current_exe().expect("this program"))
        .arg(format!("hostile::{test}"))
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .expect("another process");
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains(ENDED), "there is no such test");
}

/// Aborts the process if a case hangs. Each case announces itself.
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
    originals: &[Corrupter],
    how: impl Fn(&mut Corrupter, &mut SmallRng),
) {
    let watch = Watch::start(name);
    let cache = fixture::cache(24 * MIB);
    let count = if fixture::full() { count * 20 } else { count };
    let seeds = forebay_base::testing::requested_seed().map_or(1..count + 1, |seed| seed..seed + 1);
    let (mut worked, mut refused) = (0, 0);
    for seed in seeds {
        watch.case.store(seed, Ordering::Relaxed);
        let mut rng = SmallRng::from_seed(seed);
        let mut corrupter = originals[rng.below(originals.len() as u64) as usize].clone();
        how(&mut corrupter, &mut rng);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            try_everything(&corrupter, &cache, &mut rng)
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
    alone("damaged_images_are_imported_or_refused", || {
        cases("damaged", 150, &originals(), |corrupter, rng| match rng.below(4) {
            0 => corrupter.flip(rng),
            1 => corrupter.swap(rng),
            2 => corrupter.wipe(rng),
            _ => corrupter.truncate(rng),
        });
    });
}

#[test]
fn corrupted_labels_are_imported_or_refused() {
    alone("corrupted_labels_are_imported_or_refused", || {
        cases("labels", 125, &originals(), Corrupter::corrupt_slot);
    });
}

#[test]
fn corrupted_blocks_are_survived() {
    alone("corrupted_blocks_are_survived", || {
        cases("blocks", 250, &originals(), Corrupter::corrupt_block);
    });
}

#[test]
fn corrupted_logs_are_survived() {
    alone("corrupted_logs_are_survived", || {
        let originals = [original(1, false), original(3, false), original(5, false)];
        cases("logs", 100, &originals, Corrupter::corrupt_log);
    });
}

/// Runs random scripts as `fuzz/` does.
#[test]
fn scripts_are_survived() {
    alone("scripts_are_survived", || {
        cases("scripts", 75, &originals(), |corrupter, rng| {
            let mut script = [0; 80];
            rng.fill(&mut script);
            corrupter.any(&mut Script::new(&script));
        });
    });
}
