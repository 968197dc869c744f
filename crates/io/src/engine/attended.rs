//! Flushes that the thread which waits for them executes itself.
//!
//! io_uring hands a flush to a thread of the kernel's, and whoever waits for it is woken by that. A thread that has nothing else to do can
//! as well make the call that blocks: two changes of threads less for every commit of a log.
//!
//! It takes no permit and waits in no queue: a flush moves no bytes that others would have to wait for, and the file lets one at a time come here
//! ([`crate::file`]). Its lane counts it as something whose end is to be told, so a close waits for it.
//!
//! Locking: `io-lane`, before and after the call.

use super::core::{Backend, Core};
use super::transfer::Transfer;
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::queue::{Issue, Pieces};
use crate::request::{Op, Request};

impl<B: Backend> Core<B> {
    /// Executes an attended flush. Hands back what is to go through the queue like all others.
    pub(super) fn execute_attended(&self, request: Request) -> Option<Request> {
        let fits = request.op() == Op::Flush && request.is_attended();
        if !fits || in_callback() || self.info.read_only || request.is_cancelled() {
            return Some(request);
        }
        let Some(medium) = self.backend.blocking() else { return Some(request) };
        let (lane, _) = self.lane_of_caller();
        let mut state = self.lock(lane);
        if state.closed {
            // Refused there.
            return Some(request);
        }
        state.finishing += 1;
        drop(state);
        let priority = request.priority();
        self.counters.add(IoCounters::SUBMITTED, priority.index(), 1);
        self.counters.add(IoCounters::ISSUED, priority.index(), 1);
        self.counters.add(IoCounters::ATTENDED, 0, 1);
        let requests = Pieces::One(request);
        let issue = Issue { op: Op::Flush, offset: 0, len: 0, priority, requests };
        let mut ended = vec![medium.execute(Transfer::new(issue), &self.counters)];
        self.finish(&mut ended);
        let mut state = self.lock(lane);
        state.told(1);
        self.tell_if_idle(&state);
        None
    }
}
