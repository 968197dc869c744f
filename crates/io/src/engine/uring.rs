//! The backend over io_uring: who enters, who reaps, who sleeps.
//!
//! Each lane has a ring, and at any time at most one *driver*: the thread that reaps its
//! completions and runs their callbacks. Whoever waits for a request of the lane drives it while
//! nobody else does; so a single thread that submits and waits meets no other thread. When there is
//! no driver, completions raise an event on which the lane's *reaper* sleeps, and the reaper
//! drives until nothing more has completed.
//!
//! Invariants, all under the lane's lock:
//! * While `driven`, the event is off and exactly one thread is in [`drive`]. It stops being the
//!   driver only after it has switched the event on and then found nothing completed, or has raised the
//!   event itself. So no completion waits for nobody.
//! * Entries that the system has not been told of exist only while there is a driver who will tell
//!   it, or while a failed attempt, or one that told of some only, has raised the event for the reaper to
//!   repeat it; he does so for a driver that sleeps as well.
//! * A driver waits in the system only while something is in flight in its ring.
//! * A ring that the system refuses to be entered for (a seccomp filter that came later) is given up, by its
//!   driver only. From then on drivers do what is issued by calls that block.
//!
//! Locking: `io-lane`. The waiting call and the callbacks are outside it; a submission by anybody
//! but the driver is under it.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::io::Errno;

use super::blocking::Blocking;
use super::core::{Backend, Caller, Core, Ended, LaneState};
use super::queued::Queued;
use super::ring::{Flight, Ring};
use super::transfer::Transfer;
use super::{MAX_LANES, Setup};
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::device::{DeviceInfo, Engine};
use crate::queue::Limits;
use crate::waiter::Waiter;

/// Most ends that are taken under one lock, and so most that are told before the system learns of
/// what their callbacks submit. With more the drive idles meanwhile; with fewer calls are wasted.
const BATCH: usize = 4;
/// Most lanes by default: so many rings keep the fastest drives busy.
const DEFAULT_MAX_LANES: usize = 16;

/// The rings of a device.
pub(crate) struct Uring {
    rings: Box<[Ring]>,
    /// The file, for the rings and for when one of them is refused.
    medium: Blocking,
    stopping: AtomicBool,
    /// The `errno` with which a ring was refused, or 0.
    refused: AtomicU32,
}

/// A ring's part of a lane's state.
pub(crate) struct UringLane {
    flight: Flight,
    driven: bool,
    /// The system refuses to be entered for this ring, for good: nothing is pushed any more.
    broken: bool,
    /// What the driver is to do by calls that block, since the ring is broken.
    stranded: Vec<Transfer>,
}

/// What a submitter has to do after it has unlocked.
pub(crate) enum Then {
    Nothing,
    /// Something has completed already and it was made the driver.
    Drive,
}

forebay_base::sync::thread_local! {
    /// The memory of batches, kept from one drive to the next.
    static ENDED: Cell<Vec<Ended>> = const { Cell::new(Vec::new()) };
}

/// Starts the rings and their reapers.
///
/// # Errors
/// What the system said, and the file for another attempt.
pub(super) fn start(
    file: OwnedFd,
    info: DeviceInfo,
    setup: &Setup,
) -> Result<Queued<Uring>, (io::Error, OwnedFd)> {
    let lanes = match setup.lanes {
        0 => forebay_base::memory::cpus().clamp(1, DEFAULT_MAX_LANES),
        lanes => lanes.min(MAX_LANES),
    };
    let limits = Limits::new(&setup.tunables);
    let rings: io::Result<Vec<_>> =
        (0..lanes).map(|_| Ring::new(limits.total, file.as_fd())).collect();
    let rings = match rings {
        Ok(rings) => rings,
        Err(error) => return Err((error, file)),
    };
    let (rings, flights): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
    let own = flights.into_iter().map(UringLane::new).collect();
    let again = match file.try_clone() {
        Ok(again) => again,
        Err(error) => return Err((error, file)),
    };
    let backend = Uring {
        rings: rings.into(),
        medium: Blocking::new(file, &info),
        stopping: AtomicBool::new(false),
        refused: AtomicU32::new(0),
    };
    let core = Core::new(backend, info, (&setup.tunables, limits), own);
    let queued = Queued::new(Arc::clone(&core));
    for lane in 0..lanes {
        if let Err(error) = core.spawn(&format!("io-reaper-{lane}"), reap, lane) {
            return Err((error, again));
        }
    }
    Ok(queued)
}

impl UringLane {
    fn new(flight: Flight) -> Self {
        Self { flight, driven: false, broken: false, stranded: Vec::new() }
    }
}

/// A reaper's life.
fn reap(core: &Arc<Core<Uring>>, lane: usize) {
    let ring = &core.backend.rings[lane];
    loop {
        ring.sleep();
        if core.backend.stopping.load(Ordering::Acquire) {
            return;
        }
        core.counters.add(IoCounters::REAPER_WAKES, 0, 1);
        let mut state = core.lock(lane);
        if state.own.driven {
            // The driver looks again after it has switched the event on. Until then it may sleep,
            // so what others could not tell the system is told here.
            if !state.own.broken && !try_to_tell(core, &mut state) {
                drop(state);
                ring.signal();
            }
            continue;
        }
        take_over(ring, &mut state);
        drop(state);
        drive(core, lane, Until::Empty);
    }
}

/// Until when to drive.
#[derive(Clone, Copy)]
enum Until<'a> {
    /// Its request has ended.
    Settled(&'a Waiter),
    /// Nothing more has completed.
    Empty,
    /// One batch.
    Once,
}

fn take_over(ring: &Ring, state: &mut LaneState<Uring>) {
    debug_assert!(!state.own.driven, "one driver at a time");
    state.own.driven = true;
    ring.mute(&mut state.own.flight);
}

/// Drives a lane as its driver, until it has stopped being it.
fn drive(core: &Core<Uring>, lane: usize, until: Until<'_>) {
    let ring = &core.backend.rings[lane];
    let mut ended = ENDED.with(Cell::take);
    let mut told = 0;
    let mut rounds = 0;
    let mut refused = Ok(());
    loop {
        let mut state = core.lock(lane);
        state.told(told);
        core.tell_if_idle(&state);
        if let Err(errno) = std::mem::replace(&mut refused, Ok(())) {
            give_up(core, &mut state, errno);
        }
        let (called, patient) = match until {
            Until::Settled(waiter) => (waiter.is_settled(), !state.own.broken),
            Until::Empty => (false, false),
            Until::Once => (rounds > 0, false),
        };
        if called && ended.is_empty() && hand_over(core, &mut state, true) {
            break;
        }
        if !patient {
            tell_system(core, &mut state);
        }
        let any = take_ends(core, &mut state, &mut ended);
        let stuck = !patient || state.own.flight.len() == 0;
        if !any && stuck && hand_over(core, &mut state, false) {
            break;
        }
        let (_, batch) = core.turn(&mut state, Caller::Driver);
        let stranded = std::mem::take(&mut state.own.stranded);
        let in_flight = state.own.flight.len();
        drop(state);
        told = ended.len();
        core.driving(lane, || {
            core.settle(lane, batch, Caller::Driver);
            core.finish(&mut ended);
        });
        rounds += 1;
        let medium = &core.backend.medium;
        ended.extend(stranded.into_iter().map(|left| medium.execute(left, &core.counters)));
        let waits = matches!(until, Until::Settled(waiter) if patient && !waiter.is_settled());
        if waits && in_flight > 0 {
            refused = enter(core, ring, 1);
        }
    }
    ENDED.with(|kept| kept.set(ended));
}

/// Takes ends from the ring to those that `ended` has, and gives the permits of all back. Whether there
/// were any: then a step must follow, even if all of them are to be split and none is left in `ended`.
fn take_ends(core: &Core<Uring>, state: &mut LaneState<Uring>, ended: &mut Vec<Ended>) -> bool {
    let ring = &core.backend.rings[state.index()];
    let medium = &core.backend.medium.medium;
    let reaped = ring.reap(&mut state.own.flight, medium, ended, BATCH);
    if state.own.broken {
        let left = ring.withdraw(&mut state.own.flight);
        state.own.stranded.extend(left);
    }
    if reaped.continued > 0 {
        core.counters.add(IoCounters::CONTINUED, 0, reaped.continued);
    }
    if reaped.retried > 0 {
        core.counters.add(IoCounters::RETRIED, 0, reaped.retried);
    }
    if reaped.unsupported > 0 {
        core.counters.add(IoCounters::DISCARDS_IGNORED, 0, reaped.unsupported);
    }
    let any = !ended.is_empty();
    if any {
        core.ended(state, ended);
    }
    any
}

/// Stops being the driver. Not if there is more to do, unless the driver is `called` away: then
/// the reaper is to look at it.
fn hand_over(core: &Core<Uring>, state: &mut LaneState<Uring>, called: bool) -> bool {
    let told = tell_system(core, state)
        && state.own.stranded.is_empty()
        // Somebody has left it to the driver to tell them.
        && !state.queue.has_cancelled();
    let ring = &core.backend.rings[state.index()];
    let quiet = ring.unmute(&mut state.own.flight) && told;
    if !quiet && !called {
        ring.mute(&mut state.own.flight);
        return false;
    }
    state.own.driven = false;
    if !quiet {
        ring.signal();
    }
    true
}

/// As the driver, tells the system of all entries, and whether it took them. If it refuses to be entered,
/// the ring is given up.
fn tell_system(core: &Core<Uring>, state: &mut LaneState<Uring>) -> bool {
    let ring = &core.backend.rings[state.index()];
    if state.own.broken || ring.unsubmitted(&mut state.own.flight) == 0 {
        return true;
    }
    match enter(core, ring, 0) {
        Ok(()) => ring.unsubmitted(&mut state.own.flight) == 0,
        Err(errno) => {
            give_up(core, state, errno);
            true
        }
    }
}

/// Tells the system of all entries, if it takes them, by whoever has the lane's lock. Whether it did.
fn try_to_tell(core: &Core<Uring>, state: &mut LaneState<Uring>) -> bool {
    let ring = &core.backend.rings[state.index()];
    let all = |state: &mut LaneState<Uring>| ring.unsubmitted(&mut state.own.flight) == 0;
    all(state) || (enter(core, ring, 0).is_ok() && all(state))
}

/// Has the driver return from its wait in the system.
fn wake_driver(core: &Core<Uring>, state: &mut LaneState<Uring>) {
    if state.own.broken {
        // It does not wait.
        return;
    }
    let ring = &core.backend.rings[state.index()];
    ring.wake(&mut state.own.flight);
    if !try_to_tell(core, state) {
        ring.signal();
    }
}

/// As the driver, stops using the ring: its thread does what the system does not know of. Nobody else
/// enters meanwhile: a driver is the only one who does so without the lane's lock. What is in flight
/// completes, since that needs no call.
fn give_up(core: &Core<Uring>, state: &mut LaneState<Uring>, errno: i32) {
    core.backend.refused.store(errno.unsigned_abs(), Ordering::Relaxed);
    state.own.broken = true;
    let ring = &core.backend.rings[state.index()];
    let left = ring.withdraw(&mut state.own.flight);
    state.own.stranded.extend(left);
}

/// Enters the system, and waits for `wanted` completions.
///
/// # Errors
/// The `errno`, if it is of no use to try again.
fn enter(core: &Core<Uring>, ring: &Ring, wanted: usize) -> Result<(), i32> {
    core.counters.add(IoCounters::ENTERS, 0, 1);
    let Err(error) = ring.enter(wanted) else { return Ok(()) };
    match Errno::from_io_error(&error) {
        Some(Errno::INTR) => Ok(()),
        Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
            // The system is short of something. What it did not take is still in the queue, and
            // the driver tries again.
            core.counters.add(IoCounters::ENTERS_REFUSED, 0, 1);
            ring.nap();
            Ok(())
        }
        other => {
            core.counters.add(IoCounters::ENTERS_REFUSED, 0, 1);
            Err(other.unwrap_or(Errno::IO).raw_os_error())
        }
    }
}

impl Backend for Uring {
    type Lane = UringLane;
    type Outside = Then;

    fn begin(core: &Core<Self>, state: &mut LaneState<Self>, caller: Caller) -> Then {
        let ring = &core.backend.rings[state.index()];
        while let Some(issue) = core.next(state) {
            if state.own.broken {
                state.own.stranded.push(Transfer::new(issue));
            } else {
                ring.push(&mut state.own.flight, issue);
            }
        }
        let stranded = state.own.broken && !state.own.stranded.is_empty();
        let untold = !state.own.broken && ring.unsubmitted(&mut state.own.flight) > 0;
        if caller == Caller::Driver || !(stranded || untold) {
            return Then::Nothing;
        }
        if state.own.driven || caller == Caller::Quiet {
            if stranded || !try_to_tell(core, state) {
                // The driver, or the reaper, looks at it.
                ring.signal();
            }
            return Then::Nothing;
        }
        // What is in the page cache completes in the call: then this thread looks after it
        // rather than that a reaper is woken.
        take_over(ring, state);
        match hand_over(core, state, false) {
            true => Then::Nothing,
            false => Then::Drive,
        }
    }

    fn outside(core: &Core<Self>, lane: usize, then: Then) {
        if matches!(then, Then::Drive) {
            drive(core, lane, Until::Once);
        }
    }

    fn help(core: &Core<Self>, lane: usize, waiter: &Waiter) {
        if in_callback() || waiter.is_settled() {
            return;
        }
        let mut state = core.lock(lane);
        if state.own.driven {
            return;
        }
        take_over(&core.backend.rings[lane], &mut state);
        drop(state);
        core.counters.add(IoCounters::DRIVES, 0, 1);
        drive(core, lane, Until::Settled(waiter));
    }

    fn nudge(core: &Core<Self>, lane: usize) {
        let mut state = core.lock(lane);
        if state.own.driven {
            wake_driver(core, &mut state);
        }
    }

    fn summon(core: &Core<Self>, state: &mut LaneState<Self>) {
        if state.own.driven {
            wake_driver(core, state);
        } else {
            core.backend.rings[state.index()].signal();
        }
    }

    fn engine(&self, started: &Engine) -> Engine {
        match self.refused.load(Ordering::Relaxed) {
            0 => started.clone(),
            errno => {
                let error = io::Error::from_raw_os_error(errno.cast_signed());
                let why = format!("io_uring was refused after it had been set up: {error}");
                Engine::Threads { why }
            }
        }
    }

    fn blocking(&self) -> Option<&Blocking> {
        Some(&self.medium)
    }

    fn stop(core: &Core<Self>) {
        core.backend.stopping.store(true, Ordering::Release);
        for ring in &core.backend.rings {
            ring.signal();
        }
    }
}
