//! Flushing the volatile cache, one flush after another.
//!
//! A flush writes the cache's content run by run, flushes the device below, and then forgets the
//! content that it wrote. Flushes do not overlap, because an older one could overwrite newer
//! content. Each step runs in the callback of the previous one.
//!
//! A failed step ends the flush with its error. The cache keeps everything, and the next flush
//! tries again.

use std::collections::VecDeque;

use forebay_base::sync::Arc;

use super::counters::FaultCounters;
use super::volatile_cache::Run;
use super::{FaultShared, InFlightGuard};
use crate::error::Error;
use crate::request::{Op, Request};

/// Flushes that wait for another one. Their submitters bound them: a flush waits here as it would
/// in the device below.
#[derive(Default)]
pub(super) struct PendingFlushes {
    running: bool,
    queue: VecDeque<FlushJob>,
}

struct FlushJob {
    request: Request,
    guard: InFlightGuard,
    runs: VecDeque<Run>,
    // The number of the cache's latest write when the job began.
    number: u64,
}

impl InFlightGuard {
    /// Flushes the cache and the device below.
    pub(super) fn flush(self, request: Request) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state.lock();
        if state.volatile.is_empty() && !state.pending_flushes.running {
            drop(state);
            return self.forward(request);
        }
        let job = FlushJob { request, guard: self, runs: VecDeque::new(), number: 0 };
        state.pending_flushes.queue.push_back(job);
        if !state.pending_flushes.running {
            state.pending_flushes.running = true;
            drop(state);
            shared.next_flush();
        }
    }
}

impl FaultShared {
    /// Begins the oldest waiting flush, if there is one.
    fn next_flush(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let Some(mut job) = state.pending_flushes.queue.pop_front() else {
            state.pending_flushes.running = false;
            return;
        };
        let (runs, number) = state.volatile.runs();
        drop(state);
        (job.runs, job.number) = (runs.into(), number);
        self.step(job);
    }

    /// Writes the next run of `job`. After the last, flushes the device below.
    fn step(self: &Arc<Self>, mut job: FlushJob) {
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

    fn flush_below(self: &Arc<Self>, job: FlushJob) {
        let shared = Arc::clone(self);
        let FlushJob { request, guard, number, .. } = job;
        self.inner.submit(request.layered(move |completion| {
            if completion.result.is_ok() {
                shared.state.lock().volatile.forget(number);
            }
            drop(guard);
            shared.next_flush();
        }));
    }

    fn fail(self: &Arc<Self>, job: FlushJob, error: Error) {
        job.request.finish(Err(error));
        drop(job.guard);
        self.next_flush();
    }
}
