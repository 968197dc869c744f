//! A pool on an object store behind a proxy that misbehaves, one kind of fault after the other.
//!
//! Under each, fio with verify and fsx run and must see no error. Then SQLite runs until the mount
//! is killed, and the pool is checked and mounted while the fault goes on. Afterwards the pool is
//! healthy, has all transactions, and a scrub finds nothing wrong.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::fixture::{Fixture, TestMount, wait_for};
use super::fsync_load::mix;
use super::object_store::{status, wait_until};
use super::sqlite::{self, Database};
use super::{Failure, mirror, suites};
use crate::store_proxy::{Behaviour, Fault, Proxy};

/// The longest time of a fault that hits all requests, in milliseconds.
const LONGEST_MS: u64 = 2000;
/// As much in a long run: longer than a request may take.
const LONGEST_FULL_MS: u64 = 40_000;
/// Time between such faults.
const BETWEEN: Duration = Duration::from_millis(500);
/// How often a thread looks whether the load has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What a proxy does while it is slow.
const SLOW: Behaviour =
    Behaviour { delay: Duration::from_millis(20), bytes_per_second: Some(16 << 20), fault: None };

/// A misbehaviour, by name. Of the faults, the first ones hit some requests, so that many succeed
/// meanwhile; the last ones hit all, for some time and again and again.
fn misbehaviours() -> [(&'static str, Behaviour); 7] {
    let with = |fault: Fault, per_mille| {
        let behaviour = Behaviour { fault: Some((fault, per_mille)), ..Behaviour::default() };
        (fault.name(), behaviour)
    };
    [
        ("slow", SLOW),
        with(Fault::Reset, 200),
        with(Fault::Cut, 200),
        with(Fault::Short, 200),
        with(Fault::Busy, 300),
        with(Fault::Full, 1000),
        with(Fault::Stalled, 1000),
    ]
}

/// Runs all of them. Returns a summary.
pub(super) fn run(
    fixture: &Fixture,
    mounted: &mut TestMount,
    proxy: &Proxy,
    databases: &mut [Database; 2],
) -> Result<String, Failure> {
    let mut summary = Vec::new();
    for (name, behaviour) in misbehaviours() {
        proxy.take_counts();
        let outcome = misbehaving(fixture, proxy, behaviour, || {
            load(fixture, mounted)?;
            let kills = if fixture.full { 10 } else { 1 };
            sqlite::crashes(mounted, databases, kills, fixture.seed)
        });
        outcome.map_err(|why| format!("while the store is {name}: {why}"))?;
        let counts = proxy.take_counts();
        if behaviour.fault.is_some() && counts.faults == 0 {
            return Err(format!("the fault `{name}` hit no request of {}", counts.requests));
        }
        let hit = behaviour.fault.map_or(counts.requests, |_| counts.faults);
        summary.push(format!("{hit} {name}"));
        wait_until(&format!("the pool is not healthy after the fault `{name}`"), || {
            Ok(status(mounted)?.contains("health     online"))
        })?;
        mounted.forebay_on_pool("scrub", &[])?;
        databases.iter_mut().try_for_each(Database::verify)?;
    }
    Ok(format!("faults: {}", summary.join(", ")))
}

/// Runs `load` while the proxy misbehaves. It behaves afterwards.
fn misbehaving(
    fixture: &Fixture,
    proxy: &Proxy,
    behaviour: Behaviour,
    load: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ended = AtomicBool::new(false);
    let hits_all = matches!(behaviour.fault, Some((_, 1000)));
    let longest = if fixture.full { LONGEST_FULL_MS } else { LONGEST_MS };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pause = |time: Duration| {
                let until = Instant::now() + time;
                while Instant::now() < until && !ended.load(Ordering::Relaxed) {
                    std::thread::sleep(LOOK);
                }
            };
            let mut round = 0;
            while !ended.load(Ordering::Relaxed) {
                proxy.behave(behaviour);
                pause(Duration::from_millis(mix(fixture.seed ^ round) % longest));
                if hits_all {
                    proxy.behave(Behaviour::default());
                    pause(BETWEEN);
                }
                round += 1;
            }
            proxy.behave(Behaviour::default());
        });
        let outcome = load();
        ended.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Runs fio with verify and fsx beside each other.
fn load(fixture: &Fixture, mounted: &TestMount) -> Result<(), Failure> {
    let (seconds, operations) = if fixture.full { (60, 20_000) } else { (6, 1000) };
    let mut fio = mirror::start_fio(fixture, mounted, seconds)?;
    let fsx = suites::fsx_on(fixture, mounted, operations);
    let ended = match fsx {
        Ok(()) => wait_for(&mut fio, Duration::from_secs(seconds) + mirror::END),
        Err(_) => None,
    };
    if ended.is_none() {
        let _ = fio.kill();
        let _ = fio.wait();
    }
    fsx.map_err(|why| format!("fsx: {why}"))?;
    match ended {
        Some(true) => Ok(()),
        Some(false) => Err(format!("fio saw an error{}", mounted.tail())),
        None => Err(format!("fio did not end{}", mounted.tail())),
    }
}
