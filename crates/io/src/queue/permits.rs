//! Permits: limits on the operations in flight, without a counter that all queues share.
//!
//! An operation of a class needs one permit *reserved* for the class (as many as its minimum), or
//! one *shared* permit plus one of the class's *headroom* (its maximum less its minimum). So a
//! class always gets its minimum, never exceeds its maximum, and all classes together never exceed
//! the total.
//!
//! At any instant a permit is in exactly one place:
//! - in the *pool*, under its lock;
//! - among the *spares* of a queue: taken in a batch, not used. One atomic word per queue. The
//!   queue changes it without the pool's lock. Any queue that finds the pool empty may take from
//!   it, under the pool's lock. So an idle queue hoards nothing;
//! - *granted* to a waiting queue ([`WaitingSet`]), under the pool's lock, until it collects it;
//! - in use, or collected by the current run: counted in [`QueueCredits`], under the queue's own
//!   lock.
//!
//! # Locking
//!
//! `io-permits` protects the pool and the grants. It is taken under a queue's lock: at most once
//! per batch while permits suffice, and once per operation while queues wait. Spares and the
//! waiting set are atomics. Only the queue itself adds to its spares.
//!
//! It runs no queues (the engine does) and orders no requests (the submission queue does).

use crossbeam_utils::CachePadded;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::credits::{Credits, MAX_SPARE, PermitKind};
use super::limits::Limits;
use super::permit_pool::Pool;
use crate::priority::Priority;

/// Most submission queues of a device: a set of them is one word.
pub const MAX_SUBMISSION_QUEUES: usize = u64::BITS as usize;

/// After this many ended operations a queue looks again for permits that it did not find before.
const RETRY_AFTER_ENDS: u32 = 16;

/// The permits of one device.
pub struct Permits {
    limits: Limits,
    /// By class: a queue with this many operations in flight does not wait for others' permits.
    share: [u32; Priority::COUNT],
    /// Most permits of one kind that a queue keeps as spares.
    max_spare: u32,
    waiting_set: CachePadded<WaitingSet>,
    spares: Box<[CachePadded<AtomicU64>]>,
    pool: CachePadded<Mutex<Pool>>,
}

/// The queues that wait. Read in every run, written only when a queue has to wait, under
/// `io-permits`.
///
/// A queue registers if it has requests of a class, finds no permit, and has fewer operations of
/// the class in flight than its share (the class's limit divided by the number of queues, at least
/// 1). A queue at its share does not register: one of its own operations will end and return a
/// permit. While others are registered, a queue does not keep a returned permit. All waiting queues
/// compete for it ([`Permits::redistribute`]): by class, then round-robin; the queue itself takes
/// part while below its share. A run that ends gives them all its unused permits. A queue that was
/// granted a permit is in [`QueuesToRun`], and its engine runs it.
///
/// No wake-up is lost. A queue that registers sets its bit in `waiters`, then looks again at every
/// spare. A queue that adds to its spares reads `waiters` afterwards, before its run ends. All four
/// accesses are sequentially consistent, so one side sees the other. Permits go to the pool under
/// its lock, and the thread that puts them there serves the registered queues.
pub(super) struct WaitingSet {
    /// Queues that wait for a permit, by class.
    pub(super) waiters: [AtomicU64; Priority::COUNT],
    /// Queues that have a grant to collect.
    pub(super) granted: AtomicU64,
}

/// A set of submission queues that must be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a submission queue that is not run may wait for ever"]
pub struct QueuesToRun(u64);

impl QueuesToRun {
    /// Adds the queues of `others`.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for QueuesToRun {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let index = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(index as usize)
    }
}

/// How often queues contended for permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitStats {
    /// Times the pool's lock was taken.
    pub pool_locks: u64,
    /// Times a queue took spare permits of another queue.
    pub steals: u64,
    /// Times a queue registered because it found no permit.
    pub waits: u64,
    /// Permits granted to waiting queues.
    pub grants: u64,
}

/// The permits that one queue holds. Protected by the queue's lock.
pub struct QueueCredits {
    index: usize,
    /// Operations in flight on reserved permits, by class.
    reserved: [u32; Priority::COUNT],
    /// Operations in flight on shared permits, by class.
    extra: [u32; Priority::COUNT],
    /// Grants that were collected and not used yet. Empty between runs.
    collected: Credits,
    /// Classes (bits) that are registered, or whose grant was not collected yet.
    registered: u8,
    /// Permits that were not found at the last attempt: reserved ones and headroom by class (bits),
    /// and shared ones.
    lacks_reserved: u8,
    lacks_headroom: u8,
    lacks_shared: bool,
    /// Classes (bits) for which no other queue had a spare.
    lacks_spares: u8,
    /// Operations that ended since a permit was not found.
    ends_while_lacking: u32,
    /// A permit was returned since the last redistribution.
    has_returned: bool,
    to_run: u64,
}

impl QueueCredits {
    /// The permits of the queue with this index, which has nothing in flight.
    pub fn new(index: usize) -> Self {
        Self {
            index,
            reserved: [0; Priority::COUNT],
            extra: [0; Priority::COUNT],
            collected: Credits::NONE,
            registered: 0,
            lacks_reserved: 0,
            lacks_headroom: 0,
            lacks_shared: false,
            lacks_spares: 0,
            ends_while_lacking: 0,
            has_returned: false,
            to_run: 0,
        }
    }

    /// Returns the number of operations of `class` in flight.
    pub fn in_flight(&self, class: Priority) -> u32 {
        self.used(class.index())
    }

    /// Takes the set of queues that were granted permits since the last call.
    pub fn take_queues_to_run(&mut self) -> QueuesToRun {
        QueuesToRun(std::mem::take(&mut self.to_run))
    }

    fn used(&self, class: usize) -> u32 {
        self.reserved[class] + self.extra[class]
    }

    fn bit(&self) -> u64 {
        1 << self.index
    }

    /// Forgets which permits were not found.
    fn retry_all(&mut self) {
        (self.lacks_reserved, self.lacks_headroom, self.lacks_shared) = (0, 0, false);
        self.lacks_spares = 0;
        self.ends_while_lacking = 0;
    }
}

/// Where to look for permits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Pool,
    /// Also in the spares of other queues.
    PoolAndSpares,
}

/// Returns the classes whose bits are set, the most urgent first.
fn classes(mut bits: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let class = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            class
        })
    })
}

/// Returns the classes (bits) that may win against one of `waiting`: all that are at least as
/// urgent as the least urgent of them.
fn competing(waiting: u8) -> u8 {
    u8::MAX.checked_shr(waiting.leading_zeros()).unwrap_or(0)
}

impl Permits {
    /// Creates all permits that `limits` allow, for this many `queues`.
    ///
    /// # Panics
    /// If there are no queues, or more than [`MAX_SUBMISSION_QUEUES`].
    pub fn new(limits: Limits, queues: usize) -> Self {
        assert!((1..=MAX_SUBMISSION_QUEUES).contains(&queues), "{queues} submission queues");
        let share = |class| (limits.reachable(class) / queues as u32).max(1);
        let spare = || CachePadded::new(AtomicU64::new(0));
        Self {
            share: std::array::from_fn(share),
            max_spare: (2 * limits.batch).min(MAX_SPARE),
            waiting_set: CachePadded::new(WaitingSet {
                waiters: std::array::from_fn(|_| AtomicU64::new(0)),
                granted: AtomicU64::new(0),
            }),
            spares: (0..queues).map(|_| spare()).collect(),
            pool: CachePadded::new(Mutex::named("io-permits", Pool::new(&limits, queues))),
            limits,
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns how often queues contended for permits.
    pub fn stats(&self) -> PermitStats {
        self.pool.lock().stats
    }

    /// Takes a permit for one operation of one of the classes `waiting` (bits) of which the queue
    /// has requests: the most urgent class below its minimum, else the most urgent class that may
    /// have another operation. Call it again until it returns `None`, or call
    /// [`release_unused`](Self::release_unused).
    pub fn admit(&self, queue: &mut QueueCredits, waiting: u8) -> Option<Priority> {
        if self.waiting_set.granted.load(SeqCst) & queue.bit() != 0 {
            self.collect_grant(queue);
        }
        if queue.has_returned && waiting != 0 && self.others_wait(queue, competing(waiting)) {
            self.redistribute(queue, waiting);
        }
        let found = classes(waiting)
            .find(|class| self.take_reserved(queue, *class))
            .or_else(|| classes(waiting).find(|class| self.take_extra(queue, *class)))
            .or_else(|| classes(waiting).find(|class| self.steal_or_register(queue, *class)));
        if found.is_none() {
            self.return_unused(queue);
        }
        found.map(|class| Priority::ALL[class])
    }

    /// Returns the permit of an operation of `class` that ended. [`admit`](Self::admit) must
    /// follow.
    pub fn end(&self, queue: &mut QueueCredits, class: Priority) {
        let class = class.index();
        // Return shared permits first, since other classes can use them. So reserved permits are in
        // use as long as the class is at or below its minimum.
        if queue.extra[class] > 0 {
            queue.extra[class] -= 1;
            self.put(
                queue,
                Credits::extra(class),
                &[PermitKind::Shared, PermitKind::Headroom(class)],
            );
        } else {
            assert!(queue.reserved[class] > 0, "an operation ended that was never admitted");
            queue.reserved[class] -= 1;
            let kind = PermitKind::Reserved(class);
            self.put(queue, Credits::of(kind, 1), &[kind]);
        }
        queue.has_returned = true;
        if queue.lacks_reserved | queue.lacks_headroom | queue.lacks_spares != 0
            || queue.lacks_shared
        {
            queue.ends_while_lacking += 1;
            if queue.ends_while_lacking >= RETRY_AFTER_ENDS {
                queue.retry_all();
            }
        }
    }

    /// Adds `credits`, which consist of `kinds`, to the queue's spares. Permits above the limit go
    /// to the pool.
    fn put(&self, queue: &mut QueueCredits, credits: Credits, kinds: &[PermitKind]) {
        let spare = &self.spares[queue.index];
        // Other queues only take from it.
        let before = Credits(spare.fetch_add(credits.0, SeqCst));
        let over = |kind: &&PermitKind| before.count(**kind) >= self.max_spare;
        if kinds.iter().any(|kind| over(&kind)) {
            let mut pool = self.lock_pool();
            for kind in kinds.iter().filter(over) {
                let batch = pool.batch(*kind);
                pool.add(Credits::of(*kind, take_kind(spare, *kind, batch)));
            }
            self.unregister(queue);
            queue.to_run |= pool.serve(&self.waiting_set);
            queue.retry_all();
        }
    }

    fn take_reserved(&self, queue: &mut QueueCredits, class: usize) -> bool {
        let bit = 1 << class;
        let found = if let Some(rest) = queue.collected.without_reserved(class) {
            queue.collected = rest;
            true
        } else if take_from_spare(&self.spares[queue.index], |spare| spare.without_reserved(class))
        {
            true
        } else if queue.lacks_reserved & bit != 0 {
            false
        } else {
            let found =
                self.fetch_reserved(&mut self.lock_pool(), (queue.index, Source::Pool), class);
            queue.lacks_reserved |= if found { 0 } else { bit };
            found
        };
        queue.reserved[class] += u32::from(found);
        found
    }

    fn take_extra(&self, queue: &mut QueueCredits, class: usize) -> bool {
        let bit = 1 << class;
        let spare = &self.spares[queue.index];
        let found = if let Some(rest) = queue.collected.without_extra(class) {
            queue.collected = rest;
            true
        } else if take_from_spare(spare, |spare| spare.without_extra(class)) {
            true
        } else {
            let have = Credits(spare.load(SeqCst));
            let no_shared = queue.lacks_shared && have.count(PermitKind::Shared) == 0;
            let no_headroom =
                queue.lacks_headroom & bit != 0 && have.count(PermitKind::Headroom(class)) == 0;
            let hopeless = self.limits.headroom(class) == 0 || self.limits.shared() == 0;
            if no_shared || no_headroom || hopeless {
                return false;
            }
            let (shared, headroom) =
                self.fetch_extra(&mut self.lock_pool(), (queue.index, Source::Pool), class);
            queue.lacks_shared |= !shared;
            queue.lacks_headroom |= if headroom { 0 } else { bit };
            shared && headroom
        };
        queue.extra[class] += u32::from(found);
        found
    }

    /// Takes a batch of reserved permits, uses one and keeps the rest as spares.
    fn fetch_reserved(&self, pool: &mut Pool, to: (usize, Source), class: usize) -> bool {
        let kind = PermitKind::Reserved(class);
        let got = self.fetch(pool, to, kind);
        if got > 0 {
            self.spares[to.0].fetch_add(Credits::of(kind, got - 1).0, SeqCst);
        }
        got > 0
    }

    /// Fetches the shared permit or the headroom that the queue's spares lack, and uses one of each
    /// if both were found. Returns which were found.
    fn fetch_extra(&self, pool: &mut Pool, to: (usize, Source), class: usize) -> (bool, bool) {
        let spare = &self.spares[to.0];
        // Under the pool's lock no other queue takes from these spares.
        let [shared, headroom] = [PermitKind::Shared, PermitKind::Headroom(class)].map(|kind| {
            if Credits(spare.load(SeqCst)).count(kind) > 0 {
                return true;
            }
            let got = self.fetch(pool, to, kind);
            spare.fetch_add(Credits::of(kind, got).0, SeqCst);
            got > 0
        });
        let both = shared && headroom;
        if both {
            let took = take_from_spare(spare, |spare| spare.without_extra(class));
            debug_assert!(took, "both were found");
        }
        (shared, headroom)
    }

    /// Takes up to a batch of `kind` for queue `index` from the pool. If that is empty and `from`
    /// allows it, takes half of another queue's spares.
    fn fetch(&self, pool: &mut Pool, (index, from): (usize, Source), kind: PermitKind) -> u32 {
        let got = pool.take_batch(kind);
        if got > 0 || from == Source::Pool {
            return got;
        }
        let queues = self.spares.len();
        for other in (index + 1..queues).chain(0..index) {
            let spare = &self.spares[other];
            let half = Credits(spare.load(SeqCst)).count(kind).div_ceil(2);
            let got = if half > 0 { take_kind(spare, kind, half.min(pool.batch(kind))) } else { 0 };
            if got > 0 {
                pool.stats.steals += 1;
                return got;
            }
        }
        0
    }

    /// Takes a permit from other queues' spares. If there is none, registers the queue for `class`,
    /// unless it has its share.
    fn steal_or_register(&self, queue: &mut QueueCredits, class: usize) -> bool {
        let bit = 1 << class;
        // A single queue can only wait for itself.
        let below_share = queue.used(class) < self.share[class] && self.spares.len() > 1;
        if (below_share && queue.registered & bit != 0)
            || (!below_share && queue.lacks_spares & bit != 0)
        {
            return false;
        }
        let mut pool = self.lock_pool();
        let waiters = &self.waiting_set.waiters[class];
        if below_share {
            waiters.fetch_or(queue.bit(), SeqCst);
        }
        let to = (queue.index, Source::PoolAndSpares);
        let reserved = self.fetch_reserved(&mut pool, to, class);
        let extra = !reserved && self.fetch_extra(&mut pool, to, class) == (true, true);
        queue.reserved[class] += u32::from(reserved);
        queue.extra[class] += u32::from(extra);
        if reserved || extra {
            waiters.fetch_and(!queue.bit(), SeqCst);
            queue.registered &= !bit;
        } else if below_share {
            pool.stats.waits += 1;
            queue.registered |= bit;
        } else {
            queue.lacks_spares |= bit;
        }
        reserved || extra
    }

    /// Removes the queue's registrations. It is running, and registers again before its run ends.
    /// Needs the pool's lock.
    fn unregister(&self, queue: &mut QueueCredits) {
        for waiters in &self.waiting_set.waiters {
            if waiters.load(SeqCst) & queue.bit() != 0 {
                waiters.fetch_and(!queue.bit(), SeqCst);
            }
        }
        queue.registered = 0;
    }

    /// Collects granted permits.
    fn collect_grant(&self, queue: &mut QueueCredits) {
        let mut pool = self.lock_pool();
        self.collect_grant_from(&mut pool, queue);
    }

    fn collect_grant_from(&self, pool: &mut Pool, queue: &mut QueueCredits) {
        let granted = pool.take_grant(queue.index);
        self.waiting_set.granted.fetch_and(!queue.bit(), SeqCst);
        queue.collected = queue.collected.plus(granted);
        let still =
            |class: &usize| self.waiting_set.waiters[*class].load(SeqCst) & queue.bit() != 0;
        queue.registered = (0..Priority::COUNT).filter(still).map(|class| 1 << class).sum();
        queue.retry_all();
    }

    /// Lets all waiting queues compete for the queue's spares and the pool. The queue itself
    /// competes in the classes `waiting` in which it is below its share.
    fn redistribute(&self, queue: &mut QueueCredits, waiting: u8) {
        let mut pool = self.lock_pool();
        pool.add(Credits(self.spares[queue.index].swap(0, SeqCst)));
        for class in classes(waiting).filter(|class| queue.used(*class) < self.share[*class]) {
            self.waiting_set.waiters[class].fetch_or(queue.bit(), SeqCst);
        }
        queue.to_run |= pool.serve(&self.waiting_set) & !queue.bit();
        self.unregister(queue);
        self.collect_grant_from(&mut pool, queue);
        queue.has_returned = false;
    }

    /// Ends a run: makes the unused permits available to others.
    fn return_unused(&self, queue: &mut QueueCredits) {
        queue.has_returned = false;
        // A waiting queue keeps no spares either: with them, another queue's permits may become
        // complete.
        let any_waits = self.waiting_set.waiters.iter().any(|queues| queues.load(SeqCst) != 0);
        let keeps = !any_waits || self.spares[queue.index].load(SeqCst) == 0;
        if keeps && queue.collected == Credits::NONE {
            return;
        }
        let mut pool = self.lock_pool();
        pool.add(std::mem::take(&mut queue.collected));
        if any_waits {
            pool.add(Credits(self.spares[queue.index].swap(0, SeqCst)));
        }
        // The queue itself may be served too, and then needs another run.
        queue.to_run |= pool.serve(&self.waiting_set);
        queue.retry_all();
    }

    /// Ends a run in which [`admit`](Self::admit) has not returned `None`, because the queue can
    /// use no more permits at the moment. Makes its unused permits available and withdraws its
    /// registrations.
    pub fn release_unused(&self, queue: &mut QueueCredits) {
        if queue.registered != 0 || self.waiting_set.granted.load(SeqCst) & queue.bit() != 0 {
            let mut pool = self.lock_pool();
            self.unregister(queue);
            self.collect_grant_from(&mut pool, queue);
        }
        self.return_unused(queue);
    }

    fn others_wait(&self, queue: &QueueCredits, classes: u8) -> bool {
        let waiters = self.waiting_set.waiters.iter().enumerate();
        let mut of = waiters.filter(|(class, _)| classes & 1 << class != 0);
        of.any(|(_, queues)| queues.load(SeqCst) & !queue.bit() != 0)
    }

    fn lock_pool(&self) -> forebay_base::sync::MutexGuard<'_, Pool> {
        let mut pool = self.pool.lock();
        pool.stats.pool_locks += 1;
        pool
    }

    /// Returns whether the pool or the spares hold the permits that an operation of `class` needs.
    /// For checks.
    pub fn is_obtainable(&self, class: Priority) -> bool {
        let pool = self.pool.lock();
        let any = |kind| {
            let spare =
                |spare: &CachePadded<AtomicU64>| Credits(spare.load(SeqCst)).count(kind) > 0;
            pool.has(kind) || self.spares.iter().any(spare)
        };
        let class = class.index();
        any(PermitKind::Reserved(class))
            || any(PermitKind::Shared) && any(PermitKind::Headroom(class))
    }

    /// Checks that every permit is in exactly one place, given the credits of all queues. No other
    /// thread may use the permits.
    ///
    /// # Panics
    /// If the numbers do not add up.
    pub fn audit(&self, queues: &[&QueueCredits]) {
        let pool = self.pool.lock();
        for kind in PermitKind::all() {
            let spare = |spare: &CachePadded<AtomicU64>| Credits(spare.load(SeqCst)).count(kind);
            let used = |queue: &&QueueCredits| {
                queue.collected.count(kind)
                    + match kind {
                        PermitKind::Reserved(class) => queue.reserved[class],
                        PermitKind::Headroom(class) => queue.extra[class],
                        PermitKind::Shared => queue.extra.iter().sum(),
                    }
            };
            let all = pool.holds(kind)
                + self.spares.iter().map(spare).sum::<u32>()
                + queues.iter().map(used).sum::<u32>();
            let due = match kind {
                PermitKind::Reserved(class) => self.limits.min[class],
                PermitKind::Headroom(class) => self.limits.headroom(class),
                PermitKind::Shared => self.limits.shared(),
            };
            assert_eq!(all, due, "permits of {kind:?}");
        }
    }
}

/// Replaces a spare by the result of `f`, unless that is `None`. Returns whether it did.
fn take_from_spare(spare: &AtomicU64, f: impl Fn(Credits) -> Option<Credits>) -> bool {
    let mut word = spare.load(SeqCst);
    while let Some(rest) = f(Credits(word)) {
        match spare.compare_exchange_weak(word, rest.0, SeqCst, SeqCst) {
            Ok(_) => return true,
            Err(now) => word = now,
        }
    }
    false
}

/// Takes up to `most` permits of `kind`, and returns how many.
fn take_kind(spare: &AtomicU64, kind: PermitKind, most: u32) -> u32 {
    let mut word = spare.load(SeqCst);
    loop {
        let n = Credits(word).count(kind).min(most);
        if n == 0 {
            return 0;
        }
        let rest = word - Credits::of(kind, n).0;
        match spare.compare_exchange_weak(word, rest, SeqCst, SeqCst) {
            Ok(_) => return n,
            Err(now) => word = now,
        }
    }
}
