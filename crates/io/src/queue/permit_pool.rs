//! The permit pool: permits that no queue holds, and grants that queues have not collected. See
//! [`super::permits`].

use forebay_base::sync::atomic::Ordering::SeqCst;

use super::credits::{Credits, PermitKind};
use super::limits::Limits;
use super::permits::{PermitStats, WaitingSet};
use crate::priority::Priority;

/// The data that `io-permits` protects.
pub(super) struct Pool {
    reserved: [u32; Priority::COUNT],
    headroom: [u32; Priority::COUNT],
    shared: u32,
    /// Uncollected grants, by queue.
    grants: Box<[Credits]>,
    /// The queue that was served last, by class.
    last: [u32; Priority::COUNT],
    /// Batch sizes, by kind.
    batches: [u32; 2 * Priority::COUNT + 1],
    pub(super) stats: PermitStats,
}

impl Pool {
    pub(super) fn new(limits: &Limits, queues: usize) -> Self {
        // No batch exceeds an even share of the permits.
        let batch = |all: u32| (all / queues as u32).clamp(1, limits.batch);
        let mut batches = [0; 2 * Priority::COUNT + 1];
        for kind in PermitKind::all() {
            batches[index(kind)] = batch(match kind {
                PermitKind::Reserved(class) => limits.min[class],
                PermitKind::Headroom(class) => limits.headroom(class),
                PermitKind::Shared => limits.shared(),
            });
        }
        Self {
            reserved: limits.min,
            headroom: std::array::from_fn(|class| limits.headroom(class)),
            shared: limits.shared(),
            grants: vec![Credits::NONE; queues].into(),
            last: [0; Priority::COUNT],
            batches,
            stats: PermitStats::default(),
        }
    }

    /// Returns the number of permits of `kind` that a queue takes at once.
    pub(super) fn batch(&self, kind: PermitKind) -> u32 {
        self.batches[index(kind)]
    }

    /// Takes up to a batch of `kind`, and returns how many.
    pub(super) fn take_batch(&mut self, kind: PermitKind) -> u32 {
        let batch = self.batch(kind);
        let free = self.free(kind);
        let n = batch.min(*free);
        *free -= n;
        n
    }

    /// Returns `credits` to the pool. The caller must then serve the waiting queues.
    pub(super) fn add(&mut self, credits: Credits) {
        for kind in PermitKind::all() {
            *self.free(kind) += credits.count(kind);
        }
    }

    /// Takes the permits granted to `queue`.
    pub(super) fn take_grant(&mut self, queue: usize) -> Credits {
        std::mem::take(&mut self.grants[queue])
    }

    /// Grants free permits to registered queues, one per registration: classes below their minimum
    /// first, each step by urgency, queues round-robin. Returns the set of queues that got a
    /// permit. Afterwards no queue waits for a permit that is in the pool.
    pub(super) fn serve(&mut self, waiting_set: &WaitingSet) -> u64 {
        let mut to_run = 0;
        for class in 0..Priority::COUNT {
            while self.reserved[class] > 0
                && let Some(queue) = self.next_queue(waiting_set, class)
            {
                self.reserved[class] -= 1;
                to_run |= self.grant(
                    waiting_set,
                    (queue, class),
                    Credits::of(PermitKind::Reserved(class), 1),
                );
            }
        }
        for class in 0..Priority::COUNT {
            while self.shared > 0
                && self.headroom[class] > 0
                && let Some(queue) = self.next_queue(waiting_set, class)
            {
                self.shared -= 1;
                self.headroom[class] -= 1;
                to_run |= self.grant(waiting_set, (queue, class), Credits::extra(class));
            }
        }
        to_run
    }

    /// Returns whether there is a permit of `kind` that was not granted.
    pub(super) fn has(&self, kind: PermitKind) -> bool {
        self.left(kind) > 0
    }

    /// Returns the permits of `kind` in the pool, granted ones included.
    pub(super) fn holds(&self, kind: PermitKind) -> u32 {
        self.left(kind) + self.grants.iter().map(|grant| grant.count(kind)).sum::<u32>()
    }

    /// Returns the queue to serve next in `class`: the first registered one after the one served
    /// last.
    fn next_queue(&self, waiting_set: &WaitingSet, class: usize) -> Option<u32> {
        let waiters = waiting_set.waiters[class].load(SeqCst);
        let later = waiters & (u64::MAX << self.last[class]) << 1;
        let from = if later != 0 { later } else { waiters };
        (from != 0).then(|| from.trailing_zeros())
    }

    fn grant(
        &mut self,
        waiting_set: &WaitingSet,
        (queue, class): (u32, usize),
        credits: Credits,
    ) -> u64 {
        let bit = 1 << queue;
        self.last[class] = queue;
        self.grants[queue as usize] = self.grants[queue as usize].plus(credits);
        self.stats.grants += 1;
        waiting_set.waiters[class].fetch_and(!bit, SeqCst);
        waiting_set.granted.fetch_or(bit, SeqCst);
        bit
    }

    fn left(&self, kind: PermitKind) -> u32 {
        match kind {
            PermitKind::Reserved(class) => self.reserved[class],
            PermitKind::Headroom(class) => self.headroom[class],
            PermitKind::Shared => self.shared,
        }
    }

    fn free(&mut self, kind: PermitKind) -> &mut u32 {
        match kind {
            PermitKind::Reserved(class) => &mut self.reserved[class],
            PermitKind::Headroom(class) => &mut self.headroom[class],
            PermitKind::Shared => &mut self.shared,
        }
    }
}

fn index(kind: PermitKind) -> usize {
    match kind {
        PermitKind::Reserved(class) => class,
        PermitKind::Headroom(class) => Priority::COUNT + class,
        PermitKind::Shared => 2 * Priority::COUNT,
    }
}
