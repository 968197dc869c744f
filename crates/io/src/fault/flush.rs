//! Flushing the volatile cache: one flush after the other.
//!
//! A flush writes what it found in the cache, run by run, flushes the device below, and then
//! forgets what it wrote. Flushes do not overlap, since an older one could put its content over
//! that of a newer one. Each step is taken in the callback of the one before.
//!
//! A step that fails ends the flush with its error; the cache keeps everything, and the next
//! flush tries again.

use std::collections::VecDeque;

use forebay_base::sync::Arc;

use super::counters::FaultCounters;
use super::volatile::Run;
use super::{Flight, Shared};
use crate::error::Error;
use crate::request::{Op, Request};

/// The flushes that wait for another one. Bounded by those who submit them: a flush waits here
/// as it would in the device below.
#[derive(Default)]
pub(super) struct Waiting {
    running: bool,
    queue: VecDeque<Job>,
}

struct Job {
    request: Request,
    flight: Flight,
    runs: VecDeque<Run>,
    // The cache's latest write when the job began.
    number: u64,
}

impl Flight {
    /// Flushes the cache and the device below.
    pub(super) fn flush(self, request: Request) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state.lock();
        if state.volatile.is_empty() && !state.waiting.running {
            drop(state);
            return self.hand_on(request);
        }
        let job = Job { request, flight: self, runs: VecDeque::new(), number: 0 };
        state.waiting.queue.push_back(job);
        if !state.waiting.running {
            state.waiting.running = true;
            drop(state);
            shared.next_flush();
        }
    }
}

impl Shared {
    /// Begins the flush that has waited longest, if there is one.
    fn next_flush(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let Some(mut job) = state.waiting.queue.pop_front() else {
            state.waiting.running = false;
            return;
        };
        let (runs, number) = state.volatile.runs();
        drop(state);
        (job.runs, job.number) = (runs.into(), number);
        self.step(job);
    }

    /// Writes the next run of `job`, or flushes the device below after the last.
    fn step(self: &Arc<Self>, mut job: Job) {
        let Some(run) = job.runs.pop_front() else {
            return self.flush_below(job);
        };
        let sector_bytes = run.sectors[0].len();
        let len = run.sectors.len() * sector_bytes;
        let mut buffer = match self.scratch.alloc(len) {
            Ok(buffer) => buffer,
            Err(error) => {
                let error = self.no_memory(Op::Write, (run.offset, len as u64), &error);
                return self.fail(job, error);
            }
        };
        for (to, sector) in buffer.chunks_exact_mut(sector_bytes).zip(&run.sectors) {
            to.copy_from_slice(sector);
        }
        self.counters.add(FaultCounters::VOLATILE_SECTORS_FLUSHED, 0, run.sectors.len() as u64);
        let shared = Arc::clone(self);
        let write = Request::write(run.offset, buffer).with_priority(job.request.priority());
        self.inner.submit(write.on_done(move |completion| match completion.result {
            Ok(()) => shared.step(job),
            Err(error) => shared.fail(job, error),
        }));
    }

    fn flush_below(self: &Arc<Self>, job: Job) {
        let shared = Arc::clone(self);
        let Job { request, flight, number, .. } = job;
        self.inner.submit(request.layered(move |completion| {
            if completion.result.is_ok() {
                shared.state.lock().volatile.forget(number);
            }
            drop(flight);
            shared.next_flush();
        }));
    }

    fn fail(self: &Arc<Self>, job: Job, error: Error) {
        job.request.finish(Err(error));
        drop(job.flight);
        self.next_flush();
    }
}
