//! Flushes that the thread which waits for them executes itself.
//!
//! io_uring hands a flush to a thread of the kernel's, and whoever waits for it is woken by that. A thread that has nothing else to do can
//! as well make the call that blocks: two changes of threads less for every commit of a log.
//!
//! It takes no permit and waits in no queue: a flush moves no bytes that others would have to wait for, and the file lets one at a time come here
//! ([`crate::file`]). Its lane counts it as something whose end is to be told, so a close waits for it.
//!
//! Locking: `io-queue`, before and after the call.

use super::core::{Backend, Core};
use super::transfer::Transfer;
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::queue::{Operation, Requests};
use crate::request::{Op, Request};

impl<B: Backend> Core<B> {
    /// Executes an attended flush. Hands back what is to go through the queue like all others.
    pub(super) fn execute_inline(&self, request: Request) -> Option<Request> {
        let fits = request.op() == Op::Flush && request.is_inline_allowed();
        if !fits || in_callback() || self.info.read_only || request.is_cancelled() {
            return Some(request);
        }
        let Some(blocking) = self.backend.blocking() else { return Some(request) };
        let (queue, _) = self.queue_of_caller();
        let mut state = self.lock(queue);
        if state.closed {
            // Refused there.
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
