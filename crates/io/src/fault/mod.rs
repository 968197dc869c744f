//! A decorator that injects faults: errors, rot, torn and lost writes, a volatile cache that a
//! crash may lose, delays.
//!
//! Which request meets which [`Fault`] is said by [`Rule`]s, that come and go at run time. Each fault
//! that is injected is counted and listed, so a test can tell what happened from what it hoped for.
//!
//! How it hangs together: a request meets the rules (`rule`), may wait in the `timer`, and is then
//! executed as the rules said: handed on, changed, ended, or put into the cache (`volatile`).
//! A flush writes the cache to the medium first (`flush`).
//!
//! # Invariants
//!
//! - Every request ends exactly once: with the device below, or here; also if the device below
//!   fails everything, while flushing too.
//! - `flying` counts requests that were accepted and have not ended. Closing and crashing wait
//!   until it is zero.
//! - Reads see what was acknowledged last, on the medium or in the cache; a sector that is in
//!   the cache is newer than the medium's.
//!
//! # Locking
//!
//! `fault-state` for a decision or a look at the cache; `fault-timer` for the list of delays. Neither
//! is held while the device below is called, and never both at once.
//!
//! # What it does not do
//!
//! No realistic distribution of faults: a rule is a test's instrument. Requests that are not well
//! formed meet no rules. It is not made for speed.

mod counters;
mod crash;
mod flush;
mod rule;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod timer;
mod volatile;

use std::fmt;
use std::ops::Range;

use forebay_base::arena::{AllocError, Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Condvar, Mutex};

pub use counters::FaultCounters;
pub use crash::{Crash, Crashed};
pub use rule::{Fault, Injected, Rule, RuleId};

use crate::device::{Device, DeviceInfo, DeviceStats, Health};
use crate::error::{Error, ErrorKind};
use crate::request::{Completion, Op, Request};
use crate::waiter::Waiter;
use flush::Waiting;
use rule::{Hit, Rules};
use timer::{Kept, Timer};
use volatile::Volatile;

/// Bytes of writes that the volatile cache holds at most.
const VOLATILE_BYTES: u64 = 64 << 20;
/// Bytes of buffers for what the device writes itself.
const SCRATCH_BYTES: u64 = 128 << 20;
/// `EIO`.
const MEDIUM_ERROR: i32 = 5;

/// A device whose requests can be made to fail.
///
/// ```
/// # use forebay_base::arena::{Arena, ArenaConfig, HugePages};
/// use std::sync::Arc;
///
/// use forebay_io::fault::{Fault, FaultDevice, Rule};
/// use forebay_io::{Device, FileDevice, Op, OpenOptions, Request};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("medium");
/// # let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Auto })?;
/// let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
/// let medium = Arc::new(FileDevice::open(&path, &options)?);
/// let device = FaultDevice::new(medium, 1);
/// let rule = device.add(Rule::new(Fault::Error(5)).on(Op::Read).within(4096..8192));
///
/// let dyn_device: &dyn Device = &device;
/// assert!(dyn_device.run(Request::read(0, arena.alloc(4096)?)).result.is_ok());
/// assert!(dyn_device.run(Request::read(4096, arena.alloc(4096)?)).result.is_err());
/// assert_eq!(device.remove(rule), Some(1));
/// assert!(dyn_device.run(Request::read(4096, arena.alloc(4096)?)).result.is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FaultDevice {
    shared: Arc<Shared>,
    timer: Timer<Delayed>,
}

struct Shared {
    inner: Arc<dyn Device>,
    state: Mutex<State>,
    // Nothing is flying any more.
    landed: Condvar,
    counters: FaultCounters,
    scratch: Arc<Arena>,
}

struct State {
    rules: Rules,
    volatile: Volatile,
    waiting: Waiting,
    flying: u64,
    errors: u64,
    closed: bool,
    crashed: bool,
}

/// A request that was accepted, as long as it has not ended.
struct Flight {
    shared: Arc<Shared>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.flying -= 1;
        if state.flying == 0 {
            self.shared.landed.notify_all();
        }
    }
}

struct Delayed {
    request: Request,
    hit: Option<Hit>,
    flight: Flight,
}

impl FaultDevice {
    /// A device over `inner` without rules. `seed` decides all that is random.
    ///
    /// # Panics
    /// If the system refuses address space for its buffers.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        let config = ArenaConfig { limit_bytes: SCRATCH_BYTES, huge_pages: HugePages::Never };
        let scratch = Arena::new(config).expect("address space for a small arena");
        let state = State {
            rules: Rules::new(seed),
            volatile: Volatile::new(inner.info().sector_bytes, VOLATILE_BYTES),
            waiting: Waiting::default(),
            flying: 0,
            errors: 0,
            closed: false,
            crashed: false,
        };
        let shared = Arc::new(Shared {
            inner,
            state: Mutex::named("fault-state", state),
            landed: Condvar::new(),
            counters: FaultCounters::new(),
            scratch,
        });
        let timer = Timer::new(|late: Delayed| late.flight.go(late.request, late.hit));
        Self { shared, timer }
    }

    /// Adds a rule, after those that are there. Delays add up; of the other faults, a request
    /// meets the first.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.state.lock().rules.add(rule)
    }

    /// Removes a rule, and says how often it fired; `None` if it is not there.
    pub fn remove(&self, rule: RuleId) -> Option<u64> {
        self.shared.state.lock().rules.remove(rule)
    }

    /// Removes all rules, and hands on what is delayed. What is in the volatile cache stays there until
    /// it is flushed.
    pub fn clear(&self) {
        self.shared.state.lock().rules.clear();
        self.timer.hurry();
    }

    /// The latest faults, the oldest first. All are counted ([`Device::stats`]); about a
    /// thousand are remembered.
    pub fn injected(&self) -> Vec<Injected> {
        self.shared.state.lock().rules.injected()
    }

    /// What it counts itself.
    pub fn counters(&self) -> &FaultCounters {
        &self.shared.counters
    }

    /// Bytes that were acknowledged and that a crash may lose.
    pub fn volatile_bytes(&self) -> u64 {
        let state = self.shared.state.lock();
        state.volatile.len() as u64 * u64::from(self.info().sector_bytes)
    }

    /// Hands on what is delayed, and waits until all has ended. In a callback it does not wait.
    fn land(&self) {
        self.timer.stop();
        if crate::in_callback() {
            return;
        }
        let mut state = self.shared.state.lock();
        while state.flying > 0 {
            self.shared.landed.wait(&mut state);
        }
    }
}

impl Device for FaultDevice {
    fn submit(&self, request: Request) {
        let shared = &self.shared;
        if !shared.is_formed(&request) {
            return shared.inner.submit(request);
        }
        let mut state = shared.state.lock();
        if let Some(error) = shared.refusal(&state, &request) {
            drop(state);
            return request.finish(Err(error));
        }
        state.flying += 1;
        let decision = state.rules.decide(&request);
        drop(state);
        let flight = Flight { shared: Arc::clone(shared) };
        if decision.delay.is_zero() {
            return flight.go(request, decision.hit);
        }
        shared.count(Fault::Delay(decision.delay));
        let late = Delayed { request, hit: decision.hit, flight };
        match self.timer.keep(late, decision.delay) {
            Kept::Yes => {}
            Kept::Stopped(late) => late.flight.go(late.request, late.hit),
            Kept::NoThread(late) => {
                shared.counters.add(FaultCounters::DELAYS_SKIPPED, 0, 1);
                late.flight.go(late.request, late.hit);
            }
        }
    }

    fn info(&self) -> &DeviceInfo {
        self.shared.inner.info()
    }

    /// As the device below, with the errors that were injected; gone after a crash.
    fn health(&self) -> Health {
        let state = self.shared.state.lock();
        let (crashed, injected) = (state.crashed, state.errors);
        drop(state);
        match self.shared.inner.health() {
            _ if crashed => Health::Gone,
            Health::Gone => Health::Gone,
            Health::Healthy if injected == 0 => Health::Healthy,
            Health::Healthy => Health::Degraded { errors: injected },
            Health::Degraded { errors } => Health::Degraded { errors: errors + injected },
        }
    }

    /// Those of the device below and [`FaultCounters`].
    fn stats(&self) -> DeviceStats {
        let mut stats = self.shared.inner.stats();
        let own = self.shared.counters.snapshot().into_iter();
        stats.counters.extend(own.map(|c| (c.name, c.label.unwrap_or(""), c.value)));
        stats
    }

    fn help(&self, waiter: &Waiter) {
        // What the timer handed on ends without the waiting thread's help, or is still here; a
        // device that waits for its own work only would not see that.
        if !self.timer.is_used() {
            self.shared.inner.help(waiter);
        }
    }

    /// Delays end now.
    fn close(&self) {
        self.shared.state.lock().closed = true;
        self.land();
        self.shared.inner.close();
    }
}

impl Drop for FaultDevice {
    fn drop(&mut self) {
        self.timer.stop();
    }
}

impl fmt::Debug for FaultDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volatile_bytes = self.volatile_bytes();
        let state = self.shared.state.lock();
        f.debug_struct("FaultDevice")
            .field("device", &self.info().name)
            .field("flying", &state.flying)
            .field("volatile_bytes", &volatile_bytes)
            .field("closed", &state.closed)
            .field("crashed", &state.crashed)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Whether the device below would take it. If not, it says so better than this one could.
    fn is_formed(&self, request: &Request) -> bool {
        let info = self.inner.info();
        let (offset, len) = (request.offset(), request.len());
        let sector = u64::from(info.sector_bytes);
        let placed = len > 0
            && offset % sector == 0
            && len % sector == 0
            && request.end().is_some_and(|end| end <= info.size_bytes);
        match request.op() {
            Op::Read => placed,
            Op::Flush => !info.read_only,
            Op::Write | Op::Discard => placed && !info.read_only,
        }
    }

    fn refusal(&self, state: &State, request: &Request) -> Option<Error> {
        let (kind, text) = if state.crashed {
            self.counters.add(FaultCounters::REFUSED_CRASHED, 0, 1);
            (ErrorKind::Gone, "the device has crashed; open it again")
        } else if state.closed {
            (ErrorKind::Closed, "the device is closed; open it again")
        } else {
            return None;
        };
        let range = (request.offset(), request.len());
        Some(Error::new(kind, request.op(), &self.inner.info().name, range, text))
    }

    fn system_error(&self, request: &Request, errno: i32) -> Error {
        let range = (request.offset(), request.len());
        Error::system(request.op(), &self.inner.info().name, range, errno)
    }

    fn no_memory(&self, op: Op, range: (u64, u64), error: &AllocError) -> Error {
        let text = format!("the fault device has no memory for a buffer: {error}");
        Error::new(ErrorKind::Device, op, &self.inner.info().name, range, &text)
    }

    fn count(&self, fault: Fault) {
        self.counters.add(FaultCounters::FAULTS_INJECTED, fault.label(), 1);
    }

    fn count_error(&self) {
        self.state.lock().errors += 1;
    }
}

impl Flight {
    /// Executes a request, with its fault if there is one.
    fn go(self, request: Request, hit: Option<Hit>) {
        let refusal = {
            let state = self.shared.state.lock();
            // Closing lets go what was accepted before; a crash does not.
            if state.crashed { self.shared.refusal(&state, &request) } else { None }
        };
        if let Some(error) = refusal {
            return request.finish(Err(error));
        }
        let Some(Hit { fault, range, rng }) = hit else {
            return self.execute(request);
        };
        self.shared.count(fault);
        match fault {
            Fault::Error(errno) => {
                self.shared.count_error();
                let error = self.shared.system_error(&request, errno);
                request.finish(Err(error));
            }
            Fault::ErrorAfter(errno) => {
                self.shared.count_error();
                let error = self.shared.system_error(&request, errno);
                self.execute(request.layered(move |completion| {
                    if completion.result.is_ok() {
                        completion.result = Err(error);
                    }
                }));
            }
            Fault::Rot { bits } => {
                self.execute(request.layered(move |completion| rot(completion, bits, &range, rng)));
            }
            Fault::Lost => request.finish(Ok(())),
            Fault::Volatile => self.write_volatile(request, true),
            Fault::Torn { reported } => self.write_torn(request, reported, rng),
            Fault::Delay(_) => unreachable!("delays are over when a request is executed"),
        }
    }

    /// Executes a request as it is, with what is in the cache.
    fn execute(self, request: Request) {
        match request.op() {
            Op::Read => {
                let bytes = request.offset()..request.offset() + request.len();
                let over = self.shared.state.lock().volatile.over(&bytes);
                if over.is_empty() {
                    return self.hand_on(request);
                }
                // As it was now: whatever comes meanwhile may be seen or not.
                self.hand_on(request.layered(move |completion| overlay(completion, &over)));
            }
            Op::Write => self.write_volatile(request, false),
            Op::Flush => self.flush(request),
            // What is in the cache may stay: a discarded sector may read as what it was.
            Op::Discard => self.hand_on(request),
        }
    }

    fn hand_on(self, request: Request) {
        let inner = Arc::clone(&self.shared.inner);
        inner.submit(request.layered(move |_| drop(self)));
    }

    /// Puts a write into the cache, if it is to go there or touches what is there.
    fn write_volatile(self, request: Request, wanted: bool) {
        let bytes = request.offset()..request.offset() + request.len();
        let mut state = self.shared.state.lock();
        let must = state.volatile.overlaps(&bytes);
        let room = state.volatile.has_room(request.len());
        if wanted && !must && !room {
            self.shared.counters.add(FaultCounters::VOLATILE_OVERFLOWS, 0, 1);
        }
        match request.payload() {
            Some(payload) if must || (wanted && room) => {
                state.volatile.store(request.offset(), payload.bytes());
                drop(state);
                request.finish(Ok(()));
            }
            _ => {
                drop(state);
                self.hand_on(request);
            }
        }
    }

    /// Writes a beginning of the request, and perhaps a damaged sector after it.
    fn write_torn(self, request: Request, reported: bool, mut rng: SmallRng) {
        let shared = Arc::clone(&self.shared);
        let result = if reported {
            shared.count_error();
            Err(shared.system_error(&request, MEDIUM_ERROR))
        } else {
            Ok(())
        };
        let sector_bytes = u64::from(shared.inner.info().sector_bytes);
        let cut = rng.below(request.len());
        let whole = cut - cut % sector_bytes;
        let written = if rng.below(2) == 0 { whole } else { whole + sector_bytes };
        let Some(payload) = request.payload().filter(|_| written > 0) else {
            return request.finish(result);
        };
        let mut part = match shared.scratch.alloc(written as usize) {
            Ok(part) => part,
            Err(error) => {
                let range = (request.offset(), request.len());
                return request.finish(Err(shared.no_memory(Op::Write, range, &error)));
            }
        };
        part.copy_from_slice(&payload.bytes()[..written as usize]);
        if written > whole {
            part[cut as usize..].iter_mut().for_each(|byte| *byte = !*byte);
        }
        self.write_part(request, part, result);
    }

    /// Writes `part` instead of what `request` has, which then ends with `result`.
    fn write_part(self, request: Request, part: Buffer, result: Result<(), Error>) {
        let offset = request.offset();
        let mut state = self.shared.state.lock();
        if state.volatile.overlaps(&(offset..offset + part.len() as u64)) {
            state.volatile.store(offset, &part);
            drop(state);
            return request.finish(result);
        }
        drop(state);
        let inner = Arc::clone(&self.shared.inner);
        let write = Request::write(offset, part).with_priority(request.priority());
        inner.submit(write.on_done(move |completion| {
            request.finish(completion.result.and(result));
            drop(self);
        }));
    }
}

/// Flips bits of what was read, within `range` of the device.
fn rot(completion: &mut Completion, bits: u32, range: &Range<u64>, mut rng: SmallRng) {
    let start = (range.start - completion.offset) as usize;
    let end = (range.end - completion.offset) as usize;
    if completion.result.is_err() {
        return;
    }
    if let Some(bytes) = completion.payload.as_mut().and_then(|payload| payload.bytes_mut()) {
        for _ in 0..bits {
            let bit = rng.below((end - start) as u64 * 8);
            bytes[start + (bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

/// Puts whole sectors over what was read.
fn overlay(completion: &mut Completion, over: &[(u64, Arc<Vec<u8>>)]) {
    let offset = completion.offset;
    if let Some(bytes) = completion.payload.as_mut().and_then(|payload| payload.bytes_mut()) {
        for (at, sector) in over {
            // Sectors of requests are whole.
            let start = (at - offset) as usize;
            bytes[start..start + sector.len()].copy_from_slice(sector);
        }
    }
}
