//! The level's device, as its own threads use it: they wait for requests, but not for ever.
//!
//! A request that takes longer than the time allowed is *stalled*. It keeps its memory until it ends, which may be
//! never; whoever waited goes on without it.
//!
//! Locking: `l2-io` is a leaf lock, held for a store or a look.

use std::time::Duration;

use forebay_base::arena::{Arena, Buffer};
use forebay_base::clock::Clock;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_io::{Completion, Device, Op, Priority, Request};

use crate::tunables::L2Tunables;

/// How often who waits looks at the clock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Requests of one thread that are on their way at once.
const MAX_IN_FLIGHT: usize = 32;

/// Why something could not be read or written.
#[derive(Debug)]
pub(crate) enum IoError {
    /// The device said so.
    Device(forebay_io::Error),
    /// It did not end in time.
    Stalled(String),
    /// No memory to read into.
    NoMemory(String),
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Stalled(what) => write!(f, "{what} has not ended in time"),
            Self::NoMemory(why) => write!(f, "no memory: {why}"),
        }
    }
}

/// The device of a level.
pub(crate) struct DeviceIo {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Arc<L2Tunables>,
    /// Writes that were submitted and have not ended, those that nobody waits for any more included.
    pub(crate) writes_in_flight: Arc<AtomicU64>,
}

/// Where the ends of some requests are left.
struct Completions {
    done: Mutex<Vec<(usize, Completion)>>,
    arrived: Condvar,
}

impl DeviceIo {
    /// Memory for a request.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<Buffer, IoError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.arena.alloc(len).map_err(|error| IoError::NoMemory(error.to_string()))
    }

    /// Submits a request and waits for its end.
    pub(crate) fn run(&self, request: Request) -> Result<Completion, IoError> {
        let what = format!("{} of {}", request.op(), self.device.info().name);
        let mut end = None;
        let one = std::iter::once(Ok(request));
        self.run_all(1, one, &what, |_, completion| end = Some(completion));
        let completion = end.expect("every request is told of")?;
        match completion.result {
            Ok(()) => Ok(completion),
            Err(error) => Err(IoError::Device(error)),
        }
    }

    /// Reads some bytes.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Result<Buffer, IoError> {
        let request = Request::read(offset, self.alloc(bytes)?);
        let completion = self.run(request.with_priority(Priority::AsyncRead))?;
        completion.into_buffer().map_err(IoError::Device)
    }

    /// Writes a buffer, and gives it back.
    pub(crate) fn write(&self, offset: u64, buffer: Buffer) -> Result<Option<Buffer>, IoError> {
        let completion = self.run(Request::write(offset, buffer))?;
        Ok(completion.payload.and_then(forebay_io::Payload::into_buffer))
    }

    /// Waits until no write is on its way any more, as long as one may take. Nobody may begin another meanwhile. False if one
    /// still is.
    pub(crate) fn wait_for_writes(&self) -> bool {
        let allowed = u64::from(self.tunables.stall_timeout_ms()) * 1_000_000;
        let begun = self.clock.now_ns();
        let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
        while self.writes_in_flight.load(Ordering::Acquire) > 0 {
            if self.clock.now_ns().saturating_sub(begun) > allowed {
                return false;
            }
            condition.wait_timeout(&mut nobody.lock(), POLL_INTERVAL);
        }
        true
    }

    /// Makes durable what was written.
    pub(crate) fn flush(&self) -> Result<(), IoError> {
        self.run(Request::flush()).map(drop)
    }

    /// Reads several ranges, some at once; `each` gets them as they come, with their numbers.
    pub(crate) fn read_ranges(
        &self,
        ranges: impl Iterator<Item = (u64, u64)>,
        each: impl FnMut(usize, Result<Buffer, IoError>),
    ) {
        self.read_ranges_limited(MAX_IN_FLIGHT, ranges, each);
    }

    /// The same, with so many at once.
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

    /// Submits requests, `max_in_flight` of them at once, and tells of each end once. Once the time is over for one, it is for all
    /// that are left.
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
            // Not before: the time that callers take is none in which the device did not answer.
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
