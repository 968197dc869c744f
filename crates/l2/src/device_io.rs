//! Blocking I/O with a time limit, for the L2's own threads.
//!
//! A request that exceeds the limit is *stalled*. It keeps its memory until it completes, which may
//! be never. The thread that waited continues without it.
//!
//! Locking: `l2-io`, a leaf lock. It is held to push a completion or to take completions.

use std::time::Duration;

use forebay_base::arena::{Arena, Buffer};
use forebay_base::clock::Clock;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_io::{Completion, Device, Op, Priority, Request};

use crate::tunables::L2Tunables;

/// How often a waiting thread checks the clock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often a thread waits for memory before it gives up.
pub(crate) const MEMORY_WAITS: u32 = 40;
/// Duration of one wait for memory.
const MEMORY_WAIT: Duration = Duration::from_millis(50);
/// Maximum requests of one thread in flight.
const MAX_IN_FLIGHT: usize = 32;

/// Why a read or write failed.
#[derive(Debug)]
pub(crate) enum IoError {
    /// The device returned an error.
    Device(forebay_io::Error),
    /// The request exceeded the time limit.
    Stalled(String),
    /// No memory was free for the buffer.
    NoMemory(String),
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Stalled(what) => write!(f, "{what} did not complete in time"),
            Self::NoMemory(why) => write!(f, "no memory for the buffer: {why}"),
        }
    }
}

/// The device of an L2, with the arena, clock and tunables of its I/O.
pub(crate) struct DeviceIo {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Arc<L2Tunables>,
    /// Writes submitted and not completed, stalled ones included.
    pub(crate) writes_in_flight: Arc<AtomicU64>,
}

/// Completions of the requests that one thread waits for.
struct Completions {
    done: Mutex<Vec<(usize, Completion)>>,
    arrived: Condvar,
}

impl DeviceIo {
    /// Allocates a buffer for a request.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<Buffer, IoError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.arena.alloc(len).map_err(|error| IoError::NoMemory(error.to_string()))
    }

    /// Waits for other threads to release memory.
    pub(crate) fn wait_for_memory(&self) {
        let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
        condition.wait_timeout(&mut nobody.lock(), MEMORY_WAIT);
    }

    /// Submits a request and waits for its completion.
    pub(crate) fn run(&self, request: Request) -> Result<Completion, IoError> {
        let what = format!("{} of {}", request.op(), self.device.info().name);
        let mut end = None;
        let one = std::iter::once(Ok(request));
        self.run_all(1, one, &what, |_, completion| end = Some(completion));
        let completion = end.expect("run_all reports every request")?;
        match completion.result {
            Ok(()) => Ok(completion),
            Err(error) => Err(IoError::Device(error)),
        }
    }

    /// Reads `bytes` bytes at `offset`.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Result<Buffer, IoError> {
        let request = Request::read(offset, self.alloc(bytes)?);
        let completion = self.run(request.with_priority(Priority::AsyncRead))?;
        completion.into_buffer().map_err(IoError::Device)
    }

    /// Writes a buffer and returns it.
    pub(crate) fn write(&self, offset: u64, buffer: Buffer) -> Result<Option<Buffer>, IoError> {
        let completion = self.run(Request::write(offset, buffer))?;
        Ok(completion.payload.and_then(forebay_io::Payload::into_buffer))
    }

    /// Waits until no write is in flight, at most `stall_timeout_ms`. The caller ensures that no
    /// other write begins.
    pub(crate) fn wait_for_writes(&self) {
        let allowed = u64::from(self.tunables.stall_timeout_ms()) * 1_000_000;
        let begun = self.clock.now_ns();
        let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
        while self.writes_in_flight.load(Ordering::Acquire) > 0 {
            if self.clock.now_ns().saturating_sub(begun) > allowed {
                return;
            }
            condition.wait_timeout(&mut nobody.lock(), POLL_INTERVAL);
        }
    }

    /// Makes all completed writes durable.
    pub(crate) fn flush(&self) -> Result<(), IoError> {
        self.run(Request::flush()).map(drop)
    }

    /// Reads several ranges concurrently. `each` receives each result with the number of its range,
    /// in order of completion.
    pub(crate) fn read_ranges(
        &self,
        ranges: impl Iterator<Item = (u64, u64)>,
        each: impl FnMut(usize, Result<Buffer, IoError>),
    ) {
        self.read_ranges_limited(MAX_IN_FLIGHT, ranges, each);
    }

    /// Like [`read_ranges`](Self::read_ranges), with at most `max_in_flight` reads in flight.
    pub(crate) fn read_ranges_limited(
        &self,
        max_in_flight: usize,
        ranges: impl Iterator<Item = (u64, u64)>,
        mut each: impl FnMut(usize, Result<Buffer, IoError>),
    ) {
        let what = format!("read of {}", self.device.info().name);
        let requests = ranges.map(|(offset, bytes)| {
            let request = Request::read(offset, self.alloc(bytes)?);
            Ok(request.with_priority(Priority::AsyncRead))
        });
        self.run_all(max_in_flight, requests, &what, |number, completion| {
            each(number, completion.and_then(|c| c.into_buffer().map_err(IoError::Device)));
        });
    }

    /// Submits requests, at most `max_in_flight` at a time, and reports each completion once. If
    /// one request stalls, all remaining requests are reported as stalled.
    fn run_all(
        &self,
        max_in_flight: usize,
        requests: impl Iterator<Item = Result<Request, IoError>>,
        what: &str,
        mut each: impl FnMut(usize, Result<Completion, IoError>),
    ) {
        let completions = Arc::new(Completions {
            done: Mutex::named("l2-io", Vec::new()),
            arrived: Condvar::new(),
        });
        let allowed = u64::from(self.tunables.stall_timeout_ms()) * 1_000_000;
        let mut requests = requests.enumerate().fuse();
        let mut in_flight: Vec<usize> = Vec::new();
        let (mut last_end, mut timed_out) = (self.clock.now_ns(), false);
        loop {
            while in_flight.len() < max_in_flight {
                let Some((number, request)) = requests.next() else { break };
                match request {
                    Err(error) => each(number, Err(error)),
                    Ok(_) if timed_out => each(number, Err(IoError::Stalled(what.to_owned()))),
                    Ok(request) => {
                        in_flight.push(number);
                        let completions = Arc::clone(&completions);
                        let write =
                            (request.op() == Op::Write).then(|| Arc::clone(&self.writes_in_flight));
                        write.iter().for_each(|out| _ = out.fetch_add(1, Ordering::AcqRel));
                        self.device.submit(request.on_done(move |completion| {
                            write.iter().for_each(|out| _ = out.fetch_sub(1, Ordering::AcqRel));
                            completions.done.lock().push((number, completion));
                            completions.arrived.notify_all();
                        }));
                    }
                }
            }
            if in_flight.is_empty() {
                return;
            }
            let mut done = completions.done.lock();
            if done.is_empty() {
                completions.arrived.wait_timeout(&mut done, POLL_INTERVAL);
            }
            let finished = std::mem::take(&mut *done);
            drop(done);
            let now = self.clock.now_ns();
            if finished.is_empty() && now.saturating_sub(last_end) > allowed {
                timed_out = true;
                for number in in_flight.drain(..) {
                    each(number, Err(IoError::Stalled(what.to_owned())));
                }
            }
            if finished.is_empty() {
                continue;
            }
            for (number, completion) in finished {
                in_flight.retain(|in_flight| *in_flight != number);
                each(number, Ok(completion));
            }
            // Taken after the callbacks: their time does not count against the device.
            last_end = self.clock.now_ns();
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::arena::{ArenaConfig, HugePages};
    use forebay_base::clock::ManualClock;
    use forebay_io::fault::{Fault, FaultDevice, Rule};
    use forebay_io::{MemoryDevice, MemoryOptions};

    use super::*;

    #[test]
    fn time_spent_in_callbacks_does_not_count_as_a_stall() {
        let memory = MemoryDevice::new("memory", 8 << 20, &MemoryOptions::default()).unwrap();
        let faults = FaultDevice::new(Arc::new(memory), 1);
        faults.add(Rule::new(Fault::Delay(Duration::from_millis(200))).within(4096..8192));
        let config = ArenaConfig { limit_bytes: 16 << 20, huge_pages: HugePages::Never };
        let clock = Arc::new(ManualClock::new());
        let io = DeviceIo {
            device: Arc::new(faults),
            arena: Arena::new(config).unwrap(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            tunables: Arc::new(L2Tunables::default()),
            writes_in_flight: Arc::default(),
        };
        let mut read = Vec::new();
        io.read_ranges_limited(2, [(0, 4096), (4096, 4096)].into_iter(), |number, buffer| {
            buffer.unwrap();
            read.push(number);
            clock.advance(u64::from(io.tunables.stall_timeout_ms()) * 2_000_000);
        });
        assert_eq!(read, [0, 1]);
    }
}
