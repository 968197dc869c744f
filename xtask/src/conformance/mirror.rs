//! fio with verify on a mirror whose sides are in turn damaged, taken out of use and back, and
//! replaced.
//!
//! fio must see neither a wrong byte nor an error. After each damage a resilver and a scrub rewrite
//! what is bad or missing: the other side, which is damaged later, then has to have everything.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::{Fixture, TestMount, wait_for};
use super::suites::packaged;
use super::{Failure, Outcome};

/// Size of each side, in bytes.
const SIDE_BYTES: u64 = 256 << 20;
/// Bytes at both ends of a side that are left alone: its labels, by which it is known.
const LABEL_BYTES: u64 = 1 << 20;
/// Time that fio may take beyond its run time, to verify.
pub(super) const END: Duration = Duration::from_secs(600);

/// What happens to a side, again and again.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// All between the labels is overwritten with random bytes.
    Overwritten,
    /// It is taken out of use for a moment.
    Offline,
    /// Another file takes its place.
    Replaced,
}

const DAMAGES: [Damage; 3] = [Damage::Overwritten, Damage::Offline, Damage::Replaced];
/// Each of them on either side, at least once.
const ROUNDS_MIN: usize = 2 * DAMAGES.len();

impl Damage {
    fn apply(self, mounted: &mut TestMount, side: &Path, round: usize) -> Result<(), Failure> {
        match self {
            Self::Overwritten => mounted.run(dd(side))?,
            Self::Offline => {
                mounted.forebay_on_pool("offline", &[side])?;
                std::thread::sleep(Duration::from_secs(1));
            }
            Self::Replaced => {
                let new = mounted.scratch_path(&format!("replaced-{round}.img"));
                let mut replace = mounted.forebay(&["replace", mounted.pool()]);
                replace.args([side, &new]).args(["--size", &SIDE_BYTES.to_string()]);
                mounted.run(replace)?;
                mounted.replaced(side, &new);
                std::fs::remove_file(side).map_err(|error| error.to_string())?;
            }
        }
        repair(mounted)
    }
}

/// Makes both sides whole. Fails if a side still misses something, or a block has no good copy.
fn repair(mounted: &TestMount) -> Result<(), Failure> {
    for side in mounted.devices() {
        mounted.forebay_on_pool("online", &[&side])?;
    }
    mounted.forebay_on_pool("scrub", &[])
}

/// The command that overwrites a side. Direct, as the pool writes: the kernel fails a flush after
/// direct and buffered writes to one page.
fn dd(side: &Path) -> Command {
    let mut command = Command::new("dd");
    command.args(["if=/dev/urandom", "bs=1M", "conv=notrunc", "oflag=direct", "status=none"]);
    command.arg(format!("seek={}", LABEL_BYTES >> 20));
    command.arg(format!("count={}", (SIDE_BYTES - 2 * LABEL_BYTES) >> 20));
    command.arg(format!("of={}", side.display()));
    command
}

fn set_len(side: &Path, bytes: u64) -> Result<(), Failure> {
    let file = File::options().write(true).open(side);
    let set = file.and_then(|file| file.set_len(bytes));
    set.map_err(|error| format!("{}: {error}", side.display()))
}

/// Starts fio: random writes, each read back and verified, for so many seconds.
pub(super) fn start_fio(
    fixture: &Fixture,
    mounted: &TestMount,
    seconds: u64,
) -> Result<Child, Failure> {
    let (out, err) = mounted.outputs()?;
    let mut command = Command::new("fio");
    command.arg(fixture.root.join("xtask/jobs/mirror.fio"));
    command.current_dir(mounted.scratch_path("")).stdin(Stdio::null()).stdout(out).stderr(err);
    command.env("FOREBAY_AT", &mounted.at).env("FOREBAY_SECONDS", seconds.to_string());
    command.spawn().map_err(|error| format!("fio: {error}"))
}

/// Damages one side after the other until so much time has passed. Returns how many.
fn damage(mounted: &mut TestMount, time: Duration) -> Result<usize, Failure> {
    let begun = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS_MIN || begun.elapsed() < time {
        // All kinds on one side, then on the other.
        let kinds = DAMAGES.len();
        let (damage, side) = (DAMAGES[rounds % kinds], &mounted.devices()[rounds / kinds % 2]);
        damage
            .apply(mounted, side, rounds)
            .map_err(|why| format!("{damage:?} {}, round {rounds}: {why}", side.display()))?;
        rounds += 1;
    }
    Ok(rounds)
}

/// Runs fio beside the damage. At last one side is cut to half, which takes it out of use until the
/// next import.
pub(super) fn run(fixture: &Fixture) -> Result<Outcome, Failure> {
    if !packaged("fio", "fio") {
        let why = "fio is not installed; install the package fio".to_owned();
        return Ok(Outcome::Skipped("fio", why));
    }
    let seconds = fixture.minutes.map_or(if fixture.full { 600 } else { 20 }, |n| n * 60);
    let mut mounted = fixture.mirror("mirror", SIDE_BYTES)?;
    mounted.mount(false)?;
    let mut fio = start_fio(fixture, &mounted, seconds)?;
    let damaged = damage(&mut mounted, Duration::from_secs(seconds * 3 / 4));
    let cut = mounted.devices().swap_remove(0);
    let damaged = damaged.and_then(|rounds| set_len(&cut, SIDE_BYTES / 2).map(|()| rounds));
    let ended = match &damaged {
        Ok(_) => wait_for(&mut fio, Duration::from_secs(seconds) + END),
        Err(_) => None,
    };
    if ended.is_none() {
        let _ = fio.kill();
        let _ = fio.wait();
    }
    let rounds = damaged?;
    match ended {
        Some(true) => {}
        Some(false) => return Err(format!("fio saw an error{}", mounted.tail())),
        None => return Err(format!("fio did not end in time{}", mounted.tail())),
    }
    mounted.unmount()?;
    set_len(&cut, SIDE_BYTES)?;
    repair(&mounted)?;
    mounted.check()?;
    Ok(Outcome::Passed(format!("{seconds} s of fio beside {rounds} damaged sides, then a cut one")))
}
