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
//! - in use, or in the hand of the lane's step: counted in the lane's [`Seat`], under the lane's own lock.
//!
//! # Who waits, and who is woken
//!
//! A lane that has requests of a class, fewer of them in flight than its share (the class's limit by the number of
//! lanes, at least 1), and finds no permit, registers. A lane at or above its share does not: its own operations
//! will end, and give it the next permit. While others are registered, a lane that has got a permit back
//! does not keep it but lets all who want one compete ([`Permits::contest`]): by class first, as the lane's own
//! queue does, then in rotation, the lane itself among them as long as it is below its share. And a lane whose step
//! ends leaves them all that it has not used. Who is served is *kicked*: its engine makes a step of it.
//!
//! No kick is lost. Who registers sets its bit in [`Board::wanted`], and then looks once more at every spare; who
//! adds to its spare looks at `wanted` afterwards, before its step ends. All four are sequentially
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

use super::lease::{Lease, MOST_KEPT, Part};
use super::limits::Limits;
use super::pool::Pool;
use crate::priority::Priority;

/// Lanes that a device can have: their sets are words.
pub const MAX_LANES: usize = u64::BITS as usize;

/// Operations after which a lane looks again whether there are permits where there were none.
const PATIENCE: u32 = 16;

/// The permits of one device.
pub struct Permits {
    limits: Limits,
    /// In flight of a class, at which a lane does not wait for others' permits.
    share: [u32; Priority::COUNT],
    /// Of a part, what a lane keeps at most.
    keep: u32,
    board: CachePadded<Board>,
    spares: Box<[CachePadded<AtomicU64>]>,
    pool: CachePadded<Mutex<Pool>>,
}

/// What lanes read at every step; written only when one has to wait.
pub(super) struct Board {
    /// Lanes that wait for a permit, by class.
    pub(super) wanted: [AtomicU64; Priority::COUNT],
    /// Lanes that have something to collect.
    pub(super) granted: AtomicU64,
}

/// Lanes that need a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a lane that is not kicked may wait for ever"]
pub struct Kick(u64);

impl Kick {
    /// Those of `others` as well.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Whether nobody needs one.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Kick {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let lane = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(lane as usize)
    }
}

/// How often lanes had to meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitStats {
    /// Times that the pool's lock was taken.
    pub visits: u64,
    /// Times that a lane's spare permits were taken by another lane.
    pub steals: u64,
    /// Times that a lane registered because it found no permit.
    pub waits: u64,
    /// Permits handed to lanes that waited.
    pub grants: u64,
}

/// What one lane has of the permits; stands under the lane's lock.
pub struct Seat {
    lane: usize,
    /// In flight on reserved permits.
    reserved: [u32; Priority::COUNT],
    /// In flight on shared ones.
    extra: [u32; Priority::COUNT],
    /// Collected and not used yet. Empty between steps.
    hand: Lease,
    /// Classes for which it waits, or has been granted what it waited for.
    registered: u8,
    /// What could not be had when it was looked for: reserved permits and headroom, by class.
    dry_reserved: u8,
    dry_headroom: u8,
    dry_shared: bool,
    /// Classes for which no other lane had a spare.
    dry_spares: u8,
    /// Ends since then.
    ended_dry: u32,
    /// A permit has come back since the last contest.
    fresh: bool,
    kicks: u64,
}

impl Seat {
    /// A seat of the lane called `lane`, which has nothing in flight.
    pub fn new(lane: usize) -> Self {
        Self {
            lane,
            reserved: [0; Priority::COUNT],
            extra: [0; Priority::COUNT],
            hand: Lease::NONE,
            registered: 0,
            dry_reserved: 0,
            dry_headroom: 0,
            dry_shared: false,
            dry_spares: 0,
            ended_dry: 0,
            fresh: false,
            kicks: 0,
        }
    }

    /// Operations of `class` in flight.
    pub fn in_flight(&self, class: Priority) -> u32 {
        self.used(class.index())
    }

    /// The lanes that have been given permits since this was asked last.
    pub fn take_kicks(&mut self) -> Kick {
        Kick(std::mem::take(&mut self.kicks))
    }

    fn used(&self, class: usize) -> u32 {
        self.reserved[class] + self.extra[class]
    }

    fn bit(&self) -> u64 {
        1 << self.lane
    }

    /// Forgets what could not be had.
    fn look_again(&mut self) {
        (self.dry_reserved, self.dry_headroom, self.dry_shared) = (0, 0, false);
        self.dry_spares = 0;
        self.ended_dry = 0;
    }
}

/// Where permits are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Pool,
    /// In the spares of other lanes as well.
    Anywhere,
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
fn rivals(waiting: u8) -> u8 {
    u8::MAX.checked_shr(waiting.leading_zeros()).unwrap_or(0)
}

impl Permits {
    /// All permits that `limits` allow, for `lanes` lanes.
    ///
    /// # Panics
    /// Without lanes, or with more than [`MAX_LANES`].
    pub fn new(limits: Limits, lanes: usize) -> Self {
        assert!((1..=MAX_LANES).contains(&lanes), "{lanes} lanes");
        let share = |class| (limits.reachable(class) / lanes as u32).max(1);
        let spare = || CachePadded::new(AtomicU64::new(0));
        Self {
            share: std::array::from_fn(share),
            keep: (2 * limits.lot).min(MOST_KEPT),
            board: CachePadded::new(Board {
                wanted: std::array::from_fn(|_| AtomicU64::new(0)),
                granted: AtomicU64::new(0),
            }),
            spares: (0..lanes).map(|_| spare()).collect(),
            pool: CachePadded::new(Mutex::named("io-permits", Pool::new(&limits, lanes))),
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
    pub fn admit(&self, seat: &mut Seat, waiting: u8) -> Option<Priority> {
        if self.board.granted.load(SeqCst) & seat.bit() != 0 {
            self.collect(seat);
        }
        if seat.fresh && waiting != 0 && self.wanted_by_others(seat, rivals(waiting)) {
            self.contest(seat, waiting);
        }
        let found = classes(waiting)
            .find(|class| self.take_reserved(seat, *class))
            .or_else(|| classes(waiting).find(|class| self.take_extra(seat, *class)))
            .or_else(|| classes(waiting).find(|class| self.appeal(seat, *class)));
        if found.is_none() {
            self.settle(seat);
        }
        found.map(|class| Priority::ALL[class])
    }

    /// Notes that an operation of `class` has ended. [`admit`](Self::admit) must follow.
    pub fn end(&self, seat: &mut Seat, class: Priority) {
        let class = class.index();
        // What others can use as well goes first: so the reserved ones are in use as long as
        // the class has no more than its minimum in flight.
        if seat.extra[class] > 0 {
            seat.extra[class] -= 1;
            self.put(seat, Lease::extra(class), &[Part::Shared, Part::Headroom(class)]);
        } else {
            assert!(seat.reserved[class] > 0, "an end without a beginning");
            seat.reserved[class] -= 1;
            let part = Part::Reserved(class);
            self.put(seat, Lease::of(part, 1), &[part]);
        }
        seat.fresh = true;
        if seat.dry_reserved | seat.dry_headroom | seat.dry_spares != 0 || seat.dry_shared {
            seat.ended_dry += 1;
            if seat.ended_dry >= PATIENCE {
                seat.look_again();
            }
        }
    }

    /// Adds `lease`, which is of `parts`, to the lane's spare; what is too much for it goes to the pool.
    fn put(&self, seat: &mut Seat, lease: Lease, parts: &[Part]) {
        let spare = &self.spares[seat.lane];
        // Others only take from it.
        let before = Lease(spare.fetch_add(lease.0, SeqCst));
        let over = |part: &&Part| before.count(**part) >= self.keep;
        if parts.iter().any(|part| over(&part)) {
            let mut pool = self.visit();
            for part in parts.iter().filter(over) {
                let lot = pool.lot(*part);
                pool.add(Lease::of(*part, take_part(spare, *part, lot)));
            }
            self.withdraw(seat);
            seat.kicks |= pool.serve(&self.board);
            seat.look_again();
        }
    }

    fn take_reserved(&self, seat: &mut Seat, class: usize) -> bool {
        let bit = 1 << class;
        let found = if let Some(rest) = seat.hand.minus_reserved(class) {
            seat.hand = rest;
            true
        } else if take(&self.spares[seat.lane], |spare| spare.minus_reserved(class)) {
            true
        } else if seat.dry_reserved & bit != 0 {
            false
        } else {
            let found = self.fetch_reserved(&mut self.visit(), (seat.lane, From::Pool), class);
            seat.dry_reserved |= if found { 0 } else { bit };
            found
        };
        seat.reserved[class] += u32::from(found);
        found
    }

    fn take_extra(&self, seat: &mut Seat, class: usize) -> bool {
        let bit = 1 << class;
        let spare = &self.spares[seat.lane];
        let found = if let Some(rest) = seat.hand.minus_extra(class) {
            seat.hand = rest;
            true
        } else if take(spare, |spare| spare.minus_extra(class)) {
            true
        } else {
            let have = Lease(spare.load(SeqCst));
            let no_shared = seat.dry_shared && have.count(Part::Shared) == 0;
            let no_headroom =
                seat.dry_headroom & bit != 0 && have.count(Part::Headroom(class)) == 0;
            let hopeless = self.limits.headroom(class) == 0 || self.limits.shared() == 0;
            if no_shared || no_headroom || hopeless {
                return false;
            }
            let (shared, headroom) =
                self.fetch_extra(&mut self.visit(), (seat.lane, From::Pool), class);
            seat.dry_shared |= !shared;
            seat.dry_headroom |= if headroom { 0 } else { bit };
            shared && headroom
        };
        seat.extra[class] += u32::from(found);
        found
    }

    /// Gets a lot of reserved permits, uses one and spares the others.
    fn fetch_reserved(&self, pool: &mut Pool, to: (usize, From), class: usize) -> bool {
        let part = Part::Reserved(class);
        let got = self.fetch(pool, to, part);
        if got > 0 {
            self.spares[to.0].fetch_add(Lease::of(part, got - 1).0, SeqCst);
        }
        got > 0
    }

    /// Gets what the lane's spare lacks of a shared permit and headroom, and uses one of each if
    /// both are there. Says whether each is.
    fn fetch_extra(&self, pool: &mut Pool, to: (usize, From), class: usize) -> (bool, bool) {
        let spare = &self.spares[to.0];
        // Under the pool's lock nobody else takes from it.
        let [shared, headroom] = [Part::Shared, Part::Headroom(class)].map(|part| {
            if Lease(spare.load(SeqCst)).count(part) > 0 {
                return true;
            }
            let got = self.fetch(pool, to, part);
            spare.fetch_add(Lease::of(part, got).0, SeqCst);
            got > 0
        });
        let both = shared && headroom;
        if both {
            let took = take(spare, |spare| spare.minus_extra(class));
            debug_assert!(took, "both are there");
        }
        (shared, headroom)
    }

    /// Takes up to a lot of `part` for `lane` from the pool; else, if need be, half of another
    /// lane's spares.
    fn fetch(&self, pool: &mut Pool, (lane, from): (usize, From), part: Part) -> u32 {
        let got = pool.take_lot(part);
        if got > 0 || from == From::Pool {
            return got;
        }
        let lanes = self.spares.len();
        for other in (lane + 1..lanes).chain(0..lane) {
            let spare = &self.spares[other];
            let half = Lease(spare.load(SeqCst)).count(part).div_ceil(2);
            let got = if half > 0 { take_part(spare, part, half.min(pool.lot(part))) } else { 0 };
            if got > 0 {
                pool.stats.steals += 1;
                return got;
            }
        }
        0
    }

    /// Looks at the spares of other lanes as well. If there are none either, registers the lane for
    /// `class`, unless it has its share.
    fn appeal(&self, seat: &mut Seat, class: usize) -> bool {
        let bit = 1 << class;
        // A lane alone has nobody to wait for but itself.
        let hungry = seat.used(class) < self.share[class] && self.spares.len() > 1;
        if (hungry && seat.registered & bit != 0) || (!hungry && seat.dry_spares & bit != 0) {
            return false;
        }
        let mut pool = self.visit();
        let wanted = &self.board.wanted[class];
        if hungry {
            wanted.fetch_or(seat.bit(), SeqCst);
        }
        let to = (seat.lane, From::Anywhere);
        let reserved = self.fetch_reserved(&mut pool, to, class);
        let extra = !reserved && self.fetch_extra(&mut pool, to, class) == (true, true);
        seat.reserved[class] += u32::from(reserved);
        seat.extra[class] += u32::from(extra);
        if reserved || extra {
            wanted.fetch_and(!seat.bit(), SeqCst);
            seat.registered &= !bit;
        } else if hungry {
            pool.stats.waits += 1;
            seat.registered |= bit;
        } else {
            seat.dry_spares |= bit;
        }
        reserved || extra
    }

    /// Takes the lane's registrations back: it runs, and will renew them before its step ends. Under the
    /// pool's lock.
    fn withdraw(&self, seat: &mut Seat) {
        for wanted in &self.board.wanted {
            if wanted.load(SeqCst) & seat.bit() != 0 {
                wanted.fetch_and(!seat.bit(), SeqCst);
            }
        }
        seat.registered = 0;
    }

    /// Takes what has been granted.
    fn collect(&self, seat: &mut Seat) {
        let mut pool = self.visit();
        self.collect_from(&mut pool, seat);
    }

    fn collect_from(&self, pool: &mut Pool, seat: &mut Seat) {
        let granted = pool.take_grant(seat.lane);
        self.board.granted.fetch_and(!seat.bit(), SeqCst);
        seat.hand = seat.hand.plus(granted);
        let still = |class: &usize| self.board.wanted[*class].load(SeqCst) & seat.bit() != 0;
        seat.registered = (0..Priority::COUNT).filter(still).map(|class| 1 << class).sum();
        seat.look_again();
    }

    /// Lets all who want a permit compete for what the lane has, and the pool; the lane itself competes in
    /// the classes `waiting` in which it is below its share.
    fn contest(&self, seat: &mut Seat, waiting: u8) {
        let mut pool = self.visit();
        pool.add(Lease(self.spares[seat.lane].swap(0, SeqCst)));
        for class in classes(waiting).filter(|class| seat.used(*class) < self.share[*class]) {
            self.board.wanted[class].fetch_or(seat.bit(), SeqCst);
        }
        seat.kicks |= pool.serve(&self.board) & !seat.bit();
        self.withdraw(seat);
        self.collect_from(&mut pool, seat);
        seat.fresh = false;
    }

    /// Ends a step: what the lane has not used is there for others.
    fn settle(&self, seat: &mut Seat) {
        seat.fresh = false;
        // A lane that waits keeps nothing either: others' parts may complete what it has.
        let wanted = self.board.wanted.iter().any(|lanes| lanes.load(SeqCst) != 0);
        let keeps = !wanted || self.spares[seat.lane].load(SeqCst) == 0;
        if keeps && seat.hand == Lease::NONE {
            return;
        }
        let mut pool = self.visit();
        pool.add(std::mem::take(&mut seat.hand));
        if wanted {
            pool.add(Lease(self.spares[seat.lane].swap(0, SeqCst)));
        }
        // The lane itself may be served as well, and then needs another step.
        seat.kicks |= pool.serve(&self.board);
        seat.look_again();
    }

    /// Ends a step of a lane that has not been told `None` by [`admit`](Self::admit), because it can make no more of
    /// permits for now: what it has not used is there for others, and what it had asked for it asks
    /// for again when it can use it.
    pub fn rest(&self, seat: &mut Seat) {
        if seat.registered != 0 || self.board.granted.load(SeqCst) & seat.bit() != 0 {
            let mut pool = self.visit();
            self.withdraw(seat);
            self.collect_from(&mut pool, seat);
        }
        self.settle(seat);
    }

    fn wanted_by_others(&self, seat: &Seat, classes: u8) -> bool {
        let wanted = self.board.wanted.iter().enumerate();
        let mut of = wanted.filter(|(class, _)| classes & 1 << class != 0);
        of.any(|(_, lanes)| lanes.load(SeqCst) & !seat.bit() != 0)
    }

    fn visit(&self) -> forebay_base::sync::MutexGuard<'_, Pool> {
        let mut pool = self.pool.lock();
        pool.stats.visits += 1;
        pool
    }

    /// Whether the pool, or spares, hold what an operation of `class` needs; for checks.
    pub fn obtainable(&self, class: Priority) -> bool {
        let pool = self.pool.lock();
        let any = |part| {
            let spare = |spare: &CachePadded<AtomicU64>| Lease(spare.load(SeqCst)).count(part) > 0;
            pool.has(part) || self.spares.iter().any(spare)
        };
        let class = class.index();
        any(Part::Reserved(class)) || any(Part::Shared) && any(Part::Headroom(class))
    }

    /// Panics unless every permit is somewhere once, given the seats of all lanes; nobody else
    /// may be using them.
    pub fn audit(&self, seats: &[&Seat]) {
        let pool = self.pool.lock();
        for part in Part::all() {
            let spare = |spare: &CachePadded<AtomicU64>| Lease(spare.load(SeqCst)).count(part);
            let used = |seat: &&Seat| {
                seat.hand.count(part)
                    + match part {
                        Part::Reserved(class) => seat.reserved[class],
                        Part::Headroom(class) => seat.extra[class],
                        Part::Shared => seat.extra.iter().sum(),
                    }
            };
            let all = pool.holds(part)
                + self.spares.iter().map(spare).sum::<u32>()
                + seats.iter().map(used).sum::<u32>();
            let due = match part {
                Part::Reserved(class) => self.limits.min[class],
                Part::Headroom(class) => self.limits.headroom(class),
                Part::Shared => self.limits.shared(),
            };
            assert_eq!(all, due, "permits of {part:?}");
        }
    }
}

/// Changes a spare to what `f` makes of it, unless that is `None`.
fn take(spare: &AtomicU64, f: impl Fn(Lease) -> Option<Lease>) -> bool {
    let mut word = spare.load(SeqCst);
    while let Some(rest) = f(Lease(word)) {
        match spare.compare_exchange_weak(word, rest.0, SeqCst, SeqCst) {
            Ok(_) => return true,
            Err(now) => word = now,
        }
    }
    false
}

/// Takes up to `most` permits of `part`.
fn take_part(spare: &AtomicU64, part: Part, most: u32) -> u32 {
    let mut word = spare.load(SeqCst);
    loop {
        let n = Lease(word).count(part).min(most);
        if n == 0 {
            return 0;
        }
        let rest = word - Lease::of(part, n).0;
        match spare.compare_exchange_weak(word, rest, SeqCst, SeqCst) {
            Ok(_) => return n,
            Err(now) => word = now,
        }
    }
}
