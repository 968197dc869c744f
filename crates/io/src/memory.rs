//! A device in memory, with an optional latency: for tests, and for measuring the layers above.
//!
//! Content is sparse unless `populated`: a chunk is allocated by its first write, and unwritten
//! bytes read as zero. Requests go through the same submission queues as those of a file. Without
//! latency the submitting thread executes an operation. A queue's thread executes it when it is due
//! if there is a latency, if a callback submitted it, or if it waited for a permit that another
//! queue returned.
//!
//! Invariant: operations of a queue are due in the order in which they were issued.
//!
//! Locking: `io-submission-queue`; `memory-chunk`, one per chunk, a leaf lock held for one copy,
//! which makes each sector atomic. The clock is the system's: threads sleep in real time.
//!
//! There is no persistence, and no limit on memory except the device's size.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::completion::in_callback;
use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::engine::{
    Backend, Core, EndedOperation, MAX_SUBMISSION_QUEUES, QueueState, QueuedDevice, RunContext,
};
use crate::queue::{Limits, Operation};
use crate::request::{Op, Request};
use crate::tunables::IoTunables;
use crate::waiter::Waiter;

/// Bytes of a chunk: a multiple of the largest sector.
const CHUNK_BYTES: u64 = 256 << 10;
/// The smallest unit in which the system provides memory, in bytes.
const PAGE_BYTES: usize = 4 << 10;
/// Most operations that a queue's thread executes before it completes them.
const BATCH: usize = 64;

/// Options of a memory device.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Sector size in bytes: a power of two, 512 to 4096.
    pub sector_bytes: u32,
    /// Bytes that the device claims to rewrite as a whole: a power of two, up to 64 KiB. 0: one
    /// sector.
    pub physical_bytes: u32,
    /// Least duration of an operation, in nanoseconds, whatever the number in flight.
    pub latency_ns: u64,
    /// Submission queues, each with a thread. 0: one per CPU, at most 16.
    pub submission_queues: usize,
    /// Refuse writes and discards.
    pub read_only: bool,
    /// Allocate all memory at the start, so that no first write waits for cleared pages. Discards
    /// free memory all the same.
    pub populated: bool,
    /// Limits of the submission queues.
    pub tunables: Arc<IoTunables>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            sector_bytes: 512,
            physical_bytes: 0,
            latency_ns: 0,
            submission_queues: 0,
            read_only: false,
            populated: false,
            tunables: Arc::new(IoTunables::default()),
        }
    }
}

/// A device in memory. Dropping it closes it and frees its content.
pub struct MemoryDevice(QueuedDevice<MemoryBackend>);

impl MemoryDevice {
    /// Creates a device of `size_bytes`, all zero.
    ///
    /// # Errors
    /// If the system refuses a thread.
    ///
    /// # Panics
    /// If the sector size is invalid, or the size is not a positive multiple of it.
    pub fn new(name: &str, size_bytes: u64, options: &MemoryOptions) -> std::io::Result<Self> {
        let sector_bytes = options.sector_bytes;
        assert!(sector_bytes.is_power_of_two(), "invalid sector size: {sector_bytes} bytes");
        assert!((512..=4096).contains(&sector_bytes), "invalid sector size: {sector_bytes} bytes");
        let physical_bytes = options.physical_bytes.max(sector_bytes);
        assert!(
            physical_bytes.is_power_of_two() && physical_bytes <= 64 << 10,
            "invalid physical sector size: {physical_bytes} bytes"
        );
        assert!(size_bytes > 0, "the device size is 0");
        assert!(
            size_bytes.is_multiple_of(u64::from(sector_bytes)),
            "the device size is not a multiple of the sector size"
        );
        let queues = match options.submission_queues {
            0 => forebay_base::memory::cpus().clamp(1, 16),
            queues => queues.min(MAX_SUBMISSION_QUEUES),
        };
        let chunks = size_bytes.div_ceil(CHUNK_BYTES);
        let backend = MemoryBackend {
            chunks: (0..chunks)
                .map(|_| Mutex::named("memory-chunk", options.populated.then(populated)))
                .collect(),
            latency_ns: options.latency_ns,
            clock: SystemClock::new(),
            due: (0..queues).map(|_| Condvar::new()).collect(),
            stopping: AtomicBool::new(false),
        };
        let info = DeviceInfo {
            name: name.into(),
            size_bytes,
            sector_bytes,
            physical_bytes,
            read_only: options.read_only,
            direct: false,
            buffered: None,
            block_device: false,
            engine: Engine::Memory,
            append_only: None,
        };
        let data = (0..queues).map(|_| MemoryQueue::default()).collect();
        let limits = Limits::new(&options.tunables);
        let core = Core::new(backend, info, (&options.tunables, limits), data);
        let queued = QueuedDevice::new(Arc::clone(&core));
        for queue in 0..queues {
            core.spawn(&format!("io-memory-{queue}"), run_queue_thread, queue)?;
        }
        Ok(Self(queued))
    }
}

impl Device for MemoryDevice {
    fn submit(&self, request: Request) {
        self.0.submit(request);
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        self.0.submit_all(requests);
    }

    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn stats(&self) -> DeviceStats {
        self.0.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.0.help(waiter);
    }

    fn close(&self) {
        self.0.close();
    }
}

/// The content, and the state of its threads.
struct MemoryBackend {
    chunks: Box<[Mutex<Option<Box<[u8]>>>]>,
    latency_ns: u64,
    clock: SystemClock,
    /// By queue: its thread sleeps on this.
    due: Box<[Condvar]>,
    stopping: AtomicBool,
}

/// Issued operations that are not due yet.
#[derive(Default)]
struct MemoryQueue {
    due: VecDeque<(u64, Operation)>,
    /// The queue's thread sleeps without a deadline.
    sleeping: bool,
}

/// The loop of a queue's thread.
fn run_queue_thread(core: &Arc<Core<MemoryBackend>>, queue: usize) {
    let memory = &core.backend;
    let mut operations = Vec::new();
    let mut state = core.lock(queue);
    loop {
        let now = memory.clock.now_ns();
        while operations.len() < BATCH && state.data.due.front().is_some_and(|(due, _)| *due <= now)
        {
            operations.extend(state.data.due.pop_front().map(|(_, operation)| operation));
        }
        if !operations.is_empty() {
            drop(state);
            let mut ended: Vec<_> =
                operations.drain(..).map(|operation| memory.execute(operation)).collect();
            state = core.lock(queue);
            core.ended(&mut state, &mut ended);
            let (more, deferred) = core.run(&mut state, RunContext::Driver);
            drop(state);
            operations = more;
            let finished = ended.len();
            core.driving(queue, || {
                core.run_deferred(queue, deferred, RunContext::Driver);
                core.finish(&mut ended);
            });
            state = core.lock(queue);
            state.callbacks_returned(finished);
            core.notify_if_idle(&state);
            continue;
        }
        if state.sq.has_cancelled() {
            let deferred = core.take_deferred(&mut state, RunContext::Driver);
            drop(state);
            core.driving(queue, || core.run_deferred(queue, deferred, RunContext::Driver));
            state = core.lock(queue);
            continue;
        }
        if memory.stopping.load(Ordering::Acquire) {
            return;
        }
        match state.data.due.front().map(|(due, _)| due - now) {
            Some(wait_ns) => {
                memory.due[queue].wait_timeout(&mut state, Duration::from_nanos(wait_ns));
            }
            None => {
                state.data.sleeping = true;
                memory.due[queue].wait(&mut state);
                state.data.sleeping = false;
            }
        }
    }
}

impl Backend for MemoryBackend {
    type QueueData = MemoryQueue;
    /// Operations to execute at once.
    type FollowUp = Vec<Operation>;

    fn dispatch(
        core: &Core<Self>,
        state: &mut QueueState<Self>,
        context: RunContext,
    ) -> Vec<Operation> {
        let memory = &core.backend;
        let at_once =
            memory.latency_ns == 0 && context != RunContext::NonBlocking && !in_callback();
        let mut operations = Vec::new();
        let mut later = false;
        while let Some(operation) = core.next(state) {
            if at_once {
                operations.push(operation);
            } else {
                let due = memory.clock.now_ns().saturating_add(memory.latency_ns);
                state.data.due.push_back((due, operation));
                later = true;
            }
        }
        if later && state.data.sleeping && context != RunContext::Driver {
            memory.due[state.index()].notify_one();
        }
        operations
    }

    fn follow_up(core: &Core<Self>, queue: usize, mut operations: Vec<Operation>) {
        let memory = &core.backend;
        while !operations.is_empty() {
            let mut ended: Vec<_> =
                operations.drain(..).map(|operation| memory.execute(operation)).collect();
            let mut state = core.lock(queue);
            core.ended(&mut state, &mut ended);
            let (more, deferred) = core.run(&mut state, RunContext::MayBlock);
            drop(state);
            operations = more;
            core.run_deferred(queue, deferred, RunContext::MayBlock);
            let finished = ended.len();
            core.finish(&mut ended);
            let mut state = core.lock(queue);
            state.callbacks_returned(finished);
            core.notify_if_idle(&state);
        }
    }

    fn help(_core: &Core<Self>, _queue: usize, _waiter: &Waiter) {
        // The queue's thread needs no help.
    }

    fn wake_helper(_core: &Core<Self>, _queue: usize) {}

    fn run_async(core: &Core<Self>, state: &mut QueueState<Self>) {
        core.backend.due[state.index()].notify_one();
    }

    fn stop(core: &Core<Self>) {
        core.backend.stopping.store(true, Ordering::Release);
        for queue in 0..core.queues() {
            let _state = core.lock(queue);
            core.backend.due[queue].notify_all();
        }
    }
}

impl MemoryBackend {
    fn execute(&self, mut operation: Operation) -> EndedOperation {
        let mut at = operation.offset;
        match operation.op {
            Op::Flush => {}
            Op::Discard => self.discard(at, operation.len),
            op => {
                for request in operation.requests.as_mut_slice() {
                    let (len, payload) = (request.len(), request.payload_mut());
                    let payload = payload.expect("reads and writes have memory");
                    match op {
                        Op::Read => {
                            self.read(at, payload.bytes_mut().expect("a read owns its memory"));
                        }
                        _ => self.write(at, payload.bytes()),
                    }
                    at += len;
                }
            }
        }
        EndedOperation { operation, moved: 0, result: Ok(()) }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) {
        for (chunk, within, part) in parts(at, bytes.len() as u64) {
            let to = &mut bytes[part];
            match &*self.chunks[chunk].lock() {
                Some(content) => to.copy_from_slice(&content[within..within + to.len()]),
                None => to.fill(0),
            }
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        for (chunk, within, part) in parts(at, bytes.len() as u64) {
            let from = &bytes[part];
            let mut chunk = self.chunks[chunk].lock();
            let content = chunk.get_or_insert_with(|| vec![0; CHUNK_BYTES as usize].into());
            content[within..within + from.len()].copy_from_slice(from);
        }
    }

    fn discard(&self, at: u64, len: u64) {
        for (chunk, within, part) in parts(at, len) {
            let mut chunk = self.chunks[chunk].lock();
            if part.len() as u64 == CHUNK_BYTES {
                *chunk = None;
            } else if let Some(content) = &mut *chunk {
                content[within..within + part.len()].fill(0);
            }
        }
    }
}

/// Allocates a chunk whose pages are present.
fn populated() -> Box<[u8]> {
    let mut content: Box<[u8]> = vec![0; CHUNK_BYTES as usize].into();
    // The system may defer zeroed pages until the first write.
    for page in content.chunks_mut(PAGE_BYTES) {
        page[0] = std::hint::black_box(0);
    }
    content
}

/// Splits a range of the device into chunks: index of the chunk, offset in it, and part of the
/// range.
fn parts(at: u64, len: u64) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done;
        let within = here % CHUNK_BYTES;
        let part = (CHUNK_BYTES - within).min(len - done);
        let range = done as usize..(done + part) as usize;
        done += part;
        (part > 0).then_some(((here / CHUNK_BYTES) as usize, within as usize, range))
    })
}
