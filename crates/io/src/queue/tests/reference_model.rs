//! A submission queue against a reference model: one list of requests that is searched for
//! everything.

use std::collections::HashMap;

use forebay_base::sync::Arc;
use proptest::prelude::*;

use super::super::class_queue::{MAX_PASSED_OVER, by_age};
use super::super::{Limits, MAX_MERGED, Operation, Permits, SubmissionQueue};
use super::double::{Ends, SECTOR, limits, queue, request, sectors};
use crate::priority::Priority;
use crate::request::{Op, RaiseHandle};
use crate::tunables::IoTunables;

#[derive(Clone, Debug)]
struct Waiting {
    id: u64,
    op: Op,
    class: usize,
    sector: u64,
    sectors: u64,
    flush_epoch: u64,
    no_merge: bool,
    served_before: u64,
    cancelled: bool,
}

impl Waiting {
    fn end(&self) -> u64 {
        self.sector + self.sectors
    }
}

/// A simple submission queue, the only one of its device.
struct Model {
    limits: Limits,
    queue_limit: usize,
    most_sectors: u64,
    waiting: Vec<Waiting>,
    cancelled: Vec<u64>,
    in_flight: [u32; 5],
    served: [u64; 5],
    cursor: [u64; 5],
    flush_epoch: u64,
    next_id: u64,
}

impl Model {
    fn push(&mut self, op: Op, class: usize, (sector, sectors): (u64, u64), no_merge: bool) -> u64 {
        self.flush_epoch += u64::from(op == Op::Flush);
        let (id, flush_epoch, served_before) = (self.next_id, self.flush_epoch, self.served[class]);
        self.next_id += 1;
        let one = Waiting {
            id,
            op,
            class,
            sector,
            sectors,
            flush_epoch,
            no_merge,
            served_before,
            cancelled: false,
        };
        self.waiting.push(one);
        id
    }

    fn queued(&self, class: usize) -> usize {
        self.waiting.iter().filter(|one| one.class == class).count()
    }

    fn admitted(&self) -> Option<usize> {
        let extra = |class: usize| self.in_flight[class].saturating_sub(self.limits.min[class]);
        let shared: u32 = (0..5).map(extra).sum();
        let below_min = |class: &usize| self.in_flight[*class] < self.limits.min[*class];
        let below_max = |class: &usize| {
            self.in_flight[*class] < self.limits.max[*class] && shared < self.limits.shared()
        };
        let mut wanting = (0..5).filter(|class| self.queued(*class) > 0);
        wanting.clone().find(below_min).or_else(|| wanting.find(below_max))
    }

    fn take(&mut self, id: u64) -> Waiting {
        let at = self.waiting.iter().position(|one| one.id == id).unwrap();
        self.waiting.remove(at)
    }

    fn pick(&self, class: usize) -> Option<u64> {
        let here = || self.waiting.iter().filter(|one| one.class == class);
        let oldest = here().min_by_key(|one| one.id)?;
        if by_age(Priority::ALL[class])
            || self.served[class] - oldest.served_before >= MAX_PASSED_OVER
        {
            return Some(oldest.id);
        }
        let ahead = here().filter(|one| one.sector >= self.cursor[class]);
        let next = ahead.min_by_key(|one| (one.sector, one.id));
        next.or_else(|| here().min_by_key(|one| (one.sector, one.id))).map(|one| one.id)
    }

    /// Returns a request to merge with `pieces`: one that begins at their end, or with `before` one
    /// that ends at their start.
    fn neighbour(&self, pieces: &[Waiting], before: bool) -> Option<u64> {
        let first = &pieces[0];
        let start = pieces.iter().map(|one| one.sector).min().unwrap();
        let len: u64 = pieces.iter().map(|one| one.sectors).sum();
        let nearest_below = (self.waiting.iter())
            .filter(|one| one.class == first.class && one.sector < start)
            .map(|one| one.sector)
            .max();
        let adjacent = |one: &&Waiting| {
            one.class == first.class
                && if before {
                    Some(one.sector) == nearest_below && one.end() == start
                } else {
                    one.sector == start + len
                }
        };
        let fits = |one: &&Waiting| {
            one.op == first.op
                && one.flush_epoch == first.flush_epoch
                && !one.no_merge
                && !one.cancelled
                && len + one.sectors <= self.most_sectors
        };
        let candidates = self.waiting.iter().filter(adjacent).filter(fits);
        candidates.min_by_key(|one| one.id).map(|one| one.id)
    }

    fn next(&mut self) -> Option<Vec<Waiting>> {
        loop {
            let class = self.admitted()?;
            let Some(id) = self.pick(class) else { continue };
            let first = self.take(id);
            if first.cancelled {
                self.cancelled.push(id);
                continue;
            }
            let mut pieces = vec![first];
            let no_merge = pieces[0].no_merge || !matches!(pieces[0].op, Op::Read | Op::Write);
            for before in [false, true] {
                while !no_merge
                    && pieces.len() < MAX_MERGED
                    && let Some(id) = self.neighbour(&pieces, before)
                {
                    pieces.push(self.take(id));
                }
            }
            pieces.sort_by_key(|one| one.sector);
            self.in_flight[class] += 1;
            self.served[class] += pieces.len() as u64;
            self.cursor[class] = pieces.last().unwrap().end();
            return Some(pieces);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { op: Op, class: usize, at: (u64, u64), unbounded: bool },
    Next,
    Pump,
    Done { pick: usize, split: bool },
    Raise { pick: usize, class: usize },
    Cancel { pick: usize, at_once: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![10 => Just(Op::Read), 8 => Just(Op::Write), 1 => Just(Op::Flush), 1 => Just(Op::Discard)];
    let at = prop_oneof![(0..24u64, 1..4u64), (0..1000u64, 1..9u64)];
    prop_oneof![
        8 => (op, 0..5usize, at, any::<bool>())
            .prop_map(|(op, class, at, unbounded)| Step::Push { op, class, at, unbounded }),
        3 => Just(Step::Next),
        1 => Just(Step::Pump),
        4 => (any::<usize>(), prop::bool::weighted(0.1))
            .prop_map(|(pick, split)| Step::Done { pick, split }),
        1 => (any::<usize>(), 0..5usize).prop_map(|(pick, class)| Step::Raise { pick, class }),
        1 => (any::<usize>(), any::<bool>())
            .prop_map(|(pick, at_once)| Step::Cancel { pick, at_once }),
    ]
}

/// The queue and its model, side by side.
struct Pair {
    queue: SubmissionQueue,
    permits: Permits,
    model: Model,
    ends: Ends,
    handles: Vec<(u64, RaiseHandle)>,
    in_flight: Vec<(Operation, Vec<Waiting>)>,
    /// First names of requests that were split.
    names: HashMap<u64, u64>,
}

impl Pair {
    fn new(limits: Limits, queue_limit: u32, most_sectors: u64) -> Self {
        let tunables = IoTunables::new();
        tunables.set_queue_limit(queue_limit).unwrap();
        tunables.set_aggregate_bytes(most_sectors * SECTOR).unwrap();
        let model = Model {
            limits,
            queue_limit: queue_limit as usize,
            most_sectors,
            waiting: Vec::new(),
            cancelled: Vec::new(),
            in_flight: [0; 5],
            served: [0; 5],
            cursor: [0; 5],
            flush_epoch: 0,
            next_id: 0,
        };
        Self {
            queue: queue(0, &Arc::new(tunables)),
            permits: Permits::new(limits, 1),
            model,
            ends: Ends::default(),
            handles: Vec::new(),
            in_flight: Vec::new(),
            names: HashMap::new(),
        }
    }

    fn push(&mut self, op: Op, class: usize, at: (u64, u64), unbounded: bool) {
        let at = if op == Op::Flush { (0, 0) } else { at };
        let id = self.model.next_id;
        let one = self.ends.noted(id, request(op, Priority::ALL[class], at));
        let (one, handle) = one.raisable();
        if unbounded {
            self.queue.push_unbounded(one);
        } else if let Err(refused) = self.queue.push(one) {
            assert!(self.model.queued(class) >= self.model.queue_limit, "refused below the limit");
            refused.finish(Ok(()));
            assert_eq!(self.ends.take(), [(id, true)]);
            return;
        } else {
            assert!(self.model.queued(class) < self.model.queue_limit, "accepted above the limit");
        }
        self.model.push(op, class, at, false);
        self.handles.push((id, handle));
    }

    fn next(&mut self) -> bool {
        let (operation, pieces) = (self.queue.next(&self.permits), self.model.next());
        self.check_cancelled();
        let (operation, pieces) = match (operation, pieces) {
            (None, None) => {
                assert!(
                    self.queue.take_queues_to_run().is_empty(),
                    "there is no other queue to run"
                );
                return false;
            }
            (Some(operation), Some(pieces)) => (operation, pieces),
            (operation, pieces) => panic!("queue: {operation:?}, model: {pieces:?}"),
        };
        let expected: Vec<_> = pieces.iter().map(|one| (one.sector, one.sectors)).collect();
        assert_eq!(sectors(&operation), expected);
        assert_eq!((operation.op, operation.priority.index()), (pieces[0].op, pieces[0].class));
        assert_eq!(operation.offset, expected[0].0 * SECTOR);
        assert_eq!(operation.len, expected.iter().map(|one| one.1).sum::<u64>() * SECTOR);
        self.in_flight.push((operation, pieces));
        true
    }

    fn done(&mut self, pick: usize, split: bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let (operation, pieces) = self.in_flight.swap_remove(pick % self.in_flight.len());
        let class = operation.priority;
        if split {
            self.queue.split(operation);
            for one in pieces {
                let id = self.model.push(one.op, one.class, (one.sector, one.sectors), true);
                self.model.waiting.last_mut().unwrap().cancelled = one.cancelled;
                // Its callback still reports the first name.
                self.names.insert(id, self.names.get(&one.id).copied().unwrap_or(one.id));
                if let Some(handle) = self.handles.iter_mut().find(|(of, _)| *of == one.id) {
                    handle.0 = id;
                }
            }
        } else {
            operation.finish(Ok(()));
            let ids = pieces.iter().map(|one| self.name(one.id));
            let expected: Vec<_> = ids.map(|id| (id, true)).collect();
            assert_eq!(self.ends.take(), expected);
        }
        self.queue.done(class, &self.permits);
        self.model.in_flight[class.index()] -= 1;
        assert_eq!(self.queue.in_flight(class), self.model.in_flight[class.index()]);
    }

    fn name(&self, id: u64) -> u64 {
        self.names.get(&id).copied().unwrap_or(id)
    }

    fn raise(&mut self, pick: usize, class: usize) {
        if self.handles.is_empty() {
            return;
        }
        let (id, _) = self.handles[pick % self.handles.len()];
        let moved = self.queue.requeue(id, Some(Priority::ALL[class]));
        let served = self.model.served[class];
        let one = self.model.waiting.iter_mut().find(|one| one.id == id && one.class > class);
        assert_eq!(moved, one.is_some());
        if let Some(one) = one {
            (one.class, one.served_before) = (class, served);
        }
    }

    fn cancel(&mut self, pick: usize, at_once: bool) {
        if self.handles.is_empty() {
            return;
        }
        let (id, handle) = self.handles.swap_remove(pick % self.handles.len());
        handle.cancel();
        let Some(at) = self.model.waiting.iter().position(|one| one.id == id) else {
            // In flight or completed. If it is split later, it is found cancelled.
            if let Some(one) =
                self.in_flight.iter_mut().flat_map(|(_, pieces)| pieces).find(|one| one.id == id)
            {
                one.cancelled = true;
            }
            return;
        };
        self.model.waiting[at].cancelled = true;
        if at_once {
            assert!(self.queue.requeue(id, None));
            self.model.waiting.remove(at);
            self.model.cancelled.push(id);
            self.check_cancelled();
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Push { op, class, at, unbounded } => self.push(op, class, at, unbounded),
            Step::Next => {
                self.next();
            }
            Step::Pump => while self.next() {},
            Step::Done { pick, split } => self.done(pick, split),
            Step::Raise { pick, class } => self.raise(pick, class),
            Step::Cancel { pick, at_once } => self.cancel(pick, at_once),
        }
        for class in Priority::ALL {
            assert_eq!(self.queue.queued(class), self.model.queued(class.index()));
        }
    }

    /// Completes everything, in an order that `pick` decides.
    fn drain(&mut self, pick: usize) {
        loop {
            while self.next() {}
            if self.in_flight.is_empty() {
                break;
            }
            self.done(pick, false);
        }
        assert!(self.queue.is_idle());
        assert!(self.model.waiting.is_empty());
        self.permits.audit(&[self.queue.credits()]);
    }

    fn check_cancelled(&mut self) {
        let found = self.queue.take_cancelled();
        found.into_iter().for_each(|request| request.finish(Ok(())));
        let names: Vec<u64> = self.ends.take().into_iter().map(|(name, _)| name).collect();
        let cancelled = std::mem::take(&mut self.model.cancelled);
        assert_eq!(names, cancelled.iter().map(|id| self.name(*id)).collect::<Vec<_>>());
    }
}

fn some_limits() -> impl Strategy<Value = Limits> {
    let tiny =
        ([1..4u32, 1..4, 1..4, 1..4, 1..4], [0..5u32, 0..5, 0..5, 0..5, 0..5], 0..8u32, 1..5u32);
    tiny.prop_map(|(min, above, shared, batch)| {
        let max = std::array::from_fn(|class| min[class] + above[class]);
        limits(min, max, min.iter().sum::<u32>() + shared, batch)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 2000 }))]

    #[test]
    fn a_queue_behaves_like_its_model(
        limits in some_limits(),
        queue_limit in 1..20u32,
        most_sectors in prop_oneof![Just(0u64), 1..12u64, Just(2048)],
        steps in prop::collection::vec(step(), 1..300),
        last in any::<usize>(),
    ) {
        let mut pair = Pair::new(limits, queue_limit, most_sectors);
        steps.into_iter().for_each(|step| pair.apply(step));
        pair.drain(last);
    }
}
