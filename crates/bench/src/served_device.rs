//! A device in memory that takes a known time: it serves a few reads at once, each as long as the
//! others, and writes at a fixed rate.
//!
//! A request is given the time of its end when it comes: a read waits for the first of the lanes
//! that is free, a write for the writes before it. So the device is as fast if its thread is late,
//! as long as requests wait. The thread runs before all others, if the system allows it. A flush
//! ends after all writes before it.
//!
//! Locking: the list of requests has one lock. Requests are executed and completed outside it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_io::{
    Device, DeviceInfo, DeviceStats, Health, MemoryDevice, MemoryOptions, Op, Request, Waiter,
};

use crate::measure;
use crate::options::Failure;

/// How long a device takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceTimes {
    /// Reads that are served at the same time.
    pub(crate) lanes: usize,
    /// Time of a read, of any length.
    pub(crate) read: Duration,
    /// Bytes written per second, at most.
    pub(crate) write_bytes_per_s: u64,
}

/// A device in memory with service times.
pub(crate) struct ServedDevice {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inner: MemoryDevice,
    times: ServiceTimes,
    /// Until then, requests take no time.
    serves: AtomicBool,
    written_bytes: AtomicU64,
    reads: AtomicU64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    /// By the time of their end, and number.
    requests: BTreeMap<(Instant, u64), Request>,
    next: u64,
    /// When each lane has served its last read.
    lanes: Vec<Instant>,
    /// When the last write has ended.
    written: Instant,
    closed: bool,
}

impl ServedDevice {
    /// A device that takes no time yet.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn new(
        name: &str,
        size_bytes: u64,
        times: ServiceTimes,
    ) -> Result<Arc<Self>, Failure> {
        let now = Instant::now();
        let queue = Queue {
            requests: BTreeMap::new(),
            next: 0,
            lanes: vec![now; times.lanes.max(1)],
            written: now,
            closed: false,
        };
        let shared = Arc::new(Shared {
            inner: MemoryDevice::new(name, size_bytes, &MemoryOptions::default())?,
            times,
            serves: AtomicBool::new(false),
            written_bytes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        });
        let server = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("served-device".to_owned());
        let thread = Mutex::new(Some(thread.spawn(move || server.serve())?));
        Ok(Arc::new(Self { shared, thread }))
    }

    /// From now on requests take their time.
    pub(crate) fn begin(&self) {
        self.shared.serves.store(true, Ordering::Relaxed);
    }

    /// Reads so far.
    pub(crate) fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed)
    }

    /// Bytes written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.shared.written_bytes.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes requests as they are due, until the device is closed and has none.
    fn serve(&self) {
        measure::run_first();
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            let first = queue.requests.first_key_value().map(|((due, _), _)| *due);
            match first {
                None if queue.closed => return,
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due > now && !queue.closed => {
                    let waited = self.changed.wait_timeout(queue, due - now);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {
                    let first = queue.requests.pop_first();
                    drop(queue);
                    first.into_iter().for_each(|(_, request)| self.inner.submit(request));
                    queue = self.lock();
                }
            }
        }
    }
}

impl Queue {
    /// When a request ends that comes now.
    fn due(&mut self, request: &Request, times: ServiceTimes) -> Instant {
        let now = Instant::now();
        match request.op() {
            Op::Read => {
                let lane = self.lanes.iter_mut().min();
                lane.map_or(now, |free| {
                    *free = now.max(*free) + times.read;
                    *free
                })
            }
            Op::Write => {
                let seconds = request.len() as f64 / times.write_bytes_per_s.max(1) as f64;
                self.written = now.max(self.written) + Duration::from_secs_f64(seconds);
                self.written
            }
            Op::Flush | Op::Discard => now.max(self.written),
        }
    }
}

impl Device for ServedDevice {
    fn submit(&self, request: Request) {
        let shared = &self.shared;
        if request.op() == Op::Write {
            shared.written_bytes.fetch_add(request.len(), Ordering::Relaxed);
        }
        if request.op() == Op::Read {
            shared.reads.fetch_add(1, Ordering::Relaxed);
        }
        if !shared.serves.load(Ordering::Relaxed) {
            return shared.inner.submit(request);
        }
        let mut queue = shared.lock();
        if queue.closed {
            drop(queue);
            return shared.inner.submit(request);
        }
        let key = (queue.due(&request, shared.times), queue.next);
        queue.next += 1;
        queue.requests.insert(key, request);
        let is_first = queue.requests.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(queue);
        if is_first {
            shared.changed.notify_one();
        }
    }

    fn info(&self) -> &DeviceInfo {
        self.shared.inner.info()
    }

    fn health(&self) -> Health {
        self.shared.inner.health()
    }

    fn stats(&self) -> DeviceStats {
        self.shared.inner.stats()
    }

    /// Its own thread completes requests.
    fn help(&self, _: &Waiter) {}

    fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| !forebay_io::in_callback()) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
        self.shared.inner.close();
    }
}

impl Drop for ServedDevice {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::arena::{Arena, ArenaConfig, HugePages};

    const TIMES: ServiceTimes =
        ServiceTimes { lanes: 2, read: Duration::from_micros(100), write_bytes_per_s: 40_960_000 };

    #[test]
    fn requests_queue_for_lanes_and_for_bytes() {
        let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Never });
        let buffer = || arena.as_ref().expect("an arena").alloc(4096).expect("memory");
        let begun = Instant::now() + Duration::from_secs(3600);
        let lanes = vec![begun; 2];
        let mut queue =
            Queue { requests: BTreeMap::new(), next: 0, lanes, written: begun, closed: false };
        let mut after_us = |request: &Request| (queue.due(request, TIMES) - begun).as_micros();
        let reads: Vec<_> = (0..5).map(|_| after_us(&Request::read(0, buffer()))).collect();
        assert_eq!(reads, [100, 100, 200, 200, 300]);
        let writes: Vec<_> = (0..2).map(|_| after_us(&Request::write(0, buffer()))).collect();
        assert_eq!(writes, [100, 200]);
        assert_eq!(after_us(&Request::flush()), 200);
    }

    #[test]
    fn a_device_that_closes_ends_what_waits() {
        let slow = ServiceTimes { read: Duration::from_secs(3600), ..TIMES };
        let device = ServedDevice::new("slow", 1 << 20, slow).expect("a device");
        device.begin();
        let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Never });
        let buffer = arena.expect("an arena").alloc(4096).expect("memory");
        let (request, pending) = Request::read(0, buffer).pending();
        device.submit(request);
        device.close();
        assert!(pending.wait(&*device).result.is_ok());
    }
}
