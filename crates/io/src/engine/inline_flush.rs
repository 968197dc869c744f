//! Inline flushes: executed by the thread that waits for them.
//!
//! io_uring hands a flush to a kernel thread, which then wakes the waiting thread. A thread that
//! has nothing else to do can make the blocking call itself. That saves two context switches per
//! commit of a log.
//!
//! An inline flush takes no permit and no slot of a queue: it moves no bytes that others would wait
//! for, and [`crate::file`] sends one flush at a time. Its queue counts it in `finishing`, so a
//! close waits for it.
//!
//! Locking: `io-submission-queue`, before and after the call.

use super::core::{Backend, Core};
use super::transfer::Transfer;
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::queue::{Operation, Requests};
use crate::request::{Op, Request};

impl<B: Backend> Core<B> {
    /// Executes a flush that allows it. Returns requests that must go through the queue.
    pub(super) fn execute_inline(&self, request: Request) -> Option<Request> {
        let fits = request.op() == Op::Flush && request.is_inline_allowed();
        if !fits || in_callback() || self.info.read_only || request.is_cancelled() {
            return Some(request);
        }
        let Some(blocking) = self.backend.blocking() else { return Some(request) };
        let (queue, _) = self.queue_of_caller();
        let mut state = self.lock(queue);
        if state.closed {
            // The queue refuses it.
            return Some(request);
        }
        state.finishing += 1;
        drop(state);
        let priority = request.priority();
        self.counters.add(IoCounters::SUBMITTED, priority.index(), 1);
        self.counters.add(IoCounters::ISSUED, priority.index(), 1);
        self.counters.add(IoCounters::INLINE_FLUSHES, 0, 1);
        let requests = Requests::One(request);
        let operation = Operation { op: Op::Flush, offset: 0, len: 0, priority, requests };
        let mut ended = vec![blocking.execute(Transfer::new(operation), &self.counters)];
        self.finish(&mut ended);
        let mut state = self.lock(queue);
        state.callbacks_returned(1);
        self.notify_if_idle(&state);
        None
    }
}
