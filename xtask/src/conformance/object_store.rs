//! A pool on an S3 store, MinIO, with an L2 device in front of it, and a proxy between them.
//!
//! In this order: fsx and fio; SQLite under kills of the mount; fio with verify while the store is
//! killed and started again; all of that while the proxy misbehaves; a writer that waits for the
//! store; a takeover by another machine, which has none of the state of this one, and back; mounts
//! that race. At last `forebay destroy` must leave the bucket as it was.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::{Fixture, TestMount, wait_for};
use super::minio::{BUCKET, Minio};
use super::sqlite::{self, Database};
use super::suites::{self, packaged};
use super::{Failure, Outcome, fsync_load, minio, mirror, object_store_faults};
use crate::store_proxy::Proxy;

/// Below the bucket.
const PREFIX: &str = "tank";
/// The name of the other machine.
const OTHER: &str = "other-machine";
/// Size of the L2 device in bytes.
const L2_BYTES: u64 = 256 << 20;
/// MiB that the memory of a mount cannot hold.
const WAITING_MIB: u64 = 384;
/// The longest time of an outage under fio, in milliseconds.
const LONGEST_OUTAGE_MS: u64 = 4000;
/// Outages under fio, at least.
const OUTAGES_MIN: u64 = 3;
/// The longest time of what waits for a store that is back.
const WAIT_TIME: Duration = Duration::from_secs(300);

pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    if let Some(skipped) = minio::missing().or_else(sqlite::missing) {
        return Ok(skipped);
    }
    if !packaged("fio", "fio") {
        let why = "fio is not installed; install the package fio".to_owned();
        return Ok(Outcome::Skipped("fio", why));
    }
    let (operations, kills, races) = if fixture.full { (200_000, 50, 100) } else { (10_000, 4, 4) };
    let mut store = Minio::start(&fixture.target)?;
    let proxy = Proxy::start(store.address(), fixture.seed);
    let proxy = proxy.map_err(|error| format!("the proxy: {error}"))?;
    let environment = || Minio::environment(proxy.address());
    for key in ["theirs", "tanks/theirs"] {
        store.put(key)?;
    }
    let url = format!("s3://{BUCKET}/{PREFIX}");
    let mut here = fixture.on_store("object-store", &url, environment(), None)?;
    create(&here, &url)?;
    store.put(&format!("{PREFIX}/theirs"))?;

    here.mount(false)?;
    suites::fsx_on(fixture, &here, operations)?;
    suites::fio_on(fixture, &here)?;
    let mut databases = sqlite::databases(&here.at)?;
    sqlite::crashes(&mut here, &mut databases, kills, fixture.seed)?;
    let outages = outages(fixture, &here, &mut store)?;
    let faults = object_store_faults::run(fixture, &mut here, &proxy, &mut databases)?;
    waiting(&mut here, &mut store)?;

    let mut there = fixture.on_store("object-store-2", &url, environment(), Some(OTHER))?;
    takeover(&mut here, &mut there, &mut databases)?;
    takeover(&mut there, &mut here, &mut databases)?;
    here.unmount()?;
    let mut environment = environment();
    for (name, folder) in [("FOREBAY_RUN_DIR", "run"), ("FOREBAY_STATE_DIR", "state")] {
        environment.push((name, here.scratch_path(folder).into()));
    }
    let mut beside = fixture.on_store("object-store-3", &url, environment, None)?;
    for round in 0..races {
        let rival = if round % 2 == 0 { &mut there } else { &mut beside };
        race(&mut here, rival, round).map_err(|why| format!("race {round}: {why}"))?;
    }
    here.check()?;

    here.forebay_on_pool("destroy", &[Path::new("--yes")])?;
    let left = store.objects()?;
    let keys: Vec<&str> = left.iter().filter_map(|object| object.split(' ').next()).collect();
    if keys != [&format!("{PREFIX}/theirs"), "tanks/theirs", "theirs"] {
        return Err(format!("after the destruction of the pool the bucket has {left:?}"));
    }
    let commits: u64 = databases.iter().map(|database| database.acknowledged).sum();
    Ok(Outcome::Passed(format!(
        "{operations} operations of fsx, fio, {kills} kills with {commits} transactions, {outages} \
         outages, {faults}, 2 takeovers, {races} races, seed {}",
        fixture.seed
    )))
}

/// Creates the pool, with an L2 device of this machine.
pub(super) fn create(mounted: &TestMount, url: &str) -> Result<(), Failure> {
    let l2_device = mounted.scratch_path("l2.img");
    let made = File::create(&l2_device).and_then(|file| file.set_len(L2_BYTES));
    made.map_err(|error| format!("{}: {error}", l2_device.display()))?;
    let mut create = mounted.forebay(&["create", "--name", "tank", "--object-store", url]);
    create.arg("--l2-device").arg(l2_device);
    mounted.run(create)
}

/// Runs fio while the store is killed and started again. Returns how often.
fn outages(fixture: &Fixture, mounted: &TestMount, store: &mut Minio) -> Result<u64, Failure> {
    let seconds = if fixture.full { 300 } else { 20 };
    let mut fio = mirror::start_fio(fixture, mounted, seconds)?;
    let mut count = 0;
    let begun = Instant::now();
    let all = loop {
        let long_enough = begun.elapsed() > Duration::from_secs(seconds * 3 / 4);
        if count >= OUTAGES_MIN && long_enough {
            break Ok(());
        }
        let random = fsync_load::mix(fixture.seed ^ count);
        std::thread::sleep(Duration::from_millis(random % 3000));
        store.kill();
        std::thread::sleep(Duration::from_millis((random >> 32) % LONGEST_OUTAGE_MS));
        if let Err(why) = store.restart() {
            break Err(why);
        }
        count += 1;
    };
    let ended = all.is_ok().then(|| wait_for(&mut fio, Duration::from_secs(seconds) + mirror::END));
    if ended.flatten().is_none() {
        let _ = fio.kill();
        let _ = fio.wait();
    }
    all?;
    match ended.flatten() {
        Some(true) => Ok(count),
        Some(false) => Err(format!("fio saw an error in {count} outages{}", mounted.tail())),
        None => Err(format!("fio did not end after {count} outages{}", mounted.tail())),
    }
}

/// A writer of more than memory holds waits for the store, which `status` tells. Nothing is lost.
fn waiting(mounted: &mut TestMount, store: &mut Minio) -> Result<(), Failure> {
    let source = mounted.scratch_path("source");
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/urandom", "bs=1M", "status=none", &format!("count={WAITING_MIB}")]);
    dd.arg(format!("of={}", source.display()));
    mounted.run(dd)?;
    store.kill();
    let mut copy = Command::new("cp");
    copy.arg(&source).arg(mounted.at.join("copy")).stdin(Stdio::null());
    let mut copy = copy.spawn().map_err(|error| format!("cp: {error}"))?;
    let told = wait_until("the outage is not in the status", || {
        let status = status(mounted)?;
        Ok(status.contains("degraded") && status.contains("has not answered"))
    });
    let early = wait_for(&mut copy, Duration::from_secs(3));
    let back = store.restart();
    let ended = wait_for(&mut copy, WAIT_TIME);
    if ended.is_none() {
        let _ = copy.kill();
        let _ = copy.wait();
    }
    told.and(back)?;
    match (early, ended) {
        (None, Some(true)) => {}
        (Some(_), _) => return Err("the writer did not wait for the store".to_owned()),
        (_, ended) => return Err(format!("the writer ended with {ended:?}{}", mounted.tail())),
    }
    wait_until("the pool is not healthy after the outage", || {
        Ok(status(mounted)?.contains("health     online"))
    })?;
    let same = |mounted: &TestMount| {
        let mut compare = Command::new("cmp");
        compare.arg(&source).arg(mounted.at.join("copy"));
        mounted.run(compare)
    };
    same(mounted)?;
    mounted.unmount()?;
    mounted.check()?;
    mounted.mount(false)?;
    same(mounted)?;
    fs::remove_file(mounted.at.join("copy")).map_err(|error| format!("the copy: {error}"))
}

/// What `forebay status` prints.
pub(super) fn status(mounted: &TestMount) -> Result<String, Failure> {
    let mut command = mounted.forebay(&["status"]);
    command.arg(mounted.pool());
    let output = command.output().map_err(|error| format!("forebay status: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until `holds`; fails with `what` after a time.
pub(super) fn wait_until(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let until = Instant::now() + WAIT_TIME;
    while !holds()? {
        if Instant::now() > until {
            return Err(what.to_owned());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The machine `new` takes the pool over from `old`, which still runs, and has all of it. From then
/// on `old` can make nothing durable. It is killed at last.
fn takeover(
    old: &mut TestMount,
    new: &mut TestMount,
    databases: &mut [Database; 2],
) -> Result<(), Failure> {
    match new.mount(false) {
        Err(why) if why.contains("--force") => {}
        Err(why) => return Err(format!("a pool of another machine is refused by {why}")),
        Ok(()) => return Err("a pool of another machine was mounted without force".to_owned()),
    }
    new.mount_with(false, |command| {
        command.arg("--force");
    })?;
    let mut late = Command::new("dd");
    late.args(["if=/dev/zero", "bs=4k", "count=1", "conv=fsync", "status=none"]);
    late.arg(format!("of={}", old.at.join("late").display())).stdin(Stdio::null());
    let (out, err) = old.outputs()?;
    let mut late = late.stdout(out).stderr(err).spawn().map_err(|error| format!("dd: {error}"))?;
    let told = wait_until("the former owner does not say who has taken the pool over", || {
        Ok(old.logged().contains("has taken the store over"))
    });
    // Before the kill, which would end it as well.
    let written = wait_for(&mut late, WAIT_TIME);
    old.kill();
    told?;
    if written != Some(false) {
        return Err(format!("a sync of the former owner after the takeover ended as {written:?}"));
    }
    old.clear()?;
    for database in databases {
        database.moved(&new.at);
        database.verify()?;
    }
    match new.at.join("late").exists() {
        true => Err("a file of the former owner is there after the takeover".to_owned()),
        false => Ok(()),
    }
}

/// Writes a file and syncs it and the folder.
fn write_durably(at: &Path, name: &str) -> std::io::Result<()> {
    let mut file = File::create(at.join(name))?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    File::open(at)?.sync_all()
}

/// Two processes mount an exported pool at once. Exactly one succeeds, and has what the winner of
/// the race before wrote.
fn race(one: &mut TestMount, two: &mut TestMount, round: u64) -> Result<(), Failure> {
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| one.mount(false));
        let second = two.mount(false);
        (first.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())), second)
    });
    let (winner, lost) = match (first, second) {
        (Ok(()), Err(why)) => (one, why),
        (Err(why), Ok(())) => (two, why),
        (Ok(()), Ok(())) => return Err("both processes have mounted the pool".to_owned()),
        (Err(one), Err(two)) => return Err(format!("nobody has mounted: {one}\nand {two}")),
    };
    if !["in use", "taken", "another command", "owns"].iter().any(|word| lost.contains(word)) {
        return Err(format!("the loser does not say why it has lost: {lost}"));
    }
    let at = &winner.at;
    let failed = |error: std::io::Error| format!("the winner cannot write: {error}");
    write_durably(at, &format!("race{round}")).map_err(failed)?;
    for before in 0..round {
        let name = format!("race{before}");
        if fs::read_to_string(at.join(&name)).is_ok_and(|text| text == name) {
            continue;
        }
        return Err(format!("the winner does not see the file {name}"));
    }
    winner.unmount()
}
