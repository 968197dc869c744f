//! Who may have how many operations in flight, without a counter that all share.
//!
//! A device's limits are counted in permits. An operation of a class needs either one of the permits
//! that are reserved for the class (as many as its minimum), or one shared permit and one of the class's headroom
//! (as many as its maximum allows beyond the minimum). So a class always gets its minimum, never more than its
//! maximum, and all together never exceed the total.
//!
//! Where a permit is, at any instant exactly one of:
//! - in the *pool*, under its lock;
//! - a *spare* of a lane: leased, not used. One word a lane, on a line of its own; the lane takes from and adds
//!   to it without the pool's lock. Any lane that finds the pool empty may take it, under the pool's lock,
//!   so a lane that is idle hoards nothing, and need not run for its spares to be used;
//! - *granted* to a lane that waits, under the pool's lock, until that lane collects it;
//! - in use, or in the hand of the lane's step: counted in the lane's [`QueueCredits`], under the lane's own lock.
//!
//! # Who waits, and who is woken
//!
//! A lane that has requests of a class, fewer of them in flight than its share (the class's limit by the number of
//! lanes, at least 1), and finds no permit, registers. A lane at or above its share does not: its own operations
//! will end, and give it the next permit. While others are registered, a lane that has got a permit back
//! does not keep it but lets all who want one compete ([`Permits::redistribute`]): by class first, as the lane's own
//! queue does, then in rotation, the lane itself among them as long as it is below its share. And a lane whose step
//! ends leaves them all that it has not used. Who is served is *kicked*: its engine makes a step of it.
//!
//! No kick is lost. Who registers sets its bit in [`WaitingSet::waiters`], and then looks once more at every spare; who
//! adds to its spare looks at `waiters` afterwards, before its step ends. All four are sequentially
//! consistent, so one of the two sees the other. What goes to the pool goes there under its lock, and who
//! puts it there serves those who are registered.
//!
//! # Locking
//!
//! `io-permits` protects the pool and the grants, and is taken under a lane's lock: once a lot at most while
//! there are enough permits, and once an operation while lanes wait for each other. Spares and the
//! board are atomics; only the lane itself adds to its spare, only holders of the lock write the board.
//!
//! # What it does not do
//!
//! It does not kick (the engine does), and does not order requests (the lane does).

use crossbeam_utils::CachePadded;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::credits::{Credits, MAX_SPARE, PermitKind};
use super::limits::Limits;
use super::permit_pool::Pool;
use crate::priority::Priority;

/// Lanes that a device can have: their sets are words.
pub const MAX_SUBMISSION_QUEUES: usize = u64::BITS as usize;

/// Operations after which a lane looks again whether there are permits where there were none.
const RETRY_AFTER_ENDS: u32 = 16;

/// The permits of one device.
pub struct Permits {
    limits: Limits,
    /// In flight of a class, at which a lane does not wait for others' permits.
    share: [u32; Priority::COUNT],
    /// Of a part, what a lane keeps at most.
    max_spare: u32,
    waiting_set: CachePadded<WaitingSet>,
    spares: Box<[CachePadded<AtomicU64>]>,
    pool: CachePadded<Mutex<Pool>>,
}

/// What lanes read at every step; written only when one has to wait.
pub(super) struct WaitingSet {
    /// Lanes that wait for a permit, by class.
    pub(super) waiters: [AtomicU64; Priority::COUNT],
    /// Lanes that have something to collect.
    pub(super) granted: AtomicU64,
}

/// Lanes that need a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a submission queue that is not run may wait for ever"]
pub struct QueuesToRun(u64);

impl QueuesToRun {
    /// Those of `others` as well.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Whether nobody needs one.
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

/// How often lanes had to meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitStats {
    /// Times that the pool's lock was taken.
    pub pool_locks: u64,
    /// Times that a lane's spare permits were taken by another lane.
    pub steals: u64,
    /// Times that a lane registered because it found no permit.
    pub waits: u64,
    /// Permits handed to lanes that waited.
    pub grants: u64,
}

/// What one lane has of the permits; stands under the lane's lock.
pub struct QueueCredits {
    index: usize,
    /// In flight on reserved permits.
    reserved: [u32; Priority::COUNT],
    /// In flight on shared ones.
    extra: [u32; Priority::COUNT],
    /// Collected and not used yet. Empty between steps.
    collected: Credits,
    /// Classes for which it waits, or has been granted what it waited for.
    registered: u8,
    /// What could not be had when it was looked for: reserved permits and headroom, by class.
    lacks_reserved: u8,
    lacks_headroom: u8,
    lacks_shared: bool,
    /// Classes for which no other lane had a spare.
    lacks_spares: u8,
    /// Ends since then.
    ends_while_lacking: u32,
    /// A permit has come back since the last contest.
    has_returned: bool,
    to_run: u64,
}

impl QueueCredits {
    /// A seat of the lane called `index`, which has nothing in flight.
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

    /// Operations of `class` in flight.
    pub fn in_flight(&self, class: Priority) -> u32 {
        self.used(class.index())
    }

    /// The lanes that have been given permits since this was asked last.
    pub fn take_queues_to_run(&mut self) -> QueuesToRun {
        QueuesToRun(std::mem::take(&mut self.to_run))
    }

    fn used(&self, class: usize) -> u32 {
        self.reserved[class] + self.extra[class]
    }

    fn bit(&self) -> u64 {
        1 << self.index
    }

    /// Forgets what could not be had.
    fn retry_all(&mut self) {
        (self.lacks_reserved, self.lacks_headroom, self.lacks_shared) = (0, 0, false);
        self.lacks_spares = 0;
        self.ends_while_lacking = 0;
    }
}

/// Where permits are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Pool,
    /// In the spares of other lanes as well.
    PoolAndSpares,
}

/// The classes whose bits are set, the most urgent first.
fn classes(mut bits: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let class = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            class
        })
    })
}

/// The classes that may win against one of `waiting`: all that are not less urgent than each of
/// these.
fn competing(waiting: u8) -> u8 {
    u8::MAX.checked_shr(waiting.leading_zeros()).unwrap_or(0)
}

impl Permits {
    /// All permits that `limits` allow, for `queues` lanes.
    ///
    /// # Panics
    /// Without lanes, or with more than [`MAX_SUBMISSION_QUEUES`].
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

    /// The limits that they keep.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How often lanes had to meet.
    pub fn stats(&self) -> PermitStats {
        self.pool.lock().stats
    }

    /// Lets one operation begin, of one of the classes `waiting` (bits) that the lane has requests of: the
    /// most urgent one below its minimum, else the most urgent one that may have another. Must be called again
    /// until it returns `None`, or be followed by [`rest`](Self::rest).
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

    /// Notes that an operation of `class` has ended. [`admit`](Self::admit) must follow.
    pub fn end(&self, queue: &mut QueueCredits, class: Priority) {
        let class = class.index();
        // What others can use as well goes first: so the reserved ones are in use as long as
        // the class has no more than its minimum in flight.
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

    /// Adds `credits`, which is of `kinds`, to the lane's spare; what is too much for it goes to the pool.
    fn put(&self, queue: &mut QueueCredits, credits: Credits, kinds: &[PermitKind]) {
        let spare = &self.spares[queue.index];
        // Others only take from it.
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

    /// Gets a lot of reserved permits, uses one and spares the others.
    fn fetch_reserved(&self, pool: &mut Pool, to: (usize, Source), class: usize) -> bool {
        let kind = PermitKind::Reserved(class);
        let got = self.fetch(pool, to, kind);
        if got > 0 {
            self.spares[to.0].fetch_add(Credits::of(kind, got - 1).0, SeqCst);
        }
        got > 0
    }

    /// Gets what the lane's spare lacks of a shared permit and headroom, and uses one of each if
    /// both are there. Says whether each is.
    fn fetch_extra(&self, pool: &mut Pool, to: (usize, Source), class: usize) -> (bool, bool) {
        let spare = &self.spares[to.0];
        // Under the pool's lock nobody else takes from it.
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
            debug_assert!(took, "both are there");
        }
        (shared, headroom)
    }

    /// Takes up to a lot of `kind` for `index` from the pool; else, if need be, half of another
    /// lane's spares.
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

    /// Looks at the spares of other lanes as well. If there are none either, registers the lane for
    /// `class`, unless it has its share.
    fn steal_or_register(&self, queue: &mut QueueCredits, class: usize) -> bool {
        let bit = 1 << class;
        // A lane alone has nobody to wait for but itself.
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

    /// Takes the lane's registrations back: it runs, and will renew them before its step ends. Under the
    /// pool's lock.
    fn unregister(&self, queue: &mut QueueCredits) {
        for waiters in &self.waiting_set.waiters {
            if waiters.load(SeqCst) & queue.bit() != 0 {
                waiters.fetch_and(!queue.bit(), SeqCst);
            }
        }
        queue.registered = 0;
    }

    /// Takes what has been granted.
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

    /// Lets all who want a permit compete for what the lane has, and the pool; the lane itself competes in
    /// the classes `waiting` in which it is below its share.
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

    /// Ends a step: what the lane has not used is there for others.
    fn return_unused(&self, queue: &mut QueueCredits) {
        queue.has_returned = false;
        // A lane that waits keeps nothing either: others' parts may complete what it has.
        let waiters = self.waiting_set.waiters.iter().any(|queues| queues.load(SeqCst) != 0);
        let keeps = !waiters || self.spares[queue.index].load(SeqCst) == 0;
        if keeps && queue.collected == Credits::NONE {
            return;
        }
        let mut pool = self.lock_pool();
        pool.add(std::mem::take(&mut queue.collected));
        if waiters {
            pool.add(Credits(self.spares[queue.index].swap(0, SeqCst)));
        }
        // The lane itself may be served as well, and then needs another step.
        queue.to_run |= pool.serve(&self.waiting_set);
        queue.retry_all();
    }

    /// Ends a step of a lane that has not been told `None` by [`admit`](Self::admit), because it can make no more of
    /// permits for now: what it has not used is there for others, and what it had asked for it asks
    /// for again when it can use it.
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

    /// Whether the pool, or spares, hold what an operation of `class` needs; for checks.
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

    /// Panics unless every permit is somewhere once, given the seats of all lanes; nobody else
    /// may be using them.
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

/// Changes a spare to what `f` makes of it, unless that is `None`.
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

/// Takes up to `most` permits of `kind`.
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
