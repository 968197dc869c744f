//! A decorator that injects faults: errors, bit rot, torn and lost writes, a volatile cache that a
//! crash may lose, delays.
//!
//! [`Rule`]s select the requests for each [`Fault`]. They can be added and removed at any time.
//! Each injected fault is counted and listed, so a test can check what was injected.
//!
//! A request is matched against the rules (`rule`) and may be delayed (`timer`). Then it is
//! executed as the rules say: forwarded, changed, completed, or stored in the cache
//! (`volatile_cache`). A flush first writes the cache to the medium (`flush`).
//!
//! # Invariants
//!
//! - Every request completes exactly once, below or here, even if the device below fails everything
//!   during a flush.
//! - `in_flight` counts accepted requests that have not completed. Closing and crashing wait until
//!   it is zero.
//! - Reads see the last acknowledged content, on the medium or in the cache. A cached sector is
//!   newer than the medium's.
//!
//! # Locking
//!
//! `fault-state` for a decision or a look at the cache; `fault-timer` for the list of delays.
//! Neither is held while the device below is called, and no thread holds both.
//!
//! Not done: realistic statistics of faults, and speed. Malformed requests meet no rules.

mod counters;
mod crash;
mod flush;
mod rule;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod timer;
mod volatile_cache;

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
use flush::PendingFlushes;
use rule::{PlannedFault, Rules};
use timer::{Scheduled, Timer};
use volatile_cache::VolatileCache;

/// Most bytes of writes in the volatile cache.
const VOLATILE_BYTES: u64 = 64 << 20;
/// Bytes of buffers for the device's own writes.
const SCRATCH_BYTES: u64 = 128 << 20;
/// Error number of an I/O error.
const EIO: i32 = 5;

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
    shared: Arc<FaultShared>,
    timer: Timer<Delayed>,
}

struct FaultShared {
    inner: Arc<dyn Device>,
    state: Mutex<FaultState>,
    // No request is in flight any more.
    idle: Condvar,
    counters: FaultCounters,
    scratch: Arc<Arena>,
}

struct FaultState {
    rules: Rules,
    volatile: VolatileCache,
    pending_flushes: PendingFlushes,
    in_flight: u64,
    errors: u64,
    closed: bool,
    crashed: bool,
}

/// Counts an accepted request until it is dropped.
struct InFlightGuard {
    shared: Arc<FaultShared>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.in_flight -= 1;
        if state.in_flight == 0 {
            self.shared.idle.notify_all();
        }
    }
}

struct Delayed {
    request: Request,
    planned: Option<PlannedFault>,
    guard: InFlightGuard,
}

impl FaultDevice {
    /// Creates a device over `inner` without rules. All random choices depend on `seed`.
    ///
    /// # Panics
    /// If the system refuses address space for its buffers.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        let config = ArenaConfig { limit_bytes: SCRATCH_BYTES, huge_pages: HugePages::Never };
        let scratch = Arena::new(config).expect("address space for a small arena");
        let state = FaultState {
            rules: Rules::new(seed),
            volatile: VolatileCache::new(inner.info().sector_bytes, VOLATILE_BYTES),
            pending_flushes: PendingFlushes::default(),
            in_flight: 0,
            errors: 0,
            closed: false,
            crashed: false,
        };
        let shared = Arc::new(FaultShared {
            inner,
            state: Mutex::named("fault-state", state),
            idle: Condvar::new(),
            counters: FaultCounters::new(),
            scratch,
        });
        let timer = Timer::new(|late: Delayed| late.guard.start(late.request, late.planned));
        Self { shared, timer }
    }

    /// Adds a rule after the existing ones. Delays add up. Of the other faults, a request meets the
    /// first.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.state.lock().rules.add(rule)
    }

    /// Removes a rule, and returns how often it fired. `None` if there is no such rule.
    pub fn remove(&self, rule: RuleId) -> Option<u64> {
        self.shared.state.lock().rules.remove(rule)
    }

    /// Removes all rules, and forwards delayed requests. The volatile cache keeps its content until
    /// it is flushed.
    pub fn clear(&self) {
        self.shared.state.lock().rules.clear();
        self.timer.expire_all();
    }

    /// Returns the latest faults, the oldest first. All faults are counted ([`Device::stats`]),
    /// about a thousand are listed.
    pub fn injected(&self) -> Vec<Injected> {
        self.shared.state.lock().rules.injected()
    }

    /// Returns its own counters.
    pub fn counters(&self) -> &FaultCounters {
        &self.shared.counters
    }

    /// Returns the acknowledged bytes that a crash may lose.
    pub fn volatile_bytes(&self) -> u64 {
        let state = self.shared.state.lock();
        state.volatile.len() as u64 * u64::from(self.info().sector_bytes)
    }

    /// Forwards delayed requests, and waits until all requests have completed. In a callback it
    /// does not wait.
    fn drain(&self) {
        self.timer.stop();
        if crate::in_callback() {
            return;
        }
        let mut state = self.shared.state.lock();
        while state.in_flight > 0 {
            self.shared.idle.wait(&mut state);
        }
    }
}

impl Device for FaultDevice {
    fn submit(&self, request: Request) {
        let shared = &self.shared;
        if !shared.is_well_formed(&request) {
            return shared.inner.submit(request);
        }
        let mut state = shared.state.lock();
        if let Some(error) = shared.refusal(&state, &request) {
            drop(state);
            return request.finish(Err(error));
        }
        state.in_flight += 1;
        let decision = state.rules.decide(&request, self.timer.now_ns());
        // With the lock: if `clear` removes the rules later, it also forwards this request.
        let expirations = self.timer.expirations();
        drop(state);
        let guard = InFlightGuard { shared: Arc::clone(shared) };
        if decision.delay.is_zero() {
            return guard.start(request, decision.planned);
        }
        shared.count(Fault::Delay(decision.delay));
        let late = Delayed { request, planned: decision.planned, guard };
        match self.timer.schedule(late, decision.delay, expirations) {
            Scheduled::Accepted => {}
            Scheduled::Stopped(late) => late.guard.start(late.request, late.planned),
            Scheduled::NoThread(late) => {
                shared.counters.add(FaultCounters::DELAYS_SKIPPED, 0, 1);
                late.guard.start(late.request, late.planned);
            }
        }
    }

    fn info(&self) -> &DeviceInfo {
        self.shared.inner.info()
    }

    /// The health of the device below, plus injected errors. Gone after a crash.
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

    /// The counters of the device below, and [`FaultCounters`].
    fn stats(&self) -> DeviceStats {
        let mut stats = self.shared.inner.stats();
        let own = self.shared.counters.snapshot().into_iter();
        stats.counters.extend(own.map(|c| (c.name, c.label.unwrap_or(""), c.value)));
        stats
    }

    fn help(&self, waiter: &Waiter) {
        // Requests forwarded by the timer complete without this thread's help, or are still here. A
        // device that waits only for its own work would not see that.
        if !self.timer.is_used() {
            self.shared.inner.help(waiter);
        }
    }

    fn retry_flushes(&self) {
        self.shared.inner.retry_flushes();
    }

    fn unplug(&self) {
        self.shared.inner.unplug();
    }

    /// Ends delays now.
    fn close(&self) {
        self.shared.state.lock().closed = true;
        self.drain();
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
            .field("in_flight", &state.in_flight)
            .field("volatile_bytes", &volatile_bytes)
            .field("closed", &state.closed)
            .field("crashed", &state.crashed)
            .finish_non_exhaustive()
    }
}

impl FaultShared {
    /// Returns whether the device below would accept the request. If not, that device reports the
    /// better error.
    fn is_well_formed(&self, request: &Request) -> bool {
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

    fn refusal(&self, state: &FaultState, request: &Request) -> Option<Error> {
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

impl InFlightGuard {
    /// Executes a request, with its planned fault if there is one.
    fn start(self, request: Request, planned: Option<PlannedFault>) {
        let refusal = {
            let state = self.shared.state.lock();
            // Closing lets accepted requests continue. A crash does not.
            if state.crashed { self.shared.refusal(&state, &request) } else { None }
        };
        if let Some(error) = refusal {
            return request.finish(Err(error));
        }
        let Some(PlannedFault { fault, range, rng }) = planned else {
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
                self.execute(
                    request.layered(move |completion| flip_bits(completion, bits, &range, rng)),
                );
            }
            Fault::Lost => request.finish(Ok(())),
            Fault::Volatile => self.write_volatile(request, true),
            Fault::Torn { reported } => self.write_torn(request, reported, rng),
            Fault::Delay(_) => unreachable!("a delay is over when a request is executed"),
        }
    }

    /// Executes a request without fault, with regard to the cache.
    fn execute(self, request: Request) {
        match request.op() {
            Op::Read => {
                let bytes = request.offset()..request.offset() + request.len();
                let cached = self.shared.state.lock().volatile.cached_sectors(&bytes);
                if cached.is_empty() {
                    return self.forward(request);
                }
                // The cache as of now. Later writes may be seen or not.
                self.forward(request.layered(move |completion| overlay(completion, &cached)));
            }
            Op::Write => self.write_volatile(request, false),
            Op::Flush => self.flush(request),
            // The cache may keep its sectors: a discarded sector may read as before.
            Op::Discard => self.forward(request),
        }
    }

    fn forward(self, request: Request) {
        let inner = Arc::clone(&self.shared.inner);
        inner.submit(request.layered(move |_| drop(self)));
    }

    /// Stores a write in the cache, if that is `wanted` or the write overlaps the cache. Else
    /// forwards it.
    fn write_volatile(self, request: Request, wanted: bool) {
        let bytes = request.offset()..request.offset() + request.len();
        let mut state = self.shared.state.lock();
        let overlaps = state.volatile.overlaps(&bytes);
        let fits = state.volatile.has_capacity(request.len());
        if wanted && !overlaps && !fits {
            self.shared.counters.add(FaultCounters::VOLATILE_OVERFLOWS, 0, 1);
            let device = &self.shared.inner.info().name;
            tracing::warn!(%device, "the volatile cache is full; a write reaches the medium at once");
        }
        match request.payload() {
            Some(payload) if overlaps || (wanted && fits) => {
                state.volatile.store(request.offset(), payload.bytes());
                drop(state);
                request.finish(Ok(()));
            }
            _ => {
                drop(state);
                self.forward(request);
            }
        }
    }

    /// Writes the first part of the request, and perhaps a damaged sector after it.
    fn write_torn(self, request: Request, reported: bool, mut rng: SmallRng) {
        let shared = Arc::clone(&self.shared);
        let result = if reported {
            shared.count_error();
            Err(shared.system_error(&request, EIO))
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

    /// Writes `part` instead of the request's memory, then completes the request with `result`.
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

/// Flips bits of the data read, within `range` of the device.
fn flip_bits(completion: &mut Completion, bits: u32, range: &Range<u64>, mut rng: SmallRng) {
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

/// Copies whole sectors over the data read.
fn overlay(completion: &mut Completion, cached: &[(u64, Arc<Vec<u8>>)]) {
    let offset = completion.offset;
    if let Some(bytes) = completion.payload.as_mut().and_then(|payload| payload.bytes_mut()) {
        for (at, sector) in cached {
            // Requests consist of whole sectors.
            let start = (at - offset) as usize;
            bytes[start..start + sector.len()].copy_from_slice(sector);
        }
    }
}
