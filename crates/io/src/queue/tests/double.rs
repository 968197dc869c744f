//! Shared by the tests of this module: requests that record their completion, and a queue under
//! test.

use std::sync::OnceLock;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::sync::{Arc, Mutex, Weak};

use super::super::{Limits, Operation, SubmissionQueue};
use crate::priority::Priority;
use crate::request::{Op, Request, RequeueTarget};
use crate::tunables::IoTunables;

/// Requests are multiples of this many bytes.
pub(super) const SECTOR: u64 = 512;

struct Nobody;

impl RequeueTarget for Nobody {
    fn requeue(&self, _: u64, _: Option<Priority>) {}
}

/// A queue whose requests' handles reach no engine.
pub(super) fn queue(index: usize, tunables: &Arc<IoTunables>) -> SubmissionQueue {
    let requeue_target: Weak<dyn RequeueTarget> = Weak::<Nobody>::new();
    SubmissionQueue::new(index, requeue_target, Arc::clone(tunables))
}

/// A request for this many `sectors` at `sector`.
pub(super) fn request(op: Op, class: Priority, (sector, sectors): (u64, u64)) -> Request {
    static ARENA: OnceLock<Arc<Arena>> = OnceLock::new();
    let config = ArenaConfig { limit_bytes: 256 << 20, huge_pages: HugePages::Never };
    let arena = ARENA.get_or_init(|| Arena::new(config).unwrap());
    let (offset, len) = (sector * SECTOR, sectors * SECTOR);
    let buffer = || arena.alloc(len as usize).unwrap();
    let request = match op {
        Op::Read => Request::read(offset, buffer()),
        Op::Write => Request::write(offset, buffer()),
        Op::Flush => Request::flush(),
        Op::Discard => Request::discard(offset, len),
    };
    request.with_priority(class)
}

/// A read of one sector.
pub(super) fn read(class: Priority, sector: u64) -> Request {
    request(Op::Read, class, (sector, 1))
}

/// Completions in order: the request's name, and whether it succeeded.
#[derive(Clone)]
pub(super) struct Ends(Arc<Mutex<Vec<(u64, bool)>>>);

impl Default for Ends {
    fn default() -> Self {
        Self(Arc::new(Mutex::named("test-ends", Vec::new())))
    }
}

impl Ends {
    /// `request`, whose completion is recorded under `name`.
    pub(super) fn noted(&self, name: u64, request: Request) -> Request {
        let ends = self.clone();
        request.on_done(move |completion| {
            ends.0.lock().push((name, completion.result.is_ok()));
        })
    }

    /// Takes the completions since the last call.
    pub(super) fn take(&self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Sectors of the requests of an operation.
pub(super) fn sectors(operation: &Operation) -> Vec<(u64, u64)> {
    let pieces = operation.requests.as_slice().iter();
    pieces.map(|request| (request.offset() / SECTOR, request.len() / SECTOR)).collect()
}

/// Limits beyond the tunables' ranges.
pub(super) fn limits(min: [u32; 5], max: [u32; 5], total: u32, batch: u32) -> Limits {
    Limits { min, max, total, batch }
}
