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

use crate::tunables::LevelTunables;

/// How often who waits looks at the clock.
const TICK: Duration = Duration::from_millis(20);
/// Requests of one thread that are on their way at once.
const FLIGHT: usize = 32;

/// Why something could not be read or written.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The device said so.
    Device(forebay_io::Error),
    /// It did not end in time.
    Stalled(String),
    /// No memory to read into.
    NoMemory(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Stalled(what) => write!(f, "{what} has not ended in time"),
            Self::NoMemory(why) => write!(f, "no memory: {why}"),
        }
    }
}

/// The device of a level.
pub(crate) struct Medium {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Arc<LevelTunables>,
    /// Writes that were submitted and have not ended, those that nobody waits for any more included.
    pub(crate) writes_out: Arc<AtomicU64>,
}

/// Where the ends of some requests are left.
struct Landing {
    ends: Mutex<Vec<(usize, Completion)>>,
    landed: Condvar,
}

impl Medium {
    /// Memory for a request.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<Buffer, Trouble> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.arena.alloc(len).map_err(|error| Trouble::NoMemory(error.to_string()))
    }

    /// Submits a request and waits for its end.
    pub(crate) fn run(&self, request: Request) -> Result<Completion, Trouble> {
        let what = format!("{} of {}", request.op(), self.device.info().name);
        let mut end = None;
        let one = std::iter::once(Ok(request));
        self.run_all(1, one, &what, |_, completion| end = Some(completion));
        let completion = end.expect("every request is told of")?;
        match completion.result {
            Ok(()) => Ok(completion),
            Err(error) => Err(Trouble::Device(error)),
        }
    }

    /// Reads some bytes.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Result<Buffer, Trouble> {
        let request = Request::read(offset, self.alloc(bytes)?);
        let completion = self.run(request.with_priority(Priority::AsyncRead))?;
        completion.into_buffer().map_err(Trouble::Device)
    }

    /// Writes a buffer, and gives it back.
    pub(crate) fn write(&self, offset: u64, buffer: Buffer) -> Result<Option<Buffer>, Trouble> {
        let completion = self.run(Request::write(offset, buffer))?;
        Ok(completion.payload.and_then(forebay_io::Payload::into_buffer))
    }

    /// Waits until no write is on its way any more, as long as one may take. Nobody may begin another meanwhile. False if one
    /// still is.
    pub(crate) fn wait_for_writes(&self) -> bool {
        let allowed = u64::from(self.tunables.stall_timeout_ms()) * 1_000_000;
        let begun = self.clock.now_ns();
        let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
        while self.writes_out.load(Ordering::Acquire) > 0 {
            if self.clock.now_ns().saturating_sub(begun) > allowed {
                return false;
            }
            condition.wait_timeout(&mut nobody.lock(), TICK);
        }
        true
    }

    /// Makes durable what was written.
    pub(crate) fn flush(&self) -> Result<(), Trouble> {
        self.run(Request::flush()).map(drop)
    }

    /// Reads several ranges, some at once; `each` gets them as they come, with their numbers.
    pub(crate) fn read_each(
        &self,
        ranges: impl Iterator<Item = (u64, u64)>,
        each: impl FnMut(usize, Result<Buffer, Trouble>),
    ) {
        self.read_some(FLIGHT, ranges, each);
    }

    /// The same, with so many at once.
    pub(crate) fn read_some(
        &self,
        at_once: usize,
        ranges: impl Iterator<Item = (u64, u64)>,
        mut each: impl FnMut(usize, Result<Buffer, Trouble>),
    ) {
        let what = format!("read of {}", self.device.info().name);
        let requests = ranges.map(|(offset, bytes)| {
            let request = Request::read(offset, self.alloc(bytes)?);
            Ok(request.with_priority(Priority::AsyncRead))
        });
        self.run_all(at_once, requests, &what, |number, completion| {
            each(number, completion.and_then(|c| c.into_buffer().map_err(Trouble::Device)));
        });
    }

    /// Submits requests, `at_once` of them at once, and tells of each end once. Once the time is over for one, it is for all
    /// that are left.
    fn run_all(
        &self,
        at_once: usize,
        requests: impl Iterator<Item = Result<Request, Trouble>>,
        what: &str,
        mut each: impl FnMut(usize, Result<Completion, Trouble>),
    ) {
        let landing =
            Arc::new(Landing { ends: Mutex::named("l2-io", Vec::new()), landed: Condvar::new() });
        let allowed = u64::from(self.tunables.stall_timeout_ms()) * 1_000_000;
        let mut requests = requests.enumerate().fuse();
        let mut flying: Vec<usize> = Vec::new();
        let (mut last_end, mut over) = (self.clock.now_ns(), false);
        loop {
            while flying.len() < at_once {
                let Some((number, request)) = requests.next() else { break };
                match request {
                    Err(trouble) => each(number, Err(trouble)),
                    Ok(_) if over => each(number, Err(Trouble::Stalled(what.to_owned()))),
                    Ok(request) => {
                        flying.push(number);
                        let landing = Arc::clone(&landing);
                        let write =
                            (request.op() == Op::Write).then(|| Arc::clone(&self.writes_out));
                        write.iter().for_each(|out| _ = out.fetch_add(1, Ordering::AcqRel));
                        self.device.submit(request.on_done(move |completion| {
                            write.iter().for_each(|out| _ = out.fetch_sub(1, Ordering::AcqRel));
                            landing.ends.lock().push((number, completion));
                            landing.landed.notify_all();
                        }));
                    }
                }
            }
            if flying.is_empty() {
                return;
            }
            let mut ends = landing.ends.lock();
            if ends.is_empty() {
                landing.landed.wait_timeout(&mut ends, TICK);
            }
            let ended = std::mem::take(&mut *ends);
            drop(ends);
            let now = self.clock.now_ns();
            if ended.is_empty() && now.saturating_sub(last_end) > allowed {
                over = true;
                for number in flying.drain(..) {
                    each(number, Err(Trouble::Stalled(what.to_owned())));
                }
            }
            if ended.is_empty() {
                continue;
            }
            for (number, completion) in ended {
                flying.retain(|flying| *flying != number);
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
    fn the_time_that_callers_take_is_not_the_devices() {
        let memory = MemoryDevice::new("memory", 8 << 20, &MemoryOptions::default()).unwrap();
        let faults = FaultDevice::new(Arc::new(memory), 1);
        faults.add(Rule::new(Fault::Delay(Duration::from_millis(200))).within(4096..8192));
        let config = ArenaConfig { limit_bytes: 16 << 20, huge_pages: HugePages::Never };
        let clock = Arc::new(ManualClock::new());
        let medium = Medium {
            device: Arc::new(faults),
            arena: Arena::new(config).unwrap(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            tunables: Arc::new(LevelTunables::default()),
            writes_out: Arc::default(),
        };
        let mut read = Vec::new();
        medium.read_some(2, [(0, 4096), (4096, 4096)].into_iter(), |number, buffer| {
            buffer.unwrap();
            read.push(number);
            clock.advance(u64::from(medium.tunables.stall_timeout_ms()) * 2_000_000);
        });
        assert_eq!(read, [0, 1]);
    }
}
