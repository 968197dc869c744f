//! The backend over io_uring: who submits entries, who reaps completions, who sleeps.
//!
//! Each queue has a ring, and at any time at most one *driver*: the thread that reaps completions
//! and runs callbacks. A thread that waits for one of the queue's requests drives it, unless
//! another thread does. So a single thread that submits and waits involves no other thread. Without
//! a driver, completions raise an event on which the queue's *completion thread* sleeps. That
//! thread then drives until nothing more has completed.
//!
//! Invariants, all under the queue's lock:
//! * While `driven`, the event is disabled and exactly one thread is in [`drive`]. A driver stops
//!   only after it has enabled the event and then found no completion, or has raised the event
//!   itself. So no completion is left unreaped.
//! * Entries that the kernel has not taken exist only in two cases: a driver will submit them, or a
//!   failed or partial attempt has raised the event and the completion thread will repeat it. The
//!   completion thread also does so for a driver that sleeps.
//! * A driver waits in the kernel only while something is in flight in its ring.
//! * A ring that the kernel refuses to enter (because of a later seccomp filter) is abandoned, by
//!   its driver only. From then on drivers execute operations by blocking calls.
//!
//! Locking: `io-submission-queue`. The waiting call and the callbacks are outside it. Any thread
//! but the driver submits entries under it.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::io::Errno;

use super::blocking::BlockingFile;
use super::core::{Backend, Core, EndedOperation, QueueState, RunContext};
use super::queued_device::QueuedDevice;
use super::ring::{InFlight, Ring};
use super::transfer::Transfer;
use super::{MAX_SUBMISSION_QUEUES, Setup};
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::device::{DeviceInfo, Engine};
use crate::queue::Limits;
use crate::waiter::Waiter;

/// Most completions taken under one lock, and so most callbacks run before the kernel gets the
/// requests that they submit. With more the drive idles meanwhile, with fewer system calls are
/// wasted.
const BATCH: usize = 4;
/// Default limit on queues: this many rings keep the fastest drives busy.
const DEFAULT_MAX_QUEUES: usize = 16;

/// The rings of a device.
pub(crate) struct Uring {
    rings: Box<[Ring]>,
    /// The file, for the rings and for blocking calls if a ring is refused.
    blocking: BlockingFile,
    stopping: AtomicBool,
    /// The `errno` with which a ring was refused, or 0.
    refused: AtomicU32,
}

/// The ring's data of one queue.
pub(crate) struct UringQueue {
    in_flight: InFlight,
    driven: bool,
    /// The kernel refuses to enter this ring for good. Nothing is pushed any more.
    broken: bool,
    /// Transfers that the driver must execute by blocking calls, since the ring is broken.
    fallback: Vec<Transfer>,
}

/// Work of a submitting thread after it has unlocked.
pub(crate) enum UringFollowUp {
    Nothing,
    /// The thread became the driver, because something has completed already.
    Drive,
}

forebay_base::sync::thread_local! {
    /// The memory of batches, kept from one drive to the next.
    static ENDED: Cell<Vec<EndedOperation>> = const { Cell::new(Vec::new()) };
}

/// Starts the rings and their completion threads.
///
/// # Errors
/// The kernel's error, and the file for another attempt.
pub(super) fn start(
    file: OwnedFd,
    info: DeviceInfo,
    setup: &Setup,
) -> Result<QueuedDevice<Uring>, (io::Error, OwnedFd)> {
    let queues = match setup.queues {
        0 => forebay_base::memory::cpus().clamp(1, DEFAULT_MAX_QUEUES),
        queues => queues.min(MAX_SUBMISSION_QUEUES),
    };
    let limits = Limits::new(&setup.tunables);
    let rings: io::Result<Vec<_>> =
        (0..queues).map(|_| Ring::new(limits.total, file.as_fd())).collect();
    let rings = match rings {
        Ok(rings) => rings,
        Err(error) => return Err((error, file)),
    };
    let (rings, flights): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
    let data = flights.into_iter().map(UringQueue::new).collect();
    let again = match file.try_clone() {
        Ok(again) => again,
        Err(error) => return Err((error, file)),
    };
    let backend = Uring {
        rings: rings.into(),
        blocking: BlockingFile::new(file, &info),
        stopping: AtomicBool::new(false),
        refused: AtomicU32::new(0),
    };
    let core = Core::new(backend, info, (&setup.tunables, limits), data);
    let queued = QueuedDevice::new(Arc::clone(&core));
    for queue in 0..queues {
        if let Err(error) = core.spawn(&format!("io-cq-{queue}"), completion_thread, queue) {
            return Err((error, again));
        }
    }
    Ok(queued)
}

impl UringQueue {
    fn new(in_flight: InFlight) -> Self {
        Self { in_flight, driven: false, broken: false, fallback: Vec::new() }
    }
}

/// The loop of a completion thread.
fn completion_thread(core: &Arc<Core<Uring>>, queue: usize) {
    let ring = &core.backend.rings[queue];
    loop {
        ring.wait_event();
        if core.backend.stopping.load(Ordering::Acquire) {
            return;
        }
        core.counters.add(IoCounters::COMPLETION_THREAD_WAKES, 0, 1);
        let mut state = core.lock(queue);
        if state.data.driven {
            // The driver looks again after it has enabled the event. Until then it may sleep, so
            // entries that other threads could not submit are submitted here.
            if !state.data.broken && !try_submit_entries(core, &mut state) {
                drop(state);
                ring.raise_event();
            }
            continue;
        }
        become_driver(ring, &mut state);
        drop(state);
        drive(core, queue, Until::Empty);
    }
}

/// When to stop driving.
#[derive(Clone, Copy)]
enum Until<'a> {
    /// When this waiter's request has completed.
    Completed(&'a Waiter),
    /// When nothing more has completed.
    Empty,
    /// After one batch.
    Once,
}

fn become_driver(ring: &Ring, state: &mut QueueState<Uring>) {
    debug_assert!(!state.data.driven, "one driver at a time");
    state.data.driven = true;
    ring.disable_event(&mut state.data.in_flight);
}

/// Drives a queue until this thread is no longer its driver.
fn drive(core: &Core<Uring>, queue: usize, until: Until<'_>) {
    let ring = &core.backend.rings[queue];
    let mut ended = ENDED.with(Cell::take);
    let mut finished = 0;
    let mut rounds = 0;
    let mut refused = Ok(());
    loop {
        let mut state = core.lock(queue);
        state.callbacks_returned(finished);
        core.notify_if_idle(&state);
        if let Err(errno) = std::mem::replace(&mut refused, Ok(())) {
            abandon_ring(core, &mut state, errno);
        }
        let (called, patient) = match until {
            Until::Completed(waiter) => (waiter.is_complete(), !state.data.broken),
            Until::Empty => (false, false),
            Until::Once => (rounds > 0, false),
        };
        if called && ended.is_empty() && stop_driving(core, &mut state, true) {
            break;
        }
        if !patient {
            submit_entries(core, &mut state);
        }
        let any = take_completed(core, &mut state, &mut ended);
        let stuck = !patient || state.data.in_flight.len() == 0;
        if !any && stuck && stop_driving(core, &mut state, false) {
            break;
        }
        let (_, deferred) = core.run(&mut state, RunContext::Driver);
        let fallback = std::mem::take(&mut state.data.fallback);
        let in_flight = state.data.in_flight.len();
        drop(state);
        finished = ended.len();
        core.driving(queue, || {
            core.run_deferred(queue, deferred, RunContext::Driver);
            core.finish(&mut ended);
        });
        rounds += 1;
        let blocking = &core.backend.blocking;
        ended.extend(fallback.into_iter().map(|left| blocking.execute(left, &core.counters)));
        let waits = matches!(until, Until::Completed(waiter) if patient && !waiter.is_complete());
        if waits && in_flight > 0 {
            refused = enter(core, ring, 1);
        }
    }
    ENDED.with(|kept| kept.set(ended));
}

/// Adds completed operations to `ended`, and returns the permits of all of them. Returns whether
/// there were any. If so a run must follow, even if all are to be split and none is left in
/// `ended`.
fn take_completed(
    core: &Core<Uring>,
    state: &mut QueueState<Uring>,
    ended: &mut Vec<EndedOperation>,
) -> bool {
    let ring = &core.backend.rings[state.index()];
    let blocking = &core.backend.blocking.device_file;
    let reaped = ring.reap(&mut state.data.in_flight, blocking, ended, BATCH);
    if state.data.broken {
        let left = ring.take_unsubmitted(&mut state.data.in_flight);
        state.data.fallback.extend(left);
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

/// Stops driving, unless there is more to do. If the driver is `called` away it stops in any case,
/// and the completion thread looks at the rest.
fn stop_driving(core: &Core<Uring>, state: &mut QueueState<Uring>, called: bool) -> bool {
    let finished = submit_entries(core, state)
        && state.data.fallback.is_empty()
        // Another thread has left cancelled requests to the driver.
        && !state.sq.has_cancelled();
    let ring = &core.backend.rings[state.index()];
    let quiet = ring.enable_event(&mut state.data.in_flight) && finished;
    if !quiet && !called {
        ring.disable_event(&mut state.data.in_flight);
        return false;
    }
    state.data.driven = false;
    if !quiet {
        ring.raise_event();
    }
    true
}

/// As the driver, submits all entries, and returns whether the kernel took them. If the kernel
/// refuses for good, the ring is abandoned.
fn submit_entries(core: &Core<Uring>, state: &mut QueueState<Uring>) -> bool {
    let ring = &core.backend.rings[state.index()];
    if state.data.broken || ring.unsubmitted(&mut state.data.in_flight) == 0 {
        return true;
    }
    match enter(core, ring, 0) {
        Ok(()) => ring.unsubmitted(&mut state.data.in_flight) == 0,
        Err(errno) => {
            abandon_ring(core, state, errno);
            true
        }
    }
}

/// Submits all entries, if the kernel takes them. Any holder of the queue's lock may call it.
/// Returns whether it took them.
fn try_submit_entries(core: &Core<Uring>, state: &mut QueueState<Uring>) -> bool {
    let ring = &core.backend.rings[state.index()];
    let all = |state: &mut QueueState<Uring>| ring.unsubmitted(&mut state.data.in_flight) == 0;
    all(state) || (enter(core, ring, 0).is_ok() && all(state))
}

/// Makes the driver return from its wait in the kernel.
fn wake_driver(core: &Core<Uring>, state: &mut QueueState<Uring>) {
    if state.data.broken {
        // The driver does not wait.
        return;
    }
    let ring = &core.backend.rings[state.index()];
    ring.wake(&mut state.data.in_flight);
    if !try_submit_entries(core, state) {
        ring.raise_event();
    }
}

/// As the driver, stops using the ring. This thread executes the transfers that the kernel has not
/// taken. No other thread enters meanwhile: only the driver does so without the queue's lock.
/// Transfers in flight complete, since that needs no call.
fn abandon_ring(core: &Core<Uring>, state: &mut QueueState<Uring>, errno: i32) {
    core.backend.refused.store(errno.unsigned_abs(), Ordering::Relaxed);
    state.data.broken = true;
    let ring = &core.backend.rings[state.index()];
    let left = ring.take_unsubmitted(&mut state.data.in_flight);
    state.data.fallback.extend(left);
}

/// Enters the kernel: submits entries, and waits for `wanted` completions.
///
/// # Errors
/// The `errno`, if another attempt is of no use.
fn enter(core: &Core<Uring>, ring: &Ring, wanted: usize) -> Result<(), i32> {
    core.counters.add(IoCounters::ENTERS, 0, 1);
    let Err(error) = ring.enter(wanted) else { return Ok(()) };
    match Errno::from_io_error(&error) {
        Some(Errno::INTR) => Ok(()),
        Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
            // The kernel is short of a resource. Entries that it did not take stay in the ring, and
            // the driver tries again.
            core.counters.add(IoCounters::ENTERS_REFUSED, 0, 1);
            ring.back_off();
            Ok(())
        }
        other => {
            core.counters.add(IoCounters::ENTERS_REFUSED, 0, 1);
            Err(other.unwrap_or(Errno::IO).raw_os_error())
        }
    }
}

impl Backend for Uring {
    type QueueData = UringQueue;
    type FollowUp = UringFollowUp;

    fn dispatch(
        core: &Core<Self>,
        state: &mut QueueState<Self>,
        context: RunContext,
    ) -> UringFollowUp {
        let ring = &core.backend.rings[state.index()];
        while let Some(operation) = core.next(state) {
            if state.data.broken {
                state.data.fallback.push(Transfer::new(operation));
            } else {
                ring.push(&mut state.data.in_flight, operation);
            }
        }
        let fallback = state.data.broken && !state.data.fallback.is_empty();
        let unsubmitted = !state.data.broken && ring.unsubmitted(&mut state.data.in_flight) > 0;
        if context == RunContext::Driver || !(fallback || unsubmitted) {
            return UringFollowUp::Nothing;
        }
        if state.data.driven || context == RunContext::NonBlocking {
            if fallback || !try_submit_entries(core, state) {
                // The driver or the completion thread looks at it.
                ring.raise_event();
            }
            return UringFollowUp::Nothing;
        }
        // Reads from the page cache complete within the call. This thread reaps them, which is
        // cheaper than waking a completion thread.
        become_driver(ring, state);
        match stop_driving(core, state, false) {
            true => UringFollowUp::Nothing,
            false => UringFollowUp::Drive,
        }
    }

    fn follow_up(core: &Core<Self>, queue: usize, action: UringFollowUp) {
        if matches!(action, UringFollowUp::Drive) {
            drive(core, queue, Until::Once);
        }
    }

    fn help(core: &Core<Self>, queue: usize, waiter: &Waiter) {
        if in_callback() || waiter.is_complete() {
            return;
        }
        let mut state = core.lock(queue);
        if state.data.driven {
            return;
        }
        become_driver(&core.backend.rings[queue], &mut state);
        drop(state);
        core.counters.add(IoCounters::DRIVES, 0, 1);
        drive(core, queue, Until::Completed(waiter));
    }

    fn wake_helper(core: &Core<Self>, queue: usize) {
        let mut state = core.lock(queue);
        if state.data.driven {
            wake_driver(core, &mut state);
        }
    }

    fn run_async(core: &Core<Self>, state: &mut QueueState<Self>) {
        if state.data.driven {
            wake_driver(core, state);
        } else {
            core.backend.rings[state.index()].raise_event();
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

    fn blocking(&self) -> Option<&BlockingFile> {
        Some(&self.blocking)
    }

    fn stop(core: &Core<Self>) {
        core.backend.stopping.store(true, Ordering::Release);
        for ring in &core.backend.rings {
            ring.raise_event();
        }
    }

    fn close_file(core: &Core<Self>) {
        core.backend.rings.iter().for_each(Ring::unregister_file);
        core.backend.blocking.close();
    }
}
